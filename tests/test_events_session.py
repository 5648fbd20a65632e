"""Lifecycle events of real runs, live and from the store."""

import anyio
import pytest

from streamagent import Agent, Message, Pipeline, ToolContext, persist, tool, tool_dispatch
from streamagent.calls import Decision, Output
from streamagent.events import events
from tests.lifecycle import check_order, encode, short
from tests.scripted import ScriptedModel, answer, call, calls, stock, text

pytestmark = pytest.mark.anyio
OWN_STORES = True

HELLO = ["agent_start", "turn_start", "message_start user Hi", "message_end user Hi", "message_start assistant"]


async def lived(reply):
    """The events of a run, in short and without updates, checked."""
    async with reply:
        told = [event async for event in events(reply)]
    check_order(told)
    return in_short(told)


def in_short(told):
    return [short(event) for event in told if not event.type.endswith("_update")]


def ran(*ends, said="c1()"):
    return [*HELLO, f"message_end assistant {said} (toolUse)", *ends]


def final(content, *end):
    return ["turn_start", "message_start assistant", f"message_end assistant {content} (stop)", "turn_end", *end]


def failed(tool_text):
    shown = [f"message_start toolResult {tool_text}", f"message_end toolResult {tool_text}"]
    return ["tool_execution_start c1", f"tool_execution_end c1 {tool_text} (error)", *shown, "turn_end c1"]


async def test_two_calls_and_the_answer():
    model = ScriptedModel(calls(call("stock", product="a"), call("stock", "c2", product="b")), answer("15"))
    async with Agent(model, tools=[stock]).session("s") as session:
        lines = await lived(session.ask("Hi"))
    assert lines == [
        *ran("tool_execution_start c1", "tool_execution_start c2", said="c1() c2()"),
        "tool_execution_end c1 15",
        "tool_execution_end c2 15",
        *["message_start toolResult 15", "message_end toolResult 15"] * 2,
        "turn_end c1 c2",
        *final("15", "agent_end 5"),
    ]


async def test_an_unknown_tool():
    async with Agent(ScriptedModel(calls(call("stok")), answer("?")), tools=[stock]).session("s") as session:
        lines = await lived(session.ask("Hi"))
    assert lines == [*ran(*failed("Tool 'stok' not found. Available tools: stock.")), *final("?", "agent_end 4")]


async def test_arguments_that_do_not_fit():
    async with Agent(ScriptedModel(calls(call("stock", product=[])), answer("?")), tools=[stock]).session() as session:
        lines = await lived(session.ask("Hi"))
    assert next(line for line in lines if line.startswith("tool_execution_end c1")).endswith("(error)")
    assert lines[-1] == "agent_end 4"


async def test_two_follow_ups_are_two_further_turns():
    agent = Agent(ScriptedModel(answer("15")))
    async with agent.session("s") as session:
        for waiting in ("Hi", "And 2?"):
            await agent.store.enqueue("s", Message.user(waiting))
        lines = await lived(session.ask("And 3?"))
    assert lines == [
        *HELLO,
        *final("15")[2:],
        *["turn_start", "message_start user And 2?", "message_end user And 2?", *final("15")[1:]],
        *["turn_start", "message_start user And 3?", "message_end user And 3?", *final("15")[1:]],
        "agent_end 6",
    ]


async def test_a_model_that_fails():
    failure = Message.stop("error", error={"kind": "overloaded", "message": "busy", "retryable": True})
    async with Agent(ScriptedModel([failure])).session("s") as session:
        lines = await lived(session.ask("Hi"))
    assert lines == [*HELLO, "message_end assistant (error)", "turn_end", "agent_end 2"]


async def test_an_abort_in_text():
    model = ScriptedModel(text("Fif", "teen")[:2])
    async with Agent(model).session("s") as session, anyio.create_task_group() as tasks:
        reply = session.ask("Hi")

        async def cancel():
            await model.hangs.wait()
            await reply.cancel()

        tasks.start_soon(cancel)
        lines = await lived(reply)
    assert lines == [*HELLO, "message_end assistant Fifteen (aborted)", "turn_end", "agent_end 2"]


