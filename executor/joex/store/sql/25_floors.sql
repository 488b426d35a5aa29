-- Floors: where takes begin to read while vacuum is kept from clearing what jobs leave behind.
--
-- An old snapshot of any session keeps vacuum from clearing. Each job that was taken and finished then leaves dead entries at the
-- head of its group in the indexes of runnable and of held jobs, and each take would walk over all of them. A floor is a low watermark of
-- a group. For each lane it says: no runnable job of rank '' has a smaller seq, so a take begins there. (Other ranks sort behind '',
-- and a floor never passes over them.) It also lists the held jobs of those that were taken before a certain moment; a take counts the
-- later ones from there.
--
-- All moments are positions on one line of numbers, the seqs of jobs, because the server draws these outside of transactions and
-- they never go back. Every transaction that writes a job locks the table (ROW EXCLUSIVE) before it draws or reads a
-- number, and holds this lock until it ends, when all other transactions see what it did. So:
--
--   1. floors are on (a sequence says so, which all transactions see at once, whatever their snapshot)
--   2. draw a number U, then list the transactions that hold the lock
--   3. when these have ended, read the head of each group with a new snapshot: floor = the least of that and U
--
-- A transaction that locked the table before step 2 has ended by step 3, which sees its work. One that locks it later finds that
-- floors are on, and draws numbers above U: a new job's seq is above the floor; a job that becomes runnable again, or changes its lane
-- or rank, leaves a row in joex_private.floor_exception in the same transaction, with a number above U; a job that is taken is marked
-- with a number of U or above. So a transaction that sees the floor of a group, with whatever snapshot, sees with each such job also
-- what lowers the floor for it. An insert never waits, and step 3 does not wait either: while a transaction of step 2 is open, the
-- floors stay where they are.
--
-- Each U makes a new row for a floor, under a key of its own, the newest first: a row that is updated would collect dead versions.
-- A take is right without floors, only slower; so a group has one when it has many dead entries.

-- 0: there have never been floors; odd: they are on; even: off.
CREATE OR REPLACE FUNCTION joex_private.floor_epoch() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(pg_sequence_last_value('joex_private.floor_epoch'), 0) $$;

CREATE OR REPLACE FUNCTION joex_private.note_floor_exception() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.rank = '' AND joex_private.floor_epoch() % 2 = 1 THEN
        INSERT INTO joex_private.floor_exception (queue, ring, at, lane, seq)
        VALUES (NEW.queue, NEW.ring, nextval('joex_private.job_seq_seq'), NEW.lane, NEW.seq);
    END IF;
    RETURN NULL;
END $$;
-- (A short condition: PostgreSQL reads it anew for each statement that updates jobs. The ring, not the group: a job that moves to another
-- group gets its ring in an update of its own, see move_on_the_ring.)
CREATE OR REPLACE TRIGGER note_floor_exception AFTER UPDATE OF queue, ring, lane, rank, seq ON joex_private.job
FOR EACH ROW WHEN (NEW.lane IS NOT NULL) EXECUTE FUNCTION joex_private.note_floor_exception();

-- The floor of a group, with its exceptions. (No row: it has none. Functions like this one are merged into the statements that
-- call them, hence no settings.)
CREATE OR REPLACE FUNCTION joex_private.floor_of(p_queue text, p_ring bigint)
RETURNS TABLE (upto bigint, lane0 bigint, lane1 bigint, lane2 bigint, held_upto bigint, held uuid[])
LANGUAGE sql STABLE AS $$
    SELECT f.upto, least(f.lane0, s.lane0), least(f.lane1, s.lane1), least(f.lane2, s.lane2), f.held_upto, f.held
    FROM (SELECT * FROM joex_private.floor f WHERE f.queue = p_queue AND f.ring = p_ring ORDER BY f.upto DESC LIMIT 1) f
    CROSS JOIN LATERAL (
        SELECT min(s.seq) FILTER (WHERE s.lane = 0) AS lane0, min(s.seq) FILTER (WHERE s.lane = 1) AS lane1,
               min(s.seq) FILTER (WHERE s.lane = 2) AS lane2
        FROM joex_private.floor_exception s WHERE s.queue = p_queue AND s.ring = p_ring AND s.at > f.upto) s $$;

