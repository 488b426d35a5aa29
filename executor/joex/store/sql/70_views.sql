-- Views for people and dashboards. A later version may add columns at the end, and never removes one.

-- All jobs.
CREATE OR REPLACE VIEW joex.jobs WITH (security_barrier) AS
WITH bounds AS MATERIALIZED (TABLE joex_private.bounds_of_reader)
SELECT id,                                          -- uuid
       queue::text AS queue,                        -- text
       grp::text AS grp,                            -- text: the group, which is the tenant
       task::text AS task,                          -- text: its name
       args::jsonb AS args,                         -- jsonb: the arguments
       subject::text AS subject,                    -- text: for people
       submitter::text AS submitter,                -- text: for people
       tracker::text AS tracker,                    -- text: at most one unfinished job of the group has it
       priority::text AS priority,                  -- text: high or low
       state::text AS state,                        -- text: waiting, scheduled (taken), running, stuck (waits for a retry), success, failed, cancelled
       due_at::timestamptz AS due_at,               -- timestamptz: when a job that waits for a time may run
       app_id,                                      -- text: the executor or worker of the latest run
       attempt,                                     -- integer: runs that have started
       failures,                                    -- integer: failed runs since the submission, or since a retry by hand
       losses,                                      -- integer: how often the executor or worker that held the job died or did not report in time
       retries::integer AS retries,                 -- integer: allowed retries; null: as many as the task or the executor allows
       cancel_requested,                            -- boolean: the job ends as cancelled when its run has stopped
       progress::smallint AS progress,              -- smallint: 0 to 100
       progress_message,                            -- text: of the latest progress
       submitted_at,                                -- timestamptz
       scheduled_at,                                -- timestamptz: when the latest run was taken
       started_at,                                  -- timestamptz: when the latest run started
       finished_at,                                 -- timestamptz
       message,                                     -- text: of the result
       result,                                      -- jsonb
       error,                                       -- text: of the latest failed run
       seq,                                         -- bigint: its place in line, first in, first out
       key::bytea AS key,                           -- bytea: the id of a keyed job
       rank::bytea AS rank,                         -- bytea: the place in line of a keyed job, before seq
       opts::jsonb AS opts,                         -- jsonb: the free fields of a keyed job
       resubmit_requested,                          -- boolean: the job runs once more when its run has ended
       remove_requested,                            -- boolean: the job disappears when its run has ended
       overdue_at,                                  -- timestamptz: the job is put back when its run has not reported by then
       trace_context::text AS trace_context         -- text: of its submission: a W3C traceparent, and maybe a space and a tracestate
FROM joex_private.job j
WHERE (SELECT b.is_called AND b.last_value = 1 FROM joex_private.roles_bound b) OR EXISTS (
    SELECT FROM bounds b
    WHERE (b.groups IS NULL OR j.grp = ANY (b.groups)) AND (b.queues IS NULL OR j.queue = ANY (b.queues)));

-- Unfinished jobs by queue and group, with the settings of the group.
CREATE OR REPLACE VIEW joex.group_stats WITH (security_barrier) AS
WITH bounds AS MATERIALIZED (TABLE joex_private.bounds_of_reader),
     -- (Asked once, as in joex_private.held: each job belongs to one part.)
     floors AS MATERIALIZED (SELECT joex_private.floors_are_on() AS are_on)
SELECT c.queue,                                                 -- text
       c.grp,                                                   -- text: the group
       count(*) FILTER (WHERE c.state = 'waiting' AND c.due_at IS NULL) AS waiting,  -- bigint: jobs
       count(*) FILTER (WHERE c.state = 'waiting' AND c.due_at IS NOT NULL) AS deferred,  -- bigint: jobs that wait for their not_before
       count(*) FILTER (WHERE c.state = 'scheduled') AS scheduled,  -- bigint: jobs
       count(*) FILTER (WHERE c.state = 'running') AS running,  -- bigint: jobs
       count(*) FILTER (WHERE c.state = 'stuck') AS stuck,      -- bigint: jobs
       extract(epoch FROM clock_timestamp() - min(c.runnable_since) FILTER (WHERE c.lane IS NOT NULL))::float8
           AS oldest_runnable_seconds,                          -- float8: how long the oldest runnable job has waited; null: there is none
       coalesce(max(s.weight), 1) AS weight,                    -- integer: see joex.set_group
       coalesce(bool_or(s.paused), false) AS paused,            -- boolean
       max(s.max_running) AS max_running,                       -- integer
       max(s.max_waiting) AS max_waiting                        -- integer
