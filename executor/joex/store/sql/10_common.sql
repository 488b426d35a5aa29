-- Objects that the other files share. A migration installs the files in the order of their names.
--
-- The schema joex has the documented functions and views, joex_private all others. The comment above an object of joex is its
-- documentation: scripts/generate_sql_reference.py makes a page of these comments.

-- Locks. Any role that can connect can hold any advisory lock, so where sessions must exclude each other they lock rows: that of the
-- executor (see hand_out), that of an app-id (lock_app_id), or one that is there for nothing else (try_mutex). A transaction that waits
-- for several acquires them in this order: app-id, executor, lease.
--
-- Two locks are advisory, since they are held beyond a transaction, or not until its end. They exclude nobody for long. Their first
-- keys are "joex" in ASCII, plus a number, so that they do not collide with locks of other programs.
--
-- Intervals. In a comparison a month has 30 days, and a day 24 hours; in a sum with a time they are those of the calendar. So an interval
-- of less than an hour may last for thousands of years: months one way, days the other. Each function counts the interval that it is
-- given in seconds (a year: 365.25 days) before it does anything else with it.
CREATE OR REPLACE FUNCTION joex_private.in_seconds(p_interval interval) RETURNS interval
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    -- (At most 3,168 years: a sum with the time of day is in the calendar. PostgreSQL 16 turns very many seconds into a negative interval,
    -- later versions raise an error that names no argument.)
    SELECT make_interval(secs => greatest(least(extract(epoch FROM p_interval), 1e11), -1e11)) $$;

-- An executor is alive: its session holds this lock on its id.
CREATE OR REPLACE FUNCTION joex_private.executor_alive_lock() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 1785685001';

-- A take chooses jobs on the ring of a queue.
CREATE OR REPLACE FUNCTION joex_private.ring_lock() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 1785685003';

-- Whether the role of the session with this process id may call a function of Joex, by itself or as a role that it may become.
CREATE OR REPLACE FUNCTION joex_private.may_call(p_pid integer, p_function regproc) RETURNS boolean LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM pg_stat_get_activity(p_pid) a JOIN pg_roles r ON pg_has_role(a.usesysid, r.oid, 'USAGE, SET')
        WHERE p_pid IS NOT NULL AND has_function_privilege(r.oid, p_function::oid, 'EXECUTE')) $$;

-- Keep other transactions, until this one ends, from firing periodic tasks ('periodic'), from raising or switching floors ('floors'),
-- from moving the mark of sleepers ('sleepers'), or from taking from a group with a limit ('limit'). False: another one does that. It never waits.
CREATE OR REPLACE FUNCTION joex_private.try_mutex(p_purpose text, p_queue text DEFAULT '', p_ring bigint DEFAULT 0) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM FROM joex_private.mutex m WHERE m.purpose = p_purpose AND m.queue = p_queue AND m.ring = p_ring FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION joex_private.lane(priority joex_private.job_priority) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT CASE priority WHEN 'high' THEN 1::smallint ELSE 2::smallint END $$;

-- The most bytes that arguments ('args') or a result ('result') may have, both as jsonb and as the text that clients get. Free fields
-- ('opts') have the limit of arguments.
CREATE OR REPLACE FUNCTION joex_private.largest(p_field text) RETURNS integer LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((SELECT s.bytes FROM joex_private.size_limit s
                     WHERE s.field = CASE p_field WHEN 'opts' THEN 'args' ELSE p_field END),
                    CASE p_field WHEN 'result' THEN 16000000 ELSE 1000000 END) $$;

