-- Who may do what in the database: scopes, which an administrator grants to roles with `joex roles grant`.
--
-- A role has rights on functions and views, never on tables, unless it may see all jobs or runs executors. So the functions of a scope
-- work with the rights of the owner (SECURITY DEFINER). All functions that may meet names of a caller's choice have a search_path of
-- their own, so that a caller's path leads them nowhere.
--
-- An administrator can bound a grant to groups and queues. Functions and views then treat everything else as if it did not exist. They
-- judge by session_user: it stays the same inside of functions with other rights, and SET ROLE does not change it. Views judge by
-- current_user too, with whose rights the query reads: code of a bound role that another session runs (a materialized view, say) sees no
-- more than that role. A function with the owner's rights can't know whose code calls it.

-- The functions of each scope. The scope executor has all functions but those of the owner.
CREATE OR REPLACE FUNCTION joex_private.functions_of_scopes() RETURNS TABLE (scope text, functions text[]) LANGUAGE sql IMMUTABLE AS $$
    VALUES ('view', '{joex.why, joex.attempts, joex.shares, joex.horizon, joex.events_channel, joex.subscribe, joex.unsubscribe,
                      joex.wait_for, joex.wait_no_more, joex_private.bounds, joex_client.find, joex_private.floors_are_on,
                      joex_private.in_both, joex_private.seen_by_floors, joex_client.versions}'::text[]),
           ('payloads', '{joex.log}'),
           ('submit', '{joex.submit, joex.submit_many, joex.cancel, joex.horizon, joex.subscribe, joex.unsubscribe, joex.wait_for,
                        joex.wait_no_more, joex_client.add, joex_client.find, joex_client.versions}'),
           ('work', '{joex.update, joex.finish, joex.horizon, joex_client.accept, joex_client.accept_state, joex_client.arguments,
                      joex_client.goes_round, joex_client.highest_rank, joex_client.run_of, joex_client.watch_for_workers}'),
           ('operate', '{joex.cancel, joex.set_priority, joex.set_args, joex.retry, joex.retry_failed, joex.remove, joex.set_group, joex.set_queue,
                         joex.put_periodic_task, joex.remove_periodic_task, joex.enable_periodic_task, joex.run_periodic_task,
                         joex_client.drain, joex_client.find, joex_client.resubmit, joex_client.set_timeout,
                         joex_client.wake_all}'),
           -- (Executors may note acts, and forget old ones, and write the table in no other way. They grant what takes need, and no more.)
           ('executor', '{joex_private.note_act, joex_private.forget_acts, joex_private.grant_queue}'),
           ('owner', '{joex.set_largest, joex_private.set_scopes, joex_private.secure}') $$;

-- The columns of views and tables that a role sees only with the scope payloads. (Who has a lock id, and may work, can end that run. The
-- record of a run has its error.)
CREATE OR REPLACE FUNCTION joex_private.payloads() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT '{args, result, message, error, progress_message, opts, lock_id, run}'::text[] $$;

-- What each role may do, and where (null: everywhere). The owner may do everything, as an executor may.
CREATE OR REPLACE VIEW joex_private.role_bounds AS
SELECT role, scopes, groups, queues FROM joex_private.role_scope
UNION ALL
SELECT relowner::regrole, '{executor}', NULL, NULL FROM pg_catalog.pg_class WHERE oid = 'joex_private.job'::regclass;

-- Refuse a transaction whose snapshot does not show the latest change of scopes: a role could go on by the scopes that it has lost, in a
-- transaction that it keeps open, or in a new one with a snapshot that any older transaction has exported.
--
-- Changes of scopes exclude each other until they end. So a snapshot that shows the last one as over shows all of them. One that was rolled
-- back is over, too; one that has not ended yet refuses transactions that will have to be repeated if it commits. (On a standby the server
-- does not tell which transactions a snapshot shows as open. There a transaction that begins during the change sees the old scopes until it
-- ends: it writes nothing, and reads what was there before the change.)
CREATE OR REPLACE FUNCTION joex_private.must_see_the_scopes() RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_last CONSTANT xid8 := pg_sequence_last_value('joex_private.scopes_changed_by')::text::xid8;
BEGIN
    IF pg_visible_in_snapshot(v_last, pg_current_snapshot()) IS NOT FALSE THEN     -- (null: nothing has changed)
        RETURN;
    END IF;
    BEGIN
        PERFORM pg_xact_status(v_last);
    EXCEPTION WHEN invalid_parameter_value THEN
        RETURN;     -- No transaction has this id yet: a dump was restored, and the change was made on another server.
    END;
    RAISE EXCEPTION 'scopes of roles have changed since the snapshot of this transaction: begin a new transaction'
        USING ERRCODE = 'serialization_failure';
