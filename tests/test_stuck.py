"""Tools, models and viewers that hang: the run ends within its bound, the session goes on, and nothing is left."""

import threading
from contextlib import contextmanager, suppress
from time import monotonic

import anyio
import pytest
from anyio.lowlevel import checkpoint

from streamagent import Agent, Runtime, tool
from streamagent.message import Message, new_id
from streamagent.stores.memory import MemoryStore
from streamagent.tools.threads import _Call
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, text

pytestmark = pytest.mark.anyio
OWN_STORES = True

BOUND = 3.0  # seconds: what a test allows for an end whose grace was set to a tenth of a second


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    for name in ("waiting.GRACE", "pipeline.GRACE", "tasks.CLEANUP_TIMEOUT"):
        monkeypatch.setattr(f"streamagent.{name}", 0.1)


@contextmanager
def within(seconds=BOUND):
    """Assert that the block takes no longer."""
    begun = monotonic()
    yield
    assert monotonic() - begun < seconds


async def swallow():
    """Ignore every cancellation, for ever."""
    while True:
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()


async def swallow_everything():
    """Ignore every exception, some fifty times."""
    for _ in range(50):
        with suppress(BaseException):
            await anyio.sleep_forever()


@tool
async def deaf() -> str:
    """Never return, and never listen."""
    await swallow()


class DeafModel(ScriptedModel):
    """Says one word in its first turn, then never listens; answers the turns after it."""

    def __init__(self, hang=swallow):
        super().__init__(answer("Here again."))
        self.hang = hang
        self.turn = 0
        self.hanging = anyio.Event()

    async def stream(self, context, **options):
        self.turn += 1
        if self.turn > 1:
            async for message in super().stream(context, **options):
                yield message
            return
        yield Message(content="half", more=True)
        self.hanging.set()
        await self.hang()


class EndlessModel(ScriptedModel):
    """Talks for ever, with or without waiting."""

    def __init__(self, *, waits):
        super().__init__(answer("Here again."))
        self.waits = waits
        self.turn = 0

    async def stream(self, context, **options):
        self.turn += 1
        id_ = new_id()
        while self.turn == 1:
            if self.waits:
                await checkpoint()
            yield Message(id=id_, content="x", more=True)
        async for message in super().stream(context, **options):
            yield message


async def until_over(runtime):
    """Wait for the end of the session's run; when everything waits it has begun."""
    await anyio.wait_all_tasks_blocked()
    if reply := runtime.active.get("s"):
        await reply.wait()


async def still_usable(session, store, *reasons):
    """The run ended for one of these reasons, and the next prompt is answered."""
    stored = await check_rows(store)
    assert stored[-1].query["reason"] in reasons
    assert (await session.ask("And now?")).text == "Here again."
    await check_rows(store)


@pytest.mark.parametrize("hang", [swallow, swallow_everything])
async def test_a_model_that_swallows_its_cancellation_ends_at_the_deadline(hang):
    agent = Agent(DeafModel(hang), timeout=0.05)
    before = anyio.get_running_tasks()
    with within():
        async with agent.session("s") as session:
            ends = ("deadline", "error")  # one that ends in spite of all has had the last word
            assert (await session.ask("Go.")).reason in ends
            await still_usable(session, agent.store, *ends)
    assert len(anyio.get_running_tasks()) == len(before)


async def test_a_model_that_swallows_its_cancellation_ends_on_cancel():
    agent = Agent(DeafModel())
    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        reply = session.ask("Go.")
        tasks.start_soon(reply.result)
        await agent.model.hanging.wait()
        with within():
            assert await session.cancel(reason="enough")
        await still_usable(session, agent.store, "aborted")


async def test_a_model_that_talks_on_when_it_is_cancelled_is_not_listened_to():
    class Talkative(DeafModel):
        async def stream(self, context, **options):
            while not self.turn:
                self.hanging.set()
                with suppress(anyio.get_cancelled_exc_class()):
                    await anyio.sleep_forever()
                yield Message(content="and another thing")
            async for message in super().stream(context, **options):
                yield message

    agent = Agent(Talkative())
    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        reply = session.ask("Go.")
        await anext(reply)
        tasks.start_soon(anext, reply)
        await agent.model.hanging.wait()
        with within():
            assert await session.cancel()
        agent.model.turn = 1
        await still_usable(session, agent.store, "aborted")


async def test_a_consumer_that_is_cancelled_is_not_held_by_such_a_model():
    agent, scope, left = Agent(DeafModel()), anyio.CancelScope(), anyio.Event()

    async def ask():
        with scope:
            await session.ask("Go.")
        left.set()

    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await agent.model.hanging.wait()
        with within():
            scope.cancel()
            await left.wait()
        assert scope.cancelled_caught
        await still_usable(session, agent.store, "aborted")


