-- The rights that the server gives to roles, as their scopes need them (see 15_access.sql).
--
-- Whoever has any right on an object may GRANT or REVOKE it, to no effect: the server grants nothing, and writes the object's row of the
-- catalogue all the same. Until that transaction ends, every other grant on the object waits, and fails if it commits. So Joex waits for
-- a moment, for each object by itself, and touches none whose rights are as they should be.

-- What roles may have rights on, with the rights that are granted. col: a column of a table or view.
CREATE OR REPLACE FUNCTION joex_private.objects() RETURNS TABLE (
    kind text, name text, short text, col text, acl aclitem[], owner oid, oid oid, volatility "char"
) LANGUAGE sql STABLE AS $$
    SELECT 'SCHEMA', quote_ident(n.nspname), n.nspname::text, NULL, n.nspacl, n.nspowner, n.oid, NULL
    FROM pg_catalog.pg_namespace n WHERE n.nspname IN ('joex', 'joex_client', 'joex_private')
    UNION ALL
    SELECT 'FUNCTION', f.oid::regprocedure::text, joex_private.name_of(f), NULL, f.proacl, f.proowner, f.oid,
           CASE WHEN f.prorettype <> 'trigger'::regtype THEN f.provolatile END
    FROM pg_catalog.pg_proc f WHERE f.pronamespace IN ('joex'::regnamespace, 'joex_client'::regnamespace, 'joex_private'::regnamespace)
    UNION ALL
    SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass::text, n.nspname || '.' || c.relname,
           a.attname, CASE WHEN a.attname IS NULL THEN c.relacl ELSE a.attacl END, c.relowner, c.oid, NULL
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL (
        SELECT NULL::name AS attname, NULL::aclitem[] AS attacl
        UNION ALL
        SELECT t.attname, t.attacl FROM pg_catalog.pg_attribute t
        WHERE t.attrelid = c.oid AND t.attnum > 0 AND NOT t.attisdropped AND c.relkind <> 'S') a
    WHERE n.nspname IN ('joex', 'joex_client', 'joex_private') AND c.relkind IN ('r', 'v', 'S') $$;

-- The rights that a role with these scopes needs. p_all: in all groups and queues.
CREATE OR REPLACE FUNCTION joex_private.rights_of(p_scopes text[], p_all boolean) RETURNS TABLE (
    kind text, name text, col text, privilege text
) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_executes CONSTANT boolean := 'executor' = ANY (p_scopes);
    v_views CONSTANT boolean := 'view' = ANY (p_scopes);
    v_mine CONSTANT text[] := ARRAY(SELECT unnest(s.functions) FROM joex_private.functions_of_scopes() s WHERE s.scope = ANY (p_scopes));
    v_scoped CONSTANT text[] := ARRAY(SELECT unnest(s.functions) FROM joex_private.functions_of_scopes() s);
    v_of_owner CONSTANT text[] := ARRAY(
        SELECT unnest(s.functions) FROM joex_private.functions_of_scopes() s WHERE s.scope = 'owner');
