"""What readers ask a database. Each function is called on a connection's own thread and leaves no cursor open."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from streamagent._core.usage import usage_of
from streamagent.records import CallRecord, Mark, SessionInfo, Usage

from ._codec import as_utc, decode_any_time, decode_query, encode_time
from ._dialect import NOW, SNAPSHOT, Database
from ._effects import Effect, records
from ._select import read_lineage

PAGE_ROWS = 256
END = (1 << 63) - 1  # the largest integer of a column

# Session by session, by the partial index: what waits in sessions that nobody asks for costs nothing.
_WAITING = """
    SELECT DISTINCT messages.session FROM json_each(?) AS asked CROSS JOIN messages ON messages.session = asked.value
    WHERE tenant = ? AND state = 'inbox' AND state <> 'closed' AND messages.type = ?
"""
# Earlier versions left records of calls that have their result.
_CALLS = """
    SELECT call, attempts, outcome FROM calls
    WHERE tenant = ? AND session = ? AND state <> 'closed' AND EXISTS (
        SELECT 1 FROM messages
        WHERE messages.tenant = calls.tenant AND messages.session = calls.session AND id = call
            AND messages.state = 'unanswered'
    )
"""
# By two small indexes, whatever else there is: what somebody holds, and in whose inbox something waits. `>= ''` names
# the one of owners to both planners; with `IS NOT NULL` SQLite walks all sessions.
_UNATTENDED = f"""
    SELECT session FROM (
        SELECT session, coalesce(modified_at, '') AS at FROM leases
        WHERE tenant = ?1 AND owner >= '' AND NOT EXISTS (
            SELECT 1 FROM owners
            WHERE owners.tenant = leases.tenant AND owners.owner = leases.owner AND expires_at > {NOW}
        )
        UNION ALL
        SELECT waits.session, coalesce(modified_at, '') FROM (
            SELECT DISTINCT session FROM messages WHERE tenant = ?1 AND state = 'inbox'
        ) AS waits CROSS JOIN leases ON leases.tenant = ?1 AND leases.session = waits.session
        WHERE owner IS NULL
    ) AS found
    WHERE at <> '' ORDER BY at, session LIMIT ?2
"""  # noqa: S608 - constants only
_TALLY = """
    SELECT role, type, count(*) FROM messages
    WHERE tenant = ? AND session = ? AND sequence <= ? GROUP BY role, type
"""
_SPENT = (
    "sequence IS NOT NULL AND source IS NULL AND role = 'assistant' AND type IN ('tool_call', 'stop')"
    " AND messages.created_at >= ?"
)
_USAGE = f"SELECT type, query FROM messages WHERE tenant = ? AND session = ? AND {_SPENT}"  # noqa: S608 - constants only
# Session by session, by the index of their sequences: one that was not modified since then has nothing to count.
_USAGE_OF_ALL = f"""
    SELECT type, query FROM leases CROSS JOIN messages USING (tenant, session)
    WHERE tenant = ? AND leases.modified_at >= ? AND {_SPENT}
"""  # noqa: S608 - constants only
_INFO = f"""
    SELECT session, created_at, modified_at, head, parent, EXISTS (
        SELECT 1 FROM owners
        WHERE owners.tenant = leases.tenant AND owners.owner = leases.owner AND owners.expires_at > {NOW}
    )
    FROM leases WHERE modified_at IS NOT NULL AND tenant = ? AND
"""  # noqa: S608 - constants only
_SESSIONS = f"{_INFO} (modified_at, session) < (?, ?) ORDER BY modified_at DESC, session DESC LIMIT ?"
_SESSION = f"{_INFO} session = ?"
# Each half by an index of its own: one condition for both would have the rows of all sessions read.
_SIZE = """
    SELECT coalesce(sum(size), 0) FROM (
        SELECT size, source FROM messages WHERE tenant = ?1 AND session = ?2 AND sequence > 0
        UNION ALL
        SELECT size, source FROM messages
        WHERE tenant = ?1 AND session = ?2 AND sequence IS NULL AND state = 'inbox' AND state <> 'closed'
    ) AS kept WHERE source IS NULL
