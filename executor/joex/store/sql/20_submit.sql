-- Submission. These functions work in the caller's transaction: a job exists if and when that transaction commits.

-- The rows of many jobs, in the order given. (submit_many inserts them in one of two ways; the planner inlines this function there.)
CREATE OR REPLACE FUNCTION joex_private.rows_to_submit(
    p_now timestamptz, p_ids uuid[], p_tasks text[], p_args jsonb[], p_grps text[], p_queues text[], p_priorities text[],
    p_subjects text[], p_submitters text[], p_not_before timestamptz[], p_trackers text[], p_retries integer[],
    p_trace_context text
) RETURNS TABLE (
    id uuid, task text, args jsonb, grp text, ring bigint, queue text, priority joex_private.job_priority, subject text,
    submitter text, due_at timestamptz, lane smallint, tracker text, retries integer, submitted_at timestamptz,
    runnable_since timestamptz, trace_context text
) LANGUAGE sql STABLE AS $$
    SELECT g.id, g.task, coalesce(g.args, '{}'), coalesce(g.grp, 'default'), joex_private.place(d.ring_key, coalesce(g.grp, 'default')),
           coalesce(g.queue, 'default'), p.priority,
           coalesce(g.subject, ''), coalesce(g.submitter, ''), p.due_at,
           CASE WHEN p.due_at IS NULL THEN joex_private.lane(p.priority) END,
           g.tracker, g.retries, p_now, coalesce(p.due_at, p_now), p_trace_context
    FROM ROWS FROM (unnest(p_ids), unnest(p_tasks), unnest(p_args), unnest(p_grps), unnest(p_queues), unnest(p_priorities),
                    unnest(p_subjects), unnest(p_submitters), unnest(p_not_before), unnest(p_trackers), unnest(p_retries))
         AS g(id, task, args, grp, queue, priority, subject, submitter, due_at, tracker, retries),
         joex_private.this_database d,
         LATERAL (SELECT CASE WHEN g.priority IS NULL THEN 'low' ELSE joex_private.priority_of(g.priority) END AS priority,
                         CASE WHEN g.due_at > p_now THEN g.due_at END AS due_at) p
    WHERE (SELECT pg_sequence_last_value('joex_private.roles_bound') = 1) OR joex_private.must_be_allowed('{submit, operate}', coalesce(g.queue, 'default'), coalesce(g.grp, 'default'))
$$;

