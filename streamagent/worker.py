"""`Worker`: answers what waits in sessions that nobody drives, and goes on with runs whose process died."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol, TypeAlias, cast

from anyio import CancelScope, Event, create_task_group, current_time, move_on_after, sleep
from anyio.abc import TaskGroup

from .cancellation import raise_single
from .driver import RunReply
from .errors import ConfigError, HandedOver, LeaseLost, SessionBusy, StoreError
from .hooks import lane_of, settled
from .lineage import is_child
from .plan import Plan
from .postponed import Postponed
from .protocols import Bus, Order
from .runtime import Runtime
from .watch import check_seconds

logger = logging.getLogger("streamagent")

SWEEP = 1.0  # seconds
CONCURRENCY = 32  # runs: they wait for models most of the time, and share one thread for the rest
SPREAD = 4  # times as many sessions are looked up as there is room for, so that workers choose different ones
SOON = 0.05  # of a sweep: how long a worker waits that has room again and knows of more


class HasPlan(Protocol):
    """An agent."""

    @property
    def plan(self) -> Plan:
        """What answers."""
        ...


Answers: TypeAlias = Plan | HasPlan | None
PlanFor: TypeAlias = Callable[[str], Awaitable[Answers] | Answers]


class Worker:
    """Drives the sessions of a store that have something to do and no living owner; any number of workers share them.

    It looks every `sweep` seconds, and takes what the runtime's bus hands out. A session that fails, or in which
    nothing comes of it, is tried again later and later, and blocks no other one. The sessions of sub-agents are left
    to the runs that they belong to.

    Args:
        runtime: Where the sessions live; open. `run` ends when it is drained.
        plan_for: Gives the agent, or plan, that answers in a session, by its id; `None` for one that is not for this
            worker. It may be async.
        concurrency: How many sessions are driven at once.
        sweep: Time between two looks, in seconds.

    Raises:
        ConfigError: `concurrency` is no count, `sweep` no time, or `plan_for` cannot be called.
    """

    def __init__(
        self, runtime: Runtime, plan_for: PlanFor, *, concurrency: int = CONCURRENCY, sweep: float = SWEEP
    ) -> None:
        if not callable(plan_for):
            raise ConfigError(f"Worker takes a function of a session's id that returns an agent, not {plan_for!r:.80}")
        if not isinstance(concurrency, int) or concurrency < 1:
            raise ConfigError(f"Worker(concurrency=…) is 1 or more, not {concurrency!r:.80}")
        check_seconds("Worker(sweep=…)", sweep)
        self._runtime = runtime
        self._plan_for = plan_for
        self._concurrency = concurrency
        self._sweep = sweep
        self._driven: dict[str, Order | None] = {}
        self._postponed = Postponed(sweep)
        self._held: Order | None = None
        self._room = Event()

    async def run(self) -> None:
        """Work until the runtime is drained, or this is cancelled; returns when the last run is over.

        Raises:
            ConfigError: The runtime was not entered.
        """
        self._runtime.tasks  # noqa: B018 - raises when the runtime is not open
        try:
            async with create_task_group() as runs, create_task_group() as looking:
                looking.start_soon(self._look, runs)
                if self._runtime.bus is not None:
                    looking.start_soon(self._listen, self._runtime.bus, runs)
                    looking.start_soon(self._mark, self._runtime.bus)
                await self._runtime.draining.wait()
                looking.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise_single(group)

    @property
    def _free(self) -> int:
        return self._concurrency - len(self._driven)

    async def _look(self, runs: TaskGroup) -> None:
        """Find what waits, in intervals; sooner when there was more than could be taken."""
        while True:
            more = False
            try:
                more = await self._sweep_once(runs)
            except StoreError:
                logger.exception("cannot look for sessions that wait; it is tried again")
            pause = self._sweep * random.uniform(0.5, 1.5)  # noqa: S311 - so that workers do not look all at once
            if more:
                with move_on_after(pause):
                    await self._room.wait()
                pause = self._sweep * SOON
            await sleep(pause)

    async def _sweep_once(self, runs: TaskGroup) -> bool:
        """Drive as many sessions as there is room for; tell whether more wait."""
        if not self._free:
            return True
        # Those that were put off stand in front, because they wait longest.
        limit = self._free * SPREAD + len(self._postponed)
        found = [session for session in await self._runtime.store.unattended(limit=limit) if self._may(session)]
        random.shuffle(found)
        for session in found:
            if self._free < 1:
                return True
            self._begin(runs, session)
        return False

    def _may(self, session: str) -> bool:
        return self._is_idle(session) and self._postponed.is_due(session)

    def _is_idle(self, session: str) -> bool:
        """Nobody drives it in this process, nor will."""
        return not any(session in taken for taken in (self._driven, self._runtime.active, self._runtime.served))

    async def _listen(self, bus: Bus, runs: TaskGroup) -> None:
        try:
            async with aclosing(bus.listen()) as orders:
                while True:
                    await self._have_room()
                    self._held = order = await anext(orders)
                    await self._have_room()  # others may find it by looking meanwhile
                    self._held = None
                    if self._is_idle(order.session):
                        self._begin(runs, order.session, order)
                    else:  # whoever drives it sees what is new
                        await order.done()
        finally:
            if self._held is not None:
                with CancelScope(shield=True):  # bounded: a bus has its own patience
                    await self._held.again(0)

    async def _have_room(self) -> None:
        while not self._free:
            await self._room.wait()

    async def _mark(self, bus: Bus) -> None:
        """Say of what was handed out that it is being worked on."""
        while True:
            await sleep(bus.interval)
            for order in (self._held, *self._driven.values()):
                if order is not None:
                    await order.in_progress()

    def _begin(self, runs: TaskGroup, session: str, order: Order | None = None) -> None:
        self._driven[session] = order
        runs.start_soon(self._drive, session, name=f"streamagent worker {session}")

    async def _drive(self, session: str) -> None:
        """Drive one session until nothing waits in it; whatever fails of it is this session's business alone."""
        again, begun = False, current_time()
        try:
            if await self._answer(session):
                self._postponed.forget(session)
                told = {"session": session, "seconds": round(current_time() - begun, 3)}
                logger.info("answered what waited", extra=told)
            else:
                self._postponed.put_off(session, failed=False)
        except (SessionBusy, LeaseLost):  # another worker was faster, or took this one for dead
            logger.debug("session %s is another worker's", session)
        except HandedOver:
            again = True
        except StoreError:  # no fault of the session's
            logger.exception("session %s: the store failed; it is tried again", session)
            self._postponed.put_off(session, failed=False)
        except Exception:  # an agent's stages and hooks are foreign code, and a store may fail
            logger.exception("session %s failed; it is tried again later", session)
            self._postponed.put_off(session, failed=True)
        finally:
            order = self._driven.pop(session)
            room, self._room = self._room, Event()
            room.set()
        if order is not None:
            await (order.again(0) if again else order.done())

    async def _answer(self, session: str) -> bool:
        """Answer prompt after prompt; return whether anything was done."""
        agent = await settled(self._plan_for(session))
        if agent is None or await is_child(self._runtime.store, session):
            return False
        plan = agent if isinstance(agent, Plan) else cast("HasPlan", agent).plan
        done = False
        while True:
            said = False
            async with RunReply(self._runtime, session, plan) as reply:
                async for _ in reply:
                    said = True
            done |= said
            if not said or self._runtime.draining.is_set() or not await self._waits(session):
                return done

    async def _waits(self, session: str) -> bool:
        return any(lane_of(message) != "cancel" for message in await self._runtime.store.inbox(session))