-- The next place on the ring, after p_after and not after p_stop, that has runnable jobs or (p_floors) a floor; and where there is
-- none, the first of its jobs, so that the caller need not walk again over the dead entries before it. The search for runnable
-- jobs ends before the next floor, so that it walks over no entries below one.
CREATE OR REPLACE FUNCTION joex_private.next_place(p_queue text, p_after bigint, p_stop bigint, p_floors boolean)
RETURNS TABLE (ring bigint, is_floored boolean, lane smallint, rank bytea, seq bigint) LANGUAGE sql STABLE AS $$
    SELECT x.ring, x.is_floored, x.lane, x.rank, x.seq
    FROM (SELECT CASE WHEN p_floors THEN (
              SELECT f.ring FROM joex_private.floor f WHERE f.queue = p_queue AND f.ring > p_after AND f.ring <= p_stop
              ORDER BY f.ring, f.upto DESC LIMIT 1) END AS ring OFFSET 0) floored
    CROSS JOIN LATERAL (
        (SELECT j.ring, false AS is_floored, j.lane, j.rank::bytea, j.seq FROM joex_private.job j
         WHERE j.queue = p_queue AND j.lane IS NOT NULL AND j.ring > p_after AND j.ring <= coalesce(floored.ring - 1, p_stop)
         ORDER BY j.ring, j.lane, j.rank, j.seq LIMIT 1)
        UNION ALL
        SELECT floored.ring, true, NULL, NULL, NULL WHERE floored.ring IS NOT NULL) x
    LIMIT 1 $$;

-- How many slots a group has: those of its held jobs, and of its overruns (see recover_overdue).
CREATE OR REPLACE FUNCTION joex_private.running_of(p_queue text, p_ring bigint, p_upto bigint, p_held uuid[])
RETURNS TABLE (running integer) LANGUAGE sql STABLE AS $$
    SELECT ((SELECT count(*) FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = p_ring AND j.executor_id IS NOT NULL
                                                   AND j.held_since >= coalesce(p_upto, 0))
            + CASE WHEN p_held <> '{}' THEN (
                -- (the state, not the executor: that would invite the planner to the index of all held jobs)
                SELECT count(*) FROM joex_private.job j
                WHERE j.id = ANY (p_held) AND j.state IN ('scheduled', 'running') AND j.held_since < p_upto)
              ELSE 0 END
            + (SELECT count(*) FROM joex_private.overrun o WHERE o.queue = p_queue AND o.ring = p_ring))::integer
    OFFSET 0 $$;        -- (otherwise the planner merges it so far that it is computed wherever its answer is named)

-- All jobs that are held (p_held), or runnable, while floors are on: from floor to floor along all rings, what lies between two, and
-- behind each one what begins there.
CREATE OR REPLACE FUNCTION joex_private.by_floors(p_held boolean) RETURNS SETOF joex_private.job
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
SET jit = off AS $$
DECLARE
    v_queue text := '';     -- (no queue has this name, so that all lie behind it)
    v_ring bigint := 0;
    v_floor joex_private.floor;
