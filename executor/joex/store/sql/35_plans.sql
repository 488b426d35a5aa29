-- Plans: the next services of a queue, which one take of a large fleet chooses for those after it.
--
-- To choose (see 30_take.sql) a take must look at all groups with work and count what they hold: the cost of the fleet, not of the
-- batch. So a take that has to choose chooses ahead, for a small part of the held jobs, in the very order in which the rule serves them.
-- Other takes draw from this plan: a number from a sequence, and the row at its entry, which they lock. A plan is advice: to take a
-- runnable job too early breaks the order of service, and nothing else. A draw passes over an entry whose job has been taken, changed or
-- moved meanwhile, and checks pauses and limits. New groups, changes of weight, and runs that have ended since wait for the next choice:
-- until the entries are used up, at most a fifth of a second (or three times as long as a choice takes).
-- The next choice goes on where the draws have ended: it gives back the services that no take has drawn.
--
-- Fleets that hold few jobs have no plans.

-- How many services to choose ahead, by what was held lately (see choose). 0: that is not known, or little.
CREATE OR REPLACE FUNCTION joex_private.services_to_plan(p_queue text) RETURNS integer LANGUAGE sql VOLATILE AS $$
    SELECT coalesce((
        SELECT p.ahead FROM joex_private.plan p
        WHERE p.queue = p_queue AND p.made_at BETWEEN clock_timestamp() - interval '10 seconds' AND clock_timestamp()
        ORDER BY p.first DESC LIMIT 1), 0) $$;