BEGIN
    RETURN QUERY
    SELECT o.kind, o.name, o.col, r.privilege
    FROM joex_private.objects() o CROSS JOIN LATERAL unnest(CASE
        -- (Whoever may use a schema can keep all others from a table in it, without a right on the table: for CREATE TRIGGER the server waits
        -- for a lock on the table, and judges the right afterwards. So what clients call by its name is in schemas without tables.)
        WHEN o.kind = 'SCHEMA' AND p_scopes <> '{}' AND (o.short <> 'joex_private' OR v_executes OR p_all AND v_views) THEN '{USAGE}'::text[]
        WHEN o.kind = 'FUNCTION' AND o.volatility IS NOT NULL AND (
            o.short = ANY (v_mine) OR v_executes AND o.short <> ALL (v_of_owner)
            -- (What Joex's own lists call.)
            OR p_all AND v_views AND (o.volatility <> 'v' OR o.short = 'joex_private.floor_epoch') AND o.short <> ALL (v_scoped))
            THEN '{EXECUTE}'
        WHEN o.kind = 'SEQUENCE' AND v_executes AND o.short NOT IN ('joex_private.roles_bound', 'joex_private.scopes_changed_by')
            THEN '{SELECT, USAGE, UPDATE}'
        WHEN o.kind = 'SEQUENCE' AND (v_executes OR v_views AND p_all) THEN '{SELECT}'
        WHEN o.kind = 'TABLE' AND o.col IS NULL AND v_executes THEN CASE
            -- (What only the owner writes.)
            WHEN o.short IN ('joex_private.this_database', 'joex_private.role_scope', 'joex_private.migration', 'joex_private.api_token',
                             'joex_private.act', 'joex_private.size_limit') THEN '{SELECT}'::text[]
            WHEN o.short = 'joex_private.queue' THEN '{SELECT, INSERT}'     -- (else it could lead takes to any sequence)
            ELSE '{SELECT, INSERT, UPDATE, DELETE}' END
        WHEN o.col IS NOT NULL THEN ARRAY(
            SELECT 'UPDATE' WHERE v_executes AND (o.short, o.col) = ('joex_private.api_token', 'last_used_at')
            UNION ALL
            SELECT 'SELECT' WHERE v_views AND (p_all OR o.short LIKE 'joex.%') AND o.oid NOT IN (SELECT joex_private.secret_tables())
                                  AND (o.short, o.col) <> ('joex_private.watch', 'name')
                                  AND ('payloads' = ANY (p_scopes) OR o.col <> ALL (joex_private.payloads())))
        END) r(privilege);
END $$;

-- The statements that take from these roles the rights that their scopes don't need (p_surplus), or grant those that they lack; one for each
-- object, but for sequences, on which no bound role has a right.
CREATE OR REPLACE FUNCTION joex_private.changes_of_rights(p_roles regrole[], p_scopes text[], p_all boolean, p_surplus boolean)
RETURNS TABLE (statement text, kind text, names text[]) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH needed AS MATERIALIZED (
        SELECT n.kind, n.name, coalesce(n.col, '') AS col, n.privilege, r.role
        FROM joex_private.rights_of(p_scopes, p_all) n, unnest(p_roles) r(role)
    ), has AS MATERIALIZED (
        SELECT o.kind, o.name, coalesce(o.col, '') AS col, a.privilege_type AS privilege, r.role, a.is_grantable
        FROM joex_private.objects() o, aclexplode(o.acl) a JOIN unnest(p_roles) r(role) ON r.role = a.grantee
        WHERE a.grantor = o.owner
    ), changed AS (
        SELECT h.kind, h.name, h.col, h.privilege, h.role FROM has h WHERE p_surplus AND h.is_grantable
        UNION
        (SELECT h.kind, h.name, h.col, h.privilege, h.role FROM has h WHERE p_surplus
         EXCEPT SELECT n.kind, n.name, n.col, n.privilege, n.role FROM needed n)
        UNION
        (SELECT n.kind, n.name, n.col, n.privilege, n.role FROM needed n WHERE NOT p_surplus
         EXCEPT SELECT h.kind, h.name, h.col, h.privilege, h.role FROM has h)
    ), one AS (
        SELECT c.kind, c.name, c.role, string_agg(c.privilege || CASE WHEN c.col <> '' THEN format(' (%I)', c.col) ELSE '' END, ', '
                                                  ORDER BY c.col, c.privilege) AS privileges
        FROM changed c GROUP BY c.kind, c.name, c.role)
    -- (CASCADE: what the role has granted to others, if somebody has given it the right to.)
    SELECT format(CASE WHEN p_surplus THEN 'REVOKE %s ON %s %s FROM %s CASCADE' ELSE 'GRANT %s ON %s %s TO %s' END,
                  o.privileges, o.kind, string_agg(DISTINCT o.name, ', '), string_agg(DISTINCT o.role::text, ', ')),
           o.kind, array_agg(DISTINCT o.name)
    FROM one o GROUP BY o.kind, o.privileges, CASE WHEN o.kind <> 'SEQUENCE' THEN o.name ELSE o.role::text END;
END $$;

-- Execute a statement that changes rights. False: another transaction has written them, and has not ended, or has just committed.
CREATE OR REPLACE FUNCTION joex_private.try_to_change_rights(p_statement text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    EXECUTE p_statement;
    RETURN true;
EXCEPTION WHEN lock_not_available OR internal_error THEN
    IF SQLSTATE = 'XX000' AND SQLERRM NOT LIKE 'tuple concurrently %' THEN
        RAISE;
    END IF;
    RETURN false;
END $$;

-- Give roles that have the same scopes, in all groups and queues or not, exactly the rights that these need. Returns the objects whose rights
-- another transaction has written. Nothing is granted before all is revoked. What a role keeps meanwhile is of no use to it,
-- where functions and views judge by its scopes. They do not where it may use a table of joex_private itself. Columns with payloads are another exception, for which no
-- view judges: then the role has no scope view either, until its scopes are set again. (After ten such objects this tries no more: the scopes
-- are new only when this ends.)
-- roles_bound is set with the first bound role, and where a role keeps rights: else functions would not judge. It stays as it is when the
-- last bound role is revoked: the server judges the right to execute once, when a statement begins. So an open cursor or a long statement
-- of that role still calls Joex's functions, which would take it for an unbound one.
CREATE OR REPLACE FUNCTION joex_private.settle_rights(p_roles regrole[], p_scopes text[], p_all boolean) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' AS $$
DECLARE
    v_is_surplus boolean;
    v_change record;
    v_is_done boolean;
    v_held text[] := '{}';
    v_keeps_columns boolean := false;
BEGIN
    IF NOT p_all THEN
        PERFORM setval('joex_private.roles_bound', 2);
    END IF;
    FOREACH v_is_surplus IN ARRAY '{true, false}'::boolean[] LOOP
        FOR v_change IN SELECT * FROM joex_private.changes_of_rights(p_roles, p_scopes, p_all, v_is_surplus) LOOP
            v_is_done := false;
            IF cardinality(v_held) < 10 THEN
                v_is_done := joex_private.try_to_change_rights(v_change.statement);
            END IF;
            IF NOT v_is_done THEN
                v_held := v_held || v_change.names;
                v_keeps_columns := v_keeps_columns OR v_is_surplus AND v_change.kind = 'TABLE';
            END IF;
        END LOOP;
        EXIT WHEN v_held <> '{}';
    END LOOP;
    IF v_is_surplus AND v_held <> '{}' THEN
        PERFORM setval('joex_private.roles_bound', 2);
        UPDATE joex_private.role_scope s SET scopes = array_remove(s.scopes, 'view')
        WHERE v_keeps_columns AND s.role = ANY (p_roles) AND 'view' = ANY (s.scopes) AND 'payloads' <> ALL (s.scopes);
    END IF;
    RETURN v_held;
END $$;
