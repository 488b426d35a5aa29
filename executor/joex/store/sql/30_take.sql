-- Taking jobs: joint round robin over the groups of a queue, by occupancy.
--
-- The rule, of which core/fairness.py is the executable specification: among the groups that have runnable work, are not
-- paused and are below their limit, the next job comes from the group on the lowest level, level = jobs it runs / weight
-- (whole number); on equal levels from the group that comes first on the ring after the cursor. A group stays under the
-- cursor for as many services as its weight. Within the group: due retries, then what the counting scheme prefers, then
-- first in, first out.
--
-- A call takes a whole batch by this rule in a few index probes per group ("passes"): it walks the ring by a loose index
-- scan, computes how deep the free slots reach into each group (water filling), and locks just these rows. A group
-- that has fewer jobs than that leaves slots over; the next pass gives them to the others, so that no slot stays empty.
-- The cost grows with the batch, with the groups that are served already (they must be passed over), and with the
-- logarithm of everything else.

-- Move due jobs to their lane, a batch at a time, so that a million retries falling due at once do not stop a taker.
CREATE OR REPLACE FUNCTION joex.promote(p_queue text, p_jobs integer DEFAULT 500) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now timestamptz := clock_timestamp();     -- an index is not searched for what may change from row to row
BEGIN
    UPDATE joex.job j SET due_at = NULL, lane = CASE j.state WHEN 'stuck' THEN 0 ELSE joex.lane(j.priority) END
    FROM (SELECT id FROM joex.job WHERE queue = p_queue AND due_at IS NOT NULL AND due_at <= v_now
          ORDER BY due_at LIMIT p_jobs FOR UPDATE SKIP LOCKED) due
    WHERE j.id = due.id;
END $$;

DO $do$ BEGIN
    CREATE TYPE joex.taken AS (
        id uuid, lock_id uuid, seq bigint, queue text, grp text, task text, args jsonb, priority joex.job_priority,
        subject text, submitter text, attempt integer, failures integer, retries integer, waited float8);
EXCEPTION WHEN duplicate_object THEN NULL; END $do$;

