-- The reads and writes of an operator that adds and removes the executors of pools.

-- Retire an app-id: until an operator forgets it, no executor registers under it, or takes a job. When this has committed, no take under
-- it is under way. Returns draining (an executor is alive under it; it finishes its runs, and leaves), retired (no executor is alive under
-- it), or busy (p_only_if_idle, and an executor of this app-id holds a job, or has a slot that an overrun keeps: nothing has changed).
CREATE OR REPLACE FUNCTION joex_private.retire(p_app_id text, p_only_if_idle boolean) RETURNS text
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    v_ids integer[];
BEGIN
    PERFORM joex_private.must_see_the_latest('joex_private.retire');
    -- Against a registration under this app-id: it comes before all of this, or finds the app-id retired.
    PERFORM joex_private.lock_app_id(p_app_id);
    -- Against a take (see hand_out): it comes before all of this, and its jobs are counted, or finds that the executor drains.
    PERFORM FROM joex_private.executor e WHERE e.app_id = p_app_id AND e.left_at IS NULL ORDER BY e.id FOR NO KEY UPDATE;
    v_ids := ARRAY(SELECT e.id FROM joex_private.executor e WHERE e.app_id = p_app_id AND e.left_at IS NULL);
    IF p_only_if_idle
       AND (EXISTS (SELECT FROM unnest(v_ids) x(id) CROSS JOIN LATERAL joex_private.held_by(x.id))
            OR EXISTS (SELECT FROM joex_private.overrun o WHERE o.executor_id = ANY (v_ids))) THEN
        RETURN 'busy';
    END IF;
    UPDATE joex_private.executor e SET draining = true WHERE e.id = ANY (v_ids);
    PERFORM joex_private.notify_executor(x.id) FROM unnest(v_ids) x(id);
    INSERT INTO joex_private.retired (app_id) VALUES (p_app_id) ON CONFLICT DO NOTHING;     -- (the first time counts)
    PERFORM joex_private.notify_operators(p_app_id);
    RETURN CASE WHEN v_ids = '{}' THEN 'retired' ELSE 'draining' END;
END $$;

