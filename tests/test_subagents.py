"""Sub-agents: an agent is a tool, in a session of its own; what it has from the run that asked it (F55, F56, I19)."""

import math
from dataclasses import replace
from itertools import count

import anyio
import pytest

from streamagent import (
    Agent,
    Hooks,
    MemoryStore,
    Message,
    Pipeline,
    Runtime,
    Session,
    ToolContext,
    budget,
    events,
    fold,
    open_pipeline,
    persist,
    rate_limit,
    tool,
    tool_dispatch,
)
from streamagent.calls import Child
from streamagent.errors import ConfigError, StoreFull
from streamagent.lineage import ID_LIMIT, Lineage, child_id, settle_tree
from streamagent.message import new_id
from streamagent.run import Run
from streamagent.tasks import RunTasks
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, rows, stock, text

pytestmark = pytest.mark.anyio

ASK = call("researcher", prompt="How deep?")


@pytest.fixture
async def runtime(either_store):
    async with Runtime(store=either_store) as runtime:
        yield runtime


def researcher(*turns, name="researcher", **options):
    return Agent(ScriptedModel(*turns), name=name, description="Finds out.", **options)


def asking(child, *turns, **options):
    """An agent whose first turn asks a sub-agent."""
    return Agent(ScriptedModel(*(turns or (calls(ASK), answer("Done.")))), tools=[child], **options)


async def asked(runtime, agent):
    """Ask; return the result, what is stored, and the sub-agents' rows by session."""
    async with agent.session("s", runtime=runtime) as session:
        result = await session.ask("Go.")
    stored = await check_rows(runtime.store)
    names = [row.query["details"]["session"] for row in stored if row.type == "tool_result" and "details" in row.query]
    return result, stored, [await check_rows(runtime.store, name) for name in names]


def the_result(messages):
    [found] = [m for m in messages if m.type == "tool_result" and not m.path]
    return found


async def test_the_text_of_its_last_turn_is_the_tool_result(runtime):
    child = researcher(calls(call("stock", product="mug")), answer("Very ", "deep."), tools=[stock])
    agent = asking(child)
    result, stored, [inner] = await asked(runtime, agent)
    assert (result.text, the_result(stored).content, the_result(stored).query["is_error"]) == (
        "Done.",
        "Very deep.",
        False,
    )
    assert [m.type for m in stored] == ["text", "tool_call", "stop", "tool_result", "text", "stop"]
    assert [m.content for m in inner] == ["How deep?", "{}", "", "15", "Very deep.", ""]
    assert [m.content for m in agent.model.contexts[1]] == ["Go.", "{}", "", "Very deep."]
    assert [m.content for m in child.model.contexts[0]] == ["How deep?"]


async def test_a_long_answer_is_cut_in_the_middle_as_every_result_is(runtime):
    _, stored, [inner] = await asked(runtime, asking(researcher(answer("word " * 12_000))))
    assert len(inner[1].content) == 60_000 > len(the_result(stored).content)
    assert the_result(stored).query["details"].keys() == {"truncated", "session", "reason"}


async def test_its_first_row_says_whose_call_it_answers(runtime):
    _, stored, [inner] = await asked(runtime, asking(researcher(answer("Deep."))))
    assert (inner[0].prev, inner[0].query) == (stored[1].id, {"parent": {"session": "s", "call": stored[1].id}})
    assert inner[0].session == the_result(stored).query["details"]["session"] == f"s:{stored[1].id}:1"


async def test_its_messages_are_shown_as_its_own_with_the_path_of_calls(runtime):
    result, stored, [inner] = await asked(runtime, asking(researcher(answer("Very ", "deep."))))
    nested = [m for m in result if m.path]
    assert [(m.id, m.content, m.session) for m in nested] == [(m.id, m.content, inner[0].session) for m in inner]
    assert {tuple(m.path) for m in nested} == {(stored[1].id,)}
    assert [m.sequence for m in nested if m.sequence] == [1, 3]
    assert [m.id for m in result if not m.path] == [m.id for m in stored]


