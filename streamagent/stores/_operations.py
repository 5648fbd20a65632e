"""What is handed over to be written, and how several operations share a transaction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamagent.latch import Latch

from ._cursors import let_go
from ._ledger import Ledger
from ._row import Row
from ._tables import REFUSALS, TableLedger


@dataclass(slots=True, eq=False)
class Operation:
    """Something to do with a session's ledger, and what came of it.

    Args:
        session: The session.
        run: What to do; called again when the transaction is tried again. `None` to wait for what came before.
        lives: It may be lost when the machine stops: nobody wants it then, or whoever comes next does it again.
        alone: It looks at other sessions too, or begins one anew.
        mark: Names the transaction that it was part of, while it is not known what became of that.
    """

    session: str
    run: Callable[[Ledger], Any] | None
    done: Latch = field(default_factory=Latch)
    result: Any = None
    error: Exception | None = None
    mark: Any = None
    lives: bool = False
    alone: bool = False

    def then(self, run: Callable[[Ledger, Any], Any]) -> Callable[[Ledger], Any]:
        """Make what is to be done behind it with its result, unless it was refused."""

        def follow(ledger: Ledger) -> Any:
            return None if self.error is not None else run(ledger, self.result)

        return follow


class Ledgers:
    """Those of the sessions that one transaction writes; each looks its lease up, and saves it, once.

    Args:
        look_up: Makes a session's.
    """

    def __init__(self, look_up: Callable[[str], TableLedger]) -> None:
        self._look_up = look_up
        self._known: dict[str, TableLedger] = {}

    def attempt(self, operation: Operation) -> Exception | None:
        """Do it, inside a write transaction; return what it was refused with."""
        if operation.run is None:
            return None
        if operation.alone:
            self.save()
        session = operation.session
        ledger = self._known.get(session) or self._look_up(session)
        try:
            operation.result = operation.run(ledger)
            if operation.alone:
                ledger.save()
            else:
                self._known[session] = ledger
        except REFUSALS as error:  # nothing was changed
            let_go(error)
            return error
        return None

    def save(self) -> None:
        """Write what was changed."""
        ledgers = [*self._known.values()]
        self._known.clear()
        if ledgers:
            ledgers[0].save_with(ledgers[1:])


class Lagged(Operation):
    """Fragments of one session that may wait until `due`, on anyio's clock; joined, one row a message."""

    __slots__ = ("due", "fence", "lag", "rows", "size")

    def __init__(self, session: str, fence: int) -> None:
        rows: dict[str, Row] = {}

        def write(ledger: Ledger) -> None:  # a method would refer to what refers to it: both wait for the collector
            ledger.write(rows.values(), fence=fence)

        super().__init__(session, write)
        self.fence = fence
        self.lag = self.due = math.inf
        self.rows = rows
        self.size = 0
