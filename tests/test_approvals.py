"""Approvals: calls that wait, who decides about them, and what comes of it; on SQLite and in memory."""

from contextlib import asynccontextmanager, nullcontext
from typing import Annotated
from urllib.parse import unquote
from uuid import uuid4

import anyio
import pytest
from pydantic import AfterValidator, BaseModel, Field, SecretStr

from streamagent import (
    Agent,
    Hooks,
    MemoryStore,
    Message,
    Output,
    Pipeline,
    Runtime,
    budget,
    persist,
    rate_limit,
    repetition_guard,
    tool,
    tool_dispatch,
)
from streamagent.approvals import Approval, Verdict, decide, grants, pending, revoke
from streamagent.calls import Decision
from streamagent.errors import ApprovalGone, ApprovalNotFound, ConfigError, ConflictError
from tests.scripted import ScriptedModel, answer, call, calls, check_rows

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(either_store):
    return either_store


class Shop:
    """Tools that note what they did."""

    def __init__(self):
        self.effects = []
        self.refund = tool(self._refund, name="refund", requires_approval=True)
        self.pay = tool(self._pay, name="pay", requires_approval=lambda args: args["amount"] > 100)
        self.look = tool(self._look, name="look")

    async def _refund(self, order: str, amount: int = 5) -> str:
        """Give money back."""
        self.effects.append(("refund", order, amount))
        return f"refunded {order}"

    async def _pay(self, amount: int) -> str:
        """Pay."""
        self.effects.append(("pay", amount))
        return "paid"

    async def _look(self) -> str:
        """Look."""
        self.effects.append(("look",))
        return "seen"

    def agent(self, store, *turns, **options):
        return Agent(ScriptedModel(*turns), tools=[self.refund, self.pay, self.look], store=store, **options)


@pytest.fixture
def shop():
    return Shop()


def refund(order="A1", call_id="c1", **args):
    return call("refund", call_id, order=order, **args)


@asynccontextmanager
async def opened(store):
    """The store, open for a look beside the agent."""
    async with store.reopened() if hasattr(store, "reopened") else nullcontext(store) as other:
        yield other


async def all_rows(store):
    async with opened(store) as other:
        return await check_rows(other)


def results(messages):
    return [(m.query["id"], m.content, m.query["is_error"]) for m in messages if m.type == "tool_result"]


async def test_a_call_that_needs_an_approval_is_asked_about_and_the_run_pauses(store, shop):
    agent = shop.agent(store, calls(refund()))
    async with agent.session("s") as session:
        seen = list(await session.ask("Refund."))
        [waiting] = await session.pending()
    assert [m.type for m in seen] == ["text", "tool_call", "stop", "approval", "stop"]
    run = {"turns": 1, "last_turn": 50, "since": 0}
    assert seen[-1].query == {"reason": "paused", "approvals": [waiting.id], "run": run}
    assert seen[-1].is_final
    assert shop.effects == []
    assert isinstance(waiting, Approval)
    assert (waiting.session, waiting.tool, waiting.args, waiting.call_id) == ("s", "refund", {"order": "A1"}, "c1")
    assert (waiting.call, waiting.description) == (seen[1].id, "Give money back.")
    assert len(waiting.digest) == 64


async def test_an_approved_call_runs_once_and_the_model_goes_on(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting, by="Ada")
        assert await session.pending() == []
        seen = list(await session.resume())
        assert list(await session.resume()) == []
    assert [m.type for m in seen] == ["approval", "tool_result", "text", "stop"]
    assert seen[0].query["by"] == "Ada"
    assert seen[1].query["approval"] == seen[0].id
    assert shop.effects == [("refund", "A1", 5)]
    rows = await all_rows(store)
    assert [m.sequence for m in rows] == list(range(1, 10))
    assert [m.type for m in agent.model.contexts[1] if m.role == "tool"] == ["approval", "tool_result"]


