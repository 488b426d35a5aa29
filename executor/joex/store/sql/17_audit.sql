-- The audit: who has changed what, and when. Functions that steer write it in their own transaction, so an act is there if and only if it
-- was done. It has no arguments of jobs. (Submissions, runs and resubmissions are not acts: the jobs themselves tell of them.)

-- Note an act. The setting joex.caller names on whose behalf the session acts: the HTTP interface sets it to the name of the token.
CREATE OR REPLACE FUNCTION joex_private.note_act(
    p_act text, p_subject text, p_queue text DEFAULT NULL, p_grp text DEFAULT NULL, p_detail jsonb DEFAULT NULL
) RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO joex_private.act (act, subject, queue, grp, detail, caller)
    VALUES (p_act, p_subject, p_queue, p_grp, p_detail, nullif(left(current_setting('joex.caller', true), 254), ''))
    RETURNING joex_private.must_be_shallow(xmin) $$;

-- What was done to jobs, groups, periodic tasks, executors, roles and tokens, for 90 days.
CREATE OR REPLACE VIEW joex.audit WITH (security_barrier) AS
WITH bounds AS MATERIALIZED (TABLE joex_private.bounds_of_reader)
SELECT a.nr,       -- bigint: grows with each act
       a.at,       -- timestamptz
       a.role,     -- text: the role of the database that did it
       a.caller,   -- text: on whose behalf, as that role says: for the HTTP interface, the name of the token
       a.act,      -- text: cancel, retry, remove, set_priority, set_args, retry_failed, set_group, set_queue, drain and so on
       a.subject,  -- text: the id of the job, the name of the group, the app-id and so on
       a.queue,    -- text: null: it concerns all queues
       a.grp,      -- text: the group; null: it concerns all groups
       a.detail    -- jsonb: the new values
FROM joex_private.act a
WHERE (SELECT b.is_called AND b.last_value = 1 FROM joex_private.roles_bound b) OR EXISTS (
    SELECT FROM bounds b
    WHERE (b.groups IS NULL OR a.grp = ANY (b.groups)) AND (b.queues IS NULL OR a.queue = ANY (b.queues)));

-- Forget a batch of the acts that are older than that, and than thirty days: so long no executor can hide what was done. Returns when the
-- last one of the batch was done; null: there are no more. Call it until then, each time in a transaction of its own, from that time on (an
-- old snapshot keeps the entries of all those deleted before).
CREATE OR REPLACE FUNCTION joex_private.forget_acts(p_age interval, p_acts integer DEFAULT 1000, p_since timestamptz DEFAULT '-infinity')
RETURNS timestamptz LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_before timestamptz;
    v_tids tid[];
    v_upto timestamptz;
BEGIN
    p_age := joex_private.in_seconds(p_age);
    v_before := clock_timestamp() - greatest(p_age, interval '30 days');
    SELECT array_agg(f.ctid), max(f.at) INTO v_tids, v_upto FROM (
        SELECT a.ctid, a.at FROM joex_private.act a WHERE a.at >= p_since AND a.at < v_before
        ORDER BY a.at LIMIT p_acts FOR UPDATE SKIP LOCKED) f;
    DELETE FROM joex_private.act a WHERE a.ctid = ANY (v_tids);
    RETURN v_upto;
END $$;