-- How many more jobs of a group with a limit may run. A limit must hold at every moment, so that takes from such a group
-- exclude each other until they have committed: 0 where another one is under way. (It wakes whoever sleeps if it leaves
-- work.) The count is a statement of its own, and so sees what has committed before the lock was free.
CREATE OR REPLACE FUNCTION joex.room(p_queue text, p_ring bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF p_limit <= 0 OR NOT pg_try_advisory_xact_lock(joex.lock_class(4), hashtext(p_queue || p_ring)) THEN
        RETURN 0;
    END IF;
    RETURN p_limit - (
        SELECT r.running FROM (SELECT FROM (VALUES (1)) one) one
        LEFT JOIN LATERAL (SELECT f.held_upto, f.held FROM joex.floor_of(p_queue, p_ring) f
                           LIMIT joex.floor_epoch() % 2) f ON true
        CROSS JOIN LATERAL joex.running_of(p_queue, p_ring, f.held_upto, f.held) r);
END $$;

-- One pass over the ring of one queue; the caller holds the ring. Returns the jobs taken, in the order of service.
-- p_from is the cursor at the start of the call (place * 256 + services already given there), the same for all passes;
-- p_again: this is not the first pass. p_most: no job of a higher rank than this is taken.
-- A row without an id names (in seq) the place of a group that was to be served, and all of whose jobs others have locked. The
-- next pass must leave it out (p_without), else it would keep those from their turn that come after it on the ring.
CREATE OR REPLACE FUNCTION joex.take_pass(
    p_queue text, p_from bigint, p_again boolean, p_cursor regclass, p_executor integer, p_app_id text, p_free integer,
    p_high integer, p_low integer, p_most bytea, p_without bigint[]
) RETURNS SETOF joex.taken LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_here bigint := p_from >> 8;                   -- the group under the cursor
    v_served integer := (p_from & 255)::integer;    -- services it was given in this visit
    v_left integer;                                 -- services it has left in this visit
    v_before bigint;                                -- the walk starts after this place
    v_limited boolean := p_most < joex.highest_rank();
    v_timed boolean := EXISTS (SELECT FROM joex.task_timeout);
    -- What the lock ids of this pass begin with; the number in the pass follows. (Chance has its price: without OpenSSL the
    -- server opens the kernel's device for each number.)
    v_lock text := left(gen_random_uuid()::text, 28);
    v_floors boolean := joex.floor_epoch() % 2 = 1;
    v_lowest CONSTANT bigint := -9223372036854775808;
BEGIN
    SELECT greatest(coalesce(max(g.weight), 1) - v_served, 0) INTO v_left
    FROM joex.group_setting g WHERE g.queue = p_queue AND g.ring = v_here;
    v_before := CASE WHEN v_left > 0 THEN v_here - 1 ELSE v_here END;

    RETURN QUERY
    -- The ring from the cursor on, and once around. It stops as soon as there are enough groups that run nothing: no
    -- group further on can come before them. `idle` counts these (not the one under the cursor whose visit is over: all others
    -- on its level come before it); `stop` is where the second half of the circle ends. lane0 to lane2 are the group's floors (see
    -- 25_floors.sql), null where it has none.
    WITH RECURSIVE walk AS (
        SELECT v_before AS ring, 9223372036854775807 AS stop, 0 AS pos, 0 AS idle, 0 AS running, 1 AS weight, 0 AS room,
               NULL::bigint AS lane0, NULL::bigint AS lane1, NULL::bigint AS lane2
        UNION ALL
        SELECT n.ring, n.stop, w.pos + 1,
               w.idle + CASE WHEN s.room > 0 AND o.running < s.weight AND NOT (p_again AND v_left > 0 AND n.ring = v_here)
                             THEN 1 ELSE 0 END, o.running, s.weight, s.room, f.lane0, f.lane1, f.lane2
        FROM walk w
        CROSS JOIN LATERAL (
            SELECT p.ring, h.stop, p.is_floored
            FROM (VALUES (w.ring, w.stop), (v_lowest, CASE WHEN w.stop > v_before THEN v_before ELSE v_lowest END)) h(after, stop)
            CROSS JOIN LATERAL joex.next_place(p_queue, h.after, h.stop, v_floors) p
            LIMIT 1) n
        LEFT JOIN LATERAL (SELECT * FROM joex.floor_of(p_queue, n.ring) LIMIT n.is_floored::integer) f ON true
        CROSS JOIN LATERAL joex.running_of(p_queue, n.ring, f.held_upto, f.held) o
        CROSS JOIN LATERAL (
            SELECT coalesce(max(g.weight), 1) AS weight,
                   CASE WHEN bool_or(g.paused) OR n.ring = ANY (p_without)
                             OR (v_limited OR n.is_floored) AND NOT EXISTS (
                                SELECT FROM (VALUES (0, f.lane0), (1, f.lane1), (2, f.lane2)) l(lane, seq) CROSS JOIN LATERAL (
                                    SELECT FROM joex.job j WHERE j.queue = p_queue AND j.ring = n.ring AND j.lane = l.lane
                                    AND (j.rank, j.seq) >= (''::bytea, coalesce(l.seq, v_lowest)) AND j.rank <= p_most
                                    LIMIT 1) x) THEN 0
                        WHEN min(g.max_running) IS NULL THEN p_free
                        ELSE least(joex.room(p_queue, n.ring, min(g.max_running)), p_free) END AS room
            FROM joex.group_setting g WHERE g.queue = p_queue AND g.ring = n.ring) s
        WHERE w.idle < p_free
    ), candidate AS MATERIALIZED (
        SELECT w.ring, w.pos, w.running, w.weight, w.room, w.lane0, w.lane1, w.lane2,
               sum(w.weight) OVER lowest AS weights, sum(w.running) OVER lowest AS runs
        FROM walk w WHERE w.pos > 0 AND w.room > 0
        WINDOW lowest AS (ORDER BY w.running::float8 / w.weight, w.pos ROWS UNBOUNDED PRECEDING)
    ), water AS MATERIALIZED (
        -- The level that the free slots fill the groups up to: raising the groups below it to it takes them all.
        SELECT ceil((p_free + c.runs)::float8 / c.weights)::integer AS level FROM candidate c
        WHERE c.weights * (c.running::float8 / c.weight) - c.runs < p_free
        ORDER BY c.weights DESC LIMIT 1
    ), due AS (
        -- The turns that the free slots are for, in the order of `chosen`; the last visit is not cut, so that its services are
        -- counted. No row of a group is locked whose turn it is not: others pass over what is locked here until this
        -- transaction ends, and that may be long (see accept).
        SELECT t.ring, t.pos, t.running, t.weight, count(*)::integer AS jobs, t.lane0, t.lane1, t.lane2 FROM (
            SELECT c.ring, c.pos, c.running, c.weight, c.lane0, c.lane1, c.lane2, (c.running + n.kth) / c.weight AS level
            FROM candidate c, water, generate_series(0, least(c.room, c.weight * water.level - c.running) - 1) n(kth)
            ORDER BY level, c.ring = v_here AND v_left > 0
                            AND (p_again OR n.kth >= v_left
                                 OR (c.running + n.kth) / c.weight > (SELECT min(c.running / c.weight) FROM candidate c)),
                     c.pos FETCH FIRST p_free ROWS WITH TIES) t
        GROUP BY t.ring, t.pos, t.running, t.weight, t.lane0, t.lane1, t.lane2
    ), reached AS MATERIALIZED (
        -- (OFFSET 0: a probe for each group. Else a planner that has heard of no backlog yet reads all of it into a hash table.)
        SELECT d.*, v_limited OR d.lane0 IS NOT NULL OR
               EXISTS (SELECT FROM joex.job j WHERE j.queue = p_queue AND j.ring = d.ring AND j.lane = 2 OFFSET 0)
               AND EXISTS (SELECT FROM joex.job j WHERE j.queue = p_queue AND j.ring = d.ring AND j.lane = 1 OFFSET 0) AS mixed,
               coalesce((SELECT k.position FROM joex.counting k WHERE k.queue = p_queue AND k.ring = d.ring
                         ORDER BY k.at DESC LIMIT 1), 0) % (p_high + p_low) AS turn
        FROM due d
    ), depth AS MATERIALIZED (
        -- Where both priorities wait: how many jobs each lane has, as far as that matters, and how many of each to take. The
        -- scheme's turns for a priority that runs out go to the other one.
        SELECT r.*, n.high, n.low,
               least(n.high, n.turns + greatest(r.jobs - n.due - n.turns - n.low, 0)) AS take_high,
               least(n.low, r.jobs - n.due - n.turns + greatest(n.turns - n.high, 0)) AS take_low
        FROM reached r LEFT JOIN LATERAL (
            SELECT l.*, joex.turns(r.turn, r.jobs - l.due, p_high, p_low) AS turns FROM (
                SELECT (SELECT count(*) FROM (SELECT FROM joex.job j WHERE j.queue = p_queue AND j.ring = r.ring AND j.lane = 0
                                              AND (j.rank, j.seq) >= (''::bytea, coalesce(r.lane0, v_lowest))
                                              AND j.rank <= p_most LIMIT r.jobs) x)::integer AS due,
                       (SELECT count(*) FROM (SELECT FROM joex.job j WHERE j.queue = p_queue AND j.ring = r.ring AND j.lane = 1
                                              AND (j.rank, j.seq) >= (''::bytea, coalesce(r.lane1, v_lowest))
                                              AND j.rank <= p_most LIMIT r.jobs + 1) x)::integer AS high,
                       (SELECT count(*) FROM (SELECT FROM joex.job j WHERE j.queue = p_queue AND j.ring = r.ring AND j.lane = 2
                                              AND (j.rank, j.seq) >= (''::bytea, coalesce(r.lane2, v_lowest))
                                              AND j.rank <= p_most LIMIT r.jobs + 1) x)::integer AS low
                LIMIT r.mixed::integer) l) n ON true
    ), locked AS MATERIALIZED (
        SELECT d.ring, d.pos, d.running, d.weight, d.mixed, d.turn, d.high, d.low, j.id, j.lane, j.rank, j.seq,
               row_number() OVER (PARTITION BY d.ring, j.lane ORDER BY j.rank, j.seq) - 1 AS nth
        FROM depth d CROSS JOIN LATERAL (
            SELECT * FROM (SELECT a.id, a.lane, a.rank, a.seq FROM joex.job a
                           WHERE NOT d.mixed AND a.queue = p_queue AND a.ring = d.ring AND a.lane IS NOT NULL
                           ORDER BY a.lane, a.rank, a.seq LIMIT d.jobs
                           FOR UPDATE SKIP LOCKED) plain
            UNION ALL
            SELECT * FROM (SELECT a.id, a.lane, a.rank, a.seq FROM joex.job a
                           WHERE d.mixed AND a.queue = p_queue AND a.ring = d.ring AND a.lane = 0
                                 AND (a.rank, a.seq) >= (''::bytea, coalesce(d.lane0, v_lowest)) AND a.rank <= p_most
                           ORDER BY a.rank, a.seq LIMIT d.jobs
                           FOR UPDATE SKIP LOCKED) due
            UNION ALL
            SELECT * FROM (SELECT a.id, a.lane, a.rank, a.seq FROM joex.job a
                           WHERE d.mixed AND a.queue = p_queue AND a.ring = d.ring AND a.lane = 1
                                 AND (a.rank, a.seq) >= (''::bytea, coalesce(d.lane1, v_lowest)) AND a.rank <= p_most
                           ORDER BY a.rank, a.seq LIMIT d.take_high
                           FOR UPDATE SKIP LOCKED) high
            UNION ALL
            SELECT * FROM (SELECT a.id, a.lane, a.rank, a.seq FROM joex.job a
                           WHERE d.mixed AND a.queue = p_queue AND a.ring = d.ring AND a.lane = 2
                                 AND (a.rank, a.seq) >= (''::bytea, coalesce(d.lane2, v_lowest)) AND a.rank <= p_most
                           ORDER BY a.rank, a.seq LIMIT d.take_low
                           FOR UPDATE SKIP LOCKED) low) j
    ), turned AS (
        -- In a group where both priorities wait, a job's turn in the counting scheme: the nth high job has the nth turn
        -- for high ones from where the group stands, and so the low ones. Elsewhere lane and age decide.
        SELECT l.*, CASE
            WHEN NOT l.mixed OR l.lane = 0 THEN NULL
            WHEN l.lane = 1 THEN (least(l.turn, p_high) + l.nth) / p_high * (p_high + p_low)
                                 + (least(l.turn, p_high) + l.nth) % p_high
            ELSE (greatest(l.turn - p_high, 0) + l.nth) / p_low * (p_high + p_low) + p_high
                 + (greatest(l.turn - p_high, 0) + l.nth) % p_low END - l.turn AS ahead
        FROM locked l
    ), lined AS (
        SELECT t.*, row_number() OVER (PARTITION BY t.ring ORDER BY (t.lane > 0 AND t.mixed), t.ahead, t.lane, t.rank, t.seq) - 1
                        AS kth,
               row_number() OVER (PARTITION BY t.ring, (t.lane > 0) ORDER BY t.ahead, t.lane, t.rank, t.seq) - 1 AS scheduled
        FROM turned t
    ), chosen AS MATERIALIZED (
        -- A visit that is under way goes on before all others, on the lowest level; when it is over, the group comes after all.
        SELECT o.*, row_number() OVER (ORDER BY o.level, o.is_over, o.pos, o.kth) AS nr FROM (
            SELECT l.*, l.ring = v_here AND v_left > 0
                        AND (p_again OR l.kth >= v_left OR l.level > (SELECT min(c.running / c.weight) FROM candidate c))
                        AS is_over
            FROM (SELECT x.*, (x.running + x.kth) / x.weight AS level FROM lined x) l) o
        ORDER BY o.level, o.is_over, o.pos, o.kth LIMIT p_free
    ), counted AS (
        -- The scheme moves on with each job that is taken while both priorities wait.
        INSERT INTO joex.counting (queue, ring, position)
        SELECT p_queue, c.ring, (min(c.turn) + count(*))::integer % (p_high + p_low)
        FROM chosen c WHERE c.mixed AND c.lane > 0
              AND c.scheduled - c.nth < CASE c.lane WHEN 1 THEN c.low ELSE c.high END
        GROUP BY c.ring RETURNING ring
    ), outdated AS (
        -- (What another taker removes, whose transaction is open, is left; see forget_turns.)
        DELETE FROM joex.counting k
        USING counted c CROSS JOIN LATERAL (
            SELECT o.at FROM joex.counting o WHERE o.queue = p_queue AND o.ring = c.ring
            ORDER BY o.at DESC LIMIT 1 FOR UPDATE SKIP LOCKED) old
        WHERE k.queue = p_queue AND k.ring = c.ring AND k.at = old.at
    ), last AS (
        SELECT c.ring, c.level, c.is_over FROM chosen c ORDER BY c.nr DESC LIMIT 1
    ), moved AS MATERIALIZED (
        -- The services of this visit: the last group's jobs on its last level; and those before this call, where the visit
        -- has merely gone on.
        SELECT setval(p_cursor, l.ring * 256 + least(255, CASE
                   WHEN v_left > 0 AND NOT l.is_over AND NOT EXISTS (SELECT FROM chosen c WHERE c.ring <> v_here)
                   THEN v_served ELSE 0 END
               + (SELECT count(*) FROM chosen c
                  WHERE c.ring = l.ring AND c.level = l.level AND c.is_over = l.is_over))) FROM last l
    ), taken AS (
        UPDATE joex.job j SET lane = NULL, state = 'scheduled', executor_id = p_executor, app_id = p_app_id,
               lock_id = (v_lock || lpad(to_hex(c.nr), 8, '0'))::uuid, scheduled_at = clock_timestamp(),
               held_since = (SELECT coalesce(pg_sequence_last_value('joex.job_seq_seq'), 0)),
               -- (who picks up a job with a key goes on where the one before has stopped)
               progress = CASE WHEN j.key IS NULL THEN 0 ELSE j.progress END,
               progress_message = CASE WHEN j.key IS NOT NULL THEN j.progress_message END,
               (overdue_at, renew_by) = (SELECT clock_timestamp() + o.timeout, CASE WHEN o.renewable THEN o.timeout END
                                         FROM joex.task_timeout o WHERE v_timed AND o.task = j.task)
        FROM chosen c WHERE j.id = c.id
        RETURNING j.id, j.lock_id, j.seq, j.queue, j.grp, j.task, j.args, j.priority, j.subject, j.submitter, j.attempt,
                  j.failures, j.retries, extract(epoch FROM j.scheduled_at - j.runnable_since)::float8 AS waited, c.nr
    )
    (SELECT t.id, t.lock_id, t.seq, t.queue, t.grp, t.task, t.args, t.priority, t.subject, t.submitter, t.attempt,
            t.failures, t.retries, t.waited
     FROM taken t, moved ORDER BY t.nr)
    UNION ALL
    SELECT NULL, NULL, r.ring, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM (SELECT ring FROM reached EXCEPT SELECT ring FROM locked) r WHERE (SELECT count(*) FROM chosen) < p_free;
END $$;

-- A rank above all others: what a tuple is packed into never begins with this byte.
CREATE OR REPLACE FUNCTION joex.highest_rank() RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT '\xff'::bytea $$;

-- Remove rows of the counting schemes that are not the newest of their group: takes that met have left them.
CREATE OR REPLACE FUNCTION joex.forget_turns() RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM joex.counting k USING (
        SELECT o.queue, o.ring, o.at FROM joex.counting o
        WHERE EXISTS (SELECT FROM joex.counting n WHERE n.queue = o.queue AND n.ring = o.ring AND n.at > o.at)
        FOR UPDATE SKIP LOCKED) old
    WHERE k.queue = old.queue AND k.ring = old.ring AND k.at = old.at $$;

-- How many of the next p_jobs turns of a counting scheme are for high priority, from position p_turn on.
CREATE OR REPLACE FUNCTION joex.turns(p_turn integer, p_jobs integer, p_high integer, p_low integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (p_turn + p_jobs) / (p_high + p_low) * p_high + least((p_turn + p_jobs) % (p_high + p_low), p_high)
           - least(p_turn, p_high) $$;

-- Entries of the indexes that takes read, which this transaction has met.
CREATE OR REPLACE FUNCTION joex.entries_walked() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_stat_get_xact_tuples_returned('joex.job_runnable'::regclass)
           + pg_stat_get_xact_tuples_returned('joex.job_held'::regclass) $$;

-- The next jobs for an executor with p_free free slots that serves p_queues (tried in this order), by the counting scheme
-- p_high, p_low. Empty: there is nothing for it now, or it is draining. Raises JX001 where the executor's lease has ended.
-- p_executor 0 stands for workers that are no executors, each with a name of its own (see joex.accept).
CREATE OR REPLACE FUNCTION joex.take(
    p_executor integer, p_queues text[], p_free integer, p_high integer DEFAULT 4, p_low integer DEFAULT 1,
    p_most bytea DEFAULT joex.highest_rank(), p_worker text DEFAULT NULL
) RETURNS SETOF joex.taken LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_executor record;
    v_queue record;
    v_from bigint;
    v_again boolean;
    v_want integer := p_free;
    v_taken joex.taken;
    v_without bigint[];
    v_walked bigint := joex.entries_walked();
BEGIN
    IF p_executor = 0 THEN
        SELECT p_worker AS app_id, false AS draining, NULL::timestamptz AS left_at, NULL::timestamptz AS asleep_since
        INTO v_executor;
    ELSE
        -- Against rescuers and drains: they take this lock exclusively, and so see all of this call's work or none of it.
        PERFORM pg_advisory_xact_lock_shared(joex.lock_class(2), p_executor);
        SELECT e.app_id, e.draining, e.left_at, e.asleep_since INTO v_executor FROM joex.executor e WHERE e.id = p_executor;
    END IF;
    IF v_executor.app_id IS NULL OR v_executor.left_at IS NOT NULL THEN
        RAISE EXCEPTION 'the lease of executor % has ended', p_executor USING ERRCODE = 'JX001';
    END IF;
    IF v_executor.draining THEN
        RETURN;
    END IF;
    FOR v_queue IN SELECT q.id, q.name, q.cursor FROM unnest(p_queues) WITH ORDINALITY AS n(name, ord)
                   JOIN joex.queue q USING (name) ORDER BY n.ord LOOP
        -- (for a worker, whose transaction may stay open, no more than it takes)
        PERFORM joex.promote(v_queue.name, CASE p_executor WHEN 0 THEN p_free ELSE 500 END);
        -- The ring is held while choosing, not until the commit has reached the disk: others skip the rows locked here.
        -- Session locks outlive an error; hence the handler, which cancellation must reach too.
        PERFORM pg_advisory_lock(joex.lock_class(3), v_queue.id);
        BEGIN
            v_from := coalesce(pg_sequence_last_value(v_queue.cursor), -9223372036854775808);
            v_again := false;
            v_without := '{}';
            LOOP
                FOR v_taken IN SELECT * FROM joex.take_pass(
                        v_queue.name, v_from, v_again, v_queue.cursor, p_executor, v_executor.app_id, v_want, p_high, p_low,
                        p_most, v_without) LOOP
                    IF v_taken.id IS NULL THEN
                        v_without := v_without || v_taken.seq;
                    ELSE
                        v_want := v_want - 1;
                        RETURN NEXT v_taken;
                    END IF;
                END LOOP;
                EXIT WHEN NOT FOUND OR v_want = 0;
                v_again := true;
            END LOOP;
        EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
            PERFORM pg_advisory_unlock(joex.lock_class(3), v_queue.id);
            RAISE;
        END;
        PERFORM pg_advisory_unlock(joex.lock_class(3), v_queue.id);
        -- Many more than it takes: most were dead. (A sequence tells it without a write.)
        IF joex.entries_walked() - v_walked > 1000 + 50 * p_free THEN
            PERFORM nextval('joex.long_takes');
        END IF;
        IF v_want = 0 THEN
            IF v_executor.asleep_since IS NOT NULL THEN     -- an executor with a free slot left stays on the list
                UPDATE joex.executor SET asleep_since = NULL WHERE id = p_executor;
            END IF;
            -- All slots filled, so more may wait, in any of the queues: the wake-up may have been for another one than this.
            -- Pass it on. Each woken executor does the same.
            PERFORM joex.wake(n.name, 2) FROM unnest(p_queues) n(name) WHERE joex.has_runnable(n.name);
            RETURN;
        END IF;
    END LOOP;
END $$;
