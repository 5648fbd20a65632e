"""`Duplex`: the task that answers what a session sends, and the outbox that it receives from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import CancelScope, Event, sleep
from anyio.lowlevel import checkpoint_if_cancelled

from .cancellation import must_propagate
from .channel import Channel
from .driver import RunReply
from .errors import SessionBusy
from .hooks import lane_of
from .message import Message
from .plan import Plan

if TYPE_CHECKING:
    from .runtime import Runtime

OUTBOX = 64  # messages: a burst of one network read; a reader that is slower holds the run back


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


class Duplex:
    """The task that answers what `send` puts into the inbox, and the outbox that `receive` reads."""

    def __init__(self, runtime: Runtime, session: str, plan: Plan) -> None:
        self._runtime = runtime
        self._session = session
        self._plan = plan
        self._outbox = Channel[Message | _Failed](OUTBOX)
        self._scope = CancelScope()
        self._awake = Event()
        self._ended = Event()
        self._abandoned: RunReply | None = None
        self._blocked = False
        self.ending = False
        runtime.serve(session, self)
        runtime.tasks.start_soon(self._serve, name=f"streamagent session {session}")

    def wake(self, *, abandoned: RunReply | None = None) -> None:
        """Say that the inbox has something new.

        Args:
            abandoned: A reply that is cut for it, unless a task is reading it.
        """
        self._abandoned = abandoned or self._abandoned
        self._awake.set()

    def unblock(self) -> None:
        """Say that a run of this session is over."""
        if self._blocked:
            self._awake.set()

    def end(self, *, abandoned: RunReply | None = None) -> None:
        """Let the task end when the inbox is empty; see `wake`."""
        self.ending = True
        self.wake(abandoned=abandoned)

    async def receive(self) -> Message:
        """Return the next fragment, or raise what a run failed with."""
        await checkpoint_if_cancelled()
        item = await self._outbox.receive()
        if isinstance(item, _Failed):
            raise item.error
        return item

    async def aclose(self) -> None:
        """Cut the run and end the task."""
        self._scope.cancel()
        with CancelScope(shield=True):  # bounded: everything that the task does when cancelled is
            await self._ended.wait()
        self._outbox.close(drop=True)

    async def _serve(self) -> None:
        """Answer until the end; a run that fails is told to whoever receives, and the next prompt tries again."""
        try:
            with self._scope:
                while True:
                    self._awake = Event()
                    try:
                        waiting = await self._answer()
                    except SessionBusy:  # another process answers, perhaps what was sent here
                        await sleep(self._runtime.poll)
                        waiting = True
                    except BaseException as error:  # raised again by `receive`
                        if must_propagate(error):
                            raise
                        await self._outbox.send(_Failed(error))
                        waiting = False
                    if not waiting:
                        if self.ending:
                            return
                        await self._awake.wait()
        finally:
            self._outbox.close()
            self._runtime.retire(self._session, self)
            self._ended.set()

    async def _answer(self) -> bool:
        """Answer the prompt that waits longest; return whether anything was done."""
        await self._free()
        waiting = await self._runtime.store.inbox(self._session)
        if all(lane_of(message) == "cancel" for message in waiting):
            left = await self._runtime.store.unfinished(self._session)
            if left.last is None or left.at_rest:
                return False
        if self._session in self._runtime.active:  # since just now
            return True
        said = False
        async with RunReply(self._runtime, self._session, self._plan) as reply:
            async for message in reply:
                said = True
                await self._outbox.send(message)
        return said  # a session that is paused does nothing until something is decided

    async def _free(self) -> None:
        """Wait for another handle's run, or an `ask` of this one; that is cut when it was abandoned."""
        while other := self._runtime.active.get(self._session):
            if other is self._abandoned and not other.driven:
                await other.aclose()
                continue
            self._blocked = True
            await self._awake.wait()
            self._blocked, self._awake = False, Event()
