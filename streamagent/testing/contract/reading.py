"""What every store does when it is read, when a session is deleted, and with odd data."""

import tracemalloc
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from streamagent.errors import LeaseLost, MessageError
from streamagent.message import Message, fold

from .rows import KIB64, LONG, contents, rows, text


class ReadingContract:
    # reading

    async def test_after_and_until_bound_what_is_read(self, store):
        fence = await store.acquire("s")
        await store.write("s", [text(str(n)) for n in range(1, 6)], fence=fence)
        assert await contents(store, after=2) == ["3", "4", "5"]
        assert await contents(store, until=2) == ["1", "2"]
        assert await contents(store, after=1, until=3) == ["2", "3"]
        assert await contents(store, after=5) == []
        assert await contents(store, after=-3, until=1 << 80) == ["1", "2", "3", "4", "5"]
        assert await contents(store, after=1 << 80) == []

    async def test_long_histories_come_whole_and_in_order(self, store):
        fence = await store.acquire("s")
        await store.write("s", [text(f"{n}" * 500) for n in range(1000)], fence=fence)
        found = [message async for message in store.read("s")]
        assert [message.sequence for message in found] == list(range(1, 1001))
        assert [message.content[:3] for message in found[-2:]] == ["998", "999"]

    async def test_an_unknown_session_is_empty(self, store):
        assert await rows(store, "nobody") == []
        assert await store.inbox("nobody") == []
        assert await store.tally("nobody") == {}
        assert await store.delete("nobody") is False
        assert [info async for info in store.sessions()] == []

    async def test_a_message_that_is_still_open_ends_with_more(self, store):
        fence = await store.acquire("s")
        await store.write("s", [text("a", more=True), text("", more=True)], fence=fence)
        assert [(m.content, m.more) async for m in store.read("s")] == [("a", True), ("", True)]

    @pytest.mark.parametrize("char", ["x", "é", "語", "🦜"])
    @pytest.mark.parametrize("beyond", [-1, 0, 1])
    async def test_content_beyond_64_kib_comes_in_pieces(self, store, char, beyond):
        fence = await store.acquire("s")
        content = (char * KIB64).encode()[:KIB64].decode("utf-8", "ignore")
        content = content[:-1] if beyond < 0 else content + "y" * beyond
        size = len(content.encode())
        await store.write("s", [text(content, query={"k": 1})], fence=fence)
        found = [message async for message in store.read("s")]
        assert (len(found) == 1) == (size <= KIB64)
        assert all(len(message.content.encode()) <= KIB64 for message in found)
        assert [message.query for message in found] == [{"k": 1}] * len(found)
        assert fold(found) == [replace(found[0], content=content, more=False)]

    async def test_a_large_message_may_grow_in_small_fragments_and_be_closed_empty(self, store):
        fence = await store.acquire("s")
        message = text("", more=True)
        for n in range(300):
            store.write_soon("s", replace(message, content=f"{n:03}" * 100), fence=fence, lag=LONG)
            if n % 50 == 0:
                await store.flush("s")
        await store.write("s", [replace(message, more=False)], fence=fence)
        [found] = await rows(store)
        assert found.content == "".join(f"{n:03}" * 100 for n in range(300))
        assert found.more is False

    async def test_messages_around_a_large_one_keep_their_order(self, store):
        fence = await store.acquire("s")
        await store.write("s", [text("a"), text("b" * 3 * KIB64), text("c"), text("d" * 2 * KIB64)], fence=fence)
        assert [content[0] for content in await contents(store)] == ["a", "b", "c", "d"]

    async def test_reading_a_large_message_keeps_memory_flat(self, store):
        fence = await store.acquire("s")
        piece = "é" * (KIB64 // 4)
        message = text("", more=True)
        for _ in range(160):
            await store.write("s", [replace(message, content=piece)], fence=fence)
        await store.write("s", [replace(message, more=False)], fence=fence)
        tracemalloc.start()
        try:
            size = 0
            async for fragment in store.read("s"):
                assert len(fragment.content.encode()) <= KIB64
                size += len(fragment.content.encode())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert size == 160 * KIB64 // 2  # 5 MiB
        assert peak < 1024 * 1024

    async def test_a_session_may_be_deleted_while_it_is_read(self, store):
        fence = await store.acquire("s")
        await store.write("s", [text("a" * 3 * KIB64), text("b")], fence=fence)
        stream = store.read("s")
        first = await anext(stream)
        await store.delete("s")
        rest = [message async for message in stream]
        assert first.more is True
        assert all(message.id == first.id for message in rest)

    async def test_a_message_may_be_closed_while_it_is_read(self, store):
        fence = await store.acquire("s")
        message = text("a", more=True)
        await store.write("s", [message, text("b")], fence=fence)
        stream = store.read("s")
        first = await anext(stream)
        await store.write("s", [replace(message, content="a", more=False)], fence=fence)
        assert (first.content, first.more) == ("a", True)
        assert [m.content async for m in stream] == ["b"]

    # deleting

    async def test_a_deleted_session_is_gone_and_its_writer_loses_its_lease(self, store):
        fence = await store.acquire("s")
        await store.write("s", [text("a"), text("b" * 2 * KIB64), text("c", more=True)], fence=fence)
        await store.enqueue("s", Message.user("waits"), client_key="k")
        store.write_soon("s", text("d"), fence=fence, lag=LONG)
        assert await store.delete("s") is True
        with pytest.raises(LeaseLost):
            await store.write("s", [text("late")], fence=fence)
        left = await store.unfinished("s")
        assert (await rows(store), await store.inbox("s"), left.last, list(left.open)) == ([], [], None, [])
        assert [info async for info in store.sessions()] == []
        assert await store.delete("s") is False

    async def test_a_deleted_session_may_begin_again_at_one(self, store):
        old = await store.acquire("s")
        await store.write("s", [text("a", id="m")], fence=old)
        await store.delete("s")
        new = await store.acquire("s")
        assert new > old
        assert await store.write("s", [text("b", id="m")], fence=new) == [1]
        assert await contents(store) == ["b"]

    async def test_deleting_a_session_that_only_has_a_writer_stops_it(self, store):
        fence = await store.acquire("s")
        assert await store.delete("s") is False
        with pytest.raises(LeaseLost):
            await store.write("s", [text("late")], fence=fence)

    async def test_deleting_one_session_leaves_the_others(self, store):
        for session in ("a", "b"):
            await store.write(session, [text(session * 2 * KIB64)], fence=await store.acquire(session))
        await store.delete("a")
        assert (await contents(store, "b"))[0][0] == "b"

    # odd data

    @pytest.mark.parametrize("name", ["a\0b", "\ud800", "x\udfff"])
    async def test_names_that_no_database_can_hold_are_refused_before_anything_is_written(self, store, name):
        fence = await store.acquire("s")
        with pytest.raises(MessageError, match="session"):
            await store.acquire(name)
        with pytest.raises(MessageError, match="session"):
            await anext(store.read(name))
        with pytest.raises(MessageError, match="client_key"):
            await store.enqueue("s", Message.user("hi"), client_key=name)
        for field in ("id", "prev", "role", "type"):
            with pytest.raises(MessageError, match=field):
                await store.write("s", [text("ok"), Message(**{field: name})], fence=fence)
            with pytest.raises(MessageError, match=field):
                store.write_soon("s", Message(**{field: name}), fence=fence, lag=LONG)
        for attempt in (1 << 63, 0, -1):
            with pytest.raises(MessageError, match="attempt"):
                await store.write("s", [Message(attempt=attempt)], fence=fence)
        assert await rows(store) == []

    @pytest.mark.parametrize(
        "query",
        [
            {"x": float("nan")},
            {"x": [1, float("inf")]},
            {"x": {1: 2}},
            {"x": {1, 2}},
            {"x": datetime(2020, 1, 1, tzinfo=timezone.utc)},
            {"x": b"bytes"},
            {"x": object()},
        ],
        ids=["nan", "inf", "key", "set", "time", "bytes", "object"],
    )
    async def test_a_query_that_json_cannot_hold_is_refused_by_name(self, store, query):
        fence = await store.acquire("s")
        with pytest.raises(MessageError, match="'x'"):
            await store.write("s", [text("a"), Message(query=query)], fence=fence)
        assert await rows(store) == []

    async def test_a_query_that_is_too_deep_is_refused(self, store):
        query = {"x": 1}
        for _ in range(5000):
            query = {"x": query}
        fence = await store.acquire("s")
        with pytest.raises(MessageError):
            await store.write("s", [Message(query=query)], fence=fence)
