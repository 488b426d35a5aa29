-- Workers: programs in any language that accept jobs, report, and finish them. A worker does not register; the timeout of the task frees
-- the job of a worker that has died.

-- Whether workers leave overdue runs to executors: while floors are on, a search reads all held jobs, and an executor has ended one within the
-- last minute. (That it has claimed one says nothing: its searches may all fail.)
CREATE OR REPLACE FUNCTION joex_private.leaves_overdue() RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT joex_private.floors_are_on() AND coalesce(
        abs(pg_sequence_last_value('joex_private.overdue_searches') - extract(epoch FROM clock_timestamp()) * 1000000) < 60000000, false) $$;

-- Accept the next jobs of a queue for a worker, at most p_jobs, and none whose rank is above p_most. A take chooses them, as for an
-- executor; they are running from now on. The worker must report (joex.update) within the timeout of the task; if the task has none,
-- within 60 seconds.
CREATE OR REPLACE FUNCTION joex_client.accept(
    p_queue text, p_jobs integer DEFAULT 1, p_worker text DEFAULT 'worker', p_most bytea DEFAULT joex_client.highest_rank(),
    p_high integer DEFAULT 4, p_low integer DEFAULT 1
) RETURNS SETOF joex_private.job LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids uuid[];
BEGIN
    PERFORM joex_private.must_be_allowed('{work}', p_queue, NULL), joex_private.check_name('worker', p_worker);
    IF p_jobs IS NULL OR p_jobs NOT BETWEEN 0 AND 10000 THEN
        RAISE EXCEPTION 'jobs: expected 0 to 10000; got %', coalesce(p_jobs::text, 'NULL') USING ERRCODE = '22023';
    END IF;
    -- There may be no executor that does this. At most p_jobs, because other transactions can't take these jobs before this one ends.
    IF NOT joex_private.leaves_overdue() THEN
        PERFORM joex_private.recover_overdue(ARRAY[p_queue], p_jobs);
    END IF;
    SELECT array_agg(t.id) INTO v_ids FROM joex_private.take(0, ARRAY[p_queue], p_jobs, p_high, p_low, p_most, p_worker) t;
    RETURN QUERY
    UPDATE joex_private.job j SET state = 'running', attempt = j.attempt + 1, started_at = j.scheduled_at,
           renew_by = CASE WHEN j.overdue_at IS NULL THEN interval '60 seconds' ELSE j.renew_by END,
           overdue_at = coalesce(j.overdue_at, clock_timestamp() + interval '60 seconds')
    FROM unnest(v_ids) WITH ORDINALITY AS t(id, nr) WHERE j.id = t.id RETURNING j.*;
    -- (Without jobs too: a take may have promoted some.)
    PERFORM joex_private.must_be_shallow((SELECT j.xmin FROM joex_private.job j WHERE j.id = v_ids[1]));
    PERFORM joex_private.announce('job-started', v_ids);
END $$;

-- The job whose latest run has this lock id, by its type and key, with what decides about a retry; no row: there is none.
CREATE OR REPLACE FUNCTION joex_client.run_of(p_task text, p_key bytea, p_lock_id uuid)
RETURNS TABLE (id uuid, failures integer, retries integer) LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT j.id, j.failures, j.retries::integer FROM joex_private.job j
                 WHERE j.id = joex_client.find(p_task, p_key) AND j.lock_id = p_lock_id;
END $$;

