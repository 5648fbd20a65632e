"""`Store`: where sessions live."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from streamagent.message import Message
from streamagent.records import Begun, CallRecord, Mark, Owner, Restored, SessionInfo, Standing, Unfinished, Usage

from .beginning import begin_by_steps
from .following import Followed
from .streams import Stream


class Store(Followed, AbstractAsyncContextManager["Store"], Protocol):
    """Where sessions live. Every method is safe to call from many tasks at once.

    Writes of one session are ordered as they were handed over. A caller that is cancelled while it waits for a write
    does not stop the write. All methods may raise `StoreError` subclasses.
    """

    async def acquire(self, session: str, *, owner: Owner | None = None) -> int:
        """Become the session's only writer; return the fence that later writes must carry.

        Args:
            session: The session.
            owner: Who holds it from now on, and is alive for its `ttl`; `None` to take it from whoever has it, and
                to hold it against nobody.

        Raises:
            SessionBusy: Another owner that is alive holds it.
        """
        ...

    async def release(self, session: str, *, fence: int, unfinished: bool = False) -> None:
        """Hold the session no more, so that anybody may acquire it; with another fence nothing happens.

        Args:
            session: The session.
            fence: The writer's fence.
            unfinished: Its run is not over: somebody has to go on with it. It is `unattended` from now on, and this
                owner has not died.
        """
        ...

    async def heartbeat(self, owner: Owner) -> None:
        """Say that an owner is alive: what it holds stays its own for another `ttl`."""
        ...

    async def retire(self, owner: str) -> None:
        """Say that an owner is gone, by its id: what it still holds may be acquired at once, as after its death."""
        ...

    async def unattended(self, *, limit: int = 100) -> list[str]:
        """Find sessions with something to do that no living owner holds, those first that wait longest.

        Something to do is a message in the inbox, or a run whose owner has died or has left it unfinished.
        """
        ...

    async def start_call(self, session: str, call: str, *, fence: int) -> int:
        """Commit that a call's tool is about to run.

        Args:
            session: The session.
            call: Id of the call's message; of one that is not stored, or has its result, nothing is noted.
            fence: The writer's fence.

        Returns:
            Which attempt this is, from 1.

        Raises:
            LeaseLost: The fence is not the session's current one.
        """
        ...

    async def finish_call(self, session: str, call: str, outcome: Message, *, fence: int) -> None:
        """Commit the result of a call that was started, before it is stored as a row; which closes this record.

        Raises:
            LeaseLost: The fence is not the session's current one.
            MessageError: The outcome holds what cannot be stored.
        """
        ...

    async def calls(self, session: str) -> list[CallRecord]:
        """Return what is known of the calls that were started and have no stored result."""
        ...

    async def write(self, session: str, fragments: Sequence[Message], *, fence: int) -> list[int]:
        """Commit fragments in one transaction, after everything that `write_soon` holds of this session.

        A fragment with an unknown id opens a message: it gets the next sequence. Content is appended, queries are
        merged (later keys win), `more=False` closes. A `tool_result` with `query.call` answers that call.

        Returns:
            The sequence of each fragment's message.

        Raises:
            LeaseLost: The fence is not the session's current one.
            MessageError: The message was closed already.
        """
        ...

    def write_soon(self, session: str, fragment: Message, *, fence: int, lag: float) -> int:
        """Take a fragment that is committed within `lag` seconds, or with the session's next `write`.

        Returns:
            How many bytes of this session wait to be committed; above the caller's limit it should `flush`.

        Raises:
            StoreError: What an earlier fragment of this session failed with; the fragment is not taken.
        """
        ...

    async def flush(self, session: str) -> None:
        """Return when everything that `write_soon` took of this session is committed."""
        ...

    async def enqueue(
        self, session: str, message: Message, *, client_key: str | None = None, rest: Sequence[Message] = ()
    ) -> Message:
        """Put a message into the session's inbox.

        Args:
            session: The session.
            message: What waits there.
            client_key: Names it for its sender.
            rest: What waits right behind it, from the same transaction on.

        Returns:
            The stored `message`; the earlier one, with its sequence if it was admitted, when `client_key` was used
            before with the same role, type, content and query.

        Raises:
            ConflictError: `client_key` was used before with another message.
            InboxFull: 1,000 messages wait already; decisions about approvals and cancels are taken all the same.
        """
        ...

    async def begin_run(
        self,
        session: str,
        *,
        owner: Owner,
        prompt: Message | None = None,
        client_key: str | None = None,
        rest: Sequence[Message] = (),
    ) -> Begun:
        """Acquire a session for a run, put its prompt into the inbox, and look how the session stands.

        A store that can does so in one transaction. Here it is `acquire`, `enqueue` and `standing`. A caller that is
        cancelled, or is refused, does not have the session.

        Args:
            session: The session.
            owner: Who holds it from now on.
            prompt: What the run is to answer; `None` for what waits there already.
            client_key: The prompt's, as `enqueue` takes it.
            rest: What waits right behind the prompt.

        Raises:
            SessionBusy: Another owner that is alive holds it; the prompt was not taken.
            ConflictError: As from `enqueue`; nobody was given the session.
            InboxFull: Likewise.
        """
        return await begin_by_steps(self, session, owner=owner, prompt=prompt, client_key=client_key, rest=rest)

    async def inbox(self, session: str) -> list[Message]:
        """Return the messages that wait, oldest first."""
        ...

    async def admit(
        self, session: str, *, fence: int, limit: int = 1, ids: Collection[str] | None = None
    ) -> list[Message]:
        """Give the oldest waiting messages their sequence and return them; with `ids`, only these messages."""
        ...

    async def waiting(self, sessions: Collection[str], type: str) -> set[str]:  # noqa: A002 - the field's name
        """Tell which of these sessions have a message of this type in their inbox; asked often, so it is cheap."""
        ...

    async def unfinished(self, session: str) -> Unfinished:
        """Return what a run that ended badly left open."""
        ...

    async def standing(self, session: str) -> Standing:
        """Return what is `unfinished`, and the `inbox`; a store that has both at hand gives them at once."""
        return Standing(left=await self.unfinished(session), inbox=await self.inbox(session))

    def read(self, session: str, *, after: int = 0, until: int | None = None) -> Stream:
        """Read messages by sequence, in pages, with bounded memory.

        Args:
            session: The session; an unknown one is empty.
            after: Sequence after which to start.
            until: Last sequence to read; `None` for the end.

        Yields:
            Whole messages; large ones as fragments of at most 64 KiB. One that is still open ends with `more=True`.
        """
        ...

    async def tally(self, session: str) -> dict[tuple[str, str], int]:
        """Count the session's messages by (role, type)."""
        ...

    async def usage(self, session: str | None, *, since: datetime | None = None) -> Usage:
        """Sum up what the stored turns took, from their stops and calls; what a fork shares is its parent's.

        Args:
            session: The session; `None` for all of the tenant's.
            since: Count what was made at this time or later; `None` for everything.
        """
        ...

    def sessions(self) -> AsyncGenerator[SessionInfo, None]:
        """List the sessions, the latest modified first."""
        ...

    async def fork(self, session: str, new: str, *, at: int | None = None) -> None:
        """Begin the session `new` with the rows of another one, which goes on by itself; no content is copied.

        The rows are read as the fork's own, `session` and sequences 1 to `at` included, and it continues at `at + 1`
        with a message whose `prev` is the row it was forked at. A message that is open has in the fork the content it
        has now, and `cut: "forked"`; a call whose result comes after `at` is one of the fork's `unfinished` calls.

        Args:
            session: The session to fork.
            new: The fork's id.
            at: Sequence of the last row that it gets; `None` for all.

        Raises:
            ConfigError: The session has no messages, or none with the sequence `at`.
            ConflictError: `new` has messages already.
        """
        ...

    async def info(self, session: str) -> SessionInfo | None:
        """Tell of one session what `sessions` lists, and its size; `None` when there is no such session."""
        ...

    def marks(self, session: str) -> AsyncGenerator[Mark, None]:
        """Tell which messages wait for another row, and which have a client key; in the order of `read`, then `inbox`.

        Of a fork only those in its own keeping: what it shares is its parent's business.
        """
        ...

    async def restore(
        self,
        session: str,
        rows: Callable[[], Iterable[Restored]],
        *,
        created_at: datetime,
        modified_at: datetime,
    ) -> None:
        """Fill a session that has no messages with those of another one, all in one transaction.

        Args:
            session: The session.
            rows: Gives what `read`, `inbox`, `marks` and `calls` told of the other one, in this order, from its
                beginning each time that it is called: once for every try of the transaction, and maybe in a thread.
            created_at: When the session was made.
            modified_at: When it was written last.

        Raises:
            ConflictError: The session has messages.
            MessageError: The rows do not make a session; the last one that `rows` gave is what is wrong.
        """
        ...

    async def delete(self, session: str, *, idle: bool = False) -> bool:
        """Delete a session and its rows; return whether there was one. Its running writer gets `LeaseLost`.

        Args:
            session: The session.
            idle: Only if nobody runs it, nothing waits in its inbox, and none of its calls for an approval.

        Raises:
            ConflictError: It has forks, which share its rows; delete them first.
            SessionBusy: It is not `idle`.
        """
        ...

    async def shred(self) -> None:
        """See to it that nothing of what was deleted, or was written over, can be found in the store's files.

        Raises:
            StoreBusy: Another process holds on to it for longer than the timeout; what is left goes with the next one.
        """
        ...