-- (From the partial indexes, so that finished jobs cost nothing, even while vacuum can't remove them: see 25_floors.sql.)
FROM (SELECT queue, grp, state, lane, due_at, runnable_since FROM joex_private.job WHERE due_at IS NOT NULL
      UNION ALL SELECT queue, grp, state, lane, due_at, runnable_since FROM joex_private.job
                WHERE lane IS NOT NULL AND NOT (SELECT are_on FROM floors)
      UNION ALL SELECT queue, grp, state, lane, due_at, runnable_since FROM joex_private.seen_by_floors(false)
                WHERE (SELECT are_on FROM floors)
      UNION ALL SELECT queue, grp, state, lane, due_at, runnable_since FROM joex_private.held_seen) c
LEFT JOIN joex_private.group_setting s ON s.queue = c.queue AND s.grp = c.grp
WHERE (SELECT b.is_called AND b.last_value = 1 FROM joex_private.roles_bound b) OR EXISTS (
    SELECT FROM bounds b
    WHERE (b.groups IS NULL OR c.grp = ANY (b.groups)) AND (b.queues IS NULL OR c.queue = ANY (b.queues)))
GROUP BY c.queue, c.grp;

-- Unfinished jobs by queue.
CREATE OR REPLACE VIEW joex.queue_stats AS
SELECT queue,                                -- text
       sum(waiting)::bigint AS waiting,      -- bigint: jobs
       sum(deferred)::bigint AS deferred,    -- bigint: jobs that wait for their not_before
       sum(scheduled)::bigint AS scheduled,  -- bigint: jobs
       sum(running)::bigint AS running,      -- bigint: jobs
       sum(stuck)::bigint AS stuck,          -- bigint: jobs
       max(oldest_runnable_seconds) FILTER (WHERE NOT paused AND (max_running IS NULL OR scheduled + running < max_running)
                                                  AND queue <> ALL (ARRAY(SELECT q.name FROM joex_private.queue q
                                                                          WHERE q.paused_at IS NOT NULL)))
           AS oldest_runnable_seconds,       -- float8: as in joex.group_stats, without paused queues and groups, and groups at their limit
       count(*) AS groups,                   -- bigint: with unfinished jobs
       queue = ANY (ARRAY(SELECT q.name FROM joex_private.queue q WHERE q.paused_at IS NOT NULL))
           AS paused                         -- boolean: see joex.set_queue
FROM joex.group_stats GROUP BY queue;

-- How the groups of each queue share its slots: a row for each queue with an active group. A group is active if it holds slots, or has a
-- job that an executor could take now. A group is behind if it has such a job, and its level (slots over weight) is two or more below that
-- of another group, which will lose slots to it.
CREATE OR REPLACE FUNCTION joex.shares()
RETURNS TABLE (
    queue text,
    active_groups bigint,
    held bigint,                    -- slots
    largest_group text,             -- the group that holds the most slots
    largest_share float8,           -- its part of the held slots, 0 to 1
    median_wait_seconds float8,     -- of the next job of each group that could run one now, how long it has waited
    longest_wait_seconds float8,
    groups_behind bigint,
    behind_seconds float8           -- the longest wait of the next job of a group that is behind
) LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off
SET work_mem = '32MB' AS $$
    -- (A few index probes per active group, however many jobs there are. No index has the order of waits: this sorts 100,000 groups in
    -- some megabytes.)
    WITH RECURSIVE floors AS MATERIALIZED (
        SELECT joex_private.floors_are_on() AS are_on
    ), next AS (        -- from group to group along the rings of all queues
        (SELECT j.queue, j.ring, j.grp, j.runnable_since FROM joex_private.job j
         WHERE j.lane IS NOT NULL AND NOT (SELECT are_on FROM floors)
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
         WHERE (SELECT are_on FROM floors) ORDER BY j.queue, j.ring, j.lane, j.rank, j.seq)
    ), held AS (
        SELECT j.queue, j.ring, min(j.grp) AS grp, count(*) AS jobs FROM joex_private.held j GROUP BY j.queue, j.ring
    ), known AS (
        SELECT queue, coalesce(h.grp, n.grp) AS grp, coalesce(h.jobs, 0) AS held, n.runnable_since
        FROM first n FULL JOIN held h USING (queue, ring)
    ), active AS (
        SELECT k.queue, k.grp, k.held, k.held / coalesce(s.weight, 1) AS level,
               CASE WHEN s.paused OR k.held >= s.max_running
                         OR k.queue = ANY (ARRAY(SELECT q.name FROM joex_private.queue q WHERE q.paused_at IS NOT NULL)) THEN NULL
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
    FROM compared c WHERE (SELECT joex_private.must_be_allowed('{view}', NULL, NULL)) GROUP BY c.queue $$;

-- The waiting jobs, runnable now or later, the first submitted first: at most p_most, of all queues or one, of all groups or one; and only
-- of p_queues and p_grps (null: all). No index has this order. So this collects candidates: of each lane of each group the first jobs in line, which are the first submitted, unless
-- keyed jobs have ranks; and of each queue the jobs that are due next. A few index probes per group, and p_most rows of p_most groups at
-- worst, however many jobs there are.
-- (A custom plan, because it depends on which arguments are null what part of the index this reads: a step from lane to lane begins where
-- the previous one ended only if no column is bound to a value that the step compares as well.)
CREATE OR REPLACE FUNCTION joex_private.queued(
    p_queue text, p_grp text, p_most integer, p_queues text[] DEFAULT NULL, p_grps text[] DEFAULT NULL
) RETURNS SETOF joex_private.job
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_rings bigint[] := (SELECT array_agg(joex_private.ring(g)) FROM unnest(p_grps) g);
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
                OR p_queue IS NOT NULL AND p_grp IS NOT NULL AND j.queue = p_queue AND j.ring = joex_private.ring(p_grp)
                   AND j.lane > p.lane)
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
            SELECT l.* FROM line l
            WHERE (p_grp IS NULL OR l.ring = joex_private.ring(p_grp)) AND (p_queues IS NULL OR l.queue = ANY (p_queues))
                  AND (p_grps IS NULL OR l.ring = ANY (v_rings))
            ORDER BY l.seq LIMIT p_most) l
        CROSS JOIN LATERAL (
            SELECT j.id, j.submitted_at, j.seq FROM joex_private.job j
            WHERE j.lane IS NOT NULL AND j.queue = l.queue AND j.ring = l.ring AND j.lane = l.lane
                  AND (p_grp IS NULL OR j.grp = p_grp) AND (p_grps IS NULL OR j.grp = ANY (p_grps))
            ORDER BY j.rank, j.seq LIMIT p_most) c
        UNION ALL
        SELECT c.* FROM later l CROSS JOIN LATERAL (
            SELECT j.id, j.submitted_at, j.seq FROM joex_private.job j
            WHERE j.due_at IS NOT NULL AND j.queue = l.queue AND (p_grp IS NULL OR j.grp = p_grp)
                  AND (p_grps IS NULL OR j.grp = ANY (p_grps))
            ORDER BY j.due_at LIMIT p_most) c
        WHERE p_queues IS NULL OR l.queue = ANY (p_queues)
    )
    SELECT j.* FROM (SELECT c.* FROM candidate c ORDER BY c.submitted_at, c.seq LIMIT p_most) c
    JOIN joex_private.job j ON j.id = c.id ORDER BY c.submitted_at, c.seq;
