"""The ledger of a session in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import islice

from anyio import current_time

from streamagent.message import utc_now
from streamagent.prompts import ASIDE
from streamagent.records import Owner, SessionInfo, Standing, Unfinished

from ._effects import Effect
from ._forks import ForkPoint, lineage
from ._ledger import Ledger
from ._pairs import left_open
from ._row import Row
from ._wakeups import Wakeups


class Sessions(dict[str, "MemoryLedger"]):
    """The ledgers of all sessions, until when each owner is taken for alive (on anyio's clock), and who follows."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[str, float] = {}
        self.wakeups = Wakeups()


class MemoryLedger(Ledger):
    """The rows of one session, in memory.

    Args:
        session: The session.
        ledgers: Those of all sessions, to find its relatives; it files itself there when it becomes a fork.
    """

    def __init__(self, session: str, ledgers: Sessions) -> None:
        super().__init__(session)
        self.effects: dict[str, Effect] = {}
        self._ledgers = ledgers
        self.parent: str | None = None
        self.calls: list[Row] = []
        self.rows: dict[str, Row] = {}
        self.keys: dict[str, Row] = {}
        self.inbox: dict[str, Row] = {}
        self.unfinished: dict[str, Row] = {}
        self.order: list[Row] = []
        self.created_at = self.modified_at = utc_now()

    def is_alive(self, owner: str) -> bool:
        """Look an owner up."""
        return self._ledgers.alive.get(owner, -math.inf) > current_time()

    def hear(self, owner: Owner) -> None:
        """Note until when an owner is taken for alive."""
        self._ledgers.alive[owner.id] = current_time() + owner.ttl

    def retire(self, owner: str) -> None:
        """Forget an owner."""
        self._ledgers.alive.pop(owner, None)

    @property
    def unattended(self) -> bool:
        """There is something to do, and no living owner."""
        return (not self.is_alive(self.owner)) if self.owner is not None else bool(self.inbox)

    def start(self, call: str) -> int:
        """Count an attempt."""
        effect = self.effects.setdefault(call, Effect(call=call))
        effect.attempts += 1
        return effect.attempts

    def finish(self, call: str, outcome: str) -> None:
        """Keep an outcome."""
        if call in self.effects:
            self.effects[call].outcome = outcome

    def close(self, call: str) -> None:
        """Forget a record."""
        self.effects.pop(call, None)

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
        self._ledgers.wakeups.notify(self.session)
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

    def keep(self) -> None:
        """Do nothing: what was put is kept."""

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Forget all rows; there were none before."""
        try:
            yield
        except BaseException:
            self.clear()
            self.head = 0
            raise

    def date(self, created_at: datetime, modified_at: datetime) -> None:
        """Keep the times."""
        self.created_at, self.modified_at = created_at, modified_at

    def has_waiting(self, count: int) -> bool:
        """Count the inbox."""
        return len(self.inbox) >= count

    def asking(self) -> Sequence[Row]:
        """Look through what waits."""
        return [row for row in self.unfinished.values() if row.type == "approval" and row.state == "unanswered"]

    def left(self) -> Unfinished:
        """Look through what is not closed."""
        left = sorted(self.unfinished.values(), key=lambda row: row.sequence or 0)
        last = next((row for row in self.backwards() if row.role != "user" or row.type not in ASIDE), None)
        found = left_open(
            [row.message(self.session, "") for row in left if row.state == "open"],
            [row.message(self.session) for row in left if row.state == "unanswered"],
            last=None if last is None else last.message(self.session, "" if last.spread else None),
            forked=self.prev is not None,
        )
        return replace(found, crashes=self.crashes)

    def standing(self) -> Standing:
        """Look through what is not closed, and the inbox."""
        return Standing(left=self.left(), inbox=[row.message(self.session) for row in self.inbox.values()])

    def clear(self) -> bool:
        """Forget all rows."""
        self._ledgers.wakeups.notify(self.session)
        found = bool(self.rows)
        for shelf in (self.rows, self.keys, self.inbox, self.unfinished, self.order, self.calls, self.effects):
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
        self._ledgers.wakeups.notify(self.session)

    def _relative(self, session: str) -> MemoryLedger:
        return self._ledgers.get(session, self)  # this one is not filed before it has something

    def _parent_of(self, session: str) -> tuple[str | None, int]:
        relative = self._relative(session)
        return relative.parent, relative.base

    def info(self) -> SessionInfo:
        """Sum the session up."""
        return SessionInfo(
            id=self.session,
            created_at=self.created_at,
            modified_at=self.modified_at,
            messages=self.head,
            parent=self.parent,
            running=self.owner is not None and self.is_alive(self.owner),
        )
