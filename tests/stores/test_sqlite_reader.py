"""What an SQLite store's reader makes of questions that are asked at once."""

import asyncio
import gc
import sqlite3
import threading
from contextlib import AsyncExitStack, closing
from functools import partial

import anyio
import pytest

from streamagent.errors import StoreBusy, StoreError, StoreUncertain
from streamagent.message import Message
from streamagent.records import SessionInfo
from streamagent.stores._connection import Options, connect
from streamagent.stores._queries import snapshot
from streamagent.stores._sqlite_reader import GROUP, reading
from streamagent.stores.sqlite import SqliteStore


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture
async def reader(tmp_path):
    path = str(tmp_path / "file.db")
    options = Options(path=path, busy_timeout=1.0, synchronous="normal", read_only=False)
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(connect(options))
        reader = await stack.enter_async_context(reading(db, path))
        yield reader


class Gate:
    """A question that keeps the reader's thread until it is opened."""

    def __init__(self):
        self.opened = threading.Event()

    def __call__(self, db):
        assert self.opened.wait(10)
        return "passed"


def number(db, value):
    with snapshot(db):  # as nearly every question does
        return db.execute("SELECT ?", (value,)).fetchone()[0]


async def ask_behind(reader, questions, got, cancelled=()):
    """Ask while the reader is busy; return when all are answered."""
    gate = Gate()

    async def ask(place, question, scope):
        with scope:
            try:
                got[place] = await reader.ask(question)
            except Exception as error:
                got[place] = error

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.ask, gate)
        await anyio.wait_all_tasks_blocked()
        scopes = [anyio.CancelScope() for _ in questions]
        for place, question in enumerate(questions):
            tasks.start_soon(ask, place, question, scopes[place])
        await anyio.wait_all_tasks_blocked()
        for place in cancelled:
            scopes[place].cancel()
        await anyio.wait_all_tasks_blocked()
        gate.opened.set()


@pytest.mark.parametrize(("asked", "transactions"), [(1, 1), (GROUP, 1), (GROUP + 1, 2)])
@pytest.mark.anyio
async def test_what_is_asked_while_others_are_answered_is_one_group_and_one_transaction(reader, asked, transactions):
    begun, got = [], {}
    await reader.ask(lambda db: db.set_trace_callback(begun.append))

    await ask_behind(reader, [partial(number, value=value) for value in range(asked)], got)

    assert got == {value: value for value in range(asked)}
    assert begun.count("BEGIN") == 1 + transactions  # the gate was one of its own


@pytest.mark.anyio
async def test_a_question_that_fails_fails_alone(reader):
    got = {}

    def refused(db):
        db.execute("SELECT missing")

    def wrong(db):
        raise ValueError("not a row")

    await ask_behind(reader, [partial(number, value=1), refused, wrong, partial(number, value=2)], got)

    assert (got[0], got[3]) == (1, 2)
    assert isinstance(got[1], StoreError)
    assert "no such column" in str(got[1])
    assert isinstance(got[1].__cause__, sqlite3.OperationalError)
    assert isinstance(got[2], ValueError)


@pytest.mark.anyio
async def test_who_is_cancelled_takes_nobody_with_him(reader):
    got, asked = {}, []

    def noted(db, place):
        asked.append(place)
        return place

    await ask_behind(reader, [partial(noted, place=place) for place in range(3)], got, cancelled=[0, 1])

    assert got == {2: 2}
    assert asked == [2]  # nobody wants the others any more


@pytest.mark.anyio
async def test_what_was_asked_is_answered_before_the_store_is_closed(tmp_path):
    got, gate = {}, Gate()

    async def ask(name):
        got[name] = await (store._call(gate) if name == "gate" else store.info(name))

    async with anyio.create_task_group() as tasks, SqliteStore(tmp_path / "file.db") as store:
        fence = await store.acquire("s")
        await store.write("s", [Message(role="user", type="text", content="hello")], fence=fence)
        for name in ("gate", "s"):
            tasks.start_soon(ask, name)
            await anyio.wait_all_tasks_blocked()
        threading.Timer(0.0, gate.opened.set).start()

    assert (got["gate"], got["s"].messages) == ("passed", 1)
    with pytest.raises(StoreError, match="is not open"):
        await store.info("s")