-- What a worker must know before it waits for work: the seconds until a job of the queue is due, or a run in it overdue (null: there is
-- none; a minute where the worker leaves overdue runs to executors, because these may have ended by then), and the oldest open transaction
-- id (see sleep_state).
CREATE OR REPLACE FUNCTION joex_client.accept_state(p_queue text) RETURNS TABLE (next_due float8, oldest_xid bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM joex_private.must_be_allowed('{work}', p_queue, NULL);
    RETURN QUERY SELECT least(l.next_due, extract(epoch FROM CASE
        WHEN joex_private.leaves_overdue() THEN clock_timestamp() + interval '60 seconds'
        WHEN joex_private.floors_are_on() THEN (
            SELECT min(h.overdue_at) FROM joex_private.by_floors(true) h WHERE h.queue = p_queue)
        ELSE (
            SELECT j.overdue_at FROM joex_private.job j
            WHERE j.queue = p_queue AND j.overdue_at IS NOT NULL ORDER BY j.overdue_at LIMIT 1)
        END - clock_timestamp())::float8), l.oldest_xid
    FROM joex_private.sleep_state(ARRAY[p_queue]) l;
END $$;

-- Delete watches that ended an hour ago, of the next thousand after this end, except those of this name; returns where the next batch begins,
-- null: nowhere, as forget_subscriptions does. For operators and the maintenance
-- of executors, which commit at once: one that comes back by the name of a deleted watch waits for the end of that transaction, so no
-- function of a tenant deletes the watches of others. (SKIP LOCKED: a transaction that stays open after it
-- has renewed such a row would make all operators wait. Of the thousand alone: where it keeps very many rows locked,
-- each call would walk over all of them.)
CREATE OR REPLACE FUNCTION joex_private.forget_watches(p_except text, p_since timestamptz) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ended CONSTANT timestamptz := clock_timestamp() - interval '1 hour';
    v_tids tid[];
    v_upto timestamptz;
BEGIN
    SELECT array_agg(o.ctid), max(o.until) INTO v_tids, v_upto FROM (
        SELECT w.ctid, w.until FROM joex_private.watch w WHERE w.until > p_since AND w.until < v_ended ORDER BY w.until LIMIT 1000) o;
    DELETE FROM joex_private.watch d WHERE d.ctid = ANY (ARRAY(
        SELECT w.ctid FROM joex_private.watch w
        WHERE w.ctid = ANY (v_tids) AND w.until < v_ended AND w.name <> p_except FOR UPDATE SKIP LOCKED));
    RETURN CASE cardinality(v_tids) WHEN 1000 THEN v_upto END;
END $$;

-- Subscribe a worker, for p_for, an hour at most, to notifications of new jobs of this queue on the channel joex_wake (zero: end the
-- subscriptions to all queues that the caller may use). When this has committed, a transaction below the joex.horizon may still submit a
-- job without a notification.
CREATE OR REPLACE FUNCTION joex_client.watch_for_workers(p_name text, p_queue text, p_for interval) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_by xid;
BEGIN
    p_for := joex_private.in_seconds(p_for);
    PERFORM joex_private.exact(p_name);
    IF p_for <= interval '0' THEN
        DELETE FROM joex_private.watch w
        WHERE w.name = p_name AND w.for_workers AND joex_private.may('{work}', w.queue, NULL);
    ELSE
        PERFORM joex_private.must_be_allowed('{work}', p_queue, NULL);
        PERFORM joex_private.check_name('name', p_name), joex_private.check_name('queue', p_queue);
        INSERT INTO joex_private.watch AS w (queue, name, until, for_workers)
        VALUES (p_queue, p_name, clock_timestamp() + least(p_for, interval '1 hour'), true)
        ON CONFLICT (queue, name, for_workers) DO UPDATE SET until = excluded.until RETURNING w.xmin INTO v_by;
    END IF;
    PERFORM joex_private.must_be_shallow(v_by);
END $$;

-- Set how long a run of this task may go without a report (progress is one) before its job is put back for others to run: the activity
-- timeout; or, with p_renewable false, how long a run may last: the visibility timeout. Null: no limit for executors, 60 seconds
-- without a report for workers. It applies to runs that begin from now on.
CREATE OR REPLACE FUNCTION joex_client.set_timeout(p_task text, p_timeout interval, p_renewable boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM joex_private.must_be_allowed('{operate}', NULL, NULL), joex_private.check_name('task', joex_private.exact(p_task));
    p_timeout := joex_private.in_seconds(p_timeout);
    PERFORM joex_private.must_hold('timeout: more than zero, at most 100 years',
                                   coalesce(p_timeout > interval '0' AND p_timeout <= interval '36525 days', true));
    IF p_timeout IS NULL THEN
        DELETE FROM joex_private.task_timeout t WHERE t.task = p_task;
    ELSE
        INSERT INTO joex_private.task_timeout AS t (task, timeout, renewable) VALUES (p_task, p_timeout, coalesce(p_renewable, true))
        ON CONFLICT (task) DO UPDATE SET timeout = excluded.timeout, renewable = excluded.renewable;
    END IF;
    PERFORM joex_private.note_act('set_timeout', p_task, p_detail => jsonb_build_object('timeout', p_timeout, 'renewable', p_renewable));
END $$;
