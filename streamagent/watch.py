"""Ending runs from outside: `cancel`, which reaches other processes, and the task of a runtime that looks for it."""

from __future__ import annotations

import logging
import math
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import Event, current_time, sleep

from .errors import ConfigError, LeaseLost, StoreError
from .message import Message, clean_text, new_id
from .prompts import may_go_on
from .protocols import Store
from .settle import settle

if TYPE_CHECKING:
    from .driver import RunReply
    from .run import Run
    from .runtime import Runtime
    from .settle import Cause

logger = logging.getLogger("streamagent")

POLL = 0.25  # seconds: a cancel from another process feels prompt, and 4 questions a second are no load
CANCEL_TIMEOUT = 30.0  # seconds: twice what a run takes to end when everything in it is stuck


class Watch:
    """Ends the runs of a runtime that were cancelled in another one, and those that nobody reads at their deadline.

    It also wakes the sessions that are served and paused, when something was decided about their calls in another one.
    One task asks one question for all active sessions, and one for all others that are served, in each interval;
    without any it sleeps.

    Args:
        runtime: Whose runs.
        poll: Time between two looks, in seconds.
    """

    def __init__(self, runtime: Runtime, poll: float) -> None:
        self._runtime = runtime
        self._poll = min(poll, runtime.holding.owner.ttl / 3)
        self._wanted = Event()
        self._blind = False
        self._looks: dict[str, int] = {}
        self._beat = -math.inf
        runtime.tasks.start_soon(self._serve, name="streamagent watch")

    def wake(self) -> None:
        """Say that a session is active, or served."""
        self._wanted.set()

    async def _serve(self) -> None:
        while True:
            await self._wanted.wait()
            self._beat = current_time()  # whoever acquires a session says it, too
            while self._runtime.active or self._runtime.served or self._runtime.holding.unreleased:
                await sleep(self._poll)
                await self._live()
                await self._look()
            self._wanted = Event()

    async def _live(self) -> None:
        """Say that this process is alive, and hear if it was taken for dead."""
        runtime, now = self._runtime, current_time()
        if now < self._beat + runtime.holding.owner.ttl / 3:
            return
        late = now >= self._beat + runtime.holding.owner.ttl
        try:
            if runtime.active:  # else it holds nothing
                await runtime.store.heartbeat(runtime.holding.owner)
            self._beat = now
            for session, reply in tuple(runtime.active.items()) if late else ():
                await self._check(session, reply)
            await runtime.holding.give_back()
        except StoreError:
            logger.exception("cannot say that this process is alive; others may take its runs over")

    async def _check(self, session: str, reply: RunReply) -> None:
        """End a run at once that another process has taken over meanwhile."""
        if (run := reply.running) is not None:
            try:
                await self._runtime.store.write(session, (), fence=run.fence)
            except LeaseLost as error:
                reply.fail(error)

    async def _look(self) -> None:
        runs = {session: run for session, reply in self._runtime.active.items() if (run := reply.running)}
        now = current_time()
        for session, run in runs.items():
            if run.deadline <= now:
                self._end(session, run, "deadline")
        # A run that begins meanwhile is none of these: what waits may be older than that run.
        try:
            for session in await self._runtime.store.waiting(runs, "cancel") if runs else ():
                self._end(session, runs[session], "aborted")
            await self._look_for_decisions()
        except StoreError:
            if not self._blind:  # once, not four times a second
                logger.exception("cannot see whether runs were cancelled, or calls decided about, in other processes")
            self._blind = True
        else:
            self._blind = False

    async def _look_for_decisions(self) -> None:
        runtime = self._runtime
        idle = runtime.served.keys() - runtime.active.keys()
        found = await runtime.store.waiting(idle, "approval") if idle else ()
        self._looks = {session: self._looks.get(session, 0) + 1 for session in found}
        for session, looks in self._looks.items():
            # From the second look on: who has decided may go on himself. Then less and less often: going on may fail.
            due = looks > 1 and looks.bit_count() == 1
            if due and (await runtime.store.unfinished(session)).paused:  # else another process is at work
                runtime.wake(session)

    def _end(self, session: str, run: Run, cause: Cause) -> None:
        reply = self._runtime.active.get(session)
        if reply is not None and reply.running is run:
            self._runtime.tasks.start_soon(_cut, reply, session, cause)


async def _cut(reply: RunReply, session: str, cause: Cause) -> None:
    try:
        await reply.cut(cause)
    except Exception:  # stages are foreign code, and nobody is here to take what their closing raises
        logger.exception("session %s: its run did not end well", session)


def cancel_message(reason: str | None) -> Message:
    """Make what asks for the end of a run.

    Raises:
        ConfigError: The reason is no text.
    """
    if not isinstance(reason, str | None):
        raise ConfigError(f"cancel(reason=…) takes text, not {reason!r:.80}")
    return Message(role="user", type="cancel", query=None if reason is None else {"reason": clean_text(reason)})


async def cancel_here(reply: RunReply, message: Message) -> bool:
    """Cut a run of this process; tell whether its end is stored, so that nobody goes on with it."""
    try:
        await reply.cancel(replace(message, id=new_id()))  # it may be stored late, beside what is sent to others then
    except StoreError:
        logger.exception("a run was cut, and its end is not stored; whoever goes on with it is told")
    return reply.settled


async def cancel_elsewhere(store: Store, session: str, message: Message, *, poll: float) -> None:
    """Ask for the end of a run of another process, and return when it is over: at once where nothing ever ran.

    Nobody drives a run that is paused, so its end is written here.
    """
    left = await store.unfinished(session)
    since = left.last.sequence or 0 if left.last else 0
    over = left.last is None
    sent = not (over or left.paused)
    if sent and not await store.waiting([session], "cancel"):  # one is enough, whoever asks
        await store.enqueue(session, message)
    while not (over or left.paused):
        await sleep(poll)
        left = await store.unfinished(session)
        over = left.at_rest or await _has_ended(store, session, since)
    if left.paused and (not sent or await store.waiting([session], "cancel")):  # else a later run took it, and paused
        fence = await store.acquire(session)
        await settle(store, session, fence=fence, cause="aborted", by=None if sent else message)


async def _has_ended(store: Store, session: str, since: int) -> bool:
    """Tell whether the run that was active after row `since` has ended; the next one may be active."""
    async with aclosing(store.read(session, after=since)) as rows:
        return any([row.is_final and not may_go_on(row) async for row in rows])


def check_seconds(name: str, value: float) -> None:
    """Refuse what is no time.

    Raises:
        ConfigError: It is no number above 0, or without end.
    """
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} takes seconds above 0, not {value!r:.80}")