async def test_text_and_events_are_those_of_the_agent_that_was_asked(runtime):
    agent = asking(researcher(answer("Deep.")), calls(*text("Well."), ASK), answer("Done."))
    async with agent.session("s", runtime=runtime) as session:
        assert [piece async for piece in session.ask("Go.").text()] == ["Well.", "Done."]
        messages = [m async for m in session.ask("Again.")]

    async def play(fragments):
        for m in fragments:
            yield m

    told = [event.type async for event in events(play(messages))]
    assert told == [event.type async for event in events(play([m for m in messages if not m.path]))]


async def test_a_result_that_ends_in_a_sub_agents_words_has_no_stop():
    nested = Message(type="stop", query={"reason": "stop", "path": ["c"]})
    assert fold([nested])[0].path == ["c"]
    async with Agent("mock").session() as session:
        result = await session.ask("Hello?")
    assert type(result)([nested]).stop is None
    assert type(result)([*result, nested]).stop is result[-1]


async def test_two_work_at_the_same_time_and_their_results_are_in_call_order(runtime):
    child = researcher(answer("One."), answer("Two."))
    asks = calls(call("researcher", "a", prompt="1"), call("researcher", "b", prompt="2"))
    result, stored, inner = await asked(runtime, asking(child, asks, answer("Done.")))
    assert [m.query["id"] for m in stored if m.type == "tool_result"] == ["a", "b"]
    assert sorted(part[1].content for part in inner) == ["One.", "Two."]
    assert len({tuple(m.path) for m in result if m.path}) == 2


async def test_a_sub_agents_sub_agent_has_the_whole_path(runtime):
    inner = researcher(answer("Deepest."), name="inner")
    middle = researcher(calls(call("inner", prompt="And?")), answer("Deeper."), tools=[inner])
    result, stored, [rows_of_middle] = await asked(runtime, asking(middle))
    deepest = [m for m in result if len(m.path) == 2]
    assert [m.content for m in deepest] == ["And?", "Deepest.", ""]
    assert {tuple(m.path) for m in deepest} == {(stored[1].id, rows_of_middle[1].id)}
    assert the_result(stored).content == "Deeper."
    await check_rows(runtime.store, deepest[0].session)


FAILED = {"kind": "overloaded", "message": "too busy", "retryable": True}


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (Message.stop("error", error=FAILED), "The sub-agent ended with 'error': too busy.\n\nHalf"),
        (Message.stop("length"), "The sub-agent ended with 'length'.\n\nHalf"),
        (Message.stop("budget", limit={"turns": 1}), "The sub-agent ended with 'budget': turns 1.\n\nHalf"),
    ],
)
async def test_an_end_without_an_answer_is_an_error_that_says_why(runtime, stop, said):
    _, stored, [inner] = await asked(runtime, asking(researcher([*text("Half"), stop])))
    assert (the_result(stored).content, the_result(stored).query["is_error"]) == (said, True)
    assert the_result(stored).query["details"] == {"session": inner[0].session, "reason": stop.query["reason"]}


async def test_one_that_is_paused_is_an_error_that_names_its_session(runtime):
    _, stored, [inner] = await asked(runtime, asking(researcher([Message.stop("paused")])))
    said = f"The sub-agent waits for an approval in its own session {inner[0].session!r}."
    assert (the_result(stored).content, the_result(stored).query["is_error"]) == (said, True)


async def test_a_call_of_it_that_wants_an_approval_is_decided_and_run_in_its_own_session(runtime):
    child = researcher(calls(call("ship")), answer("Shipped."), tools=[tool(ship, requires_approval=True)])
    asks = calls(ASK, call("stock", "c2", product="mug"))
    agent = Agent(ScriptedModel(asks, answer("Done.")), tools=[child, stock])
    async with agent.session("s", runtime=runtime) as session:
        result = await session.ask("Go.")
    waits, runs = (m for m in await check_rows(runtime.store) if m.type == "tool_result")
    assert (waits.query["is_error"], runs.content, result.text, result.reason) == (True, "15", "Done.", "stop")
    async with child.session(waits.query["details"]["session"], runtime=runtime) as session:
        [request] = await session.pending()
        await session.approve(request.id)
        assert (await session.resume()).text == "Shipped."


