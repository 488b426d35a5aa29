-- Why a job is not running: a row for each reason, with its details. Obstacles come first, then the place in line.
--   not_found: there is no such job
--   finished (state, at, error: null for roles without payloads): it has ended
--   scheduled (app_id, since, cancel_requested, alone): an executor has taken it; alone: its executor takes no other job meanwhile
--   running (the same details): it is running
--   not_due (at, seconds, retry: whether it waits for a retry, failures): its time has not come
--   no_executor (queue, draining): no executor serves its queue
--   unknown_task (task, executors): no executor of its queue knows the task
--   slots_busy (slots, executors): all slots of its queue's executors are busy
--   queue_paused (queue, since, by: the caller that has paused it; null for bound roles): its queue is paused
--   group_paused (group, queue): its group is paused in its queue
--   group_at_limit (group, limit, running): its group runs as many jobs as its limit allows
--   queue_held (queue, session, role: null for bound roles): a session holds the lock by which takes from its queue exclude each other,
--     for more than a second, or with a state that the owner of the schema may not see, or as a role that takes no jobs: takes go on, each
--     a second later
--   behind (retries, same, other): jobs of its group that come before it: due retries, jobs of the same priority, and jobs of the other
--     priority, with which it takes turns
--   turn (places, at_least): groups whose turn comes before that of its group; at_least: there may be more
--   next: nothing stands in the way; the next take chooses it
-- This only reads, so it works on a standby too. Counts end at 1,000 jobs and 100 groups. Jobs that are due, and that no take has moved
-- into line yet, count as if they were there: the 5,000 of the queue that have been due the longest.
CREATE OR REPLACE FUNCTION joex.why(id uuid) RETURNS TABLE (reason text, detail jsonb)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    v_job joex_private.job;
    v_now timestamptz := clock_timestamp();
    v_serving record;
    v_group record;
    v_ahead record;
    v_turn record;
    v_lane smallint;
    v_workers boolean;      -- workers wait in an accept
    v_is_next boolean := true;
    v_sees_all CONSTANT boolean := joex_private.may('{view}', NULL, NULL);
