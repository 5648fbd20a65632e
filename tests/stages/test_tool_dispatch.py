"""tool_dispatch: every call gets one result, whatever becomes of it."""

import threading
from dataclasses import replace

import anyio
import pytest

from streamagent import Agent, ToolContext, ToolError, tool, tool_dispatch
from streamagent.calls import ToolSpec
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.testing.stages import check_stage
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock, text

pytestmark = pytest.mark.anyio
OWN_STORES = True


async def results(*messages, tools=(stock,), reason="tool_calls"):
    """Dispatch one turn; return its results."""
    seen = await check_stage(tool_dispatch(tools), [*messages, Message.stop(reason)])
    answers = [m for m in seen if m.type == "tool_result"]
    asked = [m.id for m in messages if m.type == "tool_call"]
    assert [m.query["call"] for m in answers] == asked
    assert [m.role for m in answers] == ["tool"] * len(asked)
    return [(m.content, m.query["is_error"]) for m in answers]


async def test_a_result_names_its_call():
    seen = await check_stage(
        tool_dispatch([stock]), [asked := call("stock", product="mug"), Message.stop("tool_calls")]
    )
    assert seen[-1].query == {"tool": "stock", "id": "c1", "call": asked.id, "is_error": False}
    assert seen[-1].content == "15"


async def test_results_follow_the_stop_of_a_turn_that_goes_on_and_precede_a_final_one():
    asked = call("stock", product="mug")
    seen = await check_stage(tool_dispatch([stock]), [asked, Message.stop("tool_calls")])
    assert [m.type for m in seen] == ["tool_call", "stop", "tool_result"]
    seen = await check_stage(tool_dispatch([stock]), [asked, Message.stop("rate_limit")])
    assert [m.type for m in seen] == ["tool_call", "tool_result", "stop"]


async def test_a_stream_that_ends_without_a_stop_still_gives_the_results():
    seen = await check_stage(tool_dispatch([stock]), [call("stock", product="mug")])
    assert [m.type for m in seen] == ["tool_call", "tool_result"]


async def test_an_unknown_tool_is_an_error_that_lists_what_there_is():
    [(content, is_error)] = await results(call("Read File"), tools=[stock])
    assert is_error
    assert content == "Tool 'Read File' not found. Available tools: stock."
    [(content, _)] = await results(call("x"), tools=[])
    assert "Available tools: none" in content


@pytest.mark.parametrize(
    ("invalid", "says"), [("bad_json", "not valid JSON"), ("not_object", "JSON object"), ("truncated", "cut off")]
)
async def test_a_call_that_must_not_run_says_why(invalid, says):
    ran = []

    @tool
    def act() -> str:
        """Act."""
        ran.append(1)
        return ""

    query = {"tool": "act", "id": "c1", "args": None, "invalid": invalid}
    [(content, is_error)] = await results(Message(type="tool_call", content='{"a', query=query), tools=[act])
    assert is_error
    assert says in content
    assert not ran


async def test_unreadable_arguments_that_came_in_fragments_are_shown_again_up_to_a_limit():
    asked = {"tool": "stock", "id": "c1", "args": None, "invalid": "bad_json"}
    opening = Message(type="tool_call", query={"tool": "stock", "id": "c1"}, more=True)
    pieces = [replace(opening, query=None, content=piece) for piece in ('{"a', "x" * 3000)]
    seen = await check_stage(
        tool_dispatch([stock]),
        [opening, *pieces, Message(id=opening.id, type="tool_call", query=asked), Message.stop("tool_calls")],
    )
    assert seen[-1].content.endswith("Received: " + ('{"a' + "x" * 3000)[:2000])
    assert seen[-1].query["call"] == opening.id


async def test_braces_in_the_arguments_do_not_disturb_the_text():
    query = {"tool": "stock", "id": "c1", "args": None, "invalid": "bad_json"}
    [(content, _)] = await results(Message(type="tool_call", content='{"a": {0}{raw}', query=query))
    assert content.endswith('Received: {"a": {0}{raw}')


async def test_an_exception_is_an_error_result_and_the_siblings_finish():
    @tool
    async def fail() -> str:
        """Fail."""
        raise KeyError("gone")

    @tool
    async def refuse() -> str:
        """Refuse."""
        raise ToolError("Closed on Sundays.")

    answers = await results(
        call("fail", "c1"), call("refuse", "c2"), call("stock", "c3", product="x"), tools=[fail, refuse, stock]
    )
    assert answers[0][1]
    assert "KeyError" in answers[0][0]
    assert "Traceback" not in answers[0][0]
    assert answers[1] == ("Closed on Sundays.", True)
    assert answers[2] == ("15", False)