-- Forget that an app-id was retired at this time: a new executor may register under it.
CREATE OR REPLACE FUNCTION joex_private.forget_retired(p_app_id text, p_retired_at timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM joex_private.retired r WHERE r.app_id = p_app_id AND r.retired_at = p_retired_at;
    RETURN FOUND;
END $$;

-- Mark the executor of an app-id as one that its pool could do without, or no longer (see another_can_take): an operator lets it leave when
-- it is idle. Its next registration has no mark. False: it has the mark already, or there is no such executor.
CREATE OR REPLACE FUNCTION joex_private.mark_spare(p_app_id text, p_spare boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_queues text[];
BEGIN
    PERFORM joex_private.must_see_the_latest('joex_private.mark_spare');
    UPDATE joex_private.executor e SET spare = p_spare WHERE e.app_id = p_app_id AND e.left_at IS NULL AND NOT e.draining
        AND e.spare <> p_spare
    RETURNING e.queues INTO v_queues;
    IF FOUND THEN   -- (for what it has left to an executor that is gone since, or what it was woken for before it was marked)
        PERFORM joex_private.wake(q.name, 2) FROM unnest(v_queues) q(name) WHERE joex_private.has_runnable(q.name);
    END IF;
    RETURN v_queues IS NOT NULL;
END $$;

-- A pod has certainly stopped: end its executor at once. Returns how many jobs go back.
CREATE OR REPLACE FUNCTION joex_private.pod_gone(p_pod_uid text) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM joex_private.must_see_the_latest('joex_private.pod_gone');
    RETURN (SELECT coalesce(sum(joex_private.end_executor(e.id, 'dead')), 0)
            FROM joex_private.executor e WHERE e.pod_uid = p_pod_uid AND e.left_at IS NULL);
END $$;

-- The executors whose app-id begins with one of p_prefixes, living or retired: for each prefix, a row for each living executor (of an
-- app-id, one that takes jobs, and any number that drain), and for each retired app-id without one. held: how many of its slots are taken,
-- by jobs and by overruns; all of them where it takes nothing beside a suspect.
CREATE OR REPLACE FUNCTION joex_private.replicas(p_prefixes text[])
RETURNS TABLE (prefix text, app_id text, executor integer, pod_uid text, held bigint, draining boolean, spare boolean,
               retired_at timestamptz)
LANGUAGE sql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
    WITH own AS (SELECT p.prefix, y.* FROM unnest(p_prefixes) p (prefix) CROSS JOIN LATERAL (
                     SELECT x.* FROM joex_private.executor x
                     WHERE x.left_at IS NULL AND x.app_id ~>=~ p.prefix AND x.app_id ~<~ (p.prefix || chr(1114111))
                     OFFSET 0) y)        -- (for each prefix, by executor_living: there may be the executors of a thousand pools)
    SELECT prefix, app_id, e.id, e.pod_uid, coalesce(greatest(h.held, CASE WHEN h.alone THEN e.pool_size END), 0),
           coalesce(e.draining, false), coalesce(e.spare, false), r.retired_at
    FROM own e
    FULL JOIN (SELECT p.prefix, x.* FROM unnest(p_prefixes) p (prefix) JOIN joex_private.retired x ON starts_with(x.app_id, p.prefix)) r
        USING (prefix, app_id)
    LEFT JOIN (SELECT x.executor_id, count(*) AS held, bool_or(x.alone) AS alone
               FROM (SELECT j.executor_id, j.suspect AND joex_private.runs_alone(j.id) AS alone FROM joex_private.held j
                     WHERE j.queue = ANY (ARRAY(SELECT unnest(o.queues) FROM own o))       -- (not what all the others hold)
                     UNION ALL SELECT o.executor_id, false FROM joex_private.overrun o) x
               GROUP BY x.executor_id) h
        ON h.executor_id = e.id $$;

-- Move all due jobs of these queues to their lane, as a take does, and put back their overdue jobs, as executors do: there may be no
-- executor.
CREATE OR REPLACE FUNCTION joex_private.promote_due(p_queues text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_queue text;
    v_now timestamptz := clock_timestamp();
BEGIN
    FOREACH v_queue IN ARRAY p_queues LOOP
        FOR batch IN 1..10 LOOP
            PERFORM joex_private.promote(v_queue);
            -- (Those that another transaction has locked stay due, and very many may be.)
            PERFORM FROM joex_private.job j WHERE j.queue = v_queue AND j.due_at <= v_now ORDER BY j.due_at LIMIT 1 FOR UPDATE SKIP LOCKED;
            EXIT WHEN NOT FOUND;
        END LOOP;
    END LOOP;
    PERFORM joex_private.recover_overdue(p_queues);
END $$;

-- How many jobs of these queues an executor could take now, counted up to p_most: without the jobs of paused queues and groups, and without
-- jobs beyond a group's limit. And the seconds until the next job is due (null: no job has a time). This counts a due job only when
-- promote_due has moved it to its lane.
CREATE OR REPLACE FUNCTION joex_private.demand(p_queues text[], p_most integer)
RETURNS TABLE (runnable bigint, next_due float8)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_queue text;
BEGIN
    runnable := 0;
    FOREACH v_queue IN ARRAY p_queues LOOP
        CONTINUE WHEN EXISTS (SELECT FROM joex_private.queue q WHERE q.name = v_queue AND q.paused_at IS NOT NULL);
        IF EXISTS (SELECT FROM joex_private.group_setting g
                   WHERE g.queue = v_queue AND (g.paused OR g.max_running IS NOT NULL)) THEN
            runnable := runnable + joex_private.demand_by_group(v_queue, p_most - runnable);
        ELSE
            runnable := runnable + (SELECT count(*) FROM (
                SELECT FROM joex_private.job j WHERE j.queue = v_queue AND j.lane IS NOT NULL LIMIT p_most - runnable) x);
        END IF;
        EXIT WHEN runnable >= p_most;
    END LOOP;
    -- (greatest(next_due, 0) would be 0 for null)
    next_due := (SELECT CASE WHEN l.next_due < 0 THEN 0 ELSE l.next_due END FROM joex_private.sleep_state(p_queues) l);
    RETURN NEXT;
END $$;

-- The same for one queue in which groups are paused or limited: from one of these groups to the next along the ring, and all that wait
-- between them at once. (A step for each group took 1.6 s for 50,000 of them; statements for each step took up to three times as long as this one.)
CREATE OR REPLACE FUNCTION joex_private.demand_by_group(p_queue text, p_most bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashagg = off
SET enable_mergejoin = off SET enable_hashjoin = off SET enable_memoize = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (
        WITH RECURSIVE step AS (
            SELECT -9223372036854775808 AS ring, 0::bigint AS jobs
            UNION ALL
            SELECT coalesce(s.ring, 9223372036854775807), w.jobs
                   + CASE WHEN s.ring IS NULL OR s.ring > f.ring THEN (
                         SELECT count(*) FROM (
                             SELECT FROM joex_private.job j
                             WHERE j.queue = p_queue AND j.lane IS NOT NULL AND j.ring >= f.ring
                                   AND j.ring <= coalesce(s.ring - 1, 9223372036854775807)
                             ORDER BY j.ring LIMIT p_most - w.jobs) x) ELSE 0 END
                   + CASE WHEN s.room > 0 THEN greatest(least((
                         SELECT count(*) FROM (
                             SELECT FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = s.ring AND j.lane IS NOT NULL
                             LIMIT p_most - w.jobs) x), s.room - (
                         SELECT count(*) FROM joex_private.job j
                         WHERE j.queue = p_queue AND j.ring = s.ring AND j.executor_id IS NOT NULL) - (
                         SELECT count(*) FROM joex_private.overrun o WHERE o.queue = p_queue AND o.ring = s.ring)), 0) ELSE 0 END
            FROM step w
            CROSS JOIN LATERAL (
                SELECT j.ring FROM joex_private.job j WHERE j.queue = p_queue AND j.lane IS NOT NULL AND j.ring > w.ring
                ORDER BY j.ring LIMIT 1) f
            LEFT JOIN LATERAL (
                SELECT g.ring, min(CASE WHEN g.paused THEN 0 ELSE g.max_running END) AS room
                FROM joex_private.group_setting g
                WHERE g.queue = p_queue AND g.ring >= f.ring AND (g.paused OR g.max_running IS NOT NULL)
                GROUP BY g.ring ORDER BY g.ring LIMIT 1) s ON true
            WHERE w.jobs < p_most
        ) SELECT least(max(w.jobs), p_most) FROM step w);
END $$;

-- The runs of the latest jobs that have finished after this time (null: whenever), by task and group: how many, how many seconds they have
-- held their slots together, and when the last one ended. Of all jobs, and of keyed ones, the last thousand.
-- (Without cancelled ones: they may have waited for a retry since their last run, and nothing tells for how long they ran.)
CREATE OR REPLACE FUNCTION joex_private.latest_runs(p_after timestamptz)
RETURNS TABLE (task text, grp text, runs bigint, seconds float8, last_at timestamptz)
LANGUAGE sql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.task, r.grp, count(*), sum(greatest(extract(epoch FROM r.finished_at - r.scheduled_at), 0))::float8, max(r.finished_at)
    FROM ((SELECT j.task, j.grp, j.state, j.scheduled_at, j.finished_at FROM joex_private.job j
           WHERE j.finished_at > coalesce(p_after, '-infinity') AND j.key IS NULL ORDER BY j.finished_at DESC LIMIT 1000)
          UNION ALL
          (SELECT j.task, j.grp, j.state, j.scheduled_at, j.finished_at FROM joex_private.job j
           WHERE j.finished_at > coalesce(p_after, '-infinity') AND j.key IS NOT NULL ORDER BY j.finished_at DESC LIMIT 1000)) r
    WHERE r.scheduled_at IS NOT NULL AND r.state <> 'cancelled' GROUP BY r.task, r.grp $$;

-- How many slots p_runnable jobs of these queues (see demand) would fill for p_wait seconds, and which part of that time, 0 to 1, a job that
-- runs fills its slot on average (null: none runs). A job counts with its part of the time in p_shares, by task and by group or '', and as
-- a slot if it has none there, or has held one for that time already: whatever such runs took before, this one leaves its slot to no other.
-- (This looks at no more than 300 groups, which are any, because the ring has the order of hashes; reads the next 9,000 of their jobs; and
-- counts no more than p_most. All others count like these.)
CREATE OR REPLACE FUNCTION joex_private.work(p_queues text[], p_runnable bigint, p_most integer, p_shares jsonb, p_wait float8)
RETURNS TABLE (runnable float8, running float8)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_groups CONSTANT integer := greatest(300 / cardinality(p_queues), 1);
    v_queue text;
    v_queues text[] := '{}';    -- of the groups to look at
    v_ring bigint;
    v_rings bigint[] := '{}';
    v_limit integer;
    v_jobs bigint;
    v_slots float8;
    v_all bigint := 0;
    v_counted bigint := 0;
BEGIN
    FOREACH v_queue IN ARRAY p_queues LOOP
        CONTINUE WHEN EXISTS (SELECT FROM joex_private.queue q WHERE q.name = v_queue AND q.paused_at IS NOT NULL);
        v_ring := -9223372036854775808;
        FOR nr IN 1..v_groups LOOP
            SELECT j.ring INTO v_ring FROM joex_private.job j
            WHERE j.queue = v_queue AND j.lane IS NOT NULL AND j.ring > v_ring ORDER BY j.ring LIMIT 1;
            EXIT WHEN NOT FOUND;
            CONTINUE WHEN EXISTS (SELECT FROM joex_private.group_setting g WHERE g.queue = v_queue AND g.ring = v_ring AND g.paused);
            v_queues := v_queues || v_queue;
            v_rings := v_rings || v_ring;
        END LOOP;
    END LOOP;
    runnable := 0;
    FOR nr IN 1..cardinality(v_rings) LOOP
        EXIT WHEN v_counted >= p_most;
        v_queue := v_queues[nr];
        v_ring := v_rings[nr];
        SELECT count(*) INTO v_jobs FROM (
            SELECT FROM joex_private.job j WHERE j.queue = v_queue AND j.ring = v_ring AND j.lane IS NOT NULL LIMIT p_most - v_counted) x;
        SELECT v_jobs * avg(coalesce(p_shares #>> ARRAY[x.task, x.grp], p_shares #>> ARRAY[x.task, ''], '1')::float8)
        INTO v_slots
        FROM (SELECT j.task, j.grp FROM joex_private.job j WHERE j.queue = v_queue AND j.ring = v_ring AND j.lane IS NOT NULL
              ORDER BY j.lane, j.rank, j.seq LIMIT 9000 / cardinality(v_rings)) x;
        v_counted := v_counted + v_jobs;
        v_limit := (SELECT min(g.max_running) FROM joex_private.group_setting g WHERE g.queue = v_queue AND g.ring = v_ring);
        IF v_limit IS NOT NULL THEN     -- (the work of all its jobs, in the slots that it may still have)
            v_limit := greatest(v_limit - (
                SELECT count(*) FROM joex_private.job j
                WHERE j.queue = v_queue AND j.ring = v_ring AND j.executor_id IS NOT NULL) - (
                SELECT count(*) FROM joex_private.overrun o WHERE o.queue = v_queue AND o.ring = v_ring), 0);
            v_jobs := least(v_jobs, v_limit);
            v_slots := least(v_slots, v_limit);
        END IF;
        v_all := v_all + v_jobs;
        runnable := runnable + v_slots;
    END LOOP;
    runnable := CASE WHEN v_all = 0 THEN p_runnable ELSE runnable * p_runnable / v_all END;
    running := (SELECT avg(CASE WHEN extract(epoch FROM clock_timestamp() - x.scheduled_at) >= p_wait THEN 1
                                ELSE coalesce(p_shares #>> ARRAY[x.task, x.grp], p_shares #>> ARRAY[x.task, ''], '1')::float8 END)
                FROM (SELECT h.task, h.grp, (SELECT j.scheduled_at FROM joex_private.job j WHERE j.id = h.id)
                      FROM joex_private.held h WHERE h.queue = ANY (p_queues) LIMIT 1000) x);
    RETURN NEXT;
END $$;

-- Subscribe an operator, for p_for (zero: end the subscription), to notifications on the channel joex_operator of work in these queues
-- that finds no executor asleep. After a notification the operator ends the subscription for a moment, so that not each submission
-- notifies. When this has committed, a transaction below the
-- joex.horizon may still submit a job without a notification.
CREATE OR REPLACE FUNCTION joex_private.watch(p_name text, p_queues text[], p_for interval) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    p_for := joex_private.in_seconds(p_for);
    PERFORM joex_private.forget_watches(p_name, '-infinity');
    INSERT INTO joex_private.watch AS w (queue, name, until)
    SELECT q.name, p_name, clock_timestamp() + p_for FROM unnest(p_queues) q(name) ORDER BY q.name
    ON CONFLICT (queue, name, for_workers) DO UPDATE SET until = excluded.until;
END $$;

-- Note how an operator sizes a pool, unless that is the last step of the pool already; true: it is now. False: another operator came
-- first; call again. A step that lasts is noted twice a day, so that steps of a pool that lives are always there. Of each pool
-- 5,000 steps stay. (An operator does not wait for the answer for long, and its session should not wait on without it.)
CREATE OR REPLACE FUNCTION joex_private.note_pool_step(
    p_namespace text, p_home text, p_pool text, p_before integer, p_target integer, p_ready integer, p_draining integer, p_mode text, p_why text,
    p_wanted integer, p_capped_by text, p_runnable integer, p_held integer, p_next_due float8
) RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET lock_timeout = '5s' AS $$
DECLARE
    v_last joex_private.pool_step;
    v_nr bigint;
BEGIN
    SELECT s.* INTO v_last FROM joex_private.pool_step s WHERE s.home = p_home AND s.pool = p_pool ORDER BY s.nr DESC LIMIT 1;
    IF v_last.at > clock_timestamp() - interval '12 hours'
       AND (v_last.before, v_last.target, v_last.ready, v_last.draining, v_last.mode, v_last.capped_by)
           IS NOT DISTINCT FROM (p_before, p_target, p_ready, p_draining, p_mode, p_capped_by) THEN
        RETURN true;
    END IF;
    v_nr := coalesce(v_last.nr, 0) + 1;
    INSERT INTO joex_private.pool_step (namespace, home, pool, nr, before, target, ready, draining, mode, why, wanted, capped_by, runnable,
                                        held, next_due)
    VALUES (p_namespace, p_home, p_pool, v_nr, p_before, p_target, p_ready, p_draining, p_mode, p_why, p_wanted, p_capped_by, p_runnable,
            p_held, clock_timestamp() + make_interval(secs => p_next_due))
    ON CONFLICT DO NOTHING;     -- (It waits for an operator that is about to write the same number.)
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM joex_private.pool_step s WHERE s.ctid = ANY (ARRAY(
        SELECT x.ctid FROM joex_private.pool_step x WHERE x.home = p_home AND x.pool = p_pool AND x.nr <= v_nr - 5000
        ORDER BY x.nr LIMIT 100 FOR UPDATE SKIP LOCKED));
    PERFORM joex_private.forget_pool_steps(100);
    RETURN true;
END $$;

-- Delete steps of pools that are older than a day, at most p_most; returns how many.
CREATE OR REPLACE FUNCTION joex_private.forget_pool_steps(p_most integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    v_steps bigint;
BEGIN
    DELETE FROM joex_private.pool_step s WHERE s.ctid = ANY (ARRAY(
        SELECT x.ctid FROM joex_private.pool_step x WHERE x.at < clock_timestamp() - interval '1 day'
        ORDER BY x.at LIMIT p_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_steps = ROW_COUNT;
    RETURN v_steps;
END $$;
