"""What the ledger of a session asks of a database's tables."""

from __future__ import annotations

from ._select import select_messages

FIND = select_messages("id = ?")
FIND_KEY = select_messages("client_key = ?")
# `state <> 'closed'` says to SQLite that the partial index holds all these rows.
WAITING = select_messages("state = 'inbox' AND state <> 'closed' ORDER BY rowid LIMIT ?")
HAS_WAITING = """
    SELECT 1 FROM messages
    WHERE tenant = ? AND session = ? AND state = 'inbox' AND state <> 'closed' LIMIT 1 OFFSET ?
"""
LEASE = "SELECT head, fence, base, prev, owner, crashes, modified_at FROM leases WHERE tenant = ? AND session = ?"
SAVE_LEASE = """
    INSERT INTO leases (tenant, session, head, fence, prev, owner, crashes, created_at, modified_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (tenant, session) DO UPDATE SET
        head = excluded.head,
        fence = excluded.fence,
        prev = excluded.prev,
        owner = excluded.owner,
        crashes = excluded.crashes,
        created_at = CASE WHEN leases.created_at < excluded.created_at THEN leases.created_at
            ELSE coalesce(excluded.created_at, leases.created_at) END,
        modified_at = coalesce(excluded.modified_at, leases.modified_at)
    WHERE leases.fence = ?
"""
MOVE_LEASE = """
    UPDATE leases SET
        head = ?1,
        prev = ?2,
        created_at = CASE WHEN created_at < ?3 THEN created_at ELSE coalesce(?3, created_at) END,
        modified_at = coalesce(?4, modified_at)
    WHERE tenant = ?5 AND session = ?6 AND fence = ?7
"""
HAND_LEASE = "UPDATE leases SET fence = ?, owner = ?, crashes = ? WHERE tenant = ? AND session = ? AND fence = ?"
CLEAR_LEASE = """
    UPDATE leases SET created_at = NULL, modified_at = NULL, parent = NULL, base = 0 WHERE tenant = ? AND session = ?
"""
BEGIN_FORK = """
    INSERT INTO leases (tenant, session, head, fence, parent, base, prev, created_at, modified_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (tenant, session) DO UPDATE SET
        head = excluded.head, fence = excluded.fence, owner = NULL, crashes = 0, parent = excluded.parent,
        base = excluded.base, prev = excluded.prev, created_at = excluded.created_at, modified_at = excluded.modified_at
"""
FORKS = "SELECT session FROM leases WHERE tenant = ? AND parent = ? LIMIT 3"
KEEPERS = "SELECT session, sequence FROM messages WHERE tenant = ? AND id = ? AND sequence IS NOT NULL"
AT = "SELECT id FROM messages WHERE tenant = ? AND session = ? AND sequence = ?"
# `+` keeps SQLite from walking the whole history by its sequences.
FIRST_UNFINISHED = """
    SELECT min(sequence) FROM (
        SELECT sequence FROM messages
        WHERE tenant = ?1 AND session = ?2 AND state IN ('open', 'unanswered') AND state <> 'closed' AND +sequence <= ?3
            AND type <> 'approval' -- it is decided in the session that asks; a fork asks again
        UNION ALL
        SELECT sequence FROM messages WHERE tenant = ?1 AND session = ?2 AND answered > ?3 AND +sequence <= ?3
    ) AS unfinished
"""
TAIL = select_messages("sequence >= ? AND sequence <= ? ORDER BY sequence")
INSERT = """
    INSERT INTO messages (
        tenant, session, modified_at, id, sequence, prev, role, type, state, attempt,
        client_key, size, created_at, query, content, source, answered, fence
    ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
# Each sets what may have changed and nothing else: an index is written again for each of its columns that is set.
ADMIT = """
    UPDATE messages SET sequence = ?, prev = ?, state = ?, answered = ?, fence = ?, modified_at = ?
    WHERE tenant = ? AND session = ? AND id = ?
"""
SETTLE = "UPDATE messages SET state = ?, answered = ?, modified_at = ? WHERE tenant = ? AND session = ? AND id = ?"
GROW = "UPDATE messages SET size = ?, query = ?, modified_at = ? WHERE tenant = ? AND session = ? AND id = ?"
CLOSE = """
    UPDATE messages SET state = ?, answered = ?, size = ?, query = ?, content = ?, modified_at = ?
    WHERE tenant = ? AND session = ? AND id = ?
"""
ASKING = select_messages("state = 'unanswered' AND state <> 'closed' AND type = 'approval'")
ALIVE = "SELECT 1 FROM owners WHERE tenant = ? AND owner = ? AND expires_at > ?"
HEAR = """
    INSERT INTO owners (tenant, owner, expires_at) VALUES (?, ?, ?)
    ON CONFLICT (tenant, owner) DO UPDATE SET expires_at = excluded.expires_at
"""
START_CALL = """
    INSERT INTO calls (tenant, session, call, state, attempts, fence, started_at) VALUES (?, ?, ?, 'started', 1, ?, ?)
    ON CONFLICT (tenant, session, call) DO UPDATE SET attempts = calls.attempts + 1, fence = excluded.fence
    RETURNING attempts
"""
FINISH_CALL = """
    UPDATE calls SET state = 'finished', outcome = ?, finished_at = ?, fence = ?
    WHERE tenant = ? AND session = ? AND call = ? AND state <> 'closed' -- a tool that streams has begun its result
"""
CLOSE_CALL = """
    UPDATE calls SET state = 'closed', outcome = NULL, finished_at = coalesce(finished_at, ?)
    WHERE tenant = ? AND session = ? AND call = ?
"""
NEXT_PIECE = "SELECT coalesce(max(piece) + 1, 0) FROM fragments WHERE tenant = ? AND session = ? AND message = ?"
ADD_PIECE = "INSERT INTO fragments (tenant, session, message, piece, content) VALUES (?, ?, ?, ?, ?)"
DROP_PIECES = "DELETE FROM fragments WHERE tenant = ? AND session = ? AND message = ?"
