-- Periodic tasks: rows that submit jobs at the times of a timer.
--
-- Python code reads timers, SQL does not. So a scheduler (there is one in each executor and in each operator) reads the rows that are due,
-- computes when each is due next, and passes both to one call of fire_periodic. That call decides, in one transaction of the server: it
-- fires a row only in the version that the scheduler read (its revision and its nextrun). So of many schedulers that pass the same row
-- one fires it, and a scheduler that dies, hangs or loses the network leaves no mark behind, and blocks no other scheduler.

-- After an owner's change of a task, schedulers compute its next time again.
CREATE OR REPLACE FUNCTION joex_private.periodic_task_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_at := clock_timestamp();
    -- (One that is removed and put again begins anywhere: a scheduler that has read the first one must not take this for it.)
    NEW.revision := CASE TG_OP WHEN 'INSERT' THEN (random() * 1e15)::bigint ELSE OLD.revision + 1 END;
    NEW.error := NULL;
    -- (Only these columns move the next time.)
    IF TG_OP = 'INSERT' OR (NEW.timer, NEW.zone, NEW.enabled) IS DISTINCT FROM (OLD.timer, OLD.zone, OLD.enabled)
       OR OLD.error IS NOT NULL THEN
        NEW.nextrun := '-infinity';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER changes BEFORE INSERT OR UPDATE OF owner, enabled, task, args, subject, submitter,
    priority, timer, zone, starting_deadline ON joex_private.periodic_task
FOR EACH ROW EXECUTE FUNCTION joex_private.periodic_task_changes();

-- Notify schedulers of the change. (After it: an INSERT ... ON CONFLICT that leaves the row as it is must not notify.) The notification
-- names no task, because every role that can connect may listen: schedulers read what is due.
CREATE OR REPLACE FUNCTION joex_private.periodic_task_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM joex_private.send('joex_periodic', '');
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER changed AFTER INSERT OR DELETE OR UPDATE OF owner, enabled, task, args, subject, submitter,
    priority, timer, zone, starting_deadline ON joex_private.periodic_task
FOR EACH ROW EXECUTE FUNCTION joex_private.periodic_task_changed();

-- Refuse the owners that a caller can't be. Joex's own periodic tasks follow the settings of the executors: a client that removed or changed
-- one would stop Joex's own work, or let it delete what must be kept. The tasks of an app are read and cleared away by each start of its
-- executors, and those of a pool by the operator: a tenant that made a million of them would keep both from working.
CREATE OR REPLACE FUNCTION joex_private.check_owner(p_owner text) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_owner = 'joex' THEN
        RAISE EXCEPTION 'owner: joex stands for Joex itself, which alone sets and removes its periodic tasks' USING ERRCODE = '22023',
            HINT = 'To enable or disable such a task, call joex.enable_periodic_task with any_owner => true.';
    ELSIF p_owner ~ '^(app|kubernetes):' AND NOT joex_private.may('{operate}', NULL, NULL) THEN
        RAISE EXCEPTION 'owner: the role % is bound to groups or queues, so it is no app and no pool; got %', session_user, p_owner
            USING ERRCODE = 'insufficient_privilege', HINT = 'To remove, enable or disable such a task, pass any_owner => true.';
    END IF;
END $$;

