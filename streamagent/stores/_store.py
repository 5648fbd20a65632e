"""`TableStore`: what the stores have in common that keep sessions in a database's tables."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from streamagent.errors import ConfigError, StoreError, StoreReadOnly
from streamagent.message import Message
from streamagent.protocols import Changes, Excerpt, Store, Stream
from streamagent.records import CallRecord, Mark, Owner, Restored, SessionInfo, Unfinished, Usage

from ._codec import check_name
from ._dialect import Database
from ._forks import fork
from ._looks import Versions, read_excerpt, read_versions
from ._queries import (
    END,
    read_calls,
    read_inbox,
    read_info,
    read_marks,
    read_next,
    read_page,
    read_parts,
    read_sessions,
    read_tally,
    read_unattended,
    read_unfinished,
    read_usage,
    read_waiting,
    to_info,
)
from ._restore import restore
from ._row import Row, add_fragment
from ._wakeups import Wakeups, polling

if TYPE_CHECKING:
    from types import TracebackType

    from ._writer import Writer

P = ParamSpec("P")
T = TypeVar("T")
_LATEST = ("~", "")  # sorts behind every time


class TableStore(Store):
    """Do everything with a `Writer` and with functions that read, whatever the database.

    Args:
        name: What errors call this store.
        tenant: Whose sessions these are.
        read_only: Refuse every write.
        poll: How often the database is asked for what followers want to know, in seconds.
    """

    def __init__(self, name: str, *, tenant: str, read_only: bool, poll: float) -> None:
        check_name("tenant", tenant)
        if not 0 < poll < math.inf:
            raise ConfigError(f"{type(self).__name__}(poll=…) takes seconds above 0, not {poll!r:.80}")
        self.tenant = tenant
        self.read_only = read_only
        self._name = name
        self._stack = AsyncExitStack()
        self._entered = False
        self._writer: Writer | None = None
        self._poll = poll
        self._wakeups = Wakeups()
        self._versions: Versions = read_versions

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._open_once())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def _open_once(self) -> AsyncGenerator[None, None]:
        if self._entered:
            raise ConfigError(f"{self._name} is open already; share one `Runtime(store=...)` among all its users")
        self._entered = True
        try:
            async with self._open():
                yield
        finally:
            self._wakeups.notify_all()  # whoever follows is told that it is closed
            self._entered = False

    @abstractmethod
    def _open(self) -> AbstractAsyncContextManager[None]:
        """Connect, and set `_writer` unless it is for reading alone; leaving closes both."""

    @abstractmethod
    async def _call(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that reads, with a connection, on a thread."""

    async def acquire(self, session: str, *, owner: Owner | None = None) -> int:
        """Become the session's only writer; see `Store`."""
        return await self._writing().take_over(session, lambda ledger: ledger.acquire(owner))

    async def release(self, session: str, *, fence: int, unfinished: bool = False) -> None:
        """Hold the session no more; see `Store`."""
        await self._writing().submit(
            session, lambda ledger: ledger.release(fence=fence, unfinished=unfinished), lives=True
        )

    async def heartbeat(self, owner: Owner) -> None:
        """Say that an owner is alive; see `Store`."""
        await self._writing().submit("", lambda ledger: ledger.hear(owner), lives=True)

    async def retire(self, owner: str) -> None:
        """Say that an owner is gone; see `Store`."""
        await self._writing().submit("", lambda ledger: ledger.retire(owner))

    async def unattended(self, *, limit: int = 100) -> list[str]:
        """Find sessions with something to do that no living owner holds; see `Store`."""
        return await self._call(read_unattended, self.tenant, limit)

    async def start_call(self, session: str, call: str, *, fence: int) -> int:
        """Commit that a call's tool is about to run; see `Store`."""
        return await self._writing().submit(session, lambda ledger: ledger.start_call(call, fence=fence))

    async def finish_call(self, session: str, call: str, outcome: Message, *, fence: int) -> None:
        """Commit what came of a call; see `Store`."""
        row = Row.of(outcome)
        await self._writing().submit(session, lambda ledger: ledger.finish_call(call, row, fence=fence))

    async def calls(self, session: str) -> list[CallRecord]:
        """Return what is known of the calls that were started; see `Store`."""
        return await self._ask(read_calls, session)

    async def write(self, session: str, fragments: Sequence[Message], *, fence: int) -> list[int]:
        """Commit fragments; see `Store`."""
        rows: dict[str, Row] = {}
        for fragment in fragments:
            add_fragment(rows, fragment)
        sequences = await self._writing().write(session, rows, fence)
        return [sequences[fragment.id] for fragment in fragments]

    def write_soon(self, session: str, fragment: Message, *, fence: int, lag: float) -> int:
        """Take a fragment that is committed within `lag` seconds; see `Store`."""
        return self._writing().write_soon(session, fragment, fence, lag)

    async def flush(self, session: str) -> None:
        """Return when everything that `write_soon` took of this session is committed; see `Store`."""
        await self._writing().flush(session)

    async def enqueue(
        self, session: str, message: Message, *, client_key: str | None = None, rest: Sequence[Message] = ()
    ) -> Message:
        """Put messages into the session's inbox; see `Store`."""
        check_name("client_key", client_key)
        row, rows = Row.of(message), [Row.of(part) for part in rest]
        stored = await self._writing().submit(
            session, lambda ledger: ledger.enqueue(row, client_key=client_key, rest=rows)
        )
        return stored.message(session)

    async def inbox(self, session: str) -> list[Message]:
        """Return the messages that wait; see `Store`."""
        return await self._ask(read_inbox, session)

    async def admit(
        self, session: str, *, fence: int, limit: int = 1, ids: Collection[str] | None = None
    ) -> list[Message]:
        """Give the oldest waiting messages their sequence; see `Store`."""
        rows = await self._writing().submit(session, lambda ledger: ledger.admit(fence=fence, limit=limit, ids=ids))
        return [row.message(session) for row in rows]

    async def waiting(self, sessions: Collection[str], type: str) -> set[str]:  # noqa: A002 - the field's name
        """Tell which of these sessions have such a message in their inbox; see `Store`."""
        for session in sessions:
            check_name("session", session)
        return await self._call(read_waiting, self.tenant, sessions, type)

    async def unfinished(self, session: str) -> Unfinished:
        """Return what a run that ended badly left open; see `Store`."""
        return await self._ask(read_unfinished, session)

    async def read(self, session: str, *, after: int = 0, until: int | None = None) -> Stream:
        """Read messages by sequence, those included that waited for their lag when it began; see `Store`."""
        after, last = min(after, END), END if until is None else min(until, END)
        await self._catch_up(session)
        parts = await self._read(read_parts, session, after, last)
        while parts:
            page = await self._read(read_page, session, parts[0])
            for message in page.messages:
                yield message
                parts[0].after = message.sequence or 0
            while page.left > 0:
                piece, content = await self._call(read_next, self.tenant, page)
                if not content:  # the session was deleted meanwhile
                    break
                yield page.next_fragment(piece, content)
            if not page.full:
                del parts[0]

    async def look(self, session: str, *, after: int, offset: int = 0, hint: object = None) -> Excerpt:
        """Read what is committed behind a place; see `Store`."""
        return await self._read(read_excerpt, session, (after, offset), hint)

    def changes(self, session: str) -> Changes:
        """Ask for hints that a session has changed; see `Store`."""
        return self._wakeups.subscribe(session)

    def _polling(self) -> AbstractAsyncContextManager[None]:
        """Look for what other processes write to sessions that are followed here."""
        return polling(self._wakeups, self._ask_versions, self._poll)

    async def _ask_versions(self, sessions: Collection[str]) -> dict[str, Any] | None:
        return await self._call(self._versions, self.tenant, sessions)

    async def tally(self, session: str) -> dict[tuple[str, str], int]:
        """Count the session's messages by (role, type); see `Store`."""
        return await self._ask(read_tally, session)

    async def usage(self, session: str | None, *, since: datetime | None = None) -> Usage:
        """Sum up what the stored turns took; see `Store`."""
        check_name("session", session)
        return await self._call(read_usage, self.tenant, session, since)  # stops and calls never wait for a lag

    async def sessions(self) -> AsyncGenerator[SessionInfo, None]:
        """List the sessions, the latest modified first; one that is modified meanwhile may be left out."""
        before = _LATEST
        while page := await self._call(read_sessions, self.tenant, before):
            for values in page:
                yield to_info(values)
            before = page[-1][2], page[-1][0]

    async def fork(self, session: str, new: str, *, at: int | None = None) -> None:
        """Begin a session with the rows of another one; see `Store`."""
        await self._writing().submit(session, lambda ledger: fork(ledger, new, at), alone=True)
        self._wakeups.notify(new)

    async def info(self, session: str) -> SessionInfo | None:
        """Tell of one session; see `Store`."""
        return await self._ask(read_info, session)

    async def marks(self, session: str) -> AsyncGenerator[Mark, None]:
        """Tell which messages wait for another row, and which have a client key; see `Store`."""
        after: int | None = 0
        while after is not None:
            after, marks = await self._read(read_marks, session, after)
            for mark in marks:
                yield mark

    async def restore(
        self, session: str, rows: Callable[[], Iterable[Restored]], *, created_at: datetime, modified_at: datetime
    ) -> None:
        """Fill a session with the rows of another one; see `Store`."""
        await self._writing().take_over(
            session,
            lambda ledger: restore(ledger, rows(), created_at=created_at, modified_at=modified_at),
            alone=True,
        )

    async def delete(self, session: str, *, idle: bool = False) -> bool:
        """Delete a session; see `Store`."""
        return await self._writing().take_over(session, lambda ledger: ledger.delete(idle=idle), alone=True)

    async def shred(self) -> None:
        """Have nothing left of what was deleted, as far as that is this store's to do; see `Store`."""
        await self._writing().shred()

    async def _catch_up(self, session: str) -> None:
        """Let readers of this process see what it handed over; the writer is told when that fails, not they."""
        if self._writer is not None:
            await self._writer.catch_up(session)

    async def _ask(self, function: Callable[[Database, str, str], T], session: str) -> T:
        await self._catch_up(session)
        return await self._read(function, session)

    async def _read(
        self,
        function: Callable[Concatenate[Database, str, str, P], T],
        session: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        check_name("session", session)
        return await self._call(function, self.tenant, session, *args, **kwargs)

    def _writing(self) -> Writer:
        if self.read_only:
            raise StoreReadOnly(f"{self._name}: it was opened with read_only=True")
        if self._writer is None:
            raise self._not_open()
        return self._writer

    def _not_open(self) -> StoreError:
        return StoreError(f"{self._name} is not open; use it in `async with {type(self).__name__}(...)`")
