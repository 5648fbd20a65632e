"""The one writer of an SQLite store: it commits in groups what all sessions hand over."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import aiosqlite
from anyio import CancelScope

from streamagent.errors import StoreCorrupt
from streamagent.message import utc_now

from ._codec import encode_time
from ._connection import Options, call, empty_log, patiently, rollback
from ._cursors import let_go
from ._operations import Lagged, Ledgers, Operation
from ._sqlite_ledger import Memory, SqliteLedger
from ._writer import Writer


class SqliteWriter(Writer):
    """Owns the connection that writes; a transaction holds what was handed over while the last one was committed."""

    def __init__(
        self, db: aiosqlite.Connection, options: Options, tenant: str, committed: Callable[[str], object]
    ) -> None:
        super().__init__(f"store {options.path}", committed)
        self._db = db
        self._options = options
        self._tenant = tenant
        self._batch: list[Operation] = []  # what is being committed
        self._synchronous = options.synchronous
        self._memory = Memory()
        self.damage: StoreCorrupt | None = None  # once it was met, nothing more is written

    async def _serve(self) -> None:
        while self._queue or not self._closed:
            if not self._queue:
                await self._rest()
            self._release_due()
            queue, self._queue = self._queue, []
            self._batch = self._with_stalled(queue)
            await self._commit(self._batch)
            self._batch = []

    async def shred(self) -> None:
        """Empty the write-ahead log into the file, where what was deleted is written over; see `empty_log`."""
        self._check_open()
        with CancelScope(shield=True):  # bounded: it waits for others for busy_timeout at most
            await call(self._db, empty_log, self._options.path)

    async def _transact(self, batch: list[Operation]) -> list[Exception | None]:
        try:
            return await call(self._db, self._patiently, batch)
        except StoreCorrupt as error:
            self.damage = error
            raise

    def _patiently(self, db: sqlite3.Connection, batch: list[Operation]) -> list[Exception | None]:
        """Commit a batch, on the connection's thread; return what its operations were refused with."""
        if self.damage is not None:
            raise self.damage
        options = self._options
        return patiently(lambda: self._try(db, batch), path=options.path, timeout=options.busy_timeout)

    def _try(self, db: sqlite3.Connection, batch: list[Operation]) -> list[Exception | None]:
        self._set_synchronous(db, batch)
        try:
            return self._write(db, batch, guess=True)
        except sqlite3.IntegrityError:  # perhaps one that was taken for new
            return self._write(db, batch, guess=False)

    def _write(self, db: sqlite3.Connection, batch: list[Operation], *, guess: bool) -> list[Exception | None]:
        now, memory = encode_time(utc_now()), self._memory
        db.execute("BEGIN IMMEDIATE")
        try:
            memory.refresh(db)
            ledgers = Ledgers(
                lambda session: SqliteLedger(db, self._tenant, session, now=now, memory=memory, guess=guess)
            )
            errors = [ledgers.attempt(operation) for operation in batch]
            ledgers.save()
            db.execute("COMMIT")
        except BaseException as error:
            memory.forget()
            let_go(error)
            raise
        finally:
            rollback(db)
        return errors

    def _set_synchronous(self, db: sqlite3.Connection, batch: list[Operation]) -> None:
        """Spare the fsync what nobody waits for, and what is over when the machine stops; the next one covers it."""
        lagged = all(operation.lives or isinstance(operation, Lagged) for operation in batch)
        wanted = "normal" if lagged else self._options.synchronous
        if wanted != self._synchronous:
            db.execute(f"PRAGMA synchronous = {wanted}")
            self._synchronous = wanted
