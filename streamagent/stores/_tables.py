"""Statements on an SQLite store's tables. Each function is called on the connection's own thread."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from streamagent.errors import LeaseLost
from streamagent.message import ROLES

from ._codec import decode_any_time, decode_query, decode_time, encode_time, pack
from ._ledger import UNREADABLE, Ledger, Row

if TYPE_CHECKING:
    from sqlite3 import Connection

COLUMNS = "id, sequence, prev, role, type, state, attempt, client_key, size, created_at, query, content"


def select_messages(rest: str) -> str:
    """Write a query for rows of one session; its first two parameters are the tenant and the session."""
    return f"SELECT {COLUMNS} FROM messages WHERE tenant = ? AND session = ? AND {rest}"  # noqa: S608 - constants only


_FIND = select_messages("id = ?")
_FIND_KEY = select_messages("client_key = ?")
# `state <> 'closed'` says to SQLite that the partial index holds all these rows.
_WAITING = select_messages("state = 'inbox' AND state <> 'closed' ORDER BY rowid LIMIT ?")
_LEASE = "SELECT head, fence FROM leases WHERE tenant = ? AND session = ?"
_SAVE_LEASE = """
    INSERT INTO leases (tenant, session, head, fence, created_at, modified_at) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
        head = excluded.head,
        fence = excluded.fence,
        created_at = coalesce(min(created_at, excluded.created_at), created_at, excluded.created_at),
        modified_at = ifnull(excluded.modified_at, modified_at)
    WHERE fence = ?
"""
_CLEAR_LEASE = "UPDATE leases SET created_at = NULL, modified_at = NULL WHERE tenant = ? AND session = ?"
_INSERT = """
    INSERT INTO messages (
        tenant, session, modified_at,
        id, sequence, prev, role, type, state, attempt, client_key, size, created_at, query, content
    ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_UPDATE = """
    UPDATE messages SET sequence = ?, state = ?, size = ?, query = ?, modified_at = ?
    WHERE tenant = ? AND session = ? AND id = ?
"""
_GATHER = "UPDATE messages SET content = ? WHERE tenant = ? AND session = ? AND id = ?"
PIECES = """
    SELECT piece, content FROM fragments
    WHERE tenant = ? AND session = ? AND message = ? AND piece > ? ORDER BY piece
"""
_NEXT_PIECE = "SELECT ifnull(max(piece) + 1, 0) FROM fragments WHERE tenant = ? AND session = ? AND message = ?"
_ADD_PIECE = "INSERT INTO fragments (tenant, session, message, piece, content) VALUES (?, ?, ?, ?, ?)"
_DROP_PIECES = "DELETE FROM fragments WHERE tenant = ? AND session = ? AND message = ?"


def decode(values: Sequence[Any]) -> tuple[dict[str, Any] | None, datetime]:
    """Decode the query and the time among the columns of a row.

    Raises:
        ValueError: They hold what no message can: another program wrote it, or a newer version of this package.
    """
    _, _, _, role, _, _, attempt, _, _, created_at, query, content = values
    if role not in ROLES:
        raise ValueError(f"its role is {role!r:.80}")
    if not isinstance(attempt, int) or not isinstance(content, str):
        raise ValueError(f"its attempt is {attempt!r:.80} and its content {content!r:.80}")  # noqa: TRY004 - bad data
    return decode_query(query), decode_time(created_at)


def to_row(values: Sequence[Any]) -> Row:
    """Build a row of its columns, in the order of `COLUMNS`; one that cannot be read becomes `unreadable`."""
    message_id, sequence, prev, role, type_, state, attempt, client_key, size, created_at, query, content = values
    flaw: str | None = None
    try:
        decode(values)
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
    )


def all_pieces(db: Connection, tenant: str, session: str, message_id: str) -> list[str]:
    """Read all pieces of a message."""
    return [content for _, content in db.execute(PIECES, (tenant, session, message_id, -1))]


