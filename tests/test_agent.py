"""Agents with other options, and sessions that a program sets up (CAP's `start`)."""

import pytest

from streamagent import Agent, Hooks, MemoryStore, ModelSettings, Pipeline, Runtime, persist, tool_dispatch
from streamagent.errors import ConfigError
from streamagent.tools.skill import Skill
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock

OWN_STORES = True
SKILL = Skill("refund", "how to give money back", "Ask.")


@pytest.mark.anyio
async def test_a_session_may_have_a_system_prompt_tools_a_model_skills_and_settings_of_its_own():
    agent, other, seen = Agent("mock", system="You sell mugs."), ScriptedModel(answer("x")), []

    async def stream(context, *, tools, settings, deadline):
        seen.append(([message.content async for message in context], [spec.name for spec in tools], settings))
        for message in calls(call("stock", product="mug")) if len(seen) == 1 else answer("Fifteen."):
            yield message

    other.stream = stream
    changes = {"system": "You count.", "tools": [stock], "skills": [SKILL], "settings": ModelSettings(seed=1)}
    async with agent.session("s", model=other, **changes) as session:
        assert (await session.ask("How many?")).text == "Fifteen."
    texts, names, settings = seen[0]
    assert (texts[0][:10], names, settings.seed) == ("You count.", ["stock", "skill"], 1)
    assert [m.content for m in await check_rows(agent.store) if m.type == "tool_result"] == ["15"]
    assert (agent.plan.system, agent.tools) == ("You sell mugs.", ())


@pytest.mark.anyio
async def test_the_next_block_of_the_session_has_the_agents_own_options_again():
    model = ScriptedModel(answer("x"))
    agent = Agent(model, system="One.")
    async with Runtime(store=MemoryStore()) as runtime:
        for changes in ({"system": "Two."}, {"system": ""}, {}):
            async with agent.session("s", runtime=runtime, **changes) as session:
                await session.ask("?")
    assert [context[0].content for context in model.contexts] == ["Two.", "?", "One."]


def test_a_copy_has_all_options_that_were_not_changed():
    hooks = Hooks(convert_to_llm=lambda messages: messages)
    agent = Agent("mock", tools=[stock], hooks=hooks, max_turns=3, timeout=5, name="a", description="b", max_depth=1)
    copy = agent.with_options(system="x", max_children=2, model=None)
    assert (copy.store, copy.model, copy.tools, copy.name, copy.description) == (
        agent.store,
        agent.model,
        agent.tools,
        "a",
        "b",
    )
    assert (copy.plan.max_turns, copy.plan.timeout, copy.plan.max_depth, copy.plan.max_children) == (3, 5, 1, 2)
    assert (copy.plan.hooks, copy.plan.system, len(copy.pipeline.context)) == (hooks, "x", 1)


@pytest.mark.parametrize("changes", [{"tools": [stock]}, {"skills": [SKILL]}])
def test_tools_of_a_pipeline_of_ones_own_are_changed_with_it(changes):
    pipeline = Pipeline(reply=[tool_dispatch([]), persist()])
    agent = Agent("mock", pipeline=pipeline)
    with pytest.raises(ConfigError, match="has a pipeline of its own"):
        agent.with_options(**changes)
    assert len(agent.with_options(pipeline=pipeline, **changes).tools) == 1
    assert agent.with_options(system="x").pipeline.reply == pipeline.reply


@pytest.mark.parametrize(
    "changes",
    [{"max_turns": 0}, {"max_turns": "3"}, {"timeout": 0}, {"timeout": "3"}, {"skills": 5}, {"description": 5}],
)
def test_an_option_that_cannot_be_is_refused(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        Agent("mock").with_options(**changes)


@pytest.mark.parametrize("hook", ["before_tool_call", "after_tool_call"])
def test_tool_hooks_beside_a_pipeline_of_ones_own_are_refused(hook):
    hooks = Hooks(**{hook: lambda *_: None})
    with pytest.raises(ConfigError, match=rf"tool_dispatch\(…, {hook}=…\)"):
        Agent("mock", pipeline=Pipeline(), hooks=hooks)
    assert Agent("mock", pipeline=Pipeline(), hooks=Hooks(get_api_key=lambda _: None)).plan.hooks.get_api_key
    assert Agent("mock", hooks=hooks).plan.hooks is hooks


@pytest.mark.anyio
async def test_an_agent_announces_when_calls_start_and_end():
    async def kinds(agent):
        async with agent.session() as session:
            return [(m.query or {}).get("state") for m in await session.ask("Go.") if m.type == "progress"]

    for announce, said in ((True, ["start", "end"]), (False, [])):
        model = ScriptedModel(calls(call("stock", product="mug")), answer("x"))
        assert await kinds(Agent(model, tools=[stock], announce=announce)) == said
    with pytest.raises(ConfigError, match=r"tool_dispatch\(…, announce=True\)"):
        Agent("mock", pipeline=Pipeline(), announce=True)
