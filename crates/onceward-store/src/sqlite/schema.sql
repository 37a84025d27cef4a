-- Designed to be readable in the sqlite3 shell: states and kinds are words, JSON is JSON, times are milliseconds since
-- 1970.

-- One row per record, in order of creation. What a row gains when its operation ends (the outcome) is about as large as
-- what it loses (the owner), so that ending an operation rewrites the page written at its beginning, and no other.
CREATE TABLE operations (
    row        INTEGER PRIMARY KEY,
    slot       INTEGER NOT NULL,               -- the first 8 bytes of the id's hash: what is looked up
    id         TEXT    NOT NULL,               -- op_…
    kind       TEXT    NOT NULL,               -- operation, alias, event, guard, marker
    action     TEXT,                           -- what it is an occurrence of, unless that is its own id
    number     INTEGER,                        -- of the occurrence, if the ledger counts them
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
    open_until INTEGER,                        -- until when an equal call may refer to it; for an `action` only
    replays    INTEGER NOT NULL DEFAULT 0,     -- a tally, which may lag
    has_body   INTEGER NOT NULL DEFAULT 0,     -- whether `body` has a row for it
    detail     TEXT    NOT NULL,               -- JSON: what was written with the intent
    outcome    TEXT                            -- JSON: how it ended
) STRICT;

-- The bytes that a surface needs to repeat an answer exactly, separate from the rows that are scanned.
CREATE TABLE body (
    row   INTEGER PRIMARY KEY,                 -- operations.row
    bytes BLOB NOT NULL
) STRICT;

-- Eight bytes per entry instead of the whole id: random keys dirty one page each, so the pages must be few. Two ids
-- with one slot are distinguished by the id.
CREATE INDEX operation_slot ON operations (slot);
-- Queries without a scope list the newest operations anyway and do not need an index.
CREATE INDEX operation_scope ON operations (scope) WHERE scope <> 'default';
-- The operations with a due time, followed by those that are staged, running or in doubt. An operation that ends
-- moves from the end to the position before it, so beginning and ending many operations writes the same page of this
-- index.
CREATE INDEX operation_agenda ON operations (agenda);
-- Operations are looked up by the keys that callers gave them. A derived key is a hash that no one types. Indexing
-- those as well would dirty a page for each operation, because hashes are random.
CREATE INDEX operation_given ON operations (key) WHERE origin = 'given';
-- Nearly all operations are done, and these are not in it.
CREATE INDEX operation_undone ON operations (state) WHERE state = 'failed' OR state = 'cancelled';
-- The occurrences of an action that are open, and their numbers. The first occurrence has the id of its action, so it is
-- in neither.
CREATE INDEX operation_open ON operations (action, open_until) WHERE action IS NOT NULL AND open_until IS NOT NULL;
CREATE INDEX operation_number ON operations (action, number) WHERE number > 1;

-- One row: the ledger's identity, which every write checks.
CREATE TABLE ledger (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    version  INTEGER NOT NULL,                 -- of these tables: a program that knows another one stops
    mark     TEXT    NOT NULL,                 -- the ledger's name and epoch: what a write compares
    identity TEXT    NOT NULL,                 -- JSON: the same, with the secret that keys the hashes
    count    INTEGER NOT NULL,                 -- grows with each state of the database file; 0 in a backup
    clock    TEXT                              -- the newest time of the ledger
) STRICT;

-- One row, on its own page. The two counts are written alternately, so the lower one is always exactly one behind. If
-- the file was replaced by an older state and its log was then copied into it, it is not.
CREATE TABLE twin (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    count INTEGER NOT NULL,
    clock TEXT
) STRICT;

-- The scopes that are stopped: the write that begins an attempt looks here. Nearly always empty.
CREATE TABLE stopped (
    scope TEXT PRIMARY KEY,
    word  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
