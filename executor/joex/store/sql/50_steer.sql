-- What people and programs say about a job from outside.

-- Cancel a job. A job that nobody holds is cancelled now (answer: cancelled); one that an executor holds gets a cancel
-- request, and its executor is told (answer: requested). Else: finished, or not_found.
CREATE OR REPLACE FUNCTION joex.cancel(id uuid) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_executor integer;
BEGIN
    -- One statement: where a taker holds the row, this waits and then judges what the taker has made of it.
    UPDATE joex_private.job j SET
        cancel_requested = true, resubmit_requested = false, lane = NULL, due_at = NULL,
        state = CASE WHEN j.executor_id IS NULL THEN 'cancelled' ELSE j.state END,
        finished_at = CASE WHEN j.executor_id IS NULL THEN clock_timestamp() END
    WHERE j.id = id AND j.finished_at IS NULL RETURNING j.executor_id INTO v_executor;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM joex_private.job j WHERE j.id = id) THEN 'finished' ELSE 'not_found' END;
    ELSIF v_executor IS NULL THEN
        PERFORM joex_private.announce('job-finished', ARRAY[id]);
        RETURN 'cancelled';
    END IF;
    PERFORM joex_private.notify_executor(v_executor, 'cancel', id);
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN 'requested';
END $$;

