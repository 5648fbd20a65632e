"""What every store does for those who follow a session."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import anyio
import pytest

from streamagent.errors import CursorError, CursorGone
from streamagent.follow import Cursor, Follow
from streamagent.message import Message, afold, fold

KIB64 = 64 * 1024
WIDE = "grün 水 🐟 e\u0301"  # characters of 1 to 4 bytes


async def fill(store, session="s"):
    """Store what a session may have: odd text in pieces, calls, large content, what was cut, what is still open."""
    fence = await store.acquire(session)
    said = Message(content="", more=True)
    call = Message(type="tool_call", content="{}", query={"tool": "stock", "id": "c1", "args": {}})
    result = Message(role="tool", type="tool_result", content="水" * 50_000, query={"tool": "stock", "call": call.id})
    cut = Message(type="reasoning", content="half a thou", more=True)
    await store.write(session, [Message.user(WIDE)], fence=fence)
    for character in WIDE:
        await store.write(session, [replace(said, content=character)], fence=fence)
    await store.write(session, [replace(said, more=False), call, Message.stop("tool_calls"), result], fence=fence)
    await store.write(session, [cut], fence=fence)
    await store.write(session, [replace(cut, content="", more=False, query={"cut": "aborted"})], fence=fence)
    large = Message(content="ä" * KIB64, more=True)
    for _ in range(2):
        await store.write(session, [replace(large, content="z" + "ä" * KIB64)], fence=fence)
    await store.write(session, [replace(large, content="end", more=False), Message.stop("stop")], fence=fence)
    opened = Message(content="and no", more=True)
    await store.write(session, [opened], fence=fence)
    return fence, opened


async def seen(store, session="s", **options):
    """Follow to the end of what is stored: each fragment with the cursor behind it."""
    follow = Follow(store, session, live=False, **options)
    return [(message, str(follow.cursor)) async for message in follow]


async def stored(store, session="s"):
    """What `read` gives, without what waits for its first content."""
    return [message for message in await afold(store.read(session)) if message.content or not message.more]


def content_of(events):
    return "".join(message.content for message, _ in events)


class FollowContract:
    # what is stored

    async def test_it_gives_what_is_stored_in_fragments_of_bounded_size(self, store):
        await fill(store)
        events = await seen(store)
        assert fold(message for message, _ in events) == await stored(store)
        assert max(len(message.content.encode()) for message, _ in events) <= KIB64
        assert events[-1][0].more

    async def test_from_each_cursor_on_it_gives_the_same_events(self, store):
        await fill(store)
        events = await seen(store)
        cursors = [Cursor.parse(cursor) for _, cursor in events]
        assert cursors == sorted(set(cursors))
        for number, (_, cursor) in enumerate(events, 1):
            assert await seen(store, after=cursor) == events[number:]

    async def test_it_goes_on_at_each_character_of_open_closed_and_large_messages(self, store):
        fence, opened = await fill(store)
        await store.write("s", [replace(opened, content=WIDE)], fence=fence)
        for whole in fold(message for message, _ in await seen(store)):
            borders = [*range(len(WIDE)), *range(KIB64 - 2, KIB64 + 4), len(whole.content) - 1, len(whole.content)]
            for border in (number for number in borders if 0 < number <= len(whole.content)):
                offset = len(whole.content[:border].encode())
                events = await seen(store, after=f"{(whole.sequence or 0) - 1}:{offset}")
                rest = "".join(message.content for message, _ in events if message.id == whole.id)
                assert rest == whole.content[border:]
                assert whole.more or events[0][0].id == whole.id

    async def test_a_place_inside_a_character_is_none(self, store):
        await fill(store)
        for place in ("0:3", "1:3", "4:1", "4:65540", "6:65536"):
            with pytest.raises(CursorError, match="inside a character"):
                await seen(store, after=place)

    async def test_many_messages_come_in_pages(self, store):
        fence = await store.acquire("s")
        await store.write("s", [Message(content=f"{number} " * 500) for number in range(600)], fence=fence)
        page = await store.look("s", after=0)
        assert page.more
        assert sum(len(message.content) for message in page.messages) < 300 * 1024
        assert [message.sequence for message, _ in await seen(store, after=1)] == [*range(2, 601)]

    async def test_what_stands_behind_an_open_message_comes_when_that_is_closed(self, store):
        fence = await store.acquire("s")
        first, second = Message(content="a", more=True), Message(content="b")
        await store.write("s", [first, second], fence=fence)
        events = await seen(store)
        assert content_of(events) == "a"
        await store.write("s", [replace(first, content="c", more=False)], fence=fence)
        assert [message.content for message, _ in await seen(store, after=events[-1][1])] == ["c", "b"]

    async def test_the_closing_of_a_message_that_was_seen_to_its_end_says_how_it_ended(self, store):
        fence, opened = await fill(store)
        *_, (_, cursor) = await seen(store)
        assert await seen(store, after=cursor) == []
        await store.write("s", [replace(opened, content="", more=False, query={"cut": "crashed"})], fence=fence)
        [(closing, _)] = await seen(store, after=cursor)
        assert (closing.id, closing.content, closing.more, closing.query) == (opened.id, "", False, {"cut": "crashed"})

    async def test_an_open_message_is_shown_from_its_first_content_on(self, store):
        fence = await store.acquire("s")
        opened = Message(content="", more=True)
        await store.write("s", [opened], fence=fence)
        assert await seen(store) == []
        await store.write("s", [replace(opened, more=False)], fence=fence)
        assert [cursor.partition("@")[0] for _, cursor in await seen(store)] == ["1"]

    async def test_what_grows_is_shown_as_it_grew(self, store):
        fence = await store.acquire("s")
        opened = Message(content="", more=True)
        async with Follow(store, "s") as follow:
            for number in range(100):
                await store.write("s", [replace(opened, content=f"{number}ä")], fence=fence)
                assert (await anext(follow)).content == f"{number}ä"

    async def test_following_a_large_session_needs_little_memory(self, store):
        fence = await store.acquire("s")
        for _ in range(2):
            await store.write("s", [Message(content="wörd " * 1_000_000), *map(Message.user, "ab")], fence=fence)
        size, follow = 0, Follow(store, "s", live=False)
        tracemalloc.start()
        try:
            async for message in follow:
                size += len(message.content)
            assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
        finally:
            tracemalloc.stop()
        assert size == 2 * (5_000_000 + 2)

    # forks

    async def test_a_fork_is_followed_as_a_session_of_its_own(self, store):
        fence, opened = await fill(store)
        *_, (_, cursor) = events = await seen(store)
        await store.fork("s", "fork")
        await store.write("s", [replace(opened, content=WIDE * 5000, more=False)], fence=fence)
        shared = await seen(store, "fork")
        assert content_of(shared) == content_of(events)
        assert {message.session for message, _ in shared} == {"fork"}
        [(closing, end)] = await seen(store, "fork", after=cursor)  # the parent's viewer may go on in the fork
        assert (closing.content, closing.query) == ("", {"cut": "forked"})
        await store.write("fork", [Message(content="own")], fence=await store.acquire("fork"))
        assert content_of(await seen(store, "fork", after=end)) == "own"
        for number, (_, place) in enumerate(shared, 1):
            assert content_of(await seen(store, "fork", after=place)) == content_of(shared[number:]) + "own"

    async def test_a_fork_of_a_large_open_message_ends_where_it_was_forked(self, store):
        fence = await store.acquire("s")
        opened = Message(content="ä" * KIB64, more=True)
        await store.write("s", [opened], fence=fence)
        await store.fork("s", "fork")
        await store.write("s", [replace(opened, content="b" * KIB64)], fence=fence)
        assert content_of(await seen(store, "fork")) == "ä" * KIB64
        assert content_of(await seen(store, "fork", after="0:4")) == "ä" * (KIB64 - 2)
        assert [message.more for message, _ in await seen(store, "fork", after=f"0:{2 * KIB64}")] == [False]

    # places that are not there

    @pytest.mark.parametrize("place", ["10", "9:1", "8:7", "0:19"])
    async def test_a_place_ahead_of_the_session_is_refused(self, store, place):
        await fill(store)
        with pytest.raises(CursorError, match=f"'{place}' is ahead of session 's', which has 9 messages"):
            await seen(store, after=place)

    async def test_the_last_place_is_none_ahead(self, store):
        await fill(store)
        assert content_of(await seen(store, after="8")) == "and no"
        assert [await seen(store, after=place) for place in ("8:6", "9")] == [[], []]

    @pytest.mark.parametrize("place", ["1", "0:1", "3:2@00000000"])
    async def test_a_session_that_is_not_there_is_gone(self, store, place):
        with pytest.raises(CursorGone, match="deleted"):
            await seen(store, after=place)
        await fill(store)
        await store.delete("s")
        with pytest.raises(CursorGone):
            await seen(store, after=place)

    async def test_an_unknown_session_is_empty(self, store):
        assert await seen(store, "nobody") == []

    async def test_a_cursor_of_an_earlier_session_with_this_id_is_gone(self, store):
        await fill(store)
        events = await seen(store)
        await store.delete("s")
        await fill(store)
        for _, cursor in events:
            with pytest.raises(CursorGone):
                await seen(store, after=cursor)

    @pytest.mark.parametrize("after", [None, "1"])
    async def test_a_session_that_is_deleted_and_begun_anew_is_gone_for_who_follows(self, store, after):
        await fill(store)
        follow = Follow(store, "s", after=after)
        while ((message := await anext(follow)).sequence or 0) < 9:
            pass
        assert message.content == "and no"
        await store.delete("s")
        await fill(store)
        with pytest.raises(CursorGone):
            await anext(follow)

    async def test_a_place_that_was_given_without_a_mark_is_known_from_the_first_look_on(self, store):
        await fill(store)
        follow = Follow(store, "s", after=8)
        await follow.check()
        await anext(follow)
        other = Follow(store, "s", after=9)
        await other.check()
        await store.delete("s")
        fence, _ = await fill(store)
        await store.write("s", [Message(content="behind")], fence=fence)
        for each in (follow, other):
            with pytest.raises(CursorGone):
                await anext(each)

    async def test_a_session_that_is_begun_anew_and_shorter_is_gone_and_not_behind(self, store):
        await fill(store)
        async with Follow(store, "s", after=9) as follow:
            await follow.check()
            await store.delete("s")
            await store.write("s", [Message(content="anew")], fence=await store.acquire("s"))
            with pytest.raises(CursorGone):
                await anext(follow)

    # live

    async def test_it_waits_for_what_comes_next(self, store):
        sent, received = anyio.create_memory_object_stream[Message](0)

        async def view():
            async with sent, Follow(store, "s") as follow:
                async for message in follow:
                    await sent.send(message)
                    if message.type == "stop":
                        return

        opened = Message(content="", more=True)
        async with received, anyio.create_task_group() as tasks:
            tasks.start_soon(view)
            fence = await store.acquire("s")
            with anyio.fail_after(30):
                for content in (*WIDE, "x" * 3 * KIB64):
                    await store.write("s", [replace(opened, content=content)], fence=fence)
                    read = ""
                    while read != content:
                        read += (await received.receive()).content
                await store.write("s", [replace(opened, more=False), Message.stop("stop")], fence=fence)
                assert [(message.type, message.more) async for message in received] == [
                    ("text", False),
                    ("stop", False),
                ]

    async def test_what_is_committed_between_a_look_and_the_wait_is_not_missed(self, store, monkeypatch):
        fence = await store.acquire("s")
        look = store.look

        async def look_then_write(*args, **options):
            page = await look(*args, **options)
            monkeypatch.setattr(store, "look", look)
            await store.write("s", [Message(content="in between")], fence=fence)
            return page

        monkeypatch.setattr(store, "look", look_then_write)
        async with Follow(store, "s") as follow:
            with anyio.fail_after(30):
                assert (await anext(follow)).content == "in between"

    async def test_a_session_that_is_deleted_while_it_is_waited_for_is_gone(self, store):
        await fill(store)
        async with Follow(store, "s", after=9) as follow, anyio.create_task_group() as tasks:

            async def view():
                with pytest.raises(CursorGone):
                    await anext(follow)

            tasks.start_soon(view)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(30):
                await store.delete("s")

    async def test_a_wait_that_is_cancelled_loses_nothing(self, store):
        fence = await store.acquire("s")
        follow = Follow(store, "s")
        for number in range(3):
            with anyio.move_on_after(0.01):
                await anext(follow)
                raise AssertionError("there was nothing to read")
            await store.write("s", [Message(content=f"{number}")], fence=fence)
            assert (await anext(follow)).content == f"{number}"
        follow.close()

    async def test_closing_it_ends_a_wait(self, store):
        async with anyio.create_task_group() as tasks:
            follow = Follow(store, "s")

            async def view():
                assert [message async for message in follow] == []

            tasks.start_soon(view)
            await anyio.wait_all_tasks_blocked()
            await follow.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(follow)