async def test_a_rejected_call_does_not_run_and_the_model_reads_why(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Pity."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.reject(waiting.id, "too much")
        seen = list(await session.resume())
    assert results(seen) == [("c1", "Tool execution rejected; Rejection Reason: too much", True)]
    assert shop.effects == []
    await all_rows(store)


async def test_a_call_may_be_approved_with_other_arguments(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting, args={"order": "A1", "amount": "3"})
        seen = list(await session.resume())
    assert shop.effects == [("refund", "A1", 3)]
    assert results(seen) == [("c1", "refunded A1", False)]


async def test_arguments_that_do_not_fit_are_told_to_the_model_and_nothing_runs(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Hm."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting, args={"amount": 3})
        seen = list(await session.resume())
    assert shop.effects == []
    assert "order" in results(seen)[0][1]


@pytest.mark.parametrize(("amount", "asked"), [(100, 0), (101, 1)])
async def test_a_function_of_the_arguments_says_which_calls_need_an_approval(store, shop, amount, asked):
    agent = shop.agent(store, calls(call("pay", amount=str(amount))), answer("Done."))  # it gets them validated
    async with agent.session("s") as session:
        await session.ask("Pay.")
        assert len(await session.pending()) == asked
    assert len(shop.effects) == 1 - asked


async def test_a_function_that_fails_lets_nothing_run(store, shop):
    async def broken(args):
        raise OSError("no list")

    gated = tool(shop._look, name="look", requires_approval=broken)
    agent = Agent(ScriptedModel(calls(call("look")), answer("Hm.")), tools=[gated], store=store)
    async with agent.session("s") as session:
        seen = list(await session.ask("Look."))
    assert results(seen) == [("c1", "OSError: no list", True)]
    assert shop.effects == []


async def test_siblings_that_need_no_approval_run_and_are_stored_meanwhile(store, shop):
    agent = shop.agent(store, calls(refund("A1", "c1"), call("look", "c2"), refund("A2", "c3")), answer("Done."))
    async with agent.session("s") as session:
        first = list(await session.ask("Go."))
        assert results(first) == [("c2", "seen", False)]
        async with opened(store) as other:
            assert "seen" in [m.content async for m in other.read("s")]
        one, two = await session.pending()
        await session.approve(two)
        second = list(await session.resume())
        assert (results(second), second[-1].query["reason"]) == ([("c3", "refunded A2", False)], "paused")
        assert await session.pending() == [one]
        await session.reject(one)
        third = list(await session.resume())
    assert results(third) == [("c1", "Tool execution rejected", True)]
    assert shop.effects == [("look",), ("refund", "A2", 5)]
    asked = [m.query["id"] for m in agent.model.contexts[1] if m.type == "tool_result"]
    assert sorted(asked) == ["c1", "c2", "c3"]


async def test_several_are_decided_at_once_and_run_beside_one_another(store, shop):
    gate = anyio.Event()

    @tool(requires_approval=True)
    async def first() -> str:
        """Wait for the second."""
        with anyio.fail_after(5):
            await gate.wait()
        return "1"

    @tool(requires_approval=True)
    async def second() -> str:
        """Go ahead."""
        gate.set()
        return "2"

    model = ScriptedModel(calls(call("first", "c1"), call("second", "c2")), answer("Done."))
    agent = Agent(model, tools=[first, second], store=store)
    async with agent.session("s") as session:
        await session.ask("Go.")
        one, two = await session.pending()
        await session.decide(Verdict(approval=two.id), Verdict(approval=one.id))
        seen = list(await session.resume())
    assert sorted(results(seen)) == [("c1", "1", False), ("c2", "2", False)]
    assert seen[-1].query["reason"] == "stop"


async def test_a_decision_that_comes_while_the_run_is_busy_is_taken_by_that_run(store, shop):
    decided = anyio.Event()

    @tool
    async def slow() -> str:
        """Take a while."""
        with anyio.fail_after(5):
            await decided.wait()
        return "slow"

    model = ScriptedModel(calls(call("slow", "c0"), refund()), answer("Done."))
    agent = Agent(model, tools=[slow, shop.refund], store=store)
    async with agent.session("s") as session:
        seen = []
        async for message in session.ask("Go."):
            seen.append(message)
            if message.type == "approval" and not decided.is_set():
                await session.approve(message.id)
                decided.set()
    assert [r for r, *_ in results(seen)] == ["c0", "c1"]
    assert [m.query["reason"] for m in seen if m.type == "stop"] == ["tool_calls", "stop"]
    assert shop.effects == [("refund", "A1", 5)]


async def test_a_decision_is_taken_once_and_repeating_it_changes_nothing(store, shop):
    """F50: the first one holds, the same one again has the same answer, another one is a conflict."""
    agent = shop.agent(store, calls(refund()), answer("Done."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting, by="Ada")
        await session.approve(waiting, by="Bob")
        with pytest.raises(ConflictError):
            await session.reject(waiting)
        with pytest.raises(ConflictError, match="was decided otherwise before: 'approve' by 'Ada'; the first"):
            await session.approve(waiting, args={"order": "B"})
        await session.resume()
        await session.approve(waiting)
        with pytest.raises(ConflictError):
            await session.reject(waiting)
        assert list(await session.resume()) == []
    assert shop.effects == [("refund", "A1", 5)]
    decisions = [m for m in await all_rows(store) if m.type == "approval" and m.role == "user"]
    assert [m.query["by"] for m in decisions] == ["Ada"]


async def test_a_prompt_goes_on_without_the_calls_that_wait_and_a_late_decision_is_refused(store, shop):
    """F51."""
    agent = shop.agent(store, calls(refund()), answer("Well."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        seen = list(await session.ask("Never mind."))
        assert [m.type for m in seen] == ["approval", "tool_result", "stop", "text", "text", "stop"]
        assert (seen[0].query["decision"], seen[2].query["reason"]) == ("expired", "superseded")
        assert results(seen) == [
            ("c1", "Not executed: the conversation went on before anybody approved this call.", True)
        ]
        assert await session.pending() == []
        with pytest.raises(ApprovalGone):
            await session.approve(waiting)
        assert list(await session.resume()) == []
    assert shop.effects == []
    await all_rows(store)


async def test_a_prompt_lets_run_first_what_was_approved(store, shop):
    agent = shop.agent(store, calls(refund("A1", "c1"), refund("A2", "c2")), answer("Well."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        one, _ = await session.pending()
        await session.approve(one)
        seen = list(await session.ask("And?"))
    assert [r[:2] for r in results(seen)] == [
        ("c1", "refunded A1"),
        ("c2", "Not executed: the conversation went on before anybody approved this call."),
    ]
    assert shop.effects == [("refund", "A1", 5)]
    assert [m.content for m in seen if m.role == "user" and m.type == "text"] == ["And?"]


async def test_what_was_sent_before_waits_until_the_pause_is_over(store, shop):
    """Nothing is lost by a pause: what was not admitted stays in the inbox."""
    agent = shop.agent(store, calls(refund()), answer("Done."), answer("Second."), answer("Third."))
    async with agent.session("s") as session:
        async for message in session.ask("Refund."):
            if message.type == "tool_call":
                await session.steer("Quick!")
                await session.follow_up("And then?")
        assert list(await session.resume()) == []
        [waiting] = await session.pending()
        await session.approve(waiting)
        seen = list(await session.resume())
    assert [m.content for m in seen if m.role == "user" and m.type == "text"] == ["Quick!", "And then?"]


async def test_an_approval_of_another_session_looks_like_none(store, shop):
    """F52."""
    agent = shop.agent(store, calls(refund()))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
    async with agent.session("other") as other:
        with pytest.raises(ApprovalNotFound) as foreign:
            await other.approve(waiting)
        with pytest.raises(ApprovalNotFound) as missing:
            await other.approve("nothing")
        assert str(foreign.value).replace(waiting.id, "nothing") == str(missing.value)
        assert await other.pending() == []


async def test_a_message_that_is_no_request_cannot_be_approved(store, shop):
    agent = shop.agent(store, calls(refund()))
    async with agent.session("s") as session:
        seen = list(await session.ask("Refund."))
        for message in seen:
            if message.type != "approval":
                with pytest.raises(ApprovalNotFound):
                    await session.approve(message.id)


async def test_a_tool_that_was_changed_since_is_asked_about_again(store, shop):
    """F53: an approval holds for these arguments and this version of the tool."""
    agent = shop.agent(store, calls(refund()))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting)
    other = tool(shop._refund, name="refund", description="Send all money.", requires_approval=True)
    changed = Agent(ScriptedModel(answer("Done.")), tools=[other], store=store)
    async with changed.session("s") as session:
        seen = list(await session.resume())
        assert [m.type for m in seen] == ["approval", "approval", "stop"]
        assert shop.effects == []
        [again] = await session.pending()
        assert (again.call, again.description) == (waiting.call, "Send all money.")
        assert again.digest != waiting.digest
        await session.approve(again)
        await session.resume()
    assert shop.effects == [("refund", "A1", 5)]


def counting_hook():
    """Gives a call other arguments each time that it is asked."""
    seen = []

    def before(made):
        seen.append(made.args)
        return Decision(args={"order": f"A{len(seen)}"})

    return before, seen


async def test_what_was_approved_is_what_runs_whatever_the_hook_says_then(store, shop):
    before, seen = counting_hook()
    agent = shop.agent(store, calls(refund("A0")), answer("Done."), hooks=Hooks(before_tool_call=before))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        assert waiting.args == {"order": "A1"}
        await session.approve(waiting)
        await session.resume()
    assert seen == [{"order": "A0"}, {"order": "A1"}]
    assert shop.effects == [("refund", "A1", 5)]


async def test_a_hook_may_still_block_what_was_approved(store, shop):
    said = [None, Decision(block="closed")]
    hooks = Hooks(before_tool_call=lambda made: said.pop(0))
    agent = shop.agent(store, calls(refund()), answer("Done."), hooks=hooks)
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting)
        assert results(await session.resume()) == [("c1", "closed", True)]
    assert shop.effects == []


async def test_an_edit_that_a_hook_changes_is_asked_about_again_and_then_runs(store, shop):
    before, _ = counting_hook()
    agent = shop.agent(store, calls(refund("A0")), answer("Done."), hooks=Hooks(before_tool_call=before))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting, args={"order": "Z"})
        seen = list(await session.resume())
        assert seen[-1].query["reason"] == "paused"
        assert shop.effects == []
        [again] = await session.pending()
        assert again.args == {"order": "A2"}
        await session.approve(again)
        await session.resume()
    assert shop.effects == [("refund", "A2", 5)]


@pytest.mark.parametrize("edited", [False, True])
async def test_a_hook_that_changes_arguments_in_place_is_seen(store, shop, edited):
    def double(made):
        made.args["amount"] = made.args.get("amount", 5) * 2

    agent = shop.agent(store, calls(refund("A0")), answer("Done."), hooks=Hooks(before_tool_call=double))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        assert waiting.args == {"order": "A0", "amount": 10}
        await session.approve(waiting, args={"order": "A0", "amount": 25} if edited else None)
        await session.resume()
        assert [again.args["amount"] for again in await session.pending()] == ([50] if edited else [])
    assert shop.effects == ([] if edited else [("refund", "A0", 10)])


async def test_a_call_that_was_rejected_is_not_asked_about_again_in_the_same_run(store, shop):
    """F54; another run asks again."""
    agent = shop.agent(store, calls(refund()), calls(refund(call_id="c2")), answer("Hm."), calls(refund(call_id="c3")))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.reject(waiting)
        seen = list(await session.resume())
        assert results(seen)[1][:2] == (
            "c2",
            "Not executed: this call was rejected already. Do something else, or ask the user.",
        )
        assert await session.pending() == []
        await session.ask("Once more.")
        assert len(await session.pending()) == 1
    assert shop.effects == []


@pytest.mark.parametrize(
    ("always", "order", "asked"),
    [({}, "B2", 0), ({"order": "A*"}, "A2", 0), ({"order": "A*"}, "BA", 1), ({"order": "A1"}, "A2", 1)],
)
async def test_always_allow_covers_what_it_says_and_no_more(store, shop, always, order, asked):
    agent = shop.agent(store, calls(refund("A1")), calls(refund(order, "c2")), answer("Done."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting, always=always, by="Ada")
        seen = list(await session.resume())
        assert len(await session.pending()) == asked
        [grant] = await session.grants()
    assert (grant.tool, grant.always, grant.by) == ("refund", always, "Ada")
    if not asked:
        assert [m.query["approval"] for m in seen if m.type == "tool_result"] == [grant.id, grant.id]
    assert len(shop.effects) == 2 - asked


async def test_a_grant_that_was_revoked_holds_no_more(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."), calls(refund(call_id="c2")))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting, always={})
        await session.resume()
        [grant] = await session.grants()
        await session.revoke(grant)
        assert await session.grants() == []
        await session.revoke(grant)  # the same again
        await session.ask("Again.")
        assert len(await session.pending()) == 1
        with pytest.raises(ApprovalNotFound):
            await session.revoke(waiting.id)
    assert len(shop.effects) == 1
    async with opened(store) as other:
        rows = [message async for message in other.read("s")]
    assert "revoke" in [m.query.get("decision") for m in rows if m.type == "approval"]


async def test_a_grant_holds_in_its_session_and_for_the_tool_as_it_was(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."), calls(refund(call_id="c2")))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting, always={})
        await session.resume()
        fork = await session.fork()
    for name in (fork, "other"):
        async with agent.session(name) as session:
            await session.ask("Again.")
            assert len(await session.pending()) == 1
    other = tool(shop._refund, name="refund", description="Send all money.", requires_approval=True)
    changed = Agent(ScriptedModel(calls(refund(call_id="c3"))), tools=[other], store=store)
    async with changed.session("s") as session:
        await session.ask("Again.")
        assert len(await session.pending()) == 1
    assert len(shop.effects) == 1


async def test_a_fork_of_a_paused_session_closes_the_calls_and_leaves_its_parent_alone(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Fork."), answer("Parent."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        fork = await session.fork()
        async with agent.session(fork, runtime=session._runtime) as other:
            assert await other.pending() == []
            seen = list(await other.ask("Go on."))
            assert results(seen)[0][1].startswith("Not known here")
        await session.approve(waiting)
        await session.resume()
    assert shop.effects == [("refund", "A1", 5)]


async def test_leaving_the_reply_at_the_pause_keeps_the_calls_waiting(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."))
    async with agent.session("s") as session:
        async for message in session.ask("Refund."):
            if message.is_final:
                break
    async with agent.session("s") as session:
        [waiting] = await session.pending()
        await session.approve(waiting)
        await session.resume()
    assert len(shop.effects) == 1


async def test_a_cut_before_the_pause_closes_the_calls(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."))
    async with agent.session("s") as session:
        async with session.ask("Refund.") as reply:
            async for message in reply:
                if message.type == "approval":
                    break
        assert await session.pending() == []
        with pytest.raises(ApprovalGone):
            await session.approve(message.id)
    assert [r[1] for r in results(await all_rows(store))] == ["Cancelled before it finished."]


async def test_a_served_session_goes_on_by_itself_when_it_is_decided(store, shop):
    agent = shop.agent(store, calls(refund("A1", "c1"), refund("A2", "c2")), answer("Done."), answer("Next."))
    async with agent.session("s") as session:
        await session.send("Refund.")
        await session.send("And next?")
        seen = []
        with anyio.fail_after(10):
            async for message in session:
                seen.append(message)
                if message.type == "stop" and message.query["reason"] == "paused":
                    await session.approve(message.query["approvals"][0])
                if message.content == "Next.":
                    await session.send_eof()
    assert sorted(shop.effects) == [("refund", "A1", 5), ("refund", "A2", 5)]
    assert [m.query["reason"] for m in seen if m.type == "stop"] == ["tool_calls", "paused", "paused", "stop", "stop"]


async def until_paused(session):
    while not ((message := await session.receive()).type == "stop" and message.query["reason"] == "paused"):
        pass
    return message.query["approvals"]


async def until_said(session, content):
    with anyio.fail_after(5):
        while (await session.receive()).content != content:
            pass


async def test_a_served_session_goes_on_when_another_handle_decides(store, shop):
    agent = shop.agent(store, calls(refund("A1", "c1")), answer("Done."))
    async with (
        Runtime(store=store, poll=60) as runtime,
        agent.session("s", runtime=runtime) as served,
        agent.session("s", runtime=runtime) as other,
    ):
        await served.send("Refund.")
        [approval] = await until_paused(served)
        await anyio.wait_all_tasks_blocked()
        await other.approve(approval)
        await until_said(served, "Done.")
    assert shop.effects == [("refund", "A1", 5)]


async def test_what_waits_behind_a_pause_goes_on_when_another_handle_cancels(shop):
    store = MemoryStore()
    agent = shop.agent(store, calls(refund("A1", "c1")), answer("Next."))
    async with (
        Runtime(store=store, poll=60) as runtime,
        agent.session("s", runtime=runtime) as served,
        agent.session("s", runtime=runtime) as other,
    ):
        await served.send("Refund.")
        await until_paused(served)
        await served.send("And next?")
        await anyio.wait_all_tasks_blocked()
        await other.cancel()
        await until_said(served, "Next.")
    assert shop.effects == []


async def test_a_served_session_goes_on_when_another_process_decides(store, shop):
    agent = shop.agent(store, calls(refund("A1", "c1")), answer("Done."))
    async with Runtime(store=store, poll=0.01) as runtime, agent.session("s", runtime=runtime) as served:
        await served.send("Refund.")
        [approval] = await until_paused(served)
        async with opened(store) as other:
            await decide(other, "s", Verdict(approval=approval))
        await until_said(served, "Done.")
    assert shop.effects == [("refund", "A1", 5)]


async def test_a_served_session_leaves_a_decision_to_the_process_that_is_at_work(store, shop, monkeypatch):
    may_end = anyio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await may_end.wait()
        return "waited"

    turns = calls(refund("A1", "c1"), call("wait", "c2")), answer("Done.")
    asks, idle = Agent(ScriptedModel(*turns), tools=[shop.refund, wait]), shop.agent(store, answer("Mine."))
    watched, decided = Looks(store, monkeypatch, "waiting"), Looks(store, monkeypatch, "unfinished")
    async with (
        Runtime(store=store, poll=0.01) as runtime,
        Runtime(store=store.reopened() if hasattr(store, "reopened") else store) as elsewhere,
        idle.session("s", runtime=runtime) as served,
        asks.session("s", runtime=elsewhere) as working,
    ):
        with anyio.move_on_after(0):
            await served.receive()
        await watched.times(2)  # it is served, and nothing is to be done
        reply = working.ask("Refund.")
        while (message := await anext(reply)).type != "approval":
            pass
        await working.approve(message.id)
        await decided.times(2)
        may_end.set()
        assert (await reply).text == "Done."
    assert idle.model.contexts == []
    assert shop.effects == [("refund", "A1", 5)]


class Looks:
    """Count how often a store is asked something, from each call of `times` on."""

    def __init__(self, store, monkeypatch, name):
        self._asked, self._left, self._enough = getattr(store, name), 0, anyio.Event()
        monkeypatch.setattr(store, name, self._ask)

    async def times(self, number):
        self._left, self._enough = number, anyio.Event()
        with anyio.fail_after(5):
            await self._enough.wait()

    async def _ask(self, *args):
        self._left -= 1
        if not self._left:
            self._enough.set()
        return await self._asked(*args)


async def test_a_key_shows_the_whole_answer_across_the_pause(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."))
    async with agent.session("s") as session:
        first = list(await session.ask("Refund.", client_key="k"))
        again = list(await session.ask("Refund.", client_key="k"))
        assert [m.id for m in again] == [m.id for m in first]
        [waiting] = await session.pending()
        await session.approve(waiting)
        rest = list(await session.resume())
        again = list(await session.ask("Refund.", client_key="k"))
        assert [m.id for m in again] == [m.id for m in [*first, *rest]]
    assert len(shop.effects) == 1


@pytest.mark.parametrize(
    ("limit", "turns", "reason"),
    [
        (None, 3, "turn_limit"),
        (budget(turns=2), 2, "budget"),
        (budget(tool_calls=2), 3, "budget"),
        (rate_limit(tool_calls=2), 3, "rate_limit"),
        (repetition_guard(3), 3, "repetition"),
    ],
    ids=["max_turns", "turns", "tool_calls", "rate_limit", "repetition"],
)
async def test_a_pause_gives_a_run_nothing_that_it_has_used_up(store, limit, turns, reason):
    """I19, however often it pauses."""
    shop = Shop()
    reply = [limit] if limit else []
    pipeline = Pipeline(reply=[*reply, tool_dispatch([shop.refund]), persist()])
    agent = shop.agent(store, calls(refund()), pipeline=pipeline, max_turns=3 if limit is None else 50)
    async with agent.session("s") as session:
        result = await session.ask("Refund.")
        while result.reason == "paused" and len(agent.model.contexts) < 10:
            for waiting in await session.pending():
                await session.approve(waiting)
            result = await session.resume()
        assert (len(agent.model.contexts), result.reason) == (turns, reason)
        await session.ask("Again.")
        assert len(agent.model.contexts) == turns + 1


async def test_after_a_pause_the_model_is_asked_whatever_the_late_results_want(store, shop):
    @tool(requires_approval=True)
    async def ship() -> Output:
        """Ship, and be done."""
        return Output("shipped", terminate=True)

    model = ScriptedModel(calls(call("look", "c1"), call("ship", "c2")), answer("Done."))
    agent = Agent(model, tools=[shop.look, ship], store=store)
    async with agent.session("s") as session:
        await session.ask("Ship.")
        [waiting] = await session.pending()
        await session.approve(waiting)
        assert (await session.resume()).text == "Done."


async def test_an_agent_without_the_tool_takes_no_decision(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting)
    async with Agent(ScriptedModel(answer("x")), store=store).session("s") as session:
        with pytest.raises(ConfigError, match="calls of refund wait for an approval"):
            await session.resume()
    async with agent.session("s") as session:
        await session.resume()
    assert shop.effects == [("refund", "A1", 5)]


async def test_a_reply_that_was_streamed_says_why_it_ended(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."))
    async with agent.session("s") as session:
        reply = session.ask("Refund.")
        assert [piece async for piece in reply.text()] == []
        assert reply.reason == "paused"


async def test_should_stop_after_turn_ends_a_run_whose_calls_wait(store, shop):
    agent = shop.agent(store, calls(refund()), hooks=Hooks(should_stop_after_turn=lambda end: True))
    async with agent.session("s") as session:
        seen = list(await session.ask("Refund."))
        assert await session.pending() == []
    assert seen[-1].query["reason"] == "ended"
    await all_rows(store)


async def test_the_store_alone_is_enough_to_decide(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
    async with opened(store) as other:
        [waiting] = await pending(other, "s")
        await decide(other, "s", Verdict(approval=waiting.id, always={}))
        assert await pending(other, "s") == []
        assert await pending(other, "nobody") == []
    async with agent.session("s") as session:
        await session.resume()
    async with opened(store) as other:
        [grant] = await grants(other, "s")
        await revoke(other, "s", grant.id)
        assert await grants(other, "s") == []
    assert len(shop.effects) == 1


async def test_without_a_store_a_call_that_needs_an_approval_does_not_run(shop):
    from streamagent import open_pipeline

    async def said():
        for message in calls(refund()):
            yield message

    async with open_pipeline(said(), tool_dispatch([shop.refund])) as stream:
        seen = [message async for message in stream]
    [result] = [m for m in seen if m.type == "tool_result"]
    assert result.query["is_error"]
    assert "store" in result.content
    assert shop.effects == []


class Hidden(BaseModel):
    order: str
    amount: int = Field(exclude=True, default=1)


class Secret(BaseModel):
    word: SecretStr


class Numbered(BaseModel):
    order: str
    id: str = Field(default_factory=lambda: uuid4().hex)


Unquoted = Annotated[str, AfterValidator(unquote)]


async def asked_for(store, function, **args):
    """What becomes of a gated call: the arguments that were shown, the result, and what ran."""
    ran = []

    async def gated(item):
        ran.append(item)
        return "done"

    gated.__annotations__ = {"item": function}
    agent = Agent(
        ScriptedModel(calls(call("gated", **args)), answer("x")),
        tools=[tool(gated, requires_approval=True)],
        store=store,
    )
    async with agent.session("s") as session:
        first = list(await session.ask("Go."))
        waiting = await session.pending()
        for approval in waiting:
            await session.approve(approval)
        rest = list(await session.resume())
    return [approval.args for approval in waiting], [m.content for m in [*first, *rest] if m.type == "tool_result"], ran


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        (Hidden, {"order": "A", "amount": 1_000_000}),
        (Secret, {"word": "hunter2"}),
        (Unquoted, "/data/%252e%252e/etc"),
    ],
)
async def test_a_call_whose_arguments_cannot_be_shown_as_they_are_does_not_run(store, kind, item):
    shown, said, ran = await asked_for(store, kind, item=item)
    assert (shown, ran) == ([], [])
    assert "cannot be shown as they are" in said[0]


async def test_a_value_that_is_made_anew_each_time_is_the_one_that_was_shown(store):
    shown, said, [ran] = await asked_for(store, Numbered, item={"order": "A"})
    assert shown == [{"item": {"order": "A", "id": ran.id}}]
    assert said == ["done"]


async def test_arguments_are_validated_once_and_judged_as_they_run(store):
    judged, ran = [], []

    @tool(requires_approval=lambda args: judged.append(args["path"]))
    async def read(path: Unquoted) -> str:
        """Read."""
        ran.append(path)
        return "x"

    agent = Agent(ScriptedModel(calls(call("read", path="%252e")), answer("x")), tools=[read], store=store)
    async with agent.session("s") as session:
        await session.ask("Go.")
    assert judged == ran == ["%2e"]


async def test_a_pipeline_that_stores_nothing_cannot_ask(shop):
    pipeline = Pipeline(reply=[tool_dispatch([shop.refund])])
    agent = shop.agent(MemoryStore(), calls(refund()), pipeline=pipeline)
    async with agent.session("s") as session:
        [said] = results(await session.ask("Refund."))
        assert await session.pending() == []
    assert "persist()" in said[1]
    assert shop.effects == []


async def test_a_grant_is_seen_and_ends_before_its_call_has_run(store, shop):
    agent = shop.agent(store, calls(refund()), calls(refund(call_id="c2")), answer("Done."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting, always={})
        [grant] = await session.grants()
        await session.revoke(grant)
        assert await session.grants() == []
        await session.resume()
        assert len(await session.pending()) == 1
    assert len(shop.effects) == 1


async def test_a_call_that_was_cancelled_grants_nothing(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Well."), calls(refund(call_id="c2")))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.approve(waiting, always={})
        await session.cancel()
        assert await session.grants() == []
        await session.ask("And now?")
        await session.ask("Again.")
        assert await session.grants() == []
        assert len(await session.pending()) == 1
    assert shop.effects == []


async def test_always_names_arguments_of_the_call(store, shop):
    agent = shop.agent(store, calls(refund()))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        with pytest.raises(ConfigError, match="`always` names colour; the arguments of this call are: order"):
            await session.approve(waiting, always={"colour": "red"})
        assert await session.pending() == [waiting]


@pytest.mark.parametrize(
    "wrong",
    [
        {"approve": False, "args": {}},
        {"approve": False, "always": {}},
        {"reason": "because"},
        {"args": "x"},
        {"always": True},
        {"approve": "false"},
        {"approval": None},
        {"approve": False, "reason": None},
        {"by": 3},
    ],
)
def test_a_verdict_that_means_nothing_is_refused(wrong):
    with pytest.raises(ConfigError):
        Verdict(**{"approval": "a", **wrong})


@pytest.mark.parametrize("verb", ["approve", "reject", "revoke"])
async def test_what_is_decided_about_is_named_by_its_id(store, shop, verb):
    async with shop.agent(store).session("s") as session:
        with pytest.raises(ConfigError, match="not None"):
            await getattr(session, verb)(None)


def test_requires_approval_is_a_bool_or_a_function():
    with pytest.raises(ConfigError, match="requires_approval"):
        tool(lambda: None, name="x", requires_approval="yes")


async def test_a_pipeline_of_ones_own_pauses_as_well(store, shop):
    pipeline = Pipeline(reply=[tool_dispatch([shop.refund], announce=True), persist()])
    agent = shop.agent(store, calls(refund()), answer("Done."), pipeline=pipeline)
    async with agent.session("s") as session:
        seen = list(await session.ask("Refund."))
        assert [m.type for m in seen if m.type == "progress"] == []
        [waiting] = await session.pending()
        await session.approve(waiting)
        seen = list(await session.resume())
    assert [m.query["state"] for m in seen if m.type == "progress"] == ["start", "end"]


async def test_a_decision_cannot_be_sent_as_a_message(store, shop):
    from streamagent.errors import MessageError

    agent = shop.agent(store, answer("x"))
    async with agent.session("s") as session:
        with pytest.raises(MessageError):
            await session.send(Message(role="user", type="approval", query={"approval": "x", "decision": "approve"}))


async def test_a_message_that_names_an_approval_neither_hides_nor_blocks_it(store, shop):
    agent = shop.agent(store, calls(refund()), answer("Done."))
    async with agent.session("s") as session:
        await session.ask("Refund.")
        [waiting] = await session.pending()
        await session.steer(
            Message(role="user", content="x", query={"approval": waiting.id}), client_key=f"decision:{waiting.id}"
        )
        async with opened(store) as other:
            await other.enqueue("s", Message(role="user", content="y", query={"approval": waiting.id}))
        assert await session.pending() == [waiting]
        await session.approve(waiting)
        await session.resume()
    assert shop.effects == [("refund", "A1", 5)]


async def test_a_call_of_an_answer_that_failed_is_not_asked_about():
    """The run is over with that answer: its stop is the last word, and nothing waits behind it."""

    @tool(requires_approval=True)
    def ship() -> str:
        """Ship it."""
        return "shipped"

    failed = Message.stop("error", error={"kind": "connection", "message": "cut", "retryable": True})
    agent = Agent(ScriptedModel([call("ship", "c1"), failed]), tools=[ship], store=MemoryStore())
    async with agent.session("s") as session:
        result = await session.ask("Go.")
        assert await session.pending() == []
    assert [(m.type, m.content[:12]) for m in result] == [
        ("text", "Go."),
        ("tool_call", "{}"),
        ("tool_result", "Not executed"),
        ("stop", ""),
    ]
