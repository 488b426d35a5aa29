-- Executors: who lives, and what becomes of the jobs of one that does not.
--
-- An executor holds a session lock on its id and renews the heartbeat of its one row. It is dead when its lock is free
-- and its lease has run out since the last heartbeat, or when five leases have run out though its session is there (a hung
-- process, a cut network). It knows this too: it stops trusting its lease well before that, on its own clock, from the
-- moment it sent the last heartbeat that was answered, and ends its runs first.

-- End an incarnation and put its jobs back: waiting again, at their old place in the line, what merely was
-- scheduled and what ran alike. A job that was lost so more than p_most_losses times is failed, for it may be what kills
-- executors. Jobs whose row somebody has locked follow with the next heartbeat of anybody (orphans). Returns how many jobs.
CREATE OR REPLACE FUNCTION joex.end_executor(p_id integer, p_ending text, p_most_losses integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    v_now timestamptz;
    v_ending text;
    v_has_left boolean;     -- just now; false: its orphans follow
    v_all bigint;
BEGIN
    -- Waits for a take of this executor that is under way (see take): after this, it takes nothing any more.
    PERFORM pg_advisory_xact_lock(joex.lock_class(2), p_id);
    v_now := clock_timestamp();
    UPDATE joex.executor SET left_at = coalesce(left_at, v_now), ending = coalesce(ending, p_ending),
           asleep_since = NULL, orphans = false
    WHERE id = p_id AND (left_at IS NULL OR orphans)
    RETURNING ending, left_at = v_now INTO v_ending, v_has_left;    -- for orphans, how their executor ended counts
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT joex.put_back(array_agg(k.id), CASE v_ending WHEN 'left' THEN 0 ELSE 1 END, p_most_losses,
                         'its executor died each time it held this job') INTO v_all
    FROM (SELECT j.id FROM joex.job j WHERE j.id = ANY (ARRAY(SELECT joex.held_by(p_id)))
                                            AND j.executor_id IS NOT DISTINCT FROM p_id FOR UPDATE SKIP LOCKED) k;
    PERFORM joex.tell_operators((SELECT e.app_id FROM joex.executor e WHERE e.id = p_id));
    IF v_has_left THEN
        PERFORM joex.announce_executor('executor-left', p_id);
    END IF;
    UPDATE joex.executor SET orphans = true
    WHERE id = p_id AND EXISTS (SELECT FROM joex.held_by(p_id));
    RETURN v_all;
END $$;

-- Give back what an executor holds without knowing it: the answer to a take has been lost with its connection. p_known are
-- the lock ids of the runs that it knows of. Waits for a take of this executor that may still be under way. Returns how many.
CREATE OR REPLACE FUNCTION joex.give_back_unknown(p_id integer, p_known uuid[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(joex.lock_class(2), p_id);
    RETURN (SELECT joex.put_back(array_agg(k.id), 0, NULL, NULL) FROM (
        SELECT j.id FROM joex.job j WHERE j.id = ANY (ARRAY(SELECT joex.held_by(p_id)))
                                          AND j.executor_id IS NOT DISTINCT FROM p_id AND j.lock_id <> ALL (p_known)
        FOR UPDATE) k);
END $$;

-- Is the lease of a living incarnation over? Where its lock is free, the caller's transaction holds it afterwards, so that it
-- can't be taken again in between.
CREATE OR REPLACE FUNCTION joex.is_dead(e joex.executor) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- After a restart of the server nobody had a chance to renew: the lease counts from there.
    v_silent interval := clock_timestamp() - greatest(e.heartbeat_at, pg_postmaster_start_time());
BEGIN
    RETURN v_silent > e.lease * 5
           OR v_silent > e.lease AND e.locks AND pg_try_advisory_xact_lock(joex.lock_class(1), e.id);
END $$;

-- End the executors that are dead. Returns them and how many jobs each gave back.
CREATE OR REPLACE FUNCTION joex.rescue(p_most_losses integer) RETURNS TABLE (executor integer, app_id text, jobs bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_id integer;
    v_executor joex.executor;
BEGIN
    FOR v_id IN SELECT e.id FROM joex.executor e
                WHERE e.orphans OR e.left_at IS NULL AND e.heartbeat_at < clock_timestamp() - e.lease LOOP
        -- Others rescue too: one of them is enough. This is also the lock that end_executor takes.
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(joex.lock_class(2), v_id);
        -- Judged on the row as it is now, and locked: a heartbeat that comes later finds that the lease has ended.
        SELECT * INTO v_executor FROM joex.executor e WHERE e.id = v_id FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND OR NOT (v_executor.orphans OR v_executor.left_at IS NULL AND joex.is_dead(v_executor));
        executor := v_executor.id;
        app_id := v_executor.app_id;
        jobs := joex.end_executor(v_executor.id, 'dead', p_most_losses);
        RETURN NEXT;
    END LOOP;
END $$;

-- Serve a queue: make its row and its ring cursor (see joex.make_ring_cursor), once. Answers the cursor; null where another
-- transaction is just making it, for that may be a caller's own, and open for long: nothing waits for it, and each take tries
-- again.
CREATE OR REPLACE FUNCTION joex.serve_queue(p_queue text) RETURNS regclass LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_cursor regclass := (SELECT q.cursor FROM joex.queue q WHERE q.name = p_queue);
BEGIN
    IF v_cursor IS NULL AND pg_try_advisory_xact_lock(joex.lock_class(7), hashtext(p_queue)) THEN
        v_cursor := (SELECT q.cursor FROM joex.queue q WHERE q.name = p_queue);
        IF v_cursor IS NULL THEN
            INSERT INTO joex.queue (name) VALUES (p_queue) RETURNING cursor INTO v_cursor;
        END IF;
    END IF;
    RETURN v_cursor;
EXCEPTION WHEN unique_violation THEN    -- the row is younger than the snapshot of this transaction
    RETURN NULL;
END $$;

-- Register a new incarnation of an executor. An earlier incarnation with the same app-id is replaced, and its jobs
-- put back, where it is certainly gone: it ran in the same pod, or it is p_gone (the caller saw that its process does not
-- exist any more), or its lease is over. Where it may live, nothing is done: the answer has no id, but who is in the way;
-- and neither where the app-id is retired (see joex.retire).
CREATE OR REPLACE FUNCTION joex.register(
    p_app_id text, p_pod_uid text, p_host text, p_boot_id text, p_pid integer, p_process_start text, p_version text,
    p_queues text[], p_tasks text[], p_pool_size integer, p_http_address text, p_lease interval, p_locks boolean,
    p_most_losses integer, p_gone integer DEFAULT NULL
) RETURNS TABLE (id integer, reclaimed bigint, other joex.executor, retired boolean) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_certain boolean;
BEGIN
    reclaimed := 0;
    PERFORM pg_advisory_xact_lock(joex.lock_class(5), hashtext(p_app_id));
    retired := EXISTS (SELECT FROM joex.retired r WHERE r.app_id = p_app_id);
    IF retired THEN
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM joex.serve_queue(q.name) FROM unnest(p_queues) q(name);
    SELECT * INTO other FROM joex.executor e WHERE e.app_id = p_app_id AND e.left_at IS NULL;
    IF FOUND THEN
        v_certain := coalesce(other.pod_uid = p_pod_uid, false) OR coalesce(other.id = p_gone, false);
        IF v_certain OR joex.is_dead(other) THEN
            -- First this lock, then the row, as everywhere; and judged again on the row as it is then.
            PERFORM pg_advisory_xact_lock(joex.lock_class(2), other.id);
            SELECT * INTO other FROM joex.executor e WHERE e.id = other.id AND e.left_at IS NULL FOR UPDATE;
            IF FOUND AND (v_certain OR joex.is_dead(other)) THEN
                reclaimed := joex.end_executor(other.id, 'replaced', p_most_losses);
                other := NULL;
            END IF;
        END IF;
        IF other.id IS NOT NULL THEN
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    INSERT INTO joex.executor (app_id, pod_uid, host, boot_id, pid, process_start, version, queues, tasks, pool_size,
                               http_address, lease, locks, started_at, heartbeat_at)
    VALUES (p_app_id, p_pod_uid, p_host, p_boot_id, p_pid, p_process_start, p_version, p_queues, p_tasks, p_pool_size,
            p_http_address, p_lease, p_locks, clock_timestamp(), clock_timestamp())
    ON CONFLICT (app_id) WHERE left_at IS NULL DO NOTHING   -- another start of the same executor was faster
    RETURNING executor.id INTO id;
    IF id IS NULL THEN
        SELECT * INTO other FROM joex.executor e WHERE e.app_id = p_app_id AND e.left_at IS NULL;
    ELSE
        other := NULL;
        PERFORM joex.tell_operators(p_app_id);
        PERFORM joex.announce_executor('executor-joined', id);
    END IF;
    RETURN NEXT;
END $$;

-- Renew a lease, and learn what matters: is the lease still there; is there work in its queues (a notification that
-- got lost costs no more than this); is it to drain; which of the runs it says it has are not its own any more, or are
-- to be cancelled; and must somebody look after floors (see 25_floors.sql).
CREATE OR REPLACE FUNCTION joex.heartbeat(p_id integer, p_ids uuid[], p_locks uuid[])
RETURNS TABLE (alive boolean, work boolean, draining boolean, lost uuid[], cancel uuid[], crowded boolean)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_queues text[];
    v_now timestamptz := clock_timestamp();
BEGIN
    UPDATE joex.executor e SET heartbeat_at = clock_timestamp() WHERE e.id = p_id AND e.left_at IS NULL
    RETURNING e.draining, e.queues INTO draining, v_queues;
    alive := FOUND;
    -- (OFFSET 0: a probe for each queue, and no hash table of all that waits; see choose)
    work := EXISTS (SELECT FROM unnest(v_queues) q(name) WHERE
        joex.has_runnable(q.name)
        OR EXISTS (SELECT FROM joex.job j WHERE j.queue = q.name AND j.due_at IS NOT NULL
                   AND j.due_at <= v_now OFFSET 0));
    SELECT array_agg(g.id) FILTER (WHERE j.id IS NULL), array_agg(g.id) FILTER (WHERE j.cancel_requested)
    INTO lost, cancel
    FROM unnest(p_ids, p_locks) AS g(id, lock_id)
    LEFT JOIN joex.job j ON j.id = g.id AND j.lock_id = g.lock_id;     -- one that it has just finished is not lost
    crowded := joex.is_crowded();
    RETURN NEXT;
END $$;

-- An executor with a free slot and nothing to take wants to be woken. It must take once more after this has committed, and
-- again until each transaction that was open at that time has ended: one of them may have submitted a job without
-- seeing that somebody sleeps (see joex.look).
CREATE OR REPLACE FUNCTION joex.fall_asleep(p_id integer) RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE joex.executor SET asleep_since = clock_timestamp() WHERE id = p_id AND left_at IS NULL $$;

-- What a sleeper must know: the seconds until the next job of its queues is due (null: none is waiting for its time), and
-- the oldest transaction id that is open: all transactions below a joex.horizon have ended when it has reached that.
CREATE OR REPLACE FUNCTION joex.look(p_queues text[])
RETURNS TABLE (next_due float8, oldest_xid bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY SELECT
        (SELECT extract(epoch FROM min(d.due_at) - clock_timestamp())::float8 FROM unnest(p_queues) q(name)
         CROSS JOIN LATERAL (SELECT j.due_at FROM joex.job j WHERE j.queue = q.name AND j.due_at IS NOT NULL
                             ORDER BY j.due_at LIMIT 1) d),
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
END $$;

-- A transaction id that is younger than each that writes now. It must be one of its own, taken in a transaction of its own:
-- the end of a snapshot is no more than the id after the last that has been committed, and younger ones may be open.
CREATE OR REPLACE FUNCTION joex.horizon() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_current_xact_id()::text::bigint $$;

-- Ask the living executors with this app-id (null: all) to drain: they take nothing more, finish what runs, and leave.
-- When this has committed, no take of theirs is under way.
CREATE OR REPLACE FUNCTION joex.drain(p_app_id text) RETURNS SETOF text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_executor record;
BEGIN
    FOR v_executor IN SELECT e.id, e.app_id FROM joex.executor e
                      WHERE e.left_at IS NULL AND (p_app_id IS NULL OR e.app_id = p_app_id) ORDER BY e.id LOOP
        PERFORM pg_advisory_xact_lock(joex.lock_class(2), v_executor.id);
        UPDATE joex.executor SET draining = true WHERE id = v_executor.id AND left_at IS NULL;
        IF FOUND THEN
            PERFORM joex.tell(v_executor.id, 'drain');
            PERFORM joex.tell_operators(v_executor.app_id);
            RETURN NEXT v_executor.app_id;
        END IF;
    END LOOP;
END $$;

-- Ask all executors of a queue to look for work now. A submission wakes those it needs by itself: this is for people, and for
-- those who tell of work as Docspell does. Returns how many executors take from the queue.
CREATE OR REPLACE FUNCTION joex.notify(queue text DEFAULT 'default') RETURNS integer LANGUAGE sql VOLATILE AS $$
    SELECT pg_notify('joex_wake', json_build_object('queue', notify.queue, 'executors', '{}'::integer[])::text);
    SELECT count(*)::integer FROM joex.executor e
    WHERE e.left_at IS NULL AND NOT e.draining AND notify.queue = ANY (e.queues) $$;