END $$;

-- Executors that are alive, or have ended lately. A spare one takes only what others have no free slot for, because its pool could do
-- without it.
CREATE OR REPLACE VIEW joex.executors WITH (security_barrier) AS
WITH bounds AS MATERIALIZED (TABLE joex_private.bounds_of_reader)
SELECT e.id,                 -- integer: of this registration; an executor that restarts gets another
       e.app_id,             -- text: its name
       CASE WHEN e.ending IS NOT NULL THEN e.ending WHEN e.draining THEN 'draining' WHEN e.spare THEN 'spare'
            WHEN count(j.id) > 0 THEN 'busy'
            -- (joex_private.asleep, for readers who may not call sleepers_from)
            WHEN EXISTS (SELECT FROM joex_private.sleeper s WHERE s.executor_id = e.id
                         AND s.nr >= (SELECT f.last_value FROM joex_private.sleepers_from f)) THEN 'asleep' ELSE 'awake' END
           AS state,         -- text: busy, asleep, awake, spare or draining; left, dead or replaced when it has ended
       count(j.id) AS held,  -- bigint: jobs that it holds
       e.pool_size,          -- integer: its slots
       e.queues,             -- text[]
       e.host,               -- text
       e.pid,                -- integer
       e.pod_uid,            -- text: of its pod on Kubernetes
       e.http_address,       -- text
       e.version,            -- text: of Joex
       e.tasks,              -- text[]
       e.started_at,         -- timestamptz
       coalesce(l.heartbeat_at, e.left_at, e.started_at) AS heartbeat_at,  -- timestamptz: the latest heartbeat
       e.left_at,            -- timestamptz: when it ended
       extract(epoch FROM clock_timestamp() - coalesce(l.heartbeat_at, e.left_at, e.started_at))::float8
           AS silent_seconds  -- float8: since the latest heartbeat
