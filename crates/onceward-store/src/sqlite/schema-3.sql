-- Version 3. A scope can be stopped: the write that begins an attempt looks here. Nearly always empty.
CREATE TABLE stopped (
    scope    TEXT    PRIMARY KEY,
    since_ms INTEGER NOT NULL,
    reason   TEXT
) STRICT, WITHOUT ROWID;

-- A program of version 2 that has the file open does not look: it stops.
UPDATE ledger SET version = 3;
