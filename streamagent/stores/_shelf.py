"""What a session's ledger stands on: where its rows are, whatever keeps them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Self

from streamagent.records import Owner, Standing

from ._row import Row

if TYPE_CHECKING:
    from ._forks import ForkPoint


class Shelf(ABC):
    """The rows and the lease of one session, for whoever writes it.

    Args:
        session: The session.
        head: The last sequence given.
        fence: The current writer's.
        base: The last sequence that is in the keeping of the session it was forked from.
        prev: What the next row continues, when that is in another session.
        owner: Id of who holds it; `NOBODY` of an unfinished run that was left to others.
        crashes: How many owners in a row died while they held it.
    """

    def __init__(  # noqa: PLR0913 - what is stored of a session, all by keyword
        self,
        session: str,
        *,
        head: int = 0,
        fence: int = 0,
        base: int = 0,
        prev: str | None = None,
        owner: str | None = None,
        crashes: int = 0,
    ) -> None:
        self.session = session
        self.head = head
        self.fence = fence
        self.base = base
        self.prev = prev
        self.owner = owner
        self.crashes = crashes

    @abstractmethod
    def is_alive(self, owner: str) -> bool:
        """Tell whether an owner said so lately."""

    @abstractmethod
    def hear(self, owner: Owner) -> None:
        """Take note that an owner is alive."""

    @abstractmethod
    def retire(self, owner: str) -> None:
        """Take note that an owner is gone."""

    @abstractmethod
    def start(self, call: str) -> int:
        """Note that a call is about to run; return how often that was so."""

    @abstractmethod
    def finish(self, call: str, outcome: str) -> None:
        """Note what came of a call that was started, as JSON text."""

    @abstractmethod
    def close(self, call: str) -> None:
        """Note that a call's result is stored now."""

    @abstractmethod
    def find(self, message_id: str) -> Row | None:
        """Return the row of a message."""

    def find_new(self, message_id: str) -> Row | None:
        """Return the row of a message that is most likely not there."""
        return self.find(message_id)

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
    def keep(self) -> None:
        """Write what was put so far, and hold it no longer; it is not handed over again."""

    @abstractmethod
    def undoing(self) -> AbstractContextManager[None]:
        """Take back what was kept in the block, when it raises."""

    @abstractmethod
    def date(self, created_at: datetime, modified_at: datetime) -> None:
        """Say when the session was made and written last."""

    @abstractmethod
    def has_waiting(self, count: int) -> bool:
        """Tell whether so many rows wait in the inbox."""

    @abstractmethod
    def asking(self) -> Sequence[Row]:
        """Return the rows of type `approval` that wait: requests and grants."""

    @abstractmethod
    def standing(self) -> Standing:
        """Look what is left open, and what waits."""

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
    def sibling(self, session: str) -> Self:
        """Return another session's ledger."""

    @abstractmethod
    def point(self, sequence: int) -> ForkPoint:
        """Look up where a fork at a row would begin."""

    @abstractmethod
    def begin(self, point: ForkPoint) -> None:
        """Make this empty session a fork, at once; a writer that it had loses its lease."""
