-- Version 2. The ledger has an identity, which every write checks.

-- One row.
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

-- Renamed, so that a program of version 1 that has the file open fails instead of writing unchecked.
ALTER TABLE operation RENAME TO operations;

-- Operations are looked up by the keys that callers gave them. A derived key is a hash that no one types. Indexing
-- those as well would dirty a page for each operation, because hashes are random.
DROP INDEX IF EXISTS operation_key;
CREATE INDEX operation_given ON operations (key) WHERE origin = 'given';
