"""What every store does about who runs a session, and about the effects of its calls."""

from dataclasses import replace

import anyio
import pytest

from streamagent.errors import LeaseLost, MessageError, SessionBusy
from streamagent.message import Message
from streamagent.records import CallRecord, Owner

ALICE, BOB = Owner(id="host:1:alice", ttl=1000.0), Owner(id="host:2:bob", ttl=1000.0)
BRIEF = Owner(id="host:3:brief", ttl=0.02)


async def until_dead(owner):
    await anyio.sleep(2 * owner.ttl)  # by the database's own clock, which no test can set


def a_call(number=1):
    return Message(type="tool_call", content="{}", query={"tool": "stock", "id": f"call_{number}", "args": {}})


def result_of(call, content="15"):
    return Message(role="tool", type="tool_result", content=content, query={"tool": "stock", "call": call.id})


class LeaseContract:
    async def test_what_a_living_owner_holds_nobody_else_acquires(self, store):
        fence = await store.acquire("s", owner=ALICE)
        with pytest.raises(SessionBusy, match="'s' is held by host:1:alice"):
            await store.acquire("s", owner=BOB)
        assert await store.write("s", [Message(content="mine")], fence=fence) == [1]

    async def test_its_owner_acquires_it_again(self, store):
        assert await store.acquire("s", owner=ALICE) < await store.acquire("s", owner=ALICE)

    async def test_whoever_releases_it_hands_it_over_at_once(self, store):
        fence = await store.acquire("s", owner=ALICE)
        await store.release("s", fence=fence)
        assert await store.acquire("s", owner=BOB) > fence
        assert (await store.unfinished("s")).crashes == 0

    async def test_a_release_with_another_fence_changes_nothing(self, store):
        fence = await store.acquire("s", owner=ALICE)
        await store.release("s", fence=fence - 1)
        with pytest.raises(SessionBusy):
            await store.acquire("s", owner=BOB)

    async def test_what_a_dead_owner_held_is_acquired_and_its_writes_are_refused(self, store):
        fence = await store.acquire("s", owner=BRIEF)
        await until_dead(BRIEF)
        assert await store.acquire("s", owner=BOB) > fence
        with pytest.raises(LeaseLost):
            await store.write("s", [Message(content="late")], fence=fence)

    async def test_an_owner_that_nobody_replaced_goes_on_writing(self, store):
        fence = await store.acquire("s", owner=BRIEF)
        await until_dead(BRIEF)
        assert await store.write("s", [Message(content="nobody minds")], fence=fence) == [1]

    async def test_a_heartbeat_keeps_all_that_an_owner_holds(self, store):
        await store.acquire("s", owner=BRIEF)
        await store.heartbeat(Owner(id=BRIEF.id, ttl=1000.0))
        await until_dead(BRIEF)
        with pytest.raises(SessionBusy):
            await store.acquire("s", owner=BOB)

    async def test_what_a_retired_owner_held_is_free_at_once(self, store):
        await store.acquire("s", owner=ALICE)
        await store.retire(ALICE.id)
        await store.retire("nobody")
        assert await store.acquire("s", owner=BOB)

    async def test_without_an_owner_it_is_taken_from_whoever_has_it_and_held_against_nobody(self, store):
        await store.acquire("s", owner=ALICE)
        await store.acquire("s")
        assert await store.acquire("s", owner=BOB)
        assert (await store.unfinished("s")).crashes == 0

    async def test_owners_that_died_in_a_row_are_counted_until_one_ends_well(self, store):
        for deaths in range(3):
            fence = await store.acquire("s", owner=Owner(id=f"owner {deaths}", ttl=1000.0))
            assert (await store.unfinished("s")).crashes == deaths
            await store.retire(f"owner {deaths}")
        await store.release("s", fence=fence)
        await store.acquire("s", owner=BOB)
        assert (await store.unfinished("s")).crashes == 0

    async def test_a_deleted_session_is_held_by_nobody(self, store):
        await store.write("s", [Message(content="x")], fence=await store.acquire("s", owner=ALICE))
        await store.delete("s")
        assert await store.acquire("s", owner=BOB)

    async def test_unattended_is_what_waits_and_has_no_owner(self, store):
        assert await store.unattended() == []
        for session in ("first", "second", "held"):
            await store.enqueue(session, Message.user("hi"))
        fence = await store.acquire("held", owner=ALICE)
        assert await store.unattended() == ["first", "second"]
        assert await store.unattended(limit=1) == ["first"]
        await store.admit("held", fence=fence)
        await store.release("held", fence=fence)
        assert await store.unattended() == ["first", "second"]

    async def test_unattended_is_a_run_whose_owner_died(self, store):
        await store.write("s", [Message.user("hi")], fence=await store.acquire("s", owner=ALICE))
        assert await store.unattended() == []
        await store.retire(ALICE.id)
        assert await store.unattended() == ["s"]
        await store.release("s", fence=await store.acquire("s", owner=BOB))
        assert await store.unattended() == []

    async def test_a_run_that_was_left_to_others_is_unattended_and_nobody_has_died(self, store):
        for number in range(4):
            fence = await store.acquire("s", owner=Owner(id=f"owner {number}", ttl=1000.0))
            await store.write("s", [Message.user("hi")], fence=fence)
            await store.release("s", fence=fence - 1, unfinished=True)
            assert await store.unattended() == []
            await store.release("s", fence=fence, unfinished=True)
            assert await store.unattended() == ["s"]
        with pytest.raises(LeaseLost):
            await store.write("s", [Message(content="late")], fence=await store.acquire("s", owner=BOB) - 1)
        assert (await store.unfinished("s")).crashes == 0

    async def test_leaving_a_run_to_others_does_not_forget_who_died_in_it_before(self, store):
        await store.write("s", [Message.user("hi")], fence=await store.acquire("s", owner=ALICE))
        await store.retire(ALICE.id)
        await store.release("s", fence=await store.acquire("s", owner=BOB), unfinished=True)
        await store.acquire("s", owner=ALICE)
        assert (await store.unfinished("s")).crashes == 1


