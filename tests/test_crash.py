"""kill -9 in the middle of an answer, then another process: nothing is lost, everything is closed."""

import subprocess
import sys

import anyio
import pytest

from streamagent import Agent, Runtime, SqliteStore, tool
from streamagent.message import Message
from tests.scripted import ScriptedModel, answer, call, check_rows

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})])
def anyio_backend(request):
    return request.param


def kill_when(path, scene, line, times=1):
    """Let a child answer until it has printed a line so often; kill it; return all that it printed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.crashing", str(path), scene], stdout=subprocess.PIPE, text=True
    )
    printed = []
    with child:
        while printed.count(line) < times:
            printed.append(child.stdout.readline().rstrip("\n"))
        child.kill()
    return printed


async def next_prompt(path):
    """Continue in another process; return the session's rows and what the model was given."""
    agent = Agent(ScriptedModel(answer("Here again.")), store=SqliteStore(path))
    async with agent.session("s") as session:
        assert (await session.ask("And now?")).text == "Here again."
    async with agent.store:
        return await check_rows(agent.store), agent.model.contexts[0]


async def test_a_text_is_marked_and_kept_as_it_was_shown(tmp_path):
    printed = await anyio.to_thread.run_sync(kill_when, tmp_path / "s.db", "text", "text answer ")
    assert printed == ["text Go.", "text half ", "text an ", "text answer "]
    stored, context = await next_prompt(tmp_path / "s.db")
    assert [(m.type, m.content) for m in stored[:3]] == [("text", "Go."), ("text", "half an answer "), ("stop", "")]
    assert stored[1].query == {"cut": "crashed"}
    assert stored[2].query["error"]["kind"] == "interrupted"
    assert [m.content for m in context if m.type == "text"] == ["Go.", "half an answer ", "And now?"]


async def test_a_call_of_an_answer_that_was_not_complete_was_not_executed(tmp_path):
    await anyio.to_thread.run_sync(kill_when, tmp_path / "s.db", "arguments", "text so ")
    stored, _ = await next_prompt(tmp_path / "s.db")
    [result] = [m for m in stored if m.type == "tool_result"]
    assert result.query["is_error"]
    assert result.content == "Not executed: the run broke off before this call began."


async def test_calls_that_were_running_are_closed_in_their_order(tmp_path):
    await anyio.to_thread.run_sync(kill_when, tmp_path / "s.db", "tool", "running", 2)
    stored, context = await next_prompt(tmp_path / "s.db")
    results = [m for m in stored if m.type == "tool_result"]
    assert [m.query["id"] for m in results] == ["c1", "c2"]
    assert all("outcome is unknown" in m.content for m in results)
    kinds = [m.type for m in context if m.type != "stop"]
    assert kinds == ["text", "tool_call", "tool_call", "tool_result", "tool_result", "text"]


async def test_a_sub_agent_that_was_at_work_is_settled_with_the_run_that_asked_it(tmp_path):
    await anyio.to_thread.run_sync(kill_when, tmp_path / "s.db", "child", "text answer ")
    stored, _ = await next_prompt(tmp_path / "s.db")
    [result] = [m for m in stored if m.type == "tool_result"]
    assert "outcome is unknown" in result.content
    async with SqliteStore(tmp_path / "s.db") as store:
        inner = await check_rows(store, f"s:{result.query['call']}:1")
    assert [(m.type, m.content) for m in inner] == [("text", "How deep?"), ("text", "half an answer "), ("stop", "")]
    assert inner[1].query == {"cut": "crashed"}


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_five_hundred_sessions_with_tools_in_one_file(tmp_path):
    """Done when: gapless sequences, every call paired."""

    class Shop:
        name = "shop"

        async def stream(self, context, **_):
            last = [m async for m in context][-1]
            if last.role == "user":
                yield call("stock", "a", product=last.content)
                yield call("stock", "b", product="other")
                yield Message.stop("tool_calls")
            else:
                for message in answer("units: ", last.content):
                    yield message

    @tool
    async def stock(product: str) -> str:
        """Units in stock."""
        return product

    agent = Agent(Shop(), tools=[stock])
    store = SqliteStore(tmp_path / "many.db", synchronous="normal")
    async with Runtime(store=store) as runtime:
        async with anyio.create_task_group() as tasks:

            async def one(number):
                async with agent.session(f"s{number}", runtime=runtime) as session:
                    assert (await session.ask(f"p{number}")).text == "units: other"

            for number in range(500):
                tasks.start_soon(one, number)
        for number in range(500):
            stored = await check_rows(store, f"s{number}")
            assert [m.content for m in stored if m.type == "tool_result"] == [f"p{number}", "other"]
        assert len([info async for info in store.sessions()]) == 500