async def ship() -> str:
    """Ship something."""
    return "on its way"


async def test_a_run_that_a_tool_ended_on_purpose_is_an_answer(runtime):
    child = researcher(answer("Deep."), hooks=Hooks(should_stop_after_turn=lambda _: True))
    _, stored, _ = await asked(runtime, asking(child))
    assert (the_result(stored).content, the_result(stored).query["is_error"]) == ("Deep.", False)


async def test_a_bug_in_it_is_an_error_result_and_its_session_is_settled(runtime):
    async def broken(stream):
        async for message in stream:
            yield message
        raise LookupError("a bug")

    child = researcher(answer("Deep."), pipeline=Pipeline(reply=[persist(), broken]))
    agent = asking(child)
    async with agent.session("s", runtime=runtime) as session:
        result = await session.ask("Go.")
    assert "LookupError: a bug" in the_result(result).content
    [nested, *_] = [m.session for m in result if m.path]
    await check_rows(runtime.store, nested)
    await check_rows(runtime.store)


async def test_its_own_store_is_not_used(runtime):
    child = researcher(answer("Deep."), store=MemoryStore())
    await asked(runtime, asking(child))
    assert [info async for info in child.store.sessions()] == []


# What it has from the run above


def recursive(depth, **options):
    """An agent whose tool starts the agent again, `depth` times; and a list of what each start gave."""
    given = []

    @tool
    async def deeper(context: ToolContext) -> str:
        """Go deeper."""
        given.append(await context.start(agent, "Deeper."))
        return given[-1].content

    turns = [calls(call("deeper"))] * (depth + 1) + [answer("Up.")]
    agent = Agent(ScriptedModel(*turns), tools=[deeper], **options)
    return agent, given


@pytest.mark.parametrize(("options", "allowed"), [({}, 3), ({"max_depth": 1}, 1), ({"max_depth": 0}, 0)])
async def test_nesting_ends_at_the_limit_with_an_error_result(runtime, options, allowed):
    agent, given = recursive(allowed, **options)
    async with agent.session("s", runtime=runtime) as session:
        result = await session.ask("Go.")
    assert result.text == "Up."
    assert max(len(m.path) for m in result) == allowed
    assert [output.is_error for output in given] == [True] + [False] * allowed
    assert f"nested {allowed} deep" in given[0].content


@pytest.mark.parametrize(("options", "allowed"), [({}, 8), ({"max_children": 2}, 2), ({"max_children": 0}, 0)])
async def test_so_many_work_at_once_and_not_one_more(runtime, options, allowed):
    refused = anyio.Event()

    @tool
    async def wait() -> str:
        """Wait until one was refused."""
        await refused.wait()
        return "x"

    def after(_, output):
        if output.is_error:
            refused.set()

    child = researcher(calls(call("wait")), answer("Deep."), tools=[wait])
    child.model.stream = by_context(child.model)
    asks = [call("researcher", f"c{number}", prompt="?") for number in range(allowed + 1)]
    turns = calls(*asks), calls(*asks[1:]) if allowed else answer("Done."), answer("Done.")
    _, stored, inner = await asked(runtime, asking(child, *turns, hooks=Hooks(after_tool_call=after), **options))
    results = [m for m in stored if m.type == "tool_result"]
    assert len(results) == 2 * allowed + 1
    assert [m.query["id"] for m in results if f"{allowed} sub-agents are at work already" in m.content] == [
        f"c{allowed}"
    ]
    assert len(inner) == 2 * allowed


def by_context(model):
    """Let several runs share a script: each turn is the one that its context asks for."""
    first, second = model.turns

    async def stream(context, **_):
        last = [message async for message in context][-1]
        script = first if last.role == "user" else second
        ids = {message.id: new_id() for message in script}
        for message in script:
            yield replace(message, id=ids[message.id])

    return stream


