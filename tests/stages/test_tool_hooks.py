"""tool_dispatch: modes, hooks, streaming, progress, terminate."""

import threading

import anyio
import pytest

from streamagent import Agent, MemoryStore, Pipeline, ToolContext, persist, tool, tool_dispatch
from streamagent.calls import Decision, Output
from streamagent.errors import ConfigError, ToolError
from streamagent.message import Message, fold
from streamagent.testing.stages import ENDINGS, check_stage
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock

pytestmark = pytest.mark.anyio
OWN_STORES = True


async def dispatch(*asked, tools=(stock,), **options):
    """Dispatch one turn; return all that is yielded after its stop."""
    seen = await check_stage(tool_dispatch(tools, **options), [*asked, Message.stop("tool_calls")])
    return seen[len(asked) + 1 :]


def said(messages):
    return [(m.content, m.query["is_error"]) for m in fold(messages) if m.type == "tool_result"]


def ask_stock(call_id="c1", product="mug"):
    return call("stock", call_id, product=product)


async def test_a_sequential_batch_runs_one_by_one_in_call_order():
    log = []

    @tool
    async def step(name: str) -> str:
        """Take a step."""
        log.append(f"{name} in")
        await anyio.sleep(0)
        log.append(f"{name} out")
        return name

    asked = [call("step", f"c{n}", name=n) for n in "ab"]
    assert said(await dispatch(*asked, tools=[step], mode="sequential")) == [("a", False), ("b", False)]
    assert log == ["a in", "a out", "b in", "b out"]


@pytest.mark.parametrize(
    ("names", "overlap"), [(("calm", "calm"), True), (("calm", "alone"), False), (("alone", "calm"), False)]
)
async def test_one_sequential_tool_makes_its_whole_batch_sequential(names, overlap):
    running, together = set(), []

    def make(name, mode):
        async def work() -> str:
            running.add(name_of := object())
            together.append(len(running))
            await anyio.wait_all_tasks_blocked()
            running.discard(name_of)
            return name

        return tool(name=name, execution_mode=mode)(work)

    tools = [make("calm", "parallel"), make("alone", "sequential")]
    await dispatch(*(call(name, f"c{n}") for n, name in enumerate(names)), tools=tools)
    assert (max(together) == 2) == overlap


async def test_calls_are_prepared_in_order_and_run_together():
    prepared = []
    both = anyio.Event()

    async def before(asked):
        prepared.append(asked.args["product"])
        await anyio.sleep(0)

    @tool(name="stock")
    async def meet(product: str) -> str:
        """Wait for both."""
        if len(prepared) == 2:
            both.set()
        await both.wait()
        return product

    got = await dispatch(ask_stock("c1", "a"), ask_stock("c2", "b"), tools=[meet], before_tool_call=before)
    assert prepared == ["a", "b"]
    assert said(got) == [("a", False), ("b", False)]


async def test_a_blocked_call_does_not_run_and_says_why():
    asked = []

    def before(tool_call):
        asked.append((tool_call.tool, dict(tool_call.args), tool_call.context.call_id))
        return Decision(block="Not today.")

    after = []
    got = await dispatch(ask_stock(), before_tool_call=before, after_tool_call=lambda *a: after.append(a))
    assert said(got) == [("Not today.", True)]
    assert asked == [("stock", {"product": "mug"}, "c1")]
    assert after == []
    assert said(await dispatch(ask_stock(), before_tool_call=lambda _: Decision(block=""))) == [
        ("Tool execution was blocked", True)
    ]


async def test_the_hook_sees_coerced_arguments_and_may_replace_them():
    @tool
    def double(number: int) -> int:
        """Double."""
        return 2 * number

    seen = []

    def before(asked):
        seen.append(asked.args)
        return Decision(args={"number": "21"})

    assert said(await dispatch(call("double", number="4"), tools=[double], before_tool_call=before)) == [("42", False)]
    assert seen == [{"number": 4}]


async def test_arguments_that_a_hook_breaks_are_refused():
    got = await dispatch(ask_stock(), before_tool_call=lambda _: Decision(args={"wrong": 1}))
    [(content, is_error)] = said(got)
    assert is_error
    assert "wrong" in content


@pytest.mark.parametrize("hook", ["before_tool_call", "after_tool_call"])
async def test_what_a_hook_raises_is_the_error_result(hook):
    def broken(*_):
        raise ToolError("the hook is broken")

    assert said(await dispatch(ask_stock(), **{hook: broken})) == [("the hook is broken", True)]