async def test_invalid_arguments_are_explained():
    [(content, is_error)] = await results(call("stock", count=1))
    assert is_error
    assert "product" in content


async def test_a_tool_that_hangs_is_stopped_at_its_timeout():
    cancelled = []

    @tool(timeout=0.02)
    async def hang(context: ToolContext) -> str:
        """Hang."""
        cancelled.append(context.cancelled)
        await anyio.sleep_forever()

    [(content, is_error)] = await results(call("hang"), tools=[hang])
    assert is_error
    assert content == "hang did not finish within 0.02 s and was stopped."
    assert cancelled[0].is_set()


async def test_a_thread_that_hangs_does_not_hold_the_run():
    release = threading.Event()

    @tool(timeout=0.02)
    def hang() -> str:
        """Hang in a thread."""
        release.wait(10)
        return "late"

    try:
        [(content, is_error)] = await results(call("hang"), tools=[hang])
    finally:
        release.set()
    assert is_error
    assert "0.02 s" in content


async def test_system_exit_in_a_foreign_tool_is_an_error_result():
    class Exits:
        spec = ToolSpec(name="exits", description="", parameters={"type": "object"})
        timeout = None

        async def run(self, arguments, context):
            raise SystemExit(3)

    [(content, is_error)] = await results(call("exits"), tools=[Exits()])
    assert is_error
    assert "SystemExit" in content


async def test_a_tool_knows_its_session_call_and_key():
    seen = []

    @tool
    async def who(context: ToolContext) -> str:
        """Say who."""
        seen.append(context)
        return ""

    agent = Agent(ScriptedModel(calls(call("who", "c7")), answer("x")), tools=[who], timeout=60)
    async with agent.session("s") as session:
        await session.ask("Go.")
    [context] = seen
    stored = await check_rows(agent.store)
    assert (context.session, context.call_id) == ("s", "c7")
    assert context.idempotency_key == f"s:{stored[1].id}"
    assert context.deadline < 1e9


async def test_calls_run_at_the_same_time():
    met = 0
    both = anyio.Event()

    @tool
    async def meet() -> str:
        """Wait for the other one."""
        nonlocal met
        met += 1
        if met == 2:
            both.set()
        await both.wait()
        return "met"

    assert await results(call("meet", "c1"), call("meet", "c2"), tools=[meet]) == [("met", False)] * 2


async def test_huge_output_reaches_the_model_capped_with_its_size():
    """F18."""

    @tool
    def dump() -> str:
        """Dump."""
        return "x" * 200_000

    agent = Agent(ScriptedModel(calls(call("dump")), answer("x")), tools=[dump])
    async with agent.session("s") as session:
        [result] = [m for m in await session.ask("Go.") if m.type == "tool_result"]
    assert len(result.content) < 60_000
    assert "200000" in result.content
    assert result.query["details"]["truncated"]["bytes"] == 200_000


async def test_a_result_that_json_cannot_hold_is_an_error_result():
    """F20."""

    @tool
    def odd() -> object:
        """Return something odd."""
        return {"x": float("nan")}

    [(content, is_error)] = await results(call("odd"), tools=[odd])
    assert is_error
    assert "nserialis" in content or "JSON" in content


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two tools are named 'stock'"):
        tool_dispatch([stock, tool(name="stock")(lambda: 1)])
    with pytest.raises(ConfigError, match="decorate"):
        tool_dispatch([len])


async def test_text_passes_while_a_tool_runs():
    release = anyio.Event()

    @tool
    async def wait() -> str:
        """Wait for the text."""
        await release.wait()
        return "done"

    async def watcher(stream):
        async for message in stream:
            if message.content == "later":
                release.set()
            yield message

    agent = Agent(ScriptedModel([call("wait"), *text("later"), Message.stop("tool_calls")], answer("x")), tools=[wait])
    agent = Agent(agent.model, tools=[wait], store=agent.store, pipeline=agent.pipeline + watcher)
    async with agent.session("s") as session:
        assert (await session.ask("Go.")).text == "x"
    await check_rows(agent.store)
