"""aiostream's operators as stages; sessions merged, timed out and zipped with aiostream."""

import subprocess
import sys

import anyio
import pytest
from aiostream import pipe, stream

from streamagent import Agent, Pipeline, operators
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.pipeline import open_pipeline
from streamagent.testing.stages import ENDINGS, Probe, check_stage
from tests.scripted import ScriptedModel, answer, check_rows, text

pytestmark = pytest.mark.anyio

THREE = [Message(content=content) for content in "abc"]


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})])
def anyio_backend(request):
    return request.param  # aiostream is asyncio's


def is_text(message):
    return message.type == "text"


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "stage", [pipe.filter(is_text), operators.pipe("filter", is_text), operators.pipe("timeout", 5)]
)
async def test_an_operator_stands_as_a_stage_and_is_left_clean(stage, ending):
    for at in range(1, 4):
        seen = await check_stage(stage, THREE, ending, at=at)
        assert [m.content for m in seen] == list("abc")[: len(seen)]


async def test_operators_and_our_stages_mix_in_one_chain():
    async def plain(source):
        async for message in source:
            yield message

    async with open_pipeline(Probe(THREE).stream(), pipe.skip(1), plain, operators.pipe("take", 1)) as tail:
        assert [m.content async for m in tail] == ["b"]


async def test_an_agent_runs_with_an_operator_in_its_pipeline():
    agent = Agent(ScriptedModel(answer("Fif", "teen.")))
    agent = Agent(agent.model, store=agent.store, pipeline=agent.pipeline + operators.pipe("filter", is_text))
    async with agent.session("s") as session:
        assert (await session.ask("How many?")).text == "Fifteen."
    await check_rows(agent.store)


async def test_two_sessions_merge_into_one_stream():
    agent = Agent(ScriptedModel(answer("x")))
    async with agent.session("a") as one, agent.session("b") as two:
        merged = stream.merge(operators.stream(one.ask("1?")), operators.stream(two.ask("2?")))
        async with merged.stream() as streamer:
            seen = [message async for message in streamer]
    assert sorted(m.content for m in seen if m.role == "user") == ["1?", "2?"]
    assert [m.type for m in seen].count("stop") == 2


async def test_a_reply_that_falls_silent_is_timed_out_and_settled():
    agent = Agent(ScriptedModel(text("half")[:1]))
    async with agent.session("s") as session:
        timed = operators.stream(session.ask("Go.")) | pipe.timeout(0.05)
        with pytest.raises(TimeoutError):
            async with timed.stream() as streamer:
                async for _ in streamer:
                    pass
    assert (await check_rows(agent.store))[-1].query["reason"] == "aborted"


async def test_a_session_is_zipped_with_a_clock():
    agent = Agent(ScriptedModel(answer("a", "b")))
    async with agent.session("s") as session:
        await session.send("Go.")
        await session.send_eof()
        numbered = stream.zip(operators.stream(session), stream.count())
        async with numbered.stream() as streamer:
            seen = [(number, message.content) async for message, number in streamer]
    assert seen[:3] == [(0, "Go."), (1, "a"), (2, "b")]


def test_an_operator_prints_as_it_was_made():
    pipeline = Pipeline(reply=[operators.pipe("filter", is_text), operators.pipe("timeout", timeout=5)])
    assert repr(pipeline) == "Pipeline(reply=[filter(is_text), timeout(timeout=5)])"


@pytest.mark.parametrize("name", ["nope", "__name__"])
def test_an_unknown_operator_is_named(name):
    with pytest.raises(ConfigError, match=name):
        operators.pipe(name)


def test_importing_the_module_does_not_import_aiostream():
    code = "import sys, streamagent.operators; sys.exit('aiostream' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_cutting_a_merged_stream_settles_every_session():
    agent = Agent(ScriptedModel(text("half")[:1]))
    async with agent.session("a") as one, agent.session("b") as two:
        merged = stream.merge(operators.stream(one.ask("1?")), operators.stream(two.ask("2?")))
        async with merged.stream() as streamer:
            heard = 0
            with anyio.CancelScope() as scope:
                async for message in streamer:
                    heard += message.content == "half"
                    if heard == 2:
                        scope.cancel()
    for name in "ab":
        assert (await check_rows(agent.store, name))[-1].query["reason"] == "aborted"
