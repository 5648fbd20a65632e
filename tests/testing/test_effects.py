"""What tools did is written down by themselves: when they began, and how it ended."""

import pytest

from streamagent import Agent, MemoryStore, Pipeline, ToolError, persist, tool, tool_dispatch
from streamagent.testing import EffectLog, ScriptedModel, answer, call, calls, check_session

pytestmark = pytest.mark.anyio


@tool
async def stock() -> int:
    """Units in stock."""
    return 15


@tool
async def fail() -> int:
    """Fail."""
    raise ToolError("no")


@tool
async def lines(broken: bool = False) -> object:
    """Give lines."""

    async def pieces():
        yield "a"
        if broken:
            raise ToolError("torn")
        yield "b"

    return pieces()


async def run(log, *asked, **options):
    tools = [log.recorded(item, **options) for item in (stock, fail, lines)]
    model = ScriptedModel(calls(*asked), answer("Done."))
    store = MemoryStore()
    pipeline = Pipeline(reply=[tool_dispatch(tools), persist()])
    async with Agent(model, tools=tools, pipeline=pipeline, store=store).session("s") as session:
        await session.ask("Go.")
    return store


async def test_each_execution_is_written_down_with_its_end():
    log = EffectLog()
    asked = [call("stock", "c1"), call("fail", "c2"), call("lines", "c3"), call("lines", "c4", broken=True)]
    store = await run(log, *asked)
    ended = {(effect.tool, effect.outcome) for effect in log.of("s")}
    assert ended == {("stock", "returned"), ("fail", "raised"), ("lines", "returned"), ("lines", "raised")}
    assert log.streamed == {"lines"}
    assert log.of("another") == []
    rows = await check_session(store, effects=log.effects)
    assert {effect.call for effect in log.effects} == {row.id for row in rows if row.type == "tool_call"}


async def test_what_happens_after_a_processs_death_is_not():
    log = EffectLog()
    await run(log, call("stock"), call("lines", "c2"), living=lambda: False)
    assert log.effects == []


async def test_a_tool_in_front_of_another_says_what_that_one_says():
    recorded = EffectLog().recorded(stock)
    assert (recorded.spec, recorded.timeout, recorded.prepare) == (stock.spec, stock.timeout, stock.prepare)
    assert not hasattr(recorded, "nothing")
    copied = object.__new__(type(recorded))
    assert not hasattr(copied, "spec")
