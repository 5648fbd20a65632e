"""Connections to a PostgreSQL store's database: opening, how long they may be silent, and what its errors mean."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.string import TextLoader

from streamagent.errors import ConfigError, StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreReadOnly

from ._dialect import Found, for_postgres

RV = TypeVar("RV")
GRACE = 1.0  # seconds that the server's own word about a timeout may take to arrive
OLDEST = 13  # older servers are nobody's any more, so nothing is tried with them

_MEANINGS: dict[str, tuple[type[StoreError], str]] = {
    "55P03": (StoreBusy, "another writer holds the session's row; end its transaction or raise timeout="),
    "57014": (StoreBusy, "a statement took longer than statement_timeout= allows"),
    "53300": (StoreBusy, "the server takes no more connections; lower pool= or raise its max_connections"),
    "53100": (StoreFull, "the server's disk is full; make room and try again"),
    "25006": (StoreReadOnly, "the server takes no writes here; name the primary, or use read_only=True"),
    "42501": (StoreReadOnly, "this user may not do that; grant it the right to, or use read_only=True"),
    "42P01": (StoreCorrupt, "tables are missing in its schema; restore a backup, or choose another schema="),
    "42703": (StoreCorrupt, "columns are missing in its tables; restore a backup, or choose another schema="),
    "XX001": (StoreCorrupt, "the database is damaged; restore a backup"),
    "XX002": (StoreCorrupt, "an index is damaged; REINDEX it, or restore a backup"),
    "54000": (StoreError, "a name (session, id, client key) is too long for an index; keep them below 800 bytes"),
}
_SETUP = """
    SELECT set_config('search_path', $1, false), set_config('statement_timeout', $2, false),
        set_config('lock_timeout', $3, false), set_config('idle_in_transaction_session_timeout', $4, false),
        set_config('default_transaction_read_only', $5, false),
        pg_backend_pid(), (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a database is used; see `PostgresStore`.

    Args:
        url: Where it is, with its secrets.
        name: The same without secrets, for errors.
        schema: Where the tables are in it.
        pool: How many connections there may be.
        timeout: Longest wait for one, for a lock, and for a server that went away, in seconds.
        statement_timeout: Longest time for one statement, in seconds.
        read_only: Write nothing.
    """

    url: str = field(repr=False)
    name: str
    schema: str
    pool: int
    timeout: float
    statement_timeout: float
    read_only: bool


def describe(url: str) -> str:
    """Write a URL without its password.

    Raises:
        ConfigError: It is none; the text repeats nothing of it, because it may be nothing but a password.
    """
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        raise ConfigError(
            "this is not the URL of a PostgreSQL database; write postgresql://user:password@host:port/database, "
            "and each of @ : / ? # % in a password as %40 %3A %2F %3F %23 %25"
        ) from None
    user = f"{parts['user']}@" if "user" in parts else ""
    port = f":{parts['port']}" if "port" in parts else ""
    return f"postgresql://{user}{parts.get('host') or ''}{port}/{parts.get('dbname') or ''}"


class Silence(psycopg.OperationalError):
    """The server did not answer in time; it may have stopped, or the network lost what it said."""


class _Raw(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose answers do not wait for ever: `statement_timeout` is the server's, which may be gone."""

    limit: float = math.inf

    def wait(self, gen: Generator[Any, Any, RV], *args: Any, **kwargs: Any) -> RV:
        """Wait for what the server says, `limit` seconds at most."""
        try:
            return super().wait(_bounded(gen, self.limit), *args, **kwargs)
        except Silence:
            self.pgconn.finish()
            raise


def _bounded(gen: Generator[Any, Any, RV], limit: float) -> Generator[Any, Any, RV]:
    """Go through a generator of psycopg's, which is resumed with 0 when there is nothing to read for a moment."""
    deadline = time.monotonic() + limit
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                raise Silence(f"the server did not answer within {limit:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        result: RV = end.value
        return result


class Connection:
    """A connection, spoken to in the SQL of `_dialect`.

    Args:
        raw: The driver's.
        process: Of the server: its number, and when it began.

    Attributes:
        name: No other connection has it.
        numbers: Of its transactions.
    """

    def __init__(self, raw: _Raw, process: tuple[int, str]) -> None:
        self.raw = raw
        self.process = process
        self.name = uuid4().hex
        self.numbers = count(1)

    @property
    def lost(self) -> bool:
        """There is nobody at the other end."""
        return self.raw.closed

    @property
    def in_transaction(self) -> bool:
        """A transaction was begun and not ended."""
        return self.raw.info.transaction_status != TransactionStatus.IDLE

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Found:
        """Carry out a statement."""
        return self.raw.execute(for_postgres(sql), parameters) if parameters else self.tell(for_postgres(sql))

    def tell(self, sql: bytes) -> psycopg.Cursor[tuple[Any, ...]]:
        """Carry out statements without parameters, which it would be no use to prepare."""
        return self.raw.execute(sql, prepare=False)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        """Carry out a statement once for each of these parameters."""
        self.raw.cursor().executemany(for_postgres(sql), parameters)

    def rest(self) -> None:
        """End what was not ended, for the next user."""
        if not self.lost and self.in_transaction:
            self.tell(b"ROLLBACK")

    def close(self) -> None:
        """Hang up."""
        self.raw.close()


def connect(options: Options) -> Connection:
    """Open a connection.

    Raises:
        psycopg.Error: It cannot be opened.
        StoreError: It is no database for us.
    """
    raw = _Raw.connect(_conninfo(options), autocommit=True, cursor_factory=psycopg.RawCursor)
    try:
        raw.limit = options.statement_timeout + GRACE
        _check(raw, options)
        raw.adapters.register_loader("json", TextLoader)  # a query comes back exactly, by our own reader
        found = raw.execute(_SETUP, _settings(options)).fetchone()
        return Connection(raw, process=found[-2:] if found else (0, ""))
    except BaseException:
        raw.close()
        raise


def _settings(options: Options) -> tuple[str, ...]:
    """Give the values of `_SETUP`: times in milliseconds; a wait for a lock ends first, because its error says more."""
    lock = min(options.timeout, 0.9 * options.statement_timeout)
    times = (math.ceil(seconds * 1000) for seconds in (options.statement_timeout, lock, options.timeout))
    return quoted(options.schema), *map(str, times), "on" if options.read_only else "off"


def _conninfo(options: Options) -> str:
    """Complete what the URL says: a connection on which nothing comes and goes ends in an error, not in a hang."""
    seconds = max(2, math.ceil(options.timeout))  # libpq takes no less than 2 to connect
    given = conninfo_to_dict(options.url)
    ours: dict[str, Any] = {
        "connect_timeout": min(seconds, 10),
        "keepalives_idle": min(seconds, 30),
        "keepalives_interval": min(seconds, 10),
        "keepalives_count": 3,
        "tcp_user_timeout": seconds * 1000,
        "application_name": "streamagent",
    }
    return make_conninfo("", **(ours | given | {"client_encoding": "utf8"}))


def _check(raw: _Raw, options: Options) -> None:
    encoding = raw.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{options.name}: its encoding is {encoding}; use a database made with ENCODING 'UTF8'")
    version = raw.info.server_version // 10_000
    if version < OLDEST:
        raise StoreError(f"{options.name}: the server is PostgreSQL {version}; {OLDEST} or newer is needed")


def quoted(name: str) -> str:
    """Write a name so that SQL takes it as one, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def translate(error: psycopg.Error, options: Options) -> StoreError:
    """Say what an error of PostgreSQL means for a store, and what to do about it."""
    state = error.sqlstate or ""
    kind, advice = _MEANINGS.get(state, (StoreError, "PostgreSQL refused"))
    if state == "" or state.startswith("08"):
        advice = "it cannot be reached; look at the server, the network and the URL"
    return kind(f"{options.name}: {advice} ({_without_secrets(str(error).strip(), options.url)})")


def _without_secrets(text: str, url: str) -> str:
    for key, value in conninfo_to_dict(url).items():
        if value and "password" in key:
            text = text.replace(str(value), "***")
    return text
