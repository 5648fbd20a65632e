"""How a session stands: what was left open in it, and what waits. Each function is called on a connection's thread."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from streamagent.message import Message
from streamagent.prompts import ASIDE
from streamagent.records import NOTHING, Standing, Unfinished

from ._dialect import Database
from ._pairs import left_open
from ._queries import END, snapshot
from ._row import Row
from ._select import read_lineage, select_messages, to_row, with_content
from ._talks import to_message

# `state <> 'closed'` says to SQLite that the partial index holds all these rows.
INBOX = select_messages("state = 'inbox' AND state <> 'closed' ORDER BY rowid")
LEFT = select_messages("state IN ('open', 'unanswered') AND state <> 'closed' ORDER BY sequence")
BOTH = select_messages("state IN ('inbox', 'open', 'unanswered') AND state <> 'closed' ORDER BY sequence, rowid")
_LAST = select_messages(f"sequence <= ? AND NOT (role = 'user' AND type IN {ASIDE}) ORDER BY sequence DESC LIMIT 1")
_LEASE = "SELECT head, base, prev IS NOT NULL, crashes FROM leases WHERE tenant = ? AND session = ?"


class Lease(NamedTuple):
    """What is asked of a session's lease.

    Args:
        head: The last sequence given.
        base: The last one that is in another session's keeping.
        forked: Nothing was written to it since it was forked.
        crashes: How many owners in a row died while they held it.
    """

    head: int = 0
    base: int = 0
    forked: bool = False
    crashes: int = 0


def read_inbox(db: Database, tenant: str, session: str) -> list[Message]:
    """Read the messages that wait."""
    with snapshot(db):
        return _whole(db, tenant, session, _rows(db, INBOX, tenant, session))


def read_unfinished(db: Database, tenant: str, session: str) -> Unfinished:
    """Read what was left open; content of the calls only, and of a last message that is small."""
    with snapshot(db):
        return _unfinished(db, tenant, session, LEFT, _lease(db, tenant, session))[0]


def read_standing(db: Database, tenant: str, session: str) -> Standing:
    """Read what was left open, and the messages that wait."""
    with snapshot(db):
        return standing_of(db, tenant, session, _lease(db, tenant, session))


def standing_of(db: Database, tenant: str, session: str, lease: Lease) -> Standing:
    """Read what was left open, and the messages that wait, inside a transaction."""
    left, waiting = _unfinished(db, tenant, session, BOTH, lease)
    return Standing(left=left, inbox=_whole(db, tenant, session, waiting))


def _lease(db: Database, tenant: str, session: str) -> Lease:
    found = db.execute(_LEASE, (tenant, session)).fetchone()
    return Lease() if found is None else Lease(*found)


def _unfinished(db: Database, tenant: str, session: str, statement: str, lease: Lease) -> tuple[Unfinished, list[Row]]:
    """Return it, and the rows of the inbox that were found with it."""
    rows = _rows(db, statement, tenant, session)
    waiting = [row for row in rows if row.state == "inbox"]
    if not lease.head:
        return replace(NOTHING, crashes=lease.crashes), waiting
    left = left_open(
        [row.message(session, "") for row in rows if row.state == "open"],
        _whole(db, tenant, session, [row for row in rows if row.state == "unanswered"]),
        last=_last(db, tenant, session, lease.base),
        forked=bool(lease.forked),
    )
    return replace(left, crashes=lease.crashes), waiting


def _last(db: Database, tenant: str, session: str, base: int) -> Message | None:
    found = db.execute(_LAST, (tenant, session, END)).fetchone()
    for part in read_lineage(db, tenant, session, base) if found is None else ():
        found = found or db.execute(_LAST, (tenant, part.session, part.until)).fetchone()
    return found and to_message(session, found)


def _rows(db: Database, statement: str, tenant: str, session: str) -> list[Row]:
    return [to_row(values) for values in db.execute(statement, (tenant, session))]


def _whole(db: Database, tenant: str, session: str, rows: list[Row]) -> list[Message]:
    return [with_content(db, tenant, session, row).message(session) for row in rows]
