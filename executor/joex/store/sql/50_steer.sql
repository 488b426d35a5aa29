-- How clients steer a job from outside of its run.

-- Cancel a job. Returns
--   cancelled: no executor held the job; it is cancelled
--   requested: an executor or a worker holds the job, and gets a cancel request; the job ends as cancelled when its run has stopped
--   finished: the job has ended already
--   not_found
CREATE OR REPLACE FUNCTION joex.cancel(id uuid) RETURNS text LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_executor integer;
    v_queue text;
    v_grp text;
BEGIN
    id := joex_private.visible('{submit, operate}', id);
    -- One statement: if a take has locked the row, this waits, and then decides on the row as the take has left it.
    UPDATE joex_private.job j SET
        cancel_requested = true, resubmit_requested = false, lane = NULL, due_at = NULL,
        state = CASE WHEN j.executor_id IS NULL THEN 'cancelled' ELSE j.state END,
        finished_at = CASE WHEN j.executor_id IS NULL THEN clock_timestamp() END
    WHERE j.id = id AND j.finished_at IS NULL RETURNING j.executor_id, j.queue, j.grp INTO v_executor, v_queue, v_grp;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM joex_private.job j WHERE j.id = id) THEN 'finished' ELSE 'not_found' END;
    END IF;
    PERFORM joex_private.note_act('cancel', id::text, v_queue, v_grp);
    IF v_executor IS NULL THEN
        PERFORM joex_private.announce('job-finished', ARRAY[id]);
        RETURN 'cancelled';
    END IF;
    PERFORM joex_private.notify_executor(v_executor);
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN 'requested';
END $$;

-- Change the priority of a job ('high' or 'low'). Returns false, and changes nothing, unless the job is waiting. (A stuck job waits for a
-- retry, which comes before both priorities.)
CREATE OR REPLACE FUNCTION joex.set_priority(id uuid, priority text) RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_priority joex_private.job_priority;
    v_queue text;
    v_grp text;
BEGIN
    id := joex_private.visible('{operate}', id);
    IF priority IS NULL OR lower(priority COLLATE "C") NOT IN ('high', 'low') THEN
        RAISE EXCEPTION 'priority: expected ''high'' or ''low''; got %', left(quote_nullable(priority), 100) USING ERRCODE = '22023';
    END IF;
    v_priority := joex_private.priority_of(priority);
    UPDATE joex_private.job j SET priority = v_priority, lane = CASE WHEN j.lane > 0 THEN joex_private.lane(v_priority) END
    WHERE j.id = id AND j.state = 'waiting' RETURNING j.queue, j.grp INTO v_queue, v_grp;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM joex_private.note_act('set_priority', id::text, v_queue, v_grp, jsonb_build_object('priority', v_priority));
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN true;
END $$;

-- Replace all arguments of a job. Returns false, and changes nothing, unless the job is waiting: otherwise a run has its arguments, or
-- has had them.
CREATE OR REPLACE FUNCTION joex.set_args(id uuid, args jsonb) RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_queue text;
    v_grp text;
BEGIN
    id := joex_private.visible('{operate}', id);
    IF args IS NULL THEN
        RAISE EXCEPTION 'args: must be a JSON object; got NULL' USING ERRCODE = '22004';
    ELSIF joex_private.is_large(args) THEN
        PERFORM joex_private.check_size('args', args);
    END IF;
    -- One statement, as in cancel.
    UPDATE joex_private.job j SET args = args WHERE j.id = id AND j.state = 'waiting' RETURNING j.queue, j.grp INTO v_queue, v_grp;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM joex_private.note_act('set_args', id::text, v_queue, v_grp);
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN true;
END $$;