BEGIN
    SELECT * INTO v_job FROM joex_private.job j WHERE j.id = joex_private.visible('{view}', id);
    IF v_job.id IS NULL THEN
        RETURN QUERY SELECT 'not_found', '{}'::jsonb;
        RETURN;
    ELSIF v_job.finished_at IS NOT NULL THEN
        RETURN QUERY SELECT 'finished', jsonb_build_object(
            'state', v_job.state, 'at', v_job.finished_at,
            'error', CASE WHEN has_column_privilege(session_user, 'joex.jobs', 'error', 'SELECT') THEN v_job.error END);
        RETURN;
    ELSIF v_job.executor_id IS NOT NULL THEN
        RETURN QUERY SELECT v_job.state::text, jsonb_build_object(
            'app_id', v_job.app_id, 'cancel_requested', v_job.cancel_requested,
            'alone', joex_private.runs_alone(v_job.id) AND v_job.executor_id <> 0,
            'since', CASE v_job.state WHEN 'running' THEN v_job.started_at ELSE v_job.scheduled_at END);
        RETURN;
    END IF;

    IF v_job.due_at > v_now THEN
        v_is_next := false;
        RETURN QUERY SELECT 'not_due', jsonb_build_object(
            'at', v_job.due_at, 'seconds', extract(epoch FROM v_job.due_at - v_now), 'retry', v_job.state = 'stuck',
            'failures', v_job.failures);
    END IF;

    SELECT count(*) FILTER (WHERE NOT e.draining) AS executors,
           count(*) FILTER (WHERE e.draining) AS draining,
           count(*) FILTER (WHERE NOT e.draining AND v_job.task = ANY (e.tasks)) AS knowing,
           coalesce(sum(e.pool_size) FILTER (WHERE NOT e.draining), 0) AS slots,
           array_agg(e.id) FILTER (WHERE NOT e.draining) AS ids
    INTO v_serving FROM joex_private.executor e WHERE e.left_at IS NULL AND v_job.queue = ANY (e.queues);
    v_workers := coalesce((SELECT max(w.until) FROM joex_private.watch w WHERE w.queue = v_job.queue AND w.for_workers) > v_now, false);
    IF v_serving.executors = 0 AND NOT v_workers THEN
        v_is_next := false;
        RETURN QUERY SELECT 'no_executor', jsonb_build_object('queue', v_job.queue, 'draining', v_serving.draining);
    ELSIF v_serving.knowing = 0 AND NOT v_workers THEN
        v_is_next := false;
        RETURN QUERY SELECT 'unknown_task', jsonb_build_object('task', v_job.task, 'executors', v_serving.executors);
    END IF;
    IF v_serving.executors > 0 AND NOT v_workers AND v_serving.slots <= (
            -- (An executor that takes nothing beside a suspect has no free slot.)
            SELECT sum(greatest(h.held, CASE WHEN h.alone THEN e.pool_size END))
            FROM (SELECT j.executor_id AS id, count(*) AS held, bool_or(j.suspect AND joex_private.runs_alone(j.id)) AS alone
                  FROM joex_private.job j WHERE j.executor_id = ANY (v_serving.ids) AND j.executor_id IS NOT NULL GROUP BY 1) h
            JOIN joex_private.executor e USING (id)) THEN
        v_is_next := false;
        RETURN QUERY SELECT 'slots_busy', jsonb_build_object('slots', v_serving.slots, 'executors', v_serving.executors);
    END IF;

    RETURN QUERY SELECT 'queue_paused', jsonb_build_object(
            'queue', q.name, 'since', q.paused_at, 'by', CASE WHEN v_sees_all THEN q.paused_by END)
        FROM joex_private.queue q WHERE q.name = v_job.queue AND q.paused_at IS NOT NULL;
    v_is_next := v_is_next AND NOT FOUND;

    SELECT coalesce(bool_or(g.paused), false) AS paused, min(g.max_running) AS most, coalesce(max(g.weight), 1) AS weight,
           (SELECT r.running FROM joex_private.running_of(v_job.queue, v_job.ring, NULL, NULL) r) AS running
    INTO v_group FROM joex_private.group_setting g WHERE g.queue = v_job.queue AND g.grp = v_job.grp;
    IF v_group.paused THEN
        v_is_next := false;
        RETURN QUERY SELECT 'group_paused', jsonb_build_object('group', v_job.grp, 'queue', v_job.queue);
    END IF;
    IF v_group.running >= v_group.most THEN
        v_is_next := false;
        RETURN QUERY SELECT 'group_at_limit', jsonb_build_object(
            'group', v_job.grp, 'limit', v_group.most, 'running', v_group.running);
    END IF;
    RETURN QUERY SELECT 'queue_held', jsonb_build_object(
            'queue', v_job.queue, 'session', CASE WHEN v_sees_all THEN h.session END, 'role', CASE WHEN v_sees_all THEN h.role END)
        FROM joex_private.queue_holder(v_job.queue) h;
    v_is_next := v_is_next AND NOT FOUND;
    IF v_job.due_at > v_now THEN
        RETURN;     -- (it has no place in line yet)
    END IF;

    v_lane := coalesce(v_job.lane, CASE v_job.state WHEN 'stuck' THEN 0 ELSE joex_private.lane(v_job.priority) END);
    SELECT least(coalesce(sum(n) FILTER (WHERE lane = 0 AND v_lane <> 0), 0), 1000) AS retries,
           least(coalesce(sum(n) FILTER (WHERE lane = v_lane), 0), 1000) AS same,
           least(coalesce(sum(n) FILTER (WHERE lane <> 0 AND lane <> v_lane AND v_lane <> 0), 0), 1000) AS other
    INTO v_ahead FROM (
        SELECT l.lane, (SELECT count(*) FROM (
            SELECT FROM joex_private.job j WHERE j.queue = v_job.queue AND j.ring = v_job.ring AND j.lane = l.lane
                   AND (l.lane <> v_lane OR (j.rank, j.seq) < (v_job.rank, v_job.seq)) LIMIT 1000) x) AS n
        FROM unnest('{0,1,2}'::smallint[]) l(lane)
        UNION ALL
        SELECT d.lane, count(*) FROM (
            SELECT j.ring, CASE j.state WHEN 'stuck' THEN 0 ELSE joex_private.lane(j.priority) END AS lane, j.rank, j.seq
            FROM joex_private.job j WHERE j.queue = v_job.queue AND j.due_at <= v_now ORDER BY j.due_at LIMIT 5000) d
        WHERE d.ring = v_job.ring AND (d.lane <> v_lane OR (d.rank, d.seq) < (v_job.rank, v_job.seq)) GROUP BY d.lane) counted;
    IF v_ahead.retries + v_ahead.same + v_ahead.other > 0 THEN
        v_is_next := false;
        RETURN QUERY SELECT 'behind', jsonb_build_object(
            'retries', v_ahead.retries, 'same', v_ahead.same, 'other', v_ahead.other);
    END IF;

    SELECT * INTO v_turn FROM joex_private.places_before(v_job.queue, v_job.ring, v_group.running / v_group.weight);
    IF v_turn.places > 0 THEN
        v_is_next := false;
        RETURN QUERY SELECT 'turn', jsonb_build_object('places', v_turn.places, 'at_least', v_turn.at_least);
    END IF;
    IF v_is_next THEN
        RETURN QUERY SELECT 'next', '{}'::jsonb;
    END IF;
