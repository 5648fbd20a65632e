"""The one writer of an SQLite store: it collects what all sessions hand over and commits it in groups."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiosqlite
from anyio import CancelScope, Event, create_task_group, current_time, move_on_after

from streamagent.cancellation import raise_single
from streamagent.errors import ConfigError, LeaseLost, MessageError, SessionError, StoreCorrupt, StoreError
from streamagent.message import Message, utc_now

from ._codec import check_name, encode_time
from ._connection import Options, call, patiently, rollback
from ._ledger import Ledger
from ._row import Row, add_fragment
from ._tables import TableLedger

# Of one operation; any other error is the whole transaction's.
REFUSALS = (LeaseLost, MessageError, SessionError, ConfigError)


@dataclass(slots=True, eq=False)
class Operation:
    """Something to do with a session's ledger, and what came of it.

    Args:
        session: The session.
        run: What to do; called again when the transaction is tried again. `None` to wait for what came before.
    """

    session: str
    run: Callable[[Ledger], Any] | None
    done: Event = field(default_factory=Event)
    result: Any = None
    error: Exception | None = None


class Lagged(Operation):
    """Fragments of one session that may wait until `due`, on anyio's clock; joined, one row a message."""

    __slots__ = ("due", "fence", "lag", "rows", "size")

    def __init__(self, session: str, fence: int) -> None:
        super().__init__(session, self._write)
        self.fence = fence
        self.lag = self.due = math.inf
        self.rows: dict[str, Row] = {}
        self.size = 0

    def _write(self, ledger: Ledger) -> None:
        ledger.write(self.rows.values(), fence=self.fence)


@asynccontextmanager
async def open_writer(
    db: aiosqlite.Connection, options: Options, tenant: str, *, committed: Callable[[str], object]
) -> AsyncGenerator[Writer, None]:
    """Run a writer; leaving the block commits what waits, also when it is cancelled.

    Args:
        db: The connection that writes.
        options: How it was opened.
        tenant: Whose sessions these are.
        committed: Is told each session of which something was committed.

    Raises:
        StoreError: Why some fragments could not be written.
    """
    writer = Writer(db, options, tenant, committed)
    try:
        async with create_task_group() as tasks:
            tasks.start_soon(writer.run)
            try:
                yield writer
            finally:
                writer.close()  # the group waits for it: a transaction and the one that was queued meanwhile
    except BaseExceptionGroup as group:
        raise_single(group)
    finally:
        writer.raise_left()