class EffectContract:
    @pytest.fixture
    async def fence(self, store):
        return await store.acquire("s")

    @pytest.fixture
    async def call(self, store, fence):
        call = a_call()
        await store.write("s", [call], fence=fence)
        return call

    async def test_a_call_that_is_about_to_run_is_on_record_and_counted(self, store, fence, call):
        assert await store.calls("s") == []
        assert await store.start_call("s", call.id, fence=fence) == 1
        assert await store.start_call("s", call.id, fence=fence) == 2
        assert await store.calls("s") == [CallRecord(call=call.id, attempts=2)]

    async def test_its_outcome_is_kept_as_it_will_be_stored(self, store, fence, call):
        await store.start_call("s", call.id, fence=fence)
        result = result_of(call, "fünf\n" + "x" * 100_000)
        await store.finish_call("s", call.id, result, fence=fence)
        [record] = await store.calls("s")
        kept = record.outcome
        assert (kept.id, kept.role, kept.type) == (result.id, "tool", "tool_result")
        assert (kept.content, kept.query) == (result.content, result.query)

    async def test_storing_the_result_closes_the_record(self, store, fence, call):
        await store.start_call("s", call.id, fence=fence)
        await store.finish_call("s", call.id, result_of(call), fence=fence)
        await store.write("s", [result_of(call)], fence=fence)
        assert await store.calls("s") == []
        assert await store.start_call("s", call.id, fence=fence) == 1
        assert await store.calls("s") == []

    async def test_an_outcome_of_a_result_that_has_begun_is_not_noted(self, store, fence, call):
        await store.start_call("s", call.id, fence=fence)
        await store.start_call("s", call.id, fence=fence)
        result = result_of(call)
        await store.write("s", [replace(result, more=True)], fence=fence)
        await store.finish_call("s", call.id, result, fence=fence)
        assert await store.calls("s") == []
        await store.write("s", [replace(result, content="")], fence=fence)
        assert await store.calls("s") == []

    async def test_of_a_call_that_is_not_stored_nothing_is_noted(self, store, fence):
        assert await store.start_call("s", "nothing", fence=fence) == 1
        await store.finish_call("s", "nothing", result_of(a_call()), fence=fence)
        assert await store.calls("s") == []

    async def test_a_stale_writer_notes_nothing(self, store, fence, call):
        await store.acquire("s")
        with pytest.raises(LeaseLost):
            await store.start_call("s", call.id, fence=fence)
        with pytest.raises(LeaseLost):
            await store.finish_call("s", call.id, result_of(call), fence=fence)
        assert await store.calls("s") == []

    async def test_an_outcome_that_cannot_be_stored_is_refused(self, store, fence, call):
        await store.start_call("s", call.id, fence=fence)
        with pytest.raises(MessageError, match="JSON"):
            await store.finish_call("s", call.id, Message(type="tool_result", query={"bad": object()}), fence=fence)

    async def test_another_session_and_a_deleted_one_know_nothing(self, store, fence, call):
        await store.start_call("s", call.id, fence=fence)
        assert await store.calls("other") == []
        await store.delete("s")
        assert await store.calls("s") == []
