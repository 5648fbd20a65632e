"""Fault points: every place where a program may be hit, counted and named; and the loop that hits each of them.

async def scenario(points):
    async with Runtime(store=faulty(store, points)) as runtime, agent.session("s", runtime=runtime) as session:
        await session.ask("How many?")

async def check(points):
    await check_session(store)

await for_each_point(scenario, check)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar, Token
from itertools import count
from typing import Any, Self

from anyio.lowlevel import checkpoint

from streamagent.errors import ConfigError

Fault = BaseException | type[BaseException] | Callable[[], Any]

MOST = 100_000  # points: a scenario that passes more than this, or another number each time, does not end


class Crash(BaseException):
    """What a fault point raises by default: no `Exception`, so nothing takes it for a failure that was expected."""


class FaultPoints:
    """A plan of faults: it counts the points that a program passes, and acts at one of them, once.

    `with points:` lets `point` find the plan, also in tasks that are started within.

    Args:
        at: Number of the point at which to act, from 1; `None` to count alone.
        fault: An exception, or a class of one, that is raised there; or a function that is called, such as
            `partial(os._exit, 9)`.
        only: Beginning of the names of the points that count; others are passed as if they were not there.
        fatal: The exception is the end of the process: whatever still runs of it gets past no point any more, so that
            nothing is written behind it.

    Attributes:
        passed: Names of the points that were passed, in order.
        hit: Name of the point at which it acted; `None` before.
        raised: The exception that it raised.

    Raises:
        ConfigError: There is no such point.
    """

    def __init__(self, at: int | None = None, fault: Fault = Crash, *, only: str = "", fatal: bool = False) -> None:
        if at is not None and at < 1:
            raise ConfigError(f"points are numbered from 1, and there is no point {at}")
        self.at = at
        self.passed: list[str] = []
        self.hit: str | None = None
        self.raised: BaseException | None = None
        self._fault = fault
        self._only = only
        self._fatal = fatal
        self._numbers: Counter[str] = Counter()
        self._token: Token[FaultPoints | None] | None = None

    def __repr__(self) -> str:
        return f"<FaultPoints at={self.at} passed={len(self.passed)} hit={self.hit!r}>"

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._token is not None:
            _current.reset(self._token)

    def number(self, kind: str) -> int:
        """Count one more of a kind of things that have points, such as `store.write`; from 1."""
        self._numbers[kind] += 1
        return self._numbers[kind]

    def point(self, name: str) -> None:
        """Pass a point.

        Args:
            name: What is about to happen, or has just happened: `store.write 3 before`.

        Raises:
            BaseException: The plan's fault, if this is its point, or one behind a fatal one.
        """
        self._live()
        if not name.startswith(self._only):
            return
        self.passed.append(name)
        if len(self.passed) == self.at:
            self.hit = name
            self._act()

    async def pause(self, name: str) -> None:  # noqa: ARG002 - for plans that wait longer for some
        """Let other tasks run where a real store, model or tool would be waited for.

        Args:
            name: What is waited for: `store.write`, `model call 2`, `tool stock 1`.
        """
        await checkpoint()
        self._live()

    def _live(self) -> None:
        """Raise once more what the process has died of."""
        if self._fatal and self.raised is not None:
            raise self.raised

    def _act(self) -> None:
        fault = self._fault
        if isinstance(fault, type) and issubclass(fault, BaseException):
            self.raised = fault(f"at {self.hit}")
        elif isinstance(fault, BaseException):
            self.raised = fault
        else:
            fault()
        if self.raised is not None:
            raise self.raised


_current: ContextVar[FaultPoints | None] = ContextVar("streamagent_fault_points", default=None)


def point(name: str) -> None:
    """Pass a point of your own, in a tool or a stage; without a plan it does nothing.

    Args:
        name: What it is called.
    """
    plan = _current.get()
    if plan is not None:
        plan.point(name)


async def for_each_point(  # noqa: PLR0913 - all by keyword
    scenario: Callable[[FaultPoints], Awaitable[Any]],
    check: Callable[[FaultPoints], Awaitable[Any]] | None = None,
    *,
    fault: Fault = Crash,
    only: str = "",
    fatal: bool = False,
    limit: int = MOST,
) -> list[str]:
    """Fail at the first point, then at the second, and so on, until a run passes without coming to its point.

    Args:
        scenario: Runs from a fresh start each time, with the plan of that time; the fault may come out of it.
        check: Called after each run, the last one included: asserts what must hold, also after a fault.
        fault: See `FaultPoints`.
        only: See `FaultPoints`.
        fatal: See `FaultPoints`.
        limit: How many points there may be.

    Returns:
        Names of all points, in the order in which the last run passed them.

    Raises:
        AssertionError: There are more points than the limit, or none.
        BaseException: Whatever else scenario or check raise, with a note that names the point.
    """
    for at in count(1):
        plan = FaultPoints(at, fault, only=only, fatal=fatal)
        try:
            await _run(scenario, plan)
            if check is not None:
                await check(plan)
        except BaseException as error:
            error.add_note(f"fault point {at}: {plan.hit or 'none'}")
            raise
        if plan.hit is None:
            break
        if at >= limit:
            raise AssertionError(f"{limit} points were hit and the scenario has more; the last is {plan.hit!r}")
    if not plan.passed:
        raise AssertionError("the scenario passes no point; give its store to `faulty`, or its agent to `watched`")
    return plan.passed


async def _run(scenario: Callable[[FaultPoints], Awaitable[Any]], plan: FaultPoints) -> None:
    try:
        with plan:
            await scenario(plan)
    except BaseException as error:
        if plan.raised is None or any(one is not plan.raised for one in leaves(error)):
            raise


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Give the exceptions of a group, and of those in it; an exception alone is its own."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
