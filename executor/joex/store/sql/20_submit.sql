-- Submission. All of it works inside the caller's transaction: the job is there if and when that commits.

-- Submit many jobs at once. Each array holds one field of all jobs; null elements (or a null array) mean the default.
-- Returns an id per job, in the order given; null where the job was skipped because an unfinished job has its tracker.
CREATE OR REPLACE FUNCTION joex.submit_many(
    tasks text[],
    args jsonb[] DEFAULT NULL,
    grps text[] DEFAULT NULL,
    queues text[] DEFAULT NULL,
    priorities text[] DEFAULT NULL,
    subjects text[] DEFAULT NULL,
    submitters text[] DEFAULT NULL,
    not_before timestamptz[] DEFAULT NULL,
    trackers text[] DEFAULT NULL,
    retries integer[] DEFAULT NULL
) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_queue record;
    v_ids uuid[];
BEGIN
    WITH given AS MATERIALIZED (
        SELECT joex.uuid7() AS id, g.ord, g.task, coalesce(g.args, '{}') AS args, coalesce(g.grp, 'default') AS grp,
               coalesce(g.queue, 'default') AS queue, coalesce(g.priority, 'low')::joex.job_priority AS priority,
               coalesce(g.subject, '') AS subject, coalesce(g.submitter, '') AS submitter,
               CASE WHEN g.due_at > v_now THEN g.due_at END AS due_at, g.tracker, g.retries
        FROM ROWS FROM (unnest(tasks), unnest(args), unnest(grps), unnest(queues), unnest(priorities), unnest(subjects),
                        unnest(submitters), unnest(not_before), unnest(trackers), unnest(retries)) WITH ORDINALITY
             AS g(task, args, grp, queue, priority, subject, submitter, due_at, tracker, retries, ord)
    ), made AS (
        INSERT INTO joex.job (id, task, args, grp, queue, priority, subject, submitter, due_at, lane, tracker, retries,
                              submitted_at, runnable_since)
        SELECT id, task, args, grp, queue, priority, subject, submitter, due_at,
               CASE WHEN due_at IS NULL THEN joex.lane(priority) END, tracker, retries, v_now, coalesce(due_at, v_now)
        FROM given ORDER BY ord
        ON CONFLICT (tracker) WHERE tracker IS NOT NULL AND finished_at IS NULL DO NOTHING
        RETURNING id
    )
    SELECT array_agg(made.id ORDER BY given.ord) INTO v_ids FROM given LEFT JOIN made USING (id);
    -- A statement of its own: its snapshot is younger than the insert, and the transaction has its id by now. Both
    -- matter to the executor that falls asleep at this moment (see joex.sleep).
    FOR v_queue IN SELECT q.name, count(*) AS jobs
                   FROM (SELECT coalesce(q.name, 'default') AS name
                         FROM ROWS FROM (unnest(tasks), unnest(queues)) AS q(task, name)) q GROUP BY 1 LOOP
        PERFORM joex.wake(v_queue.name, v_queue.jobs);
    END LOOP;
    PERFORM joex.announce('job-submitted', v_ids);
    RETURN QUERY SELECT unnest(v_ids);
END $$;

-- Submit one job; returns its id, or null where an unfinished job has the tracker.
CREATE OR REPLACE FUNCTION joex.submit(
    task text,
    args jsonb DEFAULT '{}',
    grp text DEFAULT 'default',
    queue text DEFAULT 'default',
    priority text DEFAULT 'low',
    subject text DEFAULT '',
    submitter text DEFAULT '',
    not_before timestamptz DEFAULT NULL,
    tracker text DEFAULT NULL,
    retries integer DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_now timestamptz := clock_timestamp();
    v_due timestamptz := CASE WHEN not_before > v_now THEN not_before END;
    v_id uuid;
BEGIN
    INSERT INTO joex.job AS j (task, args, grp, queue, priority, subject, submitter, due_at, lane, tracker, retries,
                               submitted_at, runnable_since)
    VALUES (task, args, grp, queue, priority::joex.job_priority, subject, submitter, v_due,
            CASE WHEN v_due IS NULL THEN joex.lane(priority::joex.job_priority) END, tracker, retries, v_now,
            coalesce(v_due, v_now))
    ON CONFLICT DO NOTHING      -- the tracker's index is the only one that can conflict: the id is new
    RETURNING j.id INTO v_id;
    PERFORM joex.wake(queue, 1);
    PERFORM joex.announce('job-submitted', ARRAY[v_id]);
    RETURN v_id;
END $$;

-- Add a job whose id is the caller's own: key, unique within its task. It stands in line by its rank, then first in, first out.
-- Key and rank are values packed by FoundationDB's tuple layer. Other than a submitted job it stays until it is removed.
-- Returns its UUID, or null where there is one with this key already.
CREATE OR REPLACE FUNCTION joex.add(
    task text,
    key bytea,
    data jsonb DEFAULT '{}',
    opts jsonb DEFAULT '{}',
    rank bytea DEFAULT '',
    grp text DEFAULT NULL,          -- the task
    queue text DEFAULT NULL,        -- the task
    priority text DEFAULT 'low',
    subject text DEFAULT '',
    submitter text DEFAULT '',
    cancel boolean DEFAULT false,   -- it is not to run (until it is resubmitted)
    resubmit boolean DEFAULT false  -- it goes round once more when its first run ends
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_now timestamptz := clock_timestamp();
    v_id uuid;
BEGIN
    INSERT INTO joex.job AS j (task, key, args, opts, rank, queue, grp, priority, subject, submitter, state, lane,
                               finished_at, cancel_requested, resubmit_requested, submitted_at, runnable_since)
    VALUES (task, key, data, opts, rank, coalesce(queue, task), coalesce(grp, task), priority::joex.job_priority, subject,
            submitter, CASE WHEN cancel THEN 'cancelled' ELSE 'waiting' END::joex.job_state,
            CASE WHEN NOT cancel THEN joex.lane(priority::joex.job_priority) END,
            CASE WHEN cancel THEN v_now END, cancel, resubmit, v_now, v_now)
    ON CONFLICT DO NOTHING      -- of the indexes that can conflict, only the one of keys concerns a job like this
    RETURNING j.id INTO v_id;
    IF v_id IS NOT NULL THEN
        PERFORM joex.wake(coalesce(queue, task), 1);
        PERFORM joex.announce('job-submitted', ARRAY[v_id]);
    END IF;
    RETURN v_id;
END $$;

-- The UUID of the job of a task with this key. A submitted job has its UUID for a key.
CREATE OR REPLACE FUNCTION joex.find(p_task text, p_key bytea) RETURNS uuid
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_id uuid;
BEGIN
    SELECT j.id INTO v_id FROM joex.job j WHERE j.task = p_task AND j.key = p_key AND j.key IS NOT NULL;
    IF v_id IS NULL AND octet_length(p_key) = 17 AND get_byte(p_key, 0) = 48 THEN   -- the tuple layer's UUID
        SELECT j.id INTO v_id FROM joex.job j
        WHERE j.id = encode(substr(p_key, 2), 'hex')::uuid AND j.task = p_task AND j.key IS NULL;
    END IF;
    RETURN v_id;
END $$;
