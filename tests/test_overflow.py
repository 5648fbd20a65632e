"""F04: a context that was too long is shortened once, and the turn taken once more."""

import pytest

from streamagent import Agent, Hooks, Message, Pipeline, Runtime, persist, tool_dispatch
from streamagent.duties import mark
from streamagent.stages.compact import compact
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock, text

pytestmark = pytest.mark.anyio

ERROR = {"kind": "context_overflow", "message": "the prompt is too long", "retryable": False}
OVERFLOW = [Message.stop("error", error=ERROR)]


@pytest.fixture
def store(either_store):
    return either_store


def agent_of(*turns, context=None, **options):
    pipeline = Pipeline(context=context or [compact(tokens=1000)], reply=[tool_dispatch([stock]), persist()])
    return Agent(ScriptedModel(*turns), tools=[stock], pipeline=pipeline, **options)


async def asked(agent, store, *prompts):
    """Ask; return the last result."""
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        for prompt in prompts:
            result = await session.ask(prompt)
        await check_rows(store)
    return result


def kinds(messages):
    return [(m.query.get("error") or m.query).get("kind") or m.query["reason"] for m in messages if m.type == "stop"]


async def test_the_turn_is_taken_once_more_with_half_of_the_context(store):
    agent = agent_of(answer("one"), answer("two"), OVERFLOW, answer("short"))
    result = await asked(agent, store, *("x" * 400 for _ in range(3)))
    assert kinds(result) == ["context_overflow", "stop"]
    assert (result.text, result.reason) == ("short", "stop")
    prompts = [len([m for m in context if m.role == "user"]) for context in agent.model.contexts]
    assert prompts == [1, 2, 3, 1]


async def test_the_second_overflow_is_final(store):
    agent = agent_of(answer("one"), OVERFLOW, OVERFLOW, answer("never"))
    result = await asked(agent, store, "1", "2")
    assert kinds(result) == ["context_overflow"] * 2
    assert result.error["kind"] == "context_overflow"
    assert len(agent.model.contexts) == 3


async def test_each_prompt_has_its_own_retry(store):
    agent = agent_of(OVERFLOW, answer("one"), OVERFLOW, answer("two"))
    assert (await asked(agent, store, "1", "2")).text == "two"


async def test_one_prompt_has_one_retry_in_all_its_turns(store):
    agent = agent_of(OVERFLOW, calls(call("stock", product="mug")), OVERFLOW, answer("never"))
    assert kinds(await asked(agent, store, "1")) == ["context_overflow", "tool_calls", "context_overflow"]


async def test_a_follow_up_has_a_retry_of_its_own(store):
    agent = agent_of(OVERFLOW, answer("one"), OVERFLOW, answer("two"))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        await session.follow_up("And?")
        assert kinds(await session.ask("1")) == ["context_overflow", "stop"] * 2


async def test_the_turn_is_counted_once():
    ends = []
    hooks = Hooks(should_stop_after_turn=lambda end: ends.append(end.number))
    agent = agent_of(OVERFLOW, calls(call("stock", product="mug")), answer("x"), max_turns=2, hooks=hooks)
    async with agent.session("s") as session:
        assert kinds(await session.ask("1")) == ["context_overflow", "tool_calls", "stop"]
    assert ends == [1, 1, 2]


@pytest.mark.parametrize(
    "pipeline",
    [
        Pipeline(reply=[persist()]),
        Pipeline(context=[compact(tokens=1000)]),
    ],
    ids=["nothing shrinks", "nothing is stored"],
)
async def test_without_a_stage_that_could_change_something_nothing_is_tried(pipeline):
    agent = Agent(ScriptedModel(OVERFLOW, answer("never")), pipeline=pipeline)
    async with agent.session("s") as session:
        assert kinds(await session.ask("1"))[:1] == ["context_overflow"]
    assert len(agent.model.contexts) == 1


async def test_nothing_is_tried_when_something_was_said():
    agent = agent_of([*text("half"), *OVERFLOW], answer("never"))
    async with agent.session("s") as session:
        await session.ask("1")
    assert len(agent.model.contexts) == 1


async def test_another_failure_is_not_tried_again():
    agent = agent_of([Message.stop("error", error={**ERROR, "kind": "bad_request"})], answer("never"))
    async with agent.session("s") as session:
        await session.ask("1")
    assert len(agent.model.contexts) == 1


async def test_a_stage_of_ones_own_that_shrinks_says_so():
    async def last_only(stream):
        last = None
        async for message in stream:
            last = message if message.role == "user" else last
        yield last

    agent = agent_of(OVERFLOW, answer("x"), context=[mark(last_only, "shrink")])
    async with agent.session("s") as session:
        assert (await session.ask("1")).text == "x"