-- Limit the size of the arguments (field 'args') or of the result ('result') of a job, in bytes: 8,000 to 32 million. Null restores the
-- default: 1 million for arguments, 16 million for results. An executor that is running applies the limit after its next start.
CREATE OR REPLACE FUNCTION joex.set_largest(field text, bytes bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    IF field IS NULL OR field NOT IN ('args', 'result') THEN
        RAISE EXCEPTION 'field: expected args or result; got %', left(quote_nullable(field), 100) USING ERRCODE = '22023';
    ELSIF bytes NOT BETWEEN 8000 AND 32000000 THEN
        RAISE EXCEPTION '%: expected a limit of 8000 to 32000000 bytes, or NULL for the default; got %', field, bytes
            USING ERRCODE = '22023';
    END IF;
    IF bytes IS NULL THEN
        DELETE FROM joex_private.size_limit s WHERE s.field = field;
    ELSE
        INSERT INTO joex_private.size_limit AS s (field, bytes) VALUES (field, bytes)
        ON CONFLICT ON CONSTRAINT size_limit_pkey DO UPDATE SET bytes = excluded.bytes;
    END IF;
    PERFORM joex_private.note_act('set_largest', field, p_detail => jsonb_build_object('bytes', bytes));
END $$;

-- Whether a value has more than 8,000 bytes. Every limit allows 8,000, so most jobs cost no read of the limits. (#> '{}' is the
-- value itself, without the compression of a table. Its text may be 8,000 times as long: 1e131071 has 16 bytes. CASE keeps the planner
-- from evaluating the text before the size.)
CREATE OR REPLACE FUNCTION joex_private.is_large(p_value jsonb) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN pg_column_size(p_value #> '{}') > 8000 THEN true ELSE octet_length(p_value::text) > 8000 END $$;

-- Refuse a value that is larger than its limit. A caller checks only values for which is_large is true.
CREATE OR REPLACE FUNCTION joex_private.check_size(p_field text, p_value jsonb) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_largest integer := joex_private.largest(p_field);
    v_size integer := pg_column_size(p_value #> '{}');
    v_text integer;
BEGIN
    IF v_size <= v_largest THEN
        BEGIN
            v_text := octet_length(p_value::text);
        EXCEPTION WHEN program_limit_exceeded THEN
            v_text := 2 ^ 30;   -- more than a text can have: no statement could read it
        END;
        v_size := greatest(v_size, v_text);
    END IF;
    IF v_size > v_largest THEN
        RAISE EXCEPTION '%: at most % bytes; got %: store it elsewhere and pass a reference, or raise the limit with joex.set_largest',
            p_field, v_largest, v_size USING ERRCODE = 'JX003';
    ELSIF v_text > 40 * pg_column_size(p_value #> '{}') THEN
        -- A take has a budget in bytes of values. (The text of a float has 309 digits at most, 26 times the bytes of its value.)
        RAISE EXCEPTION '%: has numbers with too many digits (% bytes as text): pass numbers of more than 300 digits as strings',
            p_field, v_text USING ERRCODE = 'JX003';
    ELSIF jsonb_path_exists(p_value, '$.**{1000}') THEN
        -- Functions can build what the server can't read from a text (about 18,000 levels), so that no dump with it could be restored. (A
        -- value of 8,000 bytes, which `check_size` does not read, has 999 levels at most.)
        RAISE EXCEPTION '%: expected fewer than 1000 levels of arrays and objects, one in another', p_field USING ERRCODE = 'JX003';
    END IF;
END $$;

-- Refuse a name that no queue, group or client can have.
CREATE OR REPLACE FUNCTION joex_private.check_name(p_field text, p_name text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_name IS NULL OR octet_length(p_name) NOT BETWEEN 1 AND 254 THEN
        RAISE EXCEPTION '%: expected 1 to 254 bytes; got %', p_field, left(quote_nullable(p_name), 300) USING ERRCODE = '22023';
    END IF;
END $$;

-- Refuse what a constraint of a table would refuse. (The server's error has the whole row, with what its caller may not know, such as the
-- place of a group. Those of the domains of joex_private.job have not.)
CREATE OR REPLACE FUNCTION joex_private.must_hold(p_constraint text, p_holds boolean) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_holds IS NOT TRUE THEN
        RAISE EXCEPTION 'this violates check constraint "%"', p_constraint
            USING ERRCODE = 'check_violation', CONSTRAINT = p_constraint;
    END IF;
END $$;

-- Refuse a number of rows that LIMIT refuses, and NULL, by which it reads all.
CREATE OR REPLACE FUNCTION joex_private.check_most(p_most integer) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_most IS NULL OR p_most < 0 THEN
        RAISE EXCEPTION 'most: expected 0 or more; got %', coalesce(p_most::text, 'NULL') USING ERRCODE = '22023';
    END IF;
END $$;

-- True; or an error, below more than a hundred nested savepoints. A function that roles may call with a lesser scope than executor calls this
-- with the transaction id that has written a row (its xmin; of a deleted one, its xmax), after the write, because a savepoint gets its id with
-- its first write. Null, or an id that others have written: not known. Where a transaction has many savepoints, each reader walks from the one
-- that wrote a row up to the transaction, for each row that it meets: 20,000 rows below 10,000 savepoints, not committed, made each take last
-- five seconds. The ids of nested savepoints follow each other. So an id near that of the transaction needs no more; else the locks tell how
-- many savepoints are open around this write: a session holds one for the id of each. (A row that is only locked has readers that walk, too.)
-- Their ids may also lie far apart, as other sessions use those between. Each step is then on another page of 2048 ids, of which the server
-- keeps 32: with ninety such savepoints 20,000 rows made a take last six seconds. Ten of them fit, or ten pages. (Drivers leave a savepoint
-- open to which they have rolled back, so that clients with few of them at a time may have dozens.)
CREATE OR REPLACE FUNCTION joex_private.must_be_shallow(p_by xid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_most CONSTANT integer := 100;
    v_open record;
BEGIN
    -- (Of a row that an outer savepoint has locked, xmax is the number of a group of lockers, a multixact. Its counter may be anywhere near
    -- the ids of transactions, and each role can bring it there. So a number that may be one of the latest is not known.)
    IF mxid_age(p_by) BETWEEN 1 AND 100000000 THEN
        p_by := NULL;
    END IF;
    -- (Each condition by itself: plpgsql evaluates an expression without a subquery at once.)
    IF p_by = pg_current_xact_id_if_assigned()::xid THEN
        RETURN true;
    ELSIF ((p_by::text::bigint - pg_current_xact_id_if_assigned()::xid::text::bigint) & 4294967295) <= v_most THEN
        RETURN true;
    END IF;
    SELECT count(*) - 1 AS savepoints, max(age(l.transactionid)) - min(age(l.transactionid)) AS apart INTO v_open
    FROM pg_locks l WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.pid = pg_backend_pid();
    IF v_open.savepoints <= 10 OR v_open.savepoints <= v_most AND v_open.apart <= 20000 THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'this transaction has too many nested savepoints: %', v_open.savepoints USING ERRCODE = 'program_limit_exceeded',
        HINT = 'Release or roll back savepoints before you call functions of Joex. A block with EXCEPTION is a savepoint, too.';
END $$;

-- A text for people (an error, a message, a line of a log), cut to 100,000 characters, with a mark that says how many it had: each list,
-- page and terminal that shows the job reads it as a whole. (core/text.py does the same. The planner inlines this function.)
CREATE OR REPLACE FUNCTION joex_private.cut(p_text text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN octet_length(p_text) > 100000 AND length(p_text) > 100000
                THEN left(p_text, 99960) || '… (cut, ' || to_char(length(p_text), 'FM999,999,999,999') || ' characters)'
                ELSE p_text END $$;

-- The priority with this name, in upper or lower case. (NULL is none.)
CREATE OR REPLACE FUNCTION joex_private.priority_of(p_text text) RETURNS joex_private.job_priority
LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT coalesce(lower(p_text COLLATE "C"), 'NULL')::joex_private.job_priority $$;

-- Claim, for so many seconds (below 60), what one executor does for all. Returns the claim; null: another one has claimed it. p_mine: the
-- caller's claim until now, which this renews. The latest claim is the value of the sequence p_claims, which all transactions see at once: the
-- microsecond of the server's clock at which it ends. (Of two that claim at the same moment the later one has it; the other one learns that with
-- its next call. A claim that ends later than any can was made before that clock was set back.)
CREATE OR REPLACE FUNCTION joex_private.claim(p_claims regclass, p_seconds float8, p_mine bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    v_latest CONSTANT bigint := pg_sequence_last_value(p_claims);
BEGIN
    IF v_latest BETWEEN v_now AND v_now + 60000000 AND v_latest IS DISTINCT FROM p_mine THEN
        RETURN NULL;
    END IF;
    -- (Nobody waits for a standby, or for the disk: a claim that a crash loses is made again.)
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN setval(p_claims, v_now + (p_seconds * 1000000)::bigint);
END $$;

-- From which number on sleepers count (see fall_asleep).
CREATE OR REPLACE FUNCTION joex_private.sleepers_from() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(pg_catalog.pg_sequence_last_value('joex_private.sleepers_from'), 0) $$;

-- The executors that are asleep. (A subquery, so that the server asks once, and finds the first one that counts in the index. Readers begin
-- with the newest. Where the executor matters, they probe it for each that serves the queue: OFFSET 0 keeps the planner from a join that
-- reads all executors, and without sorts it does not read all sleepers, as that of PostgreSQL 16 did.)
CREATE OR REPLACE VIEW joex_private.asleep AS
SELECT s.executor_id, s.nr, s.queues FROM joex_private.sleeper s WHERE s.nr >= (SELECT joex_private.sleepers_from());

-- Wake sleeping executors of the queue: at most one per job, those that their pool could do without last, and of the others the latest
-- to fall asleep first, so that the longest idle stay idle (and an operator can remove them). An executor that fills all its slots and leaves work behind wakes the next ones (see take), so four names
-- are enough. If no executor is asleep, notify the operators that watch the queue (see watch). Otherwise send nothing, because NOTIFY
-- makes its transaction acquire a lock that all notifying transactions of the server share. (An executor that has left is not asleep: see
-- mark_ended. A condition for that would offer the planner another index, that of all living executors.)
--
-- Workers that wait in an accept get a notification too. They replace no executor and no operator: a worker may come late, or not at all.
--
-- The snapshot of a REPEATABLE READ transaction may be older than the moment when an executor fell asleep or an operator began to
-- watch. So such a transaction always notifies (an empty list asks all sleeping executors to look for work).
CREATE OR REPLACE FUNCTION joex_private.wake(p_queue text, p_jobs bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_sort = off AS $$
DECLARE
    v_ids integer[] := '{}';
    v_workers boolean := true;
    v_operators boolean := true;
    v_knows boolean := joex_private.sees_the_latest();
    v_now timestamptz := clock_timestamp();
BEGIN
    IF v_knows THEN
        SELECT ARRAY((SELECT a.executor_id FROM joex_private.asleep a CROSS JOIN LATERAL (
                          SELECT FROM joex_private.executor x WHERE x.id = a.executor_id AND NOT x.spare AND NOT x.draining OFFSET 0) e
                      WHERE p_queue = ANY (a.queues) ORDER BY a.nr DESC LIMIT 4)
                     UNION ALL      -- (The server reads these only if those are too few.)
                     (SELECT a.executor_id FROM joex_private.asleep a CROSS JOIN LATERAL (
                          SELECT FROM joex_private.executor x WHERE x.id = a.executor_id AND x.spare AND NOT x.draining OFFSET 0) e
                      WHERE p_queue = ANY (a.queues) ORDER BY a.nr DESC LIMIT 4)
                     LIMIT least(p_jobs, 4)),
               -- (This reads the last entry of an index, however many watches have ended: see is_heard. Only one index has these bounds and
               -- this order: beside few watches the planner takes that of their ends to be as good, and a worker can then make very many for
               -- its queue in a transaction that it leaves open.)
               coalesce((SELECT w.until FROM joex_private.watch w
                         WHERE (w.queue, w.for_workers) >= (p_queue, true) AND (w.queue, w.for_workers) <= (p_queue, true)
                         ORDER BY w.queue DESC, w.for_workers DESC, w.until DESC LIMIT 1) > v_now, false),
               coalesce((SELECT w.until FROM joex_private.watch w
                         WHERE (w.queue, w.for_workers) >= (p_queue, false) AND (w.queue, w.for_workers) <= (p_queue, false)
                         ORDER BY w.queue DESC, w.for_workers DESC, w.until DESC LIMIT 1) > v_now, false)
        INTO v_ids, v_workers, v_operators;
    END IF;
    IF v_operators AND v_ids = '{}' THEN
        PERFORM joex_private.send('joex_operator', json_build_object('queue', p_queue)::text);
    END IF;
    IF v_workers OR v_ids <> '{}' THEN       -- (0: none of the executors)
        PERFORM joex_private.send('joex_wake', json_build_object(
            'queue', p_queue, 'executors', CASE WHEN v_knows AND v_ids = '{}' THEN '{0}' ELSE v_ids END)::text);
    END IF;
END $$;

-- Whether a new job of the queue needs a notification: one statement instead of those of wake and announce, which nearly always find
-- no listener. The caller has already written the job, as for these two. (Without seqscan, as in wake and is_heard: a session that has planned
-- this beside few subscriptions and watches would read all those that a transaction has made since.)
CREATE OR REPLACE FUNCTION joex_private.is_awaited(p_queue text) RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
BEGIN
    RETURN NOT joex_private.sees_the_latest()
           -- (One that drains may be among them: wake looks at this.)
           OR (SELECT a.nr FROM joex_private.asleep a WHERE p_queue = ANY (a.queues) ORDER BY a.nr DESC LIMIT 1) IS NOT NULL
           OR coalesce((SELECT w.until FROM joex_private.watch w
                         WHERE (w.queue, w.for_workers) >= (p_queue, true) AND (w.queue, w.for_workers) <= (p_queue, true)
                         ORDER BY w.queue DESC, w.for_workers DESC, w.until DESC LIMIT 1) > clock_timestamp(), false)
           OR coalesce((SELECT w.until FROM joex_private.watch w
                         WHERE (w.queue, w.for_workers) >= (p_queue, false) AND (w.queue, w.for_workers) <= (p_queue, false)
                         ORDER BY w.queue DESC, w.for_workers DESC, w.until DESC LIMIT 1) > clock_timestamp(), false)
           OR coalesce((SELECT max(s.until) FROM joex_private.subscriber s) > clock_timestamp(), false);
END $$;

-- Whether each statement of this transaction sees all that was committed before the statement.
CREATE OR REPLACE FUNCTION joex_private.sees_the_latest() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') $$;

-- A function that decides after it has waited for a lock calls this first. It raises JX002 in a transaction that would decide by a
-- snapshot older than the wait, and so lose jobs, or take too many. (A function that locks the rows by which it decides does not need
-- this: the server raises an error there.)
CREATE OR REPLACE FUNCTION joex_private.must_see_the_latest(p_function text) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT joex_private.sees_the_latest() THEN
        RAISE EXCEPTION '% must see all transactions that have committed by now; a % transaction does not',
            p_function, upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'JX002', HINT = 'Call it in a READ COMMITTED transaction: BEGIN ISOLATION LEVEL READ COMMITTED, or '
                                            'SET default_transaction_isolation = ''read committed''.';
    END IF;
END $$;

-- Notify, unless the transaction has executed SET LOCAL joex.notify = 'off': PREPARE TRANSACTION refuses a transaction that has
-- notified. Executors and waiting clients find the change when they poll. So they do while the server's queue of notifications is half
-- full: when it is full, no transaction that has notified can commit, and any role that can connect can fill it, by LISTEN in a session
-- that it leaves in a transaction.
CREATE OR REPLACE FUNCTION joex_private.send(p_channel text, p_payload text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('joex.notify', true) IS DISTINCT FROM 'off' AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify(p_channel, p_payload);
    END IF;
END $$;

-- Notify an executor, {"executor": 7}, that it has to drain, or to cancel a run. The notification does not say which, because every role
-- that can connect can send one: the executor asks the tables (see check_runs).
CREATE OR REPLACE FUNCTION joex_private.notify_executor(p_executor integer) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT joex_private.send('joex_control', json_build_object('executor', p_executor)::text) $$;

-- Notify operators that an executor has joined, drains, or has left.
CREATE OR REPLACE FUNCTION joex_private.notify_operators(p_app_id text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT FROM joex_private.watch) THEN
        PERFORM joex_private.send('joex_operator', json_build_object('executor', p_app_id)::text);
    END IF;
END $$;

-- Whether there is a subscriber (p_events: to events). Without one, Joex sends no notification, because each has a price (see wake).
-- The snapshot of a REPEATABLE READ transaction may be older than a subscription, though its transaction id is younger than the
-- subscriber's horizon: such a transaction always notifies.
CREATE OR REPLACE FUNCTION joex_private.is_heard(p_events boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
BEGIN
    RETURN NOT joex_private.sees_the_latest()
           -- (max reads the last entry of an index, however many subscriptions have ended.)
           OR coalesce((SELECT max(s.until) FROM joex_private.subscriber s WHERE s.events) > clock_timestamp(), false)
           OR NOT p_events AND coalesce((SELECT max(s.until) FROM joex_private.subscriber s) > clock_timestamp(), false);
END $$;

-- Notify the subscribers to events, and the subscribers that wait for these jobs. The events are job-submitted, job-started,
-- job-finished and (only for waits) job-changed. The caller has already written the jobs, so its transaction id is older than the snapshot here: a
-- subscriber that this snapshot does not show waits for the end of the transaction (see wait_for).
CREATE OR REPLACE FUNCTION joex_private.announce(p_event text, p_ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    v_payload text;
BEGIN
    IF cardinality(p_ids) IS NULL OR NOT joex_private.is_heard(false) THEN
        RETURN;
    END IF;
    IF p_event <> 'job-changed' AND joex_private.is_heard(true) THEN
        -- (One event per payload: a payload has less than 8,000 bytes, of which four escaped names may need 6,100.)
        FOR v_payload IN
            SELECT json_build_object('event', p_event, 'id', j.id, 'task', j.task, 'queue', j.queue, 'group', j.grp,
                                     'state', CASE p_event WHEN 'job-started' THEN 'running' ELSE j.state::text END,
                                     'executor', j.app_id)::text
            FROM unnest(p_ids) WITH ORDINALITY AS i(id, nr) JOIN joex_private.job j ON j.id = i.id ORDER BY i.nr LOOP
            PERFORM joex_private.send((SELECT d.events_channel FROM joex_private.this_database d), v_payload);
        END LOOP;
    END IF;
    IF joex_private.sees_the_latest() THEN
        -- (OFFSET 0: one probe for each job, because there may be very many subscriptions to one.)
        p_ids := ARRAY(SELECT DISTINCT i.id FROM unnest(p_ids) i(id)
                       WHERE EXISTS (SELECT FROM joex_private.subscription x WHERE x.job_id = i.id OFFSET 0));
    END IF;
    FOR v_payload IN
        SELECT json_build_object('event', 'job-changed', 'jobs', json_agg(w.id))::text
        FROM (SELECT i.id, row_number() OVER () / 150 AS part FROM unnest(p_ids) i(id) WHERE i.id IS NOT NULL) w
        GROUP BY w.part LOOP
        PERFORM joex_private.send('joex_jobs', v_payload);
    END LOOP;
END $$;

-- Notify the subscribers to events that an executor has joined or left. (The payload names no queues when they would not fit.)
CREATE OR REPLACE FUNCTION joex_private.announce_executor(p_event text, p_id integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF joex_private.is_heard(true) THEN
        PERFORM joex_private.send(d.events_channel, json_build_object(
            'event', p_event, 'executor', e.app_id, 'registration', e.id,
            'queues', CASE WHEN octet_length(to_json(e.queues)::text) < 6000 THEN e.queues END, 'ending', e.ending)::text)
        FROM joex_private.executor e CROSS JOIN joex_private.this_database d WHERE e.id = p_id;
    END IF;
END $$;
