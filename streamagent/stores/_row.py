"""A message as a store keeps it, and fragments on their way to one. No IO, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from streamagent.errors import MessageError
from streamagent.message import ROLES, Message, Role, clean_text

from ._codec import PIECE, as_utc, check_name, decode_query, encode_query, merge_queries, utf8_size

State = Literal["inbox", "open", "unanswered", "closed"]
_INT64 = 1 << 63
UNREADABLE = "unreadable"


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """A message as a store keeps it, or the part of one that is to be written.

    Args:
        pieces: Content, to be joined; in a database the part that is not saved yet.
        size: Bytes of all content, in UTF-8.
        query: JSON text.
        more: Fragments are still to come.
        state: `inbox` (no sequence yet), `open`, `unanswered` (a complete call without a result) or `closed`.
        saved: State in the table; `None` for a row that is not there.
        answered: Sequence of the result, of a call that has one.
        source: Session that it was forked from; in a table, whose row of this id has the content, `size` bytes of it.
        fence: Of the writer that gave it its sequence.
        piece: Number of the next of its pieces in the table, when that is known.
        flaw: Why it cannot be read; its type is then `unreadable`; the table keeps what it holds.
    """

    id: str
    prev: str | None
    role: Role
    type: str
    pieces: list[str]
    size: int
    query: str | None
    more: bool
    attempt: int
    created_at: datetime
    sequence: int | None = None
    client_key: str | None = None
    state: State = "open"
    saved: State | None = None
    answered: int | None = None
    source: str | None = None
    fence: int | None = None
    piece: int | None = None
    flaw: str | None = None

    @classmethod
    def of(cls, fragment: Message) -> Row:
        """Clean and check a fragment, before anything of it is taken.

        Raises:
            MessageError: It holds what cannot be stored; the text names it.
        """
        check_name("message id", fragment.id)
        check_name("message prev", fragment.prev)
        check_name("message type", fragment.type)
        if fragment.role not in ROLES:
            raise MessageError(f"message {fragment.id}: its role {fragment.role!r:.80} is none of {sorted(ROLES)}")
        if not 1 <= fragment.attempt < _INT64:
            raise MessageError(f"message {fragment.id}: its attempt is a number from 1, in 64 bits")
        content = clean_text(fragment.content)
        return cls(
            id=fragment.id,
            prev=fragment.prev,
            role=fragment.role,
            type=fragment.type,
            pieces=[content] if content else [],
            size=utf8_size(content),
            query=encode_query(fragment.query),
            more=fragment.more,
            attempt=fragment.attempt,
            created_at=as_utc(fragment.created_at),
        )

    @property
    def spread(self) -> bool:
        """Its content is in pieces: it is large, or not complete."""
        return self.state == "open" or self.size > PIECE

    @property
    def facts(self) -> dict[str, Any] | None:
        """The query, decoded; of a row that cannot be read: why."""
        return decode_query(self.query) if self.flaw is None else {UNREADABLE: self.flaw}

    def extend(self, content: str, *, more: bool) -> None:
        """Append text."""
        content = clean_text(content)
        self.pieces.append(content)
        self.size += utf8_size(content)
        self.more = more

    def absorb(self, later: Row, query: str | None) -> None:
        """Append what follows of the same message; `query` is what the queries of both make."""
        self.query = query
        self.pieces += later.pieces
        self.size += later.size
        self.more = later.more

    def message(self, session: str, content: str | None = None) -> Message:
        """Give the row as a message, or as the fragment of it that has this content."""
        return Message(
            id=self.id,
            session=session,
            sequence=self.sequence,
            prev=self.prev,
            role=self.role,
            type=self.type,
            content="".join(self.pieces) if content is None else content,
            query=self.facts,
            more=self.state == "open",
            attempt=self.attempt,
            created_at=self.created_at,
        )


def closed_error(message_id: str) -> MessageError:
    """Say that nothing can follow a message's last fragment."""
    return MessageError(f"message {message_id} was closed already; nothing can follow its last fragment")


def add_fragment(rows: dict[str, Row], fragment: Message) -> int:
    """Join a fragment to the rows that wait with it, one a message, in order of opening; return its bytes.

    Raises:
        MessageError: Its message is closed among them, or it cannot be stored; the rows stay as they were.
    """
    row = rows.get(fragment.id)
    if row is None:
        row = rows[fragment.id] = Row.of(fragment)
        return row.size
    if not row.more:
        raise closed_error(row.id)
    before = row.size
    if fragment.query is None:
        row.extend(fragment.content, more=fragment.more)
    else:
        later = Row.of(fragment)
        row.absorb(later, merge_queries(row.query, later.query))
    return row.size - before
