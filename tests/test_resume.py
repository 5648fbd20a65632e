"""What a process leaves that dies in a run, and how the next one goes on with it."""

from dataclasses import replace

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
)
from streamagent.calls import Output, ToolContext
from streamagent.errors import StoreFull
from streamagent.records import Owner
from streamagent.resume import CRASHES, Cut, look_back
from streamagent.stages.budget import budget
from streamagent.stages.repetition_guard import repetition_guard
from streamagent.testing import ScriptedModel, answer, call, calls, check_session

pytestmark = pytest.mark.anyio

PROMPT = Message.user("Go.")
TEXT = Message(content="half ", more=True)
CALL = call("ship", product="mug")
CALLED = Message.stop("tool_calls", usage={"total_tokens": 5})
UNKNOWN = "Interrupted: the run broke off before this call finished. Its outcome is unknown."


def result(asked, content="sent", **query):
    told = {"tool": "ship", "id": "c1", "call": asked.id, "is_error": False, **query}
    return Message(role="tool", type="tool_result", content=content, query=told)


async def leave(store, *rows, begun=(), done=None, number=1):
    """Let a process write rows, begin calls and die."""
    owner = f"dead {number}"
    fence = await store.acquire("s", owner=Owner(id=owner, ttl=15))
    for row in rows:
        if row.role == "user":
            await store.enqueue("s", row, client_key=f"key of {row.content}")
            await store.admit("s", fence=fence, ids=[row.id])
        else:
            await store.write("s", [row], fence=fence)
    for asked in begun:
        await store.start_call("s", asked.id, fence=fence)
        if done is not None:
            await store.finish_call("s", asked.id, done, fence=fence)
    await store.retire(owner)


@pytest.fixture
def store(either_store):
    return either_store


class Shop:
    """An agent with one tool, in a new process each time."""

    def __init__(self, *turns, stages=(), **options):
        self.store, self.done = MemoryStore(), []

        @tool(**options)
        async def ship(context: ToolContext, product: str) -> str:
            """Ship a product."""
            self.done.append((context.idempotency_key, context.attempt))
            return "sent"

        self.model = ScriptedModel(*(turns or [answer("It is sent.")]))
        pipeline = Pipeline(reply=[*stages, tool_dispatch([ship]), persist()])
        self.agent = Agent(self.model, tools=[ship], pipeline=pipeline)

    async def go_on(self, prompt=None, key=None):
        """Go on, or ask; return what was shown, and the rows."""
        async with Runtime(store=self.store) as runtime, self.agent.session("s", runtime=runtime) as session:
            reply = session.resume() if prompt is None else session.ask(prompt, client_key=key)
            shown = await reply
            rows = await check_session(self.store, crashed=True)
            left = await self.store.unfinished("s")
            assert left.paused or not await self.store.calls("s")
        return shown, rows


def kinds(rows):
    return [(row.type, row.attempt, (row.query or {}).get("cut")) for row in rows]


async def seen(*rows):
    store = MemoryStore()
    async with store:
        await leave(store, *rows)
        return await look_back(store, "s")


INTERRUPTED = Message.stop("aborted", cut="interrupted")
RESUMED = Message.stop("aborted", cut="resumed")
OVERFLOW = Message.stop("error", error={"kind": "context_overflow"})
SHORTER = Message.stop("error", error={"kind": "context_overflow"}, again="shorter")
REVIEWED = Message.stop("stop", again="feedback")
FEEDBACK = replace(Message.user("Better."), query={"feedback": {"of": "reflect", "round": 1}})
OTHER = Message.user("Other.")
STEER = replace(Message.user("Wait."), query={"lane": "steer"})
FOLLOW_UP = replace(Message.user("And?"), query={"lane": "follow_up"})
PAUSED = Message.stop("paused", run={"turns": 7, "last_turn": 50, "since": 0})


