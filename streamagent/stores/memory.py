"""`MemoryStore`: sessions that live as long as the process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Self

from streamagent._core.usage import COUNTED, usage_of
from streamagent.message import Message, utc_now
from streamagent.protocols import SessionInfo, Store, Stream, Unfinished, Usage

from ._codec import PIECE, as_utc, check_name, decode_query, pack, utf8_size
from ._ledger import Ledger, Row, add_fragment


class MemoryStore(Store):
    """Keep sessions in memory, for tests, examples and throw-away chats; on every backend.

    It is always open: entering it does nothing, and it may be entered many times. Every write is done at once, so
    nothing ever waits for its lag. What it holds is bounded by its sessions alone: `delete` those that are over.

    Args:
        tenant: Whose sessions these are, in the words of the other stores; another store knows none of them.
    """

    def __init__(self, *, tenant: str = "default") -> None:
        check_name("tenant", tenant)
        self.tenant = tenant
        self._ledgers: dict[str, MemoryLedger] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def acquire(self, session: str) -> int:
        """Become the session's only writer; see `Store`."""
        return self._ledger(session).acquire()

    async def write(self, session: str, fragments: Sequence[Message], *, fence: int) -> list[int]:
        """Store fragments; see `Store`."""
        rows: dict[str, Row] = {}
        for fragment in fragments:
            add_fragment(rows, fragment)
        sequences = self._peek(session).write(rows.values(), fence=fence)
        return [sequences[fragment.id] for fragment in fragments]

    def write_soon(self, session: str, fragment: Message, *, fence: int, lag: float) -> int:  # noqa: ARG002 - no lag here
        """Store a fragment; nothing waits. See `Store`."""
        self._peek(session).write([Row.of(fragment)], fence=fence)
        return 0

    async def flush(self, session: str) -> None:
        """Do nothing: everything is stored. See `Store`."""

    async def enqueue(self, session: str, message: Message, *, client_key: str | None = None) -> Message:
        """Put a message into the session's inbox; see `Store`."""
        check_name("client_key", client_key)
        return self._ledger(session).enqueue(Row.of(message), client_key=client_key).message(session)

    async def inbox(self, session: str) -> list[Message]:
        """Return the messages that wait; see `Store`."""
        return [row.message(session) for row in self._peek(session).inbox.values()]

    async def admit(
        self, session: str, *, fence: int, limit: int = 1, ids: Collection[str] | None = None
    ) -> list[Message]:
        """Give the oldest waiting messages their sequence; see `Store`."""
        return [row.message(session) for row in self._peek(session).admit(fence=fence, limit=limit, ids=ids)]

    async def unfinished(self, session: str) -> Unfinished:
        """Return what a run that ended badly left open; see `Store`."""
        ledger = self._peek(session)
        left = sorted(ledger.unfinished.values(), key=lambda row: row.sequence or 0)
        last = ledger.order[-1] if ledger.order else None
        return Unfinished(
            open=[row.message(session, "") for row in left if row.state == "open"],
            calls=[row.message(session) for row in left if row.state == "unanswered"],
            last=None if last is None else last.message(session, "" if last.spread else None),
        )

    async def read(self, session: str, *, after: int = 0, until: int | None = None) -> Stream:
        """Read messages by sequence; see `Store`."""
        order = self._peek(session).order
        index = max(after, 0)
        while index < len(order) and (until is None or index < until):
            for fragment in _fragments(order[index], session):
                yield fragment
            index += 1

    async def tally(self, session: str) -> dict[tuple[str, str], int]:
        """Count the session's messages by (role, type); see `Store`."""
        counts: dict[tuple[str, str], int] = {}
        for row in self._peek(session).order:
            counts[row.role, row.type] = counts.get((row.role, row.type), 0) + 1
        return counts

    async def usage(self, session: str | None, *, since: datetime | None = None) -> Usage:
        """Sum up what the stored turns took; see `Store`."""
        ledgers = self._ledgers.values() if session is None else [self._peek(session)]
        spent = Usage()
        for row in (row for ledger in ledgers for row in ledger.order if row.type in COUNTED):
            if row.role == "assistant" and (since is None or row.created_at >= as_utc(since)):
                spent += usage_of(row.type, decode_query(row.query))
        return spent

    async def sessions(self) -> AsyncGenerator[SessionInfo, None]:
        """List the sessions, the latest modified first."""
        infos = [ledger.info() for ledger in self._ledgers.values() if ledger.rows]
        for info in sorted(infos, key=lambda info: (info.modified_at, info.id), reverse=True):
            yield info

    async def delete(self, session: str) -> bool:
        """Delete a session; see `Store`."""
        return self._peek(session).delete()

    def _peek(self, session: str) -> MemoryLedger:
        """Return the session's ledger, or an empty one that is not kept: asking leaves no trace."""
        check_name("session", session)
        return self._ledgers.get(session) or MemoryLedger(session)

    def _ledger(self, session: str) -> MemoryLedger:
        return self._ledgers.setdefault(session, self._peek(session))


class MemoryLedger(Ledger):
    """The rows of one session, in memory."""

    def __init__(self, session: str) -> None:
        super().__init__(session)
        self.rows: dict[str, Row] = {}
        self.keys: dict[str, Row] = {}
        self.inbox: dict[str, Row] = {}
        self.unfinished: dict[str, Row] = {}
        self.order: list[Row] = []
        self.created_at = self.modified_at = utc_now()

    def find(self, message_id: str) -> Row | None:
        """Look an id up."""
        return self.rows.get(message_id)

    def find_key(self, client_key: str) -> Row | None:
        """Look a client key up."""
        return self.keys.get(client_key)

    def waiting(self, limit: int) -> Sequence[Row]:
        """Return the head of the inbox."""
        return list(islice(self.inbox.values(), limit))

    def put(self, row: Row) -> None:
        """File the row under its id, its key and its state."""
        self.modified_at = utc_now()
        self.created_at = min(self.created_at, row.created_at) if self.rows else row.created_at
        if row.sequence is not None and row.sequence > len(self.order):
            self.order.append(row)
        if row.client_key is not None:
            self.keys[row.client_key] = row
        self.rows[row.id] = row
        for state, shelf in (("inbox", self.inbox), ("open unanswered", self.unfinished)):
            if row.state in state:
                shelf[row.id] = row
            else:
                shelf.pop(row.id, None)

    def clear(self) -> bool:
        """Forget all rows."""
        found = bool(self.rows)
        for shelf in (self.rows, self.keys, self.inbox, self.unfinished, self.order):
            shelf.clear()
        return found

    def info(self) -> SessionInfo:
        """Sum the session up."""
        return SessionInfo(
            id=self.session, created_at=self.created_at, modified_at=self.modified_at, messages=len(self.order)
        )


def _fragments(row: Row, session: str) -> Iterator[Message]:
    """Give a row as it is now: whole, or in pieces when it is large."""
    if row.size <= PIECE:
        yield row.message(session)
        return
    whole, left = row.message(session, ""), row.size
    for piece in pack(islice(row.pieces, len(row.pieces))):
        left -= utf8_size(piece)
        yield replace(whole, content=piece, more=whole.more or left > 0)
