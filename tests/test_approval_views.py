"""Approvals as DCAF and the CAP agents show and decide them: two views of the same rows."""

import pytest

from streamagent import Agent, tool
from streamagent.approval_views import cap_action_requests, cap_verdicts, dcaf_executed, dcaf_tool_calls, dcaf_verdicts
from streamagent.errors import ConfigError, ConflictError
from tests.scripted import ScriptedModel, answer, call, calls

pytestmark = pytest.mark.anyio
OWN_STORES = True


@tool(requires_approval=True)
async def refund(order: str) -> str:
    """Give money back.

    Args:
        order: Its number.
    """
    return f"refunded {order}"


@tool
async def look() -> str:
    """Look."""
    return "seen"


def agent_of():
    turn = calls(call("refund", "c1", order="A1"), call("look", "c2"), call("refund", "c3", order="A2"))
    return Agent(ScriptedModel(turn, answer("Done.")), tools=[refund, look])


async def test_dcaf_calls_are_executed_or_rejected_by_the_message_that_comes_back():
    agent = agent_of()
    async with agent.session("s") as session:
        first = await session.ask("Refund.")
        waiting = await session.pending()
        shown = dcaf_tool_calls(waiting, [item.spec for item in agent.tools])
        assert shown[0] == {
            "id": waiting[0].id,
            "name": "refund",
            "input": {"order": "A1"},
            "execute": False,
            "tool_description": "Give money back.",
            "input_description": {"order": {"type": "string", "description": "Its number."}},
        }
        assert dcaf_executed(first) == [{"id": "c2", "name": "look", "input": {}, "output": "seen"}]
        sent = [{**shown[0], "execute": True}, {**shown[1], "rejection_reason": "no"}]
        await session.decide(*dcaf_verdicts(sent, waiting))
        rest = await session.resume()
    assert dcaf_executed(rest) == [
        {"id": shown[0]["id"], "name": "refund", "input": {"order": "A1"}, "output": "refunded A1"},
        {
            "id": shown[1]["id"],
            "name": "refund",
            "input": {"order": "A2"},
            "output": "Tool execution rejected; Rejection Reason: no",
        },
    ]


async def test_a_dcaf_call_that_comes_back_with_another_input_is_an_edit():
    agent = agent_of()
    async with agent.session("s") as session:
        await session.ask("Refund.")
        waiting = await session.pending()
        shown = dcaf_tool_calls(waiting)
        assert shown[0]["input_description"] == {}
        await session.decide(*dcaf_verdicts([{**shown[0], "input": {"order": "Z"}, "execute": True}], waiting))
        rest = await session.resume()
    assert dcaf_executed(rest) == [
        {"id": shown[0]["id"], "name": "refund", "input": {"order": "Z"}, "output": "refunded Z"}
    ]


def test_a_dcaf_call_without_a_word_decides_nothing_and_one_without_an_id_is_refused():
    assert dcaf_verdicts([{"id": "a", "execute": False}]) == []
    with pytest.raises(ConfigError, match="id"):
        dcaf_verdicts([{"execute": True}])


async def test_cap_decisions_are_taken_in_the_order_of_the_action_requests():
    agent = agent_of()
    async with agent.session("s") as session:
        await session.ask("Refund.")
        waiting = await session.pending()
        requests = cap_action_requests(waiting, [item.spec for item in agent.tools])
        assert requests[0]["args"] == {"order": "A1"}
        assert requests[0]["allowedDecisions"] == ["approve", "edit", "reject"]
        assert requests[0]["argsSchema"] == refund.spec.parameters
        assert "argsSchema" not in cap_action_requests(waiting)[0]
        edit = {"type": "edit", "editedAction": {"name": "refund", "args": {"order": "B"}}}
        await session.decide(*cap_verdicts(waiting, [edit, {"type": "reject", "message": "no"}]))
        rest = await session.resume()
    assert [item["output"] for item in dcaf_executed(rest)] == [
        "refunded B",
        "Tool execution rejected; Rejection Reason: no",
    ]


async def test_some_cap_decisions_leave_the_rest_waiting():
    agent = agent_of()
    async with agent.session("s") as session:
        await session.ask("Refund.")
        waiting = await session.pending()
        await session.decide(*cap_verdicts(waiting, [{"type": "approve"}]))
        rest = await session.resume()
        assert rest.reason == "paused"
        assert await session.pending() == waiting[1:]


@pytest.mark.parametrize(("said", "approve", "reason"), [(" OK ", True, ""), ("yes", True, ""), ("no!", False, "no!")])
async def test_a_text_approves_all_or_is_the_reason_of_a_rejection(said, approve, reason):
    agent = agent_of()
    async with agent.session("s") as session:
        await session.ask("Refund.")
        verdicts = cap_verdicts(await session.pending(), said)
    assert [(item.approve, item.reason) for item in verdicts] == [(approve, reason)] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        "edit",
        3,
        None,
        {"x": 1},
        ["yes"],
        [{"type": "edit"}],
        [{"type": "edit", "editedAction": 3}],
        [{"type": "maybe"}],
        [{"type": "approve"}] * 3,
    ],
)
async def test_decisions_that_mean_nothing_are_refused(wrong):
    agent = agent_of()
    async with agent.session("s") as session:
        await session.ask("Refund.")
        waiting = await session.pending()
    with pytest.raises(ConfigError):
        cap_verdicts(waiting, wrong)


@pytest.mark.parametrize("said", ["false", "true", 1, 0, None, [], {}])
def test_a_dcaf_call_is_executed_for_true_alone_and_what_is_no_bool_is_refused(said):
    with pytest.raises(ConfigError, match="call 'a'"):
        dcaf_verdicts([{"id": "a", "execute": said}])
    with pytest.raises(ConfigError, match="has an `id`"):
        dcaf_verdicts(["a"])


async def test_caps_data_part_is_taken_as_the_decisions_in_it():
    agent = agent_of()
    async with agent.session("s") as session:
        await session.ask("Refund.")
        waiting = await session.pending()
        decisions = [{"type": "approve"}, {"type": "reject", "message": "no"}]
        assert cap_verdicts(waiting, {"decisions": decisions}) == cap_verdicts(waiting, decisions)


async def test_decisions_go_with_what_was_shown_whatever_was_decided_meanwhile():
    agent = agent_of()
    async with agent.session("s") as session:
        await session.ask("Refund.")
        shown = await session.pending()
        await session.reject(shown[0], "another process was first")
        with pytest.raises(ConflictError):
            await session.decide(*cap_verdicts(shown[:1], "yes"))
        assert await session.pending() == shown[1:]
