"""rate_limit: exactly the stated numbers pass."""

import pytest

from streamagent import Agent, MemoryStore, Pipeline, persist, rate_limit, tool_dispatch
from streamagent.errors import ConfigError
from streamagent.message import Message, fold
from streamagent.testing.stages import check_stage
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock, text

pytestmark = pytest.mark.anyio


def opened(number):
    """A call as the assembler streams it: opened, fed, and closed only at the answer's end."""
    whole = call("stock", f"c{number}", product="mug")
    first = Message(id=whole.id, type="tool_call", query={"tool": "stock", "id": f"c{number}"}, more=True)
    return first, Message(id=whole.id, type="tool_call", content="{}", query=whole.query)


def batch(number):
    pairs = [opened(n) for n in range(number)]
    return [
        *(first for first, _ in pairs),
        *(last for _, last in pairs),
        Message.stop("tool_calls", usage={"total_tokens": 7}),
    ]


async def passed(given, **limits):
    return fold(await check_stage(rate_limit(**limits), given))


@pytest.mark.parametrize("number", [9, 10])
async def test_ten_calls_pass_a_limit_of_ten(number):
    seen = await passed(batch(number), tool_calls=10)
    assert [m.type for m in seen] == ["tool_call"] * number + ["stop"]
    assert seen[-1].query["reason"] == "tool_calls"


async def test_the_eleventh_call_does_not_pass_and_the_ten_are_completed():
    seen = await passed(batch(11), tool_calls=10)
    assert [m.query["id"] for m in seen[:-1]] == [f"c{n}" for n in range(10)]
    assert not any(m.more for m in seen)
    assert seen[-1].query == {
        "reason": "rate_limit",
        "limit": {"tool_calls": 10, "scope": "run"},
        "usage": {"total_tokens": 7},
    }


async def test_messages_are_counted_when_they_open_never_by_fragment():
    two = [*text("a", "b", "c"), *text("d", "e"), Message.stop("stop")]
    assert [m.type for m in await passed(two, messages=2)] == ["text", "text", "stop"]
    seen = await passed(two, messages=1)
    assert [m.content for m in seen] == ["abc", ""]
    assert seen[-1].query["limit"] == {"messages": 1, "scope": "run"}


async def test_calls_do_not_count_as_messages_nor_messages_as_calls():
    mixed = [*text("a"), *batch(2)]
    assert [m.type for m in await passed(mixed, messages=1, tool_calls=2)] == ["text", "tool_call", "tool_call", "stop"]


async def test_prompts_and_results_do_not_count():
    around = [Message.user("?"), *text("a"), Message(role="tool", type="tool_result"), Message.stop("stop")]
    assert (await passed(around, messages=1))[-1].query["reason"] == "stop"


async def test_a_limit_of_none_passes_nothing_of_the_model():
    seen = await passed([Message.user("?"), *text("a"), Message.stop("stop")], messages=0)
    assert [m.role for m in seen] == ["user", "assistant"]
    assert seen[-1].query["reason"] == "rate_limit"


async def test_the_refused_call_is_neither_stored_nor_run_and_the_session_goes_on():
    model = ScriptedModel(calls(*(call("stock", f"c{n}", product="mug") for n in range(3))), answer("x"))
    stages = Pipeline(reply=[rate_limit(tool_calls=2), tool_dispatch([stock]), persist()])
    agent = Agent(model, tools=[stock], pipeline=stages)
    async with agent.session("s") as session:
        result = await session.ask("Go.")
        assert result.reason == "rate_limit"
        stored = await check_rows(agent.store)
        assert [m.type for m in stored] == ["text", "tool_call", "tool_call", "tool_result", "tool_result", "stop"]
        assert (await session.ask("Again.")).text == "x"


async def test_a_run_counts_across_its_turns():
    model = ScriptedModel(calls(call("stock", product="mug")))
    agent = Agent(model, pipeline=Pipeline(reply=[rate_limit(tool_calls=3), tool_dispatch([stock]), persist()]))
    async with agent.session("s") as session:
        result = await session.ask("Go.")
    assert [m.type for m in result].count("tool_call") == 3
    assert result.reason == "rate_limit"


async def test_a_session_counts_across_its_runs():
    store = MemoryStore()
    agent = Agent(
        ScriptedModel(answer("x")),
        store=store,
        pipeline=Pipeline(reply=[rate_limit(messages=2, scope="session"), tool_dispatch(), persist()]),
    )
    async with agent.session("s") as session:
        assert [(await session.ask("Go.")).reason for _ in range(3)] == ["stop", "stop", "rate_limit"]
    async with agent.session("other") as session:
        assert (await session.ask("Go.")).reason == "stop"


@pytest.mark.parametrize("wrong", [{"messages": -1}, {"tool_calls": -1}, {"scope": "day"}])
def test_a_limit_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match="rate_limit"):
        rate_limit(**wrong)