@pytest.mark.parametrize(
    ("rows", "facts"),
    [
        ([], {"over": True}),
        ([PROMPT], {"over": False, "due": True, "turns": 0, "first": 1, "prompt": PROMPT.id}),
        ([PROMPT, TEXT], {"turn": 2, "attempt": 1, "turns": 0, "asked": None}),
        ([PROMPT, CALL, CALLED], {"turn": None, "turns": 1, "due": False, "over": False}),
        ([PROMPT, CALL, CALLED, result(CALL)], {"turn": None, "turns": 1, "kept": False}),
        ([PROMPT, CALL, result(CALL)], {"turn": 2, "turns": 0, "kept": True}),
        ([PROMPT, CALL, CALLED, result(CALL), STEER], {"turns": 1, "granted": 0, "due": True}),
        ([PROMPT, *answer("x"), FOLLOW_UP], {"prompt": FOLLOW_UP.id, "turns": 0, "first": 4}),
        ([PROMPT, *answer("x")], {"over": True, "turns": 1}),
        ([PROMPT, replace(TEXT, more=False), RESUMED], {"due": True, "turns": 0, "attempt": 1, "over": False}),
        ([PROMPT, RESUMED, replace(TEXT, attempt=2)], {"turn": 3, "attempt": 2}),
        ([PROMPT, INTERRUPTED, STEER], {"prompt": PROMPT.id, "turns": 0, "over": False}),
        ([PROMPT, INTERRUPTED, OTHER], {"prompt": OTHER.id, "first": 3}),
        ([PROMPT, OVERFLOW], {"turns": 1, "over": True}),
        ([PROMPT, SHORTER], {"turns": 0, "over": False, "shrunk": True}),
        ([PROMPT, SHORTER, CALL, CALLED, OVERFLOW], {"turns": 2, "over": True, "shrunk": True}),
        ([PROMPT, CALL, CALLED, result(CALL), SHORTER, FOLLOW_UP], {"turns": 1, "granted": 1, "shrunk": False}),
        ([PROMPT, REVIEWED], {"turns": 1, "over": False, "due": False}),
        ([PROMPT, REVIEWED, FEEDBACK], {"turns": 1, "granted": 0, "due": True, "prompt": PROMPT.id}),
        ([PROMPT, CALL, CALLED, PAUSED], {"turns": 7, "first": 1, "over": False}),
    ],
)
async def test_how_far_a_run_had_come_is_read_from_its_rows(rows, facts):
    cut = await seen(*rows)
    assert isinstance(cut, Cut)
    assert {name: getattr(cut, name) for name in facts} == facts


async def test_a_session_at_rest_has_nothing_to_go_on_with():
    shop = Shop()
    await leave(shop.store, PROMPT, *answer("Done."))
    shown, rows = await shop.go_on()
    assert (len(shown), len(rows), shop.model.contexts) == (0, 3, [])


async def test_a_prompt_that_was_not_answered_is_asked():
    shop = Shop(answer("Done."))
    await leave(shop.store, PROMPT)
    shown, rows = await shop.go_on()
    assert shown.text == "Done."
    assert [row.content for row in rows] == ["Go.", "Done.", ""]


async def test_half_an_answer_is_superseded_by_another_attempt():
    shop = Shop(answer("Whole."))
    await leave(shop.store, PROMPT, TEXT)
    shown, rows = await shop.go_on()
    assert shown.text == "Whole."
    assert kinds(rows) == [
        ("text", 1, None),
        ("text", 1, "resumed"),
        ("stop", 1, "resumed"),
        ("text", 2, None),
        ("stop", 2, None),
    ]


async def test_attempts_are_counted_and_so_is_what_each_took():
    shop = Shop(answer("Whole."))
    await leave(shop.store, PROMPT, TEXT)
    said = Message(content="half again ", attempt=2, more=True)
    closed = [replace(TEXT, content="", more=False, query={"cut": "resumed"}), RESUMED]
    await leave(shop.store, *closed, said, number=2)
    _, rows = await shop.go_on()
    assert [row.attempt for row in rows if row.role == "assistant" and row.type == "text"] == [1, 2, 3]
    usage = await shop.store.usage("s")
    assert (usage.turns, usage.tokens, usage.uncounted) == (3, 3, 2)


