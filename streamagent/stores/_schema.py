"""The tables of an SQLite store, version 3. Other programs may read them; the comments are kept in the file."""

from __future__ import annotations

APPLICATION_ID = 0x73747261  # "stra", in the file's header (https://sqlite.org/pragma.html#pragma_application_id)
VERSION = 3  # PRAGMA user_version

_OWNERS = """
    CREATE TABLE owners (           -- processes that run sessions, as long as they say so
        tenant TEXT NOT NULL,
        owner TEXT NOT NULL,
        expires_at TEXT NOT NULL,   -- from here on what it holds may be acquired by others
        PRIMARY KEY (tenant, owner)
    ) WITHOUT ROWID
"""
_CALLS = """
    CREATE TABLE calls (            -- ledger of effects: what a tool was about to do, and what came of it
        tenant TEXT NOT NULL,
        session TEXT NOT NULL,
        call TEXT NOT NULL,         -- id of the tool_call
        state TEXT NOT NULL         -- closed: its tool_result is stored
            CHECK (state IN ('started', 'finished', 'closed')),
        attempts INTEGER NOT NULL,  -- how often its tool was about to run
        fence INTEGER NOT NULL,     -- of the writer that noted this last
        started_at TEXT NOT NULL,
        finished_at TEXT,
        outcome TEXT,               -- JSON: the tool_result that is not stored yet
        PRIMARY KEY (tenant, session, call)
    ) WITHOUT ROWID
"""
_NEW_IN_3 = (
    _OWNERS,
    _CALLS,
    "CREATE INDEX calls_left ON calls (tenant, session) WHERE state <> 'closed'",
    "CREATE INDEX leases_owner ON leases (tenant, owner) WHERE owner IS NOT NULL",
    "CREATE INDEX messages_inbox ON messages (tenant, session) WHERE state = 'inbox'",
)

_NEW_IN_2 = (
    "CREATE INDEX messages_answered ON messages (tenant, session, answered, sequence) WHERE answered IS NOT NULL",
    "CREATE INDEX leases_parent ON leases (tenant, parent) WHERE parent IS NOT NULL",
    """
    CREATE VIEW sessions AS
        SELECT tenant, session AS id, created_at, modified_at, head AS messages
        FROM leases WHERE modified_at IS NOT NULL
    """,
)

