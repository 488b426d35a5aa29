-- Taking jobs: joint round robin over the groups of a queue, by occupancy.
--
-- The rule, of which core/fairness.py is the executable specification: among the groups that have runnable work, are not
-- paused and are below their limit, the next job comes from the group on the lowest level, level = jobs it runs / weight
-- (whole number); on equal levels from the group that comes first on the ring after the cursor. A group stays under the
-- cursor for as many services as its weight. Within the group: due retries, then what the counting scheme prefers, then
-- first in, first out.
--
-- The words: a group has a *place* on the ring; a *service* takes one job of a group, a *visit* is its services in a row; a *turn* is a
-- position in a counting scheme.
--
-- What happens to a job, in this order, in one transaction. These are the functions; `take` at the end of the file calls them for each
-- queue, until the free slots are filled:
--
--   promote       A job that waited for its time, now due, gets a lane: it is runnable.
--   draw          Where executors hold hundreds of jobs, an earlier take has chosen for this one (see 35_plans.sql). This locks the job's row.
--   take_in_turn  For the slots that are left, this holds the ring, so that one take at a time chooses, and locks rows:
--     one_each      a job of each group that runs nothing, as long as only such groups come next;
--     choose        jobs of all other groups by the rule, with in_turns for groups in which both priorities wait. It chooses a whole batch in
--                   one pass: it walks the ring by a loose index scan, computes how deep the free slots reach into each group (water
--                   filling), and locks just these jobs. A group that has fewer jobs leaves slots over, which the next pass fills.
--   hand_out      The job gets the executor, a lock id, and the state `scheduled`, and has no lane any more. The commit makes it so.
--
-- A job whose row another transaction has locked is passed over, without waiting. The cost grows with the batch, with the groups that are
-- served already, or locked (a take must pass over them), and with the logarithm of everything else.

-- Move due jobs to their lane, a batch at a time, so that a million retries falling due at once do not stop a taker: the oldest
-- first; where there are more than a batch, first a share of it for each group (see promote_in_turn). (No sort: where the statistics have
-- few jobs that wait for their time, the planner would read all due jobs, in parallel, to find the first ones.)
CREATE OR REPLACE FUNCTION joex_private.promote(p_queue text, p_jobs integer DEFAULT 500) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now timestamptz := clock_timestamp();     -- an index is not searched for what may change from row to row
    v_jobs integer := p_jobs;
BEGIN
    IF EXISTS (SELECT FROM joex_private.job j WHERE j.queue = p_queue AND j.due_at IS NOT NULL AND j.due_at <= v_now
               ORDER BY j.due_at OFFSET p_jobs LIMIT 1) THEN
        v_jobs := v_jobs - joex_private.promote_in_turn(p_queue, p_jobs, v_now);
    END IF;
    UPDATE joex_private.job j SET due_at = NULL, lane = CASE j.state WHEN 'stuck' THEN 0 ELSE joex_private.lane(j.priority) END
    WHERE j.id = ANY (ARRAY(SELECT x.id FROM joex_private.job x WHERE x.queue = p_queue AND x.due_at IS NOT NULL AND x.due_at <= v_now
                            ORDER BY x.due_at LIMIT v_jobs FOR UPDATE SKIP LOCKED));
END $$;