-- Set a periodic task of any owner, as joex.put_periodic_task. Joex's own code sets its own tasks by this.
CREATE OR REPLACE FUNCTION joex_private.store_periodic_task(
    id text, task text, timer text, zone text, args jsonb, grp text, queue text, priority text, subject text, submitter text,
    starting_deadline interval, enabled boolean, owner text
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    PERFORM joex_private.must_be_allowed('{operate}', queue, grp);
    starting_deadline := joex_private.in_seconds(starting_deadline);
    IF joex_private.is_large(args) THEN
        PERFORM joex_private.check_size('args', args);
    END IF;
    PERFORM joex_private.must_hold('id: 1 to 240 bytes', octet_length(id) BETWEEN 1 AND 240),
            joex_private.must_hold('owner: 1 to 254 bytes', octet_length(owner) BETWEEN 1 AND 254),
            joex_private.must_hold('task: 1 to 254 bytes', octet_length(task) BETWEEN 1 AND 254),
            joex_private.must_hold('task: must not begin with joex., as Joex''s own names do',
                                   owner = 'joex' OR NOT starts_with(task, 'joex.')),
            joex_private.must_hold('group: 1 to 254 bytes', octet_length(grp) BETWEEN 1 AND 254),
            joex_private.must_hold('args: must be a JSON object', jsonb_typeof(args) = 'object'),
            joex_private.must_hold('subject: at most 1000 bytes', octet_length(subject) <= 1000),
            joex_private.must_hold('submitter: at most 254 bytes', octet_length(submitter) <= 254),
            joex_private.must_hold('queue: 1 to 254 bytes', octet_length(queue) BETWEEN 1 AND 254),
            joex_private.must_hold('timer: 1 to 254 bytes', octet_length(timer) BETWEEN 1 AND 254),
            joex_private.must_hold('zone: 1 to 64 bytes', octet_length(zone) BETWEEN 1 AND 64),
            joex_private.must_hold('starting_deadline: 0 to 1000 years', coalesce(
                starting_deadline BETWEEN interval '0' AND interval '365250 days', true));
    INSERT INTO joex_private.periodic_task AS t (id, task, timer, zone, args, grp, queue, priority, subject, submitter,
                                                 starting_deadline, enabled, owner)
    VALUES (id, task, timer, zone, args, grp, queue, joex_private.priority_of(priority), subject, submitter, starting_deadline,
            coalesce(enabled, true), owner)
    ON CONFLICT ON CONSTRAINT periodic_task_pkey DO UPDATE SET
        task = excluded.task, timer = excluded.timer, zone = excluded.zone, args = excluded.args, priority = excluded.priority,
        subject = excluded.subject, submitter = excluded.submitter, starting_deadline = excluded.starting_deadline,
        enabled = coalesce(store_periodic_task.enabled, t.enabled)
    WHERE t.owner = excluded.owner
          AND (t.task, t.timer, t.zone, t.args, t.priority, t.subject, t.submitter, t.starting_deadline, t.enabled)
              IS DISTINCT FROM
              (excluded.task, excluded.timer, excluded.zone, excluded.args, excluded.priority, excluded.subject,
               excluded.submitter, excluded.starting_deadline,
               coalesce(store_periodic_task.enabled, t.enabled));
    IF FOUND THEN
        PERFORM joex_private.note_act('put_periodic_task', id, queue, grp, jsonb_build_object(
            'task', task, 'timer', timer, 'zone', zone, 'enabled', enabled, 'owner', owner));
        RETURN 'set';
    END IF;
    PERFORM joex_private.must_be_shallow(NULL);     -- (the row is locked all the same)
    RETURN CASE WHEN EXISTS (SELECT FROM joex_private.periodic_task t
                             WHERE t.id = id AND t.queue = queue AND t.grp = grp AND t.owner = owner) THEN 'same' ELSE 'not_yours' END;
END $$;

-- Set the periodic task with this id in this queue and group. Returns set, same (nothing has changed), or not_yours (another owner has the
-- task; nothing has changed).
CREATE OR REPLACE FUNCTION joex.put_periodic_task(
    id text,                                    -- unique in its queue and group
    task text,
    timer text,                                 -- a calendar event
    zone text DEFAULT 'UTC',                    -- the time zone of the timer
    args jsonb DEFAULT '{}',                    -- this and the next five: of its jobs, as in joex.submit
    grp text DEFAULT 'default',
    queue text DEFAULT 'default',
    priority text DEFAULT 'low',
    subject text DEFAULT '',
    submitter text DEFAULT '',
    starting_deadline interval DEFAULT NULL,    -- how late a job may still be submitted; null: any time
    enabled boolean DEFAULT NULL,               -- null: as it is; true for a new task
    owner text DEFAULT 'user'                   -- only this owner changes the task
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM joex_private.check_owner(owner);
    IF starts_with(id, 'joex.') THEN     -- (else a client could take the id of such a task before an executor has set it)
        RETURN 'not_yours';
    END IF;
    RETURN joex_private.store_periodic_task(id, task, timer, zone, args, grp, queue, priority, subject, submitter, starting_deadline,
                                            enabled, owner);
END $$;

-- Lock the periodic task with this id in this queue and this group (null: in any) that the role of this session may operate; null: there is
-- none for it. An error, if there are several. (Python code has the same rule: store/periodic.py.)
CREATE OR REPLACE FUNCTION joex_private.named_periodic_task(p_id text, p_queue text, p_grp text) RETURNS joex_private.periodic_task
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_one joex_private.periodic_task;
    v_found joex_private.periodic_task;
BEGIN
    PERFORM joex_private.exact(p_id);
    FOR v_one IN
        WITH bounds AS MATERIALIZED (TABLE joex_private.bounds_of_operator)     -- read once, and not for each task of this id
        SELECT t.* FROM joex_private.periodic_task t
        WHERE t.id = p_id AND (p_queue IS NULL OR t.queue = p_queue) AND (p_grp IS NULL OR t.grp = p_grp) AND EXISTS (
            SELECT FROM bounds b
            -- (Joex's own tasks concern all groups.)
            WHERE (b.groups IS NULL OR t.owner <> 'joex' AND t.grp = ANY (b.groups))
                  AND (b.queues IS NULL OR t.owner <> 'joex' AND t.queue = ANY (b.queues)) OFFSET 0)
        ORDER BY t.queue, t.grp LIMIT 2 FOR UPDATE OF t
    LOOP
        IF v_found.id IS NOT NULL THEN
            RAISE EXCEPTION 'id: several periodic tasks have the id %: name the queue and the group too, such as queue % and group %',
                to_json(p_id), to_json(v_found.queue), to_json(v_found.grp) USING ERRCODE = '22023';
        END IF;
        v_found := v_one;
    END LOOP;
    PERFORM joex_private.must_be_shallow(NULL);
    RETURN v_found;
END $$;

-- Remove a periodic task; its jobs stay. Returns removed, not_found or not_yours (another owner has it; or Joex itself, whose tasks stay).
CREATE OR REPLACE FUNCTION joex.remove_periodic_task(
    id text,
    owner text DEFAULT 'user',
    any_owner boolean DEFAULT false,    -- true: remove the task of any owner but Joex itself
    queue text DEFAULT NULL,            -- null: in any queue; an error, if several tasks have the id
    grp text DEFAULT NULL               -- null: in any group; the same
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_task joex_private.periodic_task;
BEGIN
    IF NOT any_owner THEN
        PERFORM joex_private.check_owner(owner);
    END IF;
    v_task := joex_private.named_periodic_task(id, queue, grp);
    IF v_task.id IS NULL THEN
        RETURN 'not_found';
    ELSIF v_task.owner = 'joex' OR NOT any_owner AND v_task.owner <> owner THEN
        RETURN 'not_yours';
    END IF;
    DELETE FROM joex_private.periodic_task t WHERE (t.id, t.queue, t.grp) = (v_task.id, v_task.queue, v_task.grp);
    PERFORM joex_private.note_act('remove_periodic_task', v_task.id, v_task.queue, v_task.grp);
    RETURN 'removed';
END $$;

-- Enable or disable a periodic task. Returns set, same, not_found or not_yours.
CREATE OR REPLACE FUNCTION joex.enable_periodic_task(
    id text,
    enabled boolean DEFAULT true,
    owner text DEFAULT 'user',
    any_owner boolean DEFAULT false,    -- true: change the task of any owner, even of Joex itself
    queue text DEFAULT NULL,            -- null: in any queue; an error, if several tasks have the id
    grp text DEFAULT NULL               -- null: in any group; the same
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_task joex_private.periodic_task;
BEGIN
    IF enabled IS NULL THEN     -- (the server's error would show the task as a whole, with its arguments)
        RAISE EXCEPTION 'enabled: expected true or false; got NULL' USING ERRCODE = '22004';
    ELSIF NOT any_owner THEN
        PERFORM joex_private.check_owner(owner);
    END IF;
    v_task := joex_private.named_periodic_task(id, queue, grp);
    IF v_task.id IS NULL THEN
        RETURN 'not_found';
    ELSIF NOT any_owner AND v_task.owner <> owner THEN
        RETURN 'not_yours';
    ELSIF v_task.enabled = enabled THEN
        RETURN 'same';
    END IF;
    UPDATE joex_private.periodic_task t SET enabled = enabled
    WHERE (t.id, t.queue, t.grp) = (v_task.id, v_task.queue, v_task.grp);
    PERFORM joex_private.note_act('enable_periodic_task', v_task.id, v_task.queue, v_task.grp, jsonb_build_object('enabled', enabled));
    RETURN 'set';
END $$;

-- Remove the periodic tasks of an owner, except these. Returns the ids of the removed tasks. (SKIP LOCKED: a role that may operate in the
-- group of a task would keep executors from starting by a transaction that it leaves open. The next start removes the row. A plan for any
-- owner would read the tasks of all, where nearly all have one owner.)
CREATE OR REPLACE FUNCTION joex_private.keep_periodic_tasks(p_owner text, p_ids text[], p_queues text[], p_grps text[]) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_gone record;
BEGIN
    FOR v_gone IN
        DELETE FROM joex_private.periodic_task d WHERE (d.id, d.queue, d.grp) IN (
            SELECT t.id, t.queue, t.grp FROM joex_private.periodic_task t
            WHERE t.owner = p_owner AND (t.id, t.queue, t.grp) NOT IN (SELECT * FROM unnest(p_ids, p_queues, p_grps))
            FOR UPDATE SKIP LOCKED) RETURNING d.id, d.queue, d.grp
    LOOP
        PERFORM joex_private.note_act('remove_periodic_task', v_gone.id, v_gone.queue, v_gone.grp);
        RETURN NEXT v_gone.id;
    END LOOP;
END $$;

-- The tracker of the jobs of a periodic task. Trackers are unique in a group, so it holds the queue too; quoted: the queue a of the id b c
-- is not the queue a b of the id c.
CREATE OR REPLACE FUNCTION joex_private.periodic_tracker(p_queue text, p_id text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'periodic ' || quote_literal(p_queue) || ' ' || p_id $$;

-- Submit the job of a periodic task; null while an earlier one is unfinished. The tracker alone would prevent a second job too, but an
-- insert waits for an open transaction that is finishing the earlier job. Not by joex.submit, which refuses such a tracker, lest a client's job keep a periodic task from running.
CREATE OR REPLACE FUNCTION joex_private.submit_periodic(p joex_private.periodic_task) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_id uuid;
    v_tracker CONSTANT text := joex_private.periodic_tracker(p.queue, p.id);
BEGIN
    IF EXISTS (SELECT FROM joex_private.job j WHERE j.grp = p.grp AND j.tracker = v_tracker AND j.finished_at IS NULL) THEN
        RETURN NULL;
    ELSIF joex_private.is_large(p.args) THEN
        PERFORM joex_private.check_size('args', p.args);
    END IF;
    INSERT INTO joex_private.job (id, task, args, grp, ring, queue, priority, subject, submitter, due_at, lane, tracker, retries,
                                  submitted_at, runnable_since, trace_context)
    SELECT * FROM joex_private.rows_to_submit(
        clock_timestamp(), ARRAY[joex_private.uuid7()], ARRAY[p.task], ARRAY[p.args], ARRAY[p.grp], ARRAY[p.queue],
        ARRAY[p.priority::text], ARRAY[CASE p.subject WHEN '' THEN p.id ELSE p.subject END], ARRAY[p.submitter],
        ARRAY[NULL::timestamptz], ARRAY[v_tracker], ARRAY[NULL::integer], NULL)
    ON CONFLICT (grp, tracker) WHERE tracker IS NOT NULL AND finished_at IS NULL DO NOTHING RETURNING id INTO v_id;
    IF v_id IS NOT NULL THEN
        PERFORM joex_private.wake(p.queue, 1);
        PERFORM joex_private.announce('job-submitted', ARRAY[v_id]);
    END IF;
    RETURN v_id;
END $$;

-- Submit the job of a periodic task now, whatever its timer says. Returns submitted, with the job; overlapping (the previous job has not
-- finished), not_found, or not_yours (a task of Joex's own, which submits no jobs).
CREATE OR REPLACE FUNCTION joex.run_periodic_task(
    id text,
    queue text DEFAULT NULL,    -- null: in any queue; an error, if several tasks have the id
    grp text DEFAULT NULL       -- null: in any group; the same
) RETURNS TABLE (answer text, job uuid) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_task joex_private.periodic_task;
BEGIN
    v_task := joex_private.named_periodic_task(id, queue, grp);
    IF v_task.id IS NULL THEN
        answer := 'not_found';
    ELSIF v_task.owner = 'joex' THEN
        answer := 'not_yours';
    ELSE
        job := joex_private.submit_periodic(v_task);
        answer := CASE WHEN job IS NULL THEN 'overlapping' ELSE 'submitted' END;
        UPDATE joex_private.periodic_task t SET last_job = coalesce(job, t.last_job)
        WHERE (t.id, t.queue, t.grp) = (v_task.id, v_task.queue, v_task.grp);
        PERFORM joex_private.note_act('run_periodic_task', v_task.id, v_task.queue, v_task.grp, jsonb_build_object('job', job)) WHERE job IS NOT NULL;
    END IF;
    RETURN NEXT;
END $$;

-- The tasks that need a decision, group by group of each queue, for when there are more than a scheduler decides at once (p_most): of each
-- group equally many of those without a next time, and of those that are due. (Groups of one name in two queues may belong to two tenants.) It
-- begins with the group after p_after (queue, grp), and ends when p_most groups had a turn, or when it has passed over twenty times as many.
-- Returns with each task the group where the next call goes on: {"", ""} if that is the first one. No task: a row without an id. Not of these
-- owners (p_not_of), and not these tasks. The cost is bounded by p_most.
-- (Both orders name the group, and all bounds are those of rows: only one index has these, whatever the statistics say.)
CREATE OR REPLACE FUNCTION joex_private.periodic_in_turn(
    p_most integer, p_after text[], p_not_of text[], p_ids text[], p_queues text[], p_grps text[]
) RETURNS TABLE (next_after text[], id text, queue text, grp text, revision bigint, timer text, zone text, nextrun timestamptz,
                 last_run timestamptz, starting_deadline interval) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT timestamptz := statement_timestamp();    -- an index is not searched for what may change from row to row
    v_after text[] := p_after;
    v_next record;
    v_queues text[] := '{}';
    v_groups text[] := '{}';
BEGIN
    FOR step IN 1 .. 20 * p_most LOOP
        SELECT t.queue::text, t.grp::text, t.nextrun <= v_now AS is_due INTO v_next FROM joex_private.periodic_task t
        WHERE t.enabled AND t.error IS NULL AND (t.queue, t.grp, t.nextrun) > (v_after[1], v_after[2], 'infinity')
        ORDER BY t.queue, t.grp, t.nextrun LIMIT 1;
        v_after := ARRAY[coalesce(v_next.queue, ''), coalesce(v_next.grp, '')];
        IF v_next.is_due THEN
            v_queues := v_queues || v_next.queue;
            v_groups := v_groups || v_next.grp;
        END IF;
        EXIT WHEN v_after[1] = '' AND step > 1 OR cardinality(v_groups) = p_most;
    END LOOP;
    RETURN QUERY
    SELECT v_after, d.* FROM (SELECT) one LEFT JOIN (
        SELECT t.* FROM unnest(v_queues, v_groups) g(queue, grp)
        CROSS JOIN (VALUES (timestamptz '-infinity', timestamptz '-infinity'), ('1970-01-01 00:00+00', v_now)) k(earliest, latest)
        CROSS JOIN LATERAL (
            SELECT x.id, x.queue, x.grp, x.revision, x.timer, x.zone, x.nextrun, x.last_run, x.starting_deadline
            FROM joex_private.periodic_task x
            WHERE x.enabled AND x.error IS NULL AND (x.queue, x.grp, x.nextrun) >= (g.queue, g.grp, k.earliest)
                  AND (x.queue, x.grp, x.nextrun) <= (g.queue, g.grp, k.latest)
                  AND x.owner <> ALL (p_not_of)
                  AND (x.id, x.queue, x.grp) NOT IN (SELECT * FROM unnest(p_ids, p_queues, p_grps))
            ORDER BY x.queue, x.grp, x.nextrun LIMIT p_most / cardinality(v_groups) FOR NO KEY UPDATE SKIP LOCKED) t) d ON true;
END $$;

-- Decide about tasks that a scheduler has read and found due or without a next time: fires[i] is the time of the timer that is due (null:
-- none is), nexts[i] the next one (null: never again), errors[i] why the task can't run. revisions and nextruns: as the scheduler read them.
-- Returns the outcome of each: submitted, started (a task of Joex's own: the caller does it now, without a job), overlapping, late
-- (its time was too long ago), set (it has its next time now), refused (it can't run), trouble (its job could not be submitted now), or
-- stale (another scheduler was faster, or the task has changed).
-- While another call is under way this does nothing, and returns nothing: that call may have the same tasks.
-- After a quarter of a second it leaves the rest as it is, and does not return it: a tenant whose jobs take long to submit, by a megabyte of
-- arguments each perhaps, must not make the others wait. So each group has its first task, then its second, and so on. The rest of a group
-- of which two submissions had to wait it leaves, too: one open transaction of a tenant may make hundreds wait.
CREATE OR REPLACE FUNCTION joex_private.fire_periodic(
    p_worker text, ids text[], queues text[], grps text[], revisions bigint[], nextruns timestamptz[], fires timestamptz[], nexts timestamptz[],
    errors text[]
) RETURNS TABLE (id text, queue text, grp text, outcome text, job uuid) LANGUAGE plpgsql VOLATILE
-- (A submission that has to wait for a lock, of a trigger perhaps, is trouble: meanwhile no other scheduler could fire.)
SET lock_timeout = '20ms' SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_until CONSTANT timestamptz := clock_timestamp() + interval '250 milliseconds';
    v_given record;
    v_task joex_private.periodic_task;
    v_waits bigint[] := '{}';   -- the group of each submission that had to wait
BEGIN
    IF NOT joex_private.try_mutex('periodic') THEN
        RETURN;
    END IF;
    -- (At random: no group is the last one each time.)
    FOR v_given IN SELECT g.*, dense_rank() OVER (ORDER BY g.queue, g.grp) AS group_nr
                   FROM unnest(ids, queues, grps, revisions, nextruns, fires, nexts, errors) WITH ORDINALITY
                       AS g(id, queue, grp, revision, nextrun, fire, next, error, nr)
                   ORDER BY row_number() OVER (PARTITION BY g.queue, g.grp ORDER BY g.nr), random() LOOP
        -- (The next pass tries the other tasks of the group: a client that inserts many rows makes any submission wait now and then.)
        CONTINUE WHEN cardinality(array_positions(v_waits, v_given.group_nr)) >= 2;
        id := v_given.id;
        queue := v_given.queue;
        grp := v_given.grp;
        job := NULL;
        outcome := 'stale';
        -- (SKIP LOCKED: a row that its owner is changing will have another revision.)
        SELECT * INTO v_task FROM joex_private.periodic_task t
        WHERE (t.id, t.queue, t.grp) = (v_given.id, v_given.queue, v_given.grp)
              AND t.revision = v_given.revision AND t.nextrun = coalesce(v_given.nextrun, '-infinity')
              AND t.enabled AND t.error IS NULL FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            -- (One role may have a group of its own for each of hundreds of waits.)
            PERFORM set_config('lock_timeout', CASE WHEN cardinality(v_waits) < 6 THEN '20ms' ELSE '1ms' END, true);
            -- (A row whose submission fails must not stop the others.)
            BEGIN
                outcome := CASE WHEN v_given.error IS NOT NULL THEN 'refused' WHEN v_given.nextrun IS NULL THEN 'set'
                                WHEN v_given.fire IS NULL OR v_given.fire <= v_task.last_run THEN 'late' END;
                IF outcome IS NULL AND v_task.owner = 'joex' THEN
                    outcome := 'started';
                ELSIF outcome IS NULL THEN
                    job := joex_private.submit_periodic(v_task);
                    outcome := CASE WHEN job IS NULL THEN 'overlapping' ELSE 'submitted' END;
                END IF;
            EXCEPTION WHEN OTHERS THEN
                outcome := 'refused';
                v_given.error := SQLERRM;
                -- An error that is not about the row's values, or their size, may go away.
                IF left(SQLSTATE, 2) NOT IN ('22', '23', '54') AND SQLSTATE <> 'JX003' THEN
                    outcome := 'trouble';
                END IF;
                IF SQLSTATE = '55P03' THEN
                    v_waits := v_waits || v_given.group_nr;
                END IF;
            END;
        END IF;
        IF outcome NOT IN ('stale', 'trouble') THEN
            -- (An error here undoes the pass. This waits for no row: for a page that others add to the table, or for DDL.)
            PERFORM set_config('lock_timeout', '1s', true);
            UPDATE joex_private.periodic_task t SET
                nextrun = CASE outcome WHEN 'refused' THEN '-infinity' ELSE coalesce(v_given.next, 'infinity') END,
                worker = p_worker, marked = clock_timestamp(), error = v_given.error,
                last_run = greatest(t.last_run, coalesce(v_given.fire, CASE outcome WHEN 'late' THEN v_given.nextrun END)),
                last_outcome = CASE WHEN outcome IN ('submitted', 'started', 'overlapping', 'late') THEN outcome ELSE t.last_outcome END,
                last_job = coalesce(job, t.last_job)
            WHERE (t.id, t.queue, t.grp) = (v_given.id, v_given.queue, v_given.grp);
        END IF;
        RETURN NEXT;
        EXIT WHEN clock_timestamp() >= v_until;
    END LOOP;
END $$;

-- All periodic tasks, for the code of executors and operators. (A role that may read a view of joex can keep all others from it: see
-- rights_of. It can't name this one.)
CREATE OR REPLACE VIEW joex_private.periodic_tasks AS
SELECT t.id, t.owner, t.enabled, t.task, t.timer, t.zone, t.args, t.grp, t.queue, t.priority::text AS priority, t.subject, t.submitter,
       t.starting_deadline, CASE WHEN isfinite(t.nextrun) THEN t.nextrun END AS nextrun, t.last_run, t.last_outcome, t.last_job,
       j.state::text AS last_job_state, t.error, t.worker, t.marked, t.created_at, t.changed_at,
       json_build_array(t.id, t.queue, t.grp)::text AS key
FROM joex_private.periodic_task t LEFT JOIN joex_private.job j ON j.id = t.last_job;

-- All periodic tasks.
CREATE OR REPLACE VIEW joex.periodic_tasks WITH (security_barrier) AS
WITH bounds AS MATERIALIZED (TABLE joex_private.bounds_of_reader)
SELECT t.id,                 -- text
       t.owner,              -- text: only this owner changes the task
       t.enabled,            -- boolean
       t.task,               -- text
       t.timer,              -- text: a calendar event
       t.zone,               -- text: the time zone of the timer
       t.args,               -- jsonb
       t.grp,                -- text: the group
       t.queue,              -- text
       t.priority,           -- text: high or low
       t.subject,            -- text
       t.submitter,          -- text
       t.starting_deadline,  -- interval: how late a job may still be submitted
       t.nextrun,            -- timestamptz: null if it has no next time, or not yet
       t.last_run,           -- timestamptz: the latest time of the timer that has passed
       t.last_outcome,       -- text: submitted, started, overlapping or late
       t.last_job,           -- uuid: the latest job
       t.last_job_state,     -- text
       t.error,              -- text: why it can't run
       t.worker,             -- text: the executor or operator that decided about it last
       t.marked,             -- timestamptz: when that was
       t.created_at,         -- timestamptz
       t.changed_at,         -- timestamptz: the latest change by its owner
       t.key                 -- text: what is unique: the id, the queue and the group
FROM joex_private.periodic_tasks t
WHERE (SELECT b.is_called AND b.last_value = 1 FROM joex_private.roles_bound b) OR EXISTS (
    SELECT FROM bounds b
    -- (Joex's own tasks concern all groups.)
    WHERE (b.groups IS NULL OR t.owner <> 'joex' AND t.grp = ANY (b.groups))
          AND (b.queues IS NULL OR t.owner <> 'joex' AND t.queue = ANY (b.queues)));
