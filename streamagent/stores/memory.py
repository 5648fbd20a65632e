"""`MemoryStore`: sessions that live as long as the process."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Self

from streamagent._core.usage import COUNTED, usage_of
from streamagent.message import Message, utc_now
from streamagent.protocols import Store, Stream
from streamagent.records import SessionInfo, Unfinished, Usage

from ._codec import PIECE, as_utc, check_name, decode_query, pack, utf8_size
from ._forks import ForkPoint, fork, lineage
from ._ledger import Ledger
from ._pairs import ASIDE, left_open
from ._row import Row, add_fragment


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

    async def enqueue(
        self, session: str, message: Message, *, client_key: str | None = None, rest: Sequence[Message] = ()
    ) -> Message:
        """Put messages into the session's inbox; see `Store`."""
        check_name("client_key", client_key)
        row, rows = Row.of(message), [Row.of(part) for part in rest]
        return self._ledger(session).enqueue(row, client_key=client_key, rest=rows).message(session)

    async def inbox(self, session: str) -> list[Message]:
        """Return the messages that wait; see `Store`."""
        return [row.message(session) for row in self._peek(session).inbox.values()]

    async def admit(
        self, session: str, *, fence: int, limit: int = 1, ids: Collection[str] | None = None
    ) -> list[Message]:
        """Give the oldest waiting messages their sequence; see `Store`."""
        return [row.message(session) for row in self._peek(session).admit(fence=fence, limit=limit, ids=ids)]

    async def waiting(self, sessions: Collection[str], type: str) -> set[str]:  # noqa: A002 - the field's name
        """Tell which of these sessions have such a message in their inbox; see `Store`."""
        inboxes = ((session, self._peek(session).inbox.values()) for session in sessions)
        return {session for session, inbox in inboxes if any(row.type == type for row in inbox)}

    async def unfinished(self, session: str) -> Unfinished:
        """Return what a run that ended badly left open; see `Store`."""
        ledger = self._peek(session)
        left = sorted(ledger.unfinished.values(), key=lambda row: row.sequence or 0)
        last = next((row for row in ledger.backwards() if row.role != "user" or row.type not in ASIDE), None)
        return left_open(
            [row.message(session, "") for row in left if row.state == "open"],
            [row.message(session) for row in left if row.state == "unanswered"],
            last=None if last is None else last.message(session, "" if last.spread else None),
            forked=ledger.prev is not None,
        )

    async def read(self, session: str, *, after: int = 0, until: int | None = None) -> Stream:
        """Read messages by sequence; see `Store`."""
        for owner, last in reversed([*self._peek(session).parts(sys.maxsize if until is None else until)]):
            index = max(after - owner.base, 0)
            while index < min(len(owner.order), last - owner.base):
                for fragment in _fragments(owner.order[index], session):
                    yield fragment
                index += 1

    async def tally(self, session: str) -> dict[tuple[str, str], int]:
        """Count the session's messages by (role, type); see `Store`."""
        counts: Counter[tuple[str, str]] = Counter()
        ledger = self._peek(session)
        for owner, until in ledger.parts(ledger.head):
            counts.update((row.role, row.type) for row in owner.order[: until - owner.base])
        return dict(counts)

    async def usage(self, session: str | None, *, since: datetime | None = None) -> Usage:
        """Sum up what the stored turns took; see `Store`."""
        ledgers = self._ledgers.values() if session is None else [self._peek(session)]
        spent = Usage()
        for row in (row for ledger in ledgers for row in ledger.order if row.type in COUNTED and not row.source):
            if row.role == "assistant" and (since is None or row.created_at >= as_utc(since)):
                spent += usage_of(row.type, decode_query(row.query))
        return spent

    async def sessions(self) -> AsyncGenerator[SessionInfo, None]:
        """List the sessions, the latest modified first."""
        infos = [ledger.info() for ledger in self._ledgers.values() if ledger.taken]
        for info in sorted(infos, key=lambda info: (info.modified_at, info.id), reverse=True):
            yield info

    async def fork(self, session: str, new: str, *, at: int | None = None) -> None:
        """Begin a session with the rows of another one; see `Store`."""
        fork(self._peek(session), new, at)

    async def delete(self, session: str) -> bool:
        """Delete a session; see `Store`."""
        return self._peek(session).delete()

    def _peek(self, session: str) -> MemoryLedger:
        """Return the session's ledger, or an empty one that is not kept: asking leaves no trace."""
        check_name("session", session)
        return self._ledgers.get(session) or MemoryLedger(session, self._ledgers)

    def _ledger(self, session: str) -> MemoryLedger:
        return self._ledgers.setdefault(session, self._peek(session))