async def test_the_hook_afterwards_may_replace_the_output():
    async def after(asked, output):
        return Output(f"{asked.tool}: {output.content}", is_error=True, details={"seen": True})

    [result] = await dispatch(ask_stock(), after_tool_call=after)
    assert (result.content, result.query["is_error"], result.query["details"]) == ("stock: 15", True, {"seen": True})
    assert said(await dispatch(ask_stock(), after_tool_call=lambda *_: None)) == [("15", False)]


async def test_hooks_are_not_asked_about_unknown_and_invalid_calls():
    asked = []
    hooks = {"before_tool_call": asked.append, "after_tool_call": lambda *a: asked.append(a)}
    await dispatch(call("nope"), call("stock", "c2", wrong=1), **hooks)
    assert asked == []


def ending(*, terminate):
    @tool(name=f"end_{terminate}".lower())
    def end() -> object:
        """End."""
        return Output("done", terminate=terminate)

    return end


async def test_the_run_ends_when_every_result_of_a_batch_asks_for_it():
    stop, go = ending(terminate=True), ending(terminate=False)
    got = await dispatch(call("end_true", "c1"), call("end_true", "c2"), tools=[stop, go])
    assert [m.type for m in got] == ["tool_result", "tool_result", "stop"]
    assert got[-1].query == {"reason": "terminate"}
    assert "terminate" not in got[0].query
    got = await dispatch(call("end_true", "c1"), call("end_false", "c2"), tools=[stop, go])
    assert [m.type for m in got] == ["tool_result", "tool_result"]


async def test_a_run_that_terminates_asks_the_model_no_second_time():
    model = ScriptedModel(calls(call("end_true")), answer("never"))
    agent = Agent(model, tools=[ending(terminate=True)])
    async with agent.session("s") as session:
        result = await session.ask("Go.")
        assert result.reason == "terminate"
        assert len(model.contexts) == 1
        assert (await session.ask("Again.")).text == "never"
    await check_rows(agent.store)


async def test_a_final_stop_stays_the_last_word_of_a_batch_that_terminates():
    seen = await check_stage(tool_dispatch([ending(terminate=True)]), [call("end_true"), Message.stop("rate_limit")])
    assert [m.type for m in seen] == ["tool_call", "tool_result", "stop"]


async def test_what_a_tool_yields_is_streamed_shown_and_stored_as_pieces():
    @tool
    async def lines():
        """Write lines."""
        yield "one\n"
        yield {"two": 2}

    agent = Agent(ScriptedModel(calls(call("lines")), answer("x")), tools=[lines])
    async with agent.session("s") as session:
        seen = [m async for m in session.ask("Go.")]
    pieces = [m for m in seen if m.type == "tool_result"]
    assert [(m.content, m.more) for m in pieces] == [("one\n", True), ('{"two":2}\n', True), ("", False)]
    stored = await check_rows(agent.store)
    assert [m.content for m in stored if m.type == "tool_result"] == ['one\n{"two":2}\n']


async def test_pieces_come_while_the_tool_still_runs():
    go_on = anyio.Event()

    @tool
    async def slow():
        """Yield, then wait."""
        yield "first"
        await go_on.wait()
        yield "second"

    async def watcher(stream):
        async for message in stream:
            if message.content == "first":
                go_on.set()
            yield message

    store = MemoryStore()
    stages = Pipeline(reply=[tool_dispatch([slow]), persist(), watcher])
    agent = Agent(ScriptedModel(calls(call("slow")), answer("x")), pipeline=stages, store=store)
    async with agent.session("s") as session:
        assert (await session.ask("Go.")).text == "x"
    await check_rows(store)


async def test_a_streaming_tool_that_fails_keeps_what_it_gave():
    """F21."""

    @tool
    async def breaks():
        """Break."""
        yield "begun"
        raise ValueError("broke")

    assert said(await dispatch(call("breaks"), tools=[breaks])) == [("begun\nValueError: broke", True)]

    @tool(name="breaks")
    async def breaks_at_once():
        """Break."""
        raise ValueError("broke")
        yield

    assert said(await dispatch(call("breaks"), tools=[breaks_at_once])) == [("ValueError: broke", True)]


