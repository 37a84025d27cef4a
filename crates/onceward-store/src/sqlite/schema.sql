-- Version 1. Designed to be readable in the sqlite3 shell: states are words, JSON is JSON, times are milliseconds
-- since 1970.

-- One row per operation, in order of creation. What a row gains when its operation ends (the outcome) is about as
-- large as what it loses (the owner), so that ending an operation rewrites the page written at its beginning, and no
-- other.
CREATE TABLE operation (
    row        INTEGER PRIMARY KEY,
    slot       INTEGER NOT NULL,               -- the first 8 bytes of the id's hash: what is looked up
    id         TEXT    NOT NULL,               -- op_…
    scope      TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    origin     TEXT    NOT NULL,               -- given, derived
    state      TEXT    NOT NULL,               -- staged, running, done, failed, in_doubt, cancelled, expired
    version    INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    due_ms     INTEGER,                        -- when a settled operation moves on
    agenda     INTEGER NOT NULL,               -- due_ms, or beyond all times for what is not settled
    replays    INTEGER NOT NULL DEFAULT 0,     -- a tally, which may lag
    has_body   INTEGER NOT NULL DEFAULT 0,     -- whether `body` has a row for it
    detail     TEXT    NOT NULL,               -- JSON: what was written with the intent
    outcome    TEXT                            -- JSON: how it ended
) STRICT;

-- The bytes that a surface needs to repeat an answer exactly, separate from the rows that are scanned.
CREATE TABLE body (
    row   INTEGER PRIMARY KEY,                 -- operation.row
    bytes BLOB NOT NULL
) STRICT;

-- Eight bytes per entry instead of the whole id: random keys dirty one page each, so the pages must be few. Two ids
-- with one slot are distinguished by the id.
CREATE INDEX operation_slot ON operation (slot);
-- Queries without a scope list the newest operations anyway and do not need an index.
CREATE INDEX operation_scope ON operation (scope) WHERE scope <> 'default';
-- The operations with a due time, followed by those that are staged, running or in doubt. An operation that ends
-- moves from the end to the position before it, so beginning and ending many operations writes the same page of this
-- index.
CREATE INDEX operation_agenda ON operation (agenda);
-- Operations are looked up by their keys. A file created by an older build may lack this index. Everything works
-- without it, but more slowly, and `once gc --vacuum` adds it.
CREATE INDEX operation_key ON operation (key);
-- Nearly all operations are done, and these are not in it.
CREATE INDEX operation_undone ON operation (state) WHERE state = 'failed' OR state = 'cancelled';