class Writer:
    """Owns the connection that writes; `run` is its task.

    A transaction holds whatever was handed over while the one before was committed. An operation that is refused fails
    alone. When the transaction fails, its operations fail; lagged fragments stay here, ahead of whatever their
    session writes next, and `write_soon` takes no more of that session until they are written, also while they are
    tried again. Of lagged fragments that are refused only the reason stays.

    Nothing here grows by itself: whoever hands over an operation waits for it, and whoever hands over a fragment is
    told how much waits and flushes above its limit.
    """

    def __init__(
        self, db: aiosqlite.Connection, options: Options, tenant: str, committed: Callable[[str], object]
    ) -> None:
        self._db = db
        self._committed = committed
        self._options = options
        self._tenant = tenant
        self._queue: list[Operation] = []
        self._batch: list[Operation] = []  # what is being committed
        self._lagged: dict[str, Lagged] = {}
        self._stalled: dict[str, list[Lagged]] = {}
        self._refused: dict[str, Exception] = {}
        self._next_due = math.inf
        self._wake = Event()
        self._closed = False
        self._synchronous = options.synchronous
        self.damage: StoreCorrupt | None = None  # once it was met, nothing more is written

    async def submit(self, session: str, run: Callable[[Ledger], Any]) -> Any:
        """Do something after all that was handed over of the session, and wait for its commit.

        A caller that is cancelled stops waiting; the operation is done all the same.
        """
        operation = await self._hand_over(session, run)
        _raise(operation.error)
        return operation.result

    async def write(self, session: str, rows: dict[str, Row], fence: int) -> dict[str, int]:
        """Write rows; the refusal of an earlier lagged fragment is raised instead."""
        _raise(self._refused.pop(session, None))
        sequences: dict[str, int] = await self.submit(session, lambda ledger: ledger.write(rows.values(), fence=fence))
        return sequences

    async def flush(self, session: str) -> None:
        """Commit what waits of a session; return at once when nothing does."""
        self._check_open()
        if not await self.catch_up(session) and session in self._stalled:
            await self._hand_over(session, None)
        self._raise_failure(session)

    async def catch_up(self, session: str) -> bool:
        """Wait until what was handed over of a session was tried, also by callers that have left; tell if it was."""
        if session in self._lagged:
            await self._hand_over(session, None)
            return True
        under_way = [operation for operation in (*self._batch, *self._queue) if operation.session == session]
        if under_way:
            await under_way[-1].done.wait()
        return bool(under_way)

    async def take_over(self, session: str, run: Callable[[Ledger], Any]) -> Any:
        """Do something that ends the current writer's time: what it was refused concerns nobody any more."""
        result = await self.submit(session, run)
        self._refused.pop(session, None)
        return result

    def write_soon(self, session: str, fragment: Message, fence: int, lag: float) -> int:
        """Take a fragment; see `Store`."""
        if self._stalled or self._refused:
            self._raise_failure(session)
        lagged = self._lagged.get(session)
        if lagged is None or lagged.fence != fence or lag < lagged.lag:
            lagged = self._schedule(session, fence, lag)
        lagged.size += add_fragment(lagged.rows, fragment)
        return lagged.size

    def close(self) -> None:
        """Take nothing more; `run` ends when all that waits was tried."""
        self._closed = True
        for session in list(self._lagged):
            self._release(session)
        self._queue += [Operation(session, None) for session in self._stalled]
        self._wake.set()

    def raise_left(self) -> None:
        """Raise why some fragments could not be written, if there are any."""
        for session in (*self._refused, *self._stalled):
            self._raise_failure(session)

    async def run(self) -> None:
        """Commit what comes until `close`; no cancellation reaches the connection."""
        with CancelScope(shield=True):
            while self._queue or not self._closed:
                if not self._queue:
                    self._wake = Event()
                    with move_on_after(self._next_due - current_time()):
                        await self._wake.wait()
                self._batch = self._collect()
                await self._commit(self._batch)
                self._batch = []

    async def _hand_over(self, session: str, run: Callable[[Ledger], Any] | None) -> Operation:
        self._check_open()
        check_name("session", session)
        operation = Operation(session, run)
        self._release(session)
        self._queue.append(operation)
        self._wake.set()
        await operation.done.wait()
        return operation

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"store {self._options.path} was closed; write inside its `async with`")

    def _schedule(self, session: str, fence: int, lag: float) -> Lagged:
        self._check_open()
        lagged = self._lagged.get(session)
        if lagged is None or lagged.fence != fence:
            check_name("session", session)
            self._release(session)
            lagged = self._lagged[session] = Lagged(session, fence)
        lagged.lag = lag
        lagged.due = min(lagged.due, current_time() + lag)
        if lagged.due < self._next_due:
            self._next_due = lagged.due
            self._wake.set()
        return lagged

    def _release(self, session: str) -> None:
        lagged = self._lagged.pop(session, None)
        if lagged is not None:
            self._queue.append(lagged)
            self._wake.set()

    def _collect(self) -> list[Operation]:
        now = current_time()
        if now >= self._next_due:
            for lagged in [lagged for lagged in self._lagged.values() if lagged.due <= now]:
                self._release(lagged.session)
            self._next_due = min((lagged.due for lagged in self._lagged.values()), default=math.inf)
        queue, self._queue = self._queue, []
        sessions = dict.fromkeys(operation.session for operation in queue) if self._stalled else ()
        return [*(lagged for session in sessions for lagged in self._stalled.get(session, ())), *queue]

    async def _commit(self, batch: list[Operation]) -> None:
        errors: Sequence[Exception | None] = [None] * len(batch)
        try:
            if any(operation.run for operation in batch):
                errors = await call(self._db, self._transact, batch)
        except Exception as error:  # noqa: BLE001 - also a bug goes to whoever waits
            errors = [error] * len(batch)
            if isinstance(error, StoreCorrupt):
                self.damage = error
        for operation in batch if self._stalled else ():
            self._stalled.pop(operation.session, None)
        for operation, operation.error in zip(batch, errors, strict=True):
            if isinstance(operation, Lagged) and operation.error is not None:
                self._keep(operation, operation.error)
            operation.done.set()
            if operation.error is None and operation.run is not None:
                self._committed(operation.session)

    def _keep(self, lagged: Lagged, error: Exception) -> None:
        """Keep fragments that may still be written; a refusal is final."""
        if isinstance(error, REFUSALS):
            self._refused.setdefault(lagged.session, error)
        else:
            self._stalled.setdefault(lagged.session, []).append(lagged)

    def _transact(self, db: sqlite3.Connection, batch: list[Operation]) -> list[Exception | None]:
        """Commit a batch, on the connection's thread; return what its operations were refused with."""
        if self.damage is not None:
            raise self.damage
        options = self._options
        return patiently(lambda: self._try(db, batch), path=options.path, timeout=options.busy_timeout)

    def _try(self, db: sqlite3.Connection, batch: list[Operation]) -> list[Exception | None]:
        self._set_synchronous(db, batch)
        now = encode_time(utc_now())
        db.execute("BEGIN IMMEDIATE")
        try:
            errors = [self._attempt(db, operation, now) for operation in batch]
            db.execute("COMMIT")
        finally:
            rollback(db)
        return errors

    def _attempt(self, db: sqlite3.Connection, operation: Operation, now: str) -> Exception | None:
        if operation.run is not None:
            try:
                ledger = TableLedger(db, self._tenant, operation.session, now=now)
                operation.result = operation.run(ledger)
                ledger.save()
            except REFUSALS as error:
                return error
        return None

    def _set_synchronous(self, db: sqlite3.Connection, batch: list[Operation]) -> None:
        """Spare fragments that nobody waits for the fsync; the next one covers them."""
        lagged = all(isinstance(operation, Lagged) for operation in batch)
        wanted = "normal" if lagged else self._options.synchronous
        if wanted != self._synchronous:
            db.execute(f"PRAGMA synchronous = {wanted}")
            self._synchronous = wanted

    def _raise_failure(self, session: str) -> None:
        """Raise what a lagged fragment was refused with, once, or why it waits to be tried again."""
        _raise(self._refused.pop(session, None))
        for lagged in self._stalled.get(session, ()):
            _raise(lagged.error)


def _raise(error: Exception | None) -> None:
    """Raise an error, if there is one, that others may raise too: each gets its own, with a traceback of its own."""
    if error is None:
        return
    kind = type(error) if isinstance(error, (StoreError, *REFUSALS)) else StoreError
    raise kind(str(error)) from error
