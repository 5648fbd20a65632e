"""The writer of a PostgreSQL store: what one session hands over is one transaction, sessions are written in parallel.

Which rows are whose is kept by locks: a transaction locks its session's lease before it looks at anything, so that
sequences have no gaps and no two writers see the same state. Each transaction notes its number in its connection's row
of `commits`. When the connection is lost while a transaction is committed, that row tells what became of it; only what
is not there is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anyio import create_task_group
from psycopg.errors import LockNotAvailable

from streamagent.errors import StoreError, StoreUncertain

from ._dialect import NOW, SPELLINGS, Database
from ._operations import Ledgers, Operation
from ._postgres_connection import Connection
from ._postgres_pool import Pool, Unsettled
from ._postgres_schema import KEPT
from ._statements import LEASE
from ._tables import TableLedger
from ._writer import Writer

_LOCKED = f"{LEASE} FOR UPDATE"
# A session that has no row yet has nothing to lock; the schema is in it, because all of them share these locks.
_LOCK_NAME = "SELECT pg_advisory_xact_lock(hashtextextended(current_schema()::text || ? || ':' || ?, 0))"
# What it notes is there exactly if the transaction is, whatever became of the server: its own numbers are given again
# after a crash.
_BEGIN = f"""
    BEGIN ISOLATION LEVEL READ COMMITTED;
    INSERT INTO commits (connection, number, committed_at) VALUES ('{{connection}}', {{number}}, {SPELLINGS[NOW]})
    ON CONFLICT (connection) DO UPDATE SET number = excluded.number, committed_at = excluded.committed_at
    RETURNING committed_at
"""  # noqa: S608 - names that are made here
# It writes the same row, so it waits for the transaction's end.
_LAST = f"""
    INSERT INTO commits (connection, number, committed_at) VALUES (?, 0, {NOW})
    ON CONFLICT (connection) DO UPDATE SET number = commits.number
    RETURNING number, ?::text::timestamptz < clock_timestamp() - {KEPT}
"""  # noqa: S608 - constants only
# One whose COMMIT never arrived waits for it, and holds its locks, until the server sees that nobody is there.
_END = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = ? AND backend_start::text = ? AND state LIKE 'idle in transaction%'
"""


@dataclass(slots=True, eq=False)
class Mark:
    """A transaction, so that another connection can ask what became of it.

    Args:
        connection: The one that it was begun on.
        number: Which of that connection's transactions it is.
        begun: When, by the database's clock.
        sent: COMMIT was sent.
        refusals: What its operations were refused with.
        committed: What became of it, once that is known.
    """

    connection: Connection
    number: int
    begun: str
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
    number = next(connection.numbers)
    begun = connection.tell(_BEGIN.format(connection=connection.name, number=number).encode())
    while begun.nextset():
        pass
    [now] = begun.fetchone() or ("",)
    mark = Mark(connection, number, now)
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
        StoreUncertain: It can no longer be found out.
    """
    if mark.committed is not None:
        return mark.committed
    connection.execute(_END, mark.connection.process)
    if not mark.sent:
        return False
    try:
        last, too_late = connection.execute(_LAST, (mark.connection.name, mark.begun)).fetchone()
    except LockNotAvailable as error:
        raise Unsettled("a transaction whose connection was lost is not over yet") from error
    committed: bool = last == mark.number
    if too_late and not committed:
        raise StoreUncertain(
            "the connection was lost while something was committed, more than a week ago, and nobody can tell any more "
            "whether it was; look at the session's rows before you write it again"
        )
    mark.committed = committed
    return committed
