-- Designed to be readable in psql: states and kinds are words, JSON is JSON text, times are milliseconds since 1970. Text
-- in braces is filled in when the ledger is created.

-- What is known about the ledger itself:
--   schema      the version of these tables
--   identity    JSON: the name, the epoch, the secret that keys hashes, the fence after a restore
--   ledger      the name and the epoch. A write compares them, with the table and the transaction that wrote the row
--   birth       that table and transaction. In a copy made with pg_dump they differ
--   clock       a moment of the ledger's time that has passed. It only advances
--   server      the system identifier and the highest timeline of the servers that have held the ledger
--   partitions  the number of partitions of the table below
--   stops       counts the stops, for transactions with an older snapshot

CREATE TABLE {schema}.meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- One row per record. JSON is stored as text, so that results are returned byte for byte, however deeply nested.
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
    kind       text COLLATE "C" NOT NULL,      -- operation, alias, event, guard, marker
    action     text COLLATE "C",               -- what it is an occurrence of, unless that is its own id
    number     bigint,                         -- of the occurrence, if the ledger counts them
    open_until bigint,                         -- until when an equal call may refer to it; for an action only
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
-- Operations are looked up by their keys.
CREATE INDEX operation_key_idx ON {schema}.operation (key);
-- Operations in progress or in doubt, which are always few.
CREATE INDEX operation_open_idx ON {schema}.operation (place) WHERE state IN ('staged', 'running', 'in_doubt');
-- Nearly all operations are done, and these are not in it.
CREATE INDEX operation_undone_idx ON {schema}.operation (place) WHERE state IN ('failed', 'cancelled');
-- Operations with a due time.
CREATE INDEX operation_due_idx ON {schema}.operation (due_ms, place) WHERE due_ms IS NOT NULL;

-- The occurrences of an action that are open, and their numbers. The first occurrence has the id of its action, so it is
-- in neither.
CREATE INDEX operation_occurrence_idx ON {schema}.operation (action, open_until)
    WHERE action IS NOT NULL AND open_until IS NOT NULL;
CREATE INDEX operation_number_idx ON {schema}.operation (action, number) WHERE number > 1;

-- The stopped scopes. Nearly always empty.
CREATE TABLE {schema}.stopped (
    scope text COLLATE "C" PRIMARY KEY,
    word  text NOT NULL
);
-- Counts the stops, for transactions with an older snapshot.
INSERT INTO {schema}.meta VALUES ('stops', '0');

