-- Views for people and dashboards. A column may be added at the end of one, never taken away.

CREATE OR REPLACE VIEW joex.jobs AS
SELECT id, queue, grp, task, args, subject, submitter, tracker, priority, state, due_at, app_id, attempt, failures, losses,
       retries, cancel_requested, progress, progress_message, submitted_at, scheduled_at, started_at, finished_at,
       message, result, error, seq, key, rank, opts, resubmit_requested, remove_requested, overdue_at
FROM joex.job;

-- Unfinished jobs by queue and group, counted from the partial indexes: finished ones cost nothing here.
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
       max(s.max_running) AS max_running
FROM (SELECT queue, grp, state, lane, due_at, runnable_since FROM joex.job WHERE lane IS NOT NULL
      UNION ALL SELECT queue, grp, state, lane, due_at, runnable_since FROM joex.job WHERE due_at IS NOT NULL
      UNION ALL SELECT queue, grp, state, lane, due_at, runnable_since FROM joex.job WHERE executor_id IS NOT NULL) c
LEFT JOIN joex.group_setting s ON s.queue = c.queue AND s.grp = c.grp
GROUP BY c.queue, c.grp;

CREATE OR REPLACE VIEW joex.queue_stats AS
SELECT queue, sum(waiting)::bigint AS waiting, sum(deferred)::bigint AS deferred, sum(scheduled)::bigint AS scheduled,
       sum(running)::bigint AS running, sum(stuck)::bigint AS stuck,
       -- of those that could be taken now: jobs of a paused group, or of one at its limit, wait for something else
       max(oldest_runnable_seconds) FILTER (WHERE NOT paused AND (max_running IS NULL OR scheduled + running < max_running))
           AS oldest_runnable_seconds,
       count(*) AS groups
FROM joex.group_stats GROUP BY queue;

CREATE OR REPLACE VIEW joex.executors AS
SELECT e.id, e.app_id,
       CASE WHEN e.ending IS NOT NULL THEN e.ending WHEN e.draining THEN 'draining'
            WHEN count(j.id) > 0 THEN 'busy' WHEN e.asleep_since IS NOT NULL THEN 'asleep' ELSE 'awake' END AS state,
       count(j.id) AS held, e.pool_size, e.queues, e.host, e.pid, e.pod_uid, e.http_address, e.version, e.tasks,
       e.started_at, e.heartbeat_at, e.left_at,
       extract(epoch FROM clock_timestamp() - e.heartbeat_at)::float8 AS silent_seconds
FROM joex.executor e LEFT JOIN joex.job j ON j.executor_id = e.id AND j.executor_id IS NOT NULL
GROUP BY e.id;
