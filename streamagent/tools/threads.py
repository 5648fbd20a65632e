"""Calls of synchronous functions in threads, which nobody can stop: those left behind are counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import anyio.to_thread
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

from streamagent.errors import ToolError

THREADS = 40  # anyio's own default; apart from it, so that tools that hang do not starve the application
MAX_ABANDONED = 32  # below THREADS: under trio an abandoned thread keeps its place, and a few must stay free

_limiter: RunVar[CapacityLimiter] = RunVar("streamagent_tool_threads")


class _Call:
    """One call, which may be left by the task that waits for it."""

    abandoned: ClassVar[int] = 0  # in this process
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._running = False
        self._left = False

    def __call__(self) -> Any:
        """Run the function in this thread, unless the call was left before it began, or too many were meanwhile."""
        with self._lock:
            _check()
            self._running = not self._left
        if not self._running:
            return None
        try:
            return self._function()
        except GeneratorExit as error:  # an event loop would close with it whatever waits for this thread
            raise ToolError(f"GeneratorExit: {error}") from error
        finally:
            with self._lock:
                self._running = False
                _Call.abandoned -= self._left

    def leave(self) -> bool:
        """Note that nobody waits any more; return whether the function still runs."""
        with self._lock:
            self._left = True
            _Call.abandoned += self._running
            return self._running


async def run_in_thread(function: Callable[[], Any], cancelled: threading.Event) -> Any:
    """Run `function` in a worker thread, with this task's context variables.

    A cancelled caller does not wait for the thread.

    Args:
        function: What to call.
        cancelled: Set when the caller went and the function still runs.

    Raises:
        ToolError: Too many abandoned calls still run.
    """
    _check()
    call = _Call(function)
    try:
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=_threads())
    finally:
        if call.leave():
            cancelled.set()


def _check() -> None:
    if _Call.abandoned >= MAX_ABANDONED:
        raise ToolError(
            f"not started: {_Call.abandoned} earlier calls were given up but still run in their threads; "
            "a tool must return, or look at its context's `cancelled`"
        )


def _threads() -> CapacityLimiter:
    """Return this event loop's limiter."""
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(THREADS)
        _limiter.set(limiter)
        return limiter
