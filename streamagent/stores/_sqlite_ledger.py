"""The ledger of a session in a file, and what the file's writer remembers so that it need not look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from streamagent.errors import LeaseLost

from ._dialect import Database
from ._forks import ForkPoint
from ._row import Row
from ._tables import TableLedger

_LIMIT = 4_000  # sessions, and open messages: above what one process works at, and 3 MB; then it begins anew
_SHORT = 256  # characters of a query that is remembered


class Memory:
    """What a file's writer remembers of it.

    A lease, and the row of an open message, is what its last transaction left of it, unless somebody else has written
    to the file since. Which messages are open is a guess: the table refuses to have one twice, and whoever guessed
    wrong looks.
    """

    def __init__(self) -> None:
        self._version: int | None = None
        self.leases: dict[str, Sequence[Any]] = {}
        self.opened: set[tuple[str, str]] = set()
        self.rows: dict[tuple[str, str], Row] = {}  # of those, without their content

    def refresh(self, db: Database) -> None:
        """Forget what may have changed since; called inside a transaction."""
        [version] = db.execute("PRAGMA data_version").fetchone()  # of other connections' commits alone
        if version != self._version or len(self.leases) > _LIMIT:
            self.forget()
        self._version = version
        if len(self.opened) > _LIMIT:
            self.opened.clear()
            self.rows.clear()

    def forget(self) -> None:
        """Look all leases and rows up again."""
        self.leases.clear()
        self.rows.clear()


class SqliteLedger(TableLedger):
    """One session's rows in a file.

    Args:
        db: The connection.
        tenant: Whose session it is.
        session: The session.
        now: The transaction's time.
        memory: What the writer remembers.
        guess: Take an id for new that is not known to be open, and leave it to the table to refuse it.
    """

    def __init__(  # noqa: PLR0913 - as its base, and two by keyword
        self, db: Database, tenant: str, session: str, *, now: str, memory: Memory, guess: bool
    ) -> None:
        self._memory = memory
        self._guess = guess
        self._lasts = True
        super().__init__(db, tenant, session, now=now)

    def _look_up(self, db: Database, tenant: str, session: str) -> Sequence[Any] | None:
        return self._memory.leases.get(session) or super()._look_up(db, tenant, session)

    def find(self, message_id: str) -> Row | None:
        """Look an id up; what is remembered may not be changed before it is known that nothing is refused."""
        known = None if message_id in self._touched else self._memory.rows.get((self.session, message_id))
        return super().find(message_id) if known is None else replace(known, pieces=[])

    def find_new(self, message_id: str) -> Row | None:
        """Look an id up that is most likely new."""
        if self._guess and message_id not in self._touched and (self.session, message_id) not in self._memory.opened:
            return None
        return self.find(message_id)

    def put(self, row: Row) -> None:
        """Remember whether something follows."""
        super().put(row)
        key = self.session, row.id
        if row.state == "open":
            self._memory.opened.add(key)
        else:
            self._memory.opened.discard(key)
            self._memory.rows.pop(key, None)

    def take(self) -> dict[str, list[tuple[Any, ...]]]:
        """Remember the rows that stay open; those that are new are whoever's who handed them over."""
        still_open = [row for row in self._touched.values() if row.state == "open" and self._lasts]
        many = super().take()
        for row in still_open:
            known = replace(row, saved="open") if row.saved is None else row
            known.pieces = []
            if len(row.query or "") <= _SHORT:
                self._memory.rows[self.session, row.id] = known
            else:
                self._memory.rows.pop((self.session, row.id), None)
        return many

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Remember nothing of what is taken back."""
        try:
            with super().undoing():
                yield
        except BaseException:
            self._forget()
            raise

    def clear(self) -> bool:
        """Remember nothing of it."""
        self._forget()
        return super().clear()

    def sibling(self, session: str) -> SqliteLedger:
        """Look at another session in the same transaction."""
        return type(self)(self._db, self._tenant, session, now=self._now, memory=self._memory, guess=self._guess)

    def begin(self, point: ForkPoint) -> None:
        """Remember nothing of it."""
        self._forget()
        super().begin(point)

    def save_with(self, others: Sequence[TableLedger]) -> None:
        """Save them by one statement for all leases that moved, one for all rows that are new, and so on."""
        ledgers = [self, *others]
        changes: dict[str, list[tuple[TableLedger, tuple[Any, ...]]]] = {}
        for ledger in ledgers:
            if (change := ledger.change()) is not None:
                changes.setdefault(change[0], []).append((ledger, change[1]))
        for statement, changed in changes.items():
            if self._db.executemany(statement, [values for _, values in changed]).rowcount != len(changed):
                names = ", ".join(repr(ledger.session) for ledger, _ in changed)
                raise LeaseLost(f"one of the sessions {names} was taken over in the middle of a write; stop this run")
            for ledger, _ in changed:
                ledger.note()
        many: dict[str, list[tuple[Any, ...]]] = {}
        for ledger in ledgers:
            for statement, values in ledger.take().items():
                many.setdefault(statement, []).extend(values)
        for statement, values in many.items():
            self._db.executemany(statement, values)

    def note(self) -> None:
        """Remember the lease."""
        super().note()
        if self._lasts and (lease := self.lease) is not None:
            self._memory.leases[self.session] = lease

    def _forget(self) -> None:
        self._lasts = False
        self._memory.forget()
