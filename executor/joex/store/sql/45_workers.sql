-- Workers that are no executors: programs in any language that accept jobs, report, and finish them. Nobody registers; what
-- frees the job of a worker that has died is the timeout of its task.

-- The next jobs of a queue for a worker, at most p_jobs, and none whose rank is above p_most: chosen as executors' jobs are (see
-- take), and running from now on. The worker must report (joex.update) within the timeout of the task; where none is set,
-- within 60 seconds.
CREATE OR REPLACE FUNCTION joex_private.accept(
    p_queue text, p_jobs integer DEFAULT 1, p_worker text DEFAULT 'worker', p_most bytea DEFAULT joex_private.highest_rank(),
    p_high integer DEFAULT 4, p_low integer DEFAULT 1
) RETURNS SETOF joex_private.job LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids uuid[];
BEGIN
    -- Where no executor does so; and no more than are taken, for what this transaction has written is nobody else's until it ends.
    PERFORM joex_private.recover_overdue(NULL, ARRAY[p_queue], p_jobs);
    SELECT array_agg(t.id) INTO v_ids FROM joex_private.take(0, ARRAY[p_queue], p_jobs, p_high, p_low, p_most, p_worker) t;
    RETURN QUERY
    UPDATE joex_private.job j SET state = 'running', attempt = j.attempt + 1, started_at = j.scheduled_at,
           renew_by = CASE WHEN j.overdue_at IS NULL THEN interval '60 seconds' ELSE j.renew_by END,
           overdue_at = coalesce(j.overdue_at, clock_timestamp() + interval '60 seconds')
    FROM unnest(v_ids) WITH ORDINALITY AS t(id, nr) WHERE j.id = t.id RETURNING j.*;
    PERFORM joex_private.announce('job-started', v_ids);
END $$;

-- What a worker must know that waits for work: the seconds until a job of the queue is due, or a run in it overdue (null: there
-- is none), and the oldest transaction id that is open (see joex_private.sleep_state).
CREATE OR REPLACE FUNCTION joex_private.accept_state(p_queue text) RETURNS TABLE (next_due float8, oldest_xid bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY SELECT least(l.next_due, extract(epoch FROM CASE
        WHEN joex_private.floors_are_on() THEN (
            SELECT min(h.overdue_at) FROM joex_private.by_floors(true) h WHERE h.queue = p_queue)
        ELSE (
            SELECT j.overdue_at FROM joex_private.job j
            WHERE j.queue = p_queue AND j.overdue_at IS NOT NULL ORDER BY j.overdue_at LIMIT 1)
        END - clock_timestamp())::float8), l.oldest_xid
    FROM joex_private.sleep_state(ARRAY[p_queue]) l;
END $$;

-- Be told, for so long (a length of zero: not any more, in any queue), of each job of this queue that comes: on the channel joex_wake. When this
-- has committed, a transaction below the joex.horizon may still have submitted a job without seeing it.
CREATE OR REPLACE FUNCTION joex_private.watch_for_workers(p_name text, p_queue text, p_for interval) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM joex_private.watch w WHERE w.name <> p_name AND w.until < clock_timestamp() - interval '1 hour';
    IF p_for <= interval '0' THEN
        DELETE FROM joex_private.watch w WHERE w.name = p_name;
    ELSE
        INSERT INTO joex_private.watch AS w (queue, name, until, for_workers)
        VALUES (p_queue, p_name, clock_timestamp() + p_for, true)
        ON CONFLICT (queue, name) DO UPDATE SET until = excluded.until;
    END IF;
END $$;

-- How long a run of this task may go without a report (progress is one) before it is put back, and others may run the job: its
-- activity timeout; or, p_renewable false, how long it may take in all: its visibility timeout. Null: no limit (for a worker
-- that is no executor, 60 seconds without a report). It holds for runs that begin from now on.
CREATE OR REPLACE FUNCTION joex_private.set_timeout(p_task text, p_timeout interval, p_renewable boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF p_timeout IS NULL THEN
        DELETE FROM joex_private.task_timeout t WHERE t.task = p_task;
    ELSE
        INSERT INTO joex_private.task_timeout AS t (task, timeout, renewable) VALUES (p_task, p_timeout, p_renewable)
        ON CONFLICT (task) DO UPDATE SET timeout = excluded.timeout, renewable = excluded.renewable;
    END IF;
END $$;