async def test_a_resumption_that_is_cut_is_gone_on_with():
    """What the simulation found at seed 8: the stop of a superseded attempt passed for the run's last word."""
    shop = Shop(answer("Whole."))
    await leave(shop.store, PROMPT, replace(TEXT, more=False, query={"cut": "resumed"}), RESUMED)
    shown, _ = await shop.go_on()
    assert shown.text == "Whole."


async def test_a_call_that_never_began_is_run():
    shop = Shop()
    await leave(shop.store, PROMPT, CALL, CALLED)
    _, rows = await shop.go_on()
    assert shop.done == [(f"s:{CALL.id}", 1)]
    assert [row.content for row in rows if row.type == "tool_result"] == ["sent"]


async def test_a_call_that_began_is_not_run_again_and_says_that_nobody_knows():
    shop = Shop()
    await leave(shop.store, PROMPT, CALL, CALLED, begun=[CALL])
    _, rows = await shop.go_on()
    assert shop.done == []
    [told] = [row for row in rows if row.type == "tool_result"]
    assert (told.content, told.query["is_error"]) == (UNKNOWN, True)


async def test_a_call_that_had_finished_has_its_result():
    shop = Shop()
    done = result(CALL, "sent before")
    await leave(shop.store, PROMPT, CALL, CALLED, begun=[CALL], done=done)
    _, rows = await shop.go_on()
    assert shop.done == []
    assert [(row.id, row.content) for row in rows if row.type == "tool_result"] == [(done.id, "sent before")]


async def test_a_call_that_does_no_harm_is_run_again_with_the_same_key():
    shop = Shop(retry_safe=True)
    await leave(shop.store, PROMPT, CALL, CALLED, begun=[CALL])
    await shop.go_on()
    assert shop.done == [(f"s:{CALL.id}", 2)]


async def test_a_call_that_has_streamed_is_not_run_again_and_its_result_says_that_it_was_cut(store):
    """Its first piece is the beginning of its one result; before that it is a call like any other."""
    shop = Shop(retry_safe=True)
    shop.store = store
    async with store:
        await leave(store, PROMPT, CALL, CALLED, begun=[CALL])
        await leave(store, replace(result(CALL, "3 mugs, ", streamed=True), more=True), number=2)
    shown, rows = await shop.go_on()
    [told] = [row for row in rows if row.type == "tool_result"]
    assert (told.content, told.query["cut"], told.query["is_error"]) == ("3 mugs, ", "crashed", True)
    assert (shop.done, shown.text) == ([], "It is sent.")
    assert [message.content for message in shop.model.contexts[0] if message.type == "tool_result"] == ["3 mugs, "]


@pytest.mark.parametrize(("found", "told"), [(Output("sent, it is there"), "sent, it is there"), (None, UNKNOWN)])
async def test_a_tool_may_know_what_came_of_a_call(found, told):
    shop = Shop(reconcile=lambda asked: found)
    await leave(shop.store, PROMPT, CALL, CALLED, begun=[CALL])
    _, rows = await shop.go_on()
    assert shop.done == []
    assert [row.content for row in rows if row.type == "tool_result"] == [told]


@pytest.mark.parametrize(("options", "done", "stands"), [({}, 0, True), ({"retry_safe": True}, 1, False)])
async def test_an_answer_whose_call_may_have_had_an_effect_stands(options, done, stands):
    turns = [answer("It is sent.")] if stands else [calls(call("ship", product="mug")), answer("It is sent.")]
    shop = Shop(*turns, **options)
    await leave(shop.store, PROMPT, CALL, begun=[CALL])
    shown, rows = await shop.go_on()
    assert shown.text == "It is sent."
    assert len(shop.done) == done
    stop = next(row for row in rows if row.type == "stop")
    assert stop.query["cut"] == ("crashed" if stands else "resumed")
    assert stop.query.get("model") == ("scripted" if stands else None)
    assert {row.attempt for row in rows} == ({1} if stands else {1, 2})


