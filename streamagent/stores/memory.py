"""`MemoryStore`: sessions that live as long as the process."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Self

from streamagent._core.usage import COUNTED, usage_of
from streamagent.message import Message
from streamagent.protocols import Changes, Excerpt, Store, Stream
from streamagent.records import CallRecord, Mark, Owner, Restored, SessionInfo, Unfinished, Usage

from ._codec import PIECE, as_utc, check_name, decode_query, drop_bytes, pack, utf8_size
from ._effects import records
from ._excerpt import Found, make_excerpt
from ._forks import fork
from ._memory_ledger import MemoryLedger, Sessions
from ._restore import restore
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
        self._ledgers = Sessions()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def acquire(self, session: str, *, owner: Owner | None = None) -> int:
        """Become the session's only writer; see `Store`."""
        return self._ledger(session).acquire(owner)

    async def release(self, session: str, *, fence: int, unfinished: bool = False) -> None:
        """Hold the session no more; see `Store`."""
        self._peek(session).release(fence=fence, unfinished=unfinished)

    async def heartbeat(self, owner: Owner) -> None:
        """Say that an owner is alive; see `Store`."""
        self._peek("").hear(owner)

    async def retire(self, owner: str) -> None:
        """Say that an owner is gone; see `Store`."""
        self._peek("").retire(owner)

    async def unattended(self, *, limit: int = 100) -> list[str]:
        """Find sessions with something to do that no living owner holds; see `Store`."""
        found = [ledger for ledger in self._ledgers.values() if ledger.taken and ledger.unattended]
        return [ledger.session for ledger in sorted(found, key=lambda ledger: ledger.modified_at)[:limit]]

    async def start_call(self, session: str, call: str, *, fence: int) -> int:
        """Note that a call's tool is about to run; see `Store`."""
        return self._peek(session).start_call(call, fence=fence)

    async def finish_call(self, session: str, call: str, outcome: Message, *, fence: int) -> None:
        """Note what came of a call; see `Store`."""
        self._peek(session).finish_call(call, Row.of(outcome), fence=fence)

    async def calls(self, session: str) -> list[CallRecord]:
        """Return what is known of the calls that were started; see `Store`."""
        return records(self._peek(session).effects.values())

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
        return self._peek(session).left()

    async def read(self, session: str, *, after: int = 0, until: int | None = None) -> Stream:
        """Read messages by sequence; see `Store`."""
        for owner, last in reversed([*self._peek(session).parts(sys.maxsize if until is None else until)]):
            index = max(after - owner.base, 0)
            while index < min(len(owner.order), last - owner.base):
                for fragment in _fragments(owner.order[index], session):
                    yield fragment
                index += 1

    async def look(self, session: str, *, after: int, offset: int = 0, hint: object = None) -> Excerpt:
        """Read what is stored behind a place; see `Store`."""
        ledger = self._peek(session)
        known = ledger.parts(after) if after <= ledger.head else ()
        before = next((owner.order[after - owner.base - 1].id for owner, _ in known), None)
        return make_excerpt(head=ledger.head, before=before, rows=_behind(ledger, after), offset=offset, hint=hint)

    def changes(self, session: str) -> Changes:
        """Ask for hints that a session has changed; see `Store`."""
        return self._ledgers.wakeups.subscribe(session)

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

    async def info(self, session: str) -> SessionInfo | None:
        """Tell of one session; see `Store`."""
        ledger = self._peek(session)
        size = sum(row.size for row in ledger.rows.values() if row.source is None)
        return replace(ledger.info(), size=size) if ledger.taken else None

    async def marks(self, session: str) -> AsyncGenerator[Mark, None]:
        """Tell which messages wait for another row, and which have a client key; see `Store`."""
        ledger = self._peek(session)
        for row in [*ledger.order, *ledger.inbox.values()]:
            if row.client_key is not None or row.state == "unanswered":
                yield Mark(id=row.id, waits=row.state == "unanswered", client_key=row.client_key)

    async def restore(
        self, session: str, rows: Callable[[], Iterable[Restored]], *, created_at: datetime, modified_at: datetime
    ) -> None:
        """Fill a session with the rows of another one; see `Store`."""
        ledger = self._peek(session)
        restore(ledger, rows(), created_at=created_at, modified_at=modified_at)
        self._ledgers[session] = ledger

    async def delete(self, session: str, *, idle: bool = False) -> bool:
        """Delete a session; see `Store`."""
        return self._peek(session).delete(idle=idle)

    async def shred(self) -> None:
        """Do nothing: there is no file. See `Store`."""

    def _peek(self, session: str) -> MemoryLedger:
        """Return the session's ledger, or an empty one that is not kept: asking leaves no trace."""
        check_name("session", session)
        return self._ledgers.get(session) or MemoryLedger(session, self._ledgers)

    def _ledger(self, session: str) -> MemoryLedger:
        return self._ledgers.setdefault(session, self._peek(session))


def _fragments(row: Row, session: str) -> Iterator[Message]:
    """Give a row as it is now: whole, or in pieces when it is large."""
    if row.size <= PIECE:
        yield row.message(session)
        return
    whole, left = row.message(session, ""), row.size
    for piece in pack(islice(row.pieces, len(row.pieces))):
        left -= utf8_size(piece)
        yield replace(whole, content=piece, more=whole.more or left > 0)


def _behind(ledger: MemoryLedger, after: int) -> Iterator[Found]:
    for owner, last in reversed([*ledger.parts(ledger.head)]):
        for index in range(max(after - owner.base, 0), last - owner.base):
            row = owner.order[index]
            yield Found(row.message(ledger.session, ""), row.size, partial(_read_on, row))


def _read_on(row: Row, offset: int, hint: object) -> tuple[str, object]:
    """Read a row from an offset; a hint says in which piece, and at which character of it, that is."""
    match hint:
        case (*known, int(number), int(start)) if known == [row.id, offset]:
            pass
        case _:
            number, start = _piece_at(row, offset)
    texts: list[str] = []
    size = 0
    while number < len(row.pieces):
        # A character takes 4 bytes at most; asking a piece of 100 MB whether it is ASCII costs nothing.
        piece, left = row.pieces[number], PIECE - size
        text = piece[start : start + (left if piece.isascii() else left // 4)]
        texts.append(text)
        size += utf8_size(text)
        start += len(text)
        if start < len(piece):
            break
        number, start = number + 1, 0
    return "".join(texts), (row.id, offset + size, number, start)


def _piece_at(row: Row, offset: int) -> tuple[int, int]:
    """Find the piece that an offset is in, and the character of it."""
    if not offset:
        return 0, 0
    for number, piece in enumerate(row.pieces):
        size = utf8_size(piece)
        if size > offset:
            return number, len(piece) - len(drop_bytes(piece, offset))
        offset -= size
    return len(row.pieces), 0