class Hanging:
    """A tree whose sub-agent never answers: it has said something, and is inside a tool."""

    def __init__(self, **options):
        self.started = anyio.Event()

        @tool
        async def wait(context: ToolContext) -> str:
            """Wait for ever."""
            self.deadline = context.deadline
            self.started.set()
            await anyio.sleep_forever()

        self.child = researcher(calls(*text("Let me see."), call("wait")), tools=[wait])
        self.agent = asking(self.child, **options)


async def hanging_rows(runtime):
    stored = await check_rows(runtime.store)
    return stored, await check_rows(runtime.store, f"s:{stored[1].id}:1")


async def test_cancelling_the_run_cuts_it_and_settles_its_session(runtime):
    scene = Hanging()
    async with scene.agent.session("s", runtime=runtime) as session, anyio.create_task_group() as tasks:

        async def cancel():
            await scene.started.wait()
            await session.cancel()

        tasks.start_soon(cancel)
        await session.ask("Go.")
        stored, inner = await hanging_rows(runtime)
    assert (stored[-1].query["reason"], inner[-1].query["reason"]) == ("aborted", "aborted")
    assert [m.type for m in inner] == ["text", "text", "tool_call", "stop", "tool_result", "stop"]
    assert runtime.active == {}


async def test_a_reader_that_leaves_takes_it_along(runtime):
    scene = Hanging()
    async with scene.agent.session("s", runtime=runtime) as session:
        async for message in session.ask("Go."):
            if message.path and message.type == "stop":
                break
    _, inner = await hanging_rows(runtime)
    assert inner[-1].query["reason"] == "aborted"


async def left_after(runtime, number, ending):
    """Leave a tree of three runs after so many messages; return whether it had come to its end, all checked."""
    inner = researcher(STOCK, answer("Deepest."), name="inner", tools=[stock])
    middle = researcher(calls(call("inner", prompt="And?")), answer("Deep", "er."), tools=[inner])
    agent, name = asking(middle), f"s{number}."  # no name begins with another one
    with anyio.CancelScope() as scope:
        async with agent.session(name, runtime=runtime) as session:
            async for _ in session.ask("Go."):
                number -= 1
                if not number and ending == "break":
                    break
                if not number:
                    scope.cancel()
    await check_all(runtime.store, name)
    return number > 0


async def check_all(store, prefix=""):
    """Check all sessions whose ids begin so."""
    for session in [info.id async for info in store.sessions()]:
        if session.startswith(prefix):
            await check_rows(store, session)


@pytest.mark.parametrize("ending", ["break", "cancel"])
async def test_wherever_the_reader_leaves_all_sessions_are_at_rest_and_nothing_runs(runtime, ending):
    number = 1
    while not await left_after(runtime, number, ending):
        assert runtime.active == {}
        number += 1
    await check_all(runtime.store)
    assert number > 20


async def test_leaving_the_runtime_takes_it_along():
    store, scene = MemoryStore(), Hanging()
    async with Runtime(store=store) as runtime:
        reply = Session(runtime, "s", scene.agent.plan).ask("Go.")
        while not (message := await anext(reply)).path or message.type != "stop":
            pass
    stored = await check_rows(store)
    assert (await check_rows(store, f"s:{stored[1].id}:1"))[-1].query["reason"] == "aborted"


async def test_it_can_be_cancelled_alone(runtime):
    scene = Hanging()
    async with scene.agent.session("s", runtime=runtime) as session, anyio.create_task_group() as tasks:

        async def cancel():
            await scene.started.wait()
            [name] = runtime.active.keys() - {"s"}
            async with scene.child.session(name, runtime=runtime) as handle:
                await handle.cancel()

        tasks.start_soon(cancel)
        result = await session.ask("Go.")
    assert (result.text, the_result(result).query["is_error"]) == ("Done.", True)
    assert the_result(result).content == "The sub-agent ended with 'aborted'.\n\nLet me see."