async def test_a_plain_async_iterator_is_streamed_too():
    class Count:
        def __init__(self):
            self.left = 2

        def __aiter__(self):
            return self

        async def __anext__(self):
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return str(self.left)

    @tool
    async def count() -> object:
        """Count."""
        return Count()

    assert said(await dispatch(call("count"), tools=[count])) == [("10", False)]


async def test_a_cut_streaming_tool_leaves_a_marked_result():
    @tool
    async def endless():
        """Yield for ever."""
        while True:
            yield "x"

    agent = Agent(ScriptedModel(calls(call("endless")), answer("x")), tools=[endless])
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.type == "tool_result":
                break
    [result] = [m for m in await check_rows(agent.store) if m.type == "tool_result"]
    assert result.content.startswith("x")
    assert (result.query["cut"], result.query["is_error"]) == ("aborted", True)


async def test_a_streaming_tool_is_held_back_by_a_slow_reader():
    made = 0

    @tool
    async def flood():
        """Yield much."""
        nonlocal made
        while made < 1000:
            made += 1
            yield "x"

    agent = Agent(ScriptedModel(calls(call("flood")), answer("x")), tools=[flood])
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.type == "tool_result":
                await anyio.wait_all_tasks_blocked()
                assert made < 40
                break


async def test_progress_is_shown_and_not_stored():
    @tool
    async def work(context: ToolContext) -> str:
        """Work."""
        context.update("half")
        return "done"

    @tool
    def thread(context: ToolContext) -> str:
        """Work in a thread."""
        context.update("quarter")
        return "done"

    agent = Agent(ScriptedModel(calls(call("work", "c1"), call("thread", "c2")), answer("x")), tools=[work, thread])
    async with agent.session("s") as session:
        seen = [m async for m in session.ask("Go.")]
    progress = {m.content: m.query for m in seen if m.type == "progress"}
    assert {"half", "quarter"} == set(progress)
    assert progress["half"]["state"] == "update"
    assert progress["half"]["id"] == "c1"
    assert "progress" not in [m.type for m in await check_rows(agent.store)]


async def test_late_and_too_many_updates_are_dropped():
    contexts = []

    @tool
    async def work(context: ToolContext) -> str:
        """Work."""
        contexts.append(context)
        for number in range(100):
            context.update(str(number))
        return "done"

    got = await dispatch(call("work"), tools=[work])
    contexts[0].update("late")
    shown = [m.content for m in got if m.type == "progress"]
    assert shown == [str(number) for number in range(len(shown))]
    assert 16 <= len(shown) <= 17  # what the outbox holds, and one that the reader had taken
    ToolContext(session="s", call_id="c", idempotency_key="k").update("to nobody")


async def test_starts_and_ends_are_announced_in_order_on_request():
    release = anyio.Event()

    @tool
    async def slow() -> str:
        """Wait for the fast one."""
        await release.wait()
        return "slow"

    @tool
    async def fast() -> str:
        """Let the slow one go."""
        release.set()
        return "fast"

    got = await dispatch(call("slow", "c1"), call("fast", "c2"), call("nope", "c3"), tools=[slow, fast], announce=True)
    states = [(m.query["id"], m.query["state"]) for m in got if m.type == "progress"]
    assert [state for state in states if state[1] == "start"] == [("c1", "start"), ("c2", "start"), ("c3", "start")]
    assert states.index(("c2", "end")) < states.index(("c1", "end"))
    ends = {m.query["id"]: (m.content, m.query["is_error"]) for m in got if m.query.get("state") == "end"}
    assert ends["c1"] == ("slow", False)
    assert ends["c3"][1]
    assert [m.query["id"] for m in got if m.type == "tool_result"] == ["c1", "c2", "c3"]


async def test_the_platform_context_reaches_the_tool():
    @tool
    def who(context: ToolContext) -> str:
        """Say who."""
        return context.platform["tenant"]

    assert said(await dispatch(call("who"), tools=[who], platform={"tenant": "acme"})) == [("acme", False)]


async def test_a_tool_that_ignores_its_timeout_cannot_hold_the_run():
    released = anyio.Event()

    @tool(timeout=0.02)
    async def stubborn() -> str:
        """Do not listen."""
        with anyio.CancelScope(shield=True):
            await released.wait()
        return "late"

    model = ScriptedModel(calls(call("stubborn")), answer("x"))
    agent = Agent(model, tools=[stubborn])
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.type == "tool_result":
                assert "0.02 s" in message.content
                released.set()
    assert [m.content for m in await check_rows(agent.store) if m.type == "tool_result"] == [message_of(0.02)]


