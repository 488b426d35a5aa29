-- Executors: which are alive, and what happens to the jobs of a dead one.
--
-- A living executor holds a session lock on its id and renews its lease, a row of joex_private.lease. A judge (an executor, an operator,
-- or the next executor of the same app-id) declares it dead for silence that the judge has observed: its lock is free and it has been
-- silent for one lease, or it has been silent for five leases though its session exists (a hung process, a cut network).
--
-- No clock of the server counts: an administrator may set it. Each heartbeat stores the id of its transaction (beat), and ids only grow.
-- A judge collects such ids too, its marks, while its session answers without a gap, and notes the time of each on its own clock
-- (core/lease.py, Observation). A beat below a mark began before the judge had that mark: the executor has been silent at least as long as
-- the mark is old. p_ages are the ages of the marks in seconds, ascending; p_marks are the marks.
-- The executor itself stops trusting its lease well before that, on its own clock, counted from when it sent the last heartbeat that the
-- server answered, and ends its runs first.

-- End the registration of an executor and put its jobs back, scheduled and running ones alike: they wait again, at their old place in
-- line. A job with more losses than this executor allows fails, because it may be the job that kills executors (see put_back). Jobs whose row
-- another session has locked, and jobs beyond p_jobs, follow with the next rescue (orphans). Returns how many jobs.
CREATE OR REPLACE FUNCTION joex_private.end_executor(p_id integer, p_ending text, p_jobs integer DEFAULT 5000)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM joex_private.must_see_the_latest('joex_private.end_executor');
    PERFORM joex_private.mark_ended(p_id, p_ending);
    RETURN coalesce((SELECT sum(o.jobs) FROM joex_private.put_back_orphans(p_jobs, p_id) o), 0);
END $$;