@pytest.mark.parametrize(("outer", "inner"), [(5, None), (5, 50), (50, 5), (None, 5), (None, None)])
async def test_its_deadline_is_the_earlier_one(runtime, outer, inner):
    seen = []

    @tool
    async def look(context: ToolContext) -> str:
        """Look at the clock."""
        seen.append(context.deadline - anyio.current_time())
        return "x"

    child = researcher(calls(call("look")), answer("Deep."), tools=[look], timeout=inner)
    await asked(runtime, asking(child, timeout=outer))
    expected = min(outer or math.inf, inner or math.inf)
    assert seen[0] <= expected
    assert seen[0] > expected - 5 or expected == math.inf


async def test_at_the_deadline_both_end(runtime):
    scene = Hanging(timeout=0.5)
    async with scene.agent.session("s", runtime=runtime) as session:
        await session.ask("Go.")
    stored, inner = await hanging_rows(runtime)
    assert stored[-1].query["reason"] == "deadline"
    assert inner[-1].query["reason"] in ("deadline", "aborted")
    assert anyio.current_time() >= scene.deadline


async def test_a_timeout_of_the_tool_closes_the_call_and_cuts_it(runtime):
    scene = Hanging()
    agent = Agent(ScriptedModel(calls(ASK), answer("Done.")), tools=[scene.child.as_tool(timeout=0.5)])
    async with agent.session("s", runtime=runtime) as session:
        result = await session.ask("Go.")
    assert the_result(result).content == "researcher did not finish within 0.5 s and was stopped."
    _, inner = await hanging_rows(runtime)
    assert inner[-1].query["reason"] == "aborted"


# Budgets


def spending(*turns, tokens=10):
    """Turns that each take so many tokens."""
    return [[*turn[:-1], Message.stop(turn[-1].query["reason"], usage={"total_tokens": tokens})] for turn in turns]


def limited(child, *limits, turns=None):
    dispatch = tool_dispatch([child.as_tool(), stock])
    model = ScriptedModel(*(turns or spending(calls(ASK), answer("Done."))))
    pipeline = Pipeline(reply=[*limits, dispatch, persist()])
    return Agent(model, tools=[child, stock], pipeline=pipeline)


STOCK = calls(call("stock", product="mug"))


@pytest.mark.parametrize(("tokens", "turns"), [(20, 1), (21, 2), (30, 2), (31, 3)])
async def test_what_it_spends_counts_for_the_run_and_ends_it_too(runtime, tokens, turns):
    child = researcher(*spending(STOCK), tools=[stock])
    result, stored, [inner] = await asked(runtime, limited(child, budget(tokens=tokens)))
    assert [m.type for m in inner].count("stop") == turns
    assert inner[-1].query["limit"] == {"tokens": tokens, "scope": "run"}
    assert the_result(stored).content == f"The sub-agent ended with 'budget': tokens {tokens}, scope run."
    assert (result.reason, [m.type for m in stored].count("stop")) == ("budget", 2)


async def test_what_it_spent_is_gone_for_the_run_after_it_has_answered(runtime):
    child = researcher(*spending(answer("Deep.")))
    result, stored, [inner] = await asked(runtime, limited(child, budget(tokens=20)))
    assert (inner[-1].query["reason"], result.reason) == ("stop", "budget")
    assert (the_result(stored).content, result.text) == ("Deep.", "")


@pytest.mark.parametrize(("limit", "passed"), [(1, 0), (2, 1), (3, 2)])
async def test_its_calls_count_and_the_one_beyond_does_not_pass(runtime, limit, passed):
    child = researcher(STOCK, STOCK, answer("Deep."), tools=[stock])
    result, stored, [inner] = await asked(runtime, limited(child, budget(tool_calls=limit)))
    assert [m.type for m in inner].count("tool_call") == passed
    assert result.text == "Done."  # that all calls are made ends only who makes another
    assert the_result(stored).query["is_error"] == (passed < 2)


