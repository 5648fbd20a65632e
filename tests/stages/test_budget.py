"""budget: never exceeded by more than one step (I19, F55, S27)."""

import math
from datetime import timedelta

import anyio
import pytest
from anyio.lowlevel import checkpoint

from streamagent import Agent, MemoryStore, Pipeline, persist, tool_dispatch
from streamagent.errors import ConfigError
from streamagent.message import Message, fold, utc_now
from streamagent.pipeline import describe, open_pipeline
from streamagent.stages.budget import budget
from streamagent.testing.stages import check_stage
from streamagent.tools.function import tool
from tests.scripted import ScriptedModel, call, check_rows, stock, text

pytestmark = pytest.mark.anyio
OWN_STORES = True


def asking(**query):
    """A turn that calls a tool."""
    return [call("stock", product="mug"), Message.stop("tool_calls", **query)]


def saying(*pieces, **query):
    """A turn that answers."""
    return [*text(*pieces), Message.stop("stop", **query)]


def agent(model, *limits, store=None):
    return Agent(
        model,
        tools=[stock],
        store=store,
        pipeline=Pipeline(reply=[*limits, tool_dispatch([stock]), persist()]),
        max_turns=10,
    )


async def run(model, *limits):
    agent_ = agent(model, *limits)
    async with agent_.session("s") as session:
        result = await session.ask("Go.")
        return result, await check_rows(agent_.store)


@pytest.mark.parametrize(("limit", "turns"), [(30, 3), (31, 4), (29, 3), (1, 1)])
async def test_the_turn_in_which_the_tokens_are_used_up_is_the_last(limit, turns):
    result, stored = await run(ScriptedModel(asking(usage={"total_tokens": 10}, model="m")), budget(tokens=limit))
    assert [m.type for m in stored].count("stop") == turns
    assert [m.query["is_error"] for m in stored if m.type == "tool_result"] == [False] * turns
    assert result.stop.query == {
        "reason": "budget",
        "limit": {"tokens": limit, "scope": "run"},
        "usage": {"total_tokens": 10},
        "model": "m",
    }


async def test_attempts_that_failed_count_too():
    failed = [{"usage": {"prompt_tokens": 5, "completion_tokens": 1}}, {"error": {}}]
    model = ScriptedModel(asking(usage={"total_tokens": 4}, attempts=failed))
    _, stored = await run(model, budget(tokens=11))
    assert [m.type for m in stored].count("stop") == 2


async def test_an_answer_that_is_complete_keeps_its_own_reason():
    result, _ = await run(ScriptedModel(saying("x", usage={"total_tokens": 99})), budget(tokens=10))
    assert (result.text, result.reason) == ("x", "stop")


@pytest.mark.parametrize("limits", [{"tokens": 0}, {"cost": 0}, {"turns": 0}])
async def test_a_budget_of_nothing_asks_no_model(limits):
    model = ScriptedModel(saying("x"))
    result, stored = await run(model, budget(**limits))
    assert (model.contexts, [m.type for m in stored]) == ([], ["text", "stop"])
    assert result.stop.query == {"reason": "budget", "limit": {**limits, "scope": "run"}}


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_so_many_turns_and_no_other(turns):
    model = ScriptedModel(asking())
    result, _ = await run(model, budget(turns=turns))
    assert len(model.contexts) == turns
    assert result.stop.query["limit"] == {"turns": turns, "scope": "run"}


@pytest.mark.parametrize(("number", "reason"), [(2, "stop"), (1, "budget")])
async def test_the_call_beyond_the_limit_does_not_pass(number, reason):
    turns = [asking(usage={"total_tokens": 1}), asking(usage={"total_tokens": 7}), saying("x")]
    result, stored = await run(ScriptedModel(*turns), budget(tool_calls=number))
    assert [m.type for m in stored].count("tool_call") == number
    assert result.reason == reason
    if reason == "budget":
        assert result.stop.query["limit"] == {"tool_calls": 1, "scope": "run"}
        assert result.usage == {"total_tokens": 7}


async def test_a_refused_call_that_streams_ends_the_turn_at_once():
    opened = Message(type="tool_call", query={"tool": "stock", "id": "c1"}, more=True)
    seen = await check_stage(budget(tool_calls=0), [Message.user("?"), opened, *saying("never read")])
    assert [m.type for m in seen] == ["text", "stop"]
    assert seen[-1].query["reason"] == "budget"


async def test_a_refused_call_that_came_whole_is_left_out_and_the_turn_read_to_its_stop():
    seen = fold(await check_stage(budget(tool_calls=0), asking(usage={"total_tokens": 1})))
    assert [m.query for m in seen] == [
        {"reason": "budget", "limit": {"tool_calls": 0, "scope": "run"}, "usage": {"total_tokens": 1}}
    ]


async def test_cost_is_what_the_model_says():
    model = ScriptedModel(asking(cost=0.5))
    result, stored = await run(model, budget(cost=1.0))
    assert [m.query["cost"] for m in stored if m.type == "stop"] == [0.5, 0.5]
    assert result.stop.query["limit"] == {"cost": 1.0, "scope": "run"}


