-- Version 1. Made to be read with the sqlite3 shell: states are words, JSON is JSON, times are milliseconds since 1970.

-- One row an operation, in the order in which they came. What a row gains when its operation ends (the outcome) is about
-- what it loses (the owner), so that ending an operation rewrites the page that beginning it wrote, and no other.
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

-- What a surface needs to answer byte for byte, apart from the rows that are looked through.
CREATE TABLE body (
    row   INTEGER PRIMARY KEY,                 -- operation.row
    bytes BLOB NOT NULL
) STRICT;

-- Eight bytes an entry instead of the whole identity: random keys dirty a page each, so the pages must be few. Two ids
-- of one slot are told apart by the id.
CREATE INDEX operation_slot ON operation (slot);
-- Who names no scope has the newest operations anyway, and need not pay for an index.
CREATE INDEX operation_scope ON operation (scope) WHERE scope <> 'default';
-- What time asks for, and at its far end what is staged, running or in doubt. An operation that ends moves from the end
-- to the place before it, so beginning and ending many of them write one and the same page of this index.
CREATE INDEX operation_agenda ON operation (agenda);
-- Operations are asked for by their keys. A file of an older build may lack this index: everything works without it,
-- more slowly, and `once gc --vacuum` adds it.
CREATE INDEX operation_key ON operation (key);
-- Nearly all operations are done, and not in it.
CREATE INDEX operation_undone ON operation (state) WHERE state = 'failed' OR state = 'cancelled';
