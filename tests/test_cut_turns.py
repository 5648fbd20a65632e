"""What is stored of a turn that was cut: what it took (T124), and results without what a stage would have hidden."""

import anyio
import pytest

from streamagent import (
    Agent,
    MemoryStore,
    Message,
    Pipeline,
    Runtime,
    persist,
    rate_limit,
    tool,
    tool_dispatch,
    transform,
)
from streamagent.calls import Output
from streamagent.settle import WITHHELD
from streamagent.stages.budget import budget
from streamagent.stages.redact import redact
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, text

pytestmark = pytest.mark.anyio

HALF = text("x" * 40)[:1]


@pytest.fixture
def store(either_store):
    return either_store


def stops(rows):
    return [m.query for m in rows if m.type == "stop"]


async def cut(agent, store, end="cancel"):
    """Ask, cut when half of the answer is there; return the rows."""
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        async for message in session.ask("y" * 36):
            if message.content == HALF[0].content:
                await (session.cancel() if end == "cancel" else session.aclose())
        return await check_rows(store)


@pytest.mark.parametrize("end", ["cancel", "leave"])
async def test_a_cut_turn_says_what_it_took_and_that_this_is_an_estimate(store, end):
    agent = Agent(ScriptedModel(HALF), system="z" * 16)
    [stop] = stops(await cut(agent, store, end))
    usage = {"prompt_tokens": 13, "completion_tokens": 10, "total_tokens": 23, "estimated": 1}
    assert stop == {"reason": "aborted", "model": "scripted", "usage": usage}
    async with store:
        counted = await store.usage("s")
    assert (counted.turns, counted.tokens, counted.uncounted) == (1, 23, 0)


async def test_what_the_context_stages_left_out_is_not_counted():
    agent = Agent(ScriptedModel(HALF), pipeline=Pipeline(context=[transform(lambda rows: [])], reply=[persist()]))
    [stop] = stops(await cut(agent, MemoryStore()))
    assert stop["usage"]["prompt_tokens"] == 0


async def test_a_budget_counts_cut_turns(store):
    stages = [budget(tokens=30, scope="session"), tool_dispatch(), persist()]
    agent = Agent(ScriptedModel(HALF), pipeline=Pipeline(reply=stages))
    await cut(agent, store)
    [*_, stop] = stops(await cut(agent, store))
    assert stop["reason"] == "aborted"
    [*_, stop] = stops(await cut(agent, store))
    assert stop["reason"] == "budget"
    assert stop["limit"]["tokens"] == 30


async def test_a_run_that_is_cut_in_a_tool_took_no_more():
    started = anyio.Event()

    @tool
    async def hang() -> str:
        """Never return."""
        started.set()
        await anyio.sleep_forever()

    agent = Agent(ScriptedModel(calls(call("hang"))), tools=[hang])
    async with agent.session("s") as session, anyio.create_task_group() as tasks:

        async def cancel():
            await started.wait()
            await session.cancel()

        tasks.start_soon(cancel)
        result = await session.ask("Go.")
    assert result.stop.query == {"reason": "aborted", "usage": {"total_tokens": 0}}


async def test_an_interrupted_turn_is_counted_and_the_next_begins_at_nothing(store):
    agent = Agent(ScriptedModel(HALF, HALF))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        async for message in session.ask("y" * 40):
            if message.content == HALF[0].content:
                if len(agent.model.contexts) == 1:
                    await session.steer("y" * 40, interrupt=True)
                else:
                    await session.cancel()
        first, second = stops(await check_rows(store))
    assert (first["cut"], first["usage"]["total_tokens"]) == ("interrupted", 20)
    assert second["usage"] == {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40, "estimated": 1}


async def test_a_stage_that_ends_an_answer_says_what_it_took(store):
    agent = Agent(ScriptedModel([*text("x" * 40), *HALF]), pipeline=Pipeline(reply=[rate_limit(messages=1), persist()]))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        result = await session.ask("y" * 40)
        assert result.reason == "rate_limit"
        assert result.usage == {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30, "estimated": 1}
        assert (await store.usage("s")).tokens == 30


async def test_a_limit_between_turns_is_no_turn(store):
    agent = Agent(ScriptedModel(answer("x")), pipeline=Pipeline(reply=[budget(turns=0), persist()]))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        result = await session.ask("Go.")
        assert (result.reason, result.usage) == ("budget", None)


