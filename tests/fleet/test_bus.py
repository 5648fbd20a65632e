"""A bus is a hint: workers keep every promise with one that drops, doubles or holds back whatever it is told."""

import random
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import AsyncContextManagerMixin

from streamagent import Agent, MemoryStore, Runtime, Worker, tool
from tests.fleet.waiting import at_rest, until, working
from tests.scripted import ScriptedModel, answer, call, calls, check_rows

pytestmark = pytest.mark.anyio
NEVER = 3600.0  # seconds between two sweeps


class Order:
    def __init__(self, session, log):
        self.session = session
        self._log = log

    async def in_progress(self):
        self._log.append(("in progress", self.session))

    async def done(self):
        self._log.append(("done", self.session))

    async def again(self, delay):
        self._log.append(("again", self.session))


class FakeBus(AsyncContextManagerMixin):
    """Hands out each order `times` times, in an order of its own."""

    interval = 0.01

    def __init__(self, times=1):
        self.log = []
        self._times = times
        self._waiting = []
        self._news = anyio.Event()

    @asynccontextmanager
    async def __asynccontextmanager__(self):
        yield self

    async def announce(self, session):
        self._waiting += [session] * self._times
        random.Random(len(self._waiting)).shuffle(self._waiting)
        news, self._news = self._news, anyio.Event()
        news.set()

    async def listen(self):
        while True:
            if self._waiting:
                yield Order(self._waiting.pop(), self.log)
            else:
                await self._news.wait()


@pytest.fixture
def store(either_store):
    return either_store


@pytest.fixture
def ran():
    return []


@pytest.fixture
def agent(ran):
    @tool
    async def ship(order: str) -> str:
        """Ship something, once."""
        ran.append(order)
        return "shipped"

    class Clerk(ScriptedModel):
        async def stream(self, context, **options):
            *_, last = [message async for message in context]
            for message in calls(call("ship", order=last.content)) if last.role == "user" else answer("Well."):
                yield message

    return Agent(Clerk([]), tools=[ship])


@pytest.mark.parametrize(("times", "sweep"), [(0, 0.02), (1, NEVER), (3, NEVER), (3, 0.02)])
async def test_each_prompt_is_answered_once_whatever_the_bus_does(store, agent, ran, times, sweep):
    async with working(store, lambda _: agent, bus=FakeBus(times), sweep=sweep, concurrency=4) as runtime:
        for number in range(20):
            await runtime.submit(f"s{number % 10}", f"order {number}", client_key=str(number))
        for number in range(10):
            await until(lambda number=number: at_rest(store, f"s{number}"))
            await check_rows(store, f"s{number}")
    assert sorted(ran) == sorted(f"order {number}" for number in range(20))


async def test_an_order_is_marked_while_it_is_worked_on_and_then_done():
    store, bus, begun, may_end = MemoryStore(), FakeBus(), anyio.Event(), anyio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await may_end.wait()
        return "waited"

    agent = Agent(ScriptedModel(calls(call("wait")), answer("Well.")), tools=[wait])
    async with working(store, lambda _: agent, bus=bus, sweep=NEVER) as runtime:
        await anyio.wait_all_tasks_blocked()  # it has looked, and listens
        await runtime.submit("s", "hi")
        await begun.wait()
        await until(lambda: bus.log.count(("in progress", "s")) > 1)
        assert ("done", "s") not in bus.log
        may_end.set()
        await until(lambda: ("done", "s") in bus.log)
        assert await at_rest(store)


async def test_a_worker_that_is_full_keeps_an_order_until_it_has_room_and_gives_it_back_when_it_ends():
    store, bus, gate = MemoryStore(), FakeBus(), anyio.Event()

    class Slow(ScriptedModel):
        async def stream(self, context, **options):
            await gate.wait()
            async for message in super().stream(context, **options):
                yield message

    agent = Agent(Slow(answer("Well.")))
    async with Runtime(store=store, bus=bus) as runtime, anyio.create_task_group() as tasks:
        worker = Worker(runtime, lambda _: agent, concurrency=1, sweep=NEVER)
        tasks.start_soon(worker.run)
        await anyio.wait_all_tasks_blocked()
        await runtime.submit("a", "hi")
        await until(lambda: runtime.active)
        await runtime.submit("b", "hi")
        await anyio.wait_all_tasks_blocked()
        assert bus.log.count(("done", "a")) == 0  # it is full, and asks for nothing
        gate.set()
        await until(lambda: ("done", "b") in bus.log)
        await runtime.drain()
    assert ("again", "b") not in bus.log


async def test_a_session_that_fails_is_left_to_the_sweep(caplog):
    bus = FakeBus()

    def broken(_):
        raise RuntimeError("a bug")

    async with working(MemoryStore(), broken, bus=bus, sweep=NEVER) as runtime:
        await anyio.wait_all_tasks_blocked()
        await runtime.submit("s", "hi")
        await until(lambda: ("done", "s") in bus.log)
    assert "session s failed" in caplog.text


async def test_what_is_decided_or_steered_elsewhere_is_announced_and_what_runs_here_is_not():
    store, bus = MemoryStore(), FakeBus(0)
    announced = []
    announce = bus.announce

    async def noted(session):
        announced.append(session)
        await announce(session)

    bus.announce = noted

    @tool(requires_approval=True)
    async def refund() -> str:
        """Give money back."""
        return "refunded"

    agent = Agent(ScriptedModel(calls(call("refund")), answer("Done.")), tools=[refund])
    async with Runtime(store=store, bus=bus) as runtime, agent.session("s", runtime=runtime) as session:
        async for message in session.ask("Refund."):
            if message.type == "tool_call":
                await session.steer("Quickly.")
        assert announced == []
        [asked] = await session.pending()
        await session.approve(asked)
        assert announced == ["s"]
        await session.follow_up("And thanks.")
        await session.submit("Bye.")
        assert announced == ["s"] * 3