END $$;

-- How many groups of a queue a take serves before the group at p_ring, which is on p_level: groups on a lower level, and groups on the
-- same level that come first from the ring cursor on. This reads at most 100 groups. As in why, jobs that are due count.
CREATE OR REPLACE FUNCTION joex_private.places_before(p_queue text, p_ring bigint, p_level bigint)
RETURNS TABLE (places bigint, at_least boolean)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_cursor bigint;
    v_before bigint;            -- the walk starts after this place, as in choose
    v_at bigint;
    v_last bigint;
    v_around boolean := false;  -- past the end of the ring, and on from its beginning
    v_passed boolean := false;  -- past the group at p_ring
    v_level bigint;
    v_open boolean;
    v_now timestamptz := clock_timestamp();
    v_due bigint[] := ARRAY(    -- the places of groups with due jobs, and p_ring, which may be among them, in order
        SELECT d.ring FROM (SELECT j.ring FROM joex_private.job j WHERE j.queue = p_queue AND j.due_at <= v_now
                            ORDER BY j.due_at LIMIT 5000) d
        UNION SELECT p_ring ORDER BY 1);
BEGIN
    places := 0;
    at_least := false;
    IF NOT pg_is_in_recovery() THEN     -- (A standby has no plans, and may not even look for them: they are not logged.)
        -- The cursor is behind the last service of a plan: the next one is the first that no take has drawn.
        SELECT p.cursors[d.drawn + 1] INTO v_cursor
        FROM joex_private.queue q JOIN joex_private.plan p ON p.queue = q.name
        CROSS JOIN LATERAL (SELECT greatest(coalesce(pg_sequence_last_value(q.drawn), 0) + 1 - p.first, 0) AS drawn) d
        WHERE q.name = p_queue AND d.drawn < cardinality(p.tids) ORDER BY p.first DESC LIMIT 1;
    END IF;
    IF v_cursor IS NULL THEN
        SELECT pg_sequence_last_value(q.cursor) INTO v_cursor FROM joex_private.queue q WHERE q.name = p_queue;
    END IF;
    v_cursor := coalesce(v_cursor, -9223372036854775808);
    SELECT (v_cursor >> 8) - (coalesce(max(g.weight), 1) > (v_cursor & 255))::integer INTO v_before
    FROM joex_private.group_setting g WHERE g.queue = p_queue AND g.ring = v_cursor >> 8;
    v_at := v_before;
    FOR looked IN 1..101 LOOP
        v_last := v_at;
        SELECT j.ring INTO v_at FROM joex_private.job j
        WHERE j.queue = p_queue AND j.lane IS NOT NULL AND j.ring > v_at ORDER BY j.ring LIMIT 1;
        v_at := least(v_at, v_due[width_bucket(v_last, v_due) + 1]);    -- (null counts for nothing)
        IF v_at IS NULL OR v_around AND v_at > v_before THEN
            EXIT WHEN v_around;
            v_around := true;
            v_at := -9223372036854775808;
            CONTINUE;
        END IF;
        IF looked = 101 THEN
            at_least := true;
            EXIT;
        END IF;
        IF v_at = p_ring THEN
            v_passed := true;
            CONTINUE;
        END IF;
        SELECT o.running / coalesce(max(g.weight), 1),
               NOT coalesce(bool_or(g.paused), false) AND coalesce(min(g.max_running) > o.running, true)
        INTO v_level, v_open
        FROM joex_private.running_of(p_queue, v_at, NULL, NULL) o
        LEFT JOIN joex_private.group_setting g ON g.queue = p_queue AND g.ring = v_at GROUP BY o.running;
        IF v_open AND (v_level < p_level OR v_level = p_level AND NOT v_passed) THEN
            places := places + 1;
        END IF;
    END LOOP;
    RETURN NEXT;
END $$;
