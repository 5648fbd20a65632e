"""A row that another program has spoilt is shown as unreadable; it costs its session, and the others, nothing else."""

import sqlite3
from contextlib import closing
from datetime import datetime, timezone

import pytest

from streamagent._core.request import build_request
from streamagent.errors import ConflictError
from streamagent.message import Message
from streamagent.settle import settle
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing.contract.rows import KIB64, LONG, call_and_result, contents, rows, text

pytestmark = pytest.mark.anyio

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DEEP = '{"a":' + "[" * 100_000 + "1234567890123456789"

FLAWS = [
    ("query", "{bad json", "query is not JSON"),
    ("query", DEEP, "query is not JSON"),
    ("query", "[1,2]", "query is not a JSON object"),
    ("created_at", "garbage", "time is 'garbage'"),
    ("created_at", b"\xff", "time is"),
    ("role", "robot", "role is 'robot'"),
    ("attempt", "many", "attempt is 'many'"),
    ("content", b"\xff", "content"),
]
flawed = pytest.mark.parametrize(("column", "value", "why"), FLAWS, ids=[f"{f[0]}-{f[1][:9]!r}" for f in FLAWS])


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "shop.db")


@pytest.fixture
async def store(path):
    async with SqliteStore(path, synchronous="normal") as store:
        yield store


def spoil(path, column, value, which="sequence = 2", table="messages"):
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(f"UPDATE {table} SET {column} = ? WHERE {which}", (value,)).rowcount


@flawed
async def test_it_is_shown_as_unreadable_and_the_others_as_they_are(store, path, column, value, why):
    fence = await store.acquire("s")
    await store.write("s", [Message.user("a"), text("b"), text("c")], fence=fence)
    spoil(path, column, value)
    first, shown, last = await rows(store)
    assert (first.content, last.content) == ("a", "c")
    assert (shown.type, shown.sequence, list(shown.query)) == ("unreadable", 2, ["unreadable"])
    assert why in shown.query["unreadable"]
    assert Message.from_json(shown.to_json()) == shown


@flawed
async def test_it_is_not_sent_to_the_model(store, path, column, value, why):
    fence = await store.acquire("s")
    await store.write("s", [Message.user("a"), text("b"), Message.user("c")], fence=fence)
    spoil(path, column, value)
    assert [entry["content"] for entry in build_request(await rows(store))] == ["a", "c"]


@flawed
async def test_what_an_interrupted_run_left_can_be_settled(store, path, column, value, why):
    fence = await store.acquire("s")
    call, _ = call_and_result()
    await store.write("s", [Message.user("a"), text("b", more=True), call], fence=fence)
    spoil(path, column, value)
    spoil(path, column, value, "sequence = 3")
    left = await store.unfinished("s")
    assert [message.type for message in (*left.open, *left.calls, left.last)] == ["unreadable"] * 3
    await settle(store, "s", fence=fence, cause="crashed")
    assert (await store.unfinished("s")).at_rest
    assert (await rows(store))[0].content == "a"


@flawed
async def test_it_can_wait_in_the_inbox_and_be_admitted(store, path, column, value, why):
    fence = await store.acquire("s")
    await store.enqueue("s", Message.user("a"), client_key="k")
    await store.enqueue("s", Message.user("b"))
    spoil(path, column, value, "client_key = 'k'")
    assert [message.type for message in await store.inbox("s")] == ["unreadable", "text"]
    with pytest.raises(ConflictError):
        await store.enqueue("s", Message.user("a"), client_key="k")
    admitted = await store.admit("s", fence=fence, limit=2)
    assert [(message.type, message.sequence) for message in admitted] == [("unreadable", 1), ("text", 2)]
    assert sum((await store.tally("s")).values()) == 2


async def test_what_the_table_holds_stays_until_something_is_added(store, path):
    fence = await store.acquire("s")
    await store.write("s", [text("a"), call_and_result()[0]], fence=fence)
    spoil(path, "query", "{bad json")
    [_, call] = await rows(store)
    answer = Message(role="tool", type="tool_result", query={"call": call.id})
    await store.write("s", [answer], fence=fence)
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT type, state, query FROM messages WHERE sequence = 2").fetchall()
    assert found == [("tool_call", "closed", "{bad json")]


async def test_a_message_goes_on_whose_query_was_spoilt_and_gets_the_next_one(store, path):
    fence = await store.acquire("s")
    message = text("a", more=True, query={"x": 1})
    await store.write("s", [message], fence=fence)
    spoil(path, "query", "{bad json", "sequence = 1")
    await store.write("s", [text("b", id=message.id, query={"cut": "aborted"})], fence=fence)
    [found] = await rows(store)
    assert (found.type, found.content, found.query) == ("text", "ab", {"cut": "aborted"})


async def test_a_large_one_is_shown_in_pieces(store, path):
    fence = await store.acquire("s")
    await store.write("s", [text("a"), text("é" * KIB64)], fence=fence)
    spoil(path, "role", "robot")
    assert [message.type for message in await rows(store)] == ["text", "unreadable"]
    assert await contents(store) == ["a", "é" * KIB64]


async def test_a_write_to_it_does_not_stop_other_sessions(store, path):
    fence = await store.acquire("s")
    message = text("a", more=True)
    await store.write("s", [message], fence=fence)
    spoil(path, "created_at", "garbage", "sequence = 1")
    store.write_soon("s", message, fence=fence, lag=LONG)
    store.write_soon("t", text("b"), fence=await store.acquire("t"), lag=LONG)
    await store.flush("s")
    await store.flush("t")
    assert (await contents(store), await contents(store, "t")) == (["aa"], ["b"])


async def test_the_time_of_a_session_that_was_spoilt_is_the_epoch(store, path):
    await store.enqueue("s", Message.user("a"))
    spoil(path, "created_at", "garbage", "session = 's'", "leases")
    [info] = [info async for info in store.sessions()]
    assert (info.id, info.created_at) == ("s", EPOCH)


async def test_a_time_without_a_zone_is_utc(store, path):
    fence = await store.acquire("s")
    await store.write("s", [text("a")], fence=fence)
    spoil(path, "created_at", "2025-01-02 03:04:05", "sequence = 1")
    [found] = await rows(store)
    assert (found.type, found.created_at) == ("text", datetime(2025, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