async def test_an_answer_whose_call_has_its_result_stands():
    """What the simulation found at seed 480: such a turn had no end."""
    shop = Shop()
    await leave(shop.store, PROMPT, CALL, result(CALL))
    _, rows = await shop.go_on()
    assert [row.type for row in rows] == ["text", "tool_call", "tool_result", "stop", "text", "stop"]
    assert rows[3].query == {"reason": "tool_calls", "cut": "crashed", "model": "scripted"}


async def test_who_asks_something_else_closes_what_was_cut():
    shop = Shop(answer("Yes."))
    await leave(shop.store, PROMPT, CALL, CALLED, begun=[CALL])
    _, rows = await shop.go_on("Are you there?")
    assert [row.content for row in rows if row.type == "tool_result"] == [UNKNOWN]
    assert rows[4].query["reason"] == "aborted"
    assert shop.done == []


async def test_who_asks_again_is_shown_what_was_said_and_the_rest_and_nothing_twice():
    """What kills at every point found: a call that was gone on with was shown twice."""
    shop = Shop()
    await leave(shop.store, PROMPT, CALL, CALLED)
    shown, rows = await shop.go_on("Go.", "key of Go.")
    assert [row.id for row in shown] == [row.id for row in rows]
    assert len(shop.done) == 1


async def test_who_asks_again_is_not_answered_what_others_asked():
    """What the simulation found at seed 71."""
    shop = Shop(answer("It is sent."), answer("The other one."))
    await leave(shop.store, PROMPT, CALL, CALLED)
    await shop.store.enqueue("s", OTHER)
    shown, rows = await shop.go_on("Go.", "key of Go.")
    assert shown.text == "It is sent."
    assert OTHER.id not in {row.id for row in rows}


@pytest.mark.parametrize("deaths", [CRASHES - 1, CRASHES])
async def test_a_run_that_kills_its_process_is_given_up(deaths):
    """What the simulation found at seed 62: who asked again was then shown what others had asked."""
    shop = Shop(answer("Well."))
    await leave(shop.store, PROMPT, TEXT)
    for number in range(2, deaths + 1):
        await leave(shop.store, number=number)
    await shop.store.enqueue("s", OTHER)
    shown, rows = await shop.go_on("Go.", "key of Go.")
    given_up = deaths == CRASHES
    assert (shown.error or {}).get("kind") == ("poison" if given_up else None)
    assert shown.text == ("half " if given_up else "Well.")
    assert OTHER.id not in {row.id for row in rows}
    shown, _ = await shop.go_on()
    assert shown[0].content == "Other."


async def test_what_is_open_of_a_run_that_is_over_is_closed_and_not_gone_on_with():
    """What the simulation found at seed 391."""
    shop = Shop()
    failed = Message.stop("error", error={"kind": "provider_error", "message": "no", "retryable": False})
    await leave(shop.store, PROMPT, TEXT, failed)
    _, rows = await shop.go_on()
    assert kinds(rows) == [("text", 1, None), ("text", 1, "crashed"), ("stop", 1, None)]
    assert shop.model.contexts == []


async def test_a_paused_session_is_left_as_it_is():
    shop = Shop(calls(CALL), requires_approval=True)
    await shop.go_on("Go.")
    await leave(shop.store)
    shown, rows = await shop.go_on()
    assert (len(shown), rows[-1].query["reason"]) == (0, "paused")


