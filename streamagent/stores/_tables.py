"""The ledger of a session in a database's tables; used on the writing connection's own thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from streamagent.errors import ConfigError, LeaseLost, MessageError, SessionError
from streamagent.records import Owner, Standing

from . import _statements as sql
from ._codec import decode_time, encode_time, pack
from ._dialect import Database
from ._forks import ForkPoint
from ._ledger import Ledger
from ._row import Row
from ._select import read_lineage, read_pieces, to_row, with_content
from ._standing import Lease, standing_of

# Of one operation; any other error is the whole transaction's.
REFUSALS = (LeaseLost, MessageError, SessionError, ConfigError)


class TableLedger(Ledger):
    """One session's rows in the tables, for operations inside one write transaction; `save` ends them."""

    def __init__(self, db: Database, tenant: str, session: str, *, now: str) -> None:
        lease = self._look_up(db, tenant, session)
        head, fence, base, prev, owner, crashes, modified_at = lease or (0, 0, 0, None, None, 0, None)
        super().__init__(session, head=head, fence=fence, base=base, prev=prev, owner=owner, crashes=crashes)
        self._modified_at = modified_at
        self._found = self._holder
        self._stood = self.head, self.prev
        self._exists = lease is not None
        self._taken = modified_at is not None
        self._db = db
        self._tenant = tenant
        self._key = (tenant, session)
        self._now = now
        self._touched: dict[str, Row] = {}  # not written yet, and whose they are may hand them over again
        self._written = False
        self._oldest: datetime | None = None
        self._dates: tuple[str, str] | None = None

    def _look_up(self, db: Database, tenant: str, session: str) -> Sequence[Any] | None:
        """Read the lease; from here on nobody else writes the session."""
        found: Sequence[Any] | None = db.execute(sql.LEASE, (tenant, session)).fetchone()
        return found

    @property
    def lease(self) -> Sequence[Any] | None:
        """What `save` has left of it, as it is looked up; `None` when there is none."""
        held = (self.head, self.fence, self.base, self.prev, self.owner, self.crashes, self._modified_at)
        return held if self._exists else None

    @property
    def _holder(self) -> tuple[int, str | None, int]:
        return self.fence, self.owner, self.crashes

    def is_alive(self, owner: str) -> bool:
        """Look an owner up."""
        return self._db.execute(sql.ALIVE, (self._tenant, owner, self._now)).fetchone() is not None

    def hear(self, owner: Owner) -> None:
        """Note until when an owner is taken for alive."""
        expires_at = decode_time(self._now) + timedelta(seconds=owner.ttl)
        self._db.execute(sql.HEAR, (self._tenant, owner.id, encode_time(expires_at)))

    def retire(self, owner: str) -> None:
        """Forget an owner, whose session this need not be."""
        self._db.execute("DELETE FROM owners WHERE tenant = ? AND owner = ?", (self._tenant, owner))

    def start(self, call: str) -> int:
        """Count an attempt."""
        attempts: int
        [attempts] = self._db.execute(sql.START_CALL, (*self._key, call, self.fence, self._now)).fetchone()
        return attempts

    def finish(self, call: str, outcome: str) -> None:
        """Keep an outcome."""
        self._db.execute(sql.FINISH_CALL, (outcome, self._now, self.fence, *self._key, call))

    def close(self, call: str) -> None:
        """Drop an outcome."""
        self._db.execute(sql.CLOSE_CALL, (self._now, *self._key, call))

    def find(self, message_id: str) -> Row | None:
        """Look an id up; content that is saved is not loaded."""
        row = self._touched.get(message_id)
        return self._load(sql.FIND, message_id) if row is None else replace(row, pieces=[*row.pieces])

    def find_key(self, client_key: str) -> Row | None:
        """Look a client key up."""
        self.keep()
        row = self._load(sql.FIND_KEY, client_key)
        return row and with_content(self._db, *self._key, row)

    def waiting(self, limit: int) -> Sequence[Row]:
        """Read the head of the inbox."""
        self.keep()
        found = self._db.execute(sql.WAITING, (*self._key, limit)).fetchall()
        return [with_content(self._db, *self._key, to_row(values)) for values in found]

    def put(self, row: Row) -> None:
        """Take a row for `save`."""
        self._touched[row.id] = row
        self._written = True
        if row.saved is None and (self._oldest is None or row.created_at < self._oldest):
            self._oldest = row.created_at

    def keep(self) -> None:
        """Write the rows; the lease waits for `save`."""
        for statement, values in self.take().items():
            self._db.executemany(statement, values)

    def take(self) -> dict[str, list[tuple[Any, ...]]]:
        """Write the rows but for what one statement may do for many of them; return those, in the order of writing."""
        many: dict[str, list[tuple[Any, ...]]] = {}
        for row in self._touched.values():
            if row.saved is None:
                many.setdefault(sql.INSERT, []).append(self._to_insert(row))
            elif row.saved == "open" and row.spread:
                many.setdefault(sql.GROW, []).append((row.size, row.query, self._now, *self._key, row.id))
                if row.state != "open":
                    self._settle_row(row)
            else:
                self._update(row)
            if row.spread and row.saved in (None, "open"):
                many.setdefault(sql.ADD_PIECE, []).extend(self._pieces(row))
        self._touched.clear()
        return many

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Roll back to where the block began; an error that is no refusal ends the whole transaction anyway."""
        self._db.execute("SAVEPOINT restored")
        try:
            yield
        except REFUSALS:
            self._db.execute("ROLLBACK TO restored")
            raise
        self._db.execute("RELEASE restored")

    def date(self, created_at: datetime, modified_at: datetime) -> None:
        """Keep the times for `save`."""
        self._dates = encode_time(created_at), encode_time(modified_at)

    def has_waiting(self, count: int) -> bool:
        """Look for the last of them."""
        return count < 1 or self._db.execute(sql.HAS_WAITING, (*self._key, count - 1)).fetchone() is not None

    def asking(self) -> Sequence[Row]:
        """Look up what waits."""
        return [to_row(values) for values in self._db.execute(sql.ASKING, self._key)]

    def standing(self) -> Standing:
        """Write the rows, and read those that are not closed."""
        self.keep()
        return standing_of(self._db, *self._key, Lease(self.head, self.base, self.prev is not None, self.crashes))

    def clear(self) -> bool:
        """Delete all rows."""
        self._db.execute("DELETE FROM fragments WHERE tenant = ? AND session = ?", self._key)
        self._db.execute("DELETE FROM calls WHERE tenant = ? AND session = ?", self._key)
        self._db.execute(sql.CLEAR_LEASE, self._key)
        return self._db.execute("DELETE FROM messages WHERE tenant = ? AND session = ?", self._key).rowcount > 0

    @property
    def taken(self) -> bool:
        """The session is listed."""
        return self._taken

    def shares(self, message_id: str) -> bool:
        """Look an id up in the sessions that keep the older rows."""
        kept = dict(self._db.execute(sql.KEEPERS, (self._tenant, message_id))) if self.base else None
        if not kept:
            return False
        parts = read_lineage(self._db, self._tenant, self.session, self.base)
        return any(part.after < kept.get(part.session, 0) <= part.until for part in parts)

    def forks(self) -> Sequence[str]:
        """Look up three of them."""
        return [session for [session] in self._db.execute(sql.FORKS, self._key)]

    def sibling(self, session: str) -> TableLedger:
        """Look at another session in the same transaction."""
        return type(self)(self._db, self._tenant, session, now=self._now)

    def point(self, sequence: int) -> ForkPoint:
        """Look up the row's keeper, and the rows from the first unfinished one."""
        [owner, *_] = (part.session for part in read_lineage(self._db, self._tenant, self.session, sequence))
        [prev] = self._db.execute(sql.AT, (self._tenant, owner, sequence)).fetchone()
        [first] = self._db.execute(sql.FIRST_UNFINISHED, (self._tenant, owner, sequence)).fetchone()
        found = () if first is None else self._db.execute(sql.TAIL, (self._tenant, owner, first, sequence))
        tail = [_without_content(to_row(values)) for values in found]
        return ForkPoint(parent=owner, sequence=sequence, prev=prev, tail=tail)

    def begin(self, point: ForkPoint) -> None:
        """Write the lease and the rows of the tail."""
        fence = self.fence and self.fence + 1
        values = (point.sequence, fence, point.parent, point.base, point.prev, self._now, self._now)
        self._db.execute(sql.BEGIN_FORK, (*self._key, *values))
        for row in point.tail:
            self._db.execute(sql.INSERT, self._to_insert(row))
            if row.spread:
                self._db.executemany(sql.ADD_PIECE, self._pieces(row))

    def save(self) -> None:
        """Write what was changed; the lease first, because that may fail.

        Raises:
            LeaseLost: The session got another fence since it was looked at.
        """
        if (change := self.change()) is not None:
            statement, values = change
            if self._db.execute(statement, values).rowcount != 1:
                raise LeaseLost(f"session {self.session!r} was taken over in the middle of a write; stop this run")
            self.note()
        self.keep()

    def save_with(self, others: Sequence[TableLedger]) -> None:
        """Save this one, and those of other sessions that are written with it."""
        self.save()
        for other in others:
            other.save()

    def _load(self, statement: str, value: str) -> Row | None:
        found = self._db.execute(statement, (*self._key, value)).fetchone()
        return found and to_row(found)

    def change(self) -> tuple[str, tuple[Any, ...]] | None:
        """Return what changes the lease as it has to be, one row of it; `None` when it is as it was."""
        handed = self._holder != self._found
        moved = self._written or self._dates is not None or (self.head, self.prev) != self._stood
        if not (handed or moved):
            return None
        oldest = None if self._oldest is None else encode_time(self._oldest)
        created_at, modified_at = self._dates or (oldest, self._now if self._written else None)
        key, fence = self._key, self._found[0]
        if not self._exists or (handed and moved):
            held = (self.fence, self.prev, self.owner, self.crashes)
            return sql.SAVE_LEASE, (*key, self.head, *held, created_at, modified_at, fence)
        if handed:
            return sql.HAND_LEASE, (*self._holder, *key, fence)
        return sql.MOVE_LEASE, (self.head, self.prev, created_at, modified_at, *key, fence)

    def note(self) -> None:
        """Take note that the lease is changed."""
        self._exists = True
        if self._dates is not None:
            self._modified_at = self._dates[1]
        elif self._written:
            self._modified_at = self._now

    def _to_insert(self, row: Row) -> tuple[Any, ...]:
        content = "" if row.spread else "".join(row.pieces)
        place = (*self._key, self._now, row.id, row.sequence, row.prev)
        kind = (row.role, row.type, row.state, row.attempt, row.client_key, row.size)
        rest = (row.query, content, row.source, row.answered, row.fence)
        return (*place, *kind, encode_time(row.created_at), *rest)

    def _update(self, row: Row) -> None:
        key = (self._now, *self._key, row.id)
        if row.saved == "inbox":
            self._db.execute(sql.ADMIT, (row.sequence, row.prev, row.state, row.answered, row.fence, *key))
        elif row.saved != "open":
            self._settle_row(row)
        else:
            _, before = read_pieces(self._db, (*self._key, row.id))
            content = before + "".join(row.pieces)
            self._db.execute(sql.CLOSE, (row.state, row.answered, row.size, row.query, content, *key))
            self._db.execute(sql.DROP_PIECES, (*self._key, row.id))

    def _settle_row(self, row: Row) -> None:
        self._db.execute(sql.SETTLE, (row.state, row.answered, self._now, *self._key, row.id))

    def _pieces(self, row: Row) -> list[tuple[Any, ...]]:
        """Say what to add; small pieces stay small, because rewriting the last one would cost more than it saves."""
        first = 0 if row.saved is None else row.piece
        if first is None:
            [first] = self._db.execute(sql.NEXT_PIECE, (*self._key, row.id)).fetchone()
        pieces = [(*self._key, row.id, number, content) for number, content in enumerate(pack(row.pieces), first)]
        row.piece = first + len(pieces)
        return pieces


def _without_content(row: Row) -> Row:
    """Leave out what the row of the source has: the content, and the query of a complete message."""
    query = row.query if row.state == "open" or row.source else None
    return replace(row, pieces=[], query=query)
