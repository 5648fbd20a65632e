"""Connections to an SQLite store's file: opening, identification, and what its errors mean."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import aiosqlite
from anyio import CancelScope

from streamagent.errors import StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreReadOnly, StoreSchemaError

from ._queries import snapshot
from ._schema import APPLICATION_ID, OLD_AS_NEW, STEPS, VERSION

P = ParamSpec("P")
T = TypeVar("T")
Synchronous = Literal["full", "normal"]

# quick_check reads the whole file: about 40 ms for this size. Damage in a larger one is met when it is read.
QUICK_CHECK = 16 * 1024 * 1024  # bytes
PAUSE = 0.01  # seconds between two tries where SQLite itself does not wait for a lock

_SAVE = "save the sessions that are whole: `streamagent sessions export`, or read_only=True"

_MEANINGS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (StoreBusy, "another process holds the write lock; end its transaction or raise busy_timeout"),
    sqlite3.SQLITE_LOCKED: (StoreBusy, "another connection holds a lock; end its transaction or raise busy_timeout"),
    sqlite3.SQLITE_FULL: (StoreFull, "the disk or the database's size limit is full; make room and try again"),
    sqlite3.SQLITE_READONLY: (
        StoreReadOnly,
        "it cannot be written; give this user the right to, or use read_only=True",
    ),
    sqlite3.SQLITE_CORRUPT: (StoreCorrupt, f"the file is damaged; restore a backup, or {_SAVE}"),
    sqlite3.SQLITE_NOTADB: (StoreCorrupt, "this is no SQLite database; choose another path, or restore a backup"),
    sqlite3.SQLITE_CANTOPEN: (StoreError, "it cannot be opened; create its folder, or correct the path"),
    sqlite3.SQLITE_IOERR: (StoreError, "the disk failed; look at the system's log"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a file is opened.

    Args:
        path: The file; `:memory:` for a database that is gone when it is closed.
        busy_timeout: Longest wait for another process's lock, in seconds.
        synchronous: `full`: what was acknowledged survives a power loss; `normal`: it survives a crash of the process.
        read_only: Write nothing, also not the schema.
    """

    path: str
    busy_timeout: float
    synchronous: Synchronous
    read_only: bool

    @property
    def in_memory(self) -> bool:
        """It lives in one connection, which readers must share."""
        return self.path == ":memory:"


