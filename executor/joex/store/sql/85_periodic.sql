-- Periodic tasks: rows of which jobs are made again and again.
--
-- Timers are read by Joex's own code, not here. So whoever schedules (any number of executors and operators) reads the rows that
-- are due, works out when each is due next, and says both in one call of fire_periodic. That call decides, in one transaction
-- of the server: a row is fired only as it was read (its revision and its nextrun), so that of many who say the same
-- one is right; and nobody who dies, hangs or loses the network can leave a mark behind, or keep others waiting.

-- What owners change: the schedule is worked out anew,
CREATE OR REPLACE FUNCTION joex_private.periodic_task_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_at := clock_timestamp();
    NEW.revision := NEW.revision + 1;
    NEW.error := NULL;
    -- Other arguments do not move a time that stands.
    IF TG_OP = 'INSERT' OR (NEW.timer, NEW.zone, NEW.enabled) IS DISTINCT FROM (OLD.timer, OLD.zone, OLD.enabled)
       OR OLD.error IS NOT NULL THEN
        NEW.nextrun := '-infinity';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER changes BEFORE INSERT OR UPDATE OF owner, enabled, task, grp, args, subject, submitter,
    priority, queue, timer, zone, starting_deadline ON joex_private.periodic_task
FOR EACH ROW EXECUTE FUNCTION joex_private.periodic_task_changes();

-- and whoever schedules is told. (Not before: an insert that finds the row there, and leaves it as it is, would tell too.)
CREATE OR REPLACE FUNCTION joex_private.periodic_task_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM joex_private.send('joex_periodic', CASE TG_OP WHEN 'DELETE' THEN OLD.id ELSE NEW.id END);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER changed AFTER INSERT OR DELETE OR UPDATE OF owner, enabled, task, grp, args, subject, submitter,
    priority, queue, timer, zone, starting_deadline ON joex_private.periodic_task
FOR EACH ROW EXECUTE FUNCTION joex_private.periodic_task_changed();

