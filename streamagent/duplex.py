"""`Duplex`: the task that answers what a session sends, and the outbox that it receives from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import CancelScope, ClosedResourceError, EndOfStream, Event, create_memory_object_stream

from .driver import RunReply
from .hooks import lane_of
from .message import Message
from .plan import Plan

if TYPE_CHECKING:
    from .runtime import Runtime

OUTBOX = 64  # messages: a burst of one network read; a reader that is slower holds the run back


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


class Duplex:
    """The task that answers what `send` puts into the inbox, and the outbox that `receive` reads."""

    def __init__(self, runtime: Runtime, session: str, plan: Plan) -> None:
        self._runtime = runtime
        self._session = session
        self._plan = plan
        self._outbox, self._inbox = create_memory_object_stream[Message | _Failed](OUTBOX)
        self._scope = CancelScope()
        self._awake = Event()
        self._ended = Event()
        self.ending = False
        runtime.tasks.start_soon(self._serve, name=f"streamagent session {session}")

    def wake(self) -> None:
        """Say that the inbox has something new."""
        self._awake.set()

    def end(self) -> None:
        """Let the task end when the inbox is empty."""
        self.ending = True
        self._awake.set()

    async def receive(self) -> Message:
        """Return the next fragment, or raise what a run failed with."""
        try:
            item = await self._inbox.receive()
        except ClosedResourceError:  # by `aclose`, while this one waited
            raise EndOfStream from None
        if isinstance(item, _Failed):
            raise item.error
        return item

    async def aclose(self) -> None:
        """Cut the run and end the task."""
        self._scope.cancel()
        with CancelScope(shield=True):  # bounded: everything that the task does when cancelled is
            await self._ended.wait()
        self._inbox.close()

    async def _serve(self) -> None:
        """Answer until the end; a run that fails is told to whoever receives, and the next prompt tries again."""
        try:
            with self._scope, self._outbox:
                while True:
                    self._awake = Event()
                    try:
                        waiting = await self._answer()
                    except Exception as error:  # noqa: BLE001 - raised again by `receive`
                        await self._outbox.send(_Failed(error))
                        waiting = False
                    if not waiting:
                        if self.ending:
                            return
                        await self._awake.wait()
        finally:
            self._ended.set()

    async def _answer(self) -> bool:
        """Answer the prompt that waits longest; return whether anything was done."""
        if other := self._runtime.active.get(self._session):
            await other.wait()  # another handle's run, or an `ask` of this one
            return True
        waiting = await self._runtime.store.inbox(self._session)
        if all(lane_of(message) == "cancel" for message in waiting):
            return False
        said = False
        async with RunReply(self._runtime, self._session, self._plan) as reply:
            async for message in reply:
                said = True
                await self._outbox.send(message)
        return said  # a session that is paused does nothing until something is decided