BEGIN
    LOOP
        SELECT * INTO v_floor FROM joex_private.floor f WHERE (f.queue, f.ring) > (v_queue, v_ring)
        ORDER BY f.queue, f.ring, f.upto DESC LIMIT 1;
        EXIT WHEN NOT FOUND;
        RETURN QUERY SELECT j.* FROM joex_private.job j
            WHERE p_held AND j.executor_id IS NOT NULL
                  AND (j.queue, j.ring) > (v_queue, v_ring) AND (j.queue, j.ring) < (v_floor.queue, v_floor.ring);
        RETURN QUERY SELECT j.* FROM joex_private.job j
            WHERE NOT p_held AND j.lane IS NOT NULL
                  AND (j.queue, j.ring) > (v_queue, v_ring) AND (j.queue, j.ring) < (v_floor.queue, v_floor.ring);
        v_queue := v_floor.queue;
        v_ring := v_floor.ring;
        RETURN QUERY SELECT j.* FROM joex_private.job j
            WHERE p_held AND j.executor_id IS NOT NULL AND j.queue = v_queue AND j.ring = v_ring AND j.held_since >= v_floor.held_upto;
        RETURN QUERY SELECT j.* FROM joex_private.job j
            WHERE p_held AND j.id = ANY (v_floor.held) AND j.state IN ('scheduled', 'running') AND j.held_since < v_floor.held_upto;
        RETURN QUERY SELECT j.* FROM joex_private.floor_of(v_queue, v_ring) f
            CROSS JOIN LATERAL (VALUES (0, f.lane0), (1, f.lane1), (2, f.lane2)) l(lane, seq)
            CROSS JOIN LATERAL (
                SELECT x.* FROM joex_private.job x WHERE x.queue = v_queue AND x.ring = v_ring AND x.lane = l.lane
                                                 AND (x.rank, x.seq) >= (''::bytea, l.seq) OFFSET 0) j
            WHERE NOT p_held;
    END LOOP;
    RETURN QUERY SELECT j.* FROM joex_private.job j WHERE p_held AND j.executor_id IS NOT NULL AND (j.queue, j.ring) > (v_queue, v_ring);
    RETURN QUERY SELECT j.* FROM joex_private.job j WHERE NOT p_held AND j.lane IS NOT NULL AND (j.queue, j.ring) > (v_queue, v_ring);
END $$;

CREATE OR REPLACE FUNCTION joex_private.floors_are_on() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT joex_private.floor_epoch() % 2 = 1 $$;

-- The jobs that are held. (Whether floors are on is asked once: they may be switched at any moment, and each job belongs to one part.)
CREATE OR REPLACE VIEW joex_private.held AS
WITH floors AS MATERIALIZED (SELECT joex_private.floors_are_on() AS are_on)
SELECT id, executor_id, queue, ring, grp, task, key, state, lane, due_at, runnable_since, suspect FROM joex_private.job
WHERE executor_id IS NOT NULL AND NOT (SELECT are_on FROM floors)
UNION ALL
SELECT id, executor_id, queue, ring, grp, task, key, state, lane, due_at, runnable_since, suspect FROM joex_private.by_floors(true)
WHERE (SELECT are_on FROM floors);

