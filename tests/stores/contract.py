"""What every store does. A store's test module subclasses `StoreContract` and gives it a `store`."""

import tracemalloc
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import anyio
import pytest

from streamagent.errors import ConflictError, LeaseLost, MessageError
from streamagent.message import Message, afold, fold
from streamagent.records import Usage

from .leases import EffectContract, LeaseContract

pytestmark = pytest.mark.anyio

KIB64 = 64 * 1024
LONG = 1000.0  # seconds: a lag that does not end within a test


def text(content, **fields):
    return Message(content=content, **fields)


def call_and_result():
    call = Message(type="tool_call", content="{}", query={"tool": "stock", "id": "call_1", "args": {}})
    result = Message(role="tool", type="tool_result", content="15", query={"tool": "stock", "call": call.id})
    return call, result


async def rows(store, session="s", **span):
    """All messages, whole."""
    return await afold(store.read(session, **span))


async def contents(store, session="s", **span):
    return [message.content for message in await rows(store, session, **span)]


class StoreContract(LeaseContract, EffectContract):
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

    # inbox

    async def test_an_enqueued_message_waits_without_a_sequence(self, store):
        prompt = Message.user("hi")
        stored = await store.enqueue("s", prompt)
        assert stored == replace(prompt, session="s")
        assert await store.inbox("s") == [stored]
        assert await rows(store) == []

    async def test_admit_gives_the_oldest_first_at_most_limit(self, store):
        fence = await store.acquire("s")
        for n in range(4):
            await store.enqueue("s", Message.user(str(n)))
        assert [m.content for m in await store.admit("s", fence=fence)] == ["0"]
        assert [(m.content, m.sequence) for m in await store.admit("s", fence=fence, limit=2)] == [("1", 2), ("2", 3)]
        assert [m.content for m in await store.inbox("s")] == ["3"]
        assert [m.content for m in await store.admit("s", fence=fence, limit=1 << 80)] == ["3"]
        assert await store.admit("s", fence=fence) == []
        assert await store.admit("s", fence=fence, limit=-1) == []
        assert await contents(store) == ["0", "1", "2", "3"]

    async def test_admit_with_an_older_fence_loses_its_lease(self, store):
        old = await store.acquire("s")
        await store.acquire("s")
        await store.enqueue("s", Message.user("hi"))
        with pytest.raises(LeaseLost):
            await store.admit("s", fence=old)
        assert len(await store.inbox("s")) == 1

    async def test_a_client_key_makes_two_sends_one_message(self, store):
        first = await store.enqueue("s", Message(role="user", content="hi", query={"b": 1, "a": 2}), client_key="k")
        again = Message(role="user", content="hi", query={"a": 2, "b": 1})
        assert await store.enqueue("s", again, client_key="k") == first
        assert await store.inbox("s") == [first]

    async def test_a_client_key_gives_back_the_message_after_it_was_admitted(self, store):
        fence = await store.acquire("s")
        content = "long " * 20_000
        await store.enqueue("s", Message.user(content), client_key="k")
        [admitted] = await store.admit("s", fence=fence)
        assert admitted.sequence == 1
        assert await store.enqueue("s", Message.user(content), client_key="k") == admitted

    @pytest.mark.parametrize(
        "other",
        [
            Message.user("bye"),
            Message.system("hi"),
            Message(role="user", type="data", content="hi"),
            Message(role="user", content="hi", query={}),
        ],
        ids=["content", "role", "type", "query"],
    )
    async def test_a_client_key_with_another_message_is_a_conflict(self, store, other):
        await store.enqueue("s", Message.user("hi"), client_key="k")
        with pytest.raises(ConflictError, match="'k'"):
            await store.enqueue("s", other, client_key="k")
        assert len(await store.inbox("s")) == 1

    async def test_client_keys_are_per_session(self, store):
        await store.enqueue("s1", Message.user("a"), client_key="k")
        await store.enqueue("s2", Message.user("b"), client_key="k")
        assert [len(await store.inbox(session)) for session in ("s1", "s2")] == [1, 1]

    async def test_concurrent_sends_under_one_key_are_one_message(self, store):
        ids = set()

        async def send():
            ids.add((await store.enqueue("s", Message.user("hi"), client_key="k")).id)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(send)
        assert len(ids) == 1

    async def test_an_id_enters_a_session_once(self, store):
        prompt = Message.user("hi")
        await store.enqueue("s", prompt)
        with pytest.raises(MessageError, match=prompt.id):
            await store.enqueue("s", prompt)
        await store.enqueue("other", prompt)

    async def test_which_of_some_sessions_have_a_message_of_a_type_in_their_inbox(self, store):
        for session in ("a", "b", "c"):
            await store.enqueue(session, Message.user("hi"))
        for session in ("b", "c", "c", "not asked for"):
            await store.enqueue(session, Message(role="user", type="cancel"))
        assert await store.waiting(["a", "b", "c", "nobody", 'odd "\\ % é'], "cancel") == {"b", "c"}
        assert await store.waiting({"a", "b"}, "text") == {"a", "b"}
        assert await store.waiting([], "cancel") == set()
        await store.admit("c", fence=await store.acquire("c"), limit=9)
        assert await store.waiting([f"{n}" for n in range(2000)] + ["b", "c"], "cancel") == {"b"}
        assert [info.id async for info in store.sessions() if info.id == "nobody"] == []

    async def test_the_inbox_takes_no_fragments(self, store):
        with pytest.raises(MessageError, match="whole"):
            await store.enqueue("s", Message(role="user", content="h", more=True))

    # unfinished

    async def test_an_empty_session_left_nothing(self, store):
        left = await store.unfinished("s")
        assert (list(left.open), list(left.calls), left.last) == ([], [], None)

    async def test_open_messages_are_reported_without_content(self, store):
        fence = await store.acquire("s")
        fragments = [text("a", more=True, query={"k": 1}), text("b"), text("c", more=True)]
        await store.write("s", fragments, fence=fence)
        left = await store.unfinished("s")
        assert [(m.sequence, m.content, m.more) for m in left.open] == [(1, "", True), (3, "", True)]
        assert left.open[0].query == {"k": 1}
        assert (left.last.sequence, left.last.content) == (3, "")

    async def test_a_complete_call_is_unanswered_until_a_result_names_it(self, store):
        fence = await store.acquire("s")
        call, result = call_and_result()
        await store.write("s", [call], fence=fence)
        assert list((await store.unfinished("s")).calls) == [replace(call, session="s", sequence=1)]
        await store.write("s", [replace(result, content="1", more=True)], fence=fence)
        assert list((await store.unfinished("s")).calls) == []
        await store.write("s", [replace(result, content="5")], fence=fence)
        left = await store.unfinished("s")
        assert (list(left.open), list(left.calls), left.last.content) == ([], [], "15")

    async def test_a_call_and_its_result_may_come_in_one_write(self, store):
        fence = await store.acquire("s")
        await store.write("s", call_and_result(), fence=fence)
        assert list((await store.unfinished("s")).calls) == []

    async def test_a_result_may_come_by_the_inbox(self, store):
        fence = await store.acquire("s")
        call, result = call_and_result()
        await store.write("s", [call], fence=fence)
        await store.enqueue("s", result)
        assert len((await store.unfinished("s")).calls) == 1
        await store.admit("s", fence=fence)
        assert list((await store.unfinished("s")).calls) == []

    async def test_a_call_that_streams_is_open_first_and_unanswered_when_it_is_closed(self, store):
        fence = await store.acquire("s")
        call = Message(type="tool_call", content='{"a":', more=True, query={"tool": "t", "id": "1"})
        await store.write("s", [call], fence=fence)
        left = await store.unfinished("s")
        assert (len(left.open), len(left.calls)) == (1, 0)
        await store.write("s", [replace(call, content="1}", query={"args": {"a": 1}}, more=False)], fence=fence)
        left = await store.unfinished("s")
        assert (len(left.open), [m.content for m in left.calls]) == (0, ['{"a":1}'])

    async def test_a_call_that_was_cut_waits_for_no_result(self, store):
        fence = await store.acquire("s")
        call = Message(type="tool_call", content="{", more=True)
        await store.write("s", [call], fence=fence)
        await store.write("s", [replace(call, content="", query={"cut": "crashed"}, more=False)], fence=fence)
        left = await store.unfinished("s")
        assert (list(left.open), list(left.calls)) == ([], [])

    @pytest.mark.parametrize("call", ["nobody", 5, None, {}])
    async def test_a_result_that_answers_nothing_is_stored_all_the_same(self, store, call):
        fence = await store.acquire("s")
        result = Message(role="tool", type="tool_result", query={"call": call})
        assert await store.write("s", [result], fence=fence) == [1]

    async def test_a_result_answers_only_calls(self, store):
        fence = await store.acquire("s")
        message = text("a", more=True)
        result = Message(role="tool", type="tool_result", query={"call": message.id})
        await store.write("s", [message, result], fence=fence)
        assert len((await store.unfinished("s")).open) == 1

    async def test_a_large_call_is_reported_whole_and_a_large_last_message_without_content(self, store):
        fence = await store.acquire("s")
        call = Message(type="tool_call", content="x" * (KIB64 + 1))
        await store.write("s", [call], fence=fence)
        left = await store.unfinished("s")
        assert len(left.calls[0].content) == KIB64 + 1
        assert (left.last.id, left.last.content) == (call.id, "")

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

    # summaries

    async def test_tally_counts_messages_with_a_sequence(self, store):
        fence = await store.acquire("s")
        await store.write("s", [text("a"), text("b", more=True), Message.stop("stop")], fence=fence)
        await store.enqueue("s", Message.user("waits"))
        assert await store.tally("s") == {("assistant", "text"): 2, ("assistant", "stop"): 1}

    # usage

    async def turn(self, store, session, *, day=2, **query):
        """Store a turn of one call, made on a day of February 2020."""
        made = datetime(2020, 2, day, tzinfo=timezone.utc)
        stop = Message.stop("stop", model="m", **query)
        messages = [Message.user("?"), text("a"), call_and_result()[0], stop]
        fence = await store.acquire(session)
        await store.write(session, [replace(message, created_at=made) for message in messages], fence=fence)

    async def test_usage_sums_up_turns_calls_tokens_and_cost(self, store):
        await self.turn(store, "s", usage={"total_tokens": 5}, cost=0.5)
        failed = [{"error": {"kind": "truncated"}, "usage": {"prompt_tokens": 3, "completion_tokens": 1}}]
        await self.turn(store, "s", usage={"input_tokens": 1, "output_tokens": 2}, cost=0.25, attempts=failed)
        await self.turn(store, "s")
        await self.turn(store, "other", usage={"total_tokens": 100})
        assert await store.usage("s") == Usage(turns=3, tool_calls=3, tokens=12, cost=0.75, uncounted=1)

    async def test_usage_of_all_sessions_since_a_time(self, store):
        for number, day in enumerate([1, 2, 3]):
            await self.turn(store, f"s{number}", day=day, usage={"total_tokens": 10**day})
        await self.turn(store, "s0", day=3, usage={"total_tokens": 1})
        since = datetime(2020, 2, 2, tzinfo=timezone.utc)
        assert (await store.usage(None, since=since)).tokens == 1101
        assert (await store.usage(None, since=since.replace(tzinfo=None))).tokens == 1101
        assert (await store.usage(None, since=since + timedelta(seconds=1))).tokens == 1001
        assert (await store.usage("s0", since=since)).tokens == 1
        assert (await store.usage(None)).tokens == 1111

    async def test_usage_counts_what_a_model_said_and_no_prompts_in_the_inbox(self, store):
        assert await store.usage("s") == await store.usage(None) == Usage()
        await store.enqueue("s", replace(Message.stop("stop"), role="user"))
        fence = await store.acquire("s")
        await store.write("s", [replace(Message.stop("stop"), role="tool"), text("a")], fence=fence)
        refused = Message.stop("budget", limit={"tokens": 1})
        await store.write("s", [refused], fence=fence)
        assert await store.usage("s") == Usage()

    async def test_absurd_counts_are_not_summed(self, store):
        await self.turn(store, "s", usage={"total_tokens": -5}, cost="much", attempts="none")
        assert await store.usage("s") == Usage(turns=1, tool_calls=1, uncounted=1)

    async def test_sessions_are_listed_latest_modified_first(self, store):
        for session in ("a", "b", "c"):
            fence = await store.acquire(session)
            await store.write(session, [text("x")], fence=fence)
        await store.acquire("empty")
        await store.enqueue("a", Message.user("hi"))
        infos = [info async for info in store.sessions()]
        assert [(info.id, info.messages) for info in infos] == [("a", 1), ("c", 1), ("b", 1)]
        assert all(info.created_at <= info.modified_at for info in infos)

    async def test_a_session_was_created_with_its_earliest_message(self, store):
        fence = await store.acquire("s")
        early, late = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (2001, 2002))
        await store.write("s", [text("x", created_at=late)], fence=fence)
        await store.write("s", [text("y", created_at=early), text("z", created_at=late)], fence=fence)
        [info] = [info async for info in store.sessions()]
        assert info.created_at == early

    async def test_all_of_many_sessions_are_listed_once(self, store):
        async with anyio.create_task_group() as tasks:
            for n in range(600):
                tasks.start_soon(store.enqueue, f"s{n}", Message.user("hi"))
        ids = [info.id async for info in store.sessions()]
        assert len(ids) == len(set(ids)) == 600

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
        with pytest.raises(MessageError, match="attempt"):
            await store.write("s", [Message(attempt=1 << 63)], fence=fence)
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