END $$;

-- Where the role of this session may do what one of these scopes allows: a row for each of its grants; null: in all groups, or all queues.
-- Of the roles that it is a member of, those count whose rights it has, or gets by SET ROLE.
-- No row for a session without a client: autovacuum evaluates the indexes of a bound role's tables as the superuser.
-- (This, and is_client, read no table of the catalogue, as role_bounds does: any role that can connect may keep all others from one.)
CREATE OR REPLACE FUNCTION joex_private.bounds(p_scopes text[]) RETURNS TABLE (groups text[], queues text[])
LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
    IF joex_private.is_client() THEN
        IF NOT joex_private.sees_the_latest() THEN
            PERFORM joex_private.must_see_the_scopes();
        END IF;
        RETURN QUERY SELECT r.groups, r.queues FROM joex_private.role_scope r
        WHERE (r.scopes && p_scopes OR 'executor' = ANY (r.scopes)) AND pg_has_role(session_user, r.role, 'USAGE, SET')
        -- (The owner, with whose rights this is executed.)
        UNION ALL SELECT NULL, NULL WHERE pg_has_role(session_user, current_user, 'USAGE, SET');
    END IF;
END $$;

-- What is in both of two bounds; null: everything.
CREATE OR REPLACE FUNCTION joex_private.in_both(p_one text[], p_other text[]) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_one IS NULL THEN p_other WHEN p_other IS NULL THEN p_one
                ELSE ARRAY(SELECT pg_catalog.unnest(p_one) INTERSECT SELECT pg_catalog.unnest(p_other)) END $$;

-- Where the views of users show rows: where the role of this session and the current role may both see them. (No function with the owner's
-- rights can know the current role of its caller. One that is told the role would tell its caller what that role is bound to. A
-- view knows it, and reads the grants with its owner's rights. The views name it in a WITH of their own: inside of their condition the
-- planner would expect its cost for each row, and so choose other plans, and JIT.)
CREATE OR REPLACE VIEW joex_private.bounds_of_reader AS
SELECT joex_private.in_both(s.groups, r.groups) AS groups, joex_private.in_both(s.queues, r.queues) AS queues
FROM joex_private.bounds('{view}') s, (
    SELECT NULL::text[] AS groups, NULL::text[] AS queues WHERE current_user = session_user
    UNION ALL
    SELECT groups, queues FROM joex_private.role_bounds
    WHERE current_user <> session_user AND scopes && '{view, executor}' AND pg_has_role(current_user, role, 'USAGE, SET')) r;

-- Where the role of this session may operate, for statements that look at many rows.
CREATE OR REPLACE VIEW joex_private.bounds_of_operator AS
SELECT b.groups, b.queues FROM joex_private.bounds('{operate}') b
WHERE (SELECT pg_sequence_last_value('joex_private.roles_bound') IS DISTINCT FROM 1)
UNION ALL SELECT NULL, NULL WHERE pg_sequence_last_value('joex_private.roles_bound') = 1;

-- Whether a client has sent the statement that runs. (A client that is connected by TCP has an address; to look up what kind of session
-- this is costs more. The server tells that to the owner of the session, or with the rights of pg_read_all_stats. Where it does not tell,
-- autovacuum is known by its superuser; a superuser who is connected by a socket is then refused too.
-- is_superuser belongs to the session, or to its SET ROLE: functions do not change it.)
CREATE OR REPLACE FUNCTION joex_private.is_client() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN inet_client_addr() IS NOT NULL
           OR (SELECT coalesce(a.backend_type = 'client backend', current_setting('is_superuser') = 'off')
               FROM pg_stat_get_activity(pg_backend_pid()) a);
END $$;

