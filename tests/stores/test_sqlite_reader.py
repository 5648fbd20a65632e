"""What an SQLite store's reader makes of questions that are asked at once."""

import sqlite3
import threading
from contextlib import AsyncExitStack
from functools import partial

import anyio
import pytest

from streamagent.errors import StoreError
from streamagent.message import Message
from streamagent.stores._connection import Options, connect
from streamagent.stores._queries import snapshot
from streamagent.stores._sqlite_reader import GROUP, reading
from streamagent.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


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
async def test_what_is_asked_while_others_are_answered_is_one_group_and_one_transaction(reader, asked, transactions):
    begun, got = [], {}
    await reader.ask(lambda db: db.set_trace_callback(begun.append))

    await ask_behind(reader, [partial(number, value=value) for value in range(asked)], got)

    assert got == {value: value for value in range(asked)}
    assert begun.count("BEGIN") == 1 + transactions  # the gate was one of its own


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


async def test_who_is_cancelled_takes_nobody_with_him(reader):
    got, asked = {}, []

    def noted(db, place):
        asked.append(place)
        return place

    await ask_behind(reader, [partial(noted, place=place) for place in range(3)], got, cancelled=[0, 1])

    assert got == {2: 2}
    assert asked == [2]  # nobody wants the others any more


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