TABLES = (
    """
    CREATE TABLE messages (
        tenant TEXT NOT NULL,       -- whose session it is
        session TEXT NOT NULL,
        id TEXT NOT NULL,           -- UUIDv7, unique in its session
        sequence INTEGER,           -- dense 1..n in its session; NULL while it waits in the inbox
        prev TEXT,                  -- on the first message of a fork: the one it continues, in the parent session
        role TEXT NOT NULL,         -- system, user, assistant, tool
        type TEXT NOT NULL,         -- text, reasoning, tool_call, tool_result, stop and others
        state TEXT NOT NULL         -- unanswered: a tool_call without a tool_result, an approval without a decision
            CHECK (state IN ('inbox', 'open', 'unanswered', 'closed')),
        attempt INTEGER NOT NULL,   -- which try of the model, from 1
        client_key TEXT,            -- a message that is sent twice under one key is one message
        size INTEGER NOT NULL,      -- bytes of the content in UTF-8
        answered INTEGER,           -- of a tool_call: the sequence of its tool_result
        source TEXT,                -- session whose message of this id has the content (its first bytes: size), and
                                    -- the query unless there is one here
        fence INTEGER,              -- of the writer that gave it its sequence
        created_at TEXT NOT NULL,   -- times are UTC, ISO 8601, with microseconds and Z
        modified_at TEXT NOT NULL,
        query TEXT,                 -- a JSON object: the structured part
        content TEXT NOT NULL,      -- empty while the message is open or when it has more than 64 KiB: see fragments
        UNIQUE (id, tenant, session)  -- by time first: what is written together lies together
    )
    """,
    "CREATE UNIQUE INDEX messages_sequence ON messages (tenant, session, sequence) WHERE sequence IS NOT NULL",
    "CREATE UNIQUE INDEX messages_client_key ON messages (tenant, session, client_key) WHERE client_key IS NOT NULL",
    # What a run left behind is found without a look at the history.
    "CREATE INDEX messages_unfinished ON messages (tenant, session, state) WHERE state <> 'closed'",
    """
    CREATE TABLE fragments (        -- content of open and of large messages, in pieces of at most 64 KiB
        tenant TEXT NOT NULL,
        session TEXT NOT NULL,
        message TEXT NOT NULL,      -- its id
        piece INTEGER NOT NULL,     -- from 0; the content is the pieces in this order
        content TEXT NOT NULL,
        PRIMARY KEY (tenant, session, message, piece)
    )
    """,
    """
    CREATE TABLE leases (           -- one row a session; it stays when the session is deleted
        tenant TEXT NOT NULL,
        session TEXT NOT NULL,
        head INTEGER NOT NULL,      -- the last sequence given
        fence INTEGER NOT NULL,     -- raised with each new writer: a write with an older one is refused
        owner TEXT,                 -- who holds it, as long as it is alive: see owners; '' of a run left to others
        crashes INTEGER NOT NULL DEFAULT 0,  -- owners in a row that died while they held it
        created_at TEXT,            -- as in the view sessions; NULL without messages
        modified_at TEXT,
        parent TEXT,                -- session it was forked from, which keeps the messages up to base
        base INTEGER NOT NULL DEFAULT 0,
        prev TEXT,                  -- of a fork that was not written to: its last message
        PRIMARY KEY (tenant, session)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX leases_modified ON leases (tenant, modified_at, session) WHERE modified_at IS NOT NULL",
    *_NEW_IN_2,
    *_NEW_IN_3,
)

_FROM_2 = (
    "ALTER TABLE messages ADD COLUMN fence INTEGER",
    "ALTER TABLE leases DROP COLUMN expires_at",
    "ALTER TABLE leases ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0",
    *_NEW_IN_3,
)

_FROM_1 = (
    "ALTER TABLE messages ADD COLUMN answered INTEGER",
    "ALTER TABLE messages ADD COLUMN source TEXT",
    "ALTER TABLE leases ADD COLUMN parent TEXT",
    "ALTER TABLE leases ADD COLUMN base INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE leases ADD COLUMN prev TEXT",
    "DROP VIEW sessions",
    """
    UPDATE messages SET answered = result.sequence
    FROM (
        SELECT tenant, session, json_extract(query, '$.call') AS call, min(sequence) AS sequence
        FROM messages WHERE type = 'tool_result' AND sequence IS NOT NULL GROUP BY 1, 2, 3
    ) AS result
    WHERE messages.id = result.call AND messages.tenant = result.tenant AND messages.session = result.session
        AND messages.type = 'tool_call'
    """,
    *_NEW_IN_2,
    *_FROM_2,
)

STEPS = {0: TABLES, 1: _FROM_1, 2: _FROM_2}  # what brings a file of that version to the newest; 0 is an empty one

_NO_OWNERS = (
    "CREATE TEMP VIEW owners (tenant, owner, expires_at) AS SELECT 0, 0, 0 WHERE 0",
    "CREATE TEMP VIEW calls (tenant, session, call, state, attempts, outcome) AS SELECT 0, 0, 0, 0, 0, 0 WHERE 0",
)

# An older file that is opened for reading alone looks like the newest.
OLD_AS_NEW = {
    1: (
        """
        CREATE TEMP VIEW messages AS
            SELECT rowid, *, NULL AS answered, NULL AS source, NULL AS fence FROM main.messages
        """,
        "CREATE TEMP VIEW leases AS SELECT *, NULL AS parent, 0 AS base, NULL AS prev, 0 AS crashes FROM main.leases",
        *_NO_OWNERS,
    ),
    2: (
        "CREATE TEMP VIEW messages AS SELECT rowid, *, NULL AS fence FROM main.messages",
        "CREATE TEMP VIEW leases AS SELECT *, 0 AS crashes FROM main.leases",
        *_NO_OWNERS,
    ),
}
