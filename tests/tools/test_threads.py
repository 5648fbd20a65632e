"""Threads that nobody waits for are counted, and too many are refused."""

import threading

import anyio
import pytest

from streamagent.errors import ToolError
from streamagent.tools import threads
from streamagent.tools.threads import _Call, run_in_thread

pytestmark = pytest.mark.anyio


class Hang:
    """A function that stays in its thread until it is let go."""

    def __init__(self):
        self.begun = threading.Event()
        self.released = threading.Event()
        self.ended = threading.Event()

    def __call__(self):
        self.begun.set()
        self.released.wait(30)
        self.ended.set()


@pytest.fixture
def hang():
    function = Hang()
    yield function
    function.released.set()


async def abandon(function, cancelled):
    """Start a call, wait until it runs, and cancel it."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_in_thread, function, cancelled)
        await anyio.to_thread.run_sync(function.begun.wait, 30)
        tasks.cancel_scope.cancel()


async def until_none_is_abandoned():
    with anyio.fail_after(30):
        while _Call.abandoned:
            await anyio.lowlevel.checkpoint()


async def test_a_call_returns_what_the_function_returns():
    """Nothing is left behind, and nothing is cancelled."""
    cancelled = threading.Event()
    assert await run_in_thread(lambda: 42, cancelled) == 42
    assert not cancelled.is_set()
    assert _Call.abandoned == 0


async def test_an_error_comes_out():
    """And the call counts as ended."""
    with pytest.raises(KeyError):
        await run_in_thread(lambda: {}["k"], threading.Event())
    assert _Call.abandoned == 0


async def test_a_cancelled_caller_does_not_wait(hang):
    """The thread is told, counted, and counted off when it ends."""
    cancelled = threading.Event()
    await abandon(hang, cancelled)
    assert cancelled.is_set()
    assert not hang.ended.is_set()
    assert _Call.abandoned == 1
    hang.released.set()
    await until_none_is_abandoned()
    assert hang.ended.is_set()


async def test_too_many_abandoned_calls_refuse_the_next(hang, monkeypatch):
    """Below the cap a call runs; at the cap it is refused, until one ends."""
    await abandon(hang, threading.Event())
    monkeypatch.setattr(threads, "MAX_ABANDONED", 2)
    assert await run_in_thread(lambda: 1, threading.Event()) == 1
    monkeypatch.setattr(threads, "MAX_ABANDONED", 1)
    with pytest.raises(ToolError, match="1 earlier calls were given up"):
        await run_in_thread(lambda: 1, threading.Event())
    hang.released.set()
    await until_none_is_abandoned()
    assert await run_in_thread(lambda: 1, threading.Event()) == 1


async def test_a_call_that_waits_for_a_thread_is_never_started_once_cancelled(hang, monkeypatch):
    """Only calls that run can be abandoned."""
    monkeypatch.setattr(threads, "THREADS", 1)
    ran = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_in_thread, hang, threading.Event())
        await anyio.to_thread.run_sync(hang.begun.wait, 30)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(run_in_thread, lambda: ran.append(1), threading.Event())
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert _Call.abandoned == 0
        hang.released.set()
    assert ran == []


async def test_a_call_that_was_left_before_its_thread_took_it_does_not_run():
    """The thread may come late."""
    ran = []
    call = _Call(lambda: ran.append(1))
    assert not call.leave()
    assert call() is None
    assert ran == []
    assert _Call.abandoned == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # under trio an abandoned thread keeps its place
async def test_calls_that_wait_for_a_place_are_refused_when_too_many_were_left_meanwhile(hang, monkeypatch):
    """A batch of calls that all hang: those that ran at once are left behind, and not one more."""
    monkeypatch.setattr(threads, "MAX_ABANDONED", 2)
    refused = []

    async def call(seconds):
        try:
            with anyio.move_on_after(seconds):
                await run_in_thread(hang, threading.Event())
        except ToolError:
            refused.append(True)

    async with anyio.create_task_group() as tasks:
        for number in range(threads.THREADS + 20):
            tasks.start_soon(call, 0.05 if number < threads.THREADS else 30)
    assert len(refused) == 20
    assert _Call.abandoned == threads.THREADS
    hang.released.set()
    await until_none_is_abandoned()
