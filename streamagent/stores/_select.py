"""How rows are read from a database's tables. Each function is called on the connection's own thread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from streamagent.message import ROLES

from ._codec import decode_any_time, decode_query, decode_time, utf8_size
from ._dialect import FIRST_BYTES, Database
from ._forks import Part, lineage
from ._row import UNREADABLE, Row

# A row that a fork closed for itself has its content, and mostly its query, in the row of its source.
_SOURCE = (
    "SELECT {} FROM messages AS origin"
    " WHERE origin.id = messages.id AND origin.tenant = messages.tenant AND origin.session = messages.source"
)
_OF_SOURCE = _SOURCE.format(FIRST_BYTES)
COLUMNS = f"""
    id, sequence, prev, role, type, state, attempt, client_key, size, created_at,
    CASE WHEN source IS NULL OR query IS NOT NULL THEN query ELSE ({_SOURCE.format("query")}) END,
    CASE WHEN source IS NULL THEN content ELSE ({_OF_SOURCE}) END,
    source, answered
"""


def select_messages(rest: str, columns: str = COLUMNS) -> str:
    """Write a query for rows of one session; its first two parameters are the tenant and the session."""
    return f"SELECT {columns} FROM messages WHERE tenant = ? AND session = ? AND {rest}"  # noqa: S608 - constants only


_PIECES = """
    SELECT piece, content FROM fragments
    WHERE tenant = ? AND session = ? AND message = ? AND piece > ? ORDER BY piece LIMIT ?
"""
_FEW, _MANY = 4, 1024  # pieces that are asked for at once, first and at most: PostgreSQL sends all of them
_PARENT = "SELECT parent, base FROM leases WHERE tenant = ? AND session = ?"
_ANCESTORS = """
    WITH RECURSIVE line (session, parent, base) AS (
        SELECT session, parent, base FROM leases WHERE tenant = ?1 AND session = ?2
        UNION
        SELECT leases.session, leases.parent, leases.base
        FROM line CROSS JOIN leases ON leases.tenant = ?1 AND leases.session = line.parent
    )
    SELECT session, parent, base FROM line
"""


def decode(
    role: Any, attempt: Any, content: Any, query: Any, created_at: Any
) -> tuple[dict[str, Any] | None, datetime]:
    """Decode the query and the time of a row.

    Raises:
        ValueError: They hold what no message can: another program wrote it, or a newer version of this package.
    """
    if role not in ROLES:
        raise ValueError(f"its role is {role!r:.80}")
    if not isinstance(attempt, int) or not isinstance(content, str):
        raise ValueError(f"its attempt is {attempt!r:.80} and its content {content!r:.80}")  # noqa: TRY004 - bad data
    return None if query is None else decode_query(query), decode_time(created_at)


def to_row(values: Sequence[Any]) -> Row:
    """Build a row of its columns, in the order of `COLUMNS`; one that cannot be read becomes `unreadable`."""
    message_id, sequence, prev, role, type_, state, attempt, client_key, size, created_at, *rest = values
    query, content, source, answered, *_ = rest
    flaw: str | None = None
    try:
        decode(role, attempt, content, query, created_at)
    except ValueError as error:
        flaw, type_, role, attempt = str(error), UNREADABLE, role if role in ROLES else "assistant", 1
        content = content if isinstance(content, str) else ""
    return Row(
        id=message_id,
        sequence=sequence,
        prev=prev,
        role=role,
        type=type_,
        state=state,
        saved=state,
        more=state == "open",
        attempt=attempt,
        client_key=client_key,
        size=size,
        created_at=decode_any_time(created_at),
        query=query,
        flaw=flaw,
        pieces=[content] if content else [],
        source=source,
        answered=answered,
    )


def read_pieces(
    db: Database, message: tuple[str, str, str], *, after: int = -1, limit: float = math.inf
) -> tuple[int, str]:
    """Read the next bytes of a message in pieces.

    Args:
        db: The connection.
        message: Its tenant, session and id.
        after: Number of the piece after which to start.
        limit: Bytes to read at most; never less than a piece.

    Returns:
        The number of the last piece that was read, and the text.
    """
    texts: list[str] = []
    size, count = 0, _FEW
    while True:
        found = db.execute(_PIECES, (*message, after, count)).fetchall()
        for piece, content in found:
            size += utf8_size(content)
            if texts and size > limit:
                return after, "".join(texts)
            texts.append(content)
            after = piece
        if len(found) < count or size >= limit:
            return after, "".join(texts)
        count = min(2 * count, _MANY)


def with_content(db: Database, tenant: str, session: str, row: Row) -> Row:
    """Load the content of a row that has it in pieces."""
    if row.size and not row.pieces:
        _, content = read_pieces(db, (tenant, row.source or session, row.id), limit=row.size)
        row.pieces = [content]
    return row


def read_lineage(db: Database, tenant: str, session: str, until: int) -> Iterator[Part]:
    """Say who keeps the rows of a session, from the last one back to the first."""
    parent, base = db.execute(_PARENT, (tenant, session)).fetchone() or (None, 0)
    found = {session: (parent, base)}
    if parent is not None and base:
        found = {owner: (parent, base) for owner, parent, base in db.execute(_ANCESTORS, (tenant, session))}
    return lineage(session, until, lambda owner: found.get(owner, (None, 0)))