-- This text; or an error, if a caller has given it a collation that other roles may have made. A function compares its texts by the
-- collation of its call, and one that a role makes for itself may take the names of two tenants for equal. (A name without a schema is
-- one of pg_catalog, on the path of the functions of scopes.)
CREATE OR REPLACE FUNCTION joex_private.exact(p_text text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF pg_collation_for(p_text) <> '"default"' AND cardinality(parse_ident(pg_collation_for(p_text))) > 1 THEN
        RAISE EXCEPTION 'collation: expected one of pg_catalog, because others may take different names for equal; got %',
            pg_collation_for(p_text) USING ERRCODE = '22023', HINT = 'Write COLLATE "default" after the argument.';
    END IF;
    RETURN p_text;
END $$;

-- Whether the role of this session may do what one of these scopes allows, in this queue and group (null: in all).
CREATE OR REPLACE FUNCTION joex_private.may(p_scopes text[], p_queue text, p_grp text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    -- (All texts of a call have one collation. Where no role is bound, too, because the caller compares names by it. Most calls, such as
    -- submissions, have the default one, and pay for no call of another function.)
    IF pg_collation_for(p_queue) <> '"default"' THEN
        PERFORM joex_private.exact(p_queue);
    END IF;
    IF pg_sequence_last_value('joex_private.roles_bound') = 1 THEN
        RETURN true;
    END IF;
    RETURN EXISTS (
        SELECT FROM joex_private.bounds(p_scopes) b
        WHERE (b.groups IS NULL OR p_grp = ANY (b.groups)) AND (b.queues IS NULL OR p_queue = ANY (b.queues)));
END $$;

-- True; or an error, if it may not.
CREATE OR REPLACE FUNCTION joex_private.must_be_allowed(p_scopes text[], p_queue text, p_grp text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_known text;
BEGIN
    IF joex_private.may(p_scopes, p_queue, p_grp) THEN
        RETURN true;
    ELSIF NOT joex_private.is_client() THEN
        RAISE EXCEPTION 'a role is bound to groups or queues, so Joex serves clients alone, and no background process of the server'
            USING ERRCODE = 'insufficient_privilege';
    ELSIF p_queue IS NULL THEN
        RAISE EXCEPTION 'the role % is bound to groups or queues, and this concerns all: an administrator may do it', session_user
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT string_agg(format('groups %s in queues %s', coalesce(b.groups::text, '(all)'), coalesce(b.queues::text, '(all)')), '; ')
    INTO v_known FROM joex_private.bounds(p_scopes) b;
    RAISE EXCEPTION 'group, queue: the role % may not use group % in queue %; it may use %',
        session_user, coalesce(quote_literal(p_grp), '(all)'), quote_literal(p_queue), coalesce(v_known, 'none') USING ERRCODE = 'insufficient_privilege';
END $$;

-- Refuse the id of a keyed job (p_key), which is unique within a type, whatever the group, unless it begins with what the role
-- of this session is bound to: the group; or the queue, where it is bound to queues alone. Else one tenant could take the id of another,
-- and learn that it exists. A slash follows, and no other one: ids that begin with acme/eu/ are those of a group acme/eu. (HTTP has
-- the same rule: core/access.py.) p_tracker: trackers are unique in a group, so the rule is for roles that may use it in some queues alone.
CREATE OR REPLACE FUNCTION joex_private.must_be_own_id(
    p_scopes text[], p_queue text, p_grp text, p_key bytea DEFAULT NULL, p_tracker text DEFAULT NULL
) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_own text := CASE WHEN joex_private.may(p_scopes, p_queue, NULL) THEN p_queue ELSE p_grp END;
    v_start bytea := convert_to(v_own, 'UTF8');
    v_length integer := octet_length(v_start);
    v_id bytea := convert_to(p_tracker, 'UTF8');
BEGIN
    IF joex_private.may(p_scopes, NULL, NULL)
       OR p_tracker IS NOT NULL AND (joex_private.may(p_scopes, NULL, p_grp) OR NOT joex_private.may(p_scopes, p_queue, NULL))
       -- (The tuple layer: a text is 02, its bytes, and 00; a tuple begins with 05. 00 FF is a null byte of a text.)
       OR substr(p_key, 1, v_length + 3) = '\x0502' || v_start || '\x00' AND substr(p_key, v_length + 4, 1) <> '\xff' THEN
        RETURN;
    ELSIF substr(p_key, 1, 1) = '\x02' THEN
        v_id := substr(p_key, 2);
    END IF;
    IF substr(v_id, 1, v_length + 1) = v_start || '\x2f' AND position('\x2f'::bytea IN substr(v_id, v_length + 2)) = 0 THEN
        RETURN;
    END IF;
    RAISE EXCEPTION '%: all % share these names: with the role %, give it as %, where NAME has no slash',
        CASE WHEN p_tracker IS NULL THEN 'id' ELSE 'tracker' END, CASE WHEN p_tracker IS NULL THEN 'groups' ELSE 'queues' END,
        session_user, to_json(v_own || '/NAME') USING ERRCODE = 'insufficient_privilege';
END $$;

-- The id of a job that the role of this session may touch with one of these scopes; null: there is none for it. (It judges where there is
-- no job too: to judge takes longer than all else, so the time of an answer would tell a bound role that others have a job.)
CREATE OR REPLACE FUNCTION joex_private.visible(p_scopes text[], p_id uuid) RETURNS uuid
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    v_job record;
BEGIN
    IF pg_sequence_last_value('joex_private.roles_bound') = 1 THEN
        RETURN p_id;
    END IF;
    SELECT j.id, j.queue, j.grp INTO v_job FROM joex_private.job j WHERE j.id = p_id;
    RETURN CASE WHEN joex_private.may(p_scopes, coalesce(v_job.queue, ''), coalesce(v_job.grp, '')) THEN v_job.id END;
END $$;

-- Grant these scopes to a role, in these groups and queues (null: in all), instead of those that it has. No scopes: revoke all.
-- Returns the objects whose rights the role has still, or lacks, because another transaction has written them (see settle_rights): then the
-- caller repeats this, p_again. What functions and views judge by is new as soon as this commits, whatever others hold.
CREATE OR REPLACE FUNCTION joex_private.set_scopes(
    p_role text, p_scopes text[], p_groups text[] DEFAULT NULL, p_queues text[] DEFAULT NULL, p_again boolean DEFAULT false
) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_role CONSTANT regrole := (SELECT r.oid FROM pg_roles r WHERE r.rolname = p_role);
    v_before joex_private.role_scope;
    v_held text[];
BEGIN
    PERFORM joex_private.must_see_the_latest('joex_private.set_scopes');
    -- (Of two grants at a time the second one sees what the first one has done.)
    LOCK TABLE joex_private.role_scope IN SHARE ROW EXCLUSIVE MODE;
    IF p_scopes = '{}' AND EXISTS (SELECT FROM joex_private.role_scope s WHERE v_role IS NULL AND pg_get_userbyid(s.role) = p_role) THEN
        PERFORM joex_private.forget_dropped_roles();    -- (pg_get_userbyid, and so the list of roles, names it "unknown (OID=...)")
        RETURN '{}';
    ELSIF v_role IS NULL THEN
        RAISE EXCEPTION 'role: this server has no role %', quote_ident(p_role) USING ERRCODE = '22023';
    ELSIF v_role = (SELECT c.relowner FROM pg_class c WHERE c.oid = 'joex_private.job'::regclass) THEN
        RAISE EXCEPTION 'role: % owns the schema, and may do everything', quote_ident(p_role) USING ERRCODE = '22023';
    ELSIF EXISTS (SELECT FROM unnest(p_scopes) s(name) WHERE s.name NOT IN ('view', 'payloads', 'submit', 'work', 'operate', 'executor')) THEN
        RAISE EXCEPTION 'scope: expected view, payloads, submit, work, operate or executor; got %', array_to_string(p_scopes, ', ')
            USING ERRCODE = '22023';
    ELSIF 'executor' = ANY (p_scopes) AND num_nonnulls(p_groups, p_queues) > 0 THEN
        RAISE EXCEPTION 'scope: an executor runs the jobs of all groups: grant this scope without groups and queues' USING ERRCODE = '22023';
    END IF;
    IF NOT p_again THEN     -- (else the scopes stay as they are, and a role that keeps rights would have others refused each time)
        PERFORM setval('joex_private.scopes_changed_by', pg_current_xact_id()::text::bigint);
    END IF;
    DELETE FROM joex_private.role_scope s WHERE s.role = v_role RETURNING s.* INTO v_before;
    INSERT INTO joex_private.role_scope (role, scopes, groups, queues)
    SELECT v_role, p_scopes, p_groups, p_queues WHERE p_scopes <> '{}';
    IF NOT p_again THEN
        PERFORM joex_private.note_act('set_scopes', p_role, p_detail => jsonb_build_object(
            'scopes', p_scopes, 'groups', p_groups, 'queues', p_queues));
    ELSIF coalesce(v_before.scopes, '{}') NOT IN (p_scopes, array_remove(p_scopes, 'view'))
          OR (v_before.groups, v_before.queues) IS DISTINCT FROM (p_groups, p_queues) THEN
        RAISE EXCEPTION 'role: another command has set the scopes of % meanwhile', quote_ident(p_role) USING ERRCODE = '22023';
    END IF;
    PERFORM joex_private.secure(p_grants => false);     -- (a dump without rights was restored, say)
    v_held := joex_private.settle_rights(ARRAY[v_role], p_scopes, num_nonnulls(p_groups, p_queues) = 0);
    PERFORM joex_private.grants_changed(joex_private.hears_events(v_before) AND NOT EXISTS (
        SELECT FROM joex_private.role_scope s WHERE s.role = v_role AND joex_private.hears_events(s)));
    RETURN v_held;
END $$;

-- Whether a role with this grant learns the name of the channel of events.
CREATE OR REPLACE FUNCTION joex_private.hears_events(p joex_private.role_scope) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p.scopes && '{view, executor}' AND num_nonnulls(p.groups, p.queues) = 0 $$;

-- Note that grants have changed. p_lost: a role that knows the channel of events may hear them no longer, so the channel gets another name.
-- (Those that listen hear of it on the old one. They ask for the new name, and only those that may hear events get it.)
CREATE OR REPLACE FUNCTION joex_private.grants_changed(p_lost boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF p_lost THEN
        PERFORM joex_private.send(d.events_channel, '{"event": "channel-changed"}') FROM joex_private.this_database d;
        UPDATE joex_private.this_database SET events_channel = DEFAULT;
    END IF;
END $$;

-- Forget the grants of roles that were dropped.
CREATE OR REPLACE FUNCTION joex_private.forget_dropped_roles() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_heard boolean[];
BEGIN
    IF NOT EXISTS (SELECT FROM joex_private.role_scope s WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.role)) THEN
        RETURN;
    END IF;
    LOCK TABLE joex_private.role_scope IN SHARE ROW EXCLUSIVE MODE;     -- (as in set_scopes)
    PERFORM setval('joex_private.scopes_changed_by', pg_current_xact_id()::text::bigint);
    WITH forgotten AS (
        DELETE FROM joex_private.role_scope s WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.role) RETURNING s)
    SELECT array_agg(joex_private.hears_events(f.s)) INTO v_heard FROM forgotten f;
    PERFORM joex_private.grants_changed(true = ANY (v_heard));
END $$;

-- The tables that no scope reads but that of executors. (A subscription belongs to whoever knows its name.)
CREATE OR REPLACE FUNCTION joex_private.secret_tables() RETURNS SETOF regclass LANGUAGE sql STABLE AS $$
    SELECT c.oid::regclass FROM pg_catalog.pg_class c WHERE c.relnamespace = 'joex_private'::regnamespace
           AND c.relname IN ('this_database', 'role_scope', 'role_bounds', 'api_token', 'subscriber', 'subscription') $$;

-- (Not by regnamespace, whose text has quotes where the session sets quote_all_identifiers.)
CREATE OR REPLACE FUNCTION joex_private.name_of(p_function pg_catalog.pg_proc) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT n.nspname || '.' || p_function.proname FROM pg_catalog.pg_namespace n WHERE n.oid = p_function.pronamespace $$;

-- After each migration: take all functions from PUBLIC, give those of scopes the owner's rights, pin the search_path, and give
-- each role exactly what its scopes need in this version. (CREATE OR REPLACE forgets rights and path, so this always belongs to the same transaction. A function
-- in SQL gets no path here, unless it has the owner's rights, because a path would keep the planner from merging it. Where a view or
-- a statement of Joex calls it, with the path of a session, it names the schema of each function, or sets the path itself.)
-- Nor have the functions that only others call, on the way of each job: these have the path of their caller.
-- Inside of the functions of scopes the server sends the caller no messages below NOTICE: by debug_print_plan and trace_notify, which any
-- role may set, these have the values that a function works with, such as the group of a job of others, and the channel of events.
CREATE OR REPLACE FUNCTION joex_private.secure(p_grants boolean DEFAULT true) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_function record;
    v_relation record;
    v_held text[];
    v_inner CONSTANT text[] := '{allowed, announce, announce_ends, announce_short, choose, count_turns, draw, exact, free_ring, give_back_turns,
        hand_out, has_runnable, hold_ring, in_turns, is_awaited, is_client, is_heard, may, must_be_allowed, must_be_own_id, must_be_shallow,
        must_see_submissions, must_see_the_latest, promote, promote_in_turn, publish_plan, refuse_without_key, room, sees_the_limits, send,
        must_be_accepted, must_have_room, one_each, take_in_turn, try_mutex, visible, wait_for_ring, wake}';
    v_scoped CONSTANT text[] := ARRAY(SELECT unnest(s.functions) FROM joex_private.functions_of_scopes() s WHERE s.scope <> 'owner');
BEGIN
    -- (A function that is as it should be stays untouched: a statement that changes it waits for others that do so.)
    FOR v_function IN
        SELECT f.name, has_function_privilege('public', f.oid, 'EXECUTE') AS is_open, f.is_scoped AND NOT f.prosecdef AS lacks_rights,
               (f.is_scoped OR f.lanname = 'plpgsql' AND f.proname <> ALL (v_inner))
                   AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (f.proconfig), false) AS lacks_path,
               f.is_scoped AND NOT coalesce('client_min_messages=notice' = ANY (f.proconfig), false) AS is_chatty
        FROM (SELECT p.oid, p.oid::regprocedure AS name, p.proname, l.lanname, p.prosecdef, p.proconfig,
                     joex_private.name_of(p) = ANY (v_scoped) AND p.provolatile <> 'i' AS is_scoped
              FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
              WHERE p.pronamespace IN ('joex'::regnamespace, 'joex_client'::regnamespace, 'joex_private'::regnamespace)) f LOOP
        IF v_function.is_open THEN
            EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_function.name);
        END IF;
        IF v_function.lacks_path THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', v_function.name);
        END IF;
        IF v_function.lacks_rights THEN
            EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER', v_function.name);
        END IF;
        IF v_function.is_chatty THEN
            EXECUTE format('ALTER FUNCTION %s SET client_min_messages = notice', v_function.name);
        END IF;
    END LOOP;
    -- (Default privileges of the database may open what is new.)
    FOR v_relation IN
        SELECT o.name, o.kind FROM joex_private.objects() o
        WHERE o.kind <> 'FUNCTION' AND o.col IS NULL AND EXISTS (SELECT FROM aclexplode(o.acl) a WHERE a.grantee = 0) LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM PUBLIC', v_relation.kind, v_relation.name);
    END LOOP;
    -- (A column of another role's table that has the type of our rows keeps each migration from adding a column with a default. One with a
    -- domain of ours keeps migrations from giving the domain a constraint that its values do not meet, or while its table is locked. So no
    -- view that users read has columns of these types.)
    FOR v_relation IN
        SELECT t.oid::regtype AS name FROM pg_type t
        WHERE t.typnamespace = 'joex_private'::regnamespace AND t.typtype IN ('c', 'd', 'e') AND has_type_privilege('public', t.oid, 'USAGE') LOOP
        EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', v_relation.name);
    END LOOP;
    PERFORM joex_private.forget_dropped_roles();
    IF p_grants THEN
        LOCK TABLE joex_private.role_scope IN SHARE ROW EXCLUSIVE MODE;     -- (as in set_scopes)
        -- (All roles with the same scopes in one statement for each object: it writes the rights of all others there again.)
        SELECT array_agg(h.name) INTO v_held
        FROM (SELECT array_agg(s.role) AS roles, s.scopes, num_nonnulls(s.groups, s.queues) = 0 AS is_all
              FROM joex_private.role_scope s GROUP BY 2, 3) a,
             unnest(joex_private.settle_rights(a.roles, a.scopes, a.is_all)) h(name);
        IF v_held IS NOT NULL THEN
            RAISE EXCEPTION 'another transaction has written the rights on %', v_held[1] USING ERRCODE = 'lock_not_available';
        END IF;
    END IF;
END $$;