async def test_a_price_of_the_run_above_is_the_price(runtime):
    child = researcher(*spending(STOCK, answer("Deep.")), tools=[stock])
    agent = limited(child, budget(cost=2, price=lambda _, usage: usage["total_tokens"] / 10))
    result, _, [inner] = await asked(runtime, agent)
    assert (result.reason, inner[-1].query["cost"], inner[-1].query["reason"]) == ("budget", 1.0, "budget")


async def test_a_budget_that_is_used_up_asks_no_sub_agents_model(runtime):
    child = researcher(answer("Deep."))

    @tool
    async def late(context: ToolContext) -> str:
        """Start one when the turn is over."""
        await turn_over.wait()
        return (await context.start(child, "Late?")).content

    turn_over = anyio.Event()

    async def over(stream):
        async for message in stream:
            if message.type == "stop":
                turn_over.set()  # the budget, which stands in front, has counted it
            yield message

    pipeline = Pipeline(reply=[budget(turns=1), over, tool_dispatch([late]), persist()])
    agent = Agent(ScriptedModel(spending(calls(call("late")))[0]), tools=[late], pipeline=pipeline)
    async with agent.session("s", runtime=runtime) as session:
        await session.ask("Go.")
    assert child.model.contexts == []


async def test_budgets_of_all_runs_above_hold(runtime):
    inner = researcher(*spending(STOCK, answer("Deepest.")), tools=[stock], name="inner")
    ask_inner = calls(call("inner", prompt="And?"))
    middle = limited(inner, budget(tokens=100), turns=spending(ask_inner, answer("Deeper.")))
    middle = middle.with_options(name="researcher", description="Finds out.")
    _, stored, [rows_of_middle] = await asked(runtime, limited(middle, budget(tokens=30)))
    deepest = await check_rows(runtime.store, the_result(rows_of_middle).query["details"]["session"])
    assert [part[-1].query["reason"] for part in (deepest, rows_of_middle, stored)] == ["budget"] * 3
    assert deepest[-1].query["limit"]["tokens"] == 30


async def test_a_budget_of_the_session_counts_its_own_turns_only(runtime):
    child = researcher(*spending(answer("Deep."), tokens=1000))
    result, _, _ = await asked(runtime, limited(child, budget(tokens=21, scope="session")))
    assert result.reason == "stop"


async def test_a_budget_of_the_day_ends_it_too(runtime):
    child = researcher(*spending(STOCK, answer("Deep.")), tools=[stock])
    result, _, [inner] = await asked(runtime, limited(child, budget(tokens=20, scope="day")))
    assert (result.reason, inner[-1].query["limit"]) == ("budget", {"tokens": 20, "scope": "day"})


async def test_limits_behind_the_dispatcher_do_not_count_its_messages(runtime):
    child = researcher(STOCK, answer("Deep."), tools=[stock])
    stages = [tool_dispatch([child.as_tool()]), rate_limit(messages=1, tool_calls=1), budget(seconds=60), persist()]
    agent = Agent(ScriptedModel(calls(ASK), answer("Done.")), tools=[child], pipeline=Pipeline(reply=stages))
    result, _, _ = await asked(runtime, agent)
    assert (result.text, result.reason) == ("Done.", "stop")


async def test_a_time_budget_of_the_run_above_cuts_it(runtime):
    scene = Hanging()
    stages = [tool_dispatch([scene.child.as_tool()]), budget(seconds=0.2), persist()]
    agent = Agent(ScriptedModel(calls(ASK)), tools=[scene.child], pipeline=Pipeline(reply=stages))
    async with agent.session("s", runtime=runtime) as session:
        result = await session.ask("Go.")
    _, inner = await hanging_rows(runtime)
    assert (result.reason, inner[-1].query["reason"]) == ("budget", "aborted")


# Starting one


