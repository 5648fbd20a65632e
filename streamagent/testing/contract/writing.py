"""What every store does when it is written to: acquiring, writing, lag."""

from dataclasses import replace
from datetime import datetime, timezone

import anyio
import pytest

from streamagent.errors import LeaseLost, MessageError
from streamagent.message import Message

from .rows import LONG, contents, rows, text


class WritingContract:
    # acquiring

    async def test_each_acquire_gives_a_higher_fence(self, store):
        first, second = await store.acquire("s"), await store.acquire("s")
        assert 0 < first < second

    async def test_a_write_with_an_older_fence_loses_its_lease_and_stores_nothing(self, store):
        old = await store.acquire("s")
        await store.acquire("s")
        with pytest.raises(LeaseLost, match="'s'"):
            await store.write("s", [text("late")], fence=old)
        assert await rows(store) == []

    @pytest.mark.parametrize("fence", [0, 1, 7])
    async def test_nobody_writes_a_session_that_was_never_acquired(self, store, fence):
        with pytest.raises(LeaseLost):
            await store.write("s", [text("early")], fence=fence)
        await store.enqueue("s", Message.user("waits"))
        with pytest.raises(LeaseLost):
            await store.admit("s", fence=fence)

    async def test_a_late_writer_of_a_message_that_its_successor_closed_loses_its_lease(self, store):
        old = await store.acquire("s")
        message = text("a", more=True)
        await store.write("s", [message], fence=old)
        new = await store.acquire("s")
        await store.write("s", [replace(message, content="", more=False, query={"cut": "crashed"})], fence=new)
        with pytest.raises(LeaseLost):
            await store.write("s", [replace(message, content="b")], fence=old)

    # writing

    async def test_messages_come_back_as_they_were_with_session_and_sequence(self, store):
        fence = await store.acquire("s")
        messages = [
            Message(role="system", type="data", content="x", query={"a": [1, 2.5, None, True]}, prev="p", attempt=3),
            Message(role="user", content="", created_at=datetime(2020, 2, 2, tzinfo=timezone.utc)),
            Message.stop("stop", usage={"input": 1}),
        ]
        assert await store.write("s", messages, fence=fence) == [1, 2, 3]
        expected = [replace(message, session="s", sequence=n) for n, message in enumerate(messages, 1)]
        assert [message async for message in store.read("s")] == expected

    async def test_sequences_are_per_session_and_without_gaps(self, store):
        fences = [await store.acquire(f"s{n}") for n in range(2)]
        for _ in range(3):
            for n in range(2):
                await store.write(f"s{n}", [text("x")], fence=fences[n])
        for n in range(2):
            assert [message.sequence for message in await rows(store, f"s{n}")] == [1, 2, 3]

    async def test_interleaved_fragments_are_joined_by_message(self, store):
        fence = await store.acquire("s")
        a, b = text("a1", more=True), text("b1", more=True)
        assert await store.write("s", [a, b, replace(a, content="a2")], fence=fence) == [1, 2, 1]
        assert await store.write(
            "s", [replace(b, content="b2"), replace(a, content="a3", more=False)], fence=fence
        ) == [
            2,
            1,
        ]
        await store.write("s", [replace(b, content="b3", more=False)], fence=fence)
        assert [(m.content, m.more) for m in await rows(store)] == [("a1a2a3", False), ("b1b2b3", False)]

    async def test_queries_of_fragments_are_merged_and_later_keys_win(self, store):
        fence = await store.acquire("s")
        message = text("", more=True, query={"a": 1, "b": 1})
        await store.write("s", [message], fence=fence)
        await store.write("s", [replace(message, query={"b": 2, "c": 2}), replace(message, query=None)], fence=fence)
        await store.write("s", [replace(message, query={"c": 3}, more=False)], fence=fence)
        assert (await rows(store))[0].query == {"a": 1, "b": 2, "c": 3}

    async def test_a_message_without_a_query_gets_the_one_of_its_last_fragment(self, store):
        fence = await store.acquire("s")
        message = text("a", more=True)
        await store.write("s", [message], fence=fence)
        await store.write("s", [replace(message, query={"cut": "aborted"}, more=False)], fence=fence)
        assert (await rows(store))[0].query == {"cut": "aborted"}

    async def test_a_closed_message_is_final(self, store):
        fence = await store.acquire("s")
        message = text("done")
        await store.write("s", [message], fence=fence)
        with pytest.raises(MessageError, match=message.id):
            await store.write("s", [text("new"), replace(message, content="more")], fence=fence)
        assert await contents(store) == ["done"]

    async def test_a_message_that_is_closed_twice_in_one_write_is_refused_whole(self, store):
        fence = await store.acquire("s")
        message = text("a")
        with pytest.raises(MessageError):
            await store.write("s", [message, message], fence=fence)
        assert await rows(store) == []

    async def test_a_message_that_waits_in_the_inbox_cannot_be_written(self, store):
        fence = await store.acquire("s")
        waiting = await store.enqueue("s", Message.user("hi"))
        with pytest.raises(MessageError):
            await store.write("s", [waiting], fence=fence)

    async def test_writing_nothing_writes_nothing(self, store):
        fence = await store.acquire("s")
        assert await store.write("s", [], fence=fence) == []
        assert [info async for info in store.sessions()] == []

    async def test_a_refused_write_does_not_harm_those_beside_it(self, store):
        fences = [await store.acquire(f"s{n}") for n in range(10)]
        refused = []

        async def write(n):
            try:
                await store.write(f"s{n}", [text(str(n))], fence=fences[n] + n % 2)
            except LeaseLost:
                refused.append(n)

        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(write, n)
        assert sorted(refused) == [1, 3, 5, 7, 9]
        assert [len(await rows(store, f"s{n}")) for n in range(10)] == [1, 0] * 5

    async def test_a_hundred_sessions_write_at_once_without_gaps_and_in_order(self, store):
        async def run(n):
            session = f"s{n}"
            fence = await store.acquire(session)
            for turn in range(3):
                prompt = await store.enqueue(session, Message.user(f"{turn}"))
                [admitted] = await store.admit(session, fence=fence)
                assert admitted == replace(prompt, sequence=3 * turn + 1)
                answer = text("a", more=True)
                store.write_soon(session, answer, fence=fence, lag=LONG)
                store.write_soon(session, replace(answer, content="b", more=False), fence=fence, lag=LONG)
                await store.write(session, [Message.stop("stop")], fence=fence)

        async with anyio.create_task_group() as tasks:
            for n in range(100):
                tasks.start_soon(run, n)
        for n in range(100):
            found = await rows(store, f"s{n}")
            assert [message.sequence for message in found] == list(range(1, 10))
            assert [message.content for message in found] == ["0", "ab", "", "1", "ab", "", "2", "ab", ""]

    async def test_many_writers_of_one_session_get_all_sequences_once(self, store):
        fence = await store.acquire("s")
        given = []

        async def write(n):
            given.extend(await store.write("s", [text(str(n))], fence=fence))

        async with anyio.create_task_group() as tasks:
            for n in range(100):
                tasks.start_soon(write, n)
        assert sorted(given) == list(range(1, 101))

    # lag

    async def test_flush_commits_what_waits(self, store):
        fence = await store.acquire("s")
        message = text("a", more=True)
        store.write_soon("s", message, fence=fence, lag=LONG)
        store.write_soon("s", replace(message, content="b", query={"k": 1}), fence=fence, lag=LONG)
        store.write_soon("s", replace(message, content="c", more=False), fence=fence, lag=LONG)
        await store.flush("s")
        [found] = await rows(store)
        assert (found.content, found.query, found.more) == ("abc", {"k": 1}, False)

    async def test_a_write_commits_what_waits_before_it(self, store):
        fence = await store.acquire("s")
        store.write_soon("s", text("first"), fence=fence, lag=LONG)
        assert await store.write("s", [text("second")], fence=fence) == [2]
        assert await contents(store) == ["first", "second"]

    async def test_a_reader_sees_everything_that_was_handed_over(self, store):
        fence = await store.acquire("s")
        store.write_soon("s", text("shown", more=True), fence=fence, lag=LONG)
        assert await contents(store) == ["shown"]

    async def test_fragments_that_wait_are_stored_before_the_session_is_taken_over(self, store):
        fence = await store.acquire("s")
        store.write_soon("s", text("shown"), fence=fence, lag=LONG)
        await store.acquire("s")
        assert await contents(store) == ["shown"]

    async def test_a_closed_message_is_final_for_lagged_fragments_too(self, store):
        fence = await store.acquire("s")
        message = text("a")
        store.write_soon("s", message, fence=fence, lag=LONG)
        with pytest.raises(MessageError):
            store.write_soon("s", message, fence=fence, lag=LONG)
        assert await contents(store) == ["a"]

    async def test_flush_of_an_unknown_session_does_nothing(self, store):
        await store.flush("nobody")