async def test_a_price_of_ones_own_goes_first():
    asked = []

    def price(model, usage):
        asked.append(model)
        return usage["total_tokens"] / 100

    failed = [{"usage": {"total_tokens": 10}}]
    turn = asking(usage={"total_tokens": 40}, model="m", cost=9.0, attempts=failed)
    _, stored = await run(ScriptedModel(turn), budget(cost=1.0, price=price))
    assert [m.query["cost"] for m in stored if m.type == "stop"] == [0.5, 0.5]
    assert asked == ["m"] * 4


async def test_a_turn_that_nobody_counted_or_priced_is_nothing_and_says_so():
    model = ScriptedModel(asking(), asking(usage={"total_tokens": 9}), saying("x", usage={"total_tokens": 1}, cost=0.1))
    limits = budget(tokens=10, cost=1, price=lambda _, usage: None if usage["total_tokens"] > 5 else 0.1)
    _, stored = await run(model, limits)
    uncounted = [m.query.get("uncounted") for m in stored if m.type == "stop"]
    assert uncounted == [["tokens", "cost"], ["cost"], None]


async def test_the_stop_of_another_limit_is_no_turn():
    other = Message.stop("turn_limit", limit={"turns": 1})
    assert await check_stage(budget(tokens=5), [other]) == [other]


async def test_a_follow_up_behind_a_used_up_budget_is_told():
    """The same run answers it, so the same budget counts."""
    limited = agent(ScriptedModel(saying("x", usage={"total_tokens": 10})), budget(tokens=10))
    async with limited.session("s") as session:
        await session.follow_up("Two.")
        result = await session.ask("One.")
    assert [m.query["reason"] for m in result if m.type == "stop"] == ["stop", "budget"]


async def test_each_prompt_of_a_queue_has_a_budget_of_its_own():
    store = MemoryStore()
    for prompt in ("One.", "Two."):
        await store.enqueue("s", Message.user(prompt))
    limited = agent(ScriptedModel(saying("x", usage={"total_tokens": 10})), budget(tokens=10), store=store)
    async with limited.session("s") as session:
        result = await session.ask("Three.")
    assert [m.query["reason"] for m in result if m.type == "stop"] == ["stop", "stop", "stop"]


async def test_a_session_counts_what_is_stored_of_it():
    store = MemoryStore()
    model = ScriptedModel(saying("x", usage={"total_tokens": 5}))
    limited = agent(model, budget(tokens=10, scope="session"), store=store)
    async with limited.session("s") as session:
        assert [(await session.ask("Go.")).reason for _ in range(4)] == ["stop", "stop", "budget", "budget"]
    async with limited.session("other") as session:
        assert (await session.ask("Go.")).reason == "stop"
    assert len(model.contexts) == 3


async def test_a_session_counts_its_calls_and_turns():
    model = ScriptedModel(asking(), saying("x"), asking())
    limited = agent(model, budget(tool_calls=1, scope="session"))
    async with limited.session("s") as session:
        assert (await session.ask("Go.")).reason == "stop"
        assert (await session.ask("Go.")).stop.query["limit"] == {"tool_calls": 1, "scope": "session"}
    limited = agent(ScriptedModel(saying("x")), budget(turns=1, scope="session"))
    async with limited.session("s") as session:
        assert [(await session.ask("Go.")).reason for _ in range(2)] == ["stop", "budget"]


async def test_a_day_counts_all_sessions_since_midnight():
    store = MemoryStore()
    before = Message(type="stop", query={"usage": {"total_tokens": 99}}, created_at=utc_now() - timedelta(days=1))
    await store.write("old", [before], fence=await store.acquire("old"))
    limited = agent(ScriptedModel(saying("x", usage={"total_tokens": 5})), budget(tokens=10, scope="day"), store=store)
    reasons = []
    for name in ("old", "a", "b"):
        async with limited.session(name) as session:
            reasons.append((await session.ask("Go.")).reason)
    assert reasons == ["stop", "stop", "budget"]


async def test_what_others_spend_today_ends_a_run_between_its_turns():
    store = MemoryStore()

    @tool
    async def stock(product: str) -> int:
        """Another session spends."""
        spent = Message.stop("stop", usage={"total_tokens": 99})
        await store.write("other", [spent], fence=await store.acquire("other"))
        return 1

    stages = Pipeline(reply=[budget(tokens=50, scope="day"), tool_dispatch([stock]), persist()])
    model = ScriptedModel(asking(usage={"total_tokens": 5}))
    async with Agent(model, store=store, pipeline=stages).session("s") as session:
        result = await session.ask("Go.")
    assert [m.query["reason"] for m in result if m.type == "stop"] == ["tool_calls", "budget"]
    assert len(model.contexts) == 1


# seconds


def timed(model, seconds, *tools):
    stages = Pipeline(reply=[tool_dispatch(tools), budget(seconds=seconds), persist()])
    return Agent(model, tools=tools, pipeline=stages)


