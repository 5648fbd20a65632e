"""A file as version 1 of the tables was, from before there were forks."""

FILE = """
PRAGMA journal_mode = WAL;
PRAGMA application_id = 0x73747261;
PRAGMA user_version = 1;
CREATE TABLE messages (
    tenant TEXT NOT NULL,       -- whose session it is
    session TEXT NOT NULL,
    id TEXT NOT NULL,           -- UUIDv7, unique in its session
    sequence INTEGER,           -- dense 1..n in its session; NULL while it waits in the inbox
    prev TEXT,                  -- parent message, on the first message of a fork
    role TEXT NOT NULL,         -- system, user, assistant, tool
    type TEXT NOT NULL,         -- text, reasoning, tool_call, tool_result, stop and others
    state TEXT NOT NULL         -- unanswered: a complete tool_call without a tool_result
        CHECK (state IN ('inbox', 'open', 'unanswered', 'closed')),
    attempt INTEGER NOT NULL,   -- which try of the model, from 1
    client_key TEXT,            -- a message that is sent twice under one key is one message
    size INTEGER NOT NULL,      -- bytes of the content in UTF-8
    created_at TEXT NOT NULL,   -- times are UTC, ISO 8601, with microseconds and Z
    modified_at TEXT NOT NULL,
    query TEXT,                 -- a JSON object: the structured part
    content TEXT NOT NULL,      -- empty while the message is open or when it has more than 64 KiB: see fragments
    UNIQUE (id, tenant, session)  -- by time first: what is written together lies together
);
CREATE UNIQUE INDEX messages_sequence ON messages (tenant, session, sequence) WHERE sequence IS NOT NULL;
CREATE UNIQUE INDEX messages_client_key ON messages (tenant, session, client_key) WHERE client_key IS NOT NULL;
CREATE INDEX messages_unfinished ON messages (tenant, session, state) WHERE state <> 'closed';
CREATE TABLE fragments (        -- content of open and of large messages, in pieces of at most 64 KiB
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    message TEXT NOT NULL,      -- its id
    piece INTEGER NOT NULL,     -- from 0; the content is the pieces in this order
    content TEXT NOT NULL,
    PRIMARY KEY (tenant, session, message, piece)
);
CREATE TABLE leases (           -- one row a session; it stays when the session is deleted
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    head INTEGER NOT NULL,      -- the last sequence given
    fence INTEGER NOT NULL,     -- raised with each new writer: a write with an older one is refused
    owner TEXT,                 -- who has it, and until when, where runners take turns
    expires_at TEXT,
    created_at TEXT,            -- as in the view sessions; NULL without messages
    modified_at TEXT,
    PRIMARY KEY (tenant, session)
) WITHOUT ROWID;
CREATE INDEX leases_modified ON leases (tenant, modified_at, session) WHERE modified_at IS NOT NULL;
CREATE VIEW sessions AS
    SELECT tenant, session AS id, min(created_at) AS created_at, max(modified_at) AS modified_at,
        count(sequence) AS messages
    FROM messages GROUP BY tenant, session;
INSERT INTO messages (tenant, session, id, sequence, prev, role, type, state, attempt, client_key, size, created_at,
    modified_at, query, content)
VALUES
    ('default', 's', 'm1', 1, NULL, 'user', 'text', 'closed', 1, NULL, 2, '2025-01-01T00:00:00.000001Z',
        '2025-01-01T00:00:00.000001Z', NULL, 'hi'),
    ('default', 's', 'm2', 2, NULL, 'assistant', 'tool_call', 'closed', 1, NULL, 2, '2025-01-01T00:00:00.000002Z',
        '2025-01-01T00:00:00.000002Z', '{"tool": "stock", "id": "c1", "args": {}}', '{}'),
    ('default', 's', 'm3', 3, NULL, 'tool', 'tool_result', 'closed', 1, NULL, 2, '2025-01-01T00:00:00.000003Z',
        '2025-01-01T00:00:00.000003Z', '{"tool": "stock", "id": "c1", "call": "m2"}', '15'),
    ('default', 's', 'm4', 4, NULL, 'assistant', 'text', 'closed', 1, NULL, 70000, '2025-01-01T00:00:00.000004Z',
        '2025-01-01T00:00:00.000004Z', NULL, ''),
    ('default', 's', 'm5', 5, NULL, 'assistant', 'text', 'open', 1, NULL, 4, '2025-01-01T00:00:00.000005Z',
        '2025-01-01T00:00:00.000005Z', NULL, ''),
    ('default', 's', 'm6', NULL, NULL, 'user', 'text', 'inbox', 1, 'k', 5, '2025-01-01T00:00:00.000006Z',
        '2025-01-01T00:00:00.000006Z', NULL, 'waits');
INSERT INTO fragments (tenant, session, message, piece, content)
VALUES
    ('default', 's', 'm4', 0, replace(hex(zeroblob(32768)), '0', 'x')),
    ('default', 's', 'm4', 1, replace(hex(zeroblob(2232)), '0', 'x')),
    ('default', 's', 'm5', 0, 'half');
INSERT INTO leases (tenant, session, head, fence, created_at, modified_at)
VALUES ('default', 's', 5, 1, '2025-01-01T00:00:00.000001Z', '2025-01-01T00:00:00.000006Z');
"""
