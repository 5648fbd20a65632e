"""`PostgresStore`: sessions in a PostgreSQL database, for many machines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from streamagent.errors import ConfigError

from ._codec import check_name
from ._dialect import Database
from ._store import TableStore

if TYPE_CHECKING:
    from ._postgres_pool import Pool

P = ParamSpec("P")
T = TypeVar("T")
HINT = "PostgresStore needs psycopg: pip install 'streamagent[postgres]'"
IDENTIFIER = 63  # bytes; PostgreSQL cuts longer names
LONGEST = 86_400  # seconds, a day: PostgreSQL counts milliseconds in 31 bits


class PostgresStore(TableStore):
    """Keep sessions in a PostgreSQL database (13 or newer), shared by many machines; on every backend.

    Open it with `async with`; leaving commits what waits. The tables stand in a schema of their own and are documented
    there: they are for others to read, too. What `SqliteStore` says about lagged fragments holds here.

    A connection that is lost, a server that restarts, a deadlock: the transaction is done again, for `timeout` seconds.
    When the connection is lost while something is committed, it is looked up whether it was, so that nothing is doubled
    and nothing lost; when there is no server to ask, the error is a `StoreUncertain`. No connection is held while a
    model talks.

    Args:
        url: `postgresql://user:password@host:port/database`, with libpq's options (`?sslmode=verify-full`). Of it,
            errors show neither the password nor the options.
        tenant: Whose sessions these are; the sessions of others look as if they did not exist.
        schema: Where the tables are in the database; it is made when it does not exist.
        pool: How many connections there may be at once; they are made when they are needed.
        timeout: Longest wait for one of them, for another process's lock, and for a server that went away, in seconds.
        statement_timeout: Longest time for one statement, in seconds; a server that is silent for longer is given up.
        read_only: Refuse every write; for viewers, and for standby servers.
        poll: While sessions are followed: how often the database is asked whether others wrote to them, in seconds.

    Raises:
        ConfigError: An option cannot be used, or psycopg is not installed; on entering: this store is open already.
        StoreSchemaError: On entering: a newer version of this package wrote the tables.
        StoreError: On entering: the database cannot be reached, or is not ours.
    """

    def __init__(  # noqa: PLR0913 - options, all by keyword
        self,
        url: str,
        *,
        tenant: str = "default",
        schema: str = "streamagent",
        pool: int = 4,
        timeout: float = 30.0,
        statement_timeout: float = 30.0,
        read_only: bool = False,
        poll: float = 0.25,
    ) -> None:
        super().__init__(f"store {_driver().describe(url)}", tenant=tenant, read_only=read_only, poll=poll)
        _check(schema=schema, pool=pool, timeout=timeout, statement_timeout=statement_timeout)
        self._url = url
        self._schema = schema
        self._size = pool
        self._timeout = timeout
        self._statement_timeout = statement_timeout
        self._pool: Pool | None = None

    def __repr__(self) -> str:
        return f"PostgresStore({self._name.removeprefix('store ')!r}, tenant={self.tenant!r}, schema={self._schema!r})"

    def reopened(self) -> PostgresStore:
        """Make a store of the same database and options, to be opened beside this one."""
        return PostgresStore(
            self._url,
            tenant=self.tenant,
            schema=self._schema,
            pool=self._size,
            timeout=self._timeout,
            statement_timeout=self._statement_timeout,
            read_only=self.read_only,
            poll=self._poll,
        )

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[None, None]:
        from ._postgres_connection import Options
        from ._postgres_notices import Notices, noticing
        from ._postgres_pool import open_pool
        from ._postgres_prepare import prepare
        from ._postgres_writer import PostgresWriter
        from ._running import running

        options = Options(
            url=self._url,
            name=self._name,
            schema=self._schema,
            pool=self._size,
            timeout=self._timeout,
            statement_timeout=self._statement_timeout,
            read_only=self.read_only,
        )
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(open_pool(options))
            await pool.run(partial(prepare, options=options), patient=False)
            self._pool = pool
            notices = Notices(pool, self.tenant, self._wakeups)
            await stack.enter_async_context(noticing(notices))
            if not self.read_only:
                self._writer = PostgresWriter(pool, self.tenant, notices.committed)
                await stack.enter_async_context(running(self._writer))
            await stack.enter_async_context(self._polling())
            try:
                yield
            finally:
                self._pool = None

    async def _call(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._pool is None:
            raise self._not_open()
        return await self._pool.ask(lambda connection: function(connection, *args, **kwargs))


def _driver() -> ModuleType:
    """Import what needs psycopg.

    Raises:
        ConfigError: It is not installed, or without the library that it needs.
    """
    try:
        from . import _postgres_connection
    except ImportError as error:
        raise ConfigError(f"{HINT} ({error})") from error
    return _postgres_connection


def _check(*, schema: str, pool: int, timeout: float, statement_timeout: float) -> None:
    check_name("schema", schema)
    if not 0 < len(schema.encode()) <= IDENTIFIER or schema.startswith("pg_"):
        raise ConfigError(
            f"schema is a name of 1 to {IDENTIFIER} bytes that does not start with pg_, not {schema!r:.80}"
        )
    if not isinstance(pool, int) or pool < 1:
        raise ConfigError(f"pool is a number of connections, from 1, not {pool!r:.80}")
    for name, seconds in (("timeout", timeout), ("statement_timeout", statement_timeout)):
        if not 0 < seconds <= LONGEST:
            raise ConfigError(f"{name} is a number of seconds above 0 and at most {LONGEST}, not {seconds!r:.80}")
