-- Version 1. Designed to be readable in psql: states are words, JSON is JSON text, times are milliseconds since 1970.
-- Text in braces is filled in when the migration runs.

CREATE TABLE {schema}.meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- One row per operation. JSON is stored as text, so that results are returned byte for byte, however deeply nested.
CREATE SEQUENCE {schema}.operation_place;
CREATE TABLE {schema}.operation (
    id         text COLLATE "C" NOT NULL,      -- op_…
    place      bigint  NOT NULL DEFAULT nextval('{schema}.operation_place'),  -- the order in which they came
    version    bigint  NOT NULL,
    attempt    bigint  NOT NULL,
    created_ms bigint  NOT NULL,
    updated_ms bigint  NOT NULL,
    due_ms     bigint,                         -- when a settled operation moves on
    replays    bigint  NOT NULL DEFAULT 0,     -- a tally, which may lag
    watched    boolean NOT NULL DEFAULT false, -- a caller waits for the next change
    announced  boolean NOT NULL DEFAULT false, -- listeners were notified of the last change
    state      text COLLATE "C" NOT NULL,      -- staged, running, done, failed, in_doubt, cancelled, expired
    origin     text COLLATE "C" NOT NULL,      -- given, derived
    scope      text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    detail     text COLLATE "C" NOT NULL,      -- JSON: what was written with the intent
    outcome    text COLLATE "C",               -- JSON: how it ended
    body       bytea,                          -- what a surface needs to answer byte for byte
    PRIMARY KEY (id)
) {shape};
{partitions}
CREATE INDEX operation_place_idx ON {schema}.operation (place);
-- Queries without a scope list the newest operations anyway and do not need an index.
CREATE INDEX operation_scope_idx ON {schema}.operation (scope, place) WHERE scope <> 'default';
-- Operations are looked up by their keys. A ledger created by an older build may lack this index. Everything works
-- without it, but more slowly, and `once doctor` shows the statement that adds it.
CREATE INDEX operation_key_idx ON {schema}.operation (key);
-- Operations in progress or in doubt, which are always few.
CREATE INDEX operation_open_idx ON {schema}.operation (place) WHERE state IN ('staged', 'running', 'in_doubt');
-- Nearly all operations are done, and these are not in it.
CREATE INDEX operation_undone_idx ON {schema}.operation (place) WHERE state IN ('failed', 'cancelled');
-- Operations with a due time.
CREATE INDEX operation_due_idx ON {schema}.operation (due_ms, place) WHERE due_ms IS NOT NULL;

-- The functions contain no policy: they compare versions and notify listeners. They are in the database and not in
-- the program so that many changes are one statement, so that one statement is one transaction and one round trip,
-- and so that their plans survive a pooler. Rows are looked up by index whatever the statistics of a new table say.

-- Writes new records and new versions of existing ones. The first row returned has the time and the ids written. The
-- following rows are the records that conflicted. `again` means that these changes were sent before and the reply was
-- lost: the records found are then flushed to disk, and to the standby, before they are returned.
CREATE FUNCTION {schema}.swap_1(
    patience_ms integer, again boolean,
    new_id text[], new_scope text[], new_name text[], new_key text[], new_origin text[], new_state text[],
    new_version bigint[], new_attempt bigint[], new_created_ms bigint[], new_updated_ms bigint[], new_due_ms bigint[],
    new_detail text[], new_outcome text[], new_body bytea[],
    old_id text[], old_expected bigint[], old_state text[], old_version bigint[], old_attempt bigint[],
    old_created_ms bigint[], old_updated_ms bigint[], old_due_ms bigint[], old_detail text[], old_outcome text[],
    old_body bytea[]
) RETURNS TABLE (
    now_ms bigint, written text[], id text, place bigint, version bigint, attempt bigint, created_ms bigint,
    updated_ms bigint, due_ms bigint, replays bigint, state text, origin text, scope text, name text, key text,
    detail text, outcome text, body bytea
) LANGUAGE plpgsql {settings} AS $$
#variable_conflict use_column
DECLARE
    inserted text[]; updated text[]; told text[]; standing text[];
