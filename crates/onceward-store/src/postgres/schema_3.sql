-- Version 3: a scope can be stopped. The write that begins an attempt checks it.

-- The stopped scopes. Nearly always empty.
CREATE TABLE {schema}.stopped (
    scope    text COLLATE "C" PRIMARY KEY,
    since_ms bigint NOT NULL,
    reason   text
);
-- Counts the stops, for transactions with an older snapshot.
INSERT INTO {schema}.meta VALUES ('stops', '0');

-- The lock that a begin in this scope shares, and that a stop of it waits for. A stop of `a` also covers `a~…`.
CREATE FUNCTION {schema}.stop_slot_3(scope text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT pg_catalog.hashtext('{schema} ' || (pg_catalog.hashtext(pg_catalog.split_part(scope, '~', 1)) & 15))
$$;

-- Programs of version 2 that have the ledger open get an error that says why they can no longer write.
DO $do$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT p.oid, p.proname FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = '{schema}'::regnamespace AND p.proname = 'swap_2'
    LOOP
        EXECUTE format(
            'CREATE OR REPLACE FUNCTION {schema}.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', old.proname,
            pg_catalog.pg_get_function_arguments(old.oid), pg_catalog.pg_get_function_result(old.oid),
            $body$BEGIN
                RAISE EXCEPTION 'a newer version of Onceward has migrated this ledger; nothing was written, use that version'
                USING ERRCODE = 'OW002';
            END$body$);
    END LOOP;
END $do$;

-- Writes new records and new versions of existing ones. The first row returned has the time, the highest position and
-- the ids written. The following rows are the records that conflicted. `again` means that these changes were sent
-- before and the reply was lost: the records found are then flushed to disk, and to the standby, before they are
-- returned. `ledger` is the ledger that the caller has opened, and `seen` the highest position that it has seen: a
-- new record always gets a higher one. `clock` advances the ledger's time. `begin_id` are the records that begin
-- something, each with every scope whose barrier refuses it (`begin_scope`); `detail` of the first row returned has the
-- barriers that did, as JSON.
CREATE FUNCTION {schema}.swap_3(
    patience_ms integer, again boolean, ledger text, seen bigint, clock text,
    new_id text[], new_scope text[], new_name text[], new_key text[], new_origin text[], new_state text[],
    new_version bigint[], new_attempt bigint[], new_created_ms bigint[], new_updated_ms bigint[], new_due_ms bigint[],
    new_detail text[], new_outcome text[], new_body bytea[],
    old_id text[], old_expected bigint[], old_state text[], old_version bigint[], old_attempt bigint[],
    old_created_ms bigint[], old_updated_ms bigint[], old_due_ms bigint[], old_detail text[], old_outcome text[],
    old_body bytea[], begin_id text[], begin_scope text[]
) RETURNS TABLE (
    now_ms bigint, newest bigint, written text[], id text, place bigint, version bigint, attempt bigint, created_ms bigint,
    updated_ms bigint, due_ms bigint, replays bigint, state text, origin text, scope text, name text, key text,
    detail text, outcome text, body bytea
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
            SELECT DISTINCT {schema}.stop_slot_3(b.scope) AS slot FROM unnest(begin_scope) AS b(scope) ORDER BY 1) AS l;
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            -- A snapshot that is older than a stop does not show its barrier: this fails then (40001).
            PERFORM FROM {schema}.meta AS m WHERE m.name = 'stops' FOR SHARE;
        END IF;
        SELECT array_agg(b.id), json_object_agg(b.id, json_build_object(
                'scope', s.scope, 'since_ms', s.since_ms, 'reason', s.reason))::text
            INTO stopped, barriers
            FROM unnest(begin_id, begin_scope) AS b(id, scope) JOIN {schema}.stopped AS s ON s.scope = b.scope;
    END IF;
    IF cardinality(new_id) > 0 THEN
        WITH put AS (
            INSERT INTO {schema}.operation AS o (id, scope, name, key, origin, state, version, attempt, created_ms,
                                                 updated_ms, due_ms, detail, outcome, body)
            SELECT * FROM unnest(new_id, new_scope, new_name, new_key, new_origin, new_state, new_version, new_attempt,
                                 new_created_ms, new_updated_ms, new_due_ms, new_detail, new_outcome, new_body) AS n(id)
            WHERE stopped IS NULL OR n.id <> ALL (stopped)
            ON CONFLICT (id) DO NOTHING RETURNING o.id, o.place
        ) SELECT array_agg(put.id), min(put.place), max(put.place) INTO inserted, lowest, highest FROM put;
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
        PERFORM {schema}.refuse_2(ledger);
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
        NULL::text, barriers, NULL::text, NULL::bytea;
    IF coalesce(cardinality(inserted), 0) + coalesce(cardinality(updated), 0)
            < cardinality(new_id) + cardinality(old_id) THEN
        standing := ARRAY(SELECT t.id FROM unnest(new_id || old_id) AS t(id)
                          EXCEPT SELECT t.id FROM unnest(inserted || updated) AS t(id) ORDER BY 1);
        IF again THEN
            UPDATE {schema}.operation AS o SET replays = o.replays WHERE o.id = ANY (standing);
        END IF;
        RETURN QUERY SELECT NULL::bigint, NULL::bigint, NULL::text[], o.id, o.place, o.version, o.attempt, o.created_ms,
            o.updated_ms, o.due_ms, o.replays, o.state, o.origin, o.scope, o.name, o.key, o.detail, o.outcome, o.body
            FROM {schema}.operation AS o WHERE o.id = ANY (standing);
    END IF;
END $$;
