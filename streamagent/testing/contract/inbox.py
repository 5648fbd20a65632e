"""What every store does with what waits, and with what a run has left open."""

from dataclasses import replace

import anyio
import pytest

from streamagent.errors import ConflictError, InboxFull, LeaseLost, MessageError
from streamagent.message import Message

from .rows import KIB64, LONG, call_and_result, contents, rows, text


class InboxContract:
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

    async def test_a_thousand_messages_may_wait(self, store):
        """F43: the queue is bounded."""
        many = [Message.user(f"{number}") for number in range(999)]
        with pytest.raises(InboxFull, match="1000 messages"):
            await store.enqueue("s", Message.user("a"), rest=[*many, Message.user("one too many")])
        assert await store.inbox("s") == []
        await store.enqueue("s", many[0], rest=many[1:])
        last = await store.enqueue("s", Message.user("the last"), client_key="k")
        with pytest.raises(InboxFull):
            await store.enqueue("s", Message.user("beyond"))
        assert await store.enqueue("s", Message.user("the last"), client_key="k") == last
        await store.enqueue("s", Message(role="user", type="cancel"))
        await store.enqueue("other", Message.user("elsewhere"))
        await store.admit("s", fence=await store.acquire("s"), limit=2)
        await store.enqueue("s", Message.user("again"))
        assert len(await store.inbox("s")) == 1000

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

    async def test_how_a_session_stands_is_what_is_unfinished_and_what_waits(self, store):
        empty = await store.standing("s")
        assert (empty.left, list(empty.inbox)) == (await store.unfinished("s"), [])
        fence = await store.acquire("s")
        call, _ = call_and_result()
        await store.write("s", [call, Message(content="half", more=True)], fence=fence)
        store.write_soon("s", Message(content="late", more=True), fence=fence, lag=LONG)
        for number in range(3):
            await store.enqueue("s", Message.user(str(number) * 2 * KIB64))
        for session in ("s", "f"):
            standing = await store.standing(session)
            assert standing.left == await store.unfinished(session)
            assert list(standing.inbox) == await store.inbox(session)
            assert [row.id for row in standing.left.calls] == [call.id]
            if session == "s":
                assert (len(standing.left.open), [message.content[0] for message in standing.inbox]) == (2, [*"012"])
                await store.fork("s", "f")

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

    @pytest.mark.parametrize(("cut", "waits"), [("budget", 1), ("superseded", 0)])
    async def test_a_call_that_was_cut_waits_for_its_result_unless_another_attempt_supersedes_it(
        self, store, cut, waits
    ):
        fence = await store.acquire("s")
        call = Message(type="tool_call", content="{", more=True)
        await store.write("s", [call], fence=fence)
        await store.write("s", [replace(call, content="", query={"cut": cut}, more=False)], fence=fence)
        left = await store.unfinished("s")
        assert (len(left.open), len(left.calls)) == (0, waits)

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