async def test_a_call_that_is_run_again_finds_the_same_answer(runtime):
    child = researcher(answer("Deep."))
    shown = []

    async def relay(message):
        shown.append(message)

    run = Run("s", runtime.store, 0, child.plan, RunTasks(runtime.tasks, print))
    first, again = [
        await runtime.start_child(run, Child(agent=child, prompt="?", call="c", numbers=count(1), relay=relay))
        for _ in range(2)
    ]
    assert again == first
    assert (first.content, len(child.model.contexts)) == ("Deep.", 1)
    assert [m.type for m in shown[-3:]] == ["text", "text", "stop"]


async def test_a_tool_may_start_several_one_after_the_other(runtime):
    child = researcher(answer("One."), answer("Two."))

    @tool
    async def both(context: ToolContext) -> list[str]:
        """Ask twice, differently."""
        brief = child.with_options(system="Be brief.")
        return [(await context.start(agent, "?")).content for agent in (child, brief)]

    agent = Agent(ScriptedModel(calls(call("both")), answer("Done.")), tools=[both])
    result, stored, _ = await asked(runtime, agent)
    assert the_result(stored).content == '["One.","Two."]'
    assert [m.content for m in child.model.contexts[1]] == ["Be brief.", "?"]
    assert sorted({m.session for m in result if m.path}) == [f"s:{stored[1].id}:1", f"s:{stored[1].id}:2"]


async def test_one_that_was_refused_leaves_no_gap_behind_which_a_crash_would_not_be_seen(runtime):
    child = researcher(answer("Deep."))

    @tool
    async def several(context: ToolContext) -> list[str]:
        """Ask for too much at first."""
        with pytest.raises(ConfigError):
            await context.start("researcher", "?")
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(context.start, child, "?")  # the second one is one too many
        return (await context.start(child, "?")).content

    agent = Agent(ScriptedModel(calls(call("several")), answer("Done.")), tools=[several], max_children=1)
    result, stored, _ = await asked(runtime, agent)
    assert the_result(stored).content == "Deep."
    assert {m.session for m in result if m.path} == {f"s:{stored[1].id}:1", f"s:{stored[1].id}:2"}


async def test_a_call_that_is_over_starts_none(runtime):
    child, kept = researcher(answer("Deep.")), []

    @tool
    async def keep(context: ToolContext) -> str:
        """Keep the context."""
        kept.append(context)
        return "kept"

    async with Agent(ScriptedModel(calls(call("keep")), answer("Done.")), tools=[keep]).session(
        "s", runtime=runtime
    ) as s:
        reply = s.ask("Go.")
        while (await anext(reply)).type != "tool_result":
            pass
        refused = await kept[0].start(child, "?")
        await reply
    assert (refused.content, refused.is_error) == ("Not started: the call that wanted it is over.", True)
    assert child.model.contexts == []


async def test_what_is_no_agent_is_not_started(runtime):
    @tool
    async def wrong(context: ToolContext) -> str:
        """Start a text."""
        return (await context.start("researcher", "?")).content

    _, stored, _ = await asked(runtime, Agent(ScriptedModel(calls(call("wrong")), answer("x")), tools=[wrong]))
    assert "context.start takes an Agent, not 'researcher'" in the_result(stored).content


async def test_without_a_session_there_are_no_sub_agents():
    async def source():
        for message in calls(ASK):
            yield message

    async with open_pipeline(source(), tool_dispatch([researcher(answer("x")).as_tool()])) as stream:
        [result] = [m async for m in stream if m.type == "tool_result"]
    assert "no session drives this pipeline" in result.content
    with pytest.raises(ConfigError, match="belongs to none"):
        await ToolContext(session="s", call_id="c", idempotency_key="k").start(researcher(answer("x")), "?")
    tasks = None
    with pytest.raises(ConfigError, match="has no runtime"):
        run = Run("s", MemoryStore(), 0, Agent("mock").plan, tasks)
        await run.start_child(Child(agent=Agent("mock"), prompt="?", call="c", numbers=count(1), relay=None))