-- Move due jobs to their lane, at most p_jobs, and the same number of each group: of the groups that the next take would serve first if
-- all these jobs were in their lanes. It finds the groups by steps over the minutes of due times, and over the groups in each minute,
-- however many jobs a group has there; a group whose jobs are due in later minutes costs nothing. Where there are more groups than steps,
-- it begins at a random place, so that each group is reached. Returns how many jobs.
CREATE OR REPLACE FUNCTION joex_private.promote_in_turn(p_queue text, p_jobs integer, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET enable_mergejoin = off SET enable_hashjoin = off SET enable_memoize = off SET jit = off AS $$
DECLARE
    v_steps CONSTANT integer := greatest(p_jobs, 100);
    v_origin CONSTANT timestamptz := '2000-01-01 00:00+00';
    v_lowest CONSTANT bigint := -9223372036854775808;
    v_highest CONSTANT bigint := 9223372036854775807;
    v_place CONSTANT bigint := joex_private.any_place();
    v_here CONSTANT bigint := coalesce(
        (SELECT pg_sequence_last_value(q.cursor) >> 8 FROM joex_private.queue q
         WHERE q.name = p_queue AND has_sequence_privilege(q.cursor, 'SELECT')), v_lowest);
    v_from timestamptz := (SELECT j.due_at FROM joex_private.job j WHERE j.queue = p_queue AND j.due_at IS NOT NULL
                           ORDER BY j.due_at LIMIT 1);
    v_to timestamptz := (SELECT j.due_at FROM joex_private.job j WHERE j.queue = p_queue AND j.due_at IS NOT NULL AND j.due_at <= p_now
                         ORDER BY j.due_at DESC LIMIT 1);
    v_middle timestamptz;
    v_moved integer;
BEGIN
    -- One of the minutes in which jobs were due, by halving the time in between: each has its chance, however long ago the others.
    v_from := greatest(v_from, p_now - interval '100 years');
    WHILE date_bin('1 minute', v_from, v_origin) < date_bin('1 minute', v_to, v_origin) LOOP
        v_middle := v_from + (v_to - v_from) / 2;
        IF random() < 0.5 THEN
            v_to := (SELECT j.due_at FROM joex_private.job j WHERE j.queue = p_queue AND j.due_at IS NOT NULL AND j.due_at <= v_middle
                     ORDER BY j.due_at DESC LIMIT 1);
        ELSE
            v_from := (SELECT j.due_at FROM joex_private.job j WHERE j.queue = p_queue AND j.due_at IS NOT NULL AND j.due_at > v_middle
                       ORDER BY j.due_at LIMIT 1);
        END IF;
    END LOOP;
    v_from := date_bin('1 minute', least(v_from, v_to, p_now), v_origin);   -- (one is null if another take has just moved the last)
    WITH RECURSIVE step AS (
        -- (As in choose, the circle has two halves: to the end, and from the beginning to the start.)
        SELECT 0 AS nr, v_from AS minute, v_place AS ring, date_bin('1 minute', p_now, v_origin) AS last_minute,
               v_highest AS last_ring, NULL::timestamptz AS due_at
        UNION ALL
        SELECT s.nr + 1, n.minute, n.ring, n.last_minute, n.last_ring, n.due_at
        FROM step s CROSS JOIN LATERAL (
            SELECT x.*, h.last_minute, h.last_ring
            FROM (VALUES (s.minute, s.ring, s.last_minute, s.last_ring),
                         ('-infinity', v_lowest, CASE WHEN s.last_ring = v_highest THEN v_from ELSE '-infinity' END, v_place)
                 ) h(minute, ring, last_minute, last_ring)
            CROSS JOIN LATERAL (
                SELECT date_bin('1 minute', j.due_at, '2000-01-01 00:00+00') AS minute, j.ring, j.due_at FROM joex_private.job j
                WHERE j.queue = p_queue AND j.due_at IS NOT NULL
                      AND (date_bin('1 minute', j.due_at, '2000-01-01 00:00+00'), j.ring) > (h.minute, h.ring)
                      AND (date_bin('1 minute', j.due_at, '2000-01-01 00:00+00'), j.ring) <= (h.last_minute, h.last_ring)
                ORDER BY date_bin('1 minute', j.due_at, '2000-01-01 00:00+00'), j.ring, j.due_at LIMIT 1) x
            LIMIT 1) n
        WHERE s.nr < v_steps
    ), chosen AS MATERIALIZED (
        SELECT d.ring, d.minute
        FROM (SELECT s.ring, min(s.minute) AS minute, min(s.nr) AS nr, (SELECT max(nr) FROM step) < v_steps AS is_all
              FROM step s WHERE s.due_at <= p_now GROUP BY s.ring) d
        CROSS JOIN LATERAL (
            SELECT coalesce(max(g.weight), 1) AS weight, coalesce(bool_or(g.paused), false) AS paused, min(g.max_running) AS most
            FROM joex_private.group_setting g WHERE g.queue = p_queue AND g.ring = d.ring) s
        LEFT JOIN LATERAL (SELECT f.held_upto, f.held FROM joex_private.floor_of(p_queue, d.ring) f
                           LIMIT joex_private.floor_epoch() % 2) f ON true
        CROSS JOIN LATERAL joex_private.running_of(p_queue, d.ring, f.held_upto, f.held) o
        WHERE NOT s.paused AND (s.most IS NULL OR o.running < s.most)
        ORDER BY o.running / s.weight, d.is_all AND d.ring <= v_here, CASE WHEN d.is_all THEN d.ring ELSE d.nr END LIMIT p_jobs
    ), due AS MATERIALIZED (
        -- (Only one index has these bounds and this order. Where the statistics have no job that waits for its time, the planner takes
        -- the index of all due times to be as good.)
        SELECT j.id FROM chosen c CROSS JOIN LATERAL (
            SELECT x.id FROM joex_private.job x
            WHERE x.queue = p_queue AND x.due_at IS NOT NULL
                  AND (date_bin('1 minute', x.due_at, '2000-01-01 00:00+00'), x.ring, x.due_at) >= (c.minute, c.ring, c.minute)
                  AND (date_bin('1 minute', x.due_at, '2000-01-01 00:00+00'), x.ring, x.due_at) <= (c.minute, c.ring, p_now)
            ORDER BY date_bin('1 minute', x.due_at, '2000-01-01 00:00+00'), x.ring, x.due_at
            LIMIT p_jobs / (SELECT count(*) FROM chosen) FOR UPDATE SKIP LOCKED) j
    )
    UPDATE joex_private.job j SET due_at = NULL, lane = CASE j.state WHEN 'stuck' THEN 0 ELSE joex_private.lane(j.priority) END
    FROM due WHERE j.id = due.id;
    GET DIAGNOSTICS v_moved = ROW_COUNT;
    RETURN v_moved;
END $$;

DO $do$ BEGIN
    CREATE TYPE joex_private.taken AS (
        id uuid, lock_id uuid, seq bigint, queue text, grp text, task text, args text, priority joex_private.job_priority,
        subject text, submitter text, attempt integer, failures integer, retries integer, waited float8, suspect boolean,
        losses integer, trace_context text);
EXCEPTION WHEN duplicate_object THEN NULL; END $do$;
DO $do$ BEGIN
    CREATE TYPE joex_private.mixed_group AS (
        ring bigint, pos integer, running integer, weight integer, jobs integer, lane0 bigint, lane1 bigint, lane2 bigint);
EXCEPTION WHEN duplicate_object THEN NULL; END $do$;

-- How many more jobs of a group with a limit may run. A limit must hold at every moment, so that takes from such a group
-- exclude each other until they have committed: 0 where another one is under way. (That one wakes a sleeping executor if it leaves
-- work.) It counts again in a statement of its own, which sees what has committed before the lock was free. (It counts before
-- too: to lock a row is to write, and a take that finds all groups at their limits locks none.)
CREATE OR REPLACE FUNCTION joex_private.room(p_queue text, p_ring bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_room integer;
BEGIN
    PERFORM joex_private.must_see_the_latest('joex_client.accept from a group with a limit');
    FOR i IN 1..2 LOOP
        v_room := CASE WHEN p_limit > 0 THEN p_limit - (
            SELECT r.running FROM (SELECT FROM (VALUES (1)) one) one
            LEFT JOIN LATERAL (SELECT f.held_upto, f.held FROM joex_private.floor_of(p_queue, p_ring) f
                               LIMIT joex_private.floor_epoch() % 2) f ON true
            CROSS JOIN LATERAL joex_private.running_of(p_queue, p_ring, f.held_upto, f.held) r) ELSE 0 END;
        IF v_room <= 0 THEN
            RETURN 0;
        END IF;
        IF i = 1 AND NOT joex_private.try_mutex('limit', p_queue, p_ring) THEN
            RETURN 0;
        END IF;
    END LOOP;
    RETURN v_room;
END $$;

-- A row for try_mutex comes with each group that has settings. (It stays apart from the settings, so that a change of these does
-- not wait for a worker's open transaction.)
CREATE OR REPLACE FUNCTION joex_private.make_mutex() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO joex_private.mutex (purpose, queue, ring) VALUES ('limit', NEW.queue, NEW.ring) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER make_mutex AFTER INSERT OR UPDATE OF queue, ring ON joex_private.group_setting
FOR EACH ROW EXECUTE FUNCTION joex_private.make_mutex();

-- The next jobs of groups in which both priorities wait, locked, of each group as many as the caller wants: due retries, then by the counting scheme.
-- The nth high job has the nth turn for high ones from where the group stands, and so the low ones; the scheme's turns for a priority
-- that runs out go to the other one. kth: a job's number in its group; counts: the scheme moves on with it, from `turn` on. A group
-- all of whose jobs other transactions have locked is a row without a tid. (Also for groups with floors, and where a rank is the limit.)
CREATE OR REPLACE FUNCTION joex_private.in_turns(p_queue text, p_groups joex_private.mixed_group[], p_high integer, p_low integer, p_most bytea)
RETURNS TABLE (
    ring bigint, pos integer, running integer, weight integer, tid tid, kth bigint, turn integer, counts boolean
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_lowest CONSTANT bigint := -9223372036854775808;
BEGIN
    RETURN QUERY
    WITH depth AS MATERIALIZED (
        -- How many jobs each lane has, as far as that matters, and how many of each to take.
        SELECT g.*, n.due, n.high, n.low, n.turn,
               least(n.high, n.turns + greatest(g.jobs - n.due - n.turns - n.low, 0)) AS take_high,
               least(n.low, g.jobs - n.due - n.turns + greatest(n.turns - n.high, 0)) AS take_low
        FROM unnest(p_groups) g CROSS JOIN LATERAL (
            SELECT l.*, joex_private.turns(l.turn, g.jobs - l.due, p_high, p_low) AS turns FROM (
                SELECT least(count(*) FILTER (WHERE w.lane = 0), g.jobs)::integer AS due,
                       count(*) FILTER (WHERE w.lane = 1)::integer AS high, count(*) FILTER (WHERE w.lane = 2)::integer AS low,
                       coalesce((SELECT k.position FROM joex_private.priority_turns k WHERE k.queue = p_queue AND k.ring = g.ring
                                 ORDER BY k.at DESC LIMIT 1), 0) % (p_high + p_low) AS turn
                FROM (VALUES (0, g.lane0), (1, g.lane1), (2, g.lane2)) f(lane, seq) CROSS JOIN LATERAL (
                    SELECT j.lane FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = g.ring AND j.lane = f.lane
                    AND (j.rank, j.seq) >= (''::bytea, coalesce(f.seq, v_lowest)) AND j.rank <= p_most LIMIT g.jobs + 1) w
            ) l) n
    ), turned AS MATERIALIZED (
        SELECT d.ring, d.pos, d.running, d.weight, d.turn, d.lane1, d.lane2, least(d.jobs, d.due + d.high + d.low) AS jobs,
               j.tid, j.kth, j.counts
        FROM depth d LEFT JOIN LATERAL (
            SELECT t.tid, row_number() OVER (ORDER BY t.lane > 0, t.ahead, t.rank, t.seq) - 1 AS kth,
                   t.lane > 0 AND row_number() OVER (PARTITION BY t.lane > 0 ORDER BY t.ahead) - 1 - t.nth
                                  < CASE t.lane WHEN 1 THEN d.low ELSE d.high END AS counts
            FROM (SELECT l.*, CASE l.lane
                      WHEN 1 THEN (least(d.turn, p_high) + l.nth) / p_high * (p_high + p_low) + (least(d.turn, p_high) + l.nth) % p_high
                      WHEN 2 THEN (greatest(d.turn - p_high, 0) + l.nth) / p_low * (p_high + p_low) + p_high
                                  + (greatest(d.turn - p_high, 0) + l.nth) % p_low END AS ahead
                  FROM (SELECT x.*, row_number() OVER (PARTITION BY x.lane ORDER BY x.rank, x.seq) - 1 AS nth
                        FROM (VALUES (0, d.lane0, d.jobs), (1, d.lane1, d.take_high), (2, d.lane2, d.take_low)) f(lane, seq, jobs)
                        CROSS JOIN LATERAL (
                            SELECT a.ctid AS tid, a.lane, a.rank, a.seq FROM joex_private.job a
                            WHERE a.queue = p_queue AND a.ring = d.ring AND a.lane = f.lane
                                  AND (a.rank, a.seq) >= (''::bytea, coalesce(f.seq, v_lowest)) AND a.rank <= p_most
                            ORDER BY a.rank, a.seq LIMIT f.jobs FOR UPDATE SKIP LOCKED) x) l) t) j ON true
    ), locked AS MATERIALIZED (
        -- Groups of which other transactions have locked the next jobs: their turns go to the other priority, as if these jobs were gone.
        SELECT t.ring, t.pos, t.running, t.weight, t.turn, t.lane1, t.lane2, count(t.tid) AS found,
               array_remove(array_agg(t.tid), NULL) AS tids, t.jobs - count(t.tid) AS missing
        FROM turned t GROUP BY t.ring, t.pos, t.running, t.weight, t.turn, t.lane1, t.lane2, t.jobs
        HAVING count(t.tid) < t.jobs OR count(t.tid) = 0
    ), others AS MATERIALIZED (
        -- (High priority first: rows come in the order of VALUES, and none is read, or locked, beyond the last LIMIT.)
        SELECT l.ring, l.pos, l.running, l.weight, l.turn, o.tid, l.found + o.nr - 1 AS kth FROM locked l LEFT JOIN LATERAL (
            SELECT x.tid, row_number() OVER () AS nr FROM (
                SELECT a.tid FROM (VALUES (1, l.lane1), (2, l.lane2)) f(lane, seq) CROSS JOIN LATERAL (
                    SELECT j.ctid AS tid FROM joex_private.job j
                    WHERE j.queue = p_queue AND j.ring = l.ring AND j.lane = f.lane
                          AND (j.rank, j.seq) >= (''::bytea, coalesce(f.seq, v_lowest)) AND j.rank <= p_most AND j.ctid <> ALL (l.tids)
                    ORDER BY j.rank, j.seq LIMIT l.missing FOR UPDATE SKIP LOCKED) a
                LIMIT l.missing) x) o ON true
        WHERE o.tid IS NOT NULL OR l.found = 0
    )
    SELECT t.ring, t.pos, t.running, t.weight, t.tid, t.kth, t.turn, t.counts FROM turned t WHERE t.tid IS NOT NULL
    UNION ALL
    SELECT o.ring, o.pos, o.running, o.weight, o.tid, o.kth, o.turn, false FROM others o;
END $$;

-- Note where these groups stand in their counting schemes.
CREATE OR REPLACE FUNCTION joex_private.count_turns(p_queue text, p_rings bigint[], p_positions integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    WITH counted AS (
        INSERT INTO joex_private.priority_turns AS k (queue, ring, position)
        SELECT p_queue, c.ring, c.position FROM unnest(p_rings, p_positions) AS c(ring, position) RETURNING k.ring
    )   -- (A row that another take removes, whose transaction is open, stays here. An array, not a join: see forget_turns.)
    DELETE FROM joex_private.priority_turns k WHERE k.ctid = ANY (ARRAY(
        SELECT old.tid FROM counted c CROSS JOIN LATERAL (
            SELECT o.ctid AS tid FROM joex_private.priority_turns o WHERE o.queue = p_queue AND o.ring = c.ring
            ORDER BY o.at DESC LIMIT 1 FOR UPDATE SKIP LOCKED) old));
END $$;

-- One pass over the ring of one queue; the caller holds the ring. Chooses and locks jobs, and moves the cursor. tids: the rows of the
-- jobs, in the order of service. p_from is the cursor at the start of the call (place * 256 + services already given there), the
-- same for all passes; p_again: this is not the first pass. p_most: no job of a higher rank than this is taken.
-- blocked: the places of groups that were to be served, and all of whose jobs other transactions have locked. The next pass must leave
-- them out (p_without), otherwise they block later groups. For a plan (see 35_plans.sql): cursors, where the cursor is after each
-- service; turns, where its group stands in the counting scheme before it (null: it is not counted); ahead, how many services the next
-- plan has: a 64th of what is held by the groups that this pass has met, a 128th where these hold fewer than four jobs each, because a
-- plan shifts a share by a job; as many as fit into a page; 0 where that is little. is_all: all that these groups may run is in tids, so
-- another pass would find nothing.
CREATE OR REPLACE FUNCTION joex_private.choose(
    p_queue text, p_from bigint, p_again boolean, p_cursor regclass, p_free integer, p_high integer, p_low integer, p_most bytea,
    p_without bigint[], OUT tids tid[], OUT blocked bigint[], OUT cursors bigint[], OUT turns integer[], OUT ahead integer,
    OUT is_all boolean
) LANGUAGE plpgsql VOLATILE
SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET enable_memoize = off SET jit = off AS $$
DECLARE
    v_here bigint := p_from >> 8;                   -- the group under the cursor
    v_served integer := (p_from & 255)::integer;    -- services it was given in this visit
    v_left integer;                                 -- services it has left in this visit
    v_before bigint;                                -- the walk starts after this place
    v_limited boolean := p_most < joex_client.highest_rank();
    v_floors boolean := joex_private.floor_epoch() % 2 = 1;
    v_lowest CONSTANT bigint := -9223372036854775808;
    v_cursor bigint;
    v_turned bigint[];      -- groups that were served by the counting scheme, and where they stand now
    v_positions integer[];
BEGIN
    SELECT greatest(coalesce(max(g.weight), 1) - v_served, 0) INTO v_left
    FROM joex_private.group_setting g WHERE g.queue = p_queue AND g.ring = v_here;
    v_before := CASE WHEN v_left > 0 THEN v_here - 1 ELSE v_here END;

    -- The ring from the cursor on, and once around. It stops as soon as there are enough groups that run nothing: no
    -- group further on can come before them. `idle` counts these (not the one under the cursor whose visit is over: all others
    -- on its level come before it); `stop` is where the second half of the circle ends. lane0 to lane2 are the group's floors (see
    -- 25_floors.sql), null where it has none; lane, rank and seq are the first job of a group without.
    WITH RECURSIVE walk AS (
        SELECT v_before AS ring, 9223372036854775807 AS stop, 0 AS pos, 0 AS idle, 0 AS running, 1 AS weight, 0 AS room,
               NULL::bigint AS lane0, NULL::bigint AS lane1, NULL::bigint AS lane2, NULL::smallint AS lane, NULL::bytea AS rank,
               NULL::bigint AS seq
        UNION ALL
        SELECT n.ring, n.stop, w.pos + 1,
               w.idle + CASE WHEN s.room > 0 AND o.running < s.weight AND NOT (p_again AND v_left > 0 AND n.ring = v_here)
                             THEN 1 ELSE 0 END, o.running, s.weight, s.room, f.lane0, f.lane1, f.lane2, n.lane, n.rank, n.seq
        FROM walk w
        CROSS JOIN LATERAL (
            SELECT p.*, h.stop
            FROM (VALUES (w.ring, w.stop), (v_lowest, CASE WHEN w.stop > v_before THEN v_before ELSE v_lowest END)) h(after, stop)
            CROSS JOIN LATERAL joex_private.next_place(p_queue, h.after, h.stop, v_floors) p
            LIMIT 1) n
        LEFT JOIN LATERAL (SELECT * FROM joex_private.floor_of(p_queue, n.ring) LIMIT n.is_floored::integer) f ON true
        CROSS JOIN LATERAL joex_private.running_of(p_queue, n.ring, f.held_upto, f.held) o
        CROSS JOIN LATERAL (
            SELECT coalesce(max(g.weight), 1) AS weight,
                   CASE WHEN bool_or(g.paused) OR n.ring IN (SELECT unnest(p_without))     -- (hashed, and so not ANY)
                             OR (v_limited OR n.is_floored) AND NOT EXISTS (
                                SELECT FROM (VALUES (0, f.lane0), (1, f.lane1), (2, f.lane2)) l(lane, seq) CROSS JOIN LATERAL (
                                    SELECT FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = n.ring AND j.lane = l.lane
                                    AND (j.rank, j.seq) >= (''::bytea, coalesce(l.seq, v_lowest)) AND j.rank <= p_most
                                    LIMIT 1) x) THEN 0
                        WHEN min(g.max_running) IS NULL THEN p_free
                        WHEN min(g.max_running) <= o.running THEN 0     -- (what ends meanwhile is for the next take)
                        ELSE least(joex_private.room(p_queue, n.ring, min(g.max_running)), p_free) END AS room
            FROM joex_private.group_setting g WHERE g.queue = p_queue AND g.ring = n.ring) s
        WHERE w.idle < p_free
    ), candidate AS MATERIALIZED (
        -- No more groups than there are services, those on the lowest levels: to sort and to sum up 5,000 was a quarter of the cost of a
        -- choice. (And one more: the group under the cursor, which comes first here, may come after all others on its level.)
        SELECT w.ring, w.pos, w.running, w.weight, w.room, w.lane0, w.lane1, w.lane2, w.lane, w.rank, w.seq,
               sum(w.weight) OVER lowest AS weights, sum(w.running) OVER lowest AS runs
        FROM (SELECT * FROM walk w WHERE w.pos > 0 AND w.room > 0 ORDER BY w.running / w.weight, w.pos LIMIT p_free + 1::bigint) w
        WINDOW lowest AS (ORDER BY w.running::float8 / w.weight, w.pos ROWS UNBOUNDED PRECEDING)
    ), water AS MATERIALIZED (
        -- The level that the free slots fill the groups up to: raising the groups below it to it takes them all.
        SELECT ceil((p_free + c.runs)::float8 / c.weights)::integer AS level FROM candidate c
        WHERE c.weights * (c.running::float8 / c.weight) - c.runs < p_free
        ORDER BY c.weights DESC LIMIT 1
    ), visit AS (
        -- The services that the free slots are for. `sure` are those below the last level. Those on the last level come in visits, in the
        -- order of `chosen`; `before` are the services of the visits before this one. The group under the cursor may have two visits: one
        -- that goes on, and one that comes after all others.
        SELECT c.*, v.is_over, v.jobs, CASE WHEN v.is_first THEN n.sure ELSE 0 END AS sure,
               sum(v.jobs) OVER (ORDER BY v.is_over, c.pos ROWS UNBOUNDED PRECEDING) - v.jobs AS before
        FROM candidate c CROSS JOIN water CROSS JOIN LATERAL (
            SELECT least(c.room, greatest(c.weight * (water.level - 1) - c.running, 0)) AS sure,
                   least(c.room, greatest(c.weight * water.level - c.running, 0)) AS upto,
                   c.ring = v_here AND v_left > 0 AS is_here,
                   NOT p_again AND water.level - 1 = (SELECT min(o.running / o.weight) FROM candidate o) AS goes_on
        ) n CROSS JOIN LATERAL (
            SELECT n.is_here AND NOT n.goes_on, n.upto - n.sure, true WHERE NOT (n.is_here AND n.goes_on)
            UNION ALL
            SELECT false, least(n.upto, v_left), true WHERE n.is_here AND n.goes_on
            UNION ALL
            SELECT true, n.upto - v_left, false WHERE n.is_here AND n.goes_on AND n.upto > v_left
        ) v(is_over, jobs, is_first)
    ), due AS (
        -- How many jobs to take of each group. The last visit is not cut, so that its services are counted. This locks only jobs that are
        -- next: other takes pass over what is locked here until this transaction ends, and that may be long (see accept).
        SELECT v.ring, v.pos, v.running, v.weight, v.lane0, v.lane1, v.lane2, v.lane, v.rank, v.seq,
               (sum(v.sure) + coalesce(sum(v.jobs) FILTER (WHERE v.before < p_free - (SELECT sum(a.sure) FROM visit a)), 0))::integer
                   AS jobs
        FROM visit v GROUP BY v.ring, v.pos, v.running, v.weight, v.lane0, v.lane1, v.lane2, v.lane, v.rank, v.seq
    ), reached AS MATERIALIZED (
        -- (OFFSET 0: a probe for each group. Otherwise a planner whose statistics have no backlog yet reads all of it into a hash table.)
        SELECT d.*, v_limited OR d.lane0 IS NOT NULL OR
               d.lane < 2
               AND EXISTS (SELECT FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = d.ring AND j.lane = 2 OFFSET 0)
               AND (d.lane = 1
                    OR EXISTS (SELECT FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = d.ring AND j.lane = 1 OFFSET 0))
                   AS mixed
        FROM due d WHERE d.jobs > 0
    ), lined AS MATERIALIZED (
        -- The jobs of each group, locked, in their order. Where one priority waits, that is the index's. (The number of a row tells
        -- the order in which it was read: to sort once more costs as much as to read.) A group all of whose jobs other
        -- transactions have locked is a row without a tid.
        SELECT r.ring, r.pos, r.running, r.weight, j.tid, j.kth, NULL::integer AS turn, false AS counts
        FROM reached r LEFT JOIN LATERAL (
            SELECT a.tid, row_number() OVER () - 1 AS kth
            FROM (SELECT a.ctid AS tid FROM joex_private.job a
                  WHERE a.queue = p_queue AND a.ring = r.ring AND a.lane IS NOT NULL
                        AND (a.lane, a.rank, a.seq) >= (r.lane, r.rank, r.seq)
                  ORDER BY a.lane, a.rank, a.seq LIMIT r.jobs FOR UPDATE SKIP LOCKED) a) j ON true
        WHERE NOT r.mixed
        UNION ALL
        SELECT t.*
        FROM (SELECT array_agg((r.ring, r.pos, r.running, r.weight, r.jobs, r.lane0, r.lane1, r.lane2)::joex_private.mixed_group) AS groups
              FROM reached r WHERE r.mixed) m
        CROSS JOIN LATERAL joex_private.in_turns(p_queue, m.groups, p_high, p_low, p_most) t WHERE m.groups IS NOT NULL
    ), chosen AS MATERIALIZED (
        -- A visit that is under way goes on before all others, on the lowest level; when it is over, the group comes after all.
        SELECT o.ring, o.tid, o.turn, o.counts, o.level, o.is_over,
               row_number() OVER (ORDER BY o.level, o.is_over, o.pos, o.kth) AS nr FROM (
            SELECT l.*, l.ring = v_here AND v_left > 0
                        AND (p_again OR l.kth >= v_left OR l.level > (SELECT min(c.running / c.weight) FROM candidate c))
                        AS is_over
            FROM (SELECT x.*, (x.running + x.kth) / x.weight AS level FROM lined x
                  WHERE x.tid IS NOT NULL) l) o
        ORDER BY o.level, o.is_over, o.pos, o.kth LIMIT p_free
    ), last AS (
        SELECT c.ring, c.level, c.is_over FROM chosen c ORDER BY c.nr DESC LIMIT 1
    ), counted AS (
        SELECT c.ring, (min(c.turn) + count(*))::integer % (p_high + p_low) AS position
        FROM chosen c WHERE c.counts GROUP BY c.ring
    )
    SELECT ARRAY(SELECT c.tid FROM chosen c ORDER BY c.nr),
           ARRAY(SELECT c.ring * 256 + least(255, row_number() OVER (PARTITION BY c.ring, c.level, c.is_over ORDER BY c.nr))
                 FROM chosen c ORDER BY c.nr),
           ARRAY(SELECT CASE WHEN c.counts THEN (c.turn + row_number() OVER (PARTITION BY c.ring, c.counts ORDER BY c.nr) - 1)
                                                % (p_high + p_low) END
                 FROM chosen c ORDER BY c.nr),
           ARRAY(SELECT l.ring FROM lined l WHERE l.tid IS NULL),
           -- The services of this visit: the last group's jobs on its last level; and those before this call, where the visit
           -- has merely gone on.
           (SELECT l.ring * 256 + least(255, CASE
                       WHEN v_left > 0 AND NOT l.is_over AND NOT EXISTS (SELECT FROM chosen c WHERE c.ring <> v_here)
                       THEN v_served ELSE 0 END
                   + (SELECT count(*) FROM chosen c
                      WHERE c.ring = l.ring AND c.level = l.level AND c.is_over = l.is_over)) FROM last l),
           (SELECT array_agg(c.ring) FROM counted c), (SELECT array_agg(c.position) FROM counted c),
           (SELECT CASE WHEN sum(w.running) >= 256 THEN least(
                       sum(w.running) / CASE WHEN avg(w.running) FILTER (WHERE w.running > 0) >= 4 THEN 64 ELSE 128 END, 400)
                   ELSE 0 END FROM walk w),
           (SELECT sum(c.room) FROM candidate c) = (SELECT count(*) FROM chosen)
    INTO tids, cursors, turns, blocked, v_cursor, v_turned, v_positions, ahead, is_all;
    PERFORM setval(p_cursor, v_cursor) WHERE v_cursor IS NOT NULL;
    IF v_turned IS NOT NULL THEN
        PERFORM joex_private.count_turns(p_queue, v_turned, v_positions);
    END IF;
END $$;

-- The groups that the next pass of choose must leave out, where other transactions have locked the jobs of many: p_without, and those that
-- this finds. It looks four times as far each time, until it finds p_free jobs or no more such groups, so that thousands of these
-- cost a few passes, not one for each p_free of them. It undoes its locks: the next pass locks what the take takes. Null: no jobs are left.
CREATE OR REPLACE FUNCTION joex_private.leave_out_locked(
    p_queue text, p_from bigint, p_again boolean, p_free integer, p_high integer, p_low integer, p_most bytea, p_without bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_without bigint[] := p_without;
    v_reach integer := p_free;
    v_found record;
BEGIN
    LOOP
        v_reach := 4 * least(v_reach, 100000000);
        BEGIN
            SELECT cardinality(c.tids) AS jobs, c.blocked INTO v_found
            FROM joex_private.choose(p_queue, p_from, p_again, NULL, v_reach, p_high, p_low, p_most, v_without) c;
            RAISE SQLSTATE 'JX000';
        EXCEPTION WHEN SQLSTATE 'JX000' THEN
            NULL;   -- (the locks of this block are gone)
        END;
        IF v_found.blocked = '{}' THEN
            RETURN CASE WHEN v_found.jobs > 0 THEN v_without END;
        END IF;
        v_without := v_without || v_found.blocked;
        EXIT WHEN v_found.jobs >= p_free;
    END LOOP;
    RETURN v_without;
END $$;

-- What choose would choose, and at a fraction of its cost, as long as the next groups on the ring run nothing: one job of each. It ends
-- before a group that runs something, about which something is set, or in which both priorities wait: choose goes on from there.
-- tids: the jobs, locked, in the order of service. is_all: no others wait. (Not while floors are on.)
CREATE OR REPLACE FUNCTION joex_private.one_each(
    p_queue text, p_from bigint, p_cursor regclass, p_free integer, OUT tids tid[], OUT is_all boolean
) LANGUAGE plpgsql VOLATILE
SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_here CONSTANT bigint := p_from >> 8;
    v_start CONSTANT bigint := CASE p_from & 255 WHEN 0 THEN v_here - 1 ELSE v_here END;
    v_after bigint := v_start;
    v_to bigint := 9223372036854775807;
    v_last bigint;
    v_next record;
BEGIN
    tids := '{}';
    is_all := false;
    -- (The visit to the group under the cursor may go on.)
    IF EXISTS (SELECT FROM joex_private.group_setting g WHERE g.queue = p_queue AND g.ring = v_here) THEN
        RETURN;
    END IF;
    LOOP
        SELECT j.ctid AS tid, j.ring, (j.lane <> 1 OR NOT EXISTS (
                   SELECT FROM joex_private.job o WHERE o.queue = p_queue AND o.ring = j.ring AND o.lane = 2 OFFSET 0))
               AND NOT EXISTS (SELECT FROM joex_private.group_setting g WHERE g.queue = p_queue AND g.ring = j.ring)
               AND NOT EXISTS (SELECT FROM joex_private.job h
                               WHERE h.queue = p_queue AND h.ring = j.ring AND h.executor_id IS NOT NULL OFFSET 0)
               AND NOT EXISTS (SELECT FROM joex_private.overrun h WHERE h.queue = p_queue AND h.ring = j.ring OFFSET 0) AS is_simple
        INTO v_next FROM joex_private.job j
        WHERE j.queue = p_queue AND j.ring > v_after AND j.ring <= v_to AND j.lane IS NOT NULL
        ORDER BY j.ring, j.lane, j.rank, j.seq LIMIT 1;
        IF v_next.ring IS NULL AND v_to > v_start THEN      -- from the beginning of the ring to where this has begun
            v_after := -9223372036854775808;
            v_to := v_start;
            CONTINUE;
        ELSIF v_next.ring IS NULL THEN      -- each group has been served
            is_all := tids = '{}' OR cardinality(tids) = (SELECT count(*) FROM (
                SELECT FROM joex_private.job j WHERE j.queue = p_queue AND j.lane IS NOT NULL LIMIT cardinality(tids) + 1) x);
            EXIT;
        END IF;
        EXIT WHEN NOT v_next.is_simple;
        -- (Another transaction may have locked it, or changed it since.)
        PERFORM FROM joex_private.job j WHERE j.ctid = v_next.tid AND j.lane IS NOT NULL FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        tids := tids || v_next.tid;
        v_after := v_next.ring;
        v_last := v_next.ring;
        EXIT WHEN cardinality(tids) = p_free;
    END LOOP;
    PERFORM setval(p_cursor, v_last * 256 + 1) WHERE v_last IS NOT NULL;
END $$;

-- A rank above all others: what a tuple is packed into never begins with this byte.
CREATE OR REPLACE FUNCTION joex_client.highest_rank() RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT '\xff'::bytea $$;

-- Remove rows of the counting schemes that no take needs: those that are not the newest of their group, which takes that met have
-- left; and those of groups of which no job waits in a lane or is held, whose counting begins anew. (Not while floors are on: to ask
-- for the jobs of a group would walk over all that vacuum has not cleared.)
CREATE OR REPLACE FUNCTION joex_private.forget_turns() RETURNS void
LANGUAGE sql VOLATILE SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET search_path = pg_catalog, pg_temp AS $$
    -- (An array, not a join: with statistics of a time when the table was empty, a join would choose them anew for each row. No row
    -- is ever updated, so that its ctid stays.)
    DELETE FROM joex_private.priority_turns k WHERE k.ctid = ANY (ARRAY(
        SELECT o.ctid FROM joex_private.priority_turns o
        WHERE EXISTS (SELECT FROM joex_private.priority_turns n WHERE n.queue = o.queue AND n.ring = o.ring AND n.at > o.at OFFSET 0)
              OR NOT joex_private.floors_are_on()
                 AND NOT EXISTS (SELECT FROM joex_private.job j WHERE j.queue = o.queue AND j.ring = o.ring AND j.lane IS NOT NULL OFFSET 0)
                 AND NOT EXISTS (SELECT FROM joex_private.job j
                                 WHERE j.queue = o.queue AND j.ring = o.ring AND j.executor_id IS NOT NULL OFFSET 0)
        FOR UPDATE SKIP LOCKED)) $$;

-- How many of the next p_jobs turns of a counting scheme are for high priority, from position p_turn on.
CREATE OR REPLACE FUNCTION joex_private.turns(p_turn integer, p_jobs integer, p_high integer, p_low integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (p_turn + p_jobs) / (p_high + p_low) * p_high + least((p_turn + p_jobs) % (p_high + p_low), p_high)
           - least(p_turn, p_high) $$;

-- Entries of the indexes that takes read, which this transaction has met.
CREATE OR REPLACE FUNCTION joex_private.entries_walked() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_stat_get_xact_tuples_returned('joex_private.job_runnable'::regclass)
           + pg_stat_get_xact_tuples_returned('joex_private.job_held'::regclass) $$;

-- Hold the ring of a queue: an advisory lock of the session, on the hash of the queue's name. False: another session has held it
-- for a second. Then the take goes on without, for the ring keeps only the order of service: what keeps two takes from one job is
-- the lock of its row. So a session that hangs, or leaves the lock behind, stops no queue.
CREATE OR REPLACE FUNCTION joex_private.wait_for_ring(p_queue text) RETURNS boolean LANGUAGE plpgsql VOLATILE SET lock_timeout = '1s' AS $$
DECLARE
    v_holder integer;
BEGIN
    PERFORM pg_advisory_lock(joex_private.ring_lock(), hashtext(p_queue));
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    PERFORM joex_private.free_ring(p_queue);    -- (the end of the wait and the lock may have met)
    FOR v_holder IN SELECT joex_private.ring_holder(p_queue) LOOP
        RAISE LOG 'joex: a take from queue % goes on without its ring, which session % has held for a second',
            to_json(p_queue), v_holder
            USING HINT = 'Where that session is idle it keeps each take of others waiting: end it with pg_terminate_backend.';
    END LOOP;
    RETURN false;
END $$;

-- The process ids of the sessions that hold the ring of a queue, alone or shared; no row: none does.
CREATE OR REPLACE FUNCTION joex_private.ring_holder(p_queue text) RETURNS SETOF integer LANGUAGE sql STABLE AS $$
    SELECT DISTINCT l.pid FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.granted
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.classid::bigint = joex_private.ring_lock() AND l.objid::bigint = hashtext(p_queue)::bigint & 4294967295
          AND l.objsubid = 2 $$;

-- The sessions that have held the ring of a queue for more than a second, as far as the caller may see their states, or whose roles take no
-- jobs: takes go on, each a second later (see wait_for_ring). No row: none has. (A session that sends statements meanwhile has a new
-- state with each.)
CREATE OR REPLACE FUNCTION joex_private.queue_holder(p_queue text) RETURNS TABLE (session integer, role name) LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT h.pid, a.usename FROM joex_private.ring_holder(p_queue) h(pid) LEFT JOIN pg_stat_activity a ON a.pid = h.pid
                 WHERE coalesce(a.state_change < clock_timestamp() - interval '1 second', true)
                       OR NOT joex_private.may_call(h.pid, 'joex_client.accept'::regproc);
END $$;

-- Free the ring of a queue where this session holds it. A cancellation may come between a lock and any note of it, so it is the
-- table of locks that knows; and how often: a lock that an earlier take has left behind goes too. Nor does a further
-- cancellation end this. (A flood of them may still meet each handler before it gets here.)
CREATE OR REPLACE FUNCTION joex_private.free_ring(p_queue text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    LOOP
        BEGIN
            -- (Where the lock is the transaction's, see publish_plan, this can't free it, and need not.)
            EXIT WHEN (SELECT pg_advisory_unlock(joex_private.ring_lock(), hashtext(p_queue))
                       FROM joex_private.ring_holder(p_queue) h(pid) WHERE h.pid = pg_backend_pid()) IS NOT TRUE;
        EXCEPTION WHEN query_canceled THEN
            NULL;   -- (its caller raises what has led here)
        END;
    END LOOP;
END $$;

-- Any place on the ring, each as likely.
CREATE OR REPLACE FUNCTION joex_private.any_place() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor((random() - 0.5) * 72057594037927936)::bigint $$;

-- Give the jobs in these rows, which this transaction has locked, to the executor, in this order. Where it has begun to drain, or its lease
-- has ended, or it has given this take up (see give_back_unknown), this gives it none. Rescuers, drains and give-backs write the executor's
-- row. So they wait for this transaction and see all that it takes, or this waits for them, and then takes nothing. (To lock a row is to
-- write, so a take does it only when it writes anyway. It shares the lock, so that a take whose link broke stops no later one of the
-- executor. It has to wait: a transaction may lock the row and leave the executor in peace, and a wake-up is spent on one take. No deadlock
-- comes of that, because the others lock jobs that an executor holds, and these are held by none.)
-- Arguments come along where they are small, and their texts in one call have a megabyte together, or else no more than their share of it:
-- others are null, and the run asks for them itself (see joex_client.arguments). Otherwise the arguments of one tenant would block all
-- other tenants on a slow link.
CREATE OR REPLACE FUNCTION joex_private.hand_out(p_tids tid[], p_executor integer, p_app_id text, p_give_back_nr integer)
RETURNS SETOF joex_private.taken LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- Of this and the number of the job a hash makes the lock id: who has one can compute no other. (Chance has its price: without
    -- OpenSSL the server opens the kernel's device for each number.)
    v_secret CONSTANT bytea := uuid_send(gen_random_uuid());
BEGIN
    IF p_executor <> 0 THEN
        PERFORM FROM joex_private.executor e
        WHERE e.id = p_executor AND e.left_at IS NULL AND NOT e.draining AND e.give_back_nr <= p_give_back_nr AND p_tids <> '{}'
        FOR SHARE;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    RETURN QUERY WITH taken AS (
        UPDATE joex_private.job j SET lane = NULL, state = 'scheduled', executor_id = p_executor, app_id = p_app_id,
               lock_id = encode(substr(sha256(v_secret || int8send(c.nr)), 1, 16), 'hex')::uuid, scheduled_at = clock_timestamp(),
               held_since = (SELECT coalesce(pg_sequence_last_value('joex_private.job_seq_seq'), 0)),
               -- (An executor marks the start of a job that was lost twice before its code runs: see mark_start.)
               (overdue_at, renew_by) = (
                   SELECT clock_timestamp() + o.timeout, CASE WHEN o.renewable THEN o.timeout END
                   FROM joex_private.task_timeout o WHERE o.task = j.task AND (p_executor = 0 OR j.losses < 2))
        FROM unnest(p_tids) WITH ORDINALITY AS c(tid, nr) WHERE j.ctid = c.tid
        RETURNING j.id, j.lock_id, j.seq, j.queue::text, j.grp::text, j.task::text,
                  -- (#> '{}': as it is, and not as the table has compressed it; read only where that is small)
                  CASE WHEN 16384 >= CASE WHEN pg_column_compression(j.args) IS NULL THEN pg_column_size(j.args)
                                          WHEN pg_column_size(j.args) < 8000 THEN pg_column_size(j.args #> '{}') END
                       THEN j.args::text END AS args,
                  j.priority, j.subject::text, j.submitter::text, j.attempt, j.failures, j.retries::integer,
                  extract(epoch FROM j.scheduled_at - j.runnable_since)::float8 AS waited, j.suspect,
                  j.losses, j.trace_context::text, c.nr
    ) SELECT t.id, t.lock_id, t.seq, t.queue, t.grp, t.task,
             CASE WHEN a.size <= 1000000 OR octet_length(t.args) <= 1000000 / a.jobs THEN t.args END,
             t.priority, t.subject, t.submitter, t.attempt, t.failures, t.retries, t.waited, t.suspect,
             t.losses, t.trace_context
    FROM taken t CROSS JOIN (SELECT sum(octet_length(args)) AS size, count(*) AS jobs FROM taken t) a
    ORDER BY t.nr;
END $$;

-- The next jobs of a queue by the rule, for an executor; some of them perhaps by a plan that another take has made meanwhile.
-- p_cursor null: the transaction that serves the queue for the first time is still open, or its first job was submitted a moment ago, or
-- grant_queue could not grant the sequences. Then this begins anywhere on the ring.
-- p_is_last: the executor goes on to no other queue with the slots that are left. (With the ring of this one it would wait for the ring of
-- the next, whose holder may wait for this one: executors try their queues in turn.)
CREATE OR REPLACE FUNCTION joex_private.take_in_turn(
    p_executor integer, p_app_id text, p_queue text, p_cursor regclass, p_drawn regclass, p_free integer, p_high integer, p_low integer,
    p_most bytea, p_give_back_nr integer, p_is_last boolean
) RETURNS SETOF joex_private.taken LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_simple boolean := p_most >= joex_client.highest_rank() AND joex_private.floor_epoch() % 2 = 0;
    v_from bigint;
    v_again boolean := false;
    v_want integer := p_free;
    v_plans boolean;
    v_ends boolean := false;    -- it tells the takes that wait for it that nothing is left
    v_ahead integer;
    v_cursors bigint[];
    v_turns integer[];
    v_next_ahead integer;
    v_got integer;
    v_begun timestamptz;
    v_is_all boolean := false;
    v_tids tid[];
    v_blocked bigint[];
    v_without bigint[] := '{}';
    v_looks_ahead boolean := false;     -- the pass before this one met more locked groups than others
    v_holds_ring boolean;   -- null: it has not asked for it
BEGIN
    -- The ring is held while choosing, not until the commit has reached the disk: other takes skip the rows locked here.
    -- Session locks outlive an error; hence the handlers here and in take, which cancellation must reach too.
    LOOP
        v_tids := '{}';
        v_blocked := '{}';
        IF v_holds_ring IS NULL THEN
            SELECT h.tids, h.holds_ring, h.is_all INTO v_tids, v_holds_ring, v_is_all
            FROM joex_private.hold_ring(p_queue, p_cursor, p_drawn, v_want) h;
            EXIT WHEN v_is_all;
            v_from := CASE WHEN p_cursor IS NULL THEN joex_private.any_place() * 256
                           ELSE coalesce(pg_sequence_last_value(p_cursor), -9223372036854775808) END;
        END IF;
        IF v_tids = '{}' AND v_simple THEN
            SELECT e.tids, e.is_all INTO v_tids, v_is_all FROM joex_private.one_each(p_queue, v_from, p_cursor, v_want) e;
            EXIT WHEN v_tids = '{}' AND v_is_all;
            v_again := v_tids <> '{}';
        END IF;
        v_simple := false;
        IF v_tids = '{}' THEN
            -- (No worker makes plans: its transaction may stay open, see publish_plan.)
            v_plans := p_executor <> 0 AND p_drawn IS NOT NULL AND v_holds_ring;
            v_ahead := CASE WHEN v_plans THEN joex_private.services_to_plan(p_queue) ELSE 0 END;
            v_begun := clock_timestamp();
            IF v_looks_ahead THEN
                v_without := joex_private.leave_out_locked(p_queue, v_from, v_again, v_want, p_high, p_low, p_most, v_without);
                EXIT WHEN v_without IS NULL;
            END IF;
            SELECT c.tids, c.blocked, c.cursors, c.turns, c.ahead, c.is_all
            INTO v_tids, v_blocked, v_cursors, v_turns, v_next_ahead, v_is_all
            FROM joex_private.choose(
                p_queue, v_from, v_again, p_cursor, greatest(v_want, v_ahead), p_high, p_low, p_most, v_without) c;
            v_is_all := v_is_all OR v_tids = '{}' AND v_blocked = '{}';
            v_ends := v_is_all AND v_plans AND v_next_ahead > 0 AND cardinality(v_tids) < v_want AND v_without = '{}' AND p_is_last;
            IF v_ends THEN      -- and it waits for nobody else until it commits (see hand_out)
                PERFORM FROM joex_private.executor e WHERE e.id = p_executor FOR SHARE SKIP LOCKED;
                v_ends := FOUND;
            END IF;
            EXIT WHEN v_tids = '{}' AND v_is_all AND NOT v_ends;
            IF cardinality(v_tids) > v_want OR cardinality(v_tids) = v_want AND v_plans AND v_ahead = 0 AND v_next_ahead > 0 THEN
                PERFORM joex_private.publish_plan(
                    p_queue, p_drawn, v_tids[v_want + 1:], v_cursors[v_want:], v_turns[v_want + 1:], v_next_ahead, v_begun);
                v_tids := v_tids[:v_want];
            END IF;
            v_again := true;
            v_looks_ahead := v_blocked <> '{}' AND cardinality(v_tids) < v_want / 2.0;
        END IF;
        v_want := v_want - cardinality(v_tids);
        v_without := v_without || v_blocked;
        IF (v_want = 0 OR v_is_all) AND NOT v_ends AND v_holds_ring THEN
            PERFORM pg_advisory_unlock(joex_private.ring_lock(), hashtext(p_queue));
            v_holds_ring := false;
        END IF;
        RETURN QUERY SELECT * FROM joex_private.hand_out(v_tids, p_executor, p_app_id, p_give_back_nr);
        GET DIAGNOSTICS v_got = ROW_COUNT;
        IF v_ends AND v_got = cardinality(v_tids) THEN      -- (an executor that drains gets none)
            PERFORM joex_private.publish_plan(p_queue, p_drawn, '{}', '{}', '{}', v_next_ahead, v_begun);
        END IF;
        EXIT WHEN v_want = 0 OR v_is_all;
    END LOOP;
    IF v_holds_ring THEN
        PERFORM pg_advisory_unlock(joex_private.ring_lock(), hashtext(p_queue));
    END IF;
EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
    PERFORM joex_private.free_ring(p_queue);
    RAISE;
END $$;

-- Whether an executor with a free slot, which its pool can't do without, takes from this queue: one that has a free slot, and nothing to
-- take, is asleep, and a submission has woken it, or one that is before it in the order of wake. It fills its slots, and wakes others if it
-- leaves work. One that does not listen is never asleep. A dead or hung one counts until it has missed a few heartbeats. (By the clock of
-- the server, which may be wrong: then jobs go to an executor that could have left, or wait until the silent one is declared dead.)
CREATE OR REPLACE FUNCTION joex_private.another_can_take(p_queue text) RETURNS boolean
LANGUAGE sql VOLATILE SET enable_sort = off SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT a.executor_id FROM joex_private.asleep a CROSS JOIN LATERAL (
                SELECT FROM joex_private.executor x JOIN joex_private.lease l ON l.executor_id = x.id
                WHERE x.id = a.executor_id AND NOT x.spare AND NOT x.draining
                      AND l.heartbeat_at > clock_timestamp() - least(x.lease * 0.75, interval '30 seconds') OFFSET 0) e
            WHERE p_queue = ANY (a.queues) ORDER BY a.nr DESC LIMIT 1) IS NOT NULL $$;

-- The next jobs for an executor with p_free free slots that serves p_queues (tried in this order), by the counting scheme
-- p_high, p_low. Empty: there is nothing for it now, or it is draining, or it has given this take up (p_give_back_nr: see
-- give_back_unknown), or its pool could do without it and another one can take. Raises JX001 where the executor's lease has ended. (Its
-- settings hold in the functions that it calls: those that only takes call repeat none.)
-- p_executor 0 stands for workers that are no executors, each with a name of its own (see joex_client.accept).
CREATE OR REPLACE FUNCTION joex_private.take(
    p_executor integer, p_queues text[], p_free integer, p_high integer DEFAULT 4, p_low integer DEFAULT 1,
    p_most bytea DEFAULT joex_client.highest_rank(), p_worker text DEFAULT NULL, p_give_back_nr integer DEFAULT 0
) RETURNS SETOF joex_private.taken LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_executor record;
    v_queue record;
    v_now CONSTANT timestamptz := clock_timestamp();
    v_want integer := p_free;
    v_can_grant boolean := true;
    v_got integer;
    v_drawn regclass;       -- null: this take neither draws from plans nor makes any
    v_tids tid[];
    v_walked CONSTANT bigint := joex_private.entries_walked();
    v_name text;
BEGIN
    IF p_executor = 0 THEN
        SELECT p_worker AS app_id, false AS takes_nothing, false AS spare, NULL::timestamptz AS left_at, false AS is_asleep
        INTO v_executor;
    ELSE
        IF NOT joex_private.sees_the_latest() THEN
            PERFORM joex_private.must_see_the_latest('joex_private.take');
        END IF;
        -- (This decides nothing: see hand_out.)
        SELECT e.app_id, e.draining OR e.give_back_nr > p_give_back_nr AS takes_nothing, e.spare, e.left_at,
               EXISTS (SELECT FROM joex_private.asleep a WHERE a.executor_id = p_executor) AS is_asleep
        INTO v_executor FROM joex_private.executor e WHERE e.id = p_executor;
    END IF;
    IF v_executor.app_id IS NULL OR v_executor.left_at IS NOT NULL THEN
        RAISE EXCEPTION 'the lease of executor % has ended', p_executor USING ERRCODE = 'JX001';
    END IF;
    IF v_executor.takes_nothing THEN
        RETURN;
    END IF;
    FOR v_queue IN SELECT n.name, n.ord = cardinality(p_queues) AS is_last, q.cursor, q.drawn, q.paused_at, (SELECT j.due_at FROM joex_private.job j
                                                      WHERE j.queue = n.name AND j.due_at IS NOT NULL ORDER BY j.due_at LIMIT 1)
                   FROM unnest(p_queues) WITH ORDINALITY AS n(name, ord)
                   LEFT JOIN joex_private.queue q USING (name) ORDER BY n.ord LOOP
        CONTINUE WHEN v_queue.paused_at IS NOT NULL;
        IF v_queue.due_at <= v_now THEN     -- (for a worker, whose transaction may stay open, no more than it takes)
            PERFORM joex_private.promote(v_queue.name, CASE p_executor WHEN 0 THEN p_free ELSE 500 END);
        END IF;
        IF v_executor.spare AND joex_private.another_can_take(v_queue.name) THEN
            -- (A timer of this executor may have found the job due, and no other one has that timer. What waits anyway, as the jobs of
            -- a paused group do, wakes no executor: each heartbeat of each spare executor looks for work.)
            IF v_queue.due_at <= v_now AND joex_private.has_runnable(v_queue.name) THEN
                PERFORM joex_private.wake(v_queue.name, 1);
            END IF;
            CONTINUE;
        END IF;
        -- (Workers may ask for any name: a name without a job makes no queue, because queues stay.)
        IF v_queue.cursor IS NULL AND joex_private.has_runnable(v_queue.name) THEN
            v_queue.cursor := joex_private.serve_queue(v_queue.name);
        END IF;
        IF NOT has_sequence_privilege(v_queue.cursor, 'UPDATE') THEN
            IF v_can_grant THEN     -- (Where another grant is open, each attempt waits for it.)
                PERFORM joex_private.grant_queue(v_queue.name);
                v_can_grant := has_sequence_privilege(v_queue.cursor, 'UPDATE');
            END IF;
            IF NOT v_can_grant THEN
                v_queue.cursor := NULL;
                v_queue.drawn := NULL;
            END IF;
        END IF;
        v_drawn := CASE WHEN p_most >= joex_client.highest_rank() AND joex_private.sees_the_latest() THEN v_queue.drawn END;
        v_tids := joex_private.draw(v_queue.name, v_drawn, v_want);
        IF v_tids <> '{}' THEN
            RETURN QUERY SELECT * FROM joex_private.hand_out(v_tids, p_executor, v_executor.app_id, p_give_back_nr);
            v_want := v_want - cardinality(v_tids);
        END IF;
        IF v_want > 0 THEN
            RETURN QUERY SELECT * FROM joex_private.take_in_turn(
                p_executor, v_executor.app_id, v_queue.name, v_queue.cursor, v_drawn, v_want, p_high, p_low, p_most,
                p_give_back_nr, v_queue.is_last);
            GET DIAGNOSTICS v_got = ROW_COUNT;
            v_want := v_want - v_got;
        END IF;
        -- It has met many more entries than it takes, so most were dead. (A sequence notes this without a write.)
        IF joex_private.entries_walked() - v_walked > 1000 + 50 * p_free THEN
            PERFORM nextval('joex_private.long_takes');
        END IF;
        IF v_want = 0 THEN
            IF v_executor.is_asleep THEN        -- an executor with a free slot left stays on the list
                PERFORM joex_private.get_up(p_executor);
            END IF;
            -- All slots filled, so more may wait, in any of the queues: the wake-up may have been for another one than this.
            -- Pass it on. Each woken executor does the same.
            FOREACH v_name IN ARRAY p_queues LOOP
                IF joex_private.is_awaited(v_name) AND joex_private.has_runnable(v_name) THEN
                    PERFORM joex_private.wake(v_name, 2);
                END IF;
            END LOOP;
            RETURN;
        END IF;
    END LOOP;
EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
    -- A second cancellation may have met the handler of take_in_turn.
    PERFORM joex_private.free_ring(q.name) FROM unnest(p_queues) q(name);
    RAISE;
END $$;