def message_of(timeout):
    return f"stubborn did not finish within {timeout:g} s and was stopped."


async def test_a_streaming_tool_that_times_out_yields_nothing_more():
    released = anyio.Event()

    @tool(timeout=0.02)
    async def stubborn():
        """Do not listen."""
        yield "begun"
        with anyio.CancelScope(shield=True):
            await released.wait()
        yield "late"

    async def watcher(stream):
        async for message in stream:
            if "did not finish" in message.content:
                released.set()
            yield message

    stages = Pipeline(reply=[tool_dispatch([stubborn]), persist(), watcher])
    agent = Agent(ScriptedModel(calls(call("stubborn")), answer("x")), pipeline=stages)
    async with agent.session("s") as session:
        await session.ask("Go.")
    [result] = [m for m in await check_rows(agent.store) if m.type == "tool_result"]
    assert result.content == "begun" + message_of(0.02)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="mode is 'parallel' or 'sequential'"):
        tool_dispatch([stock], mode="serial")


@pytest.mark.parametrize("ending_", ENDINGS)
async def test_nothing_is_left_of_a_batch_with_everything_in_it(ending_):
    @tool
    async def lines(context: ToolContext):
        """Write lines."""
        context.update("begun")
        yield "one"
        yield "two"

    release = threading.Event()

    @tool(execution_mode="sequential")
    def last() -> object:
        """End."""
        release.wait(0.01)
        return Output("done", terminate=True)

    messages = [call("lines", "c1"), call("nope", "c2"), call("last", "c3"), Message.stop("tool_calls")]
    for at in range(1, 12):
        stage = tool_dispatch([lines, last], announce=True, before_tool_call=lambda _: None)
        await check_stage(stage, messages, ending_, at=at)


@pytest.mark.parametrize("wrong", [{"content": "x"}, "x", "", False])
async def test_a_hook_that_returns_something_else_is_the_calls_error(wrong):
    before = await dispatch(ask_stock(), before_tool_call=lambda _: wrong)
    assert said(before) == [(f"TypeError: before_tool_call returns Decision or None, not {wrong!r}", True)]
    after = await dispatch(ask_stock(), after_tool_call=lambda *_: wrong)
    assert said(after) == [(f"TypeError: after_tool_call returns Output or None, not {wrong!r}", True)]


async def test_a_hook_that_says_no_text_is_the_calls_error():
    [(content, is_error)] = said(await dispatch(ask_stock(), before_tool_call=lambda _: Decision(block=5)))
    assert "unserialisable result of type Output" in content
    assert is_error
    [(content, is_error)] = said(await dispatch(ask_stock(), after_tool_call=lambda *_: Output(5)))
    assert "unserialisable result of type Output" in content
    assert is_error


def leave(*_, **__):
    raise GeneratorExit("bye")


@tool
async def leaving() -> str:
    """Raise what closes generators."""
    leave()


@tool
async def leaving_midway():
    """Raise it after a piece."""
    yield "piece"
    leave()


@tool
def leaving_thread() -> str:
    """Raise it in a thread."""
    leave()


@pytest.mark.parametrize("wrong", [leaving, leaving_midway, leaving_thread])
async def test_a_tool_that_raises_generator_exit_has_an_error_as_its_result(wrong):
    agent = Agent(ScriptedModel(calls(call(wrong.spec.name)), answer("Done.")), tools=[wrong])
    async with agent.session("s") as session:
        assert (await session.ask("Go.")).text == "Done."
        assert (await session.ask("Again.")).text == "Done."  # the runtime lives
    [result] = [row for row in await check_rows(agent.store) if row.type == "tool_result"]
    assert result.content.endswith("GeneratorExit: bye")
    assert result.query["is_error"]


@pytest.mark.parametrize("where", ["before_tool_call", "after_tool_call"])
async def test_a_hook_that_raises_generator_exit_is_the_calls_error(where):
    assert said(await dispatch(ask_stock(), **{where: leave})) == [("GeneratorExit: bye", True)]


async def test_what_is_closed_while_it_waits_for_a_tool_does_not_take_that_for_an_error():
    from streamagent.cancellation import must_propagate

    told = []

    async def inner(wait):
        try:
            await wait
        except BaseException as error:
            told.append(must_propagate(error))
            raise

    async def outer(wait):
        await inner(wait)

    waits = outer(anyio.sleep_forever())
    waits.send(None)
    waits.close()
    assert told == [True]