class Limit:
    """The time of a run, which is over when a test says so, whatever the clock says."""

    def __init__(self):
        self._is_over = False
        self._live = None

    def scope(self, *, deadline):
        self._live = anyio.CancelScope(deadline=-math.inf if self._is_over and deadline < math.inf else deadline)
        return self._live

    def end(self):
        self._is_over = True
        self._live.deadline = -math.inf

    async def end_after(self, event):
        await event.wait()
        self.end()


@pytest.fixture
def limit(monkeypatch):
    limit = Limit()
    monkeypatch.setattr("streamagent.stages._time_budget.CancelScope", limit.scope)
    return limit


async def test_a_model_that_does_not_end_is_cut_and_what_it_said_is_kept(limit):
    opened = Message(type="tool_call", query={"tool": "stock", "id": "c1"}, more=True)
    model = ScriptedModel([*text("I look")[:-1], opened])
    agent_ = timed(model, 1000, stock)
    async with agent_.session("s") as session, anyio.create_task_group() as tasks:
        tasks.start_soon(limit.end_after, model.hangs)
        result = await session.ask("Go.")
        stored = await check_rows(agent_.store)
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "estimated": 1}
    assert result.stop.query == {"reason": "budget", "limit": {"seconds": 1000, "scope": "run"}, "usage": usage}
    assert [(m.type, (m.query or {}).get("cut")) for m in stored[1:]] == [
        ("text", "budget"),
        ("tool_call", "budget"),
        ("tool_result", "budget"),
        ("stop", None),
    ]
    assert model.closed == 1


async def test_a_call_that_it_cut_has_a_result_also_when_a_stage_fails_between_the_two():
    async def broken(stream):
        async for message in stream:
            if message.type == "tool_result":
                raise ValueError("a bug")
            yield message

    opened = Message(type="tool_call", query={"tool": "stock", "id": "c1"}, more=True)
    stages = Pipeline(reply=[tool_dispatch([stock]), budget(seconds=0.5), broken, persist()])
    agent_ = Agent(ScriptedModel([opened]), tools=[stock], pipeline=stages)
    async with agent_.session("s") as session:
        with pytest.raises(ValueError, match="a bug"):
            await session.ask("Go.")
        stored = await check_rows(agent_.store)
    assert [(m.type, (m.query or {}).get("cut")) for m in stored[1:]] == [
        ("tool_call", "budget"),
        ("tool_result", "error"),
        ("stop", None),
    ]


async def test_a_tool_that_never_returns_is_cut_and_its_sibling_keeps_its_result():
    @tool
    async def hang() -> str:
        """Never return."""
        await anyio.sleep_forever()

    @tool
    async def count() -> int:
        """Return at once."""
        return 15

    both = [call("hang", "c1"), call("count", "c2"), Message.stop("tool_calls")]
    agent_ = timed(ScriptedModel(both), 1, hang, count)
    async with agent_.session("s") as session:
        assert (await session.ask("Go.")).reason == "budget"
        stored = await check_rows(agent_.store)
        results = [m for m in stored if m.type == "tool_result"]
    assert [m.content for m in results] == [
        "Stopped: the time of 1 s for this run was over before this call finished.",
        "15",
    ]
    assert [m.query["is_error"] for m in results] == [True, False]


async def test_the_time_is_that_of_the_clock():
    agent_ = timed(ScriptedModel(text("Hm")[:-1]), 0.01, stock)
    async with agent_.session("s") as session:
        assert (await session.ask("Go.")).reason == "budget"
        await check_rows(agent_.store)


async def test_within_the_time_nothing_changes():
    turns = [asking(), saying("x")]
    agent_ = timed(ScriptedModel(*turns), 1000, stock)
    async with agent_.session("s") as session:
        assert (await session.ask("Go.")).text == "x"
        await check_rows(agent_.store)


async def test_an_answer_that_is_complete_is_not_cut_any_more():
    async def source():
        yield Message.stop("stop")
        await checkpoint()  # would be cut here

    async with open_pipeline(source(), budget(seconds=0.01)) as tail:
        assert (await anext(tail)).query["reason"] == "stop"
        over = anyio.current_time() + 0.01
        while anyio.current_time() <= over:
            await checkpoint()
        assert [m async for m in tail] == []


async def test_in_front_of_tool_dispatch_it_says_where_to_stand():
    stages = Pipeline(reply=[budget(seconds=1000), tool_dispatch([stock]), persist()])
    async with Agent(ScriptedModel(asking(), saying("x")), pipeline=stages).session("s") as session:
        with pytest.raises(ConfigError, match="behind tool_dispatch"):
            await session.ask("Go.")


def test_it_prints_as_it_was_written():
    assert describe(budget(seconds=5)) == "budget(seconds=5)"
    assert "tokens=7" in describe(budget(tokens=7))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"tokens": -1}, "0 or more"),
        ({"cost": float("nan")}, "0 or more"),
        ({"seconds": 0}, "above 0"),
        ({"scope": "week"}, "'week'"),
        ({"seconds": 5, "tokens": 5}, "behind tool_dispatch"),
        ({"seconds": 5, "scope": "day"}, "per run"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        budget(**wrong)