async def test_an_answer_that_breaks_off_is_estimated_and_a_count_of_the_provider_holds():
    error = {"kind": "truncated", "message": "!", "retryable": True}
    counted = [*text("x" * 40), Message.stop("error", error=error, usage={"total_tokens": 7})]
    silent = [Message.stop("error", error=error)]
    unknown = [*text("x" * 40), Message.stop("stop")]
    script = [[*text("x" * 40), Message.stop("error", error=error)], counted, silent, unknown]
    agent = Agent(ScriptedModel(*script))
    async with agent.session("s") as session:
        usages = [(await session.ask("y" * 40)).usage for _ in script]
    assert [usage and usage["total_tokens"] for usage in usages] == [20, 7, None, None]


async def test_a_model_that_ends_without_a_stop_is_estimated_too():
    class Silent:
        name = "silent"

        async def stream(self, context, **_):
            async for _ in context:
                pass
            yield Message(content="x" * 40)

    async with Agent(Silent()).session("s") as session:
        result = await session.ask("y" * 40)
    assert (result.error["kind"], result.usage["total_tokens"]) == ("truncated", 20)


# --- results of a run that was cut pass the stages that stand between the tools and the store

CANARY = "sk-canary-canary-canary-1234"


async def cut_with_a_finished_call(store, *stages, output=f"the key is {CANARY}"):
    """Let one call finish while the one before it hangs, so that its result is not passed on; cut; return the rows."""
    started, finished = anyio.Event(), anyio.Event()

    @tool
    async def hang() -> str:
        """Never return."""
        started.set()
        await anyio.sleep_forever()

    @tool
    async def leak():
        """Tell a secret."""
        finished.set()
        return output

    tools = [hang, leak]
    pipeline = Pipeline(reply=[tool_dispatch(tools), *stages, persist()])
    agent = Agent(ScriptedModel(calls(call("hang", "c1"), call("leak", "c2"))), tools=tools, pipeline=pipeline)
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        async with anyio.create_task_group() as tasks:

            async def cancel():
                await started.wait()
                await finished.wait()
                await anyio.wait_all_tasks_blocked()
                await session.cancel()

            tasks.start_soon(cancel)
            shown = await session.ask("Go.")
        rows = await check_rows(store)
    assert [m.content for m in shown if m.type == "tool_result"] == [m.content for m in rows if m.type == "tool_result"]
    return [m for m in rows if m.type == "tool_result"][1]


async def test_a_secret_of_a_finished_call_is_not_stored_when_the_run_is_cut(store):
    result = await cut_with_a_finished_call(store, redact(), output=Output(f"key {CANARY}", details={"raw": CANARY}))
    assert result.content == "key [redacted]"
    assert result.query["details"] == {"raw": "[redacted]"}
    assert (result.query["is_error"], result.query.get("cut")) == (False, None)


async def test_without_stages_between_the_result_is_stored_as_it_is(store):
    assert (await cut_with_a_finished_call(store)).content == f"the key is {CANARY}"


async def test_what_a_stage_drops_is_not_stored(store):
    async def drop(stream):
        async for message in stream:
            if message.type != "tool_result":
                yield message

    result = await cut_with_a_finished_call(store, drop)
    assert (result.content, result.query["is_error"], "cut" in result.query) == (WITHHELD, True, False)


async def test_a_stage_that_fails_lets_nothing_through(store, caplog):
    async def fail(stream, run):
        async for message in stream:
            if message.type == "tool_result":
                raise ValueError(run.session)
            yield message

    result = await cut_with_a_finished_call(store, fail)
    assert result.content == WITHHELD
    assert "results of a run that was cut are not stored" in caplog.text


async def test_a_stage_that_does_not_end_lets_nothing_through(monkeypatch):
    monkeypatch.setattr("streamagent.settle.SCRUB_TIMEOUT", 0.01)

    async def stall(stream):
        async for message in stream:
            if message.type == "tool_result":
                await anyio.sleep_forever()
            yield message

    assert (await cut_with_a_finished_call(MemoryStore(), stall)).content == WITHHELD


def test_the_stages_that_a_result_passes_are_those_between_the_tools_and_the_store():
    hide = redact()
    dispatch, store = tool_dispatch(), persist()
    assert Pipeline(reply=[hide, dispatch, hide, store, hide]).inner == (hide,)
    assert Pipeline(reply=[dispatch, store]).inner == ()
    assert Pipeline(reply=[hide, store]).inner == (hide,)
    assert Pipeline(reply=[dispatch, hide]).inner == (hide,)