"""
_MARKS = """
    SELECT sequence, id, state = 'unanswered', client_key FROM messages
    WHERE tenant = ? AND session = ? AND sequence > ? AND (client_key IS NOT NULL OR state = 'unanswered')
    ORDER BY sequence LIMIT ?
"""
_INBOX_KEYS = """
    SELECT id, client_key FROM messages
    WHERE tenant = ? AND session = ? AND state = 'inbox' AND state <> 'closed' AND client_key IS NOT NULL ORDER BY rowid
"""


def read_waiting(db: Database, tenant: str, sessions: Collection[str], type_: str) -> set[str]:
    """Find the sessions in whose inbox a message of a type waits."""
    return {session for [session] in db.execute(_WAITING, (json.dumps([*sessions]), tenant, type_))}


def read_calls(db: Database, tenant: str, session: str) -> list[CallRecord]:
    """Read what is known of calls that were started and have no stored result."""
    found = db.execute(_CALLS, (tenant, session))
    return records(Effect(call=call, attempts=attempts, outcome=outcome) for call, attempts, outcome in found)


def read_unattended(db: Database, tenant: str, limit: int) -> list[str]:
    """Find sessions with something to do that no living owner holds."""
    return [session for [session] in db.execute(_UNATTENDED, (tenant, limit))]


def read_tally(db: Database, tenant: str, session: str) -> dict[tuple[str, str], int]:
    """Count messages by role and type."""
    counts: Counter[tuple[str, str]] = Counter()
    with snapshot(db):
        for part in read_lineage(db, tenant, session, END):
            for role, type_, number in db.execute(_TALLY, (tenant, part.session, part.until)):
                counts[role, type_] += number
    return dict(counts)


def read_usage(db: Database, tenant: str, session: str | None, since: datetime | None) -> Usage:
    """Sum up stops and calls that were made at a time or later; of one session, or of all when it is `None`."""
    start = "" if since is None else encode_time(as_utc(since))
    spent = Usage()
    for type_, query in db.execute(
        _USAGE_OF_ALL if session is None else _USAGE, (tenant, start if session is None else session, start)
    ):
        spent += usage_of(type_, decode_query(query) if type_ == "stop" else None)
    return spent


def read_sessions(db: Database, tenant: str, before: tuple[str, str]) -> list[tuple[Any, ...]]:
    """Read one page of sessions that were modified before a (time, id)."""
    return db.execute(_SESSIONS, (tenant, *before, PAGE_ROWS)).fetchall()


def read_info(db: Database, tenant: str, session: str) -> SessionInfo | None:
    """Read what is known of one session."""
    with snapshot(db):
        found = db.execute(_SESSION, (tenant, session)).fetchone()
        [size] = db.execute(_SIZE, (tenant, session)).fetchone()
    return found and replace(to_info(found), size=size)


def to_info(values: Sequence[Any]) -> SessionInfo:
    """Build what `sessions` lists of its columns."""
    session, created_at, modified_at, messages, parent, running = values
    return SessionInfo(
        id=session,
        created_at=decode_any_time(created_at),
        modified_at=decode_any_time(modified_at),
        messages=messages,
        parent=parent,
        running=bool(running),
    )


def read_marks(db: Database, tenant: str, session: str, after: int) -> tuple[int | None, list[Mark]]:
    """Read one page of marks after a sequence; return with which one it ends, or `None` for the end."""
    with snapshot(db):
        found = db.execute(_MARKS, (tenant, session, after, PAGE_ROWS)).fetchall()
        marks = [Mark(id=row, waits=bool(waits), client_key=key) for _, row, waits, key in found]
        if len(found) == PAGE_ROWS:
            return found[-1][0], marks
        waiting = db.execute(_INBOX_KEYS, (tenant, session))
        return None, [*marks, *(Mark(id=row, client_key=key) for row, key in waiting)]


@contextmanager
def snapshot(db: Database) -> Iterator[None]:
    """Read several things as of one moment, which is the caller's when he reads so already."""
    if db.in_transaction:
        yield
        return
    db.execute(SNAPSHOT)
    try:
        yield
    finally:
        end_snapshot(db)


def end_snapshot(db: Database) -> None:
    """End what `snapshot` began; SQLite does that by itself when the disk fails."""
    if db.in_transaction:
        db.execute("ROLLBACK")