@pytest.mark.anyio
async def test_when_the_snapshot_ends_in_the_middle_of_a_group_the_others_are_answered(reader):
    """SQLite ends a transaction by itself when the disk fails."""
    got = {}

    def failing_disk(db):
        db.execute("ROLLBACK")
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    await ask_behind(reader, [partial(number, value=1), failing_disk, partial(number, value=2)], got)

    assert (got[0], got[2]) == (1, 2)
    assert "the disk failed" in str(got[1])


@pytest.mark.parametrize("error", [StopIteration, SystemExit, ZeroDivisionError])
@pytest.mark.anyio
async def test_whatever_a_question_raises_the_reader_goes_on(reader, error):
    def failing(db):
        raise error("no answer")

    with pytest.raises(RuntimeError if error is StopIteration else error, match="no answer"):
        await reader.ask(failing)
    assert await reader.ask(partial(number, value=1)) == 1


@pytest.mark.anyio
async def test_a_file_that_is_locked_is_waited_for_once_by_a_group(tmp_path):
    path = str(tmp_path / "file.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN EXCLUSIVE")
        options = Options(path=path, busy_timeout=0.01, synchronous="normal", read_only=False)
        asked, got = [], []

        async def ask():
            with pytest.raises(StoreBusy) as caught:
                await reader.ask(asked.append)
            got.append(caught.value)

        async with connect(options) as db, reading(db, path) as reader, anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)
    assert len(got) == 3
    assert asked == []


@pytest.mark.anyio
async def test_an_error_that_is_kept_does_not_keep_the_reader_at_an_old_state(tmp_path):
    """F58: a row that cannot be read is its session's trouble; a cursor in the error's frames was that of all."""
    async with SqliteStore(tmp_path / "file.db") as store:
        fences = {session: await store.acquire(session) for session in ("damaged", "other")}
        for number in "12":  # behind the first one the cursor is not at its end
            call = Message(type="tool_call", content="{}", query={"tool": "t", "id": number})
            await store.write("damaged", [call], fence=fences["damaged"])
            await store.start_call("damaged", call.id, fence=fences["damaged"])
        with closing(sqlite3.connect(tmp_path / "file.db")) as other, other:
            other.execute("UPDATE calls SET outcome = 'no JSON', state = 'finished'")
        gc.disable()
        try:
            with pytest.raises(ValueError, match="not JSON") as caught:
                await store.calls("damaged")
            for count in (1, 2):
                await store.write("other", [Message(content="on")], fence=fences["other"])
                assert (await store.info("other")).messages == count
        finally:
            gc.enable()
        del caught


def test_tasks_that_are_cancelled_at_the_end_of_the_event_loop_are_answered(tmp_path):
    """asyncio cancels all tasks then, in whatever scope they are; what they do in `finally` is done all the same."""
    told = []

    async def use(store, name, begun):
        try:
            fence = await store.acquire(name)
            while True:
                await store.write(name, [Message(content="on")], fence=fence)
                await store.info(name)
                begun.set()
        finally:
            for operation in (store.info(name), store.enqueue(name, Message(role="user", content="last"))):
                try:
                    told.append(type(await operation))
                except StoreError as error:
                    told.append(type(error))

    async def main():
        store = SqliteStore(tmp_path / "file.db")
        await store.__aenter__()
        begun = [asyncio.Event() for _ in range(5)]
        tasks = [asyncio.create_task(use(store, f"s{number}", event)) for number, event in enumerate(begun)]
        await asyncio.gather(*(event.wait() for event in begun))
        return tasks, store

    tasks, _ = asyncio.run(main())
    assert all(task.cancelled() for task in tasks)
    assert len(told) == 10
    assert set(told) <= {SessionInfo, Message, StoreError, StoreUncertain}


@pytest.mark.anyio
async def test_when_whoever_closes_the_store_is_cancelled_nobody_waits_in_vain(tmp_path):
    gate, leave = Gate(), asyncio.Event()
    opened = asyncio.get_running_loop().create_future()

    async def own():
        async with SqliteStore(tmp_path / "file.db") as store:
            opened.set_result(store)
            await leave.wait()

    owner = asyncio.create_task(own())
    store = await opened
    asking = asyncio.create_task(store._call(gate))
    behind = asyncio.create_task(store._call(partial(number, value=7)))
    await anyio.wait_all_tasks_blocked()
    leave.set()
    await anyio.wait_all_tasks_blocked()
    owner.cancel()
    gate.opened.set()
    with anyio.fail_after(10):
        assert await asking == "passed"
        with pytest.raises(StoreError, match="closed database"):
            await behind
        await asyncio.wait([owner])
