"""What was deleted is in no file of an SQLite store any more."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from streamagent import Message, Retention, erase, prune
from streamagent.errors import StoreBusy, StoreError, StoreReadOnly
from streamagent.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

CANARY = "canary-4711"


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.db"


def traces(path):
    """The files in which the canary is, for whoever reads their bytes."""
    files = sorted(path.parent.iterdir())
    return [file.name for file in files if CANARY.encode() in file.read_bytes()]


async def fill(store, session="alice/1"):
    """Leave the canary everywhere: rows, queries, pieces of open and gathered messages, the inbox, calls, keys."""
    fence = await store.acquire(session)
    call = Message(type="tool_call", content=CANARY, query={"tool": "t", "id": "c", "args": {"a": CANARY}})
    await store.write(session, [Message(content=f"{CANARY} {number}") for number in range(100)], fence=fence)
    await store.write(session, [Message(content=f"{CANARY} " * 10_000), call], fence=fence)
    gathered = Message(content=CANARY, more=True)
    for _ in range(50):
        await store.write(session, [gathered], fence=fence)
    await store.write(session, [replace(gathered, more=False), Message(content=CANARY, more=True)], fence=fence)
    await store.start_call(session, call.id, fence=fence)
    result = Message(role="tool", type="tool_result", content=CANARY, query={"call": call.id})
    await store.finish_call(session, call.id, result, fence=fence)
    await store.enqueue(session, Message(role="user", content=CANARY * 10_000), client_key=CANARY)


async def keep(store):
    """Rows of others, between those that go."""
    fence = await store.acquire("bob/1")
    await store.write("bob/1", [Message(content="kept" * number) for number in range(200)], fence=fence)


@pytest.mark.parametrize("how", ["erase", "prune", "delete"])
@pytest.mark.parametrize("forked", [False, True])
async def test_what_was_deleted_is_in_no_file(path, how, forked):
    async with SqliteStore(path) as store:
        await keep(store)
        await fill(store)
        if forked:
            await store.fork("alice/1", "fork", at=101)
            await fill(store, "fork")
        await keep(store)
        assert traces(path)
        if how == "erase":
            assert len(await erase(store, "alice")) == 1 + forked
        elif how == "prune":
            assert len(await prune(store, Retention(max_sessions=1), busy=True)) == 1 + forked
        else:
            for session in ("fork", "alice/1"):
                await store.delete(session)
            await store.shred()
        assert traces(path) == []
        assert (await store.info("bob/1")).messages == 400
    assert traces(path) == []


async def test_what_was_gathered_or_closed_before_leaves_nothing_either(path):
    """Space that was freed long before the session is deleted is written over, too."""
    async with SqliteStore(path) as store:
        fence = await store.acquire("alice/1")
        for _ in range(20):
            message = Message(content=CANARY * 100, more=True)
            for _ in range(20):
                await store.write("alice/1", [message], fence=fence)
            await store.write("alice/1", [replace(message, more=False)], fence=fence)
    async with SqliteStore(path) as store:
        await erase(store, "alice")
        assert traces(path) == []


async def test_a_reader_of_an_older_state_is_told_of_and_what_is_left_goes_with_the_next_one(path):
    async with SqliteStore(path, busy_timeout=0.05) as store:
        await fill(store)
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM messages").fetchone()
            with pytest.raises(StoreBusy, match="still in its -wal file; end that and do it again"):
                await erase(store, "alice")
            assert await store.info("alice/1") is None
            assert traces(path)
            other.execute("ROLLBACK")
        await store.shred()
        assert traces(path) == []


async def test_only_a_store_that_is_open_for_writing_can_do_it(path):
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="not open"):
        await store.shred()
    async with store:
        pass
    async with SqliteStore(path, read_only=True) as viewer:
        with pytest.raises(StoreReadOnly):
            await viewer.shred()


async def test_of_a_database_in_memory_there_is_no_file():
    async with SqliteStore(":memory:") as store:
        await fill(store)
        assert len(await erase(store, "alice")) == 1