def with_content(db: Connection, tenant: str, session: str, row: Row) -> Row:
    """Load the pieces of a row whose content is not in its own column."""
    if row.spread:
        row.pieces = all_pieces(db, tenant, session, row.id)
    return row


class TableLedger(Ledger):
    """One session's rows in the tables, for one operation inside a write transaction; `save` ends it."""

    def __init__(self, db: Connection, tenant: str, session: str, *, now: str) -> None:
        lease = db.execute(_LEASE, (tenant, session)).fetchone()
        self._found: tuple[int, int] = lease or (0, 0)
        super().__init__(session, head=self._found[0], fence=self._found[1])
        self._db = db
        self._tenant = tenant
        self._key = (tenant, session)
        self._now = now
        self._touched: dict[str, Row] = {}

    def find(self, message_id: str) -> Row | None:
        """Look an id up; content that is saved is not loaded."""
        return self._touched.get(message_id) or self._load(_FIND, message_id)

    def find_key(self, client_key: str) -> Row | None:
        """Look a client key up."""
        row = self._load(_FIND_KEY, client_key)
        return row and with_content(self._db, *self._key, row)

    def waiting(self, limit: int) -> Sequence[Row]:
        """Read the head of the inbox."""
        found = self._db.execute(_WAITING, (*self._key, limit)).fetchall()
        return [with_content(self._db, *self._key, to_row(values)) for values in found]

    def put(self, row: Row) -> None:
        """Take a row for `save`."""
        self._touched[row.id] = row

    def clear(self) -> bool:
        """Delete all rows."""
        self._db.execute("DELETE FROM fragments WHERE tenant = ? AND session = ?", self._key)
        self._db.execute(_CLEAR_LEASE, self._key)
        return self._db.execute("DELETE FROM messages WHERE tenant = ? AND session = ?", self._key).rowcount > 0

    def save(self) -> None:
        """Write what was changed; the lease first, because that may fail.

        Raises:
            LeaseLost: The session got another fence since it was looked at.
        """
        if self._touched or (self.head, self.fence) != self._found:
            self._save_lease()
        for row in self._touched.values():
            if row.saved is None:
                self._insert(row)
            else:
                self._update(row)

    def _load(self, statement: str, value: str) -> Row | None:
        found = self._db.execute(statement, (*self._key, value)).fetchone()
        return found and to_row(found)

    def _save_lease(self) -> None:
        added = (encode_time(row.created_at) for row in self._touched.values() if row.saved is None)
        created_at = min(added, default=None)
        modified_at = self._now if self._touched else None
        values = (*self._key, self.head, self.fence, created_at, modified_at, self._found[1])
        if self._db.execute(_SAVE_LEASE, values).rowcount != 1:
            raise LeaseLost(f"session {self.session!r} was taken over in the middle of a write; stop this run")

    def _insert(self, row: Row) -> None:
        content = "" if row.spread else "".join(row.pieces)
        key = (*self._key, self._now, row.id, row.sequence, row.prev, row.role, row.type, row.state, row.attempt)
        values = (row.client_key, row.size, encode_time(row.created_at), row.query, content)
        self._db.execute(_INSERT, (*key, *values))
        if row.spread:
            self._add_pieces(row)

    def _update(self, row: Row) -> None:
        values = (row.sequence, row.state, row.size, row.query, self._now)
        self._db.execute(_UPDATE, (*values, *self._key, row.id))
        if row.saved != "open":
            return
        if row.spread:
            self._add_pieces(row)
        else:
            content = "".join([*all_pieces(self._db, *self._key, row.id), *row.pieces])
            self._db.execute(_GATHER, (content, *self._key, row.id))
            self._db.execute(_DROP_PIECES, (*self._key, row.id))

    def _add_pieces(self, row: Row) -> None:
        """Append content; small pieces stay small, because rewriting the last one would cost more than it saves."""
        [number] = self._db.execute(_NEXT_PIECE, (*self._key, row.id)).fetchone()
        pieces = ((*self._key, row.id, piece, content) for piece, content in enumerate(pack(row.pieces), number))
        self._db.executemany(_ADD_PIECE, pieces)
