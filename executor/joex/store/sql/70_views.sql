-- Views for people and dashboards. A column may be added at the end of one, never taken away.

CREATE OR REPLACE VIEW joex.jobs AS
SELECT id, queue, grp, task, args, subject, submitter, tracker, priority, state, due_at, app_id, attempt, failures, losses,
       retries, cancel_requested, progress, progress_message, submitted_at, scheduled_at, started_at, finished_at,
       message, result, error, seq, key, rank, opts, resubmit_requested, remove_requested, overdue_at
FROM joex_private.job;

-- The bucket of a group, a label of metrics (see core/group_bucket.py).
CREATE OR REPLACE FUNCTION joex.group_bucket(grp text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT get_byte(sha256(convert_to(grp, 'UTF8')), 0) % 8 $$;

-- Unfinished jobs by queue and group, counted from the partial indexes: finished ones cost nothing here. (Nor do they while vacuum
-- can't clear them: see 25_floors.sql.)
CREATE OR REPLACE VIEW joex.group_stats AS
SELECT c.queue, c.grp,
       count(*) FILTER (WHERE c.state = 'waiting' AND c.due_at IS NULL) AS waiting,
       count(*) FILTER (WHERE c.state = 'waiting' AND c.due_at IS NOT NULL) AS deferred,
       count(*) FILTER (WHERE c.state = 'scheduled') AS scheduled,
       count(*) FILTER (WHERE c.state = 'running') AS running,
       count(*) FILTER (WHERE c.state = 'stuck') AS stuck,
       extract(epoch FROM clock_timestamp() - min(c.runnable_since) FILTER (WHERE c.lane IS NOT NULL))::float8
           AS oldest_runnable_seconds,
       coalesce(max(s.weight), 1) AS weight, coalesce(bool_or(s.paused), false) AS paused,
       max(s.max_running) AS max_running, joex.group_bucket(c.grp) AS bucket
FROM (SELECT queue, grp, state, lane, due_at, runnable_since FROM joex_private.job WHERE due_at IS NOT NULL
      UNION ALL SELECT queue, grp, state, lane, due_at, runnable_since FROM joex_private.job
                WHERE lane IS NOT NULL AND NOT joex_private.floors_are_on()
      UNION ALL SELECT queue, grp, state, lane, due_at, runnable_since FROM joex_private.by_floors(false) WHERE joex_private.floors_are_on()
      UNION ALL SELECT queue, grp, state, lane, due_at, runnable_since FROM joex_private.held) c
LEFT JOIN joex_private.group_setting s ON s.queue = c.queue AND s.grp = c.grp
GROUP BY c.queue, c.grp;

CREATE OR REPLACE VIEW joex.queue_stats AS
SELECT queue, sum(waiting)::bigint AS waiting, sum(deferred)::bigint AS deferred, sum(scheduled)::bigint AS scheduled,
       sum(running)::bigint AS running, sum(stuck)::bigint AS stuck,
       -- of those that could be taken now: jobs of a paused group, or of one at its limit, wait for something else
       max(oldest_runnable_seconds) FILTER (WHERE NOT paused AND (max_running IS NULL OR scheduled + running < max_running))
           AS oldest_runnable_seconds,
       count(*) AS groups
FROM joex.group_stats GROUP BY queue;

-- How the slots of each queue are shared between its groups: a row for each queue with an active group, which is one that holds
-- slots, or has a job that could be taken now. A few index probes per active group, however many jobs there are.
--
-- held: slots, of which largest_share (0 to 1) are those of largest_group. The waits are those of the job that comes next in its
-- group, for groups of which a job could be taken now: of the group in the middle, and of the one that waits longest. A group
-- is behind where it is such a one, and two levels (see 30_take.sql) or more below another group, which therefore has
-- slots that it will lose to it; behind_seconds is for how long the next job of any of these has waited.
-- (Nothing is indexed by that, and 100,000 groups are sorted in some megabytes.)
CREATE OR REPLACE FUNCTION joex.shares()
RETURNS TABLE (queue text, active_groups bigint, held bigint, largest_group text, largest_share float8,
               median_wait_seconds float8, longest_wait_seconds float8, groups_behind bigint, behind_seconds float8)
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off SET work_mem = '32MB' AS $$
    WITH RECURSIVE next AS (    -- from group to group along the rings of all queues
        (SELECT j.queue, j.ring, j.grp, j.runnable_since FROM joex_private.job j
         WHERE j.lane IS NOT NULL AND NOT joex_private.floors_are_on()
         ORDER BY j.queue, j.ring, j.lane, j.rank, j.seq LIMIT 1)
        UNION ALL
        SELECT n.* FROM next p CROSS JOIN LATERAL (
            SELECT j.queue, j.ring, j.grp, j.runnable_since FROM joex_private.job j
            WHERE j.lane IS NOT NULL AND (j.queue, j.ring) > (p.queue, p.ring)
            ORDER BY j.queue, j.ring, j.lane, j.rank, j.seq LIMIT 1) n
    ), first AS (
        TABLE next
        UNION ALL
        (SELECT DISTINCT ON (j.queue, j.ring) j.queue, j.ring, j.grp, j.runnable_since FROM joex_private.by_floors(false) j
         WHERE joex_private.floors_are_on() ORDER BY j.queue, j.ring, j.lane, j.rank, j.seq)
    ), held AS (
        SELECT j.queue, j.ring, min(j.grp) AS grp, count(*) AS jobs FROM joex_private.held j GROUP BY j.queue, j.ring
    ), known AS (
        SELECT queue, coalesce(h.grp, n.grp) AS grp, coalesce(h.jobs, 0) AS held, n.runnable_since
        FROM first n FULL JOIN held h USING (queue, ring)
    ), active AS (
        SELECT k.queue, k.grp, k.held, k.held / coalesce(s.weight, 1) AS level,
               CASE WHEN s.paused OR k.held >= s.max_running THEN NULL
                    ELSE extract(epoch FROM clock_timestamp() - k.runnable_since)::float8 END AS waited
        FROM known k LEFT JOIN joex_private.group_setting s USING (queue, grp)
    ), compared AS (
        SELECT a.*, max(a.held) OVER of_queue AS most, max(a.level) OVER of_queue - a.level >= 2 AS is_behind
        FROM active a WHERE a.held > 0 OR a.waited IS NOT NULL WINDOW of_queue AS (PARTITION BY a.queue)
    )
    SELECT c.queue, count(*), sum(c.held)::bigint, min(c.grp) FILTER (WHERE c.held = c.most AND c.held > 0),
           max(c.held) / nullif(sum(c.held), 0)::float8,
           percentile_disc(0.5) WITHIN GROUP (ORDER BY c.waited), max(c.waited),
           count(*) FILTER (WHERE c.is_behind AND c.waited IS NOT NULL), max(c.waited) FILTER (WHERE c.is_behind)
    FROM compared c GROUP BY c.queue $$;

-- The jobs that wait, runnable now or later, the first submitted first: at most p_most, of a queue or a group where one is given.
-- No index has this order. So these are candidates: of each group's jobs of a lane the first in line, which are the first
-- submitted, unless a type gives them priorities of its own; and of each queue's jobs that wait for their time the next ones.
-- A few index probes per group, and p_most rows of p_most groups at worst, however many jobs there are.
-- (A custom plan, because which part of the index is read depends on which of the arguments are null: a step from lane to lane
-- begins where the one before ended only where no column is held to a value that the step compares as well.)
CREATE OR REPLACE FUNCTION joex_private.queued(p_queue text, p_grp text, p_most integer) RETURNS SETOF joex_private.job
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE line AS (    -- from lane to lane of the groups along the rings of all queues
        (SELECT j.queue, j.ring, j.lane, j.seq FROM joex_private.job j
         WHERE j.lane IS NOT NULL AND (p_queue IS NULL OR j.queue = p_queue)
               AND (p_queue IS NULL OR p_grp IS NULL OR j.ring = joex_private.ring(p_grp))
         ORDER BY j.queue, j.ring, j.lane, j.rank, j.seq LIMIT 1)
        UNION ALL
        SELECT n.* FROM line p CROSS JOIN LATERAL (
            SELECT j.queue, j.ring, j.lane, j.seq FROM joex_private.job j
            WHERE j.lane IS NOT NULL AND (
                p_queue IS NULL AND (j.queue, j.ring, j.lane) > (p.queue, p.ring, p.lane)
                OR p_queue IS NOT NULL AND p_grp IS NULL AND j.queue = p_queue AND (j.ring, j.lane) > (p.ring, p.lane)
                OR p_queue IS NOT NULL AND p_grp IS NOT NULL AND j.queue = p_queue AND j.ring = joex_private.ring(p_grp) AND j.lane > p.lane)
            ORDER BY j.queue, j.ring, j.lane, j.rank, j.seq LIMIT 1) n
    ), later AS (               -- from queue to queue
        (SELECT j.queue FROM joex_private.job j
         WHERE j.due_at IS NOT NULL AND (p_queue IS NULL OR j.queue = p_queue) ORDER BY j.queue LIMIT 1)
        UNION ALL
        SELECT n.* FROM later p CROSS JOIN LATERAL (
            SELECT j.queue FROM joex_private.job j
            WHERE p_queue IS NULL AND j.due_at IS NOT NULL AND j.queue > p.queue ORDER BY j.queue LIMIT 1) n
    ), candidate AS (
        SELECT c.* FROM (
            SELECT l.* FROM line l WHERE p_grp IS NULL OR l.ring = joex_private.ring(p_grp) ORDER BY l.seq LIMIT p_most) l
        CROSS JOIN LATERAL (
            SELECT j.id, j.submitted_at, j.seq FROM joex_private.job j
            WHERE j.lane IS NOT NULL AND j.queue = l.queue AND j.ring = l.ring AND j.lane = l.lane
                  AND (p_grp IS NULL OR j.grp = p_grp)
            ORDER BY j.rank, j.seq LIMIT p_most) c
        UNION ALL
        SELECT c.* FROM later l CROSS JOIN LATERAL (
            SELECT j.id, j.submitted_at, j.seq FROM joex_private.job j
            WHERE j.due_at IS NOT NULL AND j.queue = l.queue AND (p_grp IS NULL OR j.grp = p_grp)
            ORDER BY j.due_at LIMIT p_most) c
    )
    SELECT j.* FROM (SELECT c.* FROM candidate c ORDER BY c.submitted_at, c.seq LIMIT p_most) c
    JOIN joex_private.job j ON j.id = c.id ORDER BY c.submitted_at, c.seq;
END $$;

CREATE OR REPLACE VIEW joex.executors AS
SELECT e.id, e.app_id,
       CASE WHEN e.ending IS NOT NULL THEN e.ending WHEN e.draining THEN 'draining'
            WHEN count(j.id) > 0 THEN 'busy' WHEN e.asleep_since IS NOT NULL THEN 'asleep' ELSE 'awake' END AS state,
       count(j.id) AS held, e.pool_size, e.queues, e.host, e.pid, e.pod_uid, e.http_address, e.version, e.tasks,
       e.started_at, coalesce(l.heartbeat_at, e.left_at, e.started_at) AS heartbeat_at, e.left_at,
       extract(epoch FROM clock_timestamp() - coalesce(l.heartbeat_at, e.left_at, e.started_at))::float8 AS silent_seconds
FROM joex_private.executor e LEFT JOIN joex_private.lease l ON l.executor_id = e.id LEFT JOIN joex_private.held j ON j.executor_id = e.id
GROUP BY e.id, l.executor_id;
