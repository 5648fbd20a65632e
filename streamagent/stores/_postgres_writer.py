"""The writer of a PostgreSQL store: what one session hands over is one transaction, sessions are written in parallel.

Which rows are whose is kept by locks: a transaction locks its session's lease before it looks at anything, so that
sequences have no gaps and no two writers see the same state. When the connection is lost while a transaction is
committed, the server is asked what became of it; only what is not there is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anyio import create_task_group

from streamagent.errors import StoreError, StoreUncertain

from ._dialect import NOW, SPELLINGS, Database
from ._operations import Lagged, Ledgers, Operation
from ._postgres_connection import Connection
from ._postgres_pool import Pool, Unsettled
from ._statements import LEASE
from ._tables import TableLedger
from ._writer import Writer

_LOCKED = f"{LEASE} FOR UPDATE"
# A session that has no row yet has nothing to lock; the schema is in it, because all of them share these locks.
_LOCK_NAME = "SELECT pg_advisory_xact_lock(hashtextextended(current_schema()::text || ? || ':' || ?, 0))"
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_UNSYNCED = "; SET LOCAL synchronous_commit = off"  # for what nobody waits for: the next commit syncs it, too
_WHICH = f"; SELECT pg_current_xact_id()::text, {SPELLINGS[NOW]}"
_ENDED = "SELECT pg_xact_status(?::text::xid8)"
# One whose COMMIT never arrived waits for it, and holds its locks, until the server sees that nobody is there.
_END = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = ? AND backend_xid = (?::text::xid8)::xid AND state LIKE 'idle in transaction%'
"""


@dataclass(slots=True, eq=False)
class Mark:
    """A transaction, so that another connection can ask what became of it.

    Args:
        xid: Its number, which the server never gives again.
        pid: The server's process that carries it out.
        timeline: The server's history that the number belongs to.
        sent: COMMIT was sent.
        refusals: What its operations were refused with.
        committed: What became of it, once that is known.
    """

    xid: str
    pid: int
    timeline: str | None
    sent: bool = False
    refusals: dict[Operation, Exception | None] = field(default_factory=dict)
    committed: bool | None = None


class PostgresLedger(TableLedger):
    """One session's rows, whose lease is locked from the first look until the transaction ends."""

    def _look_up(self, db: Database, tenant: str, session: str) -> Sequence[Any] | None:
        found: Sequence[Any] | None = db.execute(_LOCKED, (tenant, session)).fetchone()
        if found is None:
            db.execute(_LOCK_NAME, (tenant, session))
            found = db.execute(_LOCKED, (tenant, session)).fetchone()
        return found


class PostgresWriter(Writer):
    """Hands the work of each session to the pool, one batch after the other."""

    def __init__(self, pool: Pool, tenant: str, committed: Callable[[str], object]) -> None:
        super().__init__(pool.options.name, committed)
        self._pool = pool
        self._tenant = tenant
        self._busy: dict[str, list[Operation]] = {}

    async def _serve(self) -> None:
        async with create_task_group() as tasks:
            while self._queue or self._busy or not self._closed:
                self._release_due()
                batches = self._take()
                for session, batch in batches.items():
                    self._busy[session] = batch
                    tasks.start_soon(self._write_session, session)
                if not batches:
                    await self._rest()

    def _take(self) -> dict[str, list[Operation]]:
        """Take from the queue what can be begun: one batch a session."""
        queue, self._queue = self._queue, []
        batches: dict[str, list[Operation]] = {}
        for operation in queue:
            if operation.session in self._busy:
                self._queue.append(operation)
            else:
                batches.setdefault(operation.session, []).append(operation)
        return {session: self._with_stalled(batch) for session, batch in batches.items()}

    async def _write_session(self, session: str) -> None:
        await self._commit(self._busy[session])
        del self._busy[session]
        self._wake.set()

    def _under_way(self, session: str) -> list[Operation]:
        return self._busy.get(session, [])

    async def _transact(self, batch: list[Operation]) -> Sequence[Exception | None]:
        try:
            return await self._pool.run(partial(commit, batch=batch, tenant=self._tenant))
        except StoreError as error:
            unsure = StoreUncertain(f"{error}; whether this was written before could not be found out")
            return [unsure if operation.mark is not None and operation.mark.sent else error for operation in batch]


def commit(connection: Connection, *, batch: list[Operation], tenant: str) -> list[Exception | None]:
    """Commit a batch, or what of it is not there yet; return what its operations were refused with."""
    done: dict[Operation, Exception | None] = {}
    for operation in batch:
        try:
            if operation.mark is not None and _is_there(connection, operation.mark):
                done[operation] = operation.mark.refusals.get(operation)
        except StoreUncertain as error:
            done[operation] = error
    if left := [operation for operation in batch if operation not in done]:
        done |= _transaction(connection, left, tenant)
    _forget(batch)
    return [done[operation] for operation in batch]


def _transaction(connection: Connection, batch: list[Operation], tenant: str) -> dict[Operation, Exception | None]:
    lagged = all(isinstance(operation, Lagged) for operation in batch)
    begun = connection.tell((_BEGIN + (_UNSYNCED if lagged else "") + _WHICH).encode())
    while begun.nextset():
        pass
    xid, now = begun.fetchone() or ("", "")
    mark = Mark(xid, connection.raw.info.backend_pid, connection.timeline)
    for operation in batch:
        operation.mark = mark
    try:
        ledgers = Ledgers(lambda session: PostgresLedger(connection, tenant, session, now=now))
        for operation in batch:
            mark.refusals[operation] = ledgers.attempt(operation)
        ledgers.save()
        mark.sent = True
        connection.tell(b"COMMIT")
    except BaseException:
        if not connection.lost:  # the server itself said no, or a bug: it will be rolled back
            _forget(batch)
        raise
    return mark.refusals


def _forget(batch: list[Operation]) -> None:
    for operation in batch:
        operation.mark = None


def _is_there(connection: Connection, mark: Mark) -> bool:
    """Find out whether a transaction was committed whose connection was lost.

    Raises:
        Unsettled: It is not over yet.
        StoreUncertain: It can never be found out.
    """
    if mark.committed is not None:
        return mark.committed
    connection.execute(_END, (mark.pid, mark.xid))
    if not mark.sent:
        return False
    status = None
    if mark.timeline == connection.timeline:
        [status] = connection.execute(_ENDED, (mark.xid,)).fetchone()
    if status is None:
        raise StoreUncertain(
            "the connection was lost while something was committed, and the server that took over, or that forgot it, "
            "cannot tell whether it was; look at the session's rows before you write it again"
        )
    if status == "in progress":
        raise Unsettled("a transaction whose connection was lost is not over yet")
    committed: bool = status == "committed"
    mark.committed = committed
    return committed