FROM joex_private.executor e LEFT JOIN joex_private.lease l ON l.executor_id = e.id
LEFT JOIN joex_private.held_seen j ON j.executor_id = e.id
WHERE (SELECT b.is_called AND b.last_value = 1 FROM joex_private.roles_bound b) OR EXISTS (
    SELECT FROM bounds b WHERE b.groups IS NULL AND b.queues IS NULL)
GROUP BY e.id, l.executor_id;

-- How operators, and joex up, have sized each pool within the last day, and why: a row when the size that they aim at, the number of
-- executors, or the reason changes, at most 5,000 of a pool. While the database is away no row comes.
CREATE OR REPLACE VIEW joex.pool_steps WITH (security_barrier) AS
WITH bounds AS MATERIALIZED (TABLE joex_private.bounds_of_reader)
SELECT s.namespace,  -- text: of the pool; for joex up, its name
       s.home,       -- text: the namespace, and which of this name, as in app-ids: two clusters may have namespaces of one name
       s.pool,       -- text
       s.nr,         -- bigint: grows with each step of the pool
       s.at,         -- timestamptz
       s.before,     -- integer: executors that took jobs, or were starting
       s.target,     -- integer: executors that there should be
       s.ready,      -- integer: executors that took jobs
       s.draining,   -- integer: executors that only finished theirs
       s.mode,       -- text: what determined the target: demand, fixed, suspended or deleted
       s.why,        -- text: the reason of the target, in a sentence
       s.wanted,     -- integer: the executors that the work alone called for; null: it did not count
       s.capped_by,  -- text: what kept the target from that: maxReplicas, minReplicas, scaleUp or scaleDown
       s.runnable,   -- integer: jobs that an executor could have taken, as far as the operator counts
       s.held,       -- integer: jobs on executors that do not drain
       s.next_due    -- timestamptz: when the next job with a time was due
FROM joex_private.pool_step s
WHERE s.at > clock_timestamp() - interval '1 day' AND (
    (SELECT b.is_called AND b.last_value = 1 FROM joex_private.roles_bound b) OR EXISTS (
        SELECT FROM bounds b WHERE b.groups IS NULL AND b.queues IS NULL));
