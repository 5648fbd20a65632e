"""`Runtime`: the store and the live sessions of one process; the place to embed."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Self
from weakref import WeakSet

from anyio import AsyncContextManagerMixin, CancelScope, create_task_group, move_on_after
from anyio.abc import TaskGroup

from .calls import Child, Output
from .cancellation import raise_single
from .driver import RunReply
from .duplex import Duplex
from .errors import ConfigError, SessionBusy, StoreError
from .follow import Follow, Place, Until
from .owners import is_gone, new_owner
from .pipeline import BareRun
from .plan import Plan
from .protocols import Store
from .records import NOTHING, check_id
from .run import Run
from .session import Session
from .subagents import run_child
from .watch import CANCEL_TIMEOUT, POLL, Watch, cancel_elsewhere, cancel_message, check_seconds

logger = logging.getLogger("streamagent")

LEASE = 15.0  # seconds: long against a pause of the interpreter, short against a user's patience
RELEASE_TIMEOUT = 5.0  # seconds


class Runtime(AsyncContextManagerMixin):
    """Owns a store and the background work of all sessions; enter it in your application's lifespan.

    Args:
        store: Where the sessions live; it is opened and closed with the runtime.
        poll: How often the store is asked whether another process has cancelled a run of this one, or decided about a
            call for which a session waits that is served here, in seconds.
        lease: After which silence of this process another one may go on with its runs, in seconds; it says that it is
            alive three times as often. A process that ends leaves its runs to others at once.

    Raises:
        ConfigError: `store` is not a store, or `poll` or `lease` no time.
    """

    def __init__(self, *, store: Store, poll: float = POLL, lease: float = LEASE) -> None:
        if not hasattr(store, "write_soon"):
            raise ConfigError(f"Runtime takes a store, such as SqliteStore('shop.db'), not {store!r:.80}")
        check_seconds("Runtime(poll=…)", poll)
        check_seconds("Runtime(lease=…)", lease)
        self.store = store
        self.owner = new_owner(lease)
        self.unreleased: dict[str, tuple[int, bool]] = {}  # see `give_back`: as many sessions as ended just now
        self.poll = poll
        self._leased = False
        self._watch: Watch | None = None
        self.active: dict[str, RunReply] = {}
        self.served: dict[str, list[Duplex]] = {}
        self._followed: WeakSet[Follow] = WeakSet()
        self._tasks: TaskGroup | None = None

    @property
    def tasks(self) -> TaskGroup:
        """The group of the background work.

        Raises:
            ConfigError: The runtime was not entered.
        """
        if self._tasks is None:
            raise ConfigError("this runtime is not open; use it in `async with Runtime(...)`")
        return self._tasks

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self, None]:
        try:
            async with self.store, create_task_group() as self._tasks:
                try:
                    yield self
                finally:
                    for followed in list(self._followed):
                        followed.close()
                    with CancelScope(shield=True):  # bounded: closing a run is
                        await self._close_runs()
                        await self._leave()
                    self._tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise_single(group)
        finally:
            self._tasks = self._watch = None

    @asynccontextmanager
    async def session(self, id: str, plan: Plan) -> AsyncGenerator[Session, None]:  # noqa: A002 - the field's name
        """Open a session; leaving the block cuts what still runs.

        Args:
            id: The session's id; a new one starts an empty session.
            plan: What answers.

        Raises:
            ConfigError: The id is empty or longer than 256 characters, or the runtime was not entered.
        """
        check_id(id)
        self.tasks  # noqa: B018 - raises when the runtime is not open
        session = Session(self, id, plan)
        try:
            yield session
        finally:
            with CancelScope(shield=True):  # bounded: closing a run is
                await session.aclose()

    async def fork(self, session: str, new: str, *, at: int | None = None) -> None:
        """Begin a session with the stored messages of another one; see `Store.fork`.

        Raises:
            ConfigError: `new` is no session id, or the session has no message `at`.
            ConflictError: `new` has messages already.
        """
        check_id(new)
        await self.store.fork(session, new, at=at)

    def follow(self, session: str, *, after: Place = None, live: bool = True, until: Until = None) -> Follow:
        """Read what is stored of a session behind a place, then live, whichever process runs it; see `Follow`.

        It ends when the runtime is left, at the latest.
        """
        followed = Follow(self.store, session, after=after, live=live, until=until)
        self._followed.add(followed)
        return followed

    async def cancel(
        self,
        session: str,
        *,
        reason: str | None = None,
        timeout: float = CANCEL_TIMEOUT,  # noqa: ASYNC109 - not an error then, but an answer
    ) -> bool:
        """Cut a session's run, whichever process drives it: what was said is kept, open calls are closed.

        The process that drives it looks for this in intervals, `Runtime(poll=…)`. A `cancel` row says in the session's
        history who cut, and why. Without a run there is nothing to cut, and a later run is not touched.

        Args:
            session: The session's id.
            reason: Why; for whoever reads the history.
            timeout: Longest wait for the end, in seconds.

        Returns:
            Whether the run is over. If not, its process was killed or hangs; the session's next run closes it.

        Raises:
            ConfigError: The timeout is no time, or the reason no text.
            StoreError: The store cannot be read or written.
        """
        check_seconds("cancel(timeout=…)", timeout)
        message = cancel_message(reason)
        reply = self.active.get(session)
        with move_on_after(timeout):
            if reply is None:
                await cancel_elsewhere(self.store, session, message, poll=self.poll)
                self.wake(session)  # what waited behind a pause goes on
                return True
            await reply.cancel(message)
        return reply is not None and reply.done

    async def _close_runs(self) -> None:
        """Close every run, also after one of them failed to close."""
        async with AsyncExitStack() as stack:
            for reply in self.active.values():
                stack.push_async_callback(reply.aclose)

    def claim(self, session: str, reply: RunReply) -> None:
        """Make a reply the session's active run in this process.

        Raises:
            SessionBusy: Another one is active.
        """
        active = self.active.setdefault(session, reply)
        if active is not reply:
            raise SessionBusy(f"session {session!r} has an active run in this process; wait for it or cancel it")
        self._look()

    async def acquire(self, session: str) -> int:
        """Take a session for this process, also from one of this machine that has ended; return the fence.

        Raises:
            SessionBusy: Another process has it.
        """
        self._leased = True
        try:
            return await self.store.acquire(session, owner=self.owner)
        except SessionBusy as error:
            if error.owner is None or not is_gone(error.owner):
                raise
            await self.store.retire(error.owner)
        return await self.store.acquire(session, owner=self.owner)

    async def release(self, session: str, reply: RunReply, *, fence: int | None, done: bool) -> None:
        """Take a reply back that has ended, and let others have its session; `done`: it has settled what it found."""
        if self.active.get(session) is not reply:
            return
        try:
            if fence is not None:
                self.unreleased[session] = fence, done
                await self.give_back()
        finally:
            del self.active[session]
            for duplex in self.served.get(session, ()):
                duplex.unblock()

    async def give_back(self) -> None:
        """Release the sessions whose runs are over, by their fences; what fails of it is tried again by the watch.

        Where no run has settled what it found, a run may be left open: of another process that has died.
        """
        for session, (fence, settled) in tuple(self.unreleased.items()):
            with move_on_after(RELEASE_TIMEOUT) as scope:
                try:
                    left = NOTHING if settled else await self.store.unfinished(session)
                    await self.store.release(session, fence=fence, done=left.at_rest or left.forked)
                except StoreError:
                    logger.debug("session %s could not be released yet", session, exc_info=True)
                    return
            if scope.cancelled_caught:
                return
            if self.unreleased.get(session) == (fence, settled):
                del self.unreleased[session]

    async def _leave(self) -> None:
        """Say that this process has nothing more; whatever it still holds others may have at once."""
        if self._leased:
            with move_on_after(RELEASE_TIMEOUT), suppress(StoreError):  # without it they wait for the lease's end
                await self.store.retire(self.owner.id)

    def serve(self, session: str, duplex: Duplex) -> None:
        """Take note of what answers a session's inbox."""
        self.served.setdefault(session, []).append(duplex)
        self._look()

    def retire(self, session: str, duplex: Duplex) -> None:
        """Take note that it does so no more."""
        self.served[session].remove(duplex)
        if not self.served[session]:
            del self.served[session]

    def wake(self, session: str, duplex: Duplex | None = None) -> None:
        """Say that a session's inbox has something new, to this duplex, or, if it serves no more, to all."""
        served = self.served.get(session, [])
        for each in [duplex] if duplex in served else served:
            each.wake()

    def _look(self) -> None:
        self._watch = self._watch or Watch(self, self.poll)
        self._watch.wake()

    async def start_child(self, run: Run, child: Child) -> Output:
        """Let a sub-agent answer; see `ToolContext.start`."""
        return await run_child(self, run, child)

    def bare_run(self, session: str) -> BareRun:
        """Make the run of a chain that only shows what is stored: it may read, and nobody takes its writes."""
        return BareRun(self.tasks, session, opened=(self.store, 0))