-- Hold the ring of a queue (see wait_for_ring), to choose; unless another take has made a plan meanwhile: then these are the next jobs by
-- it, locked, and holds_ring is null. is_all: while this one waited, a take has begun to choose, and has taken all that could run, so this
-- one need not look at all groups too: it answers as if its turn had come right after that choice. (Not if it has written: that take did
-- not see the jobs that this one has promoted, or the room that it has made.)
CREATE OR REPLACE FUNCTION joex_private.hold_ring(
    p_queue text, p_cursor regclass, p_drawn regclass, p_want integer, OUT tids tid[], OUT holds_ring boolean, OUT is_all boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_since CONSTANT timestamptz := clock_timestamp();
BEGIN
    is_all := false;
    holds_ring := pg_try_advisory_lock(joex_private.ring_lock(), hashtext(p_queue));
    IF NOT holds_ring THEN
        holds_ring := joex_private.wait_for_ring(p_queue);
        is_all := p_drawn IS NOT NULL AND pg_current_xact_id_if_assigned() IS NULL AND joex_private.found_all(p_queue, v_since);
    END IF;
    tids := CASE WHEN is_all THEN '{}' ELSE joex_private.draw(p_queue, p_drawn, p_want) END;
    IF tids <> '{}' THEN
        IF holds_ring THEN
            PERFORM pg_advisory_unlock(joex_private.ring_lock(), hashtext(p_queue));
        END IF;
        holds_ring := NULL;
    ELSIF holds_ring AND NOT is_all AND p_drawn IS NOT NULL AND p_cursor IS NOT NULL THEN
        PERFORM joex_private.give_back_turns(p_queue, p_cursor, p_drawn);
    END IF;
END $$;

-- Whether the newest plan is of a take that has begun to choose since p_since, and has taken all that could run: it has no cursor.
-- p_valid_at: and that plan is still valid then.
CREATE OR REPLACE FUNCTION joex_private.found_all(p_queue text, p_since timestamptz, p_valid_at timestamptz DEFAULT '-infinity')
RETURNS boolean LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((
        SELECT p.cursors = '{}' AND p.made_at BETWEEN p_since AND clock_timestamp() AND p.renew_at > p_valid_at
        FROM joex_private.plan p WHERE p.queue = p_queue ORDER BY p.first DESC LIMIT 1), false) $$;

-- End the plan of a queue, whose ring the caller holds: cursor and counting schemes go back to the first entry that has not been drawn.
CREATE OR REPLACE FUNCTION joex_private.give_back_turns(p_queue text, p_cursor regclass, p_drawn regclass) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_plan joex_private.plan;
    v_last bigint;
    v_drawn bigint;
    v_rings bigint[];
    v_positions integer[];
BEGIN
    SELECT * INTO v_plan FROM joex_private.plan p WHERE p.queue = p_queue ORDER BY p.first DESC LIMIT 1;
    v_last := v_plan.first + cardinality(v_plan.tids) - 1;
    v_drawn := greatest(coalesce(pg_sequence_last_value(p_drawn), 0), v_plan.first - 1);
    IF v_drawn < v_last THEN
        PERFORM setval(p_drawn, v_last);        -- (first: a take that draws from now on gets nothing)
        v_drawn := v_drawn - v_plan.first + 1;
        PERFORM setval(p_cursor, v_plan.cursors[v_drawn + 1]);
        SELECT array_agg(t.ring), array_agg(t.turn) INTO v_rings, v_positions FROM (
            SELECT DISTINCT ON (e.cursor >> 8) e.cursor >> 8 AS ring, e.turn
            FROM unnest(v_plan.cursors[2:], v_plan.turns) WITH ORDINALITY e(cursor, turn, nr)
            WHERE e.nr > v_drawn AND e.turn IS NOT NULL ORDER BY e.cursor >> 8, e.nr) t;
        IF v_rings IS NOT NULL THEN
            PERFORM joex_private.count_turns(p_queue, v_rings, v_positions);
        END IF;
    END IF;
END $$;

-- The next jobs by the plan of a queue, locked.
CREATE OR REPLACE FUNCTION joex_private.draw(p_queue text, p_drawn regclass, p_want integer) RETURNS tid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_plan record;
    v_left bigint;
    v_entries tid[];
    v_tids tid[] := '{}';
BEGIN
    IF p_drawn IS NULL THEN
        RETURN v_tids;
    END IF;
    SELECT p.first, p.tids, p.made_at, p.renew_at,
           EXISTS (SELECT FROM joex_private.group_setting g WHERE g.queue = p_queue) AS has_settings
    INTO v_plan FROM joex_private.plan p WHERE p.queue = p_queue ORDER BY p.first DESC LIMIT 1;
    -- (A clock that was set back makes no plan live on.)
    IF clock_timestamp() BETWEEN v_plan.made_at AND v_plan.renew_at THEN
        LOOP
            v_left := v_plan.first + cardinality(v_plan.tids) - 1 - coalesce(pg_sequence_last_value(p_drawn), 0);
            EXIT WHEN v_left <= 0 OR cardinality(v_tids) = p_want;
            v_entries := '{}';
            FOR _ IN 1 .. least(p_want - cardinality(v_tids), v_left) LOOP
                v_entries := v_entries || v_plan.tids[nextval(p_drawn) - v_plan.first + 1];
            END LOOP;
            EXIT WHEN v_entries[1] IS NULL;
            IF v_plan.has_settings THEN
                v_entries := joex_private.allowed(v_entries, v_tids, p_queue);
            END IF;
            v_tids := v_tids || ARRAY(
                SELECT j.ctid FROM joex_private.job j
                WHERE j.ctid = ANY (v_entries) AND j.queue = p_queue AND j.lane IS NOT NULL
                ORDER BY array_position(v_entries, j.ctid) FOR UPDATE SKIP LOCKED);
        END LOOP;
    END IF;
    RETURN v_tids;
END $$;

-- Those of the entries whose groups may run them now, beside the jobs that this draw has locked: not paused, and below their limits.
CREATE OR REPLACE FUNCTION joex_private.allowed(p_entries tid[], p_locked tid[], p_queue text) RETURNS tid[]
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(array_agg(e.tid ORDER BY e.nr) FILTER (WHERE e.tid = ANY (p_entries)), '{}')
    FROM (SELECT t.tid, t.nr, j.ring, row_number() OVER (PARTITION BY j.ring ORDER BY t.nr) AS kth
          FROM unnest(p_locked || p_entries) WITH ORDINALITY t(tid, nr) JOIN joex_private.job j ON j.ctid = t.tid) e
    CROSS JOIN LATERAL (SELECT coalesce(bool_or(g.paused), false) AS paused, min(g.max_running) AS most
                        FROM joex_private.group_setting g WHERE g.queue = p_queue AND g.ring = e.ring) s
    WHERE NOT s.paused AND (s.most IS NULL OR e.kth <= joex_private.room(p_queue, e.ring, s.most)) $$;

-- Publish what a take has chosen for the takes after it; or nothing, and no cursor: it has taken all that could run. p_begun: no later
-- than the snapshot of its choice. It keeps the ring until its transaction has ended, because until then other takes see neither the plan
-- nor its jobs, which are locked: a choice would find less than there is.
CREATE OR REPLACE FUNCTION joex_private.publish_plan(
    p_queue text, p_drawn regclass, p_tids tid[], p_cursors bigint[], p_turns integer[], p_ahead integer, p_begun timestamptz
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now CONSTANT timestamptz := clock_timestamp();
    v_first CONSTANT bigint := nextval(p_drawn) + 1;
BEGIN
    PERFORM pg_advisory_xact_lock(joex_private.ring_lock(), hashtext(p_queue));
    INSERT INTO joex_private.plan (queue, first, tids, cursors, turns, ahead, made_at, renew_at)
    VALUES (p_queue, v_first, p_tids, p_cursors, p_turns::smallint[], p_ahead, p_begun,
            v_now + greatest(interval '200 ms', 3 * (v_now - p_begun)));
    -- (The plan before, of which there is one at most, because this take holds the ring. A search for all would walk over plans that
    -- vacuum can't clear.)
    DELETE FROM joex_private.plan p WHERE p.queue = p_queue
           AND p.first = (SELECT max(o.first) FROM joex_private.plan o WHERE o.queue = p_queue AND o.first < v_first);
END $$;
