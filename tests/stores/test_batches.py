"""What is handed over while a transaction is under way is one transaction, and each operation has its own result."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial

import anyio
import pytest

from streamagent.errors import ConflictError, MessageError
from streamagent.message import Message
from streamagent.records import Owner
from streamagent.stores import _ledger
from streamagent.stores._operations import Ledgers
from streamagent.stores._running import running
from streamagent.stores._sqlite_writer import SqliteWriter
from streamagent.stores._writer import Writer
from streamagent.stores.memory import MemoryStore
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing import run_in_virtual_time
from streamagent.testing.contract.rows import LONG, call_and_result, contents, rows, text


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "shop.db")


@pytest.fixture(params=[False, True], ids=["at once", "again after a rollback"])
def batches(request, monkeypatch):
    """Note the batches; with the second parameter the first attempt at each fails behind all its statements."""
    noted = []
    attempt, save = SqliteWriter._try, Ledgers.save

    def noting(self, db, batch):
        fails = request.param and batch not in noted
        noted.append(batch)
        if not fails:
            return attempt(self, db, batch)
        with monkeypatch.context() as patch:
            patch.setattr(Ledgers, "save", failing)
            return attempt(self, db, batch)

    def failing(ledgers):
        save(ledgers)
        error = sqlite3.OperationalError("locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    monkeypatch.setattr(SqliteWriter, "_try", noting)
    return noted


async def at_once(batches, *operations):
    """Hand over all in one batch; return what came of each."""
    results = [None] * len(operations)

    async def do(number, operation):
        try:
            results[number] = await operation()
        except (MessageError, ConflictError) as error:
            results[number] = type(error)

    async with anyio.create_task_group() as tasks:
        for number, operation in enumerate(operations):
            tasks.start_soon(do, number, operation)
    assert len([operation for operation in batches[-1] if operation.run]) >= len(operations)
    return results


@pytest.mark.anyio
async def test_what_opens_and_closes_in_one_batch_is_one_row_without_fragments(path, batches):
    async with SqliteStore(path) as store:
        fence = await store.acquire("s")
        call, result = call_and_result()
        store.write_soon("s", text("Let me see."), fence=fence, lag=LONG)
        store.write_soon("s", replace(call, content='{"a":', query=None, more=True), fence=fence, lag=LONG)
        end, answer = replace(call, content="1}"), partial(store.write, "s", [result], fence=fence)
        assert await at_once(batches, partial(store.write, "s", [end], fence=fence), answer) == [[2], [3]]
        assert await contents(store) == ["Let me see.", '{"a":1}', "15"]
        assert list((await store.unfinished("s")).calls) == []
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM fragments").fetchone() == (0,)
        assert db.execute("SELECT state, answered FROM messages WHERE type = 'tool_call'").fetchall() == [("closed", 3)]


@pytest.mark.anyio
async def test_one_that_is_refused_leaves_the_others(path, batches):
    async with SqliteStore(path) as store:
        fence = await store.acquire("s")
        known = text("known")
        await store.write("s", [known], fence=fence)
        write = partial(store.write, "s", fence=fence)
        assert await at_once(
            batches, partial(write, [text("a")]), partial(write, [text("no"), known]), partial(write, [text("b")])
        ) == [[2], MessageError, [3]]
        assert await contents(store) == ["known", "a", "b"]


@pytest.mark.anyio
async def test_a_message_is_sent_and_admitted_in_one_batch(path, batches):
    async with SqliteStore(path) as store:
        fence = await store.acquire("s")
        prompt = Message.user("hi")
        sent, again, other, admitted = await at_once(
            batches,
            partial(store.enqueue, "s", prompt, client_key="k"),
            partial(store.enqueue, "s", Message.user("hi"), client_key="k"),
            partial(store.enqueue, "s", Message.user("else"), client_key="k"),
            partial(store.admit, "s", fence=fence),
        )
        assert (sent.sequence, again.id, other) == (None, prompt.id, ConflictError)
        assert [(message.id, message.sequence) for message in admitted] == [(prompt.id, 1)]
        assert await store.inbox("s") == []
        assert (await rows(store))[0].content == "hi"


@pytest.mark.anyio
async def test_a_session_is_taken_and_written_in_one_batch(path, batches):
    async with SqliteStore(path) as store:
        owner = Owner(id="me", ttl=10)
        late = replace(text("a"), created_at=text("").created_at.replace(year=2020))
        taken, sent = await at_once(
            batches, partial(store.acquire, "s", owner=owner), partial(store.enqueue, "s", late)
        )
        assert (taken, sent.content) == (1, "a")
        info = await store.info("s")
        assert (info.running, info.created_at.year, info.messages) == (True, 2020, 0)


@pytest.mark.anyio
async def test_forks_and_deletions_see_what_came_before_them_in_their_batch(path, batches):
    async with SqliteStore(path) as store:
        fence = await store.acquire("s")
        await store.write("s", [text("a")], fence=fence)
        forked = await at_once(
            batches,
            partial(store.write, "s", [text("b")], fence=fence),
            partial(store.fork, "s", "f"),
            partial(store.write, "s", [text("c")], fence=fence),
            partial(store.enqueue, "f", Message.user("d")),
            partial(store.delete, "s"),
        )
        assert forked == [[2], None, [3], forked[3], ConflictError]
        assert (await contents(store), await contents(store, "f")) == (["a", "b", "c"], ["a", "b"])
        _, *deleted = await at_once(
            batches,
            partial(store.enqueue, "f", Message.user("e")),
            partial(store.delete, "f"),
            partial(store.delete, "s"),
        )
        assert deleted == [True, True]
        assert [info async for info in store.sessions()] == []


class Recording(Writer):
    """A writer that notes when it commits, and whose fragments."""

    commits: list[tuple[float, list[str]]]

    async def _serve(self):
        while self._queue or not self._closed:
            if not self._queue:
                await self._rest()
            self._release_due()
            queue, self._queue = self._queue, []
            await self._commit(queue)

    async def _transact(self, batch):
        self.commits.append((anyio.current_time(), [operation.session for operation in batch]))
        return [None] * len(batch)


def test_fragments_whose_lag_is_over_soon_go_along_with_those_whose_lag_is_over():
    async def main():
        writer, lag, start = Recording("store", str), 0.5, anyio.current_time()
        writer.commits = []
        async with running(writer):
            for session, handed_over in (("a", 0.0), ("b", 0.25), ("c", 0.26)):
                await anyio.sleep(start + handed_over - anyio.current_time())
                writer.write_soon(session, text("hello"), fence=1, lag=lag)
            await anyio.sleep(1)
        return [(pytest.approx(at - start), sessions) for at, sessions in writer.commits]

    assert run_in_virtual_time(main) == [(0.5, ["a", "b"]), (0.76, ["c"])]


@pytest.mark.anyio
@pytest.mark.parametrize("memory", [False, True], ids=["SQLite", "memory"])
async def test_a_write_that_is_refused_for_one_message_changes_no_other(path, memory, monkeypatch):
    merge = _ledger.merge_queries

    def refusing(first, second):
        if second == '{"refused":true}':
            raise MessageError("these two make no query")
        return merge(first, second)

    monkeypatch.setattr(_ledger, "merge_queries", refusing)
    async with MemoryStore() if memory else SqliteStore(path) as store:
        fence = await store.acquire("s")
        one, two, three = (replace(text(content), more=True, query={"n": 1}) for content in ("one", "two", "three"))
        await store.write("s", [one, two], fence=fence)
        ghost, bad = replace(one, content=" ghost", query=None), replace(two, query={"refused": True})
        with pytest.raises(MessageError, match="these two"):
            await store.write("s", [three, ghost, bad], fence=fence)
        ends = [replace(one, content=" end", more=False), replace(two, content=" end", more=False)]
        await store.write("s", [*ends, replace(three, more=False)], fence=fence)
        assert await contents(store) == ["one end", "two end", "three"]


@pytest.mark.anyio
@pytest.mark.parametrize(("length", "remembered"), [(248, True), (249, False)])
async def test_an_open_message_is_remembered_with_a_query_of_at_most_256_characters(path, length, remembered):
    async with SqliteStore(path) as store:
        fence = await store.acquire("s")
        message = replace(text("a"), more=True, query={"k": "x" * length})
        await store.write("s", [message], fence=fence)
        assert [*store._writer._memory.rows] == [("s", message.id)] * remembered
        await store.write("s", [replace(message, content="b", query=None, more=False)], fence=fence)
        assert await contents(store) == ["ab"]
        assert not store._writer._memory.rows
