"""Identification of a PostgreSQL store's schema, and its tables' making."""

from __future__ import annotations

from streamagent.errors import StoreCorrupt, StoreSchemaError

from ._postgres_connection import Connection, Options, quoted
from ._postgres_schema import KEPT, VERSION, statements

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('streamagent:' || ?, 0))"
_EXISTS = "SELECT to_regnamespace(quote_ident(?)) IS NOT NULL"
# In one statement, which sees what another process makes meanwhile as a whole or not at all.
_FOUND = """
    SELECT count(*), count(attname) FROM pg_namespace
    JOIN pg_class ON relnamespace = pg_namespace.oid
    LEFT JOIN pg_attribute ON attrelid = pg_class.oid AND relname = 'version' AND attname = 'streamagent'
    WHERE nspname = ?
"""
_CLEAN = f"DELETE FROM commits WHERE committed_at::timestamptz < clock_timestamp() - {KEPT}"  # noqa: S608 - a constant


def prepare(connection: Connection, *, options: Options) -> None:
    """Identify the schema, and make it or its tables when they are missing, in one transaction.

    Nothing is written to a schema that is not ours.

    Raises:
        StoreCorrupt: It is another application's, or there is none for reading.
        StoreSchemaError: A newer version of this package wrote it.
    """
    found = _version(connection, options)
    if options.read_only and found:  # a viewer needs none of what came later
        return
    if found != VERSION:
        _bring(connection, options)
    connection.execute(_CLEAN)


def _bring(connection: Connection, options: Options) -> None:
    """Make what is missing to the newest version."""
    connection.tell(b"BEGIN ISOLATION LEVEL READ COMMITTED")
    connection.execute(_LOCK, (options.schema,))  # many processes may start at once; one makes the tables
    version = _version(connection, options)
    [exists] = connection.execute(_EXISTS, (options.schema,)).fetchone()
    if not exists:
        connection.tell(f"CREATE SCHEMA {quoted(options.schema)}".encode())
    if version != VERSION:  # nobody else did it since
        connection.tell(";\n".join(statements(version)).encode())
    connection.execute("COMMIT")


def _version(connection: Connection, options: Options) -> int:
    """Return the version of the tables; 0 where there are none, but may be."""
    schema = options.schema
    tables, ours = connection.execute(_FOUND, (schema,)).fetchone()
    if not ours:
        if tables or options.read_only:
            raise StoreCorrupt(
                f"{options.name}: schema {schema!r} is another application's or has no tables; choose another schema="
            )
        return 0
    version: int
    [version] = connection.execute("SELECT streamagent FROM version").fetchone() or (0,)
    if version > VERSION:
        raise StoreSchemaError(
            f"{options.name}: it has version {version} of the tables, this package knows {VERSION}; update it"
        )
    return version