@pytest.mark.parametrize("given", [{}, {"name": "a"}, {"description": "b"}])
def test_an_agent_without_a_name_and_a_description_is_no_tool(given):
    with pytest.raises(ConfigError, match="wants a name and a description"):
        Agent("mock", tools=[Agent("mock", **given)])
    assert Agent("mock").as_tool(name="a", description="b").spec.description == "b"


def test_a_dispatcher_says_what_to_do_with_an_agent():
    with pytest.raises(ConfigError, match=r"agent\.as_tool"):
        tool_dispatch([Agent("mock", name="a", description="b")])


@pytest.mark.parametrize("limit", [{"max_depth": -1}, {"max_children": -1}, {"max_depth": "3"}, {"name": 5}])
def test_a_limit_or_name_that_is_none_is_refused(limit):
    with pytest.raises(ConfigError, match=next(iter(limit))):
        Agent("mock", **limit)


def test_the_id_of_its_session_is_never_too_long():
    for length in (ID_LIMIT - 4, ID_LIMIT - 3, ID_LIMIT):
        assert len(child_id("s" * length, "c", 1)) <= ID_LIMIT
    assert child_id("s" * 252, "c", 1).startswith("ss")
    assert child_id("s" * 253, "c", 1) == child_id("s" * 253, "c", 1) != child_id("t" * 253, "c", 1)


def test_a_tree_begins_empty():
    assert Lineage().refusal() is None


async def test_when_the_process_of_the_run_died_all_of_its_sessions_are_settled_by_the_next_run(runtime):
    """F56, without a process: rows as a killed one leaves them, of a sub-agent and its own sub-agent."""
    store = runtime.store
    outer, deeper = call("researcher"), call("inner")
    sessions = ["s", child_id("s", outer.id, 1), child_id(child_id("s", outer.id, 1), deeper.id, 1)]
    for session, left in zip(sessions, ([outer], [deeper], text("Half ")[:1]), strict=True):
        await store.write(session, [Message.user("?"), *left], fence=await store.acquire(session))
    async with Agent(ScriptedModel(answer("Here again."))).session("s", runtime=runtime) as session:
        await session.ask("And now?")
    for session in sessions:
        await check_rows(store, session)
    assert (await rows(store, sessions[2]))[1][3] == "Half "


async def test_a_sub_agent_that_had_answered_before_the_crash_stays_as_it_is(runtime):
    store, outer = runtime.store, call("researcher")
    child = child_id("s", outer.id, 1)
    for session, left in (("s", outer), (child, Message.stop("stop"))):
        await store.write(session, [Message.user("?"), left], fence=await store.acquire(session))
    before = await rows(store, child)
    async with Agent(ScriptedModel(answer("Here again."))).session("s", runtime=runtime) as session:
        await session.ask("And now?")
    assert await rows(store, child) == before


async def test_who_dies_while_it_closes_a_subagent_leaves_the_call_for_the_next_one():
    """The call is closed after what it had started: else nobody would look for that any more."""

    class Failing(MemoryStore):
        fails = True

        async def write(self, session, fragments, *, fence):
            if self.fails and session != "s":
                raise StoreFull("no room")
            return await super().write(session, fragments, fence=fence)

    store = Failing()
    asked = Message(type="tool_call", query={"tool": "helper", "id": "c1", "args": {}})
    child = child_id("s", asked.id, 1)
    async with store:
        await MemoryStore.write(store, "s", [Message.user("Go."), asked], fence=await store.acquire("s"))
        own = Message(type="tool_call", query={"tool": "send", "id": "c1", "args": {}})
        await MemoryStore.write(store, child, [Message.user("Do."), own], fence=await store.acquire(child))
        fence = await store.acquire("s")
        with pytest.raises(StoreFull):
            await settle_tree(store, "s", fence=fence)
        assert [call.id for call in (await store.unfinished("s")).calls] == [asked.id]
        store.fails = False
        await settle_tree(store, "s", fence=fence)
        for session in ("s", child):
            assert (await store.unfinished(session)).at_rest
