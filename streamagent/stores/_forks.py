"""How a fork shares its parent's rows: which rows are whose, and what is made of those that were not finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamagent.errors import ConfigError, ConflictError

from ._codec import check_name, encode_query, merge_queries
from ._ledger import Ledger
from ._row import Row


@dataclass(slots=True)
class Part:
    """The rows of a session's history, `after` < sequence <= `until`, that are in one session's own keeping."""

    session: str
    after: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """Where a session is forked.

    Args:
        parent: The session that keeps the last shared row.
        sequence: Of that row.
        prev: Its id.
        tail: The last rows, from the first that is not finished there: the fork gets its own, without their content.
    """

    parent: str
    sequence: int
    prev: str
    tail: Sequence[Row]

    @property
    def base(self) -> int:
        """The last sequence that is shared as it is."""
        return self.sequence - len(self.tail)


def lineage(session: str, until: int, parent_of: Callable[[str], tuple[str | None, int]]) -> Iterator[Part]:
    """Say who keeps the rows of a session, from the last one back to the first.

    Args:
        session: The session.
        until: Last sequence that is asked for.
        parent_of: Gives a session's parent, and the last sequence that it shares with it.

    Yields:
        Parts that are not empty; of the session itself, one that may be, because it grows.
    """
    owner: str | None = session
    while owner is not None and until > 0:
        parent, base = parent_of(owner)
        if until > base:
            yield Part(owner, base, until)
        owner, until = parent, min(until, base)


def fork(ledger: Ledger, new: str, at: int | None) -> None:
    """Begin a session with the rows of another one, up to a sequence; see `Store.fork`."""
    check_name("session", new)
    if not ledger.head:
        raise ConfigError(f"session {ledger.session!r} has no messages; fork a session that has some")
    at = ledger.head if at is None else at
    if not 0 < at <= ledger.head:
        raise ConfigError(f"session {ledger.session!r} has messages 1 to {ledger.head}; it cannot be forked at {at}")
    target = ledger.sibling(new)
    if target.taken:
        raise ConflictError(f"session {new!r} exists; give the fork another id")
    point = ledger.point(at)
    target.begin(replace(point, tail=[_in_fork(row, point) for row in point.tail]))


_CUT: dict[str, dict[str, Any]] = {
    "tool_call": {"args": None, "invalid": "truncated"},
    "tool_result": {"is_error": True},
}


def _in_fork(row: Row, point: ForkPoint) -> Row:
    """Close a row as it was at the fork; a call that had no result then waits for one."""
    query = row.query
    if row.state == "open":
        query = merge_queries(query, encode_query({"cut": "forked", **_CUT.get(row.type, {})}))
    answered_later = row.answered is not None and row.answered > point.sequence
    waits = row.type == "tool_call" and (row.state != "closed" or answered_later)
    return replace(
        row,
        pieces=list(row.pieces),
        query=query,
        more=False,
        state="unanswered" if waits else "closed",
        saved=None,
        answered=None if waits else row.answered,
        client_key=None,
        source=row.source or point.parent,
    )
