"""What a session's writer may do, once for all stores: rows, the order of sequences, the fence. No IO, no clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from streamagent.errors import ConflictError, LeaseLost, MessageError
from streamagent.message import ROLES, Message, Role, clean_text

from ._codec import PIECE, as_utc, check_name, decode_query, encode_query, merge_queries, utf8_size
from ._pairs import PAIRED, answered_by, bind, substance, waits

if TYPE_CHECKING:
    from ._forks import ForkPoint

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
    flaw: str | None = None

    @classmethod
    def of(cls, fragment: Message) -> Row:
        """Clean and check a fragment, before anything of it is taken.

        Raises:
            MessageError: It holds what cannot be stored; the text names it.
        """
        for name in ("id", "prev", "type"):
            check_name(f"message {name}", getattr(fragment, name))
        if fragment.role not in ROLES:
            raise MessageError(f"message {fragment.id}: its role {fragment.role!r:.80} is none of {sorted(ROLES)}")
        if not -_INT64 <= fragment.attempt < _INT64:
            raise MessageError(f"message {fragment.id}: its attempt does not fit into 64 bits")
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

    def absorb(self, later: Row) -> None:
        """Append what follows of the same message."""
        self.pieces += later.pieces
        self.size += later.size
        self.query = merge_queries(self.query, later.query)
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
    row.absorb(Row.of(fragment)) if fragment.query is not None else row.extend(fragment.content, more=fragment.more)
    return row.size - before


class Ledger(ABC):
    """The rules of writing one session. Each method checks first and changes after: a raise changes nothing.

    Rows that are handed over may be kept; handing the same ones over again after a rollback gives the same result.

    Args:
        session: The session.
        head: The last sequence given.
        fence: The current writer's.
        base: The last sequence that is in the keeping of the session it was forked from.
        prev: What the next row continues, when that is in another session.
    """

    def __init__(self, session: str, *, head: int = 0, fence: int = 0, base: int = 0, prev: str | None = None) -> None:
        self.session = session
        self.head = head
        self.fence = fence
        self.base = base
        self.prev = prev

    @abstractmethod
    def find(self, message_id: str) -> Row | None:
        """Return the row of a message."""

    @abstractmethod
    def find_key(self, client_key: str) -> Row | None:
        """Return the row that was sent under a client key, with all its content."""

    @abstractmethod
    def waiting(self, limit: int) -> Sequence[Row]:
        """Return the oldest rows of the inbox, with all their content."""

    @abstractmethod
    def put(self, row: Row) -> None:
        """Keep a row that is new or was changed."""

    @abstractmethod
    def clear(self) -> bool:
        """Remove all rows; return whether there were some."""

    @property
    @abstractmethod
    def taken(self) -> bool:
        """The session has messages, or is a fork."""

    @abstractmethod
    def shares(self, message_id: str) -> bool:
        """Tell whether a message is in the part of the history that another session keeps."""

    @abstractmethod
    def forks(self) -> Sequence[str]:
        """Return sessions that share rows of this one, three at most."""

    @abstractmethod
    def sibling(self, session: str) -> Ledger:
        """Return another session's ledger."""

    @abstractmethod
    def point(self, sequence: int) -> ForkPoint:
        """Look up where a fork at a row would begin."""

    @abstractmethod
    def begin(self, point: ForkPoint) -> None:
        """Make this empty session a fork, at once; a writer that it had loses its lease."""

    def acquire(self) -> int:
        """Give the session to a new writer; return its fence."""
        self.fence += 1
        return self.fence

    def write(self, parts: Collection[Row], *, fence: int) -> dict[str, int]:
        """Open and continue messages, each in one part; return their sequences by id."""
        self._check(fence)
        pairs = [(part, self.find(part.id)) for part in parts]
        for part, row in pairs:
            if self.shares(part.id) if row is None else row.state != "open":
                raise closed_error(part.id)
        return {part.id: self._take(part, row) for part, row in pairs}

    def enqueue(self, row: Row, *, client_key: str | None) -> Row:
        """Put a whole message into the inbox, or return the equal one that was sent under this key before."""
        if row.more:
            raise MessageError(f"message {row.id} is a fragment; the inbox takes whole messages")
        earlier = None if client_key is None else self.find_key(client_key)
        if earlier is not None:
            if substance(earlier) != substance(row):
                raise ConflictError(f"client key {client_key!r} was used before with another message; use a new key")
            return earlier
        if self.find(row.id) is not None or self.shares(row.id):
            raise MessageError(f"message {row.id} is in session {self.session!r} already; send a message with a new id")
        row.state, row.client_key = "inbox", client_key
        if row.type == "approval":
            self._decide(row)
        self.put(row)
        return row

    def _decide(self, row: Row) -> None:
        """Check a decision on an approval; one that ends a grant does so at once."""
        query = row.facts or {}
        request = self.find(str(query.get("approval")))
        bind(row, request)
        if request is not None and query.get("decision") == "revoke":
            request.state = "closed"
            self.put(request)

    def admit(self, *, fence: int, limit: int, ids: Collection[str] | None = None) -> list[Row]:
        """Give the oldest rows of the inbox, or those of these ids, their sequence."""
        self._check(fence)
        limit = max(0, min(limit, _INT64 - 1))
        if ids is None:
            rows = list(self.waiting(limit))
        else:
            rows = [row for row in self.waiting(_INT64 - 1) if row.id in ids][:limit]
        for row in rows:
            self._open(row)
            self._settle(row)
        return rows

    def delete(self) -> bool:
        """Remove the session; what stays is a higher fence, so that a late writer loses its lease."""
        if forks := self.forks():
            names = ", ".join(map(repr, forks))
            raise ConflictError(f"session {self.session!r} shares its rows with its forks ({names}); delete them first")
        found = self.clear() or self.base > 0
        self.head, self.base, self.prev = 0, 0, None
        if self.fence or found:
            self.fence += 1
        return found

    def _check(self, fence: int) -> None:
        if fence != self.fence or not fence:  # 0: nobody has it yet
            raise LeaseLost(
                f"session {self.session!r} has another writer: fence {fence} is not its current one; stop this run"
            )

    def _take(self, part: Row, row: Row | None) -> int:
        if row is None:
            row = part
            self._open(row)
        else:
            row.absorb(part)
        self._settle(row)
        return row.sequence or 0

    def _open(self, row: Row) -> None:
        self.head += 1
        row.sequence = self.head
        row.prev, self.prev = row.prev or self.prev, None

    def _settle(self, row: Row) -> None:
        row.state = "open" if row.more else "closed"
        query = decode_query(row.query) or {} if row.type in PAIRED else {}
        if not row.more and waits(row.type, query):
            row.state = "unanswered"
        self.put(row)
        answered = answered_by(row.type, query)
        waiting = self.find(answered) if answered is not None else None
        if waiting is not None and waiting.state in ("unanswered", "closed") and waiting.answered is None:
            waiting.state = "closed"
            if row.type == "tool_result":
                waiting.answered = row.sequence
            self.put(waiting)
