"""throttle: so many a minute, first come, first served."""

import math

import anyio
import pytest
import trio.testing

from streamagent import Agent, MemoryStore, Pipeline, Runtime, persist, tool_dispatch
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.stages import throttle as module
from streamagent.stages.throttle import throttle
from streamagent.testing.stages import check_stage
from tests.scripted import ScriptedModel, answer, call, check_rows, stock, text

pytestmark = pytest.mark.anyio
OWN_STORES = True


class Clock:
    """Virtual time: sleeping moves it."""

    def __init__(self):
        self.now = 1000.0
        self.naps = []

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.naps.append(seconds)
        await anyio.lowlevel.checkpoint()
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def said(tokens):
    return [*text("x"), Message.stop("stop", usage={"total_tokens": tokens})]


def agent(stage, model=None, **options):
    stages = Pipeline(reply=[stage, tool_dispatch([stock]), persist()])
    return Agent(model or ScriptedModel(answer("x")), pipeline=stages, **options)


async def ask(stage, number, **options):
    async with agent(stage, **options).session("s") as session:
        return [await session.ask("Go.") for _ in range(number)]


@pytest.mark.parametrize(("number", "naps"), [(3, []), (4, [20.0]), (5, [20.0, 20.0])])
async def test_the_request_beyond_the_rate_waits_for_its_share_of_the_minute(clock, number, naps):
    await ask(throttle(requests_per_minute=3, clock=clock, sleep=clock.sleep), number)
    assert clock.naps == naps


async def test_every_turn_of_a_run_is_a_request(clock):
    turns = [[call("stock", product="mug"), Message.stop("tool_calls")], answer("x")]
    stage = throttle(requests_per_minute=1, clock=clock, sleep=clock.sleep)
    [result] = await ask(stage, 1, model=ScriptedModel(*turns))
    assert (result.text, clock.naps) == ("x", [60.0])


@pytest.mark.parametrize(("used", "nap"), [(100, []), (200, [60.0])])
async def test_tokens_beyond_the_rate_delay_the_next_request(clock, used, nap):
    """The second request takes as many as the first one used, so it fits when half of the rate was used."""
    stage = throttle(tokens_per_minute=200, clock=clock, sleep=clock.sleep)
    await ask(stage, 2, model=ScriptedModel(said(used)))
    assert clock.naps == nap


async def test_what_was_guessed_too_high_is_given_back(clock):
    stage = throttle(tokens_per_minute=100, clock=clock, sleep=clock.sleep)
    await ask(stage, 4, model=ScriptedModel(said(50), said(0), said(50)))
    assert clock.naps == [30.0]  # after 50, 0 and 50 of 100 the fourth wants 50 more


async def test_a_turn_that_nobody_counted_used_what_was_guessed(clock):
    stage = throttle(tokens_per_minute=100, clock=clock, sleep=clock.sleep)
    await ask(stage, 3, model=ScriptedModel(said(50), [*text("x"), Message.stop("stop")]))
    assert clock.naps == [30.0]


async def test_sessions_share_the_rate_and_go_in_the_order_in_which_they_came():
    naps, order = [], []

    async def sleep(seconds):
        naps.append(seconds)
        await anyio.lowlevel.checkpoint()

    shared = agent(throttle(requests_per_minute=2, clock=lambda: 0.0, sleep=sleep))

    async def one(runtime, name):
        async with shared.session(name, runtime=runtime) as session:
            await session.ask("Go.")
            order.append(name)

    async with Runtime(store=MemoryStore()) as runtime, anyio.create_task_group() as tasks:
        for name in ("a", "b", "c", "d", "e"):
            tasks.start_soon(one, runtime, name)
            await anyio.wait_all_tasks_blocked()
    assert naps == [30.0, 60.0, 90.0]
    assert order == ["a", "b", "c", "d", "e"]


async def test_two_throttles_know_nothing_of_each_other(clock):
    for _ in range(2):
        await ask(throttle(requests_per_minute=1, clock=clock, sleep=clock.sleep), 1)
    assert clock.naps == []


async def test_each_key_has_its_own_rate_and_old_ones_are_forgotten(clock, monkeypatch):
    monkeypatch.setattr(module, "_KEYS", 2)
    stage = throttle(requests_per_minute=1, key=lambda run: run.session, clock=clock, sleep=clock.sleep)
    shared = agent(stage)

    async def go(name):
        async with shared.session(name) as session:
            await session.ask("Go.")

    for name in ("a", "b", "c", "a"):
        await go(name)
    assert clock.naps == [60.0]  # a's second: it was not forgotten, because it was not full
    clock.now += 120
    await go("d")
    [meters] = [cell.cell_contents for cell in stage.__closure__ if type(cell.cell_contents).__name__ == "_Meters"]
    assert set(meters._by_name) == {"d"}


async def test_several_prompts_in_a_row_make_one_request(clock):
    stage = throttle(requests_per_minute=1, clock=clock, sleep=clock.sleep)
    await check_stage(stage, [Message.user("One."), Message.user("Two."), *said(1)])
    assert clock.naps == []


async def test_who_would_wait_beyond_the_longest_wait_is_told_and_takes_nothing(clock):
    stage = throttle(requests_per_minute=1, max_wait=59.9, clock=clock, sleep=clock.sleep)
    limited = agent(stage)
    async with limited.session("s") as session:
        assert (await session.ask("Go.")).reason == "stop"
        for _ in range(2):
            stop = (await session.ask("Go.")).stop
            assert stop.query == {"reason": "throttle", "limit": {"requests_per_minute": 1}, "retry_after": 60.0}
        await check_rows(limited.store)
        clock.now += 0.1
        assert (await session.ask("Go.")).reason == "stop"


async def test_nobody_waits_beyond_the_deadline_of_the_run(clock):
    stage = throttle(tokens_per_minute=60, clock=clock, sleep=clock.sleep)
    results = await ask(stage, 2, model=ScriptedModel(said(90)), timeout=100)
    assert [result.reason for result in results] == ["stop", "throttle"]
    assert results[-1].stop.query["limit"] == {"tokens_per_minute": 60}
    assert clock.naps == []


async def test_who_is_cancelled_while_he_waits_gives_his_place_back(clock):
    asleep = anyio.Event()

    async def sleep(_):
        asleep.set()
        await anyio.sleep_forever()

    limited = agent(throttle(requests_per_minute=1, max_wait=60, clock=clock, sleep=sleep))
    async with limited.session("s") as session:
        await session.ask("Go.")
        async with anyio.create_task_group() as tasks:
            reply = session.ask("Go.")
            tasks.start_soon(reply.result)
            await asleep.wait()
            await reply.cancel()
        clock.now += 60
        assert (await session.ask("Go.")).reason == "stop"
        await check_rows(limited.store)


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})])
async def test_it_sleeps_by_the_event_loop(anyio_backend):
    started = anyio.current_time()
    await ask(throttle(requests_per_minute=2, clock=anyio.current_time), 5)
    assert anyio.current_time() - started == pytest.approx(90)


@pytest.mark.parametrize(
    "wrong",
    [{"requests_per_minute": 0}, {"tokens_per_minute": -1}, {"tokens_per_minute": math.nan}, {"max_wait": -1}],
)
def test_a_rate_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match="throttle"):
        throttle(**wrong)