-- The lock that a begin in this scope shares, and that a stop of it waits for. A stop of `a` also covers `a~…`.
CREATE FUNCTION {schema}.stop_slot(scope text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT pg_catalog.hashtext('{schema} ' || (pg_catalog.hashtext(pg_catalog.split_part(scope, '~', 1)) & 15))
$$;

-- After a TRUNCATE of its operations a ledger is no longer written, until an operator decides what to do about it. The
-- triggers also fire in a session that imports data (session_replication_role = replica).
CREATE FUNCTION {schema}.emptied() RETURNS trigger LANGUAGE plpgsql {settings} AS $$
BEGIN
    UPDATE {schema}.meta SET value = value || ' emptied' WHERE name = 'ledger' AND value NOT LIKE '% emptied';
    RETURN NULL;
END $$;
DO $do$
DECLARE
    part regclass;
BEGIN
    FOR part IN SELECT '{schema}.operation'::regclass
        UNION ALL SELECT inhrelid::regclass FROM pg_catalog.pg_inherits WHERE inhparent = '{schema}.operation'::regclass
    LOOP
        EXECUTE format('CREATE TRIGGER emptied AFTER TRUNCATE ON %s FOR EACH STATEMENT '
                       'EXECUTE FUNCTION {schema}.emptied()', part);
        EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER emptied', part);
    END LOOP;
END $do$;

-- Refuses a write to a ledger that is not the one that was opened.
CREATE FUNCTION {schema}.refuse(ledger text) RETURNS void LANGUAGE plpgsql {settings} AS $$
DECLARE
    stored text := (SELECT m.value FROM {schema}.meta AS m WHERE m.name = 'ledger');
BEGIN
    RAISE EXCEPTION '%', CASE
        WHEN stored IS NULL THEN 'it has no identity'
        WHEN stored LIKE '% emptied' THEN 'its operations were removed by TRUNCATE'
        WHEN starts_with(ledger, stored || ' ') THEN 'it is an older state or a copy of ' || stored
        ELSE 'it is ' || stored
    END USING ERRCODE = 'OW001';
END $$;

-- The functions contain no policy: they compare versions and notify listeners. They are in the database and not in
-- the program so that many changes are one statement, so that one statement is one transaction and one round trip,
-- and so that their plans survive a pooler. Rows are looked up by index whatever the statistics of a new table say.

-- Writes new records and new versions of existing ones. The first row returned has the time, the highest position and
-- the ids written. The following rows are the records that conflicted. `again` means that these changes were sent
-- before and the reply was lost: the records found are then flushed to disk, and to the standby, before they are
-- returned. `ledger` is the ledger that the caller has opened, and `seen` the highest position that it has seen: a
-- new record always gets a higher one. `clock` advances the ledger's time. `begin_id` are the records that begin
-- something, each with every scope whose barrier refuses it (`begin_scope`); `detail` of the first row returned has the
-- barriers that did, as JSON.
CREATE FUNCTION {schema}.swap(
    patience_ms integer, again boolean, ledger text, seen bigint, clock text,
    new_id text[], new_kind text[], new_action text[], new_number bigint[], new_open_until bigint[], new_scope text[],
    new_name text[], new_key text[], new_origin text[], new_state text[],
    new_version bigint[], new_attempt bigint[], new_created_ms bigint[], new_updated_ms bigint[], new_due_ms bigint[],
    new_detail text[], new_outcome text[], new_body bytea[],
    old_id text[], old_expected bigint[], old_open_until bigint[], old_state text[], old_version bigint[], old_attempt bigint[],
    old_created_ms bigint[], old_updated_ms bigint[], old_due_ms bigint[], old_detail text[], old_outcome text[],
    old_body bytea[], begin_id text[], begin_scope text[]
) RETURNS TABLE (
    now_ms bigint, newest bigint, written text[], id text, place bigint, version bigint, attempt bigint, created_ms bigint,
    updated_ms bigint, due_ms bigint, replays bigint, state text, origin text, scope text, name text, key text,
    detail text, outcome text, kind text, action text, number bigint, body bytea
) LANGUAGE plpgsql {settings} AS $$
#variable_conflict use_column
DECLARE
    inserted text[]; updated text[]; told text[]; standing text[]; lowest bigint; highest bigint;
    stopped text[]; barriers text;
BEGIN
    IF patience_ms IS NOT NULL THEN -- none in a transaction of the caller's own
        PERFORM set_config('lock_timeout', patience_ms::text, true);
    END IF;
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF cardinality(begin_id) > 0 THEN
        -- Held until the end of the transaction: a stop waits for transactions that did not see its barrier. In order,
        -- so that two batches and two stops do not block each other.
        PERFORM pg_advisory_xact_lock_shared({stop_lock}, l.slot) FROM (
            SELECT DISTINCT {schema}.stop_slot(b.scope) AS slot FROM unnest(begin_scope) AS b(scope) ORDER BY 1) AS l;
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            -- A snapshot that is older than a stop does not show its barrier: this fails then (40001).
            PERFORM FROM {schema}.meta AS m WHERE m.name = 'stops' FOR SHARE;
        END IF;
        SELECT array_agg(b.id),
               json_object_agg(b.id, json_build_object('scope', s.scope, 'word', s.word::json))::text
            INTO stopped, barriers
            FROM unnest(begin_id, begin_scope) AS b(id, scope) JOIN {schema}.stopped AS s ON s.scope = b.scope;
    END IF;
    IF cardinality(new_id) > 0 THEN
        WITH put AS (
            INSERT INTO {schema}.operation AS o (id, kind, action, number, open_until, scope, name, key, origin, state,
                                                 version, attempt, created_ms, updated_ms, due_ms, detail, outcome, body)
            SELECT * FROM unnest(new_id, new_kind, new_action, new_number, new_open_until, new_scope, new_name, new_key,
                                 new_origin, new_state, new_version, new_attempt, new_created_ms, new_updated_ms,
                                 new_due_ms, new_detail, new_outcome, new_body) AS n(id)
            WHERE stopped IS NULL OR n.id <> ALL (stopped)
            ON CONFLICT (id) DO NOTHING RETURNING o.id, o.place
        ) SELECT array_agg(put.id), min(put.place), max(put.place) INTO inserted, lowest, highest FROM put;
    END IF;
    IF cardinality(old_id) > 0 THEN
        WITH put AS (
            UPDATE {schema}.operation AS o
            SET state = n.state, version = n.version, attempt = n.attempt, created_ms = n.created_ms,
                updated_ms = n.updated_ms, due_ms = n.due_ms, detail = n.detail, outcome = n.outcome, body = n.body,
                open_until = n.open_until, announced = o.watched OR o.state = 'done', watched = false
            FROM unnest(old_id, old_expected, old_open_until, old_state, old_version, old_attempt, old_created_ms,
                        old_updated_ms, old_due_ms, old_detail, old_outcome, old_body)
              AS n(id, expected, open_until, state, version, attempt, created_ms, updated_ms, due_ms, detail, outcome, body)
            WHERE o.id = n.id AND o.version = n.expected AND (stopped IS NULL OR n.id <> ALL (stopped))
            RETURNING o.id, o.announced
        ) SELECT array_agg(put.id), array_agg(put.id) FILTER (WHERE put.announced) INTO updated, told FROM put;
        IF told IS NOT NULL THEN
            PERFORM pg_notify('{channel}', t.id) FROM unnest(told) AS t(id);
        END IF;
    END IF;
    -- The check comes after the writes: they hold a lock that TRUNCATE, DROP and a change of the identity wait for.
    IF lowest <= seen OR NOT EXISTS (
        SELECT FROM {schema}.meta AS m
        WHERE m.name = 'ledger' AND m.value || ' ' || m.tableoid::text || ' ' || m.xmin::text = ledger
    ) THEN
        PERFORM {schema}.refuse(ledger);
    END IF;
    IF clock IS NOT NULL THEN
        UPDATE {schema}.meta AS c SET value = clock WHERE c.ctid = (
            SELECT m.ctid FROM {schema}.meta AS m WHERE m.name = 'clock'
            AND coalesce(substring(m.value FROM '^[0-9]{1,18}')::bigint, 0) < substring(clock FROM '^[0-9]{1,18}')::bigint
            FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    RETURN QUERY SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, highest,
        coalesce(inserted, '{}') || coalesce(updated, '{}'), NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::text,
        NULL::text, barriers, NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::bytea;
    IF coalesce(cardinality(inserted), 0) + coalesce(cardinality(updated), 0)
            < cardinality(new_id) + cardinality(old_id) THEN
        standing := ARRAY(SELECT t.id FROM unnest(new_id || old_id) AS t(id)
                          EXCEPT SELECT t.id FROM unnest(inserted || updated) AS t(id) ORDER BY 1);
        IF again THEN
            UPDATE {schema}.operation AS o SET replays = o.replays WHERE o.id = ANY (standing);
        END IF;
        RETURN QUERY SELECT NULL::bigint, NULL::bigint, NULL::text[], o.id, o.place, o.version, o.attempt, o.created_ms,
            o.updated_ms, o.due_ms, o.replays, o.state, o.origin, o.scope, o.name, o.key, o.detail, o.outcome, o.kind,
            o.action, o.number, o.body
            FROM {schema}.operation AS o WHERE o.id = ANY (standing);
    END IF;
END $$;

-- Deletes records with these versions. Returns the ids that were deleted.
CREATE FUNCTION {schema}.remove(patience_ms integer, ledger text, old_id text[], old_expected bigint[])
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
    IF NOT EXISTS (
        SELECT FROM {schema}.meta AS m
        WHERE m.name = 'ledger' AND m.value || ' ' || m.tableoid::text || ' ' || m.xmin::text = ledger
    ) THEN
        PERFORM {schema}.refuse(ledger);
    END IF;
    IF told IS NOT NULL THEN
        PERFORM pg_notify('{channel}', t.id) FROM unnest(told) AS t(id);
    END IF;
    RETURN QUERY SELECT t.id FROM unnest(deleted) AS t(id);
END $$;

-- The records with these ids.
CREATE FUNCTION {schema}.load(wanted text[])
RETURNS SETOF {schema}.operation LANGUAGE plpgsql STABLE {settings} AS $$
BEGIN
    RETURN QUERY SELECT o.* FROM {schema}.operation AS o WHERE o.id = ANY (wanted);
END $$;

-- The occurrences of an action that may be open, and the newest.
CREATE FUNCTION {schema}.occurrences(wanted text, now_ms bigint, most bigint)
RETURNS SETOF {schema}.operation LANGUAGE plpgsql STABLE {settings} AS $$
BEGIN
    RETURN QUERY SELECT o.* FROM {schema}.operation AS o WHERE o.id = wanted
        UNION ALL (SELECT o.* FROM {schema}.operation AS o WHERE o.action = wanted AND o.open_until > now_ms LIMIT most)
        UNION ALL (SELECT o.* FROM {schema}.operation AS o WHERE o.action = wanted AND o.number > 1
                   ORDER BY o.number DESC LIMIT 1);
END $$;

-- Requests a notification of the next change of these records. Returns the ids that still have this version. The
-- request need not survive a crash, so it does not wait for the disk.
CREATE FUNCTION {schema}.watch(patience_ms integer, old_id text[], old_seen bigint[])
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
CREATE FUNCTION {schema}.tally(patience_ms integer, old_id text[], more bigint[])
RETURNS void LANGUAGE plpgsql {settings} AS $$
BEGIN
    PERFORM set_config('lock_timeout', patience_ms::text, true), set_config('synchronous_commit', 'off', true);
    UPDATE {schema}.operation AS o SET replays = o.replays + n.more FROM unnest(old_id, more) AS n(id, more)
        WHERE o.id = n.id;
END $$;