-- True; or an error, where the role of this session may not submit to this group, or the group may have no more waiting jobs.
CREATE OR REPLACE FUNCTION joex_private.must_be_accepted(p_queue text, p_grp text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM joex_private.must_be_allowed('{submit, operate}', p_queue, p_grp), joex_private.must_have_room(p_queue, p_grp, 0);
    RETURN true;
END $$;

-- Whether the snapshot of this transaction shows all limits of waiting jobs that were ever set (see note_limit_waiting).
CREATE OR REPLACE FUNCTION joex_private.sees_the_limits() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_note CONSTANT bigint := pg_sequence_last_value('joex_private.limits_waiting');
    v_last CONSTANT xid8 := (v_note / 2)::text::xid8;
BEGIN
    IF v_note IS NULL OR v_note <= 2
       OR v_note % 2 = 0 AND (pg_visible_in_snapshot(v_last, pg_current_snapshot()) OR v_last = pg_current_xact_id_if_assigned())
       OR v_last < pg_snapshot_xmin(pg_current_snapshot()) THEN
        RETURN true;
    END IF;
    BEGIN
        PERFORM pg_xact_status(v_last);
    EXCEPTION WHEN invalid_parameter_value THEN
        RETURN true;    -- No transaction has this id yet: a dump was restored, and the limit was set on another server.
    END;
    RETURN false;
END $$;

-- Note in a sequence, whose value every snapshot sees at once, that this transaction sets a limit of waiting jobs: twice its id. And 1 more,
-- where another one that has noted its id may not have ended: then only a snapshot that shows all as over up to the id shows all limits.
-- (Transactions that set limits wait for no other, which its client may leave open. To note is to read and then to write, so they exclude
-- each other for this moment: the end of a block that fails frees the row. Such a block also leaves the transaction no deeper.)
CREATE OR REPLACE FUNCTION joex_private.note_limit_waiting() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_id CONSTANT bigint := pg_current_xact_id()::text::bigint;
BEGIN
    IF pg_sequence_last_value('joex_private.limits_waiting') / 2 = v_id THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM FROM joex_private.mutex m WHERE m.purpose = 'limits' AND m.queue = '' AND m.ring = 0 FOR UPDATE;
        PERFORM setval('joex_private.limits_waiting', CASE WHEN joex_private.sees_the_limits() THEN 2 * v_id
            ELSE 2 * greatest(v_id, pg_sequence_last_value('joex_private.limits_waiting') / 2) + 1 END);
        RAISE raise_exception;
    EXCEPTION WHEN raise_exception THEN
        RETURN;
    END;
END $$;

-- Refuse, with SQLSTATE 40001, to submit to a group with a limit by a snapshot that is older than another such submission has ended. (The
-- server does so, where the snapshot does not show the row that this writes as it is now.)
CREATE OR REPLACE FUNCTION joex_private.must_see_submissions(p_queue text, p_ring bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO joex_private.mutex AS m (purpose, queue, ring, by) VALUES ('waiting', p_queue, p_ring, pg_current_xact_id())
    ON CONFLICT ON CONSTRAINT mutex_pkey DO UPDATE SET by = excluded.by WHERE m.by <> excluded.by;
END $$;

-- Refuse a submission to a group that has as many waiting jobs as it may; or one more, where its jobs are in line already (p_over 1).
-- Submissions at the same time don't see each other's jobs: together they may go over the limit. Jobs that wait for their time don't count.
--
-- A REPEATABLE READ transaction counts by its snapshot, which may be as old as any open transaction that has exported it: by one of an empty
-- line, a role could submit any number of jobs, a transaction after the other. So those of a bound role must see each other's jobs,
-- and all limits. (Those of READ COMMITTED, which they need not see, count all jobs themselves. A role that is not bound may use names
-- of other groups anyway: no limit holds it, and it goes on. So does everybody, where no limit was ever set.)
CREATE OR REPLACE FUNCTION joex_private.must_have_room(p_queue text, p_grp text, p_over integer) RETURNS void
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_group record;
    v_found boolean;
    v_old boolean := NOT joex_private.sees_the_latest();
BEGIN
    IF v_old THEN
        v_old := pg_sequence_last_value('joex_private.limits_waiting') IS DISTINCT FROM 1
                 AND NOT joex_private.may('{submit, operate}', NULL, NULL);
        IF v_old AND NOT joex_private.sees_the_limits() THEN
            RAISE EXCEPTION 'limits of waiting jobs have been set since the snapshot of this transaction: begin a new transaction'
                USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;
    SELECT g.ring, g.max_waiting INTO v_group FROM joex_private.group_setting g
    WHERE g.queue = p_queue AND g.grp = p_grp AND g.max_waiting IS NOT NULL;
    v_found := FOUND;
    IF v_found AND v_old THEN
        PERFORM joex_private.must_see_submissions(p_queue, v_group.ring);
    END IF;
    IF v_found AND (
        SELECT count(*) FROM (
            SELECT FROM (VALUES (1)) one
            LEFT JOIN LATERAL (SELECT * FROM joex_private.floor_of(p_queue, v_group.ring) LIMIT joex_private.floor_epoch() % 2) f ON true
            CROSS JOIN LATERAL (VALUES (0, f.lane0), (1, f.lane1), (2, f.lane2)) l(lane, seq)
            CROSS JOIN LATERAL (
                SELECT FROM joex_private.job j WHERE j.queue = p_queue AND j.ring = v_group.ring AND j.lane = l.lane
                AND (j.rank, j.seq) >= (''::bytea, coalesce(l.seq, -9223372036854775808)) OFFSET 0) j
            LIMIT v_group.max_waiting + p_over) w) >= v_group.max_waiting + p_over THEN
        RAISE EXCEPTION 'group: % has as many waiting jobs in queue % as it may: %: submit again when some have run',
            to_json(p_grp), to_json(p_queue), v_group.max_waiting USING ERRCODE = 'JX004';
    END IF;
END $$;

-- The row of joex_private.this_database is missing: no job has a place without its key.
CREATE OR REPLACE FUNCTION joex_private.refuse_without_key() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'joex_private.this_database has lost its row, so no job can be submitted: restore this row from a backup';
END $$;

-- The id of a job of a submission that may be repeated. It depends on the queue and the group, so that a role which is bound to these
-- can't find out by it whether others have a job; and begins as p_once does, which has the time in front, for the sake of the index.
CREATE OR REPLACE FUNCTION joex_private.id_once(p_once uuid, p_nr bigint, p_queue text, p_grp text) RETURNS uuid
LANGUAGE sql STABLE AS $$
    SELECT (left(replace(p_once::text, '-', ''), 12) || '8' || left(h.hash, 3) || '8' || substr(h.hash, 4, 15))::uuid
    FROM (SELECT encode(sha256(convert_to(ROW(p_once, p_nr, p_queue, p_grp)::text, 'UTF8')), 'hex')) h(hash)
$$;

-- Submit many jobs in one statement. Each array has one field of all jobs, as joex.submit describes them; a null element, or a null
-- array, means the default. Returns the id of each job, in the order given; null for a job that was skipped because an unfinished
-- job of its group has its tracker. With once, a repetition of a submission that was stored stores nothing: see joex.submit.
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
    retries integer[] DEFAULT NULL,
    once uuid DEFAULT NULL,     -- of all of them
    trace_context text DEFAULT NULL     -- likewise
) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_queue record;
    v_made bigint;      -- inserted jobs (a skipped job needs no executor)
    -- Ids in the order given: time and random bits once for all of them, and a number for each. (An array has fewer than 2^28 elements.
    -- Random bits have a price: without OpenSSL the server opens the kernel's device for each random number.)
    v_stem text := left(joex_private.uuid7()::text, 28);
    v_ids uuid[] := ARRAY(SELECT (v_stem || to_hex(x'10000000'::integer + i))::uuid FROM generate_series(1, cardinality(tasks)) i);
BEGIN
    IF once IS NOT NULL THEN
        v_ids := ARRAY(SELECT joex_private.id_once(once, g.nr, coalesce(g.queue, 'default'), coalesce(g.grp, 'default'))
                       FROM ROWS FROM (unnest(tasks), unnest(queues), unnest(grps)) WITH ORDINALITY AS g(task, queue, grp, nr)
                       ORDER BY g.nr);
        -- (An earlier submission that commits only now leads to an error of the primary key, below; the next repetition sees it here.)
        IF EXISTS (SELECT FROM joex_private.job j WHERE j.id = ANY (v_ids)) THEN
            PERFORM joex_private.must_be_allowed('{submit, operate}', coalesce(g.queue, 'default'), coalesce(g.grp, 'default'))
            FROM ROWS FROM (unnest(tasks), unnest(queues), unnest(grps)) AS g(task, queue, grp)
            WHERE pg_sequence_last_value('joex_private.roles_bound') IS DISTINCT FROM 1;
            RETURN QUERY SELECT j.id FROM unnest(v_ids) WITH ORDINALITY AS g(id, nr) LEFT JOIN joex_private.job j USING (id)
                         ORDER BY g.nr;
            RETURN;
        END IF;
    END IF;
    -- (A value of so few bytes has no large text: one number of many digits has 19.)
    PERFORM joex_private.check_size('args', a.one) FROM unnest(args) a(one)
    WHERE pg_column_size(a.one) > 18 AND joex_private.is_large(a.one);
    -- (ON CONFLICT costs a tenth more, and writes each row to the log twice.)
    IF trackers IS NULL THEN
        INSERT INTO joex_private.job (id, task, args, grp, ring, queue, priority, subject, submitter, due_at, lane, tracker, retries,
                                      submitted_at, runnable_since, trace_context)
        SELECT * FROM joex_private.rows_to_submit(v_now, v_ids, tasks, args, grps, queues, priorities, subjects, submitters, not_before,
                                                  trackers, retries, trace_context);
        GET DIAGNOSTICS v_made = ROW_COUNT;
        IF v_made < cardinality(v_ids) THEN
            PERFORM joex_private.refuse_without_key();
        END IF;
    ELSE
        -- (Else any client could keep a periodic task from running: see submit_periodic.)
        IF EXISTS (SELECT FROM unnest(trackers) t(one) WHERE starts_with(t.one, 'periodic ')) THEN
            RAISE EXCEPTION 'tracker: must not begin with "periodic ": only jobs of periodic tasks have such trackers'
                USING ERRCODE = '22023';
        END IF;
        IF pg_sequence_last_value('joex_private.roles_bound') IS DISTINCT FROM 1 THEN
            PERFORM joex_private.must_be_own_id('{submit, operate}', coalesce(g.queue, 'default'), coalesce(g.grp, 'default'),
                                                p_tracker => g.tracker)
            FROM ROWS FROM (unnest(trackers), unnest(queues), unnest(grps)) AS g(tracker, queue, grp) WHERE g.tracker IS NOT NULL;
        END IF;
        -- (In one order, because each waits for open transactions with its tracker: two batches in different orders would wait for each
        -- other. Their places in line are in the order given.)
        INSERT INTO joex_private.job (id, task, args, grp, ring, queue, priority, subject, submitter, due_at, lane, tracker, retries,
                                      submitted_at, runnable_since, trace_context, seq)
        SELECT * FROM (
            SELECT r.*, nextval('joex_private.job_seq_seq') AS seq
            FROM joex_private.rows_to_submit(v_now, v_ids, tasks, args, grps, queues, priorities, subjects, submitters, not_before,
                                             trackers, retries, trace_context) r) r
        ORDER BY r.grp COLLATE "C", r.tracker COLLATE "C", r.seq
        ON CONFLICT (grp, tracker) WHERE tracker IS NOT NULL AND finished_at IS NULL DO NOTHING;
        GET DIAGNOSTICS v_made = ROW_COUNT;
        IF NOT EXISTS (SELECT FROM joex_private.this_database) THEN
            PERFORM joex_private.refuse_without_key();
        ELSIF v_made < cardinality(v_ids) THEN     -- some have been skipped
            v_ids := ARRAY(SELECT j.id FROM unnest(v_ids) WITH ORDINALITY AS g(id, ord)
                           LEFT JOIN joex_private.job j USING (id) ORDER BY g.ord);
        END IF;
    END IF;
    IF v_made > 0 THEN
        PERFORM joex_private.must_be_shallow((SELECT j.xmin FROM joex_private.job j WHERE j.id = v_ids[1]));
    END IF;
    IF pg_sequence_last_value('joex_private.limits_waiting') IS DISTINCT FROM 1 THEN
        PERFORM joex_private.must_have_room(g.queue, g.grp, 1)
        FROM (SELECT DISTINCT j.queue, j.grp FROM joex_private.job j WHERE j.id = ANY (v_ids)) g;
    END IF;
    -- A statement of its own: its snapshot is younger than the insert, and the transaction has its id by now. An executor that is
    -- just falling asleep relies on both (see fall_asleep).
    IF queues IS NULL AND v_made > 0 THEN
        PERFORM joex_private.wake('default', v_made);
    ELSE
        FOR v_queue IN SELECT q.name, count(*) AS jobs
                       FROM (SELECT coalesce(q.name, 'default') AS name
                             FROM ROWS FROM (unnest(v_ids), unnest(queues)) AS q(id, name) WHERE q.id IS NOT NULL) q GROUP BY 1 LOOP
            PERFORM joex_private.wake(v_queue.name, v_queue.jobs);
        END LOOP;
    END IF;
    PERFORM joex_private.announce('job-submitted', v_ids);
    RETURN QUERY SELECT unnest(v_ids);
END $$;

-- Submit a job. Returns its id; null if an unfinished job of its group has the same tracker, in which case nothing is submitted.
CREATE OR REPLACE FUNCTION joex.submit(
    task text,
    args jsonb DEFAULT '{}',                -- an object
    grp text DEFAULT 'default',             -- the tenant: executors take jobs from groups in turn
    queue text DEFAULT 'default',
    priority text DEFAULT 'low',            -- or high
    subject text DEFAULT '',                -- for people
    submitter text DEFAULT '',              -- for people
    not_before timestamptz DEFAULT NULL,    -- no run begins before
    tracker text DEFAULT NULL,              -- at most one unfinished job of the group has it
    retries integer DEFAULT NULL,           -- null: as many as the task, or else the executor, allows
    once uuid DEFAULT NULL,                 -- of this submission: repeat it if its answer was lost; it is stored once,
                                            -- and again when its job no longer exists
    trace_context text DEFAULT NULL         -- of the caller's span: a W3C traceparent; after a space, a tracestate
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_now timestamptz := clock_timestamp();
    v_due timestamptz := CASE WHEN not_before > v_now THEN not_before END;
    v_id uuid := joex_private.uuid7();
BEGIN
    IF tracker IS NOT NULL OR once IS NOT NULL THEN
        RETURN joex.submit_many(ARRAY[task], ARRAY[args], ARRAY[grp], ARRAY[queue], ARRAY[priority], ARRAY[subject],
                                ARRAY[submitter], ARRAY[not_before], CASE WHEN tracker IS NOT NULL THEN ARRAY[tracker] END,
                                ARRAY[retries], once, trace_context);
    ELSIF joex_private.is_large(args) THEN
        PERFORM joex_private.check_size('args', args);
    END IF;
    INSERT INTO joex_private.job (id, task, args, grp, ring, queue, priority, subject, submitter, due_at, lane, retries, submitted_at,
                                  runnable_since, trace_context)
    SELECT v_id, task, args, grp, joex_private.place(d.ring_key, grp), queue, joex_private.priority_of(priority), subject, submitter, v_due,
           CASE WHEN v_due IS NULL THEN joex_private.lane(joex_private.priority_of(priority)) END, retries, v_now, coalesce(v_due, v_now),
           trace_context
    FROM joex_private.this_database d
    WHERE pg_sequence_last_value('joex_private.limits_waiting') = 1 AND pg_sequence_last_value('joex_private.roles_bound') = 1
          OR joex_private.must_be_accepted(queue, grp)
    RETURNING CASE WHEN xmin = pg_current_xact_id()::xid OR joex_private.must_be_shallow(xmin) THEN id END INTO v_id;
    IF NOT FOUND THEN
        PERFORM joex_private.refuse_without_key();
    END IF;
    IF joex_private.is_awaited(queue) THEN
        PERFORM joex_private.wake(queue, 1);
        PERFORM joex_private.announce('job-submitted', ARRAY[v_id]);
    END IF;
    RETURN v_id;
END $$;

-- Add a keyed job. The caller chooses its id: key, unique within the task. Executors take the keyed jobs of a task in the order of rank,
-- then first in, first out. Clients pack key and rank with FoundationDB's tuple layer. Unlike a submitted job, a keyed job stays until
-- a client removes it. Returns its UUID, or null if the task has a job with this key already.
CREATE OR REPLACE FUNCTION joex_client.add(
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
    cancel boolean DEFAULT false,   -- the job does not run until a client resubmits it
    resubmit boolean DEFAULT false, -- the job runs once more when its first run has ended
    trace_context text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_now timestamptz := clock_timestamp();
    v_id uuid;
BEGIN
    IF joex_private.is_large(data) THEN
        PERFORM joex_private.check_size('args', data);
    END IF;
    IF joex_private.is_large(opts) THEN
        PERFORM joex_private.check_size('opts', opts);
    END IF;
    IF pg_sequence_last_value('joex_private.limits_waiting') IS DISTINCT FROM 1
       OR pg_sequence_last_value('joex_private.roles_bound') IS DISTINCT FROM 1 THEN
        PERFORM joex_private.must_be_accepted(coalesce(queue, task), coalesce(grp, task)),
                joex_private.must_be_own_id('{submit}', coalesce(queue, task), coalesce(grp, task), p_key => key);
    END IF;
    INSERT INTO joex_private.job AS j (task, key, args, opts, rank, queue, grp, ring, priority, subject, submitter, state, lane,
                                       finished_at, cancel_requested, resubmit_requested, submitted_at, runnable_since, trace_context)
    VALUES (task, key, data, opts, rank, coalesce(queue, task), coalesce(grp, task), joex_private.ring(coalesce(grp, task)),
            joex_private.priority_of(priority), subject, submitter,
            CASE WHEN cancel THEN 'cancelled' ELSE 'waiting' END::joex_private.job_state,
            CASE WHEN NOT cancel THEN joex_private.lane(joex_private.priority_of(priority)) END,
            CASE WHEN cancel THEN v_now END, cancel IS TRUE, resubmit IS TRUE, v_now, v_now, trace_context)
    ON CONFLICT DO NOTHING      -- of the unique indexes, only that of keys concerns a keyed job
    RETURNING CASE WHEN j.xmin = pg_current_xact_id()::xid OR joex_private.must_be_shallow(j.xmin) THEN j.id END INTO v_id;
    IF v_id IS NOT NULL AND joex_private.is_awaited(coalesce(queue, task)) THEN
        PERFORM joex_private.wake(coalesce(queue, task), 1);
        PERFORM joex_private.announce('job-submitted', ARRAY[v_id]);
    END IF;
    RETURN v_id;
END $$;

-- The UUID of the job of a task with this key. The key of a submitted job is its UUID.
CREATE OR REPLACE FUNCTION joex_client.find(p_task text, p_key bytea) RETURNS uuid
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_id uuid;
BEGIN
    p_task := joex_private.exact(p_task);
    SELECT j.id INTO v_id FROM joex_private.job j WHERE j.task = p_task AND j.key = p_key AND j.key IS NOT NULL;
    IF v_id IS NULL AND octet_length(p_key) = 17 AND get_byte(p_key, 0) = 48 THEN   -- a UUID of the tuple layer
        SELECT j.id INTO v_id FROM joex_private.job j
        WHERE j.id = encode(substr(p_key, 2), 'hex')::uuid AND j.task = p_task AND j.key IS NULL;
    END IF;
    RETURN joex_private.visible('{view, submit, work, operate}', v_id);
END $$;
