-- What an executor writes about its runs. Every write matches the job's id and the run's lock id, so that a run that lost
-- its job (reclaimed, given to another) changes nothing: its answer is worker_conflict.

-- The code of these runs has started: scheduled -> running. A run finishes correctly without this mark too (a short one is
-- over before the mark is written). Rows that somebody else has locked are left to the finish.
CREATE OR REPLACE FUNCTION joex.start_many(ids uuid[], locks uuid[], ages float8[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    UPDATE joex.job j SET state = 'running', attempt = j.attempt + 1,
           started_at = clock_timestamp() - make_interval(secs => s.age)
    FROM (SELECT k.id, g.age FROM unnest(ids, locks, ages) AS g(id, lock_id, age)
          JOIN joex.job k ON k.id = g.id AND k.lock_id = g.lock_id AND k.state = 'scheduled'
          FOR UPDATE OF k SKIP LOCKED) s
    WHERE j.id = s.id;
END $$;

-- End many runs. states: success, failed, cancelled; stuck (retry after delays[i] seconds); waiting (given back: the run
-- does not count). ages: seconds since the code started, null where it has not. A job with a cancel request ends
-- cancelled, whatever its run says. Returns a row for each run that was not ended as said:
--   canceled (a cancel request: it is cancelled now), already (this very run had ended it, in the task's own transaction),
--   worker_conflict (the job is not this run's any more), locked (only with skip_locked: somebody holds the row; say it again).
CREATE OR REPLACE FUNCTION joex.finish_many(
    ids uuid[], locks uuid[], states text[], results jsonb[], messages text[], errors text[], delays float8[],
    ages float8[], skip_locked boolean DEFAULT false
) RETURNS TABLE (nr bigint, answer text) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '500ms' AS $$
#variable_conflict use_column
DECLARE
    v_free uuid[];
    v_queue record;
    v_now timestamptz := clock_timestamp();
BEGIN
    IF skip_locked THEN
        SELECT array_agg(k.id) INTO v_free FROM (
            SELECT j.id FROM joex.job j WHERE j.id = ANY (ids) FOR UPDATE SKIP LOCKED) k;
    END IF;
    RETURN QUERY WITH given AS MATERIALIZED (
        SELECT * FROM unnest(ids, locks, states, results, messages, errors, delays, ages) WITH ORDINALITY
            AS g(id, lock_id, state, result, message, error, delay, age, nr)
    ), ended AS (
        UPDATE joex.job j SET
            executor_id = NULL,
            state = CASE WHEN j.cancel_requested THEN 'cancelled' ELSE g.state END::joex.job_state,
            finished_at = CASE WHEN j.cancel_requested OR g.state NOT IN ('stuck', 'waiting') THEN v_now END,
            lane = CASE WHEN g.state = 'waiting' AND NOT j.cancel_requested THEN joex.lane(j.priority) END,
            due_at = CASE WHEN g.state = 'stuck' AND NOT j.cancel_requested
                          THEN v_now + make_interval(secs => coalesce(g.delay, 0)) END,
            runnable_since = v_now + make_interval(secs => coalesce(g.delay, 0)),
            attempt = j.attempt + CASE WHEN g.state = 'waiting' THEN 0 ELSE 1 END
                                - CASE WHEN j.state = 'running' THEN 1 ELSE 0 END,
            failures = j.failures + CASE WHEN g.state IN ('stuck', 'failed') THEN 1 ELSE 0 END,
            started_at = CASE WHEN j.state = 'running' THEN j.started_at
                              ELSE v_now - make_interval(secs => g.age) END,
            progress = CASE WHEN g.state = 'success' THEN 100 ELSE j.progress END,
            result = g.result, message = g.message, error = coalesce(g.error, j.error)
        FROM given g
        -- (the state, not the executor: that would invite the planner to the index of all held jobs)
        WHERE j.id = g.id AND j.lock_id = g.lock_id AND j.state IN ('scheduled', 'running')
              AND (v_free IS NULL AND NOT skip_locked OR j.id = ANY (v_free))
        RETURNING g.nr, j.cancel_requested
    )
    SELECT g.nr, CASE
        WHEN e.cancel_requested THEN 'canceled'
        WHEN skip_locked AND NOT coalesce(g.id = ANY (v_free), false)
             AND EXISTS (SELECT FROM joex.job j WHERE j.id = g.id) THEN 'locked'
        WHEN EXISTS (SELECT FROM joex.job j WHERE j.id = g.id AND j.lock_id = g.lock_id AND j.executor_id IS NULL)
             THEN 'already'
        ELSE 'worker_conflict' END
    FROM given g LEFT JOIN ended e USING (nr) WHERE e.nr IS NULL OR e.cancel_requested;
    IF 'waiting' = ANY (states) OR 'stuck' = ANY (states) THEN
        -- Given back, for others to take; or to be tried again, at a time that a sleeper must learn.
        FOR v_queue IN SELECT j.queue AS name, count(*) AS jobs FROM joex.job j
                       WHERE j.id = ANY (ids) AND (j.lane IS NOT NULL OR j.due_at IS NOT NULL) GROUP BY j.queue LOOP
            PERFORM joex.wake(v_queue.name, v_queue.jobs);
        END LOOP;
    END IF;
END $$;

-- End one run, inside the transaction of the task's own writes: they and the job's end commit together, or not at all.
-- Answers ok, worker_conflict (the job is not this run's any more) or canceled (a cancel request; the job goes on to
-- be cancelled by its executor). On the two latter the caller must roll back.
CREATE OR REPLACE FUNCTION joex.finish(
    id uuid, lock_id uuid, result jsonb DEFAULT NULL, message text DEFAULT NULL, state text DEFAULT 'success',
    error text DEFAULT NULL, delay interval DEFAULT NULL
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_cancel boolean;
BEGIN
    SELECT j.cancel_requested INTO v_cancel FROM joex.job j
    WHERE j.id = id AND j.lock_id = lock_id AND j.state IN ('scheduled', 'running') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'worker_conflict';
    ELSIF v_cancel THEN
        RETURN 'canceled';
    END IF;
    PERFORM joex.finish_many(ARRAY[id], ARRAY[lock_id], ARRAY[state], ARRAY[result], ARRAY[message], ARRAY[error],
                             ARRAY[extract(epoch FROM delay)::float8], ARRAY[0::float8]);
    RETURN 'ok';
END $$;

-- Write what runs say meanwhile: the latest progress of each, and log lines in their order. Lines that come after the
-- run's end belong to it still; those of a run that lost its job are dropped. Returns how many lines were dropped so.
CREATE OR REPLACE FUNCTION joex.note_many(
    ids uuid[], locks uuid[], attempts integer[], ages float8[], levels text[], lines text[],
    progress_ids uuid[], progress_locks uuid[], progress smallint[], progress_messages text[]
) RETURNS bigint LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    v_kept bigint;
BEGIN
    UPDATE joex.job j SET progress = p.percent, progress_message = p.message
    FROM (SELECT k.id, g.percent, g.message
          FROM unnest(progress_ids, progress_locks, progress, progress_messages) AS g(id, lock_id, percent, message)
          JOIN joex.job k ON k.id = g.id AND k.lock_id = g.lock_id AND k.state IN ('scheduled', 'running')
          FOR UPDATE OF k SKIP LOCKED) p
    WHERE j.id = p.id;
    INSERT INTO joex.job_log (job_id, attempt, at, level, message)
    SELECT g.id, g.attempt, clock_timestamp() - make_interval(secs => g.age), g.level, g.line
    FROM unnest(ids, locks, attempts, ages, levels, lines) WITH ORDINALITY
         AS g(id, lock_id, attempt, age, level, line, nr)
    JOIN joex.job j ON j.id = g.id AND j.lock_id = g.lock_id
    ORDER BY g.nr;
    GET DIAGNOSTICS v_kept = ROW_COUNT;
    RETURN coalesce(cardinality(ids), 0) - v_kept;
END $$;