-- Change the priority of a job that is waiting: true. Else false. (A stuck one runs before all priorities in any case.)
CREATE OR REPLACE FUNCTION joex.set_priority(id uuid, priority text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_priority joex_private.job_priority := joex_private.priority_of(priority);
BEGIN
    IF priority IS NULL THEN
        RAISE EXCEPTION 'priority: expected ''high'' or ''low''; got NULL' USING ERRCODE = '22004';
    END IF;
    UPDATE joex_private.job j SET priority = v_priority, lane = CASE WHEN j.lane > 0 THEN joex_private.lane(v_priority) END
    WHERE j.id = id AND j.state = 'waiting';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN true;
END $$;

-- Replace the arguments of a job that is waiting: true. Else false: a run has, or had, those that it was given.
CREATE OR REPLACE FUNCTION joex.set_args(id uuid, args jsonb) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    IF args IS NULL THEN
        RAISE EXCEPTION 'args: must be a JSON object; got NULL' USING ERRCODE = '22004';
    ELSIF joex_private.is_large(args) THEN
        PERFORM joex_private.check_size('args', args);
    END IF;
    -- One statement: where a taker holds the row, this waits and then judges what the taker has made of it.
    UPDATE joex_private.job j SET args = args WHERE j.id = id AND j.state = 'waiting';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN true;
END $$;

-- Run again a job that failed or was cancelled, with all its retries anew; a stuck one at once. True where it was one.
CREATE OR REPLACE FUNCTION joex.retry(id uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_queue text;
BEGIN
    UPDATE joex_private.job j SET
        lane = CASE WHEN j.state = 'stuck' THEN 0 ELSE joex_private.lane(j.priority) END,
        state = CASE WHEN j.state = 'stuck' THEN 'stuck' ELSE 'waiting' END::joex_private.job_state,
        due_at = NULL, finished_at = NULL, runnable_since = clock_timestamp(), failures = 0, losses = 0, suspect = false,
        cancel_requested = false
    WHERE j.id = id AND j.state IN ('failed', 'cancelled', 'stuck') RETURNING j.queue INTO v_queue;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM joex_private.wake(v_queue, 1);
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN true;
END $$;

-- Run a job once more, whatever its state: a finished one waits again, with all its retries anew, at the end of the line; one
-- that waits for a retry may run now; one that runs goes round once more when its run ends. Answers ok or not_found.
-- A run says the same of its own job with joex.update(..., resubmit => true).
CREATE OR REPLACE FUNCTION joex_private.resubmit(id uuid) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_job record;
BEGIN
    SELECT j.queue, j.state, j.executor_id, j.due_at, j.finished_at, j.remove_requested INTO v_job
    FROM joex_private.job j WHERE j.id = id FOR UPDATE;
    IF NOT FOUND OR v_job.remove_requested THEN
        RETURN 'not_found';
    ELSIF v_job.executor_id IS NOT NULL THEN
        UPDATE joex_private.job j SET resubmit_requested = true WHERE j.id = id;
    ELSIF v_job.finished_at IS NOT NULL OR v_job.due_at IS NOT NULL THEN
        -- (That its run has succeeded is told by its row, until now: see joex.log.)
        INSERT INTO joex_private.job_log (job_id, attempt, at, level, message)
        SELECT id, s.attempt, s.at, s.level, s.message FROM joex_private.log_of_success(id) s;
        UPDATE joex_private.job j SET
            state = CASE WHEN v_job.state = 'stuck' THEN 'stuck' ELSE 'waiting' END::joex_private.job_state,
            lane = CASE WHEN v_job.state = 'stuck' THEN 0 ELSE joex_private.lane(j.priority) END,
            seq = nextval('joex_private.job_seq_seq'), due_at = NULL, finished_at = NULL, runnable_since = clock_timestamp(),
            failures = 0, losses = 0, suspect = false, cancel_requested = false, progress = 0, progress_message = NULL
        WHERE j.id = id;
        PERFORM joex_private.wake(v_job.queue, 1);
    END IF;
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN 'ok';
END $$;

-- Whether a job goes round once more when its run ends. Said right after joex.update, which has locked the row, it is the truth.
-- (Volatile, so that it sees what has been committed while that waited for the row.)
CREATE OR REPLACE FUNCTION joex_private.goes_round(id uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT j.resubmit_requested FROM joex_private.job j WHERE j.id = id);
END $$;

-- Remove a job and its log: at once, or, where it runs, as soon as its run has stopped, which is told to. Answers ok or not_found.
CREATE OR REPLACE FUNCTION joex.remove(id uuid) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_executor integer;
BEGIN
    SELECT j.executor_id INTO v_executor FROM joex_private.job j WHERE j.id = id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'not_found';
    ELSIF v_executor IS NULL THEN
        PERFORM joex_private.announce('job-changed', ARRAY[id]);
        DELETE FROM joex_private.job_log l WHERE l.job_id = id;
        DELETE FROM joex_private.job j WHERE j.id = id;
        RETURN 'ok';
    END IF;
    UPDATE joex_private.job j SET cancel_requested = true, remove_requested = true, resubmit_requested = false WHERE j.id = id;
    PERFORM joex_private.notify_executor(v_executor, 'cancel', id);
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN 'ok';
END $$;

-- Run again the failed jobs that match, the oldest first, at most `most` of them; null matches all. A job is left out
-- while an unfinished one has its tracker. Returns how many.
CREATE OR REPLACE FUNCTION joex.retry_failed(
    queue text DEFAULT NULL, grp text DEFAULT NULL, task text DEFAULT NULL, most integer DEFAULT 10000
) RETURNS bigint LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    v_id uuid;
    v_all bigint := 0;
BEGIN
    -- (finished jobs with a key have an index of their own)
    FOR v_id IN SELECT f.id FROM (
                    (SELECT j.id, j.finished_at FROM joex_private.job j
                     WHERE j.finished_at IS NOT NULL AND j.key IS NULL AND j.state = 'failed'
                           AND (queue IS NULL OR j.queue = queue) AND (grp IS NULL OR j.grp = grp)
                           AND (task IS NULL OR j.task = task)
                     ORDER BY j.finished_at LIMIT most)
                    UNION ALL
                    (SELECT j.id, j.finished_at FROM joex_private.job j
                     WHERE j.finished_at IS NOT NULL AND j.key IS NOT NULL AND j.state = 'failed'
                           AND (queue IS NULL OR j.queue = queue) AND (grp IS NULL OR j.grp = grp)
                           AND (task IS NULL OR j.task = task)
                     ORDER BY j.finished_at LIMIT most)) f
                ORDER BY f.finished_at LIMIT most LOOP
        BEGIN
            v_all := v_all + joex.retry(v_id)::integer;
        EXCEPTION WHEN unique_violation THEN
            CONTINUE;
        END;
    END LOOP;
    RETURN v_all;
END $$;

-- Set a group's weight (1 to 100: its share of the slots against other groups), pause it, limit how many of its jobs run
-- at a time. Null leaves a setting as it is; a limit of -1 takes the limit away.
CREATE OR REPLACE FUNCTION joex.set_group(
    grp text, queue text DEFAULT 'default', weight integer DEFAULT NULL, paused boolean DEFAULT NULL,
    max_running integer DEFAULT NULL
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    INSERT INTO joex_private.group_setting AS g (queue, grp, weight, paused, max_running)
    VALUES (queue, grp, coalesce(weight, 1), coalesce(paused, false), nullif(max_running, -1))
    ON CONFLICT ON CONSTRAINT group_setting_pkey DO UPDATE SET
        weight = coalesce(set_group.weight, g.weight), paused = coalesce(set_group.paused, g.paused),
        max_running = CASE WHEN set_group.max_running IS NULL THEN g.max_running ELSE nullif(set_group.max_running, -1) END;
    PERFORM joex_private.wake(queue, 4);    -- resumed, or with a higher limit: there may be work now
END $$;

-- Delete finished jobs and their logs: a batch of those that ended from `since` on and before `before`, in one of the states, the
-- oldest first. Jobs with a key stay until they are removed. Returns how many, and when the last of them ended (null: there was
-- none). A batch walks over the jobs of other states, which are kept: the next one begins `since` the last one's `upto`, and reads
-- none of them again.
CREATE OR REPLACE FUNCTION joex.delete_finished(
    states text[], before timestamptz, most integer DEFAULT 1000, since timestamptz DEFAULT '-infinity',
    OUT jobs bigint, OUT upto timestamptz
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids uuid[];
BEGIN
    SELECT array_agg(f.id), count(*), max(f.finished_at) INTO v_ids, jobs, upto FROM (
        SELECT j.id, j.finished_at FROM joex_private.job j
        WHERE j.key IS NULL AND j.finished_at >= since AND j.finished_at < before
              AND j.state = ANY (states::joex_private.job_state[])
        ORDER BY j.finished_at LIMIT most FOR UPDATE SKIP LOCKED) f;
    DELETE FROM joex_private.job_log l WHERE l.job_id = ANY (v_ids);
    DELETE FROM joex_private.job j WHERE j.id = ANY (v_ids);
    PERFORM joex_private.announce('job-changed', v_ids);
END $$;

-- Delete log lines whose jobs are gone. (A line that a run writes while its job is deleted stays: neither waits for the other, for
-- that would cost each line a lock.) Looks at the next jobs after this one that have lines; returns the last of them, null: there
-- are no more.
CREATE OR REPLACE FUNCTION joex_private.forget_lines(p_after uuid, p_jobs integer DEFAULT 10000) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids uuid[];
BEGIN
    v_ids := ARRAY(
        WITH RECURSIVE logged AS (      -- a probe of the index for each job, however many lines it has
            (SELECT l.job_id FROM joex_private.job_log l WHERE l.job_id > p_after ORDER BY l.job_id LIMIT 1)
            UNION ALL
            SELECT n.job_id FROM logged p CROSS JOIN LATERAL (
                SELECT l.job_id FROM joex_private.job_log l WHERE l.job_id > p.job_id ORDER BY l.job_id LIMIT 1) n
        ) SELECT g.job_id FROM logged g LIMIT p_jobs);
    -- The job was there before its line. So it is seen here, in a snapshot that is younger than the one above, unless it has gone.
    DELETE FROM joex_private.job_log l WHERE l.job_id = ANY (ARRAY(
        SELECT i.id FROM unnest(v_ids) i(id) WHERE NOT EXISTS (SELECT FROM joex_private.job j WHERE j.id = i.id OFFSET 0)));
    RETURN v_ids[p_jobs];
END $$;
