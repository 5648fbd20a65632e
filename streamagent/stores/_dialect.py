"""What both databases are asked, once: the texts are SQLite's, and the few places that PostgreSQL spells otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import count
from typing import Any, Protocol


class Found(Iterable[Any], Protocol):
    """What a statement found."""

    @property
    def rowcount(self) -> int:
        """How many rows were written."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or `None`."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        ...


class Database(Protocol):
    """A connection; `sqlite3.Connection` is one."""

    @property
    def in_transaction(self) -> bool:
        """A transaction was begun and not ended."""
        ...

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Found:
        """Carry out a statement, whose parameters are written `?`, or `?1` and so on."""
        ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any:
        """Carry out a statement once for each of these parameters."""
        ...


# The first bytes of a source's content; SQLite counts bytes in a blob only, and holds what another program put there.
FIRST_BYTES = (
    "CASE typeof(content) WHEN 'text'"
    " THEN coalesce(CAST(substr(CAST(content AS BLOB), 1, messages.size) AS TEXT), '') ELSE content END"
)
BYTES = "length(CAST(content AS BLOB))"
# The time by the database's clock, as the tables have it; SQLite knows no more than milliseconds.
NOW = "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')"
# PostgreSQL sends all that was asked for at once; from SQLite the rows are taken one by one, until there are enough.
PAGE_BYTES = 256 * 1024
PAGE_END = "ORDER BY sequence LIMIT ?5"
SPELLINGS = {
    PAGE_END: f"""
        AND sequence <= (
            SELECT max(sequence) FROM (
                SELECT sequence, sum(size) OVER (ORDER BY sequence) - size AS before FROM (
                    SELECT sequence, size FROM messages
                    WHERE tenant = ?1 AND session = ?2 AND sequence > ?3 AND sequence <= ?4
                    ORDER BY sequence LIMIT ?5
                ) AS next
            ) AS page WHERE before < {PAGE_BYTES}
        ) ORDER BY sequence
    """,  # noqa: S608 - constants only
    NOW: "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
    BYTES: "octet_length(content)",
    FIRST_BYTES: "convert_from(substr(convert_to(content, 'UTF8'), 1, messages.size::integer), 'UTF8')",
    "json_each(?) AS asked": "json_array_elements_text(?::json) AS asked(value)",
    "CROSS JOIN": "JOIN",  # to SQLite it says which table comes first
}
SNAPSHOT = "BEGIN"  # what is read until the end of it is as of one moment; a writer begins otherwise
_PARAMETER = re.compile(r"\?(\d*)")


@cache  # the texts are constants of this package
def for_postgres(sql: str) -> bytes:
    """Spell a statement for PostgreSQL."""
    if sql == SNAPSHOT:
        return b"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
    for ours, theirs in SPELLINGS.items():
        sql = sql.replace(ours, theirs)
    numbers = count(1)
    return _PARAMETER.sub(lambda found: f"${found[1] or next(numbers)}", sql).encode()