def translate(error: sqlite3.Error, path: str) -> StoreError:
    """Say what an error of SQLite means for a store, and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code (https://sqlite.org/rescode.html)
    kind, advice = _MEANINGS.get(code, (StoreError, "SQLite refused"))
    folder = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120 - no IO beyond the name
    if code == sqlite3.SQLITE_CANTOPEN and os.path.isdir(folder) and not _writable(folder):  # noqa: PTH112
        kind, advice = StoreReadOnly, "its folder cannot be written; give this user the right to"
    return kind(f"store {path}: {advice} ({error})")


def _writable(folder: str) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def patiently(function: Callable[[], T], *, path: str, timeout: float) -> T:
    """Call a whole transaction, and again while the database is locked; SQLite's own waiting does not cover all locks.

    Raises:
        StoreError: What it failed with; `StoreBusy` when it is locked for longer than `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return function()
        except sqlite3.Error as error:
            translated = translate(error, path)
            if not isinstance(translated, StoreBusy) or time.monotonic() >= deadline:
                raise translated from error
        time.sleep(PAUSE)  # on the connection's thread


def begin_call(
    db: aiosqlite.Connection,
    function: Callable[Concatenate[sqlite3.Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> asyncio.Future[T]:
    """Have a function called with the connection on its thread, in one hop; return what gets its result.

    Nobody cancels that: it is no task's.
    """
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    if db._connection is None:  # noqa: SLF001 - aiosqlite has no public names for any of it
        result.set_exception(sqlite3.ProgrammingError("the store was closed"))
    else:
        db._tx.put_nowait((result, partial(function, db._conn, *args, **kwargs)))  # noqa: SLF001
    return result


async def call(
    db: aiosqlite.Connection,
    function: Callable[Concatenate[sqlite3.Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call a function with the connection on its thread; see `begin_call`. A hop a statement would cost 21 µs each."""
    return await begin_call(db, function, *args, **kwargs)


@asynccontextmanager
async def connect(options: Options) -> AsyncGenerator[aiosqlite.Connection, None]:
    """Open a connection and close it, also when the caller is cancelled.

    Raises:
        StoreError: The file cannot be opened.
    """
    location = ":memory:" if options.in_memory else _uri(options)
    try:
        # Fail here: aiosqlite does not wait for its thread when the file cannot be opened.
        sqlite3.connect(location, uri=True).close()
    except sqlite3.Error as error:
        raise translate(error, options.path) from error
    db = await aiosqlite.connect(location, uri=True, timeout=options.busy_timeout, isolation_level=None)
    try:
        yield db
    finally:
        with CancelScope(shield=True):  # bounded: what runs on its thread waits for locks for busy_timeout at most
            await db.close()


def _uri(options: Options) -> str:
    mode = "ro" if options.read_only else "rwc"
    return f"{Path(options.path).absolute().as_uri()}?mode={mode}"


def prepare(db: sqlite3.Connection, options: Options) -> None:
    """Identify the file, create the tables in an empty one and change those of an older version, in one transaction.

    Nothing is written to a file that is not ours.

    Raises:
        StoreCorrupt: It is damaged, no database, or another application's.
        StoreSchemaError: A newer version of this package wrote it.
        StoreBusy: Another process kept it locked for longer than `busy_timeout`.
    """

    def attempt() -> None:
        with snapshot(db):
            version = _identify(db, options)
        if options.read_only:
            for statement in OLD_AS_NEW.get(version, ()):
                db.execute(statement)
            return
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {options.synchronous}")
        db.execute("PRAGMA secure_delete = ON")  # from the first row on: freed space is never searched again
        if version != VERSION:
            _upgrade(db, options)

    patiently(attempt, path=options.path, timeout=options.busy_timeout)


def _identify(db: sqlite3.Connection, options: Options) -> int:
    """Return the version of the tables; 0 for an empty file, which may get them."""
    path = options.path
    application = _pragma(db, "application_id")
    version: int = _pragma(db, "user_version")
    if application == APPLICATION_ID:
        if version > VERSION:
            raise StoreSchemaError(
                f"store {path}: it has version {version} of the tables, this package knows {VERSION}; update it"
            )
        if not options.read_only:  # what is whole of a damaged file can be read, and saved
            _check_pages(db, path)
        return version
    [tables] = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application or version or tables or options.read_only:
        raise StoreCorrupt(f"store {path}: this is another application's database or an empty one; choose another path")
    return 0


def _check_pages(db: sqlite3.Connection, path: str) -> None:
    if _pragma(db, "page_count") * _pragma(db, "page_size") <= QUICK_CHECK:
        [verdict] = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreCorrupt(f"store {path}: the file is damaged; restore a backup, or {_SAVE} ({verdict})")


def _upgrade(db: sqlite3.Connection, options: Options) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in STEPS.get(_identify(db, options), ()):  # none, when another process did it since
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    finally:
        rollback(db)


def empty_log(db: sqlite3.Connection, path: str) -> None:
    """Move what is in the write-ahead log into the file.

    Raises:
        StoreError: What SQLite failed with; `StoreBusy` when another process reads an older state of the file.
    """
    try:
        [busy, *_] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        raise translate(error, path) from error
    if busy:
        told = "another process reads it, so what was deleted is still in its -wal file; end that and do it again"
        raise StoreBusy(f"store {path}: {told}")


def rollback(db: sqlite3.Connection) -> None:
    """End a transaction that did not come to its commit."""
    if db.in_transaction:
        db.execute("ROLLBACK")


def _pragma(db: sqlite3.Connection, name: str) -> Any:
    return db.execute(f"PRAGMA {name}").fetchone()[0]