async def test_an_abort_in_a_tool():
    started = anyio.Event()

    @tool
    async def slow() -> str:
        """Never return."""
        started.set()
        await anyio.sleep_forever()

    async with (
        Agent(ScriptedModel(calls(call("slow"))), tools=[slow]).session("s") as session,
        anyio.create_task_group() as tasks,
    ):
        reply = session.ask("Hi")

        async def cancel():
            await started.wait()
            await reply.cancel()

        tasks.start_soon(cancel)
        lines = await lived(reply)
    assert lines == [*ran(*failed("Cancelled before it finished.")), "agent_end 3 aborted"]


async def test_a_limit_of_turns():
    async with Agent(ScriptedModel(calls(call("stock", product="a"))), tools=[stock], max_turns=1).session() as session:
        lines = await lived(session.ask("Hi"))
    assert lines[-2:] == ["turn_end c1", "agent_end 3 turn_limit"]


# -- with what tool_dispatch announces


def announced(*turns, tools, **options):
    pipeline = Pipeline(reply=[tool_dispatch(tools, announce=True, **options), persist()])
    return Agent(ScriptedModel(*turns), tools=tools, pipeline=pipeline).session("s")


def tool_lines(lines):
    return [line.removeprefix("tool_execution_") for line in lines[6 : lines.index("turn_end c1 c2")]]


TWO = calls(call("stock", "c1", product="a"), call("stock", "c2", product="b"))
SHOWN = ["message_start toolResult 15", "message_end toolResult 15"]


async def test_calls_end_in_the_order_in_which_they_do():
    first_may_end = anyio.Event()

    @tool(name="stock")
    async def ordered(product: str, context: ToolContext) -> int:
        """Let the second call end first."""
        context.update(product)
        if product == "a":
            await first_may_end.wait()
            await anyio.wait_all_tasks_blocked()
        first_may_end.set()
        return 15

    async with announced(TWO, answer("15"), tools=[ordered]) as session:
        lines = await lived(session.ask("Hi"))
    assert tool_lines(lines) == ["start c1", "start c2", "end c2 15", "end c1 15", *SHOWN, *SHOWN]


async def test_a_blocked_call_beside_one_that_runs():
    def guard(asked):
        return Decision(block="") if asked.args["product"] == "a" else None

    async with announced(TWO, answer("15"), tools=[stock], before_tool_call=guard) as session:
        lines = await lived(session.ask("Hi"))
    blocked = "toolResult Tool execution was blocked"
    assert [line for line in tool_lines(lines) if line.startswith("end")] == [
        "end c1 Tool execution was blocked (error)",
        "end c2 15",
    ]
    assert tool_lines(lines)[-4:] == [f"message_start {blocked}", f"message_end {blocked}", *SHOWN]
    assert lines[-1] == "agent_end 5"


@pytest.mark.parametrize(("asking", "end"), [("ab", "agent_end 4 terminate"), ("a", "agent_end 5")])
async def test_the_run_ends_when_all_calls_ask_for_it(asking, end):
    def after(asked, output):
        return Output(output.content, terminate=asked.args["product"] in asking)

    async with announced(TWO, answer("15"), tools=[stock], after_tool_call=after) as session:
        lines = await lived(session.ask("Hi"))
    assert lines[-1] == end


async def test_a_tool_that_streams_is_shown_as_it_does():
    @tool(name="stock")
    async def counting(product: str):
        """Count."""
        for piece in ("1", "5"):
            yield piece

    async with announced(calls(call("stock", product="a")), answer("15"), tools=[counting]) as session:
        told = [event async for event in events(session.ask("Hi"))]
    check_order(told)
    assert [short(event) for event in told if event.type.startswith("tool")] == [
        "tool_execution_start c1",
        "tool_execution_update c1 1",
        "tool_execution_update c1 15",
        "tool_execution_end c1 15",
    ]


# -- from the store


async def test_the_stored_rows_tell_the_same_as_the_live_run():
    agent = Agent(ScriptedModel(calls(call("stock", product="a")), answer("15")), tools=[stock])
    async with agent.session("s") as session:
        live = await lived(session.ask("Hi"))
        stored = [message async for message in session.history()]
    assert in_short(encode(stored)) == live
