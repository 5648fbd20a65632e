"""`Runtime`: the store and the live sessions of one process; the place to embed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Self
from weakref import WeakSet

from anyio import AsyncContextManagerMixin, CancelScope, Event, create_task_group, move_on_after
from anyio.abc import TaskGroup

from .block import SessionBlock
from .calls import Child, Output
from .cancellation import raise_single
from .driver import RunReply
from .duplex import Duplex
from .errors import ConfigError, HandedOver, SessionBusy
from .follow import Follow, Place, Until
from .handover import GRACE, hand_over
from .holding import LEASE, Holding
from .message import Message
from .pipeline import BareRun
from .plan import Plan
from .prompts import Prompt, as_key, as_prompt
from .protocols import Bus, Store
from .records import check_id
from .run import Run
from .session import Session
from .shared import close_idle
from .subagents import run_child
from .watch import CANCEL_TIMEOUT, POLL, Watch, cancel_elsewhere, cancel_here, cancel_message, check_seconds


class Runtime(AsyncContextManagerMixin):
    """Owns a store and the background work of all sessions; enter it in your application's lifespan.

    Args:
        store: Where the sessions live; it is opened and closed with the runtime.
        poll: How often the store is asked whether another process has cancelled a run of this one, or decided about a
            call for which a session waits that is served here, in seconds.
        lease: After which silence of this process another one may go on with its runs, in seconds; it says that it is
            alive three times as often. A process that ends leaves its runs to others at once.
        bus: Tells workers at once what `submit` and others put into an inbox; without one they look. It is opened and
            closed with the runtime.

    Raises:
        ConfigError: `store` is not a store, or `poll` or `lease` no time.
    """

    def __init__(self, *, store: Store, poll: float = POLL, lease: float = LEASE, bus: Bus | None = None) -> None:
        if not hasattr(store, "write_soon"):
            raise ConfigError(f"Runtime takes a store, such as SqliteStore('shop.db'), not {store!r:.80}")
        check_seconds("Runtime(poll=…)", poll)
        check_seconds("Runtime(lease=…)", lease)
        self.store = store
        self.bus = bus
        self.holding = Holding(store, lease)
        self.draining = Event()
        self.poll = poll
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
            async with self.store, self.bus or nullcontext(), create_task_group() as self._tasks:
                try:
                    yield self
                finally:
                    for followed in list(self._followed):
                        followed.close()
                    with CancelScope(shield=True):  # bounded: closing a run is
                        await self._close_runs()
                        await self.holding.leave()
                        await close_idle()
                    self._tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise_single(group)
        finally:
            self._tasks = self._watch = None

    def session(self, id: str, plan: Plan) -> AbstractAsyncContextManager[Session]:  # noqa: A002 - the field's name
        """Open a session; leaving the block cuts what still runs.

        Args:
            id: The session's id; a new one starts an empty session.
            plan: What answers.

        Raises:
            ConfigError: On entering: the id is empty or longer than 256 characters, or the runtime was not entered.
        """
        return SessionBlock(Session(self, id, plan), self._check_session)

    def _check_session(self, session: str) -> None:
        check_id(session)
        self.tasks  # noqa: B018 - raises when the runtime is not open

    async def fork(self, session: str, new: str, *, at: int | None = None) -> None:
        """Begin a session with the stored messages of another one; see `Store.fork`.

        Raises:
            ConfigError: `new` is no session id, or the session has no message `at`.
            ConflictError: `new` has messages already.
        """
        check_id(new)
        await self.store.fork(session, new, at=at)

    async def submit(self, session: str, prompt: Prompt, *, client_key: str | None = None) -> Message:
        """Put a prompt into a session's inbox and tell the workers; returns when it is stored.

        Some `Worker` answers, here or in another process; follow the session to see it.

        Args:
            session: The session's id.
            prompt: What to ask; a list is one prompt, as in `Session.ask`.
            client_key: Submitting twice with the same key is one prompt.

        Returns:
            The stored prompt, the first message of several; with a sequence, when it was admitted before.

        Raises:
            ConfigError: The id or the key is none.
            MessageError: It is not a whole message that a user may send.
            ConflictError: The key was used before with another prompt.
        """
        check_id(session)
        first, *rest = as_prompt(prompt)
        stored = await self.store.enqueue(session, first, client_key=as_key(client_key), rest=rest)
        if stored.sequence is None:
            await self.announce(session)
        return stored

    async def announce(self, session: str, duplex: Duplex | None = None) -> None:
        """Say that a session's inbox has something new: to what serves it here, and else to the workers; see `wake`."""
        self.wake(session, duplex)
        if self.bus is not None and session not in self.served and session not in self.active:
            await self.bus.announce(session)

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
            Whether the run is over. If not, its process was killed or hangs, or its end could not be stored; the
            session's next run closes it.

        Raises:
            ConfigError: The timeout is no time, or the reason no text.
            StoreError: The store cannot be read or written, and others may go on with the run.
        """
        check_seconds("cancel(timeout=…)", timeout)
        message = cancel_message(reason)
        reply = self.active.get(session)
        with move_on_after(timeout):
            if reply is None or not await cancel_here(reply, message):
                await cancel_elsewhere(self.store, session, message, poll=self.poll)
                self.wake(session)  # what waited behind a pause goes on
            return True
        return reply is not None and reply.settled

    async def drain(self, grace: float = GRACE) -> None:
        """Begin no run any more, and leave what is not finished to other processes; returns when nothing runs.

        For `grace` seconds the runs go on as before. Then each ends at its next border between two turns, and what has
        not come to one 5 seconds later ends where it is. Nothing of them is closed or marked: another process finds
        them at once (`Store.unattended`), and goes on as after a crash, but with all that was said. Whoever reads one
        of their replies here gets `HandedOver`.

        Args:
            grace: How long runs may take to their end, in seconds.

        Raises:
            ConfigError: It is no time.
        """
        check_seconds("drain(grace=…)", grace)
        self.draining.set()
        await hand_over(self.active, grace)

    async def _close_runs(self) -> None:
        """Close every run, also after one of them failed to close."""
        async with AsyncExitStack() as stack:
            for reply in self.active.values():
                stack.push_async_callback(reply.aclose)

    def claim(self, session: str, reply: RunReply) -> None:
        """Make a reply the session's active run in this process.

        Raises:
            SessionBusy: Another one is active.
            HandedOver: This process begins no run any more.
        """
        if self.draining.is_set() and reply.is_root:
            raise HandedOver(f"session {session!r}: this process is ending and begins no run; another one does")
        active = self.active.setdefault(session, reply)
        if active is not reply:
            raise SessionBusy(f"session {session!r} has an active run in this process; wait for it or cancel it")
        self._look()

    async def release(self, session: str, reply: RunReply, *, fence: int | None, unfinished: bool) -> None:
        """Take a reply back that has ended, and let others have its session; they go on with what is unfinished."""
        if self.active.get(session) is not reply:
            return
        try:
            if fence is not None:
                await self.holding.release(session, fence, unfinished=unfinished)
                if unfinished and self.draining.is_set() and self.bus is not None and reply.is_root:
                    await self.bus.announce(session)
        finally:
            del self.active[session]
            for duplex in self.served.get(session, ()):
                duplex.unblock()

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