@pytest.mark.parametrize("waits", [True, False])
async def test_a_model_that_never_ends_is_stopped_at_the_deadline(waits):
    agent = Agent(EndlessModel(waits=waits), timeout=0.05)
    async with agent.session("s") as session:
        with within():
            async for message in session.ask("Go."):
                last = message
        assert last.query["reason"] == "deadline"
        await still_usable(session, agent.store, "deadline")


async def test_a_model_that_swallows_its_closing_is_abandoned():
    class Clingy(DeafModel):
        async def stream(self, context, **options):
            try:
                async for message in super().stream(context, **options):
                    yield message
            finally:
                if self.turn == 1:
                    await swallow()

    agent = Agent(Clingy(anyio.sleep_forever), timeout=0.05)
    async with agent.session("s") as session:
        with within(8.0):  # the chain has its five seconds
            assert (await session.ask("Go.")).reason == "deadline"
        await still_usable(session, agent.store, "deadline")


async def test_a_tool_that_swallows_its_cancellation_ends_at_the_deadline_and_is_left():
    agent = Agent(ScriptedModel(calls(call("deaf")), answer("Here again.")), tools=[deaf], timeout=0.05)
    before = anyio.get_running_tasks()
    with within():
        async with agent.session("s") as session:
            result = await session.ask("Go.")
            assert [m.query["is_error"] for m in result if m.type == "tool_result"] == [True]
            await still_usable(session, agent.store, "deadline")
    assert len(anyio.get_running_tasks()) == len(before)


async def test_such_a_tool_does_not_hold_a_cancel_either():
    agent = Agent(ScriptedModel(calls(call("deaf")), answer("Here again.")), tools=[deaf])
    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        reply = session.ask("Go.")
        tasks.start_soon(reply.result)
        await anyio.wait_all_tasks_blocked()
        with within():
            assert await session.cancel()
        await still_usable(session, agent.store, "aborted")


async def test_a_thread_that_never_listens_is_left_and_counted():
    released = threading.Event()
    running = anyio.Event()
    before = _Call.abandoned

    @tool
    def hang() -> str:
        """Wait for the end of the test."""
        anyio.from_thread.run_sync(running.set)
        released.wait(60)
        return "late"

    agent = Agent(ScriptedModel(calls(call("hang")), answer("Here again.")), tools=[hang])
    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        reply = session.ask("Go.")
        tasks.start_soon(reply.result)
        await running.wait()
        with within():
            assert await session.cancel()
        assert _Call.abandoned == before + 1
        released.set()
        await still_usable(session, agent.store, "aborted")


async def test_a_pull_reply_that_nobody_pulls_ends_at_its_deadline():
    runtime = Runtime(store=MemoryStore(), poll=0.01)
    agent = Agent(ScriptedModel(calls(call("deaf")), answer("Here again.")), tools=[deaf], timeout=0.05)
    async with runtime, agent.session("s", runtime=runtime) as session:
        reply = session.ask("Go.")
        while (await anext(reply)).type != "tool_call":
            pass
        with within():
            await reply.wait()
        await still_usable(session, runtime.store, "deadline")


def long_answer():
    return [*[m for _ in range(200) for m in text("x")], Message.stop("stop")]


async def test_a_viewer_that_never_reads_does_not_hold_its_run_past_the_deadline():
    runtime = Runtime(store=MemoryStore(), poll=0.01)
    agent = Agent(ScriptedModel(long_answer(), answer("Here again.")), timeout=0.05)
    async with runtime, agent.session("s", runtime=runtime) as session:
        await session.send("Go.")
        with within():
            await until_over(runtime)
        stored = await check_rows(runtime.store)
        assert stored[-1].query["reason"] == "deadline"
        await session.send_eof()
        shown = [message async for message in session]  # late, but whole
        assert {message.id for message in stored} == {message.id for message in shown}
        assert shown[-1].query["reason"] == "deadline"
        assert (await session.ask("And now?")).text == "Here again."


@pytest.mark.parametrize("reads", [True, False])
async def test_everything_stuck_at_once(reads):
    """Model or viewer, async tool and thread: the run ends by its deadline, and leaving the runtime is bounded too."""
    released = threading.Event()

    @tool
    def hang() -> str:
        """Wait for the end of the test."""
        released.wait(60)
        return "late"

    class Stuck(DeafModel):
        async def stream(self, context, **options):
            if not self.turn:
                for message in (call("deaf", "c1"), call("hang", "c2"), *([] if reads else long_answer()[:-1])):
                    yield message
            async for message in super().stream(context, **options):
                yield message

    agent = Agent(Stuck(), tools=[deaf, hang], timeout=1.0)
    before = anyio.get_running_tasks()
    with within(5.0):
        async with Runtime(store=MemoryStore(), poll=0.01) as runtime, agent.session("s", runtime=runtime) as session:
            await session.send("Go.")
            while reads and (await session.receive()).type != "stop":
                pass
            await until_over(runtime)
            assert agent.model.hanging.is_set() == reads
            agent.model.turn = 1
            await still_usable(session, runtime.store, "deadline")
    released.set()
    assert len(anyio.get_running_tasks()) == len(before)
