"""What every store does with forks: what they share with their parents, and what is not finished there."""

from dataclasses import replace

import pytest

from streamagent.errors import MessageError
from streamagent.message import Message, new_id, utc_now
from streamagent.records import Usage

from .rows import KIB64, LONG, call_and_result, contents, fill, in_fork, rows, text


class ForkContract:
    # sharing

    async def test_a_fork_reads_its_parents_rows_as_its_own(self, store):
        await fill(store, text("a", query={"k": 1}), text("b" * 3 * KIB64), Message.stop("stop"))
        await store.fork("s", "f")
        assert await rows(store, "f") == in_fork(await rows(store))
        assert [message.sequence for message in await rows(store, "f")] == [1, 2, 3]

    @pytest.mark.parametrize("at", [1, 2, 3])
    async def test_a_fork_has_the_rows_up_to_where_it_was_made(self, store, at):
        await fill(store, text("1"), text("2"), text("3"))
        await store.fork("s", "f", at=at)
        assert await contents(store, "f") == ["1", "2", "3"][:at]

    async def test_a_fork_continues_by_itself_and_points_at_the_row_it_was_made_at(self, store):
        fence = await fill(store, text("1"), text("2"), text("3"))
        await store.fork("s", "f", at=2)
        await fill(store, text("own"), text("next"), session="f")
        await store.write("s", [text("4")], fence=fence)
        assert await contents(store, "f") == ["1", "2", "own", "next"]
        assert await contents(store) == ["1", "2", "3", "4"]
        shared, own, later = (await rows(store, "f"))[1:]
        assert (own.sequence, own.prev, later.prev) == (3, shared.id, None)

    async def test_a_prompt_that_is_admitted_first_points_at_the_parent(self, store):
        await fill(store, text("1"))
        await store.fork("s", "f")
        await store.enqueue("f", Message.user("hi"))
        [admitted] = await store.admit("f", fence=await store.acquire("f"))
        assert (admitted.sequence, admitted.prev) == (2, (await rows(store))[0].id)
        assert (await rows(store, "f"))[1] == admitted

    async def test_after_and_until_bound_what_is_read_across_the_border(self, store):
        await fill(store, *(text(str(n)) for n in range(1, 4)))
        await store.fork("s", "f", at=2)
        await fill(store, text("3'"), text("4'"), session="f")
        assert await contents(store, "f", after=1) == ["2", "3'", "4'"]
        assert await contents(store, "f", after=2) == ["3'", "4'"]
        assert await contents(store, "f", after=3, until=9) == ["4'"]
        assert await contents(store, "f", until=1) == ["1"]
        assert await contents(store, "f", until=2) == ["1", "2"]
        assert await contents(store, "f", after=1, until=3) == ["2", "3'"]
        assert await contents(store, "f", after=-1, until=0) == []

    async def test_fragments_that_wait_for_their_lag_are_in_the_fork(self, store):
        fence = await store.acquire("s")
        store.write_soon("s", text("shown"), fence=fence, lag=LONG)
        await store.fork("s", "f")
        assert await contents(store, "f") == ["shown"]

    async def test_the_inbox_and_client_keys_stay_with_the_parent(self, store):
        fence = await fill(store, text("1"))
        await store.enqueue("s", Message.user("admitted"), client_key="k")
        await store.admit("s", fence=fence)
        await store.enqueue("s", Message.user("waits"))
        await store.fork("s", "f")
        assert await store.inbox("f") == []
        other = await store.enqueue("f", Message.user("another"), client_key="k")
        assert (await store.inbox("f"), len(await store.inbox("s"))) == ([other], 1)

    async def test_a_tally_counts_shared_and_own_messages(self, store):
        await fill(store, text("1"), Message.stop("stop"), text("2"))
        await store.fork("s", "f", at=2)
        await fill(store, text("own"), Message.user("hi"), session="f")
        assert await store.tally("f") == {
            ("assistant", "text"): 2,
            ("assistant", "stop"): 1,
            ("user", "text"): 1,
        }

    async def test_what_was_spent_before_a_fork_counts_for_its_parent_alone(self, store):
        call, result = call_and_result()
        await fill(store, call, Message.stop("tool_calls", usage={"total_tokens": 5}), result, Message.stop("stop"))
        await store.fork("s", "f")
        await store.fork("s", "g", at=2)
        assert {await store.usage(session) for session in ("f", "g")} == {Usage()}
        await fill(store, Message.stop("stop", usage={"total_tokens": 3}), session="g")
        assert (await store.usage("g")).tokens == 3
        spent = await store.usage(None)
        assert (spent.tokens, spent.turns, spent.tool_calls) == (8, 3, 1)

    async def test_a_fork_is_listed_from_the_moment_it_was_made(self, store):
        await fill(store, text("1"), text("2"))
        before = utc_now()
        await store.fork("s", "f", at=1)
        first, second = [info async for info in store.sessions()]
        assert [(info.id, info.messages) for info in (first, second)] == [("f", 1), ("s", 2)]
        assert before <= first.created_at == first.modified_at
        await fill(store, text("own"), session="f")
        [info] = [info async for info in store.sessions() if info.id == "f"]
        assert (info.messages, info.created_at) == (2, first.created_at)

    # what is not finished

    async def test_a_fork_at_rest_is_at_rest(self, store):
        await fill(store, text("1"), Message.stop("stop"))
        await store.fork("s", "f")
        left = await store.unfinished("f")
        assert (left.at_rest, left.forked, left.last.session, left.last.sequence) == (True, True, "f", 2)
        await fill(store, text("own"), session="f")
        left = await store.unfinished("f")
        assert (left.forked, left.last.content) == (False, "own")
        assert (await store.unfinished("s")).forked is False

    @pytest.mark.parametrize("size", [1, KIB64 - 1, KIB64, KIB64 + 1, 3 * KIB64])
    @pytest.mark.parametrize("later", [1, 2 * KIB64])
    async def test_an_open_message_has_in_the_fork_what_it_had_and_grows_in_the_parent_alone(self, store, size, later):
        message = text("é" + "x" * (size - 1), more=True, query={"k": 1})
        fence = await fill(store, text("first"), message)
        await store.fork("s", "f")
        expected = replace(message, session="f", sequence=2, more=False, query={"k": 1, "cut": "forked"})
        assert (await rows(store, "f"))[1] == expected
        await store.write("s", [replace(message, content="ü" * later)], fence=fence)
        assert (await rows(store, "f"))[1] == expected
        await store.write("s", [replace(message, content="end", more=False, query={"k": 2})], fence=fence)
        assert (await rows(store, "f"))[1] == expected
        assert (await rows(store))[1].content == message.content + "ü" * later + "end"
        left = await store.unfinished("f")
        assert (list(left.open), list(left.calls), left.at_rest) == ([], [], False)

    async def test_an_open_message_without_content_is_empty_in_the_fork(self, store):
        fence = await fill(store, message := text("", more=True))
        await store.fork("s", "f")
        await store.write("s", [replace(message, content="x", more=False)], fence=fence)
        [row] = await rows(store, "f")
        assert (row.content, row.more, row.query) == ("", False, {"cut": "forked"})

    async def test_an_open_message_of_the_parent_is_final_in_the_fork(self, store):
        await fill(store, text("a"), message := text("b", more=True))
        await store.fork("s", "f")
        fence = await store.acquire("f")
        with pytest.raises(MessageError, match=message.id):
            await store.write("f", [replace(message, content="c")], fence=fence)

    async def test_a_call_without_a_result_waits_in_both_sessions_for_one_of_its_own(self, store):
        call, result = call_and_result()
        fence = await fill(store, text("a"), call)
        await store.fork("s", "f")
        assert list((await store.unfinished("f")).calls) == [replace(call, session="f", sequence=2)]
        await store.write("s", [result], fence=fence)
        assert list((await store.unfinished("s")).calls) == []
        assert list((await store.unfinished("f")).calls) == [replace(call, session="f", sequence=2)]
        await fill(store, replace(result, id=new_id(), content="16"), session="f")
        assert list((await store.unfinished("f")).calls) == []
        assert await contents(store, "f") == ["a", "{}", "16"]

    async def test_a_fork_between_a_call_and_its_result_leaves_the_call_unanswered(self, store):
        call, result = call_and_result()
        other = replace(call, id=new_id())
        await fill(store, text("a"), other, replace(result, id=new_id(), query={"call": other.id}), call, text("b"))
        await fill(store, result, text("c"))
        for at, waiting in ((2, [other.id]), (3, []), (4, [call.id]), (5, [call.id]), (6, []), (7, [])):
            await store.fork("s", f"f{at}", at=at)
            left = await store.unfinished(f"f{at}")
            assert [message.id for message in left.calls] == waiting, at
            assert await rows(store, f"f{at}") == in_fork((await rows(store))[:at], f"f{at}")

    async def test_a_call_that_was_cut_waits_in_a_fork_before_its_result(self, store):
        call, result = call_and_result()
        cut = replace(call, query={**(call.query or {}), "cut": "crashed"})
        await fill(store, cut, result)
        await store.fork("s", "f", at=1)
        assert [message.id for message in (await store.unfinished("f")).calls] == [call.id]
        await store.fork("s", "g", at=2)
        assert list((await store.unfinished("g")).calls) == []

    async def test_an_open_call_is_cut_and_waits_for_a_result(self, store):
        call = Message(type="tool_call", content='{"a":', more=True, query={"tool": "t", "id": "1"})
        fence = await fill(store, call)
        await store.fork("s", "f")
        await store.write("s", [replace(call, content="1}", query={"args": {"a": 1}}, more=False)], fence=fence)
        [found] = (await store.unfinished("f")).calls
        assert (found.content, found.more) == ('{"a":', False)
        assert found.query == {"tool": "t", "id": "1", "cut": "forked", "args": None, "invalid": "truncated"}
        assert await rows(store, "f") == [found]

    async def test_a_large_call_is_reported_whole_by_a_fork(self, store):
        call = Message(type="tool_call", content="x" * 3 * KIB64, query={"args": {}})
        await fill(store, call)
        await store.fork("s", "f")
        [found] = (await store.unfinished("f")).calls
        assert found == replace(call, session="f", sequence=1)

    async def test_an_open_result_answers_its_call_in_the_fork_with_what_it_had(self, store):
        call, result = call_and_result()
        fence = await fill(store, call, replace(result, content="1", more=True))
        await store.fork("s", "f")
        await store.write("s", [replace(result, content="5")], fence=fence)
        left = await store.unfinished("f")
        assert (list(left.open), list(left.calls)) == ([], [])
        found = (await rows(store, "f"))[1]
        assert (found.content, found.query) == ("1", {**(result.query or {}), "cut": "forked", "is_error": True})
