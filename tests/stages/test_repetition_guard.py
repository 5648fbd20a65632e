"""repetition_guard: the same call, again and again, ends the run (F13, F54)."""

import pytest

from streamagent import Agent, Pipeline, persist, tool_dispatch
from streamagent.errors import ConfigError
from streamagent.message import Message, fold, split
from streamagent.stages.repetition_guard import repetition_guard
from streamagent.testing.stages import check_stage
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock

pytestmark = pytest.mark.anyio
OWN_STORES = True


async def judged(*messages, times=3):
    return fold(await check_stage(repetition_guard(times), [*messages, Message.stop("tool_calls", usage={"x": 1})]))


def mug(number):
    return call("stock", f"c{number}", product="mug")


async def test_two_equal_calls_pass_a_guard_of_three():
    given = [mug(1), mug(2), call("stock", product="cup"), call("shop", product="mug")]
    seen = await judged(*given)
    assert seen[:-1] == given
    assert seen[-1].query["reason"] == "tool_calls"


async def test_the_third_equal_call_must_not_run_and_the_stop_names_the_tool():
    seen = await judged(mug(1), mug(2), mug(3), call("stock", product="cup"))
    assert ["invalid" in message.query for message in seen[:-1]] == [False, False, True, False]
    assert seen[-1].query == {
        "reason": "repetition",
        "limit": {"repetitions": 3, "tool": "stock"},
        "usage": {"x": 1},
    }


async def test_calls_in_fragments_are_compared_when_they_are_complete():
    unread = Message(
        type="tool_call", content="{bad, very bad", query={"tool": "stock", "args": None, "invalid": "bad"}
    )
    other = Message(type="tool_call", content="{bad, even worse", query=unread.query)
    again = Message(type="tool_call", content=unread.content, query=unread.query)
    seen = await judged(*split(unread, 4), *split(other, 3), times=2)
    assert seen[-1].query["reason"] == "tool_calls"
    seen = await judged(*split(unread, 4), *split(again, 3), times=2)
    assert [m.query["invalid"] for m in seen[:-1]] == ["bad", "bad"]
    assert seen[-1].query["reason"] == "repetition"


async def test_another_prompt_begins_anew():
    seen = await judged(mug(1), mug(2), Message.user("Again!"), mug(3), mug(4))
    assert seen[-1].query["reason"] == "tool_calls"


async def test_a_loop_is_ended_its_last_call_is_stored_and_not_run():
    ran = []

    async def look(product: str) -> int:
        """Look."""
        ran.append(product)
        return 1

    model = ScriptedModel(calls(call("look", product="mug")))
    agent = Agent(model, tools=[look])
    stages = Pipeline(reply=[repetition_guard(), tool_dispatch(agent.tools), persist()])
    agent = Agent(model, tools=[look], pipeline=stages)
    async with agent.session("s") as session:
        assert (await session.ask("Go.")).reason == "repetition"
        stored = await check_rows(agent.store)
        assert ran == ["mug", "mug"]
        assert [m.query["is_error"] for m in stored if m.type == "tool_result"] == [False, False, True]
        model.turns = [answer("x")]
        assert (await session.ask("Again.")).text == "x"


async def test_a_call_that_is_refused_each_time_counts_too():
    model = ScriptedModel(calls(call("unknown")))
    agent = Agent(model, pipeline=Pipeline(reply=[repetition_guard(2), tool_dispatch([stock]), persist()]))
    async with agent.session("s") as session:
        assert (await session.ask("Go.")).stop.query["limit"] == {"repetitions": 2, "tool": "unknown"}


@pytest.mark.parametrize("wrong", [1, 0, -3, 2.5])
def test_a_number_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match="repetition_guard"):
        repetition_guard(wrong)