@pytest.mark.parametrize("done", [None, result(CALL, "sent before")], ids=["begun", "finished"])
async def test_who_asks_something_else_than_a_pause_waits_for_hears_what_became_of_its_other_calls(done):
    gated = call("ship", "c2", product="jug")
    query = {"tool": "ship", "id": "c2", "call": gated.id, "args": {"product": "jug"}}
    asked = Message(role="tool", type="approval", query=query)
    shop = Shop(answer("Yes."))
    await leave(shop.store, PROMPT, CALL, gated, CALLED, asked, begun=[CALL], done=done)
    _, rows = await shop.go_on("Are you there?")
    told = {row.query["call"]: (row.content, row.query.get("cut")) for row in rows if row.type == "tool_result"}
    assert told[CALL.id] == ((UNKNOWN, "crashed") if done is None else ("sent before", None))
    assert told[gated.id][1] == "superseded"
    assert [row.query["reason"] for row in rows if row.type == "stop"] == ["tool_calls", "paused", "superseded", "stop"]


async def test_a_decision_that_came_when_nobody_lived_is_heeded():
    shop = Shop(calls(CALL), answer("It is sent."), requires_approval=True)
    await shop.go_on("Go.")
    await leave(shop.store)
    async with Runtime(store=shop.store) as runtime, shop.agent.session("s", runtime=runtime) as session:
        [asked] = await session.pending()
        await session.approve(asked)
    shown, _ = await shop.go_on()
    assert shown.text == "It is sent."
    assert len(shop.done) == 1


LIMITS = [
    (rate_limit(messages=1), "rate_limit"),
    (rate_limit(tool_calls=1), "rate_limit"),
    (budget(turns=2), "budget"),
    (repetition_guard(2), "repetition"),
]


@pytest.mark.parametrize(("stage", "reason"), LIMITS, ids=lambda item: item if isinstance(item, str) else "")
@pytest.mark.parametrize("superseded", [True, False])
async def test_limits_count_what_was_before_without_what_is_superseded(stage, reason, superseded):
    shop = Shop(calls(call("ship", product="mug")), answer("It is sent."), stages=[stage])
    said = replace(TEXT, more=False)
    await leave(shop.store, PROMPT, said, CALL, *([] if superseded else [CALLED, result(CALL)]))
    shown, _ = await shop.go_on()
    assert shown.reason == ("stop" if superseded and reason != "budget" else reason)  # an attempt is paid for


@pytest.mark.parametrize("scope", ["run", "session", "day"])
@pytest.mark.parametrize(
    ("limits", "ran"), [({"tool_calls": 1}, 0), ({"turns": 2}, 1), ({"tokens": 6}, 1)], ids=["calls", "turns", "tokens"]
)
async def test_a_budget_knows_after_a_crash_what_was_used(store, scope, limits, ran):
    turn = [call("ship", product="mug"), Message.stop("tool_calls", usage={"total_tokens": 5})]
    shop = Shop(turn, answer("It is sent."), stages=[budget(**limits, scope=scope)])
    shop.store = store
    async with store:
        await leave(store, PROMPT, CALL, CALLED, result(CALL))
    shown, _ = await shop.go_on()
    assert (shown.reason, len(shop.done)) == ("budget", ran)


@pytest.mark.parametrize("scope", ["run", "session"])
async def test_an_attempt_that_was_cut_is_a_turn_of_the_budget_and_the_next_is_made_all_the_same(store, scope):
    turn = [call("ship", product="mug"), Message.stop("tool_calls", usage={"total_tokens": 5})]
    shop = Shop(turn, stages=[budget(turns=1, scope=scope)])
    shop.store = store
    async with store:
        await leave(store, PROMPT, TEXT)
    shown, _ = await shop.go_on()
    assert (shown.reason, len(shop.model.contexts)) == ("budget", 1)
    async with store:
        used = await store.usage("s")
    assert (used.turns, used.tokens, used.uncounted) == (2, 5, 1)


async def test_a_call_that_goes_on_after_a_crash_is_no_repetition_of_itself():
    shop = Shop(stages=[repetition_guard(2)])
    await leave(shop.store, PROMPT, CALL, CALLED)
    shown, _ = await shop.go_on()
    assert (shown.reason, shown.text, len(shop.done)) == ("stop", "It is sent.", 1)


