"""One wait after the other, each of which may be ended from outside, without the price of a cancel scope for each.

A stream waits once for each fragment. anyio's cancel scopes cost 5 to 30 µs each there; under asyncio the same is had
from one timer a stream and `Task.cancel` with `Task.uncancel`, as in `asyncio.timeout` (PEP 492, bpo-46771).
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from time import monotonic
from types import coroutine
from typing import Any, TypeVar

from anyio import CancelScope, current_effective_deadline, current_time

T = TypeVar("T")

logger = logging.getLogger("streamagent")

AGAIN = 0.1  # seconds after which a wait that swallowed its end is ended again
GRACE = 1.0  # seconds for what is waited for to end when the wait is ended; then it is left
UNWINDING = 100  # awaits on the way out that are cut short, one for each `async with` or `finally` that waits


async def leaving(awaitable: Awaitable[T], cancelled: Callable[[], bool], grace: float) -> T:
    """Await something, and leave it when it goes on for too long after it was cancelled.

    It steps the coroutine as an event loop does, so it has the word each time that one is resumed. What is left ends by
    an exception of its own, is never resumed again, and what it waits for on its way out is not waited for. Out of
    reach is what is not resumed at all: a wait in a shield.

    Args:
        awaitable: What to await.
        cancelled: Tells whether its end is wanted; asked only when it was resumed by an exception.
        grace: How long it may go on then, in seconds.
    """
    result: T = await _stepped(awaitable.__await__(), None, cancelled, grace)
    return result


def _steps(
    steps: Any, thrown: BaseException | None, cancelled: Callable[[], bool], grace: float
) -> Generator[Any, Any, Any]:
    """Step what waits, first by this exception if there is one, until its end or until it is left."""
    error, value = thrown, None
    since: float | None = None
    try:
        while since is None or monotonic() - since <= grace:
            trap = steps.send(value) if thrown is None else steps.throw(thrown)
            if error is not None and cancelled():
                since = since or monotonic()
            else:
                error = since = None
            try:
                value = yield trap
                thrown, error = None, getattr(value, "error", error)  # trio sends an `outcome.Error`, it does not throw
            except BaseException as caught:  # noqa: BLE001 - it is thrown on
                error = thrown = caught
        _close(steps)
        raise error or Interrupted
    except StopIteration as end:
        return end.value
    finally:
        del error, thrown  # their tracebacks hold this frame


_stepped = coroutine(_steps)


class _Left(BaseException):
    """Ends what is left; unlike `GeneratorExit` it passes through generators that iterate generators (bpo-35409)."""


def _close(steps: Any) -> None:
    for _ in range(UNWINDING):
        try:
            steps.throw(_Left())
        except BaseException:  # noqa: BLE001 - it has ended; how does not matter any more
            return
    logger.warning("something that was cancelled goes on whatever is done, and was abandoned: %r", steps)


class Interrupted(Exception):
    """The wait was ended by `interrupt`, or at its deadline."""


class Waiter(ABC):
    """Waits for one thing at a time."""

    __slots__ = ()

    @property
    @abstractmethod
    def waiting(self) -> bool:
        """A task waits right now."""

    @abstractmethod
    def now(self) -> float:
        """Return the time on the event loop's clock; anyio would look up the loop for each chunk of an answer."""

    @abstractmethod
    def wait(self, awaitable: Awaitable[T], *, deadline: float = math.inf) -> Awaitable[T]:
        """Await something.

        Args:
            awaitable: What to await; it is cancelled when the wait is ended.
            deadline: When to end the wait, on the event loop's clock, in seconds.

        Raises:
            Interrupted: The wait was ended.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """End the wait, if there is one."""

    @abstractmethod
    def close(self) -> None:
        """Release the timer; idempotent."""


def make_waiter() -> Waiter:
    """Make the waiter of the event loop that runs."""
    try:
        return _TaskWaiter(asyncio.get_running_loop())
    except RuntimeError:
        return _ScopeWaiter()


class _ScopeWaiter(Waiter):
    """For trio: its cancel scopes are cheap, and there is nothing else."""

    __slots__ = ("_scope",)

    def __init__(self) -> None:
        self._scope: CancelScope | None = None

    @property
    def waiting(self) -> bool:
        return self._scope is not None

    def now(self) -> float:
        return current_time()

    async def wait(self, awaitable: Awaitable[T], *, deadline: float = math.inf) -> T:
        try:
            with CancelScope(deadline=deadline) as self._scope:
                return await leaving(awaitable, _is_cancelled, GRACE)
        finally:
            self._scope = None
        raise Interrupted

    def interrupt(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    def close(self) -> None:
        """Nothing is held between waits."""


def _is_cancelled() -> bool:
    return current_effective_deadline() == -math.inf


class _TaskWaiter(Waiter):
    """For asyncio: cancels the task that waits, and takes that back when it arrives."""

    __slots__ = ("_cuts", "_deadline", "_due", "_loop", "_task", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[object] | None = None
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # when the timer is; uvloop's has no `when` if that was over when it was set
        self._cuts = 0

    @property
    def waiting(self) -> bool:
        return self._task is not None

    def now(self) -> float:
        return self._loop.time()

    @coroutine
    def wait(self, awaitable: Awaitable[T], *, deadline: float = math.inf) -> Generator[Any, Any, T]:
        """Await something, as `leaving` does, whose own frames would cost as much again."""
        task = self._task = asyncio.current_task(self._loop)
        self._deadline = deadline
        steps: Any = awaitable.__await__()
        thrown: BaseException | None = None
        try:
            while thrown is None:
                trap = steps.send(None)
                if deadline < self._due:  # what never suspends needs no timer, and is not to be ended
                    self._set_timer(deadline)
                try:
                    yield trap
                except BaseException as caught:  # noqa: BLE001 - it is thrown on
                    thrown = caught
            result: T = yield from _steps(steps, thrown, self._is_cancelled, GRACE)
            return result  # noqa: TRY300 - a value that came in spite of the end is one
        except StopIteration as end:
            result = end.value
            return result
        except asyncio.CancelledError:
            if self._cuts and task is not None and task.cancelling() <= self._cuts:
                raise Interrupted from None
            raise
        finally:
            del thrown
            self._task = None
            while self._cuts and task is not None:
                self._cuts -= 1
                task.uncancel()

    def interrupt(self) -> None:
        if self._task is not None:
            self._cuts += 1
            self._task.cancel()
            self._set_timer(self._loop.time() + AGAIN)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._due = None, math.inf

    def _is_cancelled(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    def _check(self) -> None:
        """Look whether the wait is over time; one timer serves many waits, so most often it is not."""
        self._timer, self._due = None, math.inf
        if self._task is None:
            return
        if self._cuts or self._loop.time() >= self._deadline:
            self.interrupt()
        elif self._deadline < math.inf:
            self._set_timer(self._deadline)

    def _set_timer(self, when: float) -> None:
        self.close()
        self._timer, self._due = self._loop.call_at(when, self._check), when