BEGIN
    IF patience_ms IS NOT NULL THEN -- none in a transaction of the caller's own
        PERFORM set_config('lock_timeout', patience_ms::text, true);
    END IF;
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF cardinality(new_id) > 0 THEN
        WITH put AS (
            INSERT INTO {schema}.operation AS o (id, scope, name, key, origin, state, version, attempt, created_ms,
                                                 updated_ms, due_ms, detail, outcome, body)
            SELECT * FROM unnest(new_id, new_scope, new_name, new_key, new_origin, new_state, new_version, new_attempt,
                                 new_created_ms, new_updated_ms, new_due_ms, new_detail, new_outcome, new_body)
            ON CONFLICT (id) DO NOTHING RETURNING o.id
        ) SELECT array_agg(put.id) INTO inserted FROM put;
    END IF;
    IF cardinality(old_id) > 0 THEN
        WITH put AS (
            UPDATE {schema}.operation AS o
            SET state = n.state, version = n.version, attempt = n.attempt, created_ms = n.created_ms,
                updated_ms = n.updated_ms, due_ms = n.due_ms, detail = n.detail, outcome = n.outcome, body = n.body,
                announced = o.watched OR o.state = 'done', watched = false
            FROM unnest(old_id, old_expected, old_state, old_version, old_attempt, old_created_ms, old_updated_ms,
                        old_due_ms, old_detail, old_outcome, old_body)
              AS n(id, expected, state, version, attempt, created_ms, updated_ms, due_ms, detail, outcome, body)
            WHERE o.id = n.id AND o.version = n.expected
            RETURNING o.id, o.announced
        ) SELECT array_agg(put.id), array_agg(put.id) FILTER (WHERE put.announced) INTO updated, told FROM put;
        IF told IS NOT NULL THEN
            PERFORM pg_notify('{channel}', t.id) FROM unnest(told) AS t(id);
        END IF;
    END IF;
    RETURN QUERY SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
        coalesce(inserted, '{}') || coalesce(updated, '{}'), NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::text,
        NULL::text, NULL::text, NULL::text, NULL::bytea;
    IF coalesce(cardinality(inserted), 0) + coalesce(cardinality(updated), 0)
            < cardinality(new_id) + cardinality(old_id) THEN
        standing := ARRAY(SELECT t.id FROM unnest(new_id || old_id) AS t(id)
                          EXCEPT SELECT t.id FROM unnest(inserted || updated) AS t(id) ORDER BY 1);
        IF again THEN
            UPDATE {schema}.operation AS o SET replays = o.replays WHERE o.id = ANY (standing);
        END IF;
        RETURN QUERY SELECT NULL::bigint, NULL::text[], o.id, o.place, o.version, o.attempt, o.created_ms,
            o.updated_ms, o.due_ms, o.replays, o.state, o.origin, o.scope, o.name, o.key, o.detail, o.outcome, o.body
            FROM {schema}.operation AS o WHERE o.id = ANY (standing);
    END IF;
END $$;

-- Deletes records with these versions. Returns the ids that were deleted.
CREATE FUNCTION {schema}.drop_1(patience_ms integer, old_id text[], old_expected bigint[])
RETURNS TABLE (id text) LANGUAGE plpgsql {settings} AS $$
#variable_conflict use_column
DECLARE
    deleted text[]; told text[];
BEGIN
    PERFORM set_config('lock_timeout', patience_ms::text, true);
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    WITH gone AS (
        DELETE FROM {schema}.operation AS o USING unnest(old_id, old_expected) AS n(id, expected)
        WHERE o.id = n.id AND o.version = n.expected
        RETURNING o.id, o.watched OR o.state = 'done' AS announce
    ) SELECT array_agg(gone.id), array_agg(gone.id) FILTER (WHERE gone.announce) INTO deleted, told FROM gone;
    IF told IS NOT NULL THEN
        PERFORM pg_notify('{channel}', t.id) FROM unnest(told) AS t(id);
    END IF;
    RETURN QUERY SELECT t.id FROM unnest(deleted) AS t(id);
END $$;

-- The records with these ids.
CREATE FUNCTION {schema}.load_1(wanted text[])
RETURNS SETOF {schema}.operation LANGUAGE plpgsql STABLE {settings} AS $$
BEGIN
    RETURN QUERY SELECT o.* FROM {schema}.operation AS o WHERE o.id = ANY (wanted);
END $$;

-- Requests a notification of the next change of these records. Returns the ids that still have this version. The
-- request need not survive a crash, so it does not wait for the disk.
CREATE FUNCTION {schema}.watch_1(patience_ms integer, old_id text[], old_seen bigint[])
RETURNS TABLE (id text) LANGUAGE plpgsql {settings} AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('lock_timeout', patience_ms::text, true), set_config('synchronous_commit', 'off', true);
    UPDATE {schema}.operation AS o SET watched = true FROM unnest(old_id, old_seen) AS n(id, seen)
        WHERE o.id = n.id AND o.version = n.seen AND NOT o.watched;
    RETURN QUERY SELECT o.id::text FROM unnest(old_id, old_seen) AS n(id, seen)
        JOIN {schema}.operation AS o ON o.id = n.id WHERE o.version = n.seen;
END $$;

-- Adds to the replay tallies. They may be lost, so this does not wait for the disk.
CREATE FUNCTION {schema}.tally_1(patience_ms integer, old_id text[], more bigint[])
RETURNS void LANGUAGE plpgsql {settings} AS $$
BEGIN
    PERFORM set_config('lock_timeout', patience_ms::text, true), set_config('synchronous_commit', 'off', true);
    UPDATE {schema}.operation AS o SET replays = o.replays + n.more FROM unnest(old_id, more) AS n(id, more)
        WHERE o.id = n.id;
END $$;