async def test_context_stages_and_the_model_read_the_latest_attempt_alone():
    """Also of messages that were complete when the process died, and carry no mark of their own."""
    read = []

    async def look(stream):
        async for message in stream:
            read.append((message.type, message.content))
            yield message

    shop = Shop(answer("Whole."))
    shop.agent = Agent(shop.model, pipeline=Pipeline(context=[look], reply=[persist()]))
    await leave(shop.store, PROMPT, replace(TEXT, more=False), CALL, replace(TEXT, id="another"))
    await shop.go_on()
    assert read == [("text", "Go.")]
    assert [message.content for message in shop.model.contexts[0]] == ["Go."]


async def test_a_call_that_ran_beside_one_that_waits_is_not_called_unexecuted():
    """What the simulation found at seed 1678."""
    shop = Shop(answer("Yes."))
    waits = call("pay", "c2", amount=1)
    request = Message(role="tool", type="approval", query={"tool": "pay", "id": "c2", "call": waits.id, "args": {}})
    await leave(shop.store, PROMPT, CALL, waits, CALLED, request, begun=[CALL])
    _, rows = await shop.go_on("Something else?")
    told = {row.query["id"]: row for row in rows if row.type == "tool_result"}
    assert told["c1"].content == UNKNOWN
    assert told["c2"].query["cut"] == "superseded"


async def test_a_resumption_that_fails_ends_the_reply():
    """What the simulation found at seed 1011: the session stayed its own, and a served one waited for ever."""

    class Full(MemoryStore):
        full = False

        async def write(self, session, fragments, *, fence):
            if self.full:
                raise StoreFull("no space")
            return await super().write(session, fragments, fence=fence)

    shop = Shop(answer("Whole."))
    shop.store = Full()
    await leave(shop.store, PROMPT, TEXT)
    async with Runtime(store=shop.store) as runtime, shop.agent.session("s", runtime=runtime) as session:
        shop.store.full = True
        with pytest.raises(StoreFull):
            await session.ask("Go.", client_key="key of Go.")
        assert "s" not in runtime.active
        shop.store.full = False
        assert (await session.resume()).text == "Whole."


async def test_an_interruption_behind_an_answer_gives_no_turn_more():
    """A run whose turns are used up ends with the interruption; what was said for it is the next prompt."""
    agent, started = Agent(ScriptedModel(calls(call("wait"))), tools=[wait], max_turns=1), anyio.Event()
    async with agent.session("s") as session, anyio.create_task_group() as tasks:

        async def steer():
            await started.wait()
            await session.steer("Stop!", interrupt=True)

        tasks.start_soon(steer)
        shown = []
        async for message in session.ask("Go."):
            shown.append(message)
            if message.type == "stop":
                started.set()
        assert (shown[-1].query["cut"], len(agent.model.contexts)) == ("interrupted", 1)
        agent.model.turns = [answer("Stopped.")]
        assert (await session.resume()).text == "Stopped."


@tool(timeout=None)
async def wait() -> str:
    """Wait."""
    await anyio.sleep_forever()


@pytest.mark.parametrize("kept", [False, True], ids=["taken anew", "stands"])
async def test_a_call_that_was_cut_just_before_the_process_died_has_a_result(store, kept):
    """`budget(seconds=…)` writes the end of a half-written call, then its result."""
    half = Message(type="tool_call", content='{"pro', query={"tool": "ship", "id": "c2"}, more=True)
    closed = replace(half, content="", more=False, query={"cut": "budget", "args": None, "invalid": "truncated"})
    before = [CALL, result(CALL)] if kept else []
    async with Runtime(store=store) as runtime:
        await leave(store, PROMPT, *before, half, closed)
        async with Shop().agent.session("s", runtime=runtime) as session:
            assert (await session.resume()).text == "It is sent."
        rows = await check_session(store, crashed=True)
    [given] = [row for row in rows if row.type == "tool_result" and row.query["call"] == half.id]
    assert given.content.startswith("Not executed")