-- Run a failed, cancelled or stuck job again, now, with all its retries; or a waiting job before its not_before, in its place by id. Returns
-- false, and changes nothing, if the job is in another state, or is due already.
CREATE OR REPLACE FUNCTION joex.retry(id uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    id := joex_private.visible('{operate}', id);
    IF NOT joex_private.retry_now(id) THEN
        RETURN false;
    END IF;
    PERFORM joex_private.note_act('retry', id::text, j.queue, j.grp) FROM joex_private.job j WHERE j.id = id;
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION joex_private.retry_now(id uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_queue text;
BEGIN
    UPDATE joex_private.job j SET
        lane = CASE WHEN j.state = 'stuck' THEN 0 ELSE joex_private.lane(j.priority) END,
        state = CASE WHEN j.state = 'stuck' THEN 'stuck' ELSE 'waiting' END::joex_private.job_state,
        due_at = NULL, finished_at = NULL, runnable_since = clock_timestamp(), failures = 0, losses = 0, suspect = false,
        cancel_requested = false
    WHERE j.id = id AND (j.state IN ('failed', 'cancelled', 'stuck') OR j.state = 'waiting' AND j.due_at IS NOT NULL) RETURNING j.queue INTO v_queue;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM joex_private.wake(v_queue, 1);
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN true;
END $$;

-- Run a job once more, whatever its state: a finished job waits again, at the end of the line, with all its retries; a job that waits for
-- a retry may run now; a running job runs once more when its run has ended. Returns ok or not_found. A run does this to its own job
-- with joex.update(..., resubmit => true).
CREATE OR REPLACE FUNCTION joex_client.resubmit(id uuid) RETURNS text LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_job record;
    v_by xid;       -- null: the row is only locked, and its xmin is that of others
BEGIN
    id := joex_private.visible('{operate}', id);
    SELECT j.queue, j.state, j.executor_id, j.due_at, j.finished_at, j.remove_requested INTO v_job
    FROM joex_private.job j WHERE j.id = id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'not_found';
    ELSIF v_job.remove_requested THEN
        PERFORM joex_private.must_be_shallow(NULL);
        RETURN 'not_found';
    ELSIF v_job.executor_id IS NOT NULL THEN
        UPDATE joex_private.job j SET resubmit_requested = true WHERE j.id = id RETURNING j.xmin INTO v_by;
    ELSIF v_job.finished_at IS NOT NULL OR v_job.due_at IS NOT NULL THEN
        -- (Until now, the row says that the run has succeeded: see joex.log.)
        INSERT INTO joex_private.job_log (job_id, attempt, at, level, message, run)
        SELECT id, s.attempt, s.at, s.level, s.message, joex_private.run_record('success', j.app_id, j.started_at)
        FROM joex_private.log_of_success(id) s JOIN joex_private.job j ON j.id = id;
        UPDATE joex_private.job j SET
            state = CASE WHEN v_job.state = 'stuck' THEN 'stuck' ELSE 'waiting' END::joex_private.job_state,
            lane = CASE WHEN v_job.state = 'stuck' THEN 0 ELSE joex_private.lane(j.priority) END,
            seq = nextval('joex_private.job_seq_seq'), due_at = NULL, finished_at = NULL, runnable_since = clock_timestamp(),
            failures = 0, losses = 0, suspect = false, cancel_requested = false, progress = 0, progress_message = NULL
        WHERE j.id = id RETURNING j.xmin INTO v_by;
        PERFORM joex_private.wake(v_job.queue, 1);
    END IF;
    PERFORM joex_private.must_be_shallow(v_by);
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN 'ok';
END $$;

-- Whether a job runs once more when its run has ended. Called right after joex.update, which has locked the row, the answer is final.
-- (Volatile, so that it sees what other transactions committed while joex.update waited for the row.)
CREATE OR REPLACE FUNCTION joex_client.goes_round(id uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT j.resubmit_requested FROM joex_private.job j WHERE j.id = joex_private.visible('{work}', id));
END $$;

-- Remove a job and its log. A running job gets a cancel request, and disappears when its run has ended; of a longer log than 10,000
-- lines, and of longer ones than 20 where many end at once, maintenance deletes the rest within some days. Returns ok or not_found.
CREATE OR REPLACE FUNCTION joex.remove(id uuid) RETURNS text LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_executor integer;
    v_shallow boolean;
BEGIN
    id := joex_private.visible('{operate}', id);
    SELECT j.executor_id INTO v_executor FROM joex_private.job j WHERE j.id = id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'not_found';
    END IF;
    -- (Programs that have keyed jobs remove them all day.)
    PERFORM joex_private.note_act('remove', id::text, j.queue, j.grp) FROM joex_private.job j WHERE j.id = id AND j.key IS NULL;
    IF v_executor IS NULL THEN
        PERFORM joex_private.announce('job-changed', ARRAY[id]);
        DELETE FROM joex_private.job_log l WHERE l.job_id = id;
        DELETE FROM joex_private.job j WHERE j.id = id RETURNING joex_private.must_be_shallow(j.xmax) INTO v_shallow;
        RETURN 'ok';
    END IF;
    UPDATE joex_private.job j SET cancel_requested = true, remove_requested = true, resubmit_requested = false WHERE j.id = id
    RETURNING joex_private.must_be_shallow(j.xmin) INTO v_shallow;
    PERFORM joex_private.notify_executor(v_executor);
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN 'ok';
END $$;

-- Run failed jobs again, as joex.retry does, the oldest first. Null selects all queues, groups or tasks. Skips a job while an unfinished
-- job of its group has its tracker (so of several failed ones with a tracker the oldest runs), and one that another transaction has locked.
-- Returns the number of jobs.
CREATE OR REPLACE FUNCTION joex.retry_failed(
    queue text DEFAULT NULL,
    grp text DEFAULT NULL,
    task text DEFAULT NULL,
    most integer DEFAULT 10000      -- jobs in this call
) RETURNS bigint LANGUAGE plpgsql VOLATILE
-- (Like SKIP LOCKED for an open transaction that has submitted or retried a job with the same tracker: a tenant may keep it open.)
SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_job record;
    v_held text[] := '{}';
    v_all bigint := 0;
BEGIN
    PERFORM joex_private.check_most(most), joex_private.exact(task);
    -- (Finished keyed jobs have an index of their own: the two are merged in order. Jobs whose tracker another job has, or that others have
    -- locked, must not fill the limit: they stay the oldest. No index has failed jobs alone: its condition would name the state, so that no
    -- start of a run could be a HOT update, as 5,100 of 6,000 were.)
    FOR v_job IN WITH bounds AS MATERIALIZED (TABLE joex_private.bounds_of_operator)    -- read once, and not for each failed job
                 SELECT j.id, j.grp, j.tracker FROM (
                     (SELECT f.* FROM joex_private.job f WHERE f.finished_at IS NOT NULL AND f.key IS NULL ORDER BY f.finished_at)
                     UNION ALL
                     (SELECT k.* FROM joex_private.job k WHERE k.finished_at IS NOT NULL AND k.key IS NOT NULL ORDER BY k.finished_at)) j
                 WHERE j.state = 'failed' AND (queue IS NULL OR j.queue = queue) AND (grp IS NULL OR j.grp = grp)
                       AND (task IS NULL OR j.task = task) AND EXISTS (
                           SELECT FROM bounds b
                           WHERE (b.groups IS NULL OR j.grp = ANY (b.groups)) AND (b.queues IS NULL OR j.queue = ANY (b.queues))
                           OFFSET 0)
                       AND (j.tracker IS NULL OR NOT EXISTS (
                           SELECT FROM joex_private.job u
                           WHERE u.grp = j.grp AND u.tracker = j.tracker AND u.finished_at IS NULL OFFSET 0))
                 ORDER BY j.finished_at LOOP
        EXIT WHEN v_all = most;
        -- (Of several with one tracker, this call has retried the oldest. And only trying tells that an open transaction has a tracker: after
        -- a hundred waits, no more of a group that had one.)
        CONTINUE WHEN v_job.tracker IS NOT NULL AND (cardinality(v_held) >= 100 AND v_job.grp = ANY (v_held) OR EXISTS (
            SELECT FROM joex_private.job u WHERE u.grp = v_job.grp AND u.tracker = v_job.tracker AND u.finished_at IS NULL));
        BEGIN
            PERFORM FROM joex_private.job j WHERE j.id = v_job.id AND j.state = 'failed' FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                v_all := v_all + joex_private.retry_now(v_job.id)::integer;
            END IF;
        EXCEPTION
            WHEN unique_violation THEN
                CONTINUE;
            WHEN lock_not_available THEN
                v_held := v_held || v_job.grp;
                PERFORM set_config('lock_timeout', '1ms', true);    -- (one wait is enough)
        END;
    END LOOP;
    PERFORM joex_private.note_act('retry_failed', task, queue, grp, jsonb_build_object('jobs', v_all)) WHERE v_all > 0;
    RETURN v_all;
END $$;

-- Change the settings of a group in a queue. Null leaves a setting as it is.
CREATE OR REPLACE FUNCTION joex.set_group(
    grp text,
    queue text DEFAULT 'default',
    weight integer DEFAULT NULL,        -- 1 to 100: its slots in proportion to those of other groups; initially 1
    paused boolean DEFAULT NULL,        -- true: no job of the group begins
    max_running integer DEFAULT NULL,   -- how many jobs of the group may run at a time; -1: no limit
    max_waiting integer DEFAULT NULL    -- how many jobs of the group may wait in line, 0 to 100000; -1: no limit
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    -- (A weight and a limit concern the other groups of the queue too.)
    PERFORM joex_private.must_be_allowed('{operate}', queue, CASE WHEN num_nonnulls(weight, max_running, max_waiting) = 0 THEN grp END);
    PERFORM joex_private.must_be_allowed('{operate}', queue, grp);
    PERFORM joex_private.check_name('group', grp), joex_private.check_name('queue', queue),
            joex_private.must_hold('weight: 1 to 100', coalesce(weight, 1) BETWEEN 1 AND 100),
            joex_private.must_hold('max_running: 0 or more', coalesce(max_running, -1) >= -1),
            joex_private.must_hold('max_waiting: 0 to 100000', coalesce(max_waiting, -1) BETWEEN -1 AND 100000);
    IF max_running >= 0 THEN
        PERFORM setval('joex_private.limits_running', 2);
    END IF;
    IF max_waiting >= 0 THEN
        PERFORM joex_private.note_limit_waiting();
    END IF;
    INSERT INTO joex_private.group_setting AS g (queue, grp, ring, weight, paused, max_running, max_waiting)
    VALUES (queue, grp, joex_private.ring(grp), coalesce(weight, 1), coalesce(paused, false), nullif(max_running, -1),
            nullif(max_waiting, -1))
    ON CONFLICT ON CONSTRAINT group_setting_pkey DO UPDATE SET
        weight = coalesce(set_group.weight, g.weight), paused = coalesce(set_group.paused, g.paused),
        max_running = CASE WHEN set_group.max_running IS NULL THEN g.max_running ELSE nullif(set_group.max_running, -1) END,
        max_waiting = CASE WHEN set_group.max_waiting IS NULL THEN g.max_waiting ELSE nullif(set_group.max_waiting, -1) END;
    PERFORM joex_private.note_act('set_group', grp, queue, grp, jsonb_strip_nulls(
        jsonb_build_object('weight', weight, 'paused', paused, 'max_running', max_running,
                           'max_waiting', max_waiting)));
    PERFORM joex_private.wake(queue, 4);    -- (resumed, or with a higher limit: there may be work now)
END $$;

-- Pause a queue, or resume it: while it is paused no job of it begins. Runs go on, and submissions are accepted. A take that begins after
-- this has committed takes nothing; one that is under way may still take jobs, and so may a worker that accepts in a REPEATABLE READ or
-- SERIALIZABLE transaction that began before.
CREATE OR REPLACE FUNCTION joex.set_queue(queue text, paused boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    PERFORM joex_private.must_be_allowed('{operate}', queue, NULL);
    PERFORM joex_private.check_name('queue', queue);
    IF paused IS NULL THEN
        RAISE EXCEPTION 'paused: expected true or false; got NULL' USING ERRCODE = '22004';
    END IF;
    IF paused AND NOT EXISTS (SELECT FROM joex_private.queue q WHERE q.name = queue) THEN
        BEGIN
            INSERT INTO joex_private.queue (name) VALUES (queue);
        EXCEPTION WHEN unique_violation THEN    -- (another transaction, for which this has waited, has made it)
            PERFORM joex_private.must_see_the_latest('joex.set_queue');
        END;
    END IF;
    UPDATE joex_private.queue q SET
        paused_at = CASE WHEN paused THEN coalesce(q.paused_at, clock_timestamp()) END,
        paused_by = CASE WHEN paused AND q.paused_at IS NULL
                         THEN coalesce(nullif(left(current_setting('joex.caller', true), 254), ''), session_user)
                         WHEN paused THEN q.paused_by END
    WHERE q.name = queue;
    PERFORM joex_private.note_act('set_queue', queue, queue, NULL, jsonb_build_object('paused', paused));
    IF NOT paused THEN
        PERFORM joex_private.wake(queue, 4);
    END IF;
END $$;

-- Delete a batch of finished jobs with their logs, the oldest first. Keyed jobs stay until a client removes them. Returns the number of
-- jobs, and when the last of them ended (null: there was none). Call it until that is null, each time in a transaction of its own.
-- A batch reads over jobs of other states, which stay: pass the last `upto` as `since`, and the next batch does not read them again.
-- A batch deletes at most 100,000 log lines, so that no long log makes a long transaction. A job goes when its log is gone, so a call may
-- delete lines and no job; then `upto` is when the first job of the batch ended.
CREATE OR REPLACE FUNCTION joex.delete_finished(
    states text[],                              -- success, failed, cancelled
    before timestamptz,                         -- deletes jobs that ended before
    most integer DEFAULT 1000,                  -- jobs in this call
    since timestamptz DEFAULT '-infinity',      -- and ended at this time or later
    OUT jobs bigint,
    OUT upto timestamptz
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_most_lines CONSTANT integer := 100000;
    v_ids uuid[];
    v_first timestamptz;
    v_lines integer;
BEGIN
    PERFORM joex_private.check_most(delete_finished.most);
    SELECT array_agg(f.id), min(f.finished_at), max(f.finished_at) INTO v_ids, v_first, upto FROM (
        SELECT j.id, j.finished_at FROM joex_private.job j
        WHERE j.key IS NULL AND j.finished_at >= since AND j.finished_at < before
              AND j.state = ANY (states::joex_private.job_state[])
        ORDER BY j.finished_at LIMIT most FOR UPDATE SKIP LOCKED) f;
    -- (Job by job, so that at most one has lost a part of its log when this ends.)
    DELETE FROM joex_private.job_log d WHERE d.ctid = ANY (ARRAY(
        SELECT l.ctid FROM unnest(v_ids) i(id) CROSS JOIN LATERAL (SELECT g.ctid FROM joex_private.job_log g WHERE g.job_id = i.id OFFSET 0) l
        LIMIT v_most_lines));
    GET DIAGNOSTICS v_lines = ROW_COUNT;
    IF v_lines = v_most_lines THEN
        v_ids := ARRAY(SELECT i.id FROM unnest(v_ids) i(id) WHERE NOT EXISTS (
            SELECT FROM joex_private.job_log l WHERE l.job_id = i.id OFFSET 0));
        upto := v_first;
    END IF;
    DELETE FROM joex_private.job j WHERE j.id = ANY (v_ids);
    GET DIAGNOSTICS jobs = ROW_COUNT;
    PERFORM joex_private.announce('job-changed', v_ids);
END $$;

-- Delete log lines whose jobs are gone. (A line that a run writes while another transaction deletes its job stays: neither waits for the
-- other, because that would cost each line a lock.) Reads the next p_jobs jobs after p_after that have lines; returns the last of them;
-- null: there are no more. Where they have more than p_lines such lines, it deletes so many, and returns p_after: call it once more.
CREATE OR REPLACE FUNCTION joex_private.forget_lines(p_after uuid, p_jobs integer DEFAULT 10000, p_lines integer DEFAULT 100000) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids uuid[];
    v_lines integer;
BEGIN
    v_ids := ARRAY(
        WITH RECURSIVE logged AS (      -- one probe of the index for each job, however many lines it has
            (SELECT l.job_id FROM joex_private.job_log l WHERE l.job_id > p_after ORDER BY l.job_id LIMIT 1)
            UNION ALL
            SELECT n.job_id FROM logged p CROSS JOIN LATERAL (
                SELECT l.job_id FROM joex_private.job_log l WHERE l.job_id > p.job_id ORDER BY l.job_id LIMIT 1) n
        ) SELECT g.job_id FROM logged g LIMIT p_jobs);
    -- A job exists before its lines. So this snapshot, younger than the one above, shows the job unless it is gone.
    DELETE FROM joex_private.job_log d WHERE d.ctid = ANY (ARRAY(
        SELECT l.ctid FROM joex_private.job_log l WHERE l.job_id = ANY (ARRAY(
            SELECT i.id FROM unnest(v_ids) i(id) WHERE NOT EXISTS (SELECT FROM joex_private.job j WHERE j.id = i.id OFFSET 0)))
        LIMIT p_lines));
    GET DIAGNOSTICS v_lines = ROW_COUNT;
    RETURN CASE WHEN v_lines = p_lines THEN p_after ELSE v_ids[p_jobs] END;
END $$;