-- Mark an executor as ended, and its jobs as orphans. Waits for a take of this executor that is under way (see hand_out); after this it
-- takes nothing more. False: another judge was faster.
CREATE OR REPLACE FUNCTION joex_private.mark_ended(p_id integer, p_ending text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_app_id text;
BEGIN
    UPDATE joex_private.executor e SET left_at = clock_timestamp(), ending = p_ending, orphans = true
    WHERE e.id = p_id AND e.left_at IS NULL RETURNING e.app_id INTO v_app_id;
    IF FOUND THEN
        DELETE FROM joex_private.lease l WHERE l.executor_id = p_id;
        PERFORM joex_private.get_up(p_id);      -- (first: the next statement wakes who is asleep)
        PERFORM joex_private.end_overruns(p_id, ARRAY(SELECT o.lock_id FROM joex_private.overrun o WHERE o.executor_id = p_id));
        PERFORM joex_private.notify_operators(v_app_id);
        PERFORM joex_private.announce_executor('executor-left', p_id);
    END IF;
    RETURN v_app_id IS NOT NULL;
END $$;

-- The jobs that these executors hold. This reads all held jobs once, not once for each executor.
CREATE OR REPLACE FUNCTION joex_private.held_by_any(p_ids integer[]) RETURNS TABLE (id uuid, executor_id integer)
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_nestloop = off SET jit = off AS $$
    SELECT h.id, h.executor_id FROM joex_private.held h JOIN unnest(p_ids) x(id) ON x.id = h.executor_id $$;

-- Put back at most p_jobs jobs that ended executors still hold (p_id: only those of this executor). Any number of callers share this work:
-- each skips the rows that another one has locked. Returns how many of each executor.
CREATE OR REPLACE FUNCTION joex_private.put_back_orphans(p_jobs integer, p_id integer DEFAULT NULL)
RETURNS TABLE (executor integer, jobs bigint) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    v_ended integer[] := ARRAY(SELECT e.id FROM joex_private.executor e WHERE e.orphans AND (p_id IS NULL OR e.id = p_id));
    v_batch record;
    v_from integer[] := '{}';
BEGIN
    IF v_ended = '{}' THEN
        RETURN;
    END IF;
    FOR v_batch IN
        SELECT e.ending = 'left' AS in_order, e.most_losses, array_agg(k.id) AS ids, array_agg(k.executor_id) AS executors
        FROM (SELECT j.id, j.executor_id FROM joex_private.job j
              WHERE j.id = ANY (ARRAY(SELECT h.id FROM joex_private.held_by_any(v_ended) h))
                    AND coalesce(j.executor_id, 0) = ANY (v_ended)      -- (coalesce: by the primary key, not by the index of held jobs)
              LIMIT p_jobs FOR UPDATE SKIP LOCKED) k
        JOIN joex_private.executor e ON e.id = k.executor_id GROUP BY 1, 2 LOOP
        PERFORM joex_private.put_back(v_batch.ids, CASE WHEN v_batch.in_order THEN 0 ELSE 1 END, v_batch.most_losses,
                                      'its executor died each time it held this job', NOT v_batch.in_order);
        v_from := v_from || v_batch.executors;
    END LOOP;
    UPDATE joex_private.executor e SET orphans = false
    FROM (SELECT o.id FROM joex_private.executor o
          WHERE o.orphans AND o.id = ANY (v_ended)
                AND o.id <> ALL (ARRAY(SELECT DISTINCT h.executor_id FROM joex_private.held_by_any(v_ended) h))
          FOR UPDATE SKIP LOCKED) done
    WHERE e.id = done.id;
    RETURN QUERY SELECT f.id, count(*) FROM unnest(v_from) f(id) GROUP BY f.id;
END $$;

-- Give back the jobs that an executor holds but does not know of, because the answer to a take was lost with its connection. p_known are
-- the lock ids of the runs that it knows of. Waits for a take of this executor that may still be under way. Returns how many jobs it has
-- found. Those whose rows another transaction has locked are left: a tenant that has cancelled its job may leave its transaction open.
--
-- An executor gives up a statement that gets no answer, and the network, or a server process that hung, may carry it out at any later time.
-- So the executor numbers its give-backs, each attempt by one more (p_nr), and each take has the number of the latest one (p_give_back_nr):
-- after a take without an answer it takes nothing until a give-back has been answered. A give-back with a number that is not above that in
-- the executor's row does nothing: the executor may have taken jobs since that its p_known does not have. (One that is above it comes
-- before any later take: no later one has been answered.) And a take with a number below that in the row gets nothing (see hand_out): no
-- give-back would find its jobs.
CREATE OR REPLACE FUNCTION joex_private.give_back_unknown(p_id integer, p_nr integer, p_known uuid[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    v_found uuid[];
BEGIN
    PERFORM joex_private.must_see_the_latest('joex_private.give_back_unknown');
    UPDATE joex_private.executor e SET give_back_nr = p_nr WHERE e.id = p_id AND e.give_back_nr < p_nr AND e.left_at IS NULL;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    v_found := ARRAY(SELECT j.id FROM joex_private.job j WHERE j.id = ANY (ARRAY(SELECT joex_private.held_by(p_id)))
                                                         AND j.executor_id IS NOT DISTINCT FROM p_id AND j.lock_id <> ALL (p_known));
    PERFORM joex_private.put_back(array_agg(k.id), 0, NULL, NULL) FROM (
        SELECT j.id FROM joex_private.job j WHERE j.id = ANY (v_found) AND j.executor_id IS NOT DISTINCT FROM p_id
        FOR UPDATE SKIP LOCKED) k;
    RETURN cardinality(v_found);
END $$;

-- The executors that a judge has observed to be silent for one lease (and that could hold a session lock), or for five (is_hung). beat is
-- null if the row of the lease is missing: such an executor can't renew. A beat that this server has not given out yet comes from
-- another server (the rows were restored or replicated): that executor has not renewed since the judge began.
CREATE OR REPLACE FUNCTION joex_private.silent(p_ages float8[], p_marks bigint[])
RETURNS TABLE (id integer, beat bigint, is_hung boolean) LANGUAGE sql STABLE AS $$
    SELECT s.id, s.beat, s.begun < s.mark_of_five IS TRUE
    FROM (SELECT e.id, e.locks, l.beat,
                 -- (Of the snapshot that shows these rows: no visible beat of this server is above its end.)
                 CASE WHEN l.beat < (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint) THEN l.beat ELSE 0 END AS begun,
                 -- The youngest mark that is older than that; null if the judge has none.
                 p_marks[1 + width_bucket(extract(epoch FROM e.lease)::float8, p_ages)] AS mark_of_one,
                 p_marks[1 + width_bucket(extract(epoch FROM e.lease * 5)::float8, p_ages)] AS mark_of_five
          FROM joex_private.executor e LEFT JOIN joex_private.lease l ON l.executor_id = e.id WHERE e.left_at IS NULL) s
    WHERE s.begun < s.mark_of_five OR s.locks AND s.begun < s.mark_of_one $$;

-- Whether a session that may be the executor's holds its lock. If none does, this transaction holds it, so that the executor can't
-- acquire it in between; but a session whose role could send no heartbeat, and so is no executor, may hold it.
CREATE OR REPLACE FUNCTION joex_private.has_session(p_id integer) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN NOT pg_try_advisory_xact_lock(joex_private.executor_alive_lock(), p_id) AND EXISTS (
        SELECT FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
              AND l.classid::bigint = joex_private.executor_alive_lock() AND l.objid::bigint = p_id
              AND joex_private.may_call(l.pid, 'joex_private.heartbeat'::regproc));
END $$;

-- End at most p_victims dead executors, and put back at most p_jobs jobs that ended executors still hold. Returns how many of each
-- executor. The caller repeats this, each time in a transaction of its own, until it returns nothing. It never waits for a lock.
CREATE OR REPLACE FUNCTION joex_private.rescue(
    p_ages float8[], p_marks bigint[], p_victims integer DEFAULT 200, p_jobs integer DEFAULT 2000
) RETURNS TABLE (executor integer, app_id text, jobs bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_silent record;
    v_dead integer[] := '{}';
BEGIN
    PERFORM joex_private.must_see_the_latest('joex_private.rescue');
    FOR v_silent IN SELECT s.id, s.beat, s.is_hung FROM joex_private.silent(p_ages, p_marks) s LOOP
        EXIT WHEN cardinality(v_dead) >= p_victims;
        CONTINUE WHEN NOT v_silent.is_hung AND joex_private.has_session(v_silent.id);
        -- Other judges rescue too, and one is enough. (A take that is under way has locked this row: see hand_out.)
        PERFORM FROM joex_private.executor e WHERE e.id = v_silent.id FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        -- Lock the lease of an executor that is still silent: a later heartbeat finds that the lease has ended. (The lease of an
        -- executor that has renewed meanwhile stays unlocked: its next heartbeat does not wait for this transaction.)
        PERFORM FROM joex_private.lease l WHERE l.executor_id = v_silent.id AND l.beat = v_silent.beat FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND AND v_silent.beat IS NOT NULL;
        IF joex_private.mark_ended(v_silent.id, 'dead') THEN
            v_dead := v_dead || v_silent.id;
        END IF;
    END LOOP;
    RETURN QUERY
    WITH back AS MATERIALIZED (SELECT * FROM joex_private.put_back_orphans(p_jobs))
    SELECT e.id, e.app_id, coalesce(b.jobs, 0)
    FROM (SELECT unnest(v_dead) UNION SELECT b.executor FROM back b) f(id)
    JOIN joex_private.executor e ON e.id = f.id LEFT JOIN back b ON b.executor = f.id ORDER BY e.id;
END $$;

-- Serve a queue: make its row and its ring cursor (see make_ring_cursor), once. Returns the cursor; null while another transaction is
-- making it. That may be a client's own transaction, and open for long: a take waits a moment for it, and each take tries again.
CREATE OR REPLACE FUNCTION joex_private.serve_queue(p_queue text) RETURNS regclass
LANGUAGE plpgsql VOLATILE SET lock_timeout = '1ms' AS $$
DECLARE
    v_cursor regclass := (SELECT q.cursor FROM joex_private.queue q WHERE q.name = p_queue);
BEGIN
    IF v_cursor IS NULL THEN
        INSERT INTO joex_private.queue (name) VALUES (p_queue);
        v_cursor := (SELECT q.cursor FROM joex_private.queue q WHERE q.name = p_queue);
    END IF;
    RETURN v_cursor;
EXCEPTION WHEN lock_not_available OR unique_violation THEN    -- (the row may be younger than the snapshot of this transaction)
    RETURN NULL;
END $$;

-- Grant the sequences of a queue to the roles that may take jobs and lack the right. Takes alone do so, and not the transaction that makes
-- the queue: a grant or a revocation that commits while that one is open would not see the sequences, and neither may wait for the other,
-- because it may be a tenant's, and stay open. Where another transaction grants or revokes for longer, a later take tries again.
CREATE OR REPLACE FUNCTION joex_private.grant_queue(p_queue text) RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' AS $$
DECLARE
    v_grant record;
BEGIN
    PERFORM joex_private.must_see_the_latest('joex_private.grant_queue');
    -- (As set_scopes does. This waits before it reads who may take jobs: a role whose revocation has just committed gets nothing. And the
    -- server raises an error where two transactions grant the same sequence at a time.)
    LOCK TABLE joex_private.role_scope IN SHARE ROW EXCLUSIVE MODE;
    FOR v_grant IN
        SELECT q.cursor, q.drawn, a.grantee::regrole AS taker
        FROM joex_private.queue q, pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
        WHERE q.name = p_queue AND c.oid = 'joex_private.job'::regclass AND a.privilege_type = 'UPDATE' AND a.grantee <> 0
              AND NOT has_sequence_privilege(a.grantee, q.cursor, 'UPDATE') LOOP
        EXECUTE format('GRANT SELECT, UPDATE ON SEQUENCE %s, %s TO %s', v_grant.cursor, v_grant.drawn, v_grant.taker);
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    NULL;
END $$;

-- Exclude, and wait for, other transactions that register or retire this app-id, until this one ends. False: it is retired. (The row is
-- gone as soon as it is there, but a transaction that inserts an equal one waits for the end of this transaction all the same.)
CREATE OR REPLACE FUNCTION joex_private.lock_app_id(p_app_id text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    LOOP
        INSERT INTO joex_private.retired (app_id) VALUES (p_app_id) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            DELETE FROM joex_private.retired r WHERE r.app_id = p_app_id;
            RETURN true;
        END IF;
        PERFORM FROM joex_private.retired r WHERE r.app_id = p_app_id FOR UPDATE;
        IF FOUND THEN       -- (else an operator has forgotten it meanwhile)
            RETURN false;
        END IF;
    END LOOP;
END $$;

-- Register an executor. This replaces an earlier registration of the same app-id, and puts its jobs back, if that executor is certainly
-- gone: it is p_gone (the caller saw that its process no longer exists, or that it ran in the caller's pod before); or the caller has
-- observed silence that makes it dead (p_ages, p_marks). If it may be alive, this leaves it, and returns the other executor instead
-- of an id; unless the other one drains, and is one of p_beside (the caller could not see that its process no longer exists): then both
-- live until it has finished its runs. So the caller names the one that this may end: a call that comes late, after its caller has given
-- it up and registered by another connection, or after a successor in the same pod has registered, knows neither of these, and ends
-- nobody. If the app-id is retired (see retire), this changes nothing either. silent is for people; null if the row of the lease
-- is missing. mark: the caller's next mark. p_schema_version is the newest migration that the executor knows. (It has checked that at its
-- start: a migration may have locked it out since.)
CREATE OR REPLACE FUNCTION joex_private.register(
    p_app_id text, p_pod_uid text, p_host text, p_boot_id text, p_pid integer, p_process_start text, p_version text,
    p_queues text[], p_tasks text[], p_pool_size integer, p_http_address text, p_lease interval, p_locks boolean,
    p_most_losses integer, p_gone integer DEFAULT NULL, p_ages float8[] DEFAULT '{}', p_marks bigint[] DEFAULT '{}',
    p_schema_version integer DEFAULT 1, p_beside integer[] DEFAULT '{}'
) RETURNS TABLE (id integer, reclaimed bigint, other joex_private.executor, retired boolean, silent interval, mark bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_id integer;
    v_certain boolean;
    v_silent record;
    v_min_reader integer;
BEGIN
    PERFORM joex_private.must_see_the_latest('joex_private.register');
    p_lease := joex_private.in_seconds(p_lease);
    -- A migration that takes something away has locked the table, or sees this executor.
    LOCK TABLE joex_private.executor IN ROW EXCLUSIVE MODE;
    v_min_reader := (SELECT max(m.min_reader) FROM joex_private.migration m);
    IF p_schema_version < v_min_reader THEN
        RAISE EXCEPTION 'the Joex schema needs programs that know version %; this executor knows version %: use a newer joex',
            v_min_reader, p_schema_version USING ERRCODE = 'JX005';
    END IF;
    reclaimed := 0;
    retired := NOT joex_private.lock_app_id(p_app_id);
    mark := joex.horizon();
    IF retired THEN
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM joex_private.serve_queue(q.name) FROM unnest(p_queues) q(name);
    -- (Whether one drains never changes back, so one that must not take beside the new one is found here, or has not registered yet. In the
    -- order of their ids, in which drain and retire lock them.)
    FOR v_id IN SELECT e.id FROM joex_private.executor e WHERE e.app_id = p_app_id AND e.left_at IS NULL ORDER BY e.id LOOP
        SELECT * INTO other FROM joex_private.executor e WHERE e.id = v_id AND e.left_at IS NULL;
        v_certain := coalesce(other.id = p_gone, false);
        SELECT s.id, s.beat, s.is_hung INTO v_silent FROM joex_private.silent(p_ages, p_marks) s WHERE s.id = other.id;
        IF v_certain OR v_silent.is_hung
           OR v_silent.id IS NOT NULL AND NOT joex_private.has_session(v_silent.id) THEN
            -- First the executor's row, then that of its lease, as everywhere; then decide again, on the rows as they are now.
            SELECT * INTO other FROM joex_private.executor e WHERE e.id = other.id AND e.left_at IS NULL FOR UPDATE;
            PERFORM FROM joex_private.lease l WHERE l.executor_id = other.id AND (v_certain OR l.beat = v_silent.beat) FOR UPDATE;
            IF other.id IS NOT NULL AND (FOUND OR v_certain OR v_silent.beat IS NULL) THEN
                reclaimed := reclaimed + joex_private.end_executor(other.id, 'replaced');
                other := NULL;
            END IF;
        END IF;
        IF other.id IS NOT NULL AND NOT (other.draining AND other.id = ANY (p_beside)) THEN
            silent := clock_timestamp() - (SELECT l.heartbeat_at FROM joex_private.lease l WHERE l.executor_id = other.id);
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;
    other := NULL;
    -- By chance, not from a sequence: where asynchronous replication has lost the registration of an executor that is still at work, a
    -- promoted standby would give its id to another one, and each would give back the jobs of the other.
    LOOP
        id := 1 + floor(random() * 2147483647)::integer;
        EXIT WHEN NOT EXISTS (SELECT FROM joex_private.executor e WHERE e.id = register.id)
                  AND NOT EXISTS (SELECT joex_private.held_by(register.id));     -- (jobs of an executor whose row was deleted)
    END LOOP;
    INSERT INTO joex_private.executor (id, app_id, pod_uid, host, boot_id, pid, process_start, version, schema_version, queues,
                                       tasks, pool_size, most_losses, http_address, lease, locks, started_at)
    VALUES (id, p_app_id, p_pod_uid, p_host, p_boot_id, p_pid, p_process_start, p_version, p_schema_version, p_queues,
            p_tasks, p_pool_size, p_most_losses, p_http_address, p_lease, p_locks, clock_timestamp());
    INSERT INTO joex_private.lease (executor_id, heartbeat_at, beat) VALUES (id, clock_timestamp(), mark);
    PERFORM joex_private.notify_operators(p_app_id);
    PERFORM joex_private.announce_executor('executor-joined', id);
    RETURN NEXT;
END $$;

-- Renew a lease. Returns the beat, which is a mark too. Null: the lease has ended, for good.
CREATE OR REPLACE FUNCTION joex_private.heartbeat(p_id integer) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_beat bigint := joex.horizon();
BEGIN
    UPDATE joex_private.lease l SET heartbeat_at = clock_timestamp(), beat = v_beat WHERE l.executor_id = p_id;
    RETURN CASE WHEN FOUND THEN v_beat END;
END $$;

-- These overruns of an executor are over, by their lock ids. (Their groups may have room now under their limits.)
CREATE OR REPLACE FUNCTION joex_private.end_overruns(p_executor integer, p_locks uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_queue record;
BEGIN
    FOR v_queue IN
        WITH ended AS (DELETE FROM joex_private.overrun o WHERE o.executor_id = p_executor AND o.lock_id = ANY (p_locks) RETURNING o.queue)
        SELECT e.queue AS name, count(*) AS runs FROM ended e GROUP BY e.queue LOOP
        PERFORM joex_private.wake(v_queue.name, v_queue.runs) WHERE joex_private.has_runnable(v_queue.name);
    END LOOP;
END $$;

-- Runs of this executor go on though their jobs have ended, or are lost: they are overruns from now on. And those of p_over are over.
CREATE OR REPLACE FUNCTION joex_private.note_overruns(p_executor integer, p_locks uuid[], p_queues text[], p_groups text[], p_over uuid[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO joex_private.overrun (executor_id, lock_id, queue, ring)
    SELECT p_executor, o.lock_id, o.queue, joex_private.ring(o.grp) FROM unnest(p_locks, p_queues, p_groups) AS o(lock_id, queue, grp)
    WHERE EXISTS (SELECT FROM joex_private.executor e WHERE e.id = p_executor AND e.left_at IS NULL)
    ON CONFLICT DO NOTHING;
    PERFORM joex_private.end_overruns(p_executor, p_over);
END $$;

-- What an executor may have missed when a notification was lost: whether it must drain; which of the runs that it reports have lost their
-- job (lock ids: it may hold a lost run and the next one of the same job), and of which the job has ended (by a transaction of their code);
-- which jobs have a cancel request; and whether floors need attention (see 25_floors.sql). Overruns that it does not report are over.
CREATE OR REPLACE FUNCTION joex_private.check_runs(p_id integer, p_ids uuid[], p_locks uuid[])
RETURNS TABLE (draining boolean, lost uuid[], ended uuid[], cancel uuid[], crowded boolean)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    -- (An executor that has ended registers again: the new registration has no request to drain.)
    draining := EXISTS (SELECT FROM joex_private.executor e WHERE e.id = p_id AND e.draining AND e.left_at IS NULL);
    SELECT array_agg(g.lock_id) FILTER (WHERE j.id IS NULL), array_agg(g.lock_id) FILTER (WHERE j.finished_at IS NOT NULL),
           array_agg(g.id) FILTER (WHERE j.cancel_requested)
    INTO lost, ended, cancel
    FROM unnest(p_ids, p_locks) AS g(id, lock_id)
    LEFT JOIN joex_private.job j ON j.id = g.id AND j.lock_id = g.lock_id;     -- a job that it has just finished is not lost
    IF EXISTS (SELECT FROM joex_private.overrun o WHERE o.executor_id = p_id) THEN
        PERFORM joex_private.end_overruns(p_id, ARRAY(SELECT o.lock_id FROM joex_private.overrun o
                                                      WHERE o.executor_id = p_id AND o.lock_id <> ALL (p_locks)));
    END IF;
    crowded := joex_private.is_crowded();
    RETURN NEXT;
END $$;

-- Whether there is a job in these queues that may run now. (Not where a take has just found that all others wait for their groups: a take
-- would look at all these groups again. A clock that is set makes that hold for ten seconds at most. The caller sets a time limit: this may
-- read over many dead entries that vacuum has not removed.)
CREATE OR REPLACE FUNCTION joex_private.has_work(p_queues text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    -- (OFFSET 0: one probe for each queue, and no hash table of all waiting jobs; see choose)
    RETURN EXISTS (SELECT FROM unnest(p_queues) q(name) WHERE
        joex_private.has_runnable(q.name) AND NOT joex_private.found_all(q.name, v_now - interval '10 seconds', v_now)
        OR EXISTS (SELECT FROM joex_private.job j WHERE j.queue = q.name AND j.due_at IS NOT NULL
                   AND j.due_at <= v_now
                   AND NOT EXISTS (SELECT FROM joex_private.queue p WHERE p.name = q.name AND p.paused_at IS NOT NULL) OFFSET 0));
END $$;

-- An executor with a free slot and nothing to take falls asleep: submissions wake it from now on. It must take once more after this has
-- committed, and again until each transaction that was open then has ended: one of these may have submitted a job without seeing that
-- the executor sleeps (see sleep_state).
--
-- Each sleep leaves a dead entry in the index by which submissions find sleepers, and an old snapshot of any session keeps vacuum from
-- clearing them. So there is a mark, the sequence sleepers_from, which all transactions see at once, whatever their snapshot: sleepers with
-- numbers below it don't count, and nobody reads there. Who falls asleep and finds many dead entries above the mark moves it: first it sets
-- the mark to a number that no sleeper has, and then, with a new snapshot, it takes from the list those that lie below, and wakes them. They
-- find nothing to take, and that they are on the list no longer, so they fall asleep anew. None that sleeps is forgotten: a row that was
-- committed before that snapshot is found there; one that was committed later is of an executor that looks for itself on the list after its
-- commit, and so after the mark was set (see taker.py). A submission that comes meanwhile sees no sleeper, and may send no notification;
-- to those that fall asleep anew, it is a transaction that was open then. If the mover dies in between, executors find work with a
-- heartbeat, and fall asleep anew after that, as if a notification had been lost.
-- p_give_back_nr: as of a take (see give_back_unknown). An executor that has given this up may have filled its slots since, and would get the
-- wake-ups of others.
CREATE OR REPLACE FUNCTION joex_private.fall_asleep(p_id integer, p_give_back_nr integer DEFAULT 0) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_queues text[];
    v_nr bigint;
BEGIN
    -- (A mover with an older snapshot than the mark would leave one asleep below the mark, and tell it nothing.)
    PERFORM joex_private.must_see_the_latest('joex_private.fall_asleep');
    -- (Who ends this executor waits for the lock, and then finds the row; or this waits, and finds that it has ended. It comes first: those
    -- who end it lock in this order too, and a mover that waits would leave others off the list meanwhile.)
    SELECT e.queues INTO v_queues FROM joex_private.executor e
    WHERE e.id = p_id AND e.left_at IS NULL AND e.give_back_nr <= p_give_back_nr FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM joex_private.get_up(p_id);
    v_nr := nextval('joex_private.sleeper_nr');
    IF v_nr % 50 = 0 THEN
        PERFORM joex_private.leave_dead_sleepers();
    END IF;
    -- (A dump may have read the mark after the numbers.)
    WHILE v_nr < joex_private.sleepers_from() LOOP
        v_nr := nextval('joex_private.sleeper_nr');
    END LOOP;
    INSERT INTO joex_private.sleeper (executor_id, nr, queues) VALUES (p_id, v_nr, v_queues);
END $$;

-- Take an executor from the list of sleepers. (Not from below the mark: the dead entries there may be many.)
CREATE OR REPLACE FUNCTION joex_private.get_up(p_id integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    DELETE FROM joex_private.sleeper s WHERE s.executor_id = p_id AND s.nr >= (SELECT joex_private.sleepers_from());
END $$;

-- Move the mark of sleepers, if many dead entries lie above it (see fall_asleep). Those that are asleep have to fall asleep anew, so the
-- more there are, the more dead entries it takes.
CREATE OR REPLACE FUNCTION joex_private.leave_dead_sleepers() RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_from CONSTANT bigint := joex_private.sleepers_from();
    v_walked bigint := pg_stat_get_xact_tuples_returned('joex_private.sleeper_in_order'::regclass);
    v_asleep bigint := (SELECT count(*) FROM (SELECT s.executor_id FROM joex_private.sleeper s WHERE s.nr >= v_from ORDER BY s.nr) a);
    v_to bigint;
    v_part record;
BEGIN
    v_walked := pg_stat_get_xact_tuples_returned('joex_private.sleeper_in_order'::regclass) - v_walked;
    -- (Of two movers at a time the second one would set the mark back.)
    IF v_walked - v_asleep < 100 + 8 * v_asleep OR NOT joex_private.try_mutex('sleepers')
       OR v_from <> joex_private.sleepers_from() THEN
        RETURN;
    END IF;
    v_to := setval('joex_private.sleepers_from', nextval('joex_private.sleeper_nr'));
    -- (One that is locked is of an executor that has just filled its slots, or falls asleep anew already. A message has room for 400 ids.)
    FOR v_part IN
        WITH left_behind AS (
            DELETE FROM joex_private.sleeper s WHERE s.ctid = ANY (ARRAY(
                SELECT x.ctid FROM joex_private.sleeper x WHERE x.nr >= v_from AND x.nr < v_to ORDER BY x.nr FOR UPDATE SKIP LOCKED))
            RETURNING s.executor_id, s.queues[1] AS queue
        ), numbered AS (SELECT l.*, row_number() OVER (PARTITION BY l.queue) AS n FROM left_behind l)
        SELECT n.queue, array_agg(n.executor_id) AS executors FROM numbered n GROUP BY n.queue, (n.n - 1) / 400 LOOP
        PERFORM joex_private.send('joex_wake', json_build_object('queue', v_part.queue, 'executors', v_part.executors)::text);
    END LOOP;
END $$;

-- An executor that runs a suspect takes nothing until the suspect has ended, though it has free slots, and one whose loop a task blocks
-- takes nothing meanwhile: submissions do not wake it, and the jobs that wait wake other executors. p_give_back_nr: as of a take (see
-- give_back_unknown; null: of none). An executor that has given this up may be asleep anew.
CREATE OR REPLACE FUNCTION joex_private.stand_aside(p_id integer, p_queues text[], p_give_back_nr integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM joex_private.get_up(p_id)
    WHERE NOT EXISTS (SELECT FROM joex_private.executor e WHERE e.id = p_id AND e.give_back_nr > p_give_back_nr);
    PERFORM joex_private.wake(n.name, 2) FROM unnest(p_queues) n(name) WHERE joex_private.has_runnable(n.name);
END $$;

-- What an executor must know before it sleeps: the seconds until the next job of its queues is due (null: none has a time; the jobs of a
-- paused queue do not count, because joex.set_queue wakes executors when it resumes the queue), and the oldest open transaction id.
-- When that has reached a joex.horizon, all transactions below the horizon have ended.
CREATE OR REPLACE FUNCTION joex_private.sleep_state(p_queues text[])
RETURNS TABLE (next_due float8, oldest_xid bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY SELECT
        (SELECT extract(epoch FROM min(d.due_at) - clock_timestamp())::float8 FROM unnest(p_queues) q(name)
         CROSS JOIN LATERAL (SELECT j.due_at FROM joex_private.job j WHERE j.queue = q.name AND j.due_at IS NOT NULL
                             ORDER BY j.due_at LIMIT 1) d
         WHERE NOT EXISTS (SELECT FROM joex_private.queue p WHERE p.name = q.name AND p.paused_at IS NOT NULL)),
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
END $$;

-- Ask the living executors with this app-id (null: all) to drain: they take nothing more, finish their runs, and leave. When this has
-- committed, none of their takes is under way.
CREATE OR REPLACE FUNCTION joex_client.drain(p_app_id text) RETURNS SETOF text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_executor record;
BEGIN
    PERFORM joex_private.must_be_allowed('{operate}', NULL, NULL), joex_private.must_see_the_latest('joex_client.drain');
    PERFORM joex_private.exact(p_app_id);
    FOR v_executor IN SELECT e.id, e.app_id FROM joex_private.executor e
                      WHERE e.left_at IS NULL AND (p_app_id IS NULL OR e.app_id = p_app_id) ORDER BY e.id LOOP
        UPDATE joex_private.executor SET draining = true WHERE id = v_executor.id AND left_at IS NULL;
        IF FOUND THEN
            PERFORM joex_private.notify_executor(v_executor.id);
            PERFORM joex_private.notify_operators(v_executor.app_id);
            PERFORM joex_private.note_act('drain', v_executor.app_id);
            RETURN NEXT v_executor.app_id;
        END IF;
    END LOOP;
END $$;

-- Ask all executors of a queue to look for work now. A submission wakes executors by itself: this is for people, and for clients that
-- notify executors themselves, as Docspell does. Returns how many executors take from the queue.
CREATE OR REPLACE FUNCTION joex_client.wake_all(queue text DEFAULT 'default') RETURNS integer LANGUAGE sql VOLATILE AS $$
    SELECT joex_private.must_be_allowed('{operate}', wake_all.queue, NULL);
    SELECT joex_private.send('joex_wake', json_build_object('queue', wake_all.queue, 'executors', '{}'::integer[])::text);
    SELECT count(*)::integer FROM joex_private.executor e
    WHERE e.left_at IS NULL AND NOT e.draining AND wake_all.queue = ANY (e.queues) $$;
