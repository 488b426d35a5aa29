-- Notifications of changes of jobs, for clients that do not poll.

-- Subscribe, or renew a subscription. While it lasts, Joex notifies on the channel joex_jobs of changes of the jobs given to
-- joex.wait_for and, with events, on the joex.events_channel of all events. Returns true if the subscription goes on without a gap; false if it
-- begins now: it is new, or it was renewed too late, so that notifications may be missing and Joex has forgotten the jobs given to
-- joex.wait_for. When this has committed, a transaction below the joex.horizon may still change a job without a notification.
CREATE OR REPLACE FUNCTION joex.subscribe(
    name text,                          -- of the client: each has its own
    lasts interval,                     -- at most an hour: renew it well before
    events boolean DEFAULT true         -- no effect for roles that may not see all events
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_until timestamptz;
    v_shallow boolean;
BEGIN
    PERFORM joex_private.check_name('name', name);
    lasts := joex_private.in_seconds(lasts);
    IF lasts IS NULL OR lasts <= interval '0' THEN
        RAISE EXCEPTION 'lasts: expected more than zero; got %: to end a subscription, call joex.unsubscribe', lasts USING ERRCODE = '22023';
    END IF;
    -- (While somebody listens, all submissions and ends of all groups notify, which has its price.)
    IF lasts > interval '1 hour' THEN
        RAISE EXCEPTION 'lasts: expected at most an hour; got %: renew the subscription before it ends', lasts USING ERRCODE = '22023';
    END IF;
    IF pg_sequence_last_value('joex_private.roles_bound') IS DISTINCT FROM 1 AND NOT EXISTS (SELECT FROM joex_private.bounds('{view, submit}')) THEN
        RAISE EXCEPTION 'the role % is bound to no group or queue in which it may view or submit', session_user
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    events := coalesce(events, true) AND joex_private.may('{view}', NULL, NULL);
    SELECT s.until INTO v_until FROM joex_private.subscriber s WHERE s.name = joex_private.exact(name) FOR UPDATE;
    INSERT INTO joex_private.subscriber AS s (name, events, until) VALUES (name, events, clock_timestamp() + lasts)
    ON CONFLICT ON CONSTRAINT subscriber_pkey DO UPDATE SET until = excluded.until, events = excluded.events
    RETURNING joex_private.must_be_shallow(s.xmin) INTO v_shallow;
    RETURN coalesce(v_until - lasts / 10 > clock_timestamp(), false);   -- (the renewal commits a little later)
END $$;

-- Delete subscriptions that ended an hour ago, of the next hundred after p_since, with a thousand waits at most; returns where the next batch
-- begins: after that end and, where more waits are left, at that wait; null: nowhere. (Else each one would walk over the entries of all those
-- before, which an old snapshot keeps. Of more than a hundred that end in one microsecond the others are for the next time.) For the
-- maintenance of executors, which
-- commits at once: a client that comes back by its name waits for the end of a transaction that has deleted it, so joex.subscribe, by which
-- a tenant could keep one open, deletes none. (Where no executor lives they stay, as finished jobs do: nothing reads them.)
CREATE OR REPLACE FUNCTION joex_private.forget_subscriptions(
    INOUT p_since timestamptz, INOUT p_name text DEFAULT NULL, INOUT p_job uuid DEFAULT NULL
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ended CONSTANT timestamptz := clock_timestamp() - interval '1 hour';
    v_tids tid[];
    v_from timestamptz;
    v_upto timestamptz;
    v_names text[];
    v_waits tid[];
BEGIN
    SELECT array_agg(o.ctid), min(o.until), max(o.until) INTO v_tids, v_from, v_upto FROM (
        SELECT s.ctid, s.until FROM joex_private.subscriber s WHERE s.until > p_since AND s.until < v_ended ORDER BY s.until LIMIT 100) o;
    -- (SKIP LOCKED: a transaction that stays open after it has renewed or ended such a subscription would keep this from its
    -- end. Of the hundred alone: where a transaction keeps the rows of very many locked, each call would walk over all of them.)
    v_names := ARRAY(
        SELECT s.name FROM joex_private.subscriber s WHERE s.ctid = ANY (v_tids) AND s.until < v_ended
        ORDER BY s.name FOR UPDATE SKIP LOCKED);
    -- First the waits: to delete a subscriber deletes its waits too, however many there are, and does wait.
    -- (By a comparison of rows, which only the index of both columns serves.)
    SELECT array_agg(w.ctid), (array_agg(w.subscriber))[1000], (array_agg(w.job_id))[1000] INTO v_waits, p_name, p_job FROM (
        SELECT x.* FROM unnest(v_names) s(name) CROSS JOIN LATERAL (
            SELECT o.ctid, o.subscriber, o.job_id FROM joex_private.subscription o
            WHERE o.subscriber <= s.name AND (o.subscriber, o.job_id)
                  >= (s.name, CASE WHEN s.name = p_name THEN p_job ELSE '00000000-0000-0000-0000-000000000000' END)
            ORDER BY o.subscriber, o.job_id LIMIT 1000) x
        WHERE (s.name < p_name) IS NOT TRUE LIMIT 1000) w;
    DELETE FROM joex_private.subscription d WHERE d.ctid = ANY (ARRAY(
        SELECT x.ctid FROM joex_private.subscription x WHERE x.ctid = ANY (v_waits) FOR UPDATE SKIP LOCKED));
    IF p_name IS NOT NULL THEN
        p_since := v_from - interval '1 microsecond';   -- (the same hundred, and none of those deleted before)
        RETURN;
    END IF;
    -- (OFFSET 0: one probe for each.)
    DELETE FROM joex_private.subscriber d WHERE d.name = ANY (v_names)
        AND NOT EXISTS (SELECT FROM joex_private.subscription x WHERE x.subscriber = d.name OFFSET 0);
    p_since := CASE cardinality(v_tids) WHEN 100 THEN v_upto END;
END $$;

-- The channel of the events, for LISTEN. Its name differs from database to database and is secret, because every role that can connect may
-- listen, and the events name groups and tasks.
CREATE OR REPLACE FUNCTION joex.events_channel() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM joex_private.must_be_allowed('{view}', NULL, NULL);
    RETURN (SELECT d.events_channel FROM joex_private.this_database d);
END $$;

-- End a subscription, and its waits.
CREATE OR REPLACE FUNCTION joex.unsubscribe(name text) RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM joex_private.subscriber s WHERE s.name = joex_private.exact(unsubscribe.name)
    RETURNING joex_private.must_be_shallow(s.xmax) $$;

-- Add jobs to a subscription, unless that ended more than an hour ago.
CREATE OR REPLACE FUNCTION joex.wait_for(name text, ids uuid[]) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT joex_private.check_name('name', wait_for.name);
    WITH made AS (
        INSERT INTO joex_private.subscription AS s (job_id, subscriber) SELECT DISTINCT i.id, wait_for.name FROM unnest(ids) i(id)
        WHERE joex_private.visible('{view, submit}', i.id) IS NOT NULL
              -- (The maintenance deletes that. By the end alone, the snapshot of a transaction that began before a renewal would decide.)
              AND NOT EXISTS (SELECT FROM joex_private.subscriber o WHERE o.name = joex_private.exact(wait_for.name)
                                     AND o.until < clock_timestamp() - interval '1 hour')
        ON CONFLICT DO NOTHING RETURNING s.xmin AS by
    ) SELECT joex_private.must_be_shallow(made.by) FROM made LIMIT 1 $$;

-- The versions of jobs (a row's xmin is the transaction that wrote this version of it; a mere lock does not change it), and the oldest
-- transaction that is still open. One statement, so that the versions include all changes of the transactions before that one.
CREATE OR REPLACE FUNCTION joex_client.versions(
    p_ids uuid[], OUT oldest_xid bigint, OUT ids uuid[], OUT xmins bigint[], OUT states text[]
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, array_agg(j.id), array_agg(j.xmin::text::bigint), array_agg(j.state::text)
    INTO oldest_xid, ids, xmins, states FROM joex_private.job j
    WHERE j.id = ANY (p_ids) AND joex_private.visible('{view, submit}', j.id) IS NOT NULL;
END $$;

-- Remove jobs from a subscription.
CREATE OR REPLACE FUNCTION joex.wait_no_more(name text, ids uuid[]) RETURNS void LANGUAGE sql VOLATILE AS $$
    WITH gone AS (
        DELETE FROM joex_private.subscription s WHERE s.subscriber = joex_private.exact(wait_no_more.name) AND s.job_id = ANY (ids)
        RETURNING s.xmax AS by
    ) SELECT joex_private.must_be_shallow(gone.by) FROM gone LIMIT 1 $$;

-- A transaction id that is larger than that of each transaction that writes now. Call it in a transaction of its own: while
-- `pg_snapshot_xmin(pg_current_snapshot())` is below it, one of those transactions is still open.
CREATE OR REPLACE FUNCTION joex.horizon() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    -- (The end of a snapshot would not do: it is at most the id after the last committed one, and younger transactions may be open.)
    SELECT pg_current_xact_id()::text::bigint $$;
