"""`Session`: the duplex channel to an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from anyio.abc import ObjectStream

from . import approvals
from .approvals import Approval, Grant, Verdict, id_of
from .driver import RunReply
from .duplex import Duplex
from .errors import SessionBusy, SessionClosed
from .follow import Follow, Place, Until
from .hooks import Lane
from .message import Message
from .message import new_id as mint_id
from .plan import Plan
from .prompts import Prompt, as_key, as_message, as_prompt, own_key
from .protocols import Stream
from .structured import Output, StructuredReply, as_output
from .watch import CANCEL_TIMEOUT

if TYPE_CHECKING:
    from .runtime import Runtime

T = TypeVar("T")


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

    @overload
    def ask(self, prompt: Prompt, *, client_key: str | None = None) -> RunReply: ...
    @overload
    def ask(
        self, prompt: Prompt, *, output: type[T] | Output[T], client_key: str | None = None
    ) -> StructuredReply[T]: ...
    def ask(
        self, prompt: Prompt, *, output: type[T] | Output[T] | None = None, client_key: str | None = None
    ) -> RunReply | StructuredReply[T]:
        """Ask something; iterating the reply drives the run. A reply of this handle that was abandoned is cut then.

        Args:
            prompt: What to ask: a text, a message, or a list of them that is one prompt, such as an image and a text.
            output: What the answer shall be: a pydantic model, dataclass or `TypedDict`; an `Output` for its options.
            client_key: Asking twice with the same key is one prompt: the second reply shows the stored answer.

        Raises:
            SessionClosed: The session's block was left.
            MessageError: It is not a whole message that a user may send.
            ConfigError: The output is no type of an object, or the key is none.
            SessionBusy: The previous reply is being read by another task. From the reply: another handle's run of
                this session is active.
            ConflictError: From the reply: the key was used before with another prompt.
        """
        if output is None:
            return self._reply_to(as_prompt(prompt), self._plan, as_key(client_key))
        wanted = as_output(output)
        system, settings = wanted.instruction(self._plan.system), wanted.settings(self._plan.settings)
        plan = replace(self._plan, system=system, settings=settings)

        def again(feedback: Message) -> RunReply:
            number = (feedback.query or {})["feedback"]["round"]
            return self._reply_to([feedback], plan, client_key and own_key(f"repair {number}:{client_key}"))

        return StructuredReply(self._reply_to(as_prompt(prompt), plan, as_key(client_key)), wanted, again=again)

    def _reply_to(self, prompt: Sequence[Message], plan: Plan, client_key: str | None) -> RunReply:
        self._check_open()
        previous = self._reply
        if previous is not None and previous.driven:
            raise SessionBusy(f"session {self.id!r} is answering; read that reply to its end, or cancel it")
        first = prompt[0] if prompt else None
        self._reply = reply = RunReply(
            self._runtime, self.id, plan, prompt=first, rest=prompt[1:], client_key=client_key, previous=previous
        )
        reply.ended = self._forget
        return reply

    def _forget(self, reply: RunReply) -> None:
        """Keep nothing of an answer that is over."""
        if self._reply is reply:
            self._reply = None

    async def send(self, item: Prompt, *, client_key: str | None = None) -> None:
        """Put a message into the durable inbox and have it answered; returns when it is stored. Cuts what `ask` cuts.

        Args:
            item: What to say; a list is one prompt, as in `ask`.
            client_key: Sending twice with the same key is one message.

        Raises:
            SessionClosed: The session's block was left, or `send_eof` was called.
            MessageError: It is not a whole message that a user may send.
            ConflictError: The key was used before with another message.
        """
        duplex = self._serve()
        if duplex.ending:
            raise SessionClosed(f"session {self.id!r}: nothing can be sent after send_eof")
        first, *rest = as_prompt(item)
        await self._runtime.store.enqueue(self.id, first, client_key=as_key(client_key), rest=rest)
        duplex.wake(abandoned=self._reply)

    async def submit(self, prompt: Prompt, *, client_key: str | None = None) -> Message:
        """Put a prompt into the durable inbox, for whichever worker is free; see `Runtime.submit`."""
        self._check_open()
        return await self._runtime.submit(self.id, prompt, client_key=client_key)

    async def receive(self) -> Message:
        """Return the next fragment of what the session says.

        Raises:
            EndOfStream: `send_eof` was called and everything is answered, or the block was left meanwhile.
            SessionClosed: The session's block was left before.
            Exception: What a run failed with; the session goes on with what is sent next.
        """
        return await self._serve().receive()

    async def steer(self, item: str | Message, *, interrupt: bool = False, client_key: str | None = None) -> None:
        """Put a message into the run that is under way, at its next border: after the turn's tool results.

        With `interrupt` it does not wait: the answer is cut, what was said is kept and marked, open calls are closed,
        and the same reply goes on with this message; a run in another process takes it at its next border.

        Without a run it is a prompt like another, answered by the next run. It is durable when this returns, and
        whatever cuts the run before it is admitted, it stays in the inbox.

        Args:
            item: What to say.
            interrupt: Cut what is being said or done.
            client_key: Sending twice with the same key is one message.

        Raises:
            SessionClosed: The session's block was left.
            MessageError: It is not a whole message that a user may send.
            ConflictError: The key was used before with another message.
        """
        stored = await self._enqueue(item, "steer", client_key, **({"interrupt": True} if interrupt else {}))
        if interrupt and stored.sequence is None and (reply := self._runtime.active.get(self.id)):
            reply.interrupt(stored.id)

    async def follow_up(self, item: str | Message, *, client_key: str | None = None) -> None:
        """Put a message behind all that the run has to do; the same run answers it. Otherwise as `steer`."""
        await self._enqueue(item, "follow_up", client_key)

    async def _enqueue(self, item: str | Message, lane: Lane, client_key: str | None, **more: bool) -> Message:
        self._check_open()
        message = as_message(item)
        message = replace(message, query={**(message.query or {}), "lane": lane, **more})
        stored = await self._runtime.store.enqueue(self.id, message, client_key=as_key(client_key))
        await self._runtime.announce(self.id, self._duplex)
        return stored

    async def send_eof(self) -> None:
        """Say that nothing more will be sent; `receive` ends when everything is answered."""
        self._serve().end(abandoned=self._reply)

    async def pending(self) -> list[Approval]:
        """List the calls that wait for an approval, the oldest first; the run that made them is paused."""
        return await approvals.pending(self._runtime.store, self.id)

    async def approve(
        self,
        approval: str | Approval,
        *,
        args: Mapping[str, Any] | None = None,
        always: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> None:
        """Let a call run, once; `resume` runs it, as does the next `ask`, and a session that is served by itself.

        Args:
            approval: What `pending` gave, or its id.
            args: Arguments to run it with instead.
            always: Approve further calls of its tool, too; see `Verdict`.
            by: Who decides, for the record.

        Raises:
            ApprovalNotFound: The session has no such approval.
            ApprovalGone: The call was closed: the run was cancelled, or the conversation went on.
            ConflictError: It was decided otherwise before; the same decision again changes nothing.
        """
        await self.decide(Verdict(approval=id_of(approval), args=args, always=always, by=by))

    async def reject(self, approval: str | Approval, reason: str = "", *, by: str | None = None) -> None:
        """Have a call not run; the model reads the reason as its result. Otherwise as `approve`."""
        await self.decide(Verdict(approval=id_of(approval), approve=False, reason=reason, by=by))

    async def decide(self, *verdicts: Verdict) -> None:
        """Take decisions about calls that wait, in any order; see `approve`."""
        self._check_open()
        for verdict in verdicts:
            await approvals.decide(self._runtime.store, self.id, verdict)
        await self._runtime.announce(self.id, self._duplex)

    async def grants(self) -> list[Grant]:
        """List what was approved with `always` and not revoked."""
        return await approvals.grants(self._runtime.store, self.id)

    async def revoke(self, grant: str | Grant, *, by: str | None = None) -> None:
        """End a grant that `grants` gave, or of this id, at once; `by` says who, for the record.

        Raises:
            ApprovalNotFound: The session has no such grant.
        """
        await approvals.revoke(self._runtime.store, self.id, id_of(grant), by=by)

    def resume(self) -> RunReply:
        """Go on with what waits: calls that were decided about, else the oldest message of the inbox.

        Returns:
            The reply, whose iteration drives the run; it is empty when there is nothing to do.

        Raises:
            SessionClosed: The session's block was left.
            SessionBusy: As of `ask`.
        """
        return self._reply_to([], self._plan, None)

    async def cancel(
        self,
        *,
        reason: str | None = None,
        timeout: float = CANCEL_TIMEOUT,  # noqa: ASYNC109 - not an error then, but an answer
    ) -> bool:
        """Cut the session's active run, whoever drives it, also in another process; see `Runtime.cancel`."""
        return await self._runtime.cancel(self.id, reason=reason, timeout=timeout)

    def history(self, *, after: int = 0) -> Stream:
        """Read the stored messages after a sequence, with bounded memory; close it, or read it to its end."""
        return self._runtime.store.read(self.id, after=after)

    def follow(self, *, after: Place = None, live: bool = True, until: Until = None) -> Follow:
        """Read what is stored behind a place, then live, whoever runs it; see `Runtime.follow`."""
        return self._runtime.follow(self.id, after=after, live=live, until=until)

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
        try:
            if self._duplex is not None:
                await self._duplex.aclose()
        finally:
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
