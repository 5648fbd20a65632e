"""`Session`: the duplex channel to an agent."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import CancelScope, EndOfStream, Event, create_memory_object_stream
from anyio.abc import ObjectStream

from .driver import RunReply
from .errors import MessageError, SessionBusy, SessionClosed
from .message import Message, clean_text
from .message import new_id as mint_id
from .protocols import Stream
from .run import Plan

if TYPE_CHECKING:
    from .runtime import Runtime

logger = logging.getLogger("streamagent")

OUTBOX = 64  # messages: a burst of one network read; a reader that is slower holds the run back


class Session(ObjectStream[Message]):
    """A conversation with an agent; a handle without state of its own: the session's rows are its state.

    There are two ways to drive it. *Pull*: `ask` returns a reply, and iterating it drives the run. *Duplex*: `send`
    puts a message into the inbox, a task of the runtime answers, `receive` (or `async for`) gives what it says.

    Args:
        runtime: Where it lives.
        id: Its id, the caller's choice.
        plan: What answers.
    """

    __slots__ = ("_closed", "_duplex", "_plan", "_reply", "_runtime", "id")

    def __init__(self, runtime: Runtime, id: str, plan: Plan) -> None:  # noqa: A002 - the field's name
        self._runtime = runtime
        self.id = id
        self._plan = plan
        self._reply: RunReply | None = None
        self._duplex: Duplex | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Session {self.id!r}{' closed' if self._closed else ''}>"

    def ask(self, prompt: str | Message, *, client_key: str | None = None) -> RunReply:
        """Ask something; iterating the reply drives the run. A reply of this handle that was abandoned is cut then.

        Args:
            prompt: What to ask.
            client_key: Asking twice with the same key is one prompt: the second reply shows the stored answer.

        Raises:
            SessionClosed: The session's block was left.
            MessageError: It is not a whole message of role `user` or `system`.
            SessionBusy: The previous reply is being read by another task. From the reply: another handle's run of
                this session is active.
            ConflictError: From the reply: the key was used before with another prompt.
        """
        self._check_open()
        previous = self._reply
        if previous is not None and previous.driven:
            raise SessionBusy(f"session {self.id!r} is answering; read that reply to its end, or cancel it")
        self._reply = RunReply(
            self._runtime, self.id, self._plan, prompt=_as_prompt(prompt), client_key=client_key, previous=previous
        )
        return self._reply

    async def send(self, item: str | Message, *, client_key: str | None = None) -> None:
        """Put a message into the durable inbox and have it answered; returns when it is stored.

        Args:
            item: What to say.
            client_key: Sending twice with the same key is one message.

        Raises:
            SessionClosed: The session's block was left, or `send_eof` was called.
            MessageError: It is not a whole message of role `user` or `system`.
            ConflictError: The key was used before with another message.
        """
        duplex = self._serve()
        if duplex.ending:
            raise SessionClosed(f"session {self.id!r}: nothing can be sent after send_eof")
        await self._runtime.store.enqueue(self.id, _as_prompt(item), client_key=client_key)
        duplex.wake()

    async def receive(self) -> Message:
        """Return the next fragment of what the session says.

        Raises:
            EndOfStream: `send_eof` was called and everything is answered.
            SessionClosed: The session's block was left.
        """
        return await self._serve().receive()

    async def send_eof(self) -> None:
        """Say that nothing more will be sent; `receive` ends when everything is answered."""
        self._serve().end()

    async def cancel(self) -> None:
        """Cut the session's active run, whoever drives it: what was said is kept, open calls are closed."""
        if reply := self._runtime.active.get(self.id):
            await reply.cancel()

    def history(self, *, after: int = 0) -> Stream:
        """Read the stored messages, with bounded memory; close it, or read it to its end.

        Args:
            after: Sequence after which to start.
        """
        return self._runtime.store.read(self.id, after=after)

    async def fork(self, new_id: str | None = None, *, at: int | None = None) -> str:
        """Begin another session with this one's messages, in constant time; each goes on by itself.

        It may be done at any row, also while an answer is being written. What is not finished there is closed in the
        fork: a message is marked `cut`, a call gets its result when the fork's next run starts.

        Args:
            new_id: The fork's id; `None` to mint one.
            at: Sequence of the last message that the fork gets; `None` for all.

        Returns:
            The fork's id.

        Raises:
            SessionClosed: The session's block was left.
            ConfigError: This session has no message `at`, or the id cannot be one.
            ConflictError: The id is another session's.
        """
        self._check_open()
        fork = mint_id() if new_id is None else new_id
        await self._runtime.fork(self.id, fork, at=at)
        return fork

    async def aclose(self) -> None:
        """Cut what runs and close both directions; idempotent."""
        self._closed = True
        if self._duplex is not None:
            await self._duplex.aclose()
        if self._reply is not None:
            await self._reply.aclose()

    def _serve(self) -> Duplex:
        self._check_open()
        if self._duplex is None:
            self._duplex = Duplex(self._runtime, self.id, self._plan)
        return self._duplex

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"session {self.id!r} is closed; open it again with agent.session({self.id!r})")


def _as_prompt(prompt: str | Message) -> Message:
    message = Message.user(prompt) if isinstance(prompt, str) else prompt
    if message.role not in ("user", "system") or message.more:
        raise MessageError(
            f"what is sent to a session is a whole message of role 'user' or 'system', not {message!r:.80}"
        )
    return replace(message, content=clean_text(message.content), session=None, sequence=None)


class Duplex:
    """The task that answers what `send` puts into the inbox, and the outbox that `receive` reads."""

    def __init__(self, runtime: Runtime, session: str, plan: Plan) -> None:
        self._runtime = runtime
        self._session = session
        self._plan = plan
        self._outbox, self._inbox = create_memory_object_stream[Message](OUTBOX)
        self._scope = CancelScope()
        self._awake = Event()
        self._ended = Event()
        self._error: Exception | None = None
        self.ending = False
        runtime.tasks.start_soon(self._answer, name=f"streamagent session {session}")

    def wake(self) -> None:
        """Say that the inbox has something new."""
        self._awake.set()

    def end(self) -> None:
        """Let the task end when the inbox is empty."""
        self.ending = True
        self._awake.set()

    async def receive(self) -> Message:
        """Return the next fragment, or raise what the run failed with."""
        try:
            return await self._inbox.receive()
        except EndOfStream:
            if self._error is not None:
                raise self._error from None
            raise

    async def aclose(self) -> None:
        """Cut the run and end the task."""
        self._scope.cancel()
        with CancelScope(shield=True):  # bounded: everything that the task does when cancelled is
            await self._ended.wait()
        self._inbox.close()

    async def _answer(self) -> None:
        try:
            with self._scope, self._outbox:
                while not (self.ending and not await self._runtime.store.inbox(self._session)):
                    self._awake = Event()
                    if await self._runtime.store.inbox(self._session):
                        await self._forward()
                    elif not self.ending:
                        await self._awake.wait()
        except Exception as error:  # noqa: BLE001 - raised again by `receive`
            self._error = error
        finally:
            self._ended.set()

    async def _forward(self) -> None:
        async with RunReply(self._runtime, self._session, self._plan) as reply:
            async for message in reply:
                await self._outbox.send(message)
