"""Skills: the model is told what there is, and reads what it needs."""

import pytest

from streamagent import Agent
from streamagent.errors import ConfigError
from streamagent.tools.skill import Skill, skill_tool, with_skills
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock

REFUND = Skill("refund", "how to give money back", "Ask for the order's number.\nNever give back more than it cost.")
LONG = Skill("long", "very long", "word " * 12_000)


def agent(*turns, **options):
    return Agent(ScriptedModel(*turns), skills=[REFUND, LONG], **options)


async def asked(agent_):
    async with agent_.session("s") as session:
        await session.ask("Go.")
    [result] = [m for m in await check_rows(agent_.store) if m.type == "tool_result"]
    return result


@pytest.mark.anyio
async def test_the_model_sees_names_and_descriptions_and_reads_the_text_by_a_tool():
    agent_ = agent(calls(call("skill", name="refund")), answer("Done."), system="You sell mugs.", tools=[stock])
    result = await asked(agent_)
    system = agent_.model.contexts[0][0].content
    assert system.startswith("You sell mugs.\n\nYou have skills")
    assert system.endswith("\n- refund: how to give money back\n- long: very long")
    assert REFUND.text not in system
    assert [spec.name for spec in agent_.model.tools[0]] == ["stock", "skill"]
    assert (result.content, result.query["is_error"]) == (REFUND.text, False)


@pytest.mark.anyio
async def test_a_long_skill_is_not_cut():
    assert (await asked(agent(calls(call("skill", name="long")), answer("x")))).content == LONG.text


@pytest.mark.anyio
async def test_an_unknown_skill_is_an_error_that_names_those_there_are():
    result = await asked(agent(calls(call("skill", name="rebate")), answer("x")))
    assert (result.content, result.query["is_error"]) == ("There is no skill 'rebate'. Known: refund, long.", True)


def test_without_skills_nothing_is_said_and_there_is_no_tool():
    assert with_skills("You sell mugs.", []) == "You sell mugs."
    assert Agent("mock", skills=[]).tools == ()
    assert with_skills(None, [REFUND]).startswith("You have skills")


@pytest.mark.parametrize(
    ("name", "description"), [("", "d"), (" ", "d"), ("n", ""), ("n\nm", "d"), ("n", "d\ne"), (3, "d"), ("n", None)]
)
def test_a_name_and_a_description_are_a_line_each(name, description):
    with pytest.raises(ConfigError, match="of a skill is one line of text"):
        Skill(name, description, "text")
    with pytest.raises(ConfigError, match="text of a skill"):
        Skill("n", "d", None)


def test_two_skills_of_one_name_and_what_is_no_skill_are_refused():
    with pytest.raises(ConfigError, match="two skills are named 'refund'"):
        Agent("mock", skills=[REFUND, REFUND])
    with pytest.raises(ConfigError, match="not 'refund'"):
        skill_tool(["refund"])
    with pytest.raises(ConfigError, match="two tools are named 'skill'"):
        Agent("mock", skills=[REFUND], tools=[skill_tool([LONG])])
