"""`SqliteStore`: sessions in one file, for one machine."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, TypeVar

from streamagent.errors import ConfigError, StoreCorrupt, UnsupportedBackendError

from ._dialect import Database
from ._looks import FileVersions
from ._store import TableStore

if TYPE_CHECKING:
    from ._sqlite_reader import SqliteReader
    from ._sqlite_writer import SqliteWriter

P = ParamSpec("P")
T = TypeVar("T")


class SqliteStore(TableStore):
    """Keep sessions in an SQLite file, shared by the processes of one machine; on asyncio (also uvloop).

    Open it with `async with`; leaving commits what waits. The tables are documented in the file itself: they are for
    others to read, too. A lagged fragment that cannot be committed because of the file (busy, full, read-only) stays in
    memory, ahead of what its session writes next, and is tried again with that; until it is committed, `write_soon`
    raises the error. One that is refused (`LeaseLost`, `MessageError`) is dropped, and the session's next `write_soon`,
    `write` or `flush` raises the error. What still could not be written at the end of the `async with` is raised there.

    Args:
        path: The file, made when it does not exist; `:memory:` for a database that is gone when the store is closed.
        tenant: Whose sessions these are; the sessions of others look as if they did not exist.
        synchronous: `full`: what was acknowledged survives a power loss; `normal`: it survives a crash of the process.
        busy_timeout: Longest wait for another process's write lock, in seconds.
        read_only: Refuse every write; for viewers.
        poll: While sessions are followed: how often the file is asked whether another process wrote to it, in seconds.

    Raises:
        ConfigError: `synchronous` is neither, `poll` is no time above 0; on entering: this store is open already.
        UnsupportedBackendError: On entering, under trio: aiosqlite is asyncio's.
        StoreCorrupt: On entering: the file is damaged, or is not ours.
        StoreSchemaError: On entering: a newer version of this package wrote it.
        StoreError: On entering: it cannot be opened.
    """

    def __init__(  # noqa: PLR0913 - the options of a file, all by keyword
        self,
        path: str | os.PathLike[str],
        *,
        tenant: str = "default",
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 5.0,
        read_only: bool = False,
        poll: float = 0.1,
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise ConfigError(f"synchronous is 'full' or 'normal', not {synchronous!r}")
        self.path = os.fspath(path)
        super().__init__(f"store {self.path}", tenant=tenant, read_only=read_only, poll=poll)
        self._synchronous: Literal["full", "normal"] = synchronous
        self._busy_timeout = busy_timeout
        self._reader: SqliteReader | None = None
        self._writer: SqliteWriter | None = None

    def __repr__(self) -> str:
        return f"SqliteStore({self.path!r}, tenant={self.tenant!r})"

    def reopened(self) -> SqliteStore:
        """Make a store of the same file and options, to be opened beside this one.

        Returns:
            The new store; for `:memory:`, which two cannot share, this one.
        """
        if self.path == ":memory:":
            return self
        return SqliteStore(
            self.path,
            tenant=self.tenant,
            synchronous=self._synchronous,
            busy_timeout=self._busy_timeout,
            read_only=self.read_only,
            poll=self._poll,
        )

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[None, None]:
        _require_asyncio()
        from ._connection import Options, call, connect, prepare
        from ._running import running
        from ._sqlite_reader import reading
        from ._sqlite_writer import SqliteWriter

        options = Options(
            path=self.path, busy_timeout=self._busy_timeout, synchronous=self._synchronous, read_only=self.read_only
        )
        async with AsyncExitStack() as stack:
            self._versions = FileVersions().look
            db = reads = await stack.enter_async_context(connect(options))
            await call(db, prepare, options)
            if not (self.read_only or options.in_memory):
                reads = await stack.enter_async_context(connect(replace(options, read_only=True)))
            self._reader = await stack.enter_async_context(reading(reads, self.path))
            if not self.read_only:
                self._writer = SqliteWriter(db, options, self.tenant, self._wakeups.notify)
                await stack.enter_async_context(running(self._writer))
            await stack.enter_async_context(self._polling())
            try:
                yield
            finally:
                self._reader = None

    async def _call(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._reader is None:
            raise self._not_open()
        try:
            return await self._reader.ask(function, *args, **kwargs)
        except StoreCorrupt as error:
            if self._writer is not None:
                self._writer.damage = error
            raise


def _require_asyncio() -> None:
    from asyncio import get_running_loop

    try:
        get_running_loop()
    except RuntimeError:
        raise UnsupportedBackendError(
            "SqliteStore runs on asyncio, because aiosqlite does; use asyncio, or MemoryStore under trio"
        ) from None