class MemoryLedger(Ledger):
    """The rows of one session, in memory.

    Args:
        session: The session.
        ledgers: Those of all sessions, to find its relatives; it files itself there when it becomes a fork.
    """

    def __init__(self, session: str, ledgers: dict[str, MemoryLedger]) -> None:
        super().__init__(session)
        self._ledgers = ledgers
        self.parent: str | None = None
        self.calls: list[Row] = []
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
        self.created_at = min(self.created_at, row.created_at) if self.taken else row.created_at
        if row.sequence is not None and row.sequence > self.base + len(self.order):
            self.order.append(row)
            if row.type == "tool_call":
                self.calls.append(row)
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
        for shelf in (self.rows, self.keys, self.inbox, self.unfinished, self.order, self.calls):
            shelf.clear()
        self.parent = None
        return found

    @property
    def taken(self) -> bool:
        """It has rows, or shares some."""
        return bool(self.rows) or self.base > 0

    def parts(self, until: int) -> Iterator[tuple[MemoryLedger, int]]:
        """Give the ledgers that keep its rows, each with the last sequence, from the last back to the first."""
        for part in lineage(self.session, until, self._parent_of):
            yield self._relative(part.session), part.until

    def backwards(self) -> Iterator[Row]:
        """Give its rows, from the last back to the first."""
        for owner, until in self.parts(self.head):
            yield from (owner.order[number] for number in reversed(range(until - owner.base)))

    def shares(self, message_id: str) -> bool:
        """Look an id up in the ledgers that keep the older rows."""
        found = ((owner.rows.get(message_id), until) for owner, until in self.parts(self.base))
        return any(row is not None and 0 < (row.sequence or 0) <= until for row, until in found)

    def forks(self) -> Sequence[str]:
        """Look through all sessions."""
        return [session for session, ledger in self._ledgers.items() if ledger.parent == self.session][:3]

    def sibling(self, session: str) -> MemoryLedger:
        """Return another session's ledger, or an empty one that is not kept."""
        return self._ledgers.get(session) or MemoryLedger(session, self._ledgers)

    def point(self, sequence: int) -> ForkPoint:
        """Look up the row's keeper, and the rows from the first unfinished one."""
        owner, _ = next(self.parts(sequence))
        unfinished = [row.sequence or 0 for row in owner.unfinished.values() if row.type != "approval"]
        unfinished += [row.sequence or 0 for row in owner.calls if (row.answered or 0) > sequence]
        first = min((number for number in unfinished if number <= sequence), default=sequence + 1)
        last = sequence - owner.base
        tail = owner.order[first - owner.base - 1 : last]
        return ForkPoint(parent=owner.session, sequence=sequence, prev=owner.order[last - 1].id, tail=tail)

    def begin(self, point: ForkPoint) -> None:
        """File the rows of the tail, and this ledger."""
        self.head, self.base, self.prev, self.parent = point.sequence, point.base, point.prev, point.parent
        self.fence += 1 if self.fence else 0
        for row in point.tail:
            self.put(row)
        self.created_at = self.modified_at = utc_now()
        self._ledgers[self.session] = self

    def _relative(self, session: str) -> MemoryLedger:
        return self._ledgers.get(session, self)  # this one is not filed before it has something

    def _parent_of(self, session: str) -> tuple[str | None, int]:
        relative = self._relative(session)
        return relative.parent, relative.base

    def info(self) -> SessionInfo:
        """Sum the session up."""
        return SessionInfo(
            id=self.session, created_at=self.created_at, modified_at=self.modified_at, messages=self.head
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
