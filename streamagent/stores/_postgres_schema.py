"""The tables of a PostgreSQL store, version 2. Other programs may read them; the comments are kept in the database."""

from __future__ import annotations

import re
from collections.abc import Iterator

VERSION = 2
KEPT = "interval '7 days'"  # how long a connection that is gone can be asked about

_NEW_IN_2 = """
CREATE TABLE commits (          -- the last commit of each connection; when that was lost it tells if it is there
    connection TEXT PRIMARY KEY,
    number BIGINT NOT NULL,     -- of the transaction, among those of its connection
    committed_at TEXT NOT NULL  -- rows that are older than a week are removed when a store is opened
);
"""
# As SQLite's, so that one SQL text serves both. Names and times sort by their bytes, whatever the database's language.
_TABLES = """
CREATE TABLE messages (
    tenant TEXT NOT NULL,       -- whose session it is
    session TEXT NOT NULL,
    id TEXT NOT NULL,           -- UUIDv7, unique in its session
    rowid BIGINT GENERATED ALWAYS AS IDENTITY,  -- order of arrival in its session
    sequence BIGINT,            -- dense 1..n in its session; NULL while it waits in the inbox
    prev TEXT,                  -- on the first message of a fork: the one it continues, in the parent session
    role TEXT NOT NULL,         -- system, user, assistant, tool
    type TEXT NOT NULL,         -- text, reasoning, tool_call, tool_result, stop and others
    state TEXT NOT NULL         -- inbox, open, closed, or unanswered: a call without a result, an undecided approval
        CHECK (state IN ('inbox', 'open', 'unanswered', 'closed')),
    attempt BIGINT NOT NULL,    -- which try of the model, from 1
    client_key TEXT,            -- a message that is sent twice under one key is one message
    size BIGINT NOT NULL,       -- bytes of the content in UTF-8
    answered BIGINT,            -- of a tool_call: the sequence of its tool_result
    source TEXT,                -- session whose message of this id has the content (its first bytes: size), and the
                                -- query unless there is one here
    fence BIGINT,               -- of the writer that gave it its sequence
    created_at TEXT NOT NULL,   -- UTC, ISO 8601, with microseconds and Z
    modified_at TEXT NOT NULL,
    query JSON,                 -- an object: the structured part
    content TEXT NOT NULL,      -- empty while the message is open or when it has more than 64 KiB: see fragments
    PRIMARY KEY (tenant, session, id)
);
CREATE UNIQUE INDEX messages_sequence ON messages (tenant, session, sequence) WHERE sequence IS NOT NULL;
CREATE UNIQUE INDEX messages_client_key ON messages (tenant, session, client_key) WHERE client_key IS NOT NULL;
CREATE INDEX messages_unfinished ON messages (tenant, session, state) WHERE state <> 'closed';
CREATE INDEX messages_inbox ON messages (tenant, session) WHERE state = 'inbox';
CREATE INDEX messages_answered ON messages (tenant, session, answered, sequence) WHERE answered IS NOT NULL;
CREATE INDEX messages_id ON messages (id, tenant);
CREATE TABLE fragments (        -- content of open and of large messages, in pieces of at most 64 KiB
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    message TEXT NOT NULL,      -- its id
    piece BIGINT NOT NULL,      -- from 0; the content is the pieces in this order
    content TEXT NOT NULL,
    PRIMARY KEY (tenant, session, message, piece)
);
CREATE TABLE leases (           -- one row a session; it stays when the session is deleted
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    head BIGINT NOT NULL,       -- the last sequence given
    fence BIGINT NOT NULL,      -- raised with each new writer: a write with an older one is refused
    owner TEXT,                 -- who holds it, as long as it is alive: see owners; '' of a run left to others
    crashes BIGINT NOT NULL DEFAULT 0,  -- owners in a row that died while they held it
    created_at TEXT,            -- as in the view sessions; NULL without messages
    modified_at TEXT,
    parent TEXT,                -- session it was forked from, which keeps the messages up to base
    base BIGINT NOT NULL DEFAULT 0,
    prev TEXT,                  -- of a fork that was not written to: its last message
    PRIMARY KEY (tenant, session)
);
CREATE INDEX leases_modified ON leases (tenant, modified_at, session) WHERE modified_at IS NOT NULL;
CREATE INDEX leases_parent ON leases (tenant, parent) WHERE parent IS NOT NULL;
CREATE INDEX leases_owner ON leases (tenant, owner) WHERE owner IS NOT NULL;
CREATE TABLE owners (           -- processes that run sessions, as long as they say so
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    expires_at TEXT NOT NULL,   -- from here on what it holds may be acquired by others
    PRIMARY KEY (tenant, owner)
);
CREATE TABLE calls (            -- ledger of effects: what a tool was about to do, and what came of it
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    call TEXT NOT NULL,         -- id of the tool_call
    state TEXT NOT NULL         -- started, finished, or closed: its tool_result is stored
        CHECK (state IN ('started', 'finished', 'closed')),
    attempts BIGINT NOT NULL,   -- how often its tool was about to run
    fence BIGINT NOT NULL,      -- of the writer that noted this last
    started_at TEXT NOT NULL,
    finished_at TEXT,
    outcome JSON,               -- the tool_result that is not stored yet
    PRIMARY KEY (tenant, session, call)
);
CREATE INDEX calls_left ON calls (tenant, session) WHERE state <> 'closed';
CREATE VIEW sessions AS
    SELECT tenant, session AS id, created_at, modified_at, head AS messages
    FROM leases WHERE modified_at IS NOT NULL;
CREATE TABLE version (          -- of these tables
    streamagent BIGINT NOT NULL
);
"""
_TABLE = re.compile(r"^CREATE TABLE (\w+) \( +-- (.+)$|^CREATE TABLE (\w+)", re.MULTILINE)
_COLUMN = re.compile(r"^ {4}([a-z_]+) [^-\n]*-- (.+(?:\n {8,}-- .+)*)", re.MULTILINE)


def statements(version: int) -> Iterator[str]:
    """Give what brings a schema of that version to the newest; 0 is an empty one."""
    if version == 0:
        yield from _made(_TABLES + _NEW_IN_2)
        yield f"INSERT INTO version VALUES ({VERSION})"  # noqa: S608 - a constant
    else:
        yield from _made(_NEW_IN_2)
        yield f"UPDATE version SET streamagent = {VERSION}"  # noqa: S608 - a constant


def _made(tables: str) -> Iterator[str]:
    yield tables.replace(" TEXT", ' TEXT COLLATE "C"')
    yield from comments(tables)


def comments(tables: str = _TABLES + _NEW_IN_2) -> Iterator[str]:
    """Give what keeps the comments of such a text in the database."""
    for statement in tables.split(";\n"):
        if table := _TABLE.match(statement.strip()):
            name = table[1] or table[3]
            if table[2]:
                yield f"COMMENT ON TABLE {name} IS '{table[2]}'"
            for column, text in _COLUMN.findall(statement):
                said = re.sub(r"\s*\n\s*-- ", " ", text).replace("'", "''")
                yield f"COMMENT ON COLUMN {name}.{column} IS '{said}'"
