-- What executors and workers write about their runs. Each write matches the job's id and the run's lock id. So a run that has lost its
-- job (the job was put back, or another run has it) changes nothing, and gets the answer worker_conflict.

-- The arguments of a run, when they were too large for its take. Null: the run has lost its job.
CREATE OR REPLACE FUNCTION joex_client.arguments(id uuid, lock_id uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT j.args FROM joex_private.job j
    WHERE j.id = joex_private.visible('{work}', arguments.id) AND j.lock_id = arguments.lock_id AND j.state IN ('scheduled', 'running') $$;

-- The code of these runs has started: scheduled -> running. A run finishes correctly without this mark too (a short one is over before
-- its executor writes the mark). Returns the lock ids of the runs whose rows another transaction has locked: the executor marks these
-- later, because the whole batch would wait for that transaction. The timeout of a run that has waited in its slot begins here. (It does
-- with the take for one that has not: to change the time would write the job into each index.)
CREATE OR REPLACE FUNCTION joex_private.start_many(ids uuid[], locks uuid[], ages float8[]) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids uuid[];
    v_noted uuid[];
BEGIN
    WITH started AS (
        UPDATE joex_private.job j SET state = 'running', attempt = j.attempt + 1,
               started_at = clock_timestamp() - make_interval(secs => s.age),
               overdue_at = j.overdue_at + make_interval(secs => CASE WHEN s.waited > 1 THEN s.waited ELSE 0 END)
        FROM (SELECT k.id, g.age, extract(epoch FROM clock_timestamp() - k.scheduled_at)::float8 - g.age AS waited
              FROM unnest(ids, locks, ages) AS g(id, lock_id, age)
              JOIN joex_private.job k ON k.id = g.id AND k.lock_id = g.lock_id AND k.state = 'scheduled'
              FOR UPDATE OF k SKIP LOCKED) s
        WHERE j.id = s.id RETURNING j.id, j.losses
    ) SELECT array_agg(id), array_agg(id) FILTER (WHERE losses > 1) INTO v_ids, v_noted FROM started;
    IF v_noted IS NOT NULL THEN
        -- (The timeout of a job that was lost twice begins with its code. The row was locked then: see mark_start. What a run has reported
        -- since has renewed nothing.)
        UPDATE joex_private.job j SET (overdue_at, renew_by) = (
            SELECT CASE WHEN o.renewable THEN clock_timestamp() ELSE j.started_at END + o.timeout, CASE WHEN o.renewable THEN o.timeout END
            FROM joex_private.task_timeout o WHERE o.task = j.task)
        WHERE j.id = ANY (v_noted);
    END IF;
    PERFORM joex_private.announce('job-started', v_ids);
    IF cardinality(v_ids) = cardinality(ids) THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT k.lock_id FROM unnest(ids, locks) AS g(id, lock_id)
                 JOIN joex_private.job k ON k.id = g.id AND k.lock_id = g.lock_id AND k.state = 'scheduled';
END $$;

-- The code of a job that was lost twice is about to start: scheduled -> running. The executor calls this before the code runs, because
-- put_back charges such a job with a loss only if it is running. The timeout begins here. False: the run has lost its job.
-- It waits for no lock on the row: a transaction that has cancelled the job may stay open, and such marks would keep connections from all
-- others. Where the row is locked, the start of a suspect is noted in a row of its own, which no tenant can lock: a tenant that kept
-- the rows of its suspects locked could otherwise keep any of them from its end, and close executors for one after the other. Other jobs
-- (error lock_not_available) are given back, because they close none.
CREATE OR REPLACE FUNCTION joex_private.mark_start(id uuid, lock_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_job record;
BEGIN
    PERFORM FROM joex_private.job j WHERE j.id = id AND j.lock_id = lock_id AND j.state = 'scheduled' FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
        UPDATE joex_private.job j SET
            state = 'running', attempt = j.attempt + 1, started_at = clock_timestamp(),
            (overdue_at, renew_by) = (SELECT clock_timestamp() + o.timeout, CASE WHEN o.renewable THEN o.timeout END
                                      FROM joex_private.task_timeout o WHERE o.task = j.task)
        WHERE j.id = id;
        PERFORM joex_private.announce('job-started', ARRAY[id]);
        RETURN true;
    END IF;
    SELECT j.suspect, j.executor_id INTO v_job FROM joex_private.job j
    WHERE j.id = id AND j.lock_id = lock_id AND j.state = 'scheduled';
    IF v_job.suspect THEN
        -- (Who ends this executor locks its row before it puts back its jobs.)
        PERFORM FROM joex_private.executor e WHERE e.id = v_job.executor_id AND e.left_at IS NULL FOR SHARE;
        IF FOUND THEN
            DELETE FROM joex_private.noted_start n WHERE n.executor_id = v_job.executor_id AND NOT EXISTS (
                SELECT FROM joex_private.job j WHERE j.executor_id = n.executor_id AND j.lock_id = n.lock_id);
            INSERT INTO joex_private.noted_start (lock_id, executor_id, at) VALUES (lock_id, v_job.executor_id, clock_timestamp())
            ON CONFLICT DO NOTHING;
            RETURN true;
        END IF;
    ELSIF v_job IS NOT NULL THEN
        RAISE EXCEPTION 'another transaction has locked job %', id USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN false;
END $$;

-- When this suspect started, if its row was locked then, and tells nothing of it yet.
CREATE OR REPLACE FUNCTION joex_private.noted_at(p_lock_id uuid) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT n.at FROM joex_private.noted_start n WHERE n.lock_id = p_lock_id $$;

-- Whether this job is a suspect beside which its executor takes nothing: for the minute in which it waits for others, and until its code has
-- run for a minute (_ALONE_FOR in runtime/marks.py; one that waits for longer does so beside others).
CREATE OR REPLACE FUNCTION joex_private.runs_alone(p_id uuid) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT j.suspect AND CASE j.state WHEN 'scheduled' THEN greatest(j.scheduled_at, joex_private.noted_at(j.lock_id))
                                      ELSE j.started_at END > clock_timestamp() - interval '1 minute'
    FROM joex_private.job j WHERE j.id = p_id $$;

-- The place of a job after a run that ends in this state. A resubmission sends the job to the end of the line, whatever the state;
-- otherwise a cancel request ends the job as cancelled. p_delay: seconds until the retry of a stuck job; null or less than 0: none.
CREATE OR REPLACE FUNCTION joex_private.place_after(
    p_state text, p_cancel boolean, p_resubmit boolean, p_priority joex_private.job_priority, p_now timestamptz, p_delay float8
) RETURNS TABLE (state joex_private.job_state, lane smallint, due_at timestamptz, finished_at timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT s.state::joex_private.job_state,
           CASE s.state WHEN 'waiting' THEN joex_private.lane(p_priority) END,
           CASE s.state WHEN 'stuck' THEN p_now + make_interval(secs => greatest(p_delay, 0)) END,
           CASE WHEN s.state NOT IN ('waiting', 'stuck') THEN p_now END
    FROM (SELECT CASE WHEN p_resubmit THEN 'waiting' WHEN p_cancel THEN 'cancelled' ELSE p_state END AS state) s $$;

-- What the last line of a run tells of it, besides its words. An error counts with its first line.
CREATE OR REPLACE FUNCTION joex_private.run_record(
    p_outcome text, p_app_id text, p_started_at timestamptz, p_error text DEFAULT NULL, p_retry_at timestamptz DEFAULT NULL
) RETURNS jsonb LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'outcome', p_outcome, 'app_id', p_app_id, 'started_at', p_started_at, 'retry_at', p_retry_at,
        'error', left(split_part(p_error, E'\n', 1), 500))) $$;

-- Write Joex's own lines into the logs of jobs. If that fails, the jobs end nevertheless.
CREATE OR REPLACE FUNCTION joex_private.log_ends(
    p_ids uuid[], p_attempts integer[], p_levels text[], p_lines text[], p_runs jsonb[]
) RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '500ms' AS $$
BEGIN
    INSERT INTO joex_private.job_log (job_id, attempt, at, level, message, run)
    SELECT g.id, g.attempt, clock_timestamp(), g.level, g.line, g.run
    FROM unnest(p_ids, p_attempts, p_levels, p_lines, p_runs) WITH ORDINALITY AS g(id, attempt, level, line, run, nr) ORDER BY g.nr;
EXCEPTION WHEN OTHERS THEN
    NULL;
END $$;

-- Write into their jobs' logs how these runs have ended, except plain successes (see joex.log). A null answer: the job has ended as the
-- run said.
CREATE OR REPLACE FUNCTION joex_private.log_ends_of(
    p_ids uuid[], p_states text[], p_errors text[], p_ages float8[], p_exhausted boolean[], p_nrs bigint[], p_answers text[]
) RETURNS void LANGUAGE sql VOLATILE SET enable_seqscan = off AS $$
    SELECT joex_private.log_ends(array_agg(e.id ORDER BY e.nr), array_agg(e.attempt ORDER BY e.nr), array_agg(e.level ORDER BY e.nr),
                                 array_agg(e.line ORDER BY e.nr), array_agg(e.run ORDER BY e.nr))
    FROM (SELECT g.id, g.nr, j.attempt + CASE g.state WHEN 'waiting' THEN 1 ELSE 0 END AS attempt,
                 CASE WHEN a.answer IS NOT NULL OR g.state IN ('cancelled', 'stuck') THEN 'warning'
                      WHEN g.state = 'failed' THEN 'error' ELSE 'info' END AS level,
                 CASE WHEN a.answer = 'canceled' THEN 'cancelled on request'
                      ELSE CASE g.state WHEN 'success' THEN 'succeeded' WHEN 'cancelled' THEN 'cancelled'
                                        WHEN 'waiting' THEN 'given back: this run does not count' ELSE 'failed' END
                           || coalesce(': ' || joex_private.cut(g.error), '') END
                 || CASE WHEN a.answer = 'resubmitted' THEN '; it was resubmitted, and runs once more'
                         WHEN g.state = 'stuck' AND j.due_at IS NOT NULL
                         THEN '; retry at ' || to_char(j.due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC'
                         WHEN g.state = 'failed' AND a.answer IS NULL
                         THEN CASE WHEN g.exhausted THEN '; no retries left' ELSE '; no retry' END
                         ELSE '' END AS line,
                 joex_private.run_record(
                     CASE WHEN a.answer = 'canceled' THEN 'cancelled'
                          ELSE CASE g.state WHEN 'stuck' THEN 'failed' WHEN 'waiting' THEN 'given_back' ELSE g.state END END,
                     j.app_id, j.started_at, g.error, CASE g.state WHEN 'stuck' THEN j.due_at END) AS run
          FROM unnest(p_ids, p_states, p_errors, p_ages, p_exhausted) WITH ORDINALITY AS g(id, state, error, age, exhausted, nr)
          JOIN unnest(p_nrs, p_answers) AS a(nr, answer) USING (nr)
          JOIN joex_private.job j ON j.id = g.id
          -- (A job that its executor gives back before the start has had no run.)
          WHERE (g.state <> 'success' OR a.answer IS NOT NULL) AND (g.state <> 'waiting' OR g.age IS NOT NULL)) e
    HAVING count(*) > 0 $$;

-- The log of a job, in order: at most `most` lines after the one whose seq is `after`. A run's lines have its attempt; the last line of
-- a run says how it has ended.
CREATE OR REPLACE FUNCTION joex.log(id uuid, after bigint DEFAULT 0, most integer DEFAULT 10000)
RETURNS TABLE (seq bigint, attempt integer, at timestamptz, level text, message text)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_lines integer;
BEGIN
    PERFORM joex_private.check_most(log.most);
    id := joex_private.visible('{payloads}', id);
    -- (The line of a success comes from the job's row. To write it, for thousands of runs a second, would cost as much as all their other
    -- lines.)
    RETURN QUERY SELECT l.seq, l.attempt, l.at, l.level, l.message FROM joex_private.job_log l
                 WHERE l.job_id = log.id AND l.seq > log.after ORDER BY l.seq LIMIT log.most;
    GET DIAGNOSTICS v_lines = ROW_COUNT;
    IF v_lines < most THEN
        RETURN QUERY SELECT s.* FROM joex_private.log_of_success(log.id) s WHERE s.seq > log.after;
    END IF;
END $$;

-- The attempts of a job, in order: at most the last `most` ones. outcome: running, success, failed, cancelled, lost (its executor has
-- died, or it has not reported in time) or given_back (it does not count: the next attempt has its number). started_at is null for a run
-- that ended before its code ran, ended_at for one that runs. error: its first line; null for roles without payloads. retry_at: when the
-- job may run again after a failure.
CREATE OR REPLACE FUNCTION joex.attempts(id uuid, most integer DEFAULT 100)
RETURNS TABLE (attempt integer, outcome text, app_id text, started_at timestamptz, ended_at timestamptz, error text, retry_at timestamptz)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_sees CONSTANT boolean := has_column_privilege(session_user, 'joex.jobs', 'error', 'SELECT');
BEGIN
    PERFORM joex_private.check_most(attempts.most);
    id := joex_private.visible('{view}', id);
    RETURN QUERY
        SELECT r.attempt, r.run ->> 'outcome', r.run ->> 'app_id', (r.run ->> 'started_at')::timestamptz, r.at,
               CASE WHEN v_sees THEN r.run ->> 'error' END, (r.run ->> 'retry_at')::timestamptz
        FROM (SELECT * FROM (
                  (SELECT l.seq, l.attempt, l.at, l.run FROM joex_private.job_log l
                   WHERE l.job_id = attempts.id AND l.run IS NOT NULL ORDER BY l.seq DESC LIMIT attempts.most)
                  UNION ALL
                  -- (What runs, and a success, has no line: see joex.log.)
                  SELECT 9007199254740991, j.attempt, j.finished_at, joex_private.run_record(j.state::text, j.app_id, j.started_at)
                  FROM joex_private.job j WHERE j.id = attempts.id AND j.state IN ('running', 'success')) every
              ORDER BY seq DESC LIMIT attempts.most) r
        ORDER BY r.seq;
END $$;

-- The line that says that the last run of a job has succeeded, after all other lines: its seq is the largest integer that each reader of
-- JSON represents exactly.
CREATE OR REPLACE FUNCTION joex_private.log_of_success(id uuid)
RETURNS TABLE (seq bigint, attempt integer, at timestamptz, level text, message text) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT 9007199254740991, j.attempt, j.finished_at, 'info', 'succeeded' || coalesce(': ' || j.message, '')
    FROM joex_private.job j WHERE j.id = log_of_success.id AND j.state = 'success' $$;

-- End many runs. states: success, failed, cancelled; stuck (retry after delays[i] seconds); waiting (given back: the run does not
-- count). ages: seconds since the code started, null if it has not; exhausted: the run has failed and no retry is left. A job with a
-- cancel request ends cancelled, whatever its run says; a job with a resubmission waits again, at the end of the line.
-- Returns a row for each run that did not end as said:
--   canceled (a cancel request: the job is cancelled now), resubmitted (the job waits for another run), already (this run had ended the
--   job in the task's own transaction), worker_conflict (the run has lost its job), locked (only with skip_locked: another session has
--   locked the row; call again).
CREATE OR REPLACE FUNCTION joex_private.finish_many(
    ids uuid[], locks uuid[], states text[], results jsonb[], messages text[], errors text[], delays float8[],
    ages float8[], skip_locked boolean DEFAULT false, exhausted boolean[] DEFAULT NULL
) RETURNS TABLE (nr bigint, answer text) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '500ms' AS $$
#variable_conflict use_column
DECLARE
    v_free uuid[];
    v_queue record;
    v_again boolean := 'waiting' = ANY (states) OR 'stuck' = ANY (states);
    v_as_said bigint;             -- how many jobs have ended as their runs said
    v_ended bigint[];
    v_answers text[];             -- of the jobs that have ended; null: as said
    v_canceled uuid[];
    v_others uuid[] := '{}';      -- runs that this call does not end
    v_executors integer[];        -- that have the jobs, while a group has a limit; 0: a worker
    v_now timestamptz := clock_timestamp();
BEGIN
    IF results IS NOT NULL THEN     -- (as with submissions)
        PERFORM joex_private.check_size('result', r.one) FROM unnest(results) r(one)
        WHERE pg_column_size(r.one) > 18 AND joex_private.is_large(r.one);
    END IF;
    IF pg_column_size(messages) > 100000 THEN   -- (to look at each message was a fiftieth of the cost of an end)
        messages := ARRAY(SELECT joex_private.cut(m.one) FROM unnest(messages) WITH ORDINALITY AS m(one, nr) ORDER BY m.nr);
    END IF;
    IF pg_column_size(errors) > 100000 THEN
        errors := ARRAY(SELECT joex_private.cut(e.one) FROM unnest(errors) WITH ORDINALITY AS e(one, nr) ORDER BY e.nr);
    END IF;
    IF skip_locked THEN
        SELECT array_agg(k.id) INTO v_free FROM (
            SELECT j.id FROM joex_private.job j WHERE j.id = ANY (ids) FOR UPDATE SKIP LOCKED) k;
    END IF;
    IF joex_private.is_heard(true) THEN
        PERFORM joex_private.announce_short(ids, locks, ages, CASE WHEN skip_locked THEN coalesce(v_free, '{}') END);
    END IF;
    IF pg_sequence_last_value('joex_private.limits_running') IS DISTINCT FROM 1 THEN
        v_executors := ARRAY(SELECT j.executor_id FROM unnest(ids) WITH ORDINALITY AS g(id, nr)
                             LEFT JOIN joex_private.job j ON j.id = g.id ORDER BY g.nr);
    END IF;
    WITH ended AS (
        UPDATE joex_private.job j SET
            executor_id = NULL, overdue_at = NULL, resubmit_requested = false,
            cancel_requested = j.cancel_requested AND NOT j.resubmit_requested,
            -- (A job that has ended keeps runnable_since: it tells how long its last run had waited.)
            (state, lane, due_at, finished_at, runnable_since) = (
                SELECT p.state, p.lane, p.due_at, p.finished_at,
                       CASE WHEN p.finished_at IS NULL THEN coalesce(p.due_at, v_now) ELSE j.runnable_since END
                FROM joex_private.place_after(g.state, j.cancel_requested, j.resubmit_requested, j.priority, v_now, g.delay) p),
            seq = CASE WHEN j.resubmit_requested THEN nextval('joex_private.job_seq_seq') ELSE j.seq END,
            attempt = j.attempt + CASE WHEN g.state = 'waiting' THEN 0 ELSE 1 END
                                - CASE WHEN j.state = 'running' THEN 1 ELSE 0 END,
            failures = CASE WHEN j.resubmit_requested THEN 0
                            ELSE j.failures + CASE WHEN g.state IN ('stuck', 'failed') THEN 1 ELSE 0 END END,
            losses = CASE WHEN j.resubmit_requested THEN 0 ELSE j.losses END,
            -- (Its executor has survived the run of this suspect, which was marked. A worker is no executor.)
            suspect = CASE WHEN j.suspect AND NOT j.resubmit_requested AND g.state <> 'waiting' AND j.executor_id <> 0
                           THEN j.state = 'scheduled' AND joex_private.noted_at(j.lock_id) IS NULL
                           ELSE j.suspect AND NOT j.resubmit_requested END,
            started_at = CASE WHEN j.state = 'running' THEN j.started_at
                              ELSE v_now - make_interval(secs => g.age) END,
            progress = CASE WHEN j.resubmit_requested THEN 0 WHEN g.state = 'success' THEN 100 ELSE j.progress END,
            result = g.result, message = g.message, error = coalesce(g.error, j.error)
        FROM unnest(ids, locks, states, results, messages, errors, delays, ages) WITH ORDINALITY
            AS g(id, lock_id, state, result, message, error, delay, age, nr)
        -- (The state, not the executor: a condition on that would offer the planner the index of all held jobs.)
        WHERE j.id = g.id AND j.lock_id = g.lock_id AND j.state IN ('scheduled', 'running')
              AND (NOT skip_locked OR j.id = ANY (v_free))
        RETURNING g.nr, CASE WHEN j.cancel_requested THEN 'canceled'
                             WHEN j.lane IS NOT NULL AND g.state <> 'waiting' THEN 'resubmitted' END AS answer
    ) SELECT count(*) FILTER (WHERE e.answer IS NULL), array_agg(e.nr), array_agg(e.answer)
      INTO v_as_said, v_ended, v_answers FROM ended e;
    -- Nearly always all have ended as said. The answers for the others come from a statement of its own, which sees what other
    -- transactions committed while this one waited for a row.
    IF v_as_said < cardinality(ids) THEN
        FOR nr, answer IN
            SELECT g.nr, CASE
                WHEN e.nr IS NOT NULL THEN e.answer
                WHEN skip_locked AND NOT coalesce(g.id = ANY (v_free), false)
                     AND EXISTS (SELECT FROM joex_private.job j WHERE j.id = g.id) THEN 'locked'
                WHEN EXISTS (SELECT FROM joex_private.job j WHERE j.id = g.id AND j.lock_id = g.lock_id AND j.executor_id IS NULL)
                     THEN 'already'
                ELSE 'worker_conflict' END
            FROM unnest(ids, locks) WITH ORDINALITY AS g(id, lock_id, nr)
            LEFT JOIN unnest(v_ended, v_answers) AS e(nr, answer) USING (nr)
            WHERE e.nr IS NULL OR e.answer IS NOT NULL
        LOOP
            IF answer = 'canceled' THEN
                v_canceled := v_canceled || ids[nr];
            ELSIF answer <> 'resubmitted' THEN
                v_others := v_others || locks[nr];
            END IF;
            v_again := v_again OR answer = 'resubmitted';
            RETURN NEXT;
        END LOOP;
    END IF;
    IF v_as_said < cardinality(ids) OR states <> array_fill('success'::text, ARRAY[cardinality(ids)]) THEN
        PERFORM joex_private.log_ends_of(ids, states, errors, ages, exhausted, v_ended, v_answers);
    END IF;
    IF v_again THEN
        -- Jobs for other executors to take; or retries, whose time a sleeping executor must learn.
        FOR v_queue IN SELECT j.queue AS name, count(*) AS jobs FROM joex_private.job j
                       WHERE j.id = ANY (ids) AND (j.lane IS NOT NULL OR j.due_at IS NOT NULL) GROUP BY j.queue LOOP
            PERFORM joex_private.wake(v_queue.name, v_queue.jobs);
        END LOOP;
    END IF;
    -- A group with a limit may have room again. An executor that still takes jobs polls by itself when its run has ended; a spare one may
    -- leave the next job to others, which have to hear of it. (This probes for the limits of the groups of these jobs: to look for one of
    -- any group is to walk over all those that an open transaction has set.)
    IF v_executors IS NOT NULL THEN
        FOR v_queue IN SELECT j.queue AS name, count(*) AS jobs
                       FROM unnest(ids, v_executors) AS g(id, executor_id) JOIN joex_private.job j ON j.id = g.id
                       WHERE j.finished_at IS NOT NULL
                             AND EXISTS (SELECT FROM joex_private.group_setting s
                                         WHERE s.queue = j.queue AND s.ring = j.ring AND s.max_running IS NOT NULL OFFSET 0)
                             AND NOT EXISTS (SELECT FROM joex_private.executor e
                                             WHERE e.id = g.executor_id AND e.left_at IS NULL AND NOT e.draining AND NOT e.spare
                                             OFFSET 0)
                       GROUP BY j.queue LOOP
            IF joex_private.has_runnable(v_queue.name) THEN
                PERFORM joex_private.wake(v_queue.name, v_queue.jobs);
            END IF;
        END LOOP;
    END IF;
    IF joex_private.is_heard(false) THEN
        PERFORM joex_private.announce_ends(ids, locks, v_others);
    END IF;
    IF v_canceled IS NOT NULL THEN
        PERFORM joex_private.delete_removed(v_canceled);
    END IF;
END $$;

-- Delete each of these jobs that has ended and has a removal request. (What puts back or ends the jobs of others must not wait for a long log:
-- its other lines, whose job is gone, go with forget_lines. The jobs share the 10,000 lines, so that a short log is gone as a whole.)
CREATE OR REPLACE FUNCTION joex_private.delete_removed(p_ids uuid[]) RETURNS void LANGUAGE sql VOLATILE AS $$
    WITH gone AS (
        DELETE FROM joex_private.job j WHERE j.id = ANY (p_ids) AND j.remove_requested AND j.finished_at IS NOT NULL RETURNING j.id
    ) DELETE FROM joex_private.job_log d WHERE d.ctid = ANY (ARRAY(
        SELECT l.ctid FROM gone CROSS JOIN LATERAL (
            SELECT g.ctid, row_number() OVER () AS nr FROM joex_private.job_log g WHERE g.job_id = gone.id
            LIMIT (SELECT greatest(10000 / nullif(count(*), 0), 20) FROM gone)
        ) l ORDER BY l.nr LIMIT 10000)) $$;

-- Announce the start of runs that end before their executor has marked them as running. free: the jobs that can end now; null: all.
-- (Here and below: the caller has checked that there is a subscriber.)
CREATE OR REPLACE FUNCTION joex_private.announce_short(ids uuid[], locks uuid[], ages float8[], free uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    PERFORM joex_private.announce('job-started', array_agg(j.id ORDER BY g.nr))
    FROM unnest(ids, locks, ages) WITH ORDINALITY AS g(id, lock_id, age, nr)
    JOIN joex_private.job j ON j.id = g.id AND j.lock_id = g.lock_id AND j.state = 'scheduled' AND g.age IS NOT NULL
                       AND (free IS NULL OR j.id = ANY (free));
END $$;

-- Announce how these runs have ended, except those with the lock ids of `others`.
CREATE OR REPLACE FUNCTION joex_private.announce_ends(ids uuid[], locks uuid[], others uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    v_finished uuid[];
    v_changed uuid[];
BEGIN
    SELECT array_agg(j.id ORDER BY g.nr) FILTER (WHERE j.finished_at IS NOT NULL),
           array_agg(j.id) FILTER (WHERE j.finished_at IS NULL)
    INTO v_finished, v_changed
    FROM unnest(ids, locks) WITH ORDINALITY AS g(id, lock_id, nr)
    JOIN joex_private.job j ON j.id = g.id AND j.lock_id = g.lock_id AND g.lock_id <> ALL (others);
    PERFORM joex_private.announce('job-finished', v_finished);
    PERFORM joex_private.announce('job-changed', v_changed);
END $$;

-- End a run in the transaction of its own writes: these and the job's end commit together, or not at all. Returns
--   ok: the job has ended, if and when the transaction commits
--   worker_conflict: the run has lost its job (it did not report in time, or has ended). Roll back.
--   canceled: a client has asked to cancel the job; nothing has changed. Roll back. A worker then calls this again with the state
--     cancelled, in a transaction of its own.
CREATE OR REPLACE FUNCTION joex.finish(
    id uuid,
    lock_id uuid,                       -- of this run, as it was taken
    result jsonb DEFAULT NULL,
    message text DEFAULT NULL,          -- for people
    state text DEFAULT 'success',       -- or failed, cancelled, stuck (a retry), waiting (given back: the run does not count)
    error text DEFAULT NULL,            -- why the run has failed
    delay interval DEFAULT NULL,        -- until the retry of a stuck job
    exhausted boolean DEFAULT false     -- the run has failed and no retry is left; for the log
) RETURNS text LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_cancel boolean;
BEGIN
    delay := joex_private.in_seconds(delay);
    IF state IS NULL THEN
        RAISE EXCEPTION 'state: expected success, failed, cancelled, stuck or waiting; got NULL' USING ERRCODE = '22004';
    ELSIF joex_private.is_large(result) THEN
        PERFORM joex_private.check_size('result', result);
    END IF;
    SELECT j.cancel_requested INTO v_cancel FROM joex_private.job j
    WHERE j.id = joex_private.visible('{work}', id) AND j.lock_id = lock_id AND j.state IN ('scheduled', 'running') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'worker_conflict';
    ELSIF v_cancel AND state <> 'cancelled' THEN
        PERFORM joex_private.must_be_shallow(NULL);
        RETURN 'canceled';
    END IF;
    PERFORM joex_private.finish_many(ARRAY[id], ARRAY[lock_id], ARRAY[state], ARRAY[result], ARRAY[message], ARRAY[error],
                                     ARRAY[extract(epoch FROM delay)::float8], ARRAY[0::float8], exhausted => ARRAY[exhausted]);
    PERFORM joex_private.must_be_shallow((SELECT j.xmin FROM joex_private.job j WHERE j.id = id));
    RETURN 'ok';
END $$;

-- Report from a run. A report restarts the activity timeout of the run, and may change the job; null changes nothing. Returns
--   ok: the run still has its job
--   worker_conflict: the run has lost its job (it did not report in time, or has ended). Stop, and roll back.
--   canceled: a client has asked to cancel the job. Stop, roll back, and call joex.finish with the state cancelled: that ends the job
--     at once. Otherwise its timeout does.
CREATE OR REPLACE FUNCTION joex.update(
    id uuid,
    lock_id uuid,                       -- of this run, as it was taken
    data jsonb DEFAULT NULL,            -- replaces the arguments
    opts jsonb DEFAULT NULL,            -- replaces the free fields of a keyed job
    rank bytea DEFAULT NULL,            -- replaces the rank of a keyed job
    progress integer DEFAULT NULL,      -- 0 to 100
    message text DEFAULT NULL,          -- of the progress, for people
    resubmit boolean DEFAULT false      -- the job runs once more when this run has ended
) RETURNS text LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_cancel boolean;
    v_shallow boolean;
BEGIN
    IF joex_private.is_large(data) THEN
        PERFORM joex_private.check_size('args', data);
    END IF;
    IF joex_private.is_large(opts) THEN
        PERFORM joex_private.check_size('opts', opts);
    END IF;
    SELECT j.cancel_requested INTO v_cancel FROM joex_private.job j
    WHERE j.id = joex_private.visible('{work}', id) AND j.lock_id = lock_id AND j.state IN ('scheduled', 'running') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'worker_conflict';
    ELSIF v_cancel THEN
        PERFORM joex_private.must_be_shallow(NULL);
        RETURN 'canceled';
    END IF;
    UPDATE joex_private.job j SET
        args = coalesce(data, j.args), opts = coalesce(opts, j.opts), rank = coalesce(rank, j.rank),
        progress = coalesce(progress, j.progress), progress_message = coalesce(joex_private.cut(message), j.progress_message),
        resubmit_requested = j.resubmit_requested OR resubmit IS TRUE,
        overdue_at = CASE WHEN j.renew_by IS NULL THEN j.overdue_at ELSE clock_timestamp() + j.renew_by END
    WHERE j.id = id RETURNING joex_private.must_be_shallow(j.xmin) INTO v_shallow;
    PERFORM joex_private.announce('job-changed', ARRAY[id]);
    RETURN 'ok';
END $$;

-- Put back jobs whose runs are over without an end: the jobs wait again, at their old place in line. The caller has locked the rows.
-- p_lost: how many losses this adds to each job at most; p_why says what happened. A job with more than p_most_losses losses fails (null: no
-- job does). p_by_worker: workers held these jobs. Of them no keyed job fails: its clients rely on it that a job whose workers die or
-- hang stays pending until one of them finishes it.
-- p_died: the executor of these jobs has died, and each of them may have killed it. A job that is lost for the second time becomes a
-- suspect: executors run it alone, so that their next death shows which job it was. When a run of it has ended, it is no suspect any more
-- (see finish_many); the next death makes it one again, and is not charged to it, because other jobs ran there too. Of a job that was lost twice, for whatever reason,
-- executors mark the start before its code runs, in its row or beside it (see mark_start), and one that had not started is given back: it did not kill its executor,
-- and its timeout had not begun. So no job fails because of its neighbours, or because it waits for a process of its executor for longer than
-- its timeout. (The first two times it may: whether code has started is what its executor says, and code that blocks the executor from
-- its beginning is not marked.) Returns how many jobs.
CREATE OR REPLACE FUNCTION joex_private.put_back(
    p_ids uuid[], p_lost integer, p_most_losses integer, p_why text, p_died boolean DEFAULT false, p_by_worker boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_queue record;
    v_now timestamptz := clock_timestamp();
    v_all bigint := 0;
BEGIN
    FOR v_queue IN
        WITH back AS (
            UPDATE joex_private.job j SET
                executor_id = NULL, lock_id = NULL, overdue_at = NULL, resubmit_requested = false,
                cancel_requested = j.cancel_requested AND NOT j.resubmit_requested,
                state = x.state, lane = x.lane, finished_at = x.finished_at,
                attempt = j.attempt + CASE WHEN x.noted IS NULL THEN 0 ELSE 1 END, started_at = coalesce(x.noted, j.started_at),
                runnable_since = v_now, losses = j.losses + x.charged,
                suspect = j.suspect OR p_died AND x.lost > 0 AND j.losses + x.lost > 1,
                error = CASE x.state WHEN 'failed' THEN format(
                    CASE WHEN p_by_worker THEN 'its workers were lost %s times' ELSE 'lost %s times: %s' END, j.losses + x.charged, p_why)
                    ELSE j.error END
            FROM (SELECT k.id, w.was, w.noted, l.lost, c.charged, p.state, p.lane, p.finished_at
                  FROM joex_private.job k
                  CROSS JOIN LATERAL (SELECT CASE WHEN k.suspect AND k.state = 'scheduled' THEN joex_private.noted_at(k.lock_id) END AS noted) n
                  CROSS JOIN LATERAL (SELECT n.noted, CASE WHEN n.noted IS NULL THEN k.state ELSE 'running' END AS was) w
                  CROSS JOIN LATERAL (SELECT CASE WHEN k.losses > 1 AND w.was = 'scheduled' AND NOT p_by_worker THEN 0
                                                  ELSE p_lost END AS lost) l
                  CROSS JOIN LATERAL (SELECT CASE WHEN p_died AND k.losses > 1 AND NOT k.suspect THEN 0 ELSE l.lost END AS charged) c
                  CROSS JOIN LATERAL joex_private.place_after(
                      CASE WHEN c.charged > 0 AND k.losses + c.charged > p_most_losses AND NOT (p_by_worker AND k.key IS NOT NULL)
                           THEN 'failed' ELSE 'waiting' END,
                      k.cancel_requested, k.resubmit_requested, k.priority, v_now, NULL) p
                  WHERE k.id = ANY (p_ids)) x
            WHERE j.id = x.id RETURNING j.id, j.queue, j.lane, j.remove_requested, x.state, j.error, x.lost, j.suspect, j.app_id,
                                        CASE x.was WHEN 'running' THEN j.started_at END AS started_at,
                                        x.was = 'running' OR x.lost > 0 AS is_run,
                                        j.attempt + CASE x.was WHEN 'running' THEN 0 ELSE 1 END AS attempt
        ) SELECT b.queue AS name, count(*) AS jobs,
                 array_agg(b.id) FILTER (WHERE b.lane IS NULL) AS ended, array_agg(b.id) FILTER (WHERE b.lane IS NOT NULL) AS open,
                 array_agg(b.id) FILTER (WHERE b.remove_requested) AS removed,
                 -- (A job that is given back before its start has had no run.)
                 array_agg(b.id) FILTER (WHERE b.is_run) AS runs, array_agg(b.attempt) FILTER (WHERE b.is_run) AS attempts,
                 array_agg(CASE b.state WHEN 'failed' THEN 'error' ELSE CASE b.lost WHEN 0 THEN 'info' ELSE 'warning' END END)
                     FILTER (WHERE b.is_run) AS levels,
                 array_agg(CASE b.state WHEN 'failed' THEN 'failed: ' || b.error
                                        WHEN 'cancelled' THEN 'cancelled on request'
                                        ELSE CASE b.lost WHEN 0 THEN 'given back: this run does not count'
                                                         ELSE 'lost: ' || p_why
                                                              || CASE WHEN b.suspect THEN '; it runs alone from now on' ELSE '' END
                                             END END)
                     FILTER (WHERE b.is_run) AS lines,
                 array_agg(joex_private.run_record(
                     CASE WHEN b.state IN ('failed', 'cancelled') THEN b.state::text WHEN b.lost = 0 THEN 'given_back' ELSE 'lost' END,
                     b.app_id, b.started_at,
                     CASE WHEN b.state = 'failed' THEN b.error WHEN b.state <> 'cancelled' AND b.lost > 0 THEN p_why END))
                     FILTER (WHERE b.is_run) AS records
        FROM back b GROUP BY b.queue
    LOOP
        IF v_queue.runs IS NOT NULL THEN
            PERFORM joex_private.log_ends(v_queue.runs, v_queue.attempts, v_queue.levels, v_queue.lines, v_queue.records);
        END IF;
        v_all := v_all + v_queue.jobs;
        PERFORM joex_private.wake(v_queue.name, v_queue.jobs);
        PERFORM joex_private.announce('job-finished', v_queue.ended), joex_private.announce('job-changed', v_queue.open);
        IF v_queue.removed IS NOT NULL THEN
            PERFORM joex_private.delete_removed(v_queue.removed);
        END IF;
    END LOOP;
    RETURN v_all;
END $$;

-- Put back a batch of the jobs whose runs did not report in time (p_queues: only jobs of these queues). This is a loss (see put_back).
-- Until an executor has heard of it, and the code of such a run is over (code in a thread may go on for long), it is an overrun: takes count it,
-- or a tenant with short timeouts and long jobs would have all slots. (Of others the executor says so itself: see note_overruns.)
-- Returns how many each executor or worker held.
CREATE OR REPLACE FUNCTION joex_private.recover_overdue(p_queues text[] DEFAULT NULL, p_jobs integer DEFAULT 500)
RETURNS TABLE (app_id text, jobs bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_batch record;
    v_now timestamptz := clock_timestamp();
    v_floors boolean := joex_private.floors_are_on();
    v_ids uuid[];       -- while floors are on: from all held jobs (the index of overdue runs is full of dead entries)
BEGIN
    IF v_floors THEN
        v_ids := ARRAY(SELECT h.id FROM joex_private.by_floors(true) h WHERE h.overdue_at <= v_now ORDER BY h.overdue_at);
    END IF;
    FOR v_batch IN
        WITH RECURSIVE timed AS (       -- the queues in which runs have a timeout: one probe of the index each
            (SELECT j.queue FROM joex_private.job j
             WHERE p_queues IS NULL AND NOT v_floors AND j.overdue_at IS NOT NULL ORDER BY j.queue LIMIT 1)
            UNION ALL
            SELECT n.queue FROM timed t CROSS JOIN LATERAL (
                SELECT j.queue FROM joex_private.job j WHERE j.overdue_at IS NOT NULL AND j.queue > t.queue
                ORDER BY j.queue LIMIT 1) n
        )
        SELECT o.app_id, o.executor_id = 0 AS by_worker, e.most_losses, o.executor_id, array_agg(o.id) AS ids, array_agg(o.lock_id) AS locks,
               array_agg(o.queue::text) AS queues, array_agg(o.ring) AS rings FROM (
            SELECT found.* FROM (TABLE timed UNION ALL SELECT unnest(p_queues) WHERE NOT v_floors) q(name) CROSS JOIN LATERAL (
                SELECT j.id, j.app_id, j.executor_id, j.lock_id, j.queue, j.ring FROM joex_private.job j
                WHERE j.queue = q.name AND j.overdue_at IS NOT NULL AND j.overdue_at <= v_now
                ORDER BY j.overdue_at LIMIT p_jobs FOR UPDATE SKIP LOCKED) found
            UNION ALL
            SELECT found.* FROM (       -- (coalesce keeps the planner from the index)
                SELECT j.id, j.app_id, j.executor_id, j.lock_id, j.queue, j.ring FROM joex_private.job j
                WHERE j.id = ANY (v_ids) AND coalesce(j.overdue_at, 'infinity') <= v_now
                      AND (p_queues IS NULL OR j.queue = ANY (p_queues))
                LIMIT p_jobs FOR UPDATE SKIP LOCKED) found
            LIMIT p_jobs) o
        LEFT JOIN joex_private.executor e ON e.id = o.executor_id GROUP BY 1, 2, 3, 4 LOOP
        app_id := v_batch.app_id;
        -- (A worker has no setting for this, and may be stopped and started often: 19 losses are more than it explains.)
        jobs := joex_private.put_back(v_batch.ids, 1, CASE WHEN v_batch.by_worker THEN 19 ELSE v_batch.most_losses END,
                                      'its runs did not report in time', p_by_worker => v_batch.by_worker);
        -- (Without a lock on the executor's row: a worker that has accepted may leave its transaction open. So its end may leave some behind.)
        INSERT INTO joex_private.overrun (executor_id, lock_id, queue, ring)
        SELECT e.id, o.lock_id, o.queue, o.ring FROM joex_private.executor e
        CROSS JOIN unnest(v_batch.locks, v_batch.queues, v_batch.rings) AS o(lock_id, queue, ring)
        WHERE e.id = v_batch.executor_id AND e.left_at IS NULL
        ON CONFLICT DO NOTHING;     -- (the executor may have noted it first)
        RETURN NEXT;
    END LOOP;
    DELETE FROM joex_private.overrun o
    WHERE p_queues IS NULL AND NOT EXISTS (SELECT FROM joex_private.executor e WHERE e.id = o.executor_id AND e.left_at IS NULL);
END $$;

-- Write the reports of runs: the latest progress of each, and log lines in their order. The log keeps lines that arrive after the end of
-- their run, and drops lines of a run that has lost its job (dropped: how many). locked: the lock ids of the runs whose progress is not
-- written, because another transaction has locked their rows.
-- (lock_timeout is below the five seconds of an executor: it sends lines again whose write it gave up, and this one may still commit.)
CREATE OR REPLACE FUNCTION joex_private.note_many(
    ids uuid[], locks uuid[], attempts integer[], ages float8[], levels text[], lines text[],
    progress_ids uuid[], progress_locks uuid[], progress smallint[], progress_messages text[],
    OUT dropped bigint, OUT locked uuid[]
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '3s' AS $$
#variable_conflict use_variable
DECLARE
    v_ids uuid[];
    v_kept bigint;
BEGIN
    IF cardinality(progress_ids) > 0 THEN
        WITH written AS (
            UPDATE joex_private.job j SET progress = p.percent, progress_message = joex_private.cut(p.message),
                   -- (Progress restarts an activity timeout.)
                   overdue_at = CASE WHEN j.renew_by IS NULL THEN j.overdue_at ELSE clock_timestamp() + j.renew_by END
            FROM (SELECT k.id, g.percent, g.message
                  FROM unnest(progress_ids, progress_locks, progress, progress_messages) AS g(id, lock_id, percent, message)
                  JOIN joex_private.job k ON k.id = g.id AND k.lock_id = g.lock_id AND k.state IN ('scheduled', 'running')
                  FOR UPDATE OF k SKIP LOCKED) p
            WHERE j.id = p.id RETURNING j.id
        ) SELECT array_agg(w.id) INTO v_ids FROM written w;
        PERFORM joex_private.announce('job-changed', v_ids);
        IF cardinality(v_ids) IS DISTINCT FROM cardinality(progress_ids) THEN
            SELECT array_agg(k.lock_id) INTO locked FROM unnest(progress_ids, progress_locks) AS g(id, lock_id)
            JOIN joex_private.job k ON k.id = g.id AND k.lock_id = g.lock_id AND k.state IN ('scheduled', 'running')
            WHERE k.id <> ALL (coalesce(v_ids, '{}'));
        END IF;
    END IF;
    INSERT INTO joex_private.job_log (job_id, attempt, at, level, message)
    SELECT g.id, g.attempt, clock_timestamp() - make_interval(secs => g.age), g.level, joex_private.cut(g.line)
    FROM unnest(ids, locks, attempts, ages, levels, lines) WITH ORDINALITY
         AS g(id, lock_id, attempt, age, level, line, nr)
    JOIN joex_private.job j ON j.id = g.id AND j.lock_id = g.lock_id
    ORDER BY g.nr;
    GET DIAGNOSTICS v_kept = ROW_COUNT;
    dropped := coalesce(cardinality(ids), 0) - v_kept;
END $$;