-- Set a periodic task of an owner. enabled null: as it is (true for a new one). Arguments over the limit are refused. Answers set, same (nothing has changed), or
-- not_yours: somebody else owns it, and it is left alone.
CREATE OR REPLACE FUNCTION joex.put_periodic_task(
    id text,
    task text,
    timer text,
    zone text DEFAULT 'UTC',
    args jsonb DEFAULT '{}',
    grp text DEFAULT 'default',
    queue text DEFAULT 'default',
    priority text DEFAULT 'low',
    subject text DEFAULT '',
    submitter text DEFAULT '',
    starting_deadline interval DEFAULT NULL,
    enabled boolean DEFAULT NULL,
    owner text DEFAULT 'user'
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_owner text;
BEGIN
    IF joex_private.is_large(args) THEN
        PERFORM joex_private.check_size('args', args);
    END IF;
    INSERT INTO joex_private.periodic_task AS t (id, task, timer, zone, args, grp, queue, priority, subject, submitter,
                                                 starting_deadline, enabled, owner)
    VALUES (id, task, timer, zone, args, grp, queue, joex_private.priority_of(priority), subject, submitter, starting_deadline,
            coalesce(enabled, true), owner)
    ON CONFLICT ON CONSTRAINT periodic_task_pkey DO UPDATE SET
        task = excluded.task, timer = excluded.timer, zone = excluded.zone, args = excluded.args, grp = excluded.grp,
        queue = excluded.queue, priority = excluded.priority, subject = excluded.subject, submitter = excluded.submitter,
        starting_deadline = excluded.starting_deadline,
        enabled = coalesce(put_periodic_task.enabled, t.enabled)
    WHERE t.owner = excluded.owner
          AND (t.task, t.timer, t.zone, t.args, t.grp, t.queue, t.priority, t.subject, t.submitter, t.starting_deadline,
               t.enabled)
              IS DISTINCT FROM
              (excluded.task, excluded.timer, excluded.zone, excluded.args, excluded.grp, excluded.queue, excluded.priority,
               excluded.subject, excluded.submitter, excluded.starting_deadline,
               coalesce(put_periodic_task.enabled, t.enabled));
    IF FOUND THEN
        RETURN 'set';
    END IF;
    SELECT t.owner INTO v_owner FROM joex_private.periodic_task t WHERE t.id = id;
    RETURN CASE WHEN v_owner = owner THEN 'same' ELSE 'not_yours' END;
END $$;

-- Remove a periodic task; its jobs stay. Answers removed, not_found or not_yours (any: whoever owns it).
CREATE OR REPLACE FUNCTION joex.remove_periodic_task(id text, owner text DEFAULT 'user', any_owner boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    DELETE FROM joex_private.periodic_task t WHERE t.id = id AND (any_owner OR t.owner = owner);
    RETURN CASE WHEN FOUND THEN 'removed'
                WHEN EXISTS (SELECT FROM joex_private.periodic_task t WHERE t.id = id) THEN 'not_yours' ELSE 'not_found' END;
END $$;

-- Enable or disable a periodic task. Answers set, same, not_found or not_yours.
CREATE OR REPLACE FUNCTION joex.enable_periodic_task(
    id text, enabled boolean DEFAULT true, owner text DEFAULT 'user', any_owner boolean DEFAULT false
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_task record;
BEGIN
    SELECT t.owner, t.enabled INTO v_task FROM joex_private.periodic_task t WHERE t.id = id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'not_found';
    ELSIF NOT any_owner AND v_task.owner <> owner THEN
        RETURN 'not_yours';
    ELSIF v_task.enabled = enabled THEN
        RETURN 'same';
    END IF;
    UPDATE joex_private.periodic_task t SET enabled = enabled WHERE t.id = id;
    RETURN 'set';
END $$;

-- Remove the periodic tasks of an owner, all but these. Returns the ids of those removed.
CREATE OR REPLACE FUNCTION joex_private.keep_periodic_tasks(p_owner text, p_ids text[]) RETURNS SETOF text
LANGUAGE sql VOLATILE AS $$
    DELETE FROM joex_private.periodic_task t WHERE t.owner = p_owner AND t.id <> ALL (p_ids) RETURNING t.id $$;

-- The job of a periodic task: null where an earlier one is unfinished. The tracker sees to that, but not alone: to insert beside
-- a job that somebody is finishing in an open transaction would wait for the end of it.
CREATE OR REPLACE FUNCTION joex_private.submit_periodic(p joex_private.periodic_task) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT joex.submit(p.task, p.args, p.grp, p.queue, p.priority::text, CASE p.subject WHEN '' THEN p.id ELSE p.subject END,
                       p.submitter, tracker => 'periodic ' || p.id)
    WHERE NOT EXISTS (SELECT FROM joex_private.job j WHERE j.tracker = 'periodic ' || p.id AND j.finished_at IS NULL) $$;

-- Make the job of a periodic task now, whatever its timer says. Answers submitted (with the job), overlapping (the job before is
-- not finished), not_found, or not_yours (it is Joex's own, and makes no jobs).
CREATE OR REPLACE FUNCTION joex.run_periodic_task(id text) RETURNS TABLE (answer text, job uuid) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_task joex_private.periodic_task;
BEGIN
    SELECT * INTO v_task FROM joex_private.periodic_task t WHERE t.id = id FOR UPDATE;
    IF NOT FOUND THEN
        answer := 'not_found';
    ELSIF v_task.owner = 'joex' THEN
        answer := 'not_yours';
    ELSE
        job := joex_private.submit_periodic(v_task);
        answer := CASE WHEN job IS NULL THEN 'overlapping' ELSE 'submitted' END;
        UPDATE joex_private.periodic_task t SET last_job = coalesce(job, t.last_job) WHERE t.id = id;
    END IF;
    RETURN NEXT;
END $$;

-- Decide about tasks that somebody has read, and found due, or without a time: fires[i] is the time of the timer that is due (null:
-- none is), nexts[i] the next one (null: never again), errors[i] why it can't run. revisions and nextruns: as they were read.
-- Returns what has become of each: submitted, started (it is Joex's own: the caller does it now, and no job is made), overlapping,
-- late (its time was too long ago), set (it has its next time now),
-- refused (it can't run), trouble (it could not be submitted now), or stale (somebody else was faster, or it has changed).
-- Nothing at all is returned, and done, while another call is under way: it may have them all.
CREATE OR REPLACE FUNCTION joex_private.fire_periodic(
    p_worker text, ids text[], revisions bigint[], nextruns timestamptz[], fires timestamptz[], nexts timestamptz[],
    errors text[]
) RETURNS TABLE (id text, outcome text, job uuid) LANGUAGE plpgsql VOLATILE
-- A submission that has to wait for somebody's lock (a trigger's, say) is trouble: meanwhile nobody else could fire.
SET lock_timeout = '20ms' SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_given record;
    v_task joex_private.periodic_task;
BEGIN
    IF NOT pg_try_advisory_xact_lock(joex_private.periodic_lock(), 0) THEN
        RETURN;
    END IF;
    FOR v_given IN SELECT * FROM unnest(ids, revisions, nextruns, fires, nexts, errors)
                       AS g(id, revision, nextrun, fire, next, error) ORDER BY g.id LOOP
        id := v_given.id;
        job := NULL;
        outcome := 'stale';
        -- A row that its owner changes at this moment is passed over: it will have another revision.
        SELECT * INTO v_task FROM joex_private.periodic_task t
        WHERE t.id = v_given.id AND t.revision = v_given.revision AND t.nextrun = coalesce(v_given.nextrun, '-infinity')
              AND t.enabled AND t.error IS NULL FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            -- One row that can't be submitted must not stop the others.
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
                -- What is not about the row's values, or their size, may go away.
                IF left(SQLSTATE, 2) NOT IN ('22', '23', '54') AND SQLSTATE <> 'JX003' THEN
                    outcome := 'trouble';
                END IF;
            END;
            IF outcome = 'trouble' THEN
                RETURN NEXT;
                CONTINUE;
            END IF;
            UPDATE joex_private.periodic_task t SET
                nextrun = CASE outcome WHEN 'refused' THEN '-infinity' ELSE coalesce(v_given.next, 'infinity') END,
                worker = p_worker, marked = clock_timestamp(), error = v_given.error,
                last_run = greatest(t.last_run, coalesce(v_given.fire, CASE outcome WHEN 'late' THEN v_given.nextrun END)),
                last_outcome = CASE WHEN outcome IN ('submitted', 'started', 'overlapping', 'late') THEN outcome ELSE t.last_outcome END,
                last_job = coalesce(job, t.last_job)
            WHERE t.id = v_given.id;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

CREATE OR REPLACE VIEW joex.periodic_tasks AS
SELECT t.id, t.owner, t.enabled, t.task, t.timer, t.zone, t.args, t.grp, t.queue, t.priority, t.subject, t.submitter,
       t.starting_deadline, CASE WHEN isfinite(t.nextrun) THEN t.nextrun END AS nextrun, t.last_run, t.last_outcome, t.last_job,
       j.state AS last_job_state, t.error, t.worker, t.marked, t.created_at, t.changed_at
FROM joex_private.periodic_task t LEFT JOIN joex_private.job j ON j.id = t.last_job;
