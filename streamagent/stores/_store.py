"""`TableStore`: what the stores have in common that keep sessions in a database's tables."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from streamagent.errors import ConfigError, StoreError, StoreReadOnly
from streamagent.message import Message
from streamagent.protocols import Changes
from streamagent.records import Begun, Owner, Restored

from ._codec import check_name
from ._forks import fork
from ._looks import Versions, read_versions
from ._reading import TableReader
from ._restore import restore
from ._row import Row, add_fragment
from ._wakeups import Wakeups, polling

if TYPE_CHECKING:
    from types import TracebackType

    from ._writer import Writer


class TableStore(TableReader):
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

    async def acquire(self, session: str, *, owner: Owner | None = None) -> int:
        """Become the session's only writer; see `Store`."""
        return await self._writing().take_over(session, lambda ledger: ledger.acquire(owner))

    async def begin_run(
        self,
        session: str,
        *,
        owner: Owner,
        prompt: Message | None = None,
        client_key: str | None = None,
        rest: Sequence[Message] = (),
    ) -> Begun:
        """Acquire a session for a run and put its prompt into the inbox, in one transaction; see `Store`."""
        check_name("client_key", client_key)
        row, rows = None if prompt is None else Row.of(prompt), [Row.of(part) for part in rest]
        return await self._writing().take_over(
            session,
            lambda ledger: ledger.begin_run(owner, row, client_key=client_key, rest=rows),
            unclaimed=lambda ledger, begun: ledger.release(fence=begun.fence, unfinished=begun.standing.left.left_open),
        )

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

    async def start_call(self, session: str, call: str, *, fence: int) -> int:
        """Commit that a call's tool is about to run; see `Store`."""
        return await self._writing().submit(session, lambda ledger: ledger.start_call(call, fence=fence))

    async def finish_call(self, session: str, call: str, outcome: Message, *, fence: int) -> None:
        """Commit what came of a call; see `Store`."""
        row = Row.of(outcome)
        await self._writing().submit(session, lambda ledger: ledger.finish_call(call, row, fence=fence))

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

    async def admit(
        self, session: str, *, fence: int, limit: int = 1, ids: Collection[str] | None = None
    ) -> list[Message]:
        """Give the oldest waiting messages their sequence; see `Store`."""
        rows = await self._writing().submit(
            session, lambda ledger: ledger.admit(fence=fence, limit=limit, ids=ids), lives=True
        )
        return [row.message(session) for row in rows]

    def changes(self, session: str) -> Changes:
        """Ask for hints that a session has changed; see `Store`."""
        return self._wakeups.subscribe(session)

    def _polling(self) -> AbstractAsyncContextManager[None]:
        """Look for what other processes write to sessions that are followed here."""
        return polling(self._wakeups, self._ask_versions, self._poll)

    async def _ask_versions(self, sessions: Collection[str]) -> dict[str, Any] | None:
        return await self._call(self._versions, self.tenant, sessions)

    async def fork(self, session: str, new: str, *, at: int | None = None) -> None:
        """Begin a session with the rows of another one; see `Store`."""
        await self._writing().submit(session, lambda ledger: fork(ledger, new, at), alone=True)
        self._wakeups.notify(new)

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

    def _writing(self) -> Writer:
        if self.read_only:
            raise StoreReadOnly(f"{self._name}: it was opened with read_only=True")
        if self._writer is None:
            raise self._not_open()
        return self._writer

    def _not_open(self) -> StoreError:
        return StoreError(f"{self._name} is not open; use it in `async with {type(self).__name__}(...)`")