-- The runnable jobs (p_held: the jobs that are held) that the role of this session may see: by_floors for the views of users.
CREATE OR REPLACE FUNCTION joex_private.seen_by_floors(p_held boolean) RETURNS TABLE (
    executor_id integer, id uuid, queue text, grp text, state joex_private.job_state, lane smallint, due_at timestamptz,
    runnable_since timestamptz
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_all CONSTANT boolean := joex_private.may('{view}', NULL, NULL);
BEGIN
    RETURN QUERY SELECT j.executor_id, j.id, j.queue::text, j.grp::text, j.state, j.lane, j.due_at::timestamptz, j.runnable_since
                 FROM joex_private.by_floors(p_held) j WHERE v_all OR joex_private.may('{view}', j.queue, j.grp);
END $$;

-- The view joex_private.held, for the views of users.
CREATE OR REPLACE VIEW joex_private.held_seen AS
WITH floors AS MATERIALIZED (SELECT joex_private.floors_are_on() AS are_on)
SELECT executor_id, id, queue::text, grp::text, state, lane, due_at::timestamptz, runnable_since FROM joex_private.job
WHERE executor_id IS NOT NULL AND NOT (SELECT are_on FROM floors)
UNION ALL
SELECT executor_id, id, queue, grp, state, lane, due_at, runnable_since FROM joex_private.seen_by_floors(true)
WHERE (SELECT are_on FROM floors);

-- The jobs that an executor holds.
CREATE OR REPLACE FUNCTION joex_private.held_by(p_executor integer) RETURNS SETOF uuid
LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT j.id FROM joex_private.held j WHERE j.executor_id = p_executor $$;

-- Is there a runnable job in the queue, and the queue not paused?
CREATE OR REPLACE FUNCTION joex_private.has_runnable(p_queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT FROM joex_private.queue q WHERE q.name = p_queue AND q.paused_at IS NOT NULL) THEN
        RETURN false;
    END IF;
    IF joex_private.floor_epoch() % 2 = 0 THEN
        RETURN EXISTS (SELECT FROM joex_private.job j WHERE j.queue = p_queue AND j.lane IS NOT NULL);
    END IF;
    RETURN (
        WITH RECURSIVE step AS (
            SELECT -9223372036854775808 AS ring, false AS is_runnable
            UNION ALL
            SELECT n.ring, NOT n.is_floored OR EXISTS (
                SELECT FROM joex_private.floor_of(p_queue, n.ring) f
                CROSS JOIN LATERAL (VALUES (0, f.lane0), (1, f.lane1), (2, f.lane2)) l(lane, seq)
                CROSS JOIN LATERAL (
                    SELECT FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = n.ring AND j.lane = l.lane
                                                 AND (j.rank, j.seq) >= (''::bytea, l.seq) LIMIT 1) x)
            FROM step s CROSS JOIN LATERAL joex_private.next_place(p_queue, s.ring, 9223372036854775807, true) n
            WHERE NOT s.is_runnable
        ) SELECT coalesce(bool_or(is_runnable), false) FROM step);
END $$;

-- Steps 1 and 2. The caller keeps the answer for raise_floors: the number, in which epoch it was drawn, and the transactions that
-- held the lock. (A transaction that is prepared gets another name: raise_floors waits for all prepared ones.)
CREATE OR REPLACE FUNCTION joex_private.draw_floor(OUT upto bigint, OUT epoch bigint, OUT writers text[])
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    epoch := joex_private.floor_epoch();
    upto := nextval('joex_private.job_seq_seq');
    writers := joex_private.job_writers();
END $$;

CREATE OR REPLACE FUNCTION joex_private.job_writers() RETURNS text[] LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(array_agg(l.virtualtransaction), '{}') FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.relation = 'joex_private.job'::regclass AND l.mode = 'RowExclusiveLock' AND l.granted
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.pid IS DISTINCT FROM pg_backend_pid() $$;

-- Step 3, for these groups. Null: not now, because a transaction of step 2 is still open, or another session raises floors, or not all:
-- the next call with this number goes on; false: floors are off or were so meanwhile, and the number is worth nothing; true: done.
-- Ends after about p_seconds: a floor may be raised halfway.
CREATE OR REPLACE FUNCTION joex_private.raise_floors(
    p_upto bigint, p_epoch bigint, p_writers text[], p_queues text[], p_rings bigint[], p_seconds float8 DEFAULT 0.5
) RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + make_interval(secs => p_seconds);
    v_group record;
    v_is_begun boolean := false;
BEGIN
    -- (A TRUNCATE, after which numbers may begin anew, comes before all of this, and has changed the epoch; or after.)
    LOCK TABLE joex_private.job IN ACCESS SHARE MODE;
    -- (An old snapshot would not see what the transactions of step 2 have done.)
    IF NOT joex_private.sees_the_latest() OR NOT joex_private.try_mutex('floors') THEN
        RETURN NULL;
    ELSIF p_epoch % 2 = 0 OR joex_private.floor_epoch() <> p_epoch THEN
        RETURN false;
    ELSIF EXISTS (SELECT FROM unnest(joex_private.job_writers()) w(id) WHERE w.id = ANY (p_writers) OR w.id LIKE '-1/%') THEN
        RETURN NULL;
    END IF;
    FOR v_group IN SELECT DISTINCT g.queue, g.ring FROM unnest(p_queues, p_rings) g(queue, ring) LOOP
        -- (An earlier call raised it; or another session, which drew later.)
        CONTINUE WHEN EXISTS (SELECT FROM joex_private.floor_of(v_group.queue, v_group.ring) f WHERE f.upto >= p_upto);
        IF v_is_begun AND clock_timestamp() > v_until THEN
            RETURN NULL;
        END IF;
        v_is_begun := true;
        PERFORM joex_private.raise_floor(v_group.queue, v_group.ring, p_upto, v_until);
    END LOOP;
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION joex_private.raise_floor(p_queue text, p_ring bigint, p_upto bigint, p_until timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_old record;
    v_lanes bigint[] := '{}';
    v_upto bigint;      -- of what is held
    v_held uuid[];
BEGIN
    SELECT * INTO v_old FROM joex_private.floor_of(p_queue, p_ring);
    FOR i IN 0..2 LOOP
        v_lanes := v_lanes || joex_private.first_runnable(
            p_queue, p_ring, i::smallint, (ARRAY[v_old.lane0, v_old.lane1, v_old.lane2])[i + 1], p_upto, p_until);
    END LOOP;
    v_held := ARRAY(SELECT j.id FROM joex_private.job j WHERE j.id = ANY (v_old.held) AND j.state IN ('scheduled', 'running')
                                                      AND j.held_since < v_old.held_upto);
    v_upto := coalesce(v_old.held_upto, 0);
    LOOP
        v_held := v_held || ARRAY(
            SELECT j.id FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = p_ring AND j.executor_id IS NOT NULL
            AND j.held_since >= v_upto AND j.held_since < least(v_upto + 100000, p_upto));
        v_upto := least(v_upto + 100000, p_upto);
        EXIT WHEN v_upto = p_upto OR clock_timestamp() > p_until;
    END LOOP;
    INSERT INTO joex_private.floor (queue, ring, upto, lane0, lane1, lane2, held_upto, held)
    VALUES (p_queue, p_ring, p_upto, v_lanes[1], v_lanes[2], v_lanes[3], v_upto, v_held);
    -- (each by its very key, so that nothing dead is walked over here either)
    DELETE FROM joex_private.floor f WHERE f.queue = p_queue AND f.ring = p_ring AND f.upto = v_old.upto;
    DELETE FROM joex_private.floor_exception s WHERE s.queue = p_queue AND s.ring = p_ring AND s.at > v_old.upto AND s.at <= p_upto;
END $$;

-- The least seq, from p_from on, of the runnable jobs of rank '' in a lane of a group: at most p_upto, and less when the time is over.
CREATE OR REPLACE FUNCTION joex_private.first_runnable(
    p_queue text, p_ring bigint, p_lane smallint, p_from bigint, p_upto bigint, p_until timestamptz
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_from bigint := coalesce(p_from, -9223372036854775808);
    v_next bigint;
    v_seq bigint;
BEGIN
    LOOP        -- a part at a time
        v_next := least(greatest(v_from, 0) + 100000, p_upto);
        SELECT j.seq INTO v_seq FROM joex_private.job j
        WHERE j.queue = p_queue AND j.ring = p_ring AND j.lane = p_lane AND j.rank = '' AND j.seq >= v_from AND j.seq < v_next
        ORDER BY j.seq LIMIT 1;
        IF FOUND THEN
            RETURN v_seq;
        END IF;
        v_from := v_next;
        IF v_from >= p_upto OR clock_timestamp() > p_until THEN
            RETURN v_from;
        END IF;
    END LOOP;
END $$;

-- Groups in which jobs have finished since then (null: in the last hour), and how many, in the order of time: at most p_most jobs; and the
-- time of the last one. (By a clock that is behind, as that of a promoted standby may be, jobs have finished in the future: they count when that
-- has come. A time then that is in the future is as none.)
CREATE OR REPLACE FUNCTION joex_private.finished_since(p_after timestamptz, p_most integer)
RETURNS TABLE (queue text, ring bigint, jobs bigint, until timestamptz)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT timestamptz := clock_timestamp();
BEGIN
    p_after := CASE WHEN p_after <= v_now THEN p_after ELSE v_now - interval '1 hour' END;
    RETURN QUERY
    WITH finished AS MATERIALIZED (     -- (finished jobs with a key have an index of their own)
        SELECT f.* FROM (
            (SELECT j.queue, j.ring, j.finished_at FROM joex_private.job j
             WHERE j.finished_at IS NOT NULL AND j.key IS NULL AND j.finished_at > p_after AND j.finished_at <= v_now
             ORDER BY j.finished_at LIMIT p_most)
            UNION ALL
            (SELECT j.queue, j.ring, j.finished_at FROM joex_private.job j
             WHERE j.finished_at IS NOT NULL AND j.key IS NOT NULL AND j.finished_at > p_after AND j.finished_at <= v_now
             ORDER BY j.finished_at LIMIT p_most)) f
        ORDER BY f.finished_at LIMIT p_most
    ) SELECT f.queue::text, f.ring, count(*), (SELECT max(finished_at) FROM finished) FROM finished f GROUP BY f.queue, f.ring;
END $$;

-- Places on the rings of all queues where a take would walk over more than p_crowd dead entries, whichever changes have left these: of
-- jobs that change and never end, or are removed, too. It finds them as takes meet them. It goes on from the place p_ring of the queue
-- p_queue, for about p_seconds (longer where many groups have no job: see crowds_between), however many groups there are, and answers up
-- to where it came; after the last queue it begins anew.
CREATE OR REPLACE FUNCTION joex_private.crowded_places(
    INOUT p_queue text, INOUT p_ring bigint, p_crowd integer, p_seconds float8, OUT queues text[], OUT rings bigint[]
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    v_until CONSTANT timestamptz := clock_timestamp() + make_interval(secs => p_seconds);
    v_first CONSTANT bigint := -36028797018963968;      -- (places have 56 bits)
    v_last CONSTANT bigint := 36028797018963967;
    v_name text;
    v_next record;
    v_floor record;
    v_live bigint;
    v_start bigint;
    v_walked bigint;    -- dead entries up to this place
    v_here bigint;      -- at it
    v_found bigint[];
BEGIN
    queues := '{}';
    rings := '{}';
    LOOP
        SELECT q.name INTO v_name FROM joex_private.queue q
        WHERE q.name >= p_queue AND (q.name > p_queue OR p_ring < v_last) ORDER BY q.name LIMIT 1;
        IF v_name IS DISTINCT FROM p_queue THEN
            p_queue := coalesce(v_name, '');
            p_ring := v_first - 1;
            EXIT WHEN v_name IS NULL;
        END IF;
        v_start := joex_private.entries_walked();
        SELECT * INTO v_next FROM joex_private.next_place(p_queue, p_ring, v_last, true);
        v_walked := joex_private.entries_walked() - v_start;
        v_start := joex_private.entries_walked();
        SELECT f.* INTO v_floor FROM (VALUES (1)) one LEFT JOIN joex_private.floor_of(p_queue, v_next.ring) f ON v_next.is_floored;
        IF v_next.is_floored THEN
            PERFORM FROM (VALUES (0, v_floor.lane0), (1, v_floor.lane1), (2, v_floor.lane2)) l(lane, seq) CROSS JOIN LATERAL (
                SELECT FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = v_next.ring AND j.lane = l.lane
                AND (j.rank, j.seq) >= (''::bytea, l.seq) LIMIT 1) x;
        ELSIF v_next.ring IS NOT NULL AND v_walked > p_crowd THEN
            PERFORM FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = v_next.ring AND j.lane IS NOT NULL
            ORDER BY j.ring, j.lane, j.rank, j.seq LIMIT 1;
            v_walked := v_walked - (joex_private.entries_walked() - v_start);
        END IF;
        SELECT count(*) INTO v_live FROM joex_private.job j
        WHERE j.queue = p_queue AND j.ring = v_next.ring AND j.executor_id IS NOT NULL
              AND j.held_since >= coalesce(v_floor.held_upto, 0);
        v_here := joex_private.entries_walked() - v_start - v_live;
        IF v_walked > p_crowd THEN      -- places without a job
            v_found := joex_private.crowds_between(
                p_queue, p_ring, coalesce(v_next.ring - 1, v_last), v_walked, p_crowd,
                clock_timestamp() + make_interval(secs => p_seconds), joex_private.entries_walked() + 2 * v_walked, '{}');
            queues := queues || array_fill(p_queue, ARRAY[cardinality(v_found)]);
            rings := rings || v_found;
            IF clock_timestamp() > v_until AND v_found <> '{}' THEN
                p_ring := v_found[cardinality(v_found)];
                EXIT;
            END IF;
        END IF;
        IF v_here > p_crowd THEN
            queues := queues || p_queue;
            rings := rings || v_next.ring;
        END IF;
        p_ring := coalesce(v_next.ring, v_last);
        EXIT WHEN clock_timestamp() > v_until;
    END LOOP;
END $$;

-- p_found, and the places after p_after and not after p_stop with more than p_crowd entries; all p_entries between the two are dead, and no
-- row tells the place of a dead one. So this searches in parts, and again in those that have many. When the time is over, and the
-- transaction has met p_upto entries, it answers those up to where it came, as soon as there is one. (The next search walks over all that
-- are left once more. So crowded_places lets it meet twice as many as there were: otherwise most of the work would be to come back.)
CREATE OR REPLACE FUNCTION joex_private.crowds_between(
    p_queue text, p_after bigint, p_stop bigint, p_entries bigint, p_crowd integer, p_until timestamptz, p_upto bigint, p_found bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_found bigint[] := p_found;
    v_part CONSTANT bigint := greatest((p_stop - p_after) / 32, 1);
    v_after bigint := p_after;
    v_left bigint := p_entries;
    v_to bigint;
    v_start bigint;
    v_walked bigint;
BEGIN
    IF p_stop - p_after = 1 THEN
        RETURN p_found || p_stop;
    END IF;
    WHILE v_left > p_crowd AND v_after < p_stop
          AND (v_found = '{}' OR clock_timestamp() < p_until OR joex_private.entries_walked() < p_upto) LOOP
        v_to := least(v_after + v_part, p_stop);
        v_start := joex_private.entries_walked();
        PERFORM FROM joex_private.job j WHERE j.queue = p_queue AND j.lane IS NOT NULL AND j.ring > v_after AND j.ring <= v_to
        ORDER BY j.ring, j.lane, j.rank, j.seq LIMIT 1;
        v_walked := joex_private.entries_walked() - v_start;
        IF v_walked > p_crowd THEN
            v_found := joex_private.crowds_between(p_queue, v_after, v_to, v_walked, p_crowd, p_until, p_upto, v_found);
        END IF;
        v_left := v_left - v_walked;
        v_after := v_to;
    END LOOP;
    RETURN v_found;
END $$;

-- Whether takes had to walk over much (see take), or floors are on: then an executor must raise them.
CREATE OR REPLACE FUNCTION joex_private.is_crowded() RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT joex_private.floor_epoch() % 2 = 1 OR pg_sequence_last_value('joex_private.long_takes') IS NOT NULL $$;

-- Switch floors on where takes walk over what vacuum has not cleared, and off when it has. Answers whether they are on and wanted.
-- To switch them off takes two calls: a transaction that still sees a floor, with an older snapshot, must not see a job that was made
-- runnable without regard to floors. So the first call deletes the floors, and when that has been committed, the second one switches.
CREATE OR REPLACE FUNCTION joex_private.switch_floors() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_is_on boolean := joex_private.floor_epoch() % 2 = 1;
    v_is_needed boolean := joex_private.is_crowded() AND pg_stat_get_dead_tuples('joex_private.job'::regclass) > 5000 + 0.01 * (
        SELECT greatest(c.reltuples, 0) FROM pg_class c WHERE c.oid = 'joex_private.job'::regclass);
BEGIN
    IF v_is_on AND v_is_needed THEN
        RETURN true;
    ELSIF joex_private.sees_the_latest() AND joex_private.try_mutex('floors') THEN
        RETURN joex_private.set_floors(v_is_needed);
    END IF;
    RETURN false;
END $$;

-- (The caller holds the lock of floors.) Floors that exist while they are off, for example after a failover that left sequences behind,
-- know nothing of what was done meanwhile: this deletes them before it switches floors on.
CREATE OR REPLACE FUNCTION joex_private.set_floors(p_wanted boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_epoch bigint := joex_private.floor_epoch();
    v_is_on boolean := v_epoch % 2 = 1;
BEGIN
    IF NOT (p_wanted AND v_is_on) AND EXISTS (SELECT FROM joex_private.floor) THEN
        DELETE FROM joex_private.floor;
        RETURN false;
    END IF;
    IF p_wanted <> v_is_on THEN
        PERFORM setval('joex_private.floor_epoch', v_epoch + 1);    -- (nextval writes ahead: after a crash it would be another number)
    END IF;
    IF NOT p_wanted THEN
        DELETE FROM joex_private.floor_exception;
        PERFORM setval('joex_private.long_takes', 1, false);
    END IF;
    RETURN p_wanted;
END $$;
