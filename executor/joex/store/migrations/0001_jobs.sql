-- The tables of Joex. Functions and views are in ../sql: a migration installs them after the numbered files.
--
-- A job is in exactly one of four places, and one column says which:
--   lane         runnable now          (0 retry that is due, 1 high priority, 2 low priority)
--   due_at       runnable later        (a retry that waits, or a submission with a not-before time)
--   executor_id  held by an executor   (scheduled or running)
--   finished_at  finished              (success, failed, cancelled)
-- Each place has its own partial index, so that ten million finished jobs cost a take nothing.
--
-- The oldest version of the schema that a program may know to use this one (see ../migrate.py):
-- min_reader: 1

CREATE TYPE joex_private.job_state AS ENUM ('waiting', 'scheduled', 'running', 'stuck', 'cancelled', 'failed', 'success');
CREATE TYPE joex_private.job_priority AS ENUM ('high', 'low');

-- Time-ordered ids (UUID version 7, RFC 9562). PostgreSQL 18 has the function; 16 and 17 make the same layout here: 48 bits of
-- milliseconds over a random UUID, the version nibble set from 4 (0100) to 7 (0111).
DO $do$
BEGIN
    IF current_setting('server_version_num')::int >= 180000 THEN
        CREATE FUNCTION joex_private.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT pg_catalog.uuidv7()';
    ELSE
        CREATE FUNCTION joex_private.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
            SELECT pg_catalog.encode(pg_catalog.set_bit(pg_catalog.set_bit(pg_catalog.overlay(
                       pg_catalog.uuid_send(pg_catalog.gen_random_uuid()),
                       pg_catalog.substring(pg_catalog.int8send((extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint), 3),
                       1, 6), 52, 1), 53, 1), 'hex')::uuid $$;
    END IF;
END $do$;

-- What differs from database to database. One row.
CREATE TABLE joex_private.this_database (
    is_it     boolean PRIMARY KEY DEFAULT true CHECK (is_it),
    -- Of the places on the rings. Secret: a tenant that knew it could choose a name that shares the place of another tenant's group.
    ring_key  bytea NOT NULL DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()),
    -- Of the events. Secret, because every role that can connect can listen.
    events_channel  text NOT NULL DEFAULT 'joex_events_' || replace(gen_random_uuid()::text, '-', '')
);
INSERT INTO joex_private.this_database DEFAULT VALUES;
ANALYZE joex_private.this_database;     -- (else the planner expects hundreds of rows)

-- 1: no role is bound to groups or queues, or ever was. (A sequence, because each snapshot sees its value at once. A transaction that is older
-- than the first such grant does not see the grant, but the server lets its role execute what this has granted. A copy that lacks the value,
-- as a logical replica does, binds roles.)
CREATE SEQUENCE joex_private.roles_bound;
SELECT setval('joex_private.roles_bound', 1);

-- The id of the transaction that has changed scopes last; no value: none has (see must_see_the_scopes in sql/15_access.sql). A sequence, as
-- roles_bound, because transactions with an older snapshot must learn of the change.
CREATE SEQUENCE joex_private.scopes_changed_by;

-- The scopes of roles (see sql/15_access.sql).
CREATE TABLE joex_private.role_scope (
    role    regrole PRIMARY KEY,
    scopes  text[] NOT NULL,
    groups  text[],         -- null: all
    queues  text[]
);

-- A group's place on the ring of its queue: 56 bits of a keyed hash, so that a cursor (the place, and the services given there) fits into
-- one bigint. Of 100,000 groups two have the same place with a chance of about 1 in 10 million; they then share one turn, and a limit or
-- a pause of one of them counts for both. Without the key nobody can choose a name for its place.
DO $do$
BEGIN
    IF current_setting('server_version_num')::int >= 180000 THEN
        CREATE FUNCTION joex_private.place(ring_key bytea, grp text) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
            SELECT pg_catalog.substr(pg_catalog.sha256(ring_key || pg_catalog.convert_to(grp, 'UTF8')), 1, 8)::bigint >> 8 $$;
    ELSE    -- the same, for servers that don't cast bytes to numbers
        CREATE FUNCTION joex_private.place(ring_key bytea, grp text) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
            SELECT ('x' || pg_catalog.encode(pg_catalog.substr(
                pg_catalog.sha256(ring_key || pg_catalog.convert_to(grp, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint >> 8 $$;
    END IF;
END $do$;
CREATE FUNCTION joex_private.ring(grp text) RETURNS bigint LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
    SELECT joex_private.place((SELECT d.ring_key FROM joex_private.this_database d), grp) $$;

CREATE TABLE joex_private.executor (
    id             integer PRIMARY KEY,     -- one registration: one start of an executor (see joex_private.register)
    app_id         text NOT NULL CHECK (app_id <> '' AND octet_length(app_id) <= 254),
    pod_uid        text,                    -- of its pod; a restart in place keeps it, a new pod does not
    host           text NOT NULL,
    boot_id        text NOT NULL DEFAULT '',  -- with pid and process_start: this very process, for restarts in place
    pid            integer NOT NULL,
    process_start  text NOT NULL DEFAULT '',
    version        text NOT NULL,
    schema_version integer NOT NULL DEFAULT 1,  -- the newest migration that it knows
    queues         text[] NOT NULL CHECK (cardinality(queues) > 0),
    tasks          text[] NOT NULL,
    pool_size      integer NOT NULL CHECK (pool_size > 0),
    most_losses    integer NOT NULL DEFAULT 5,  -- a job that it held fails when it has more (see put_back)
    http_address   text,
    lease          interval NOT NULL,       -- the silence after which it is dead, if its lock is free
    locks          boolean NOT NULL,        -- false: it can't hold a session lock (transaction pooling); only silence counts
    started_at     timestamptz NOT NULL DEFAULT now(),
    draining       boolean NOT NULL DEFAULT false,
    spare          boolean NOT NULL DEFAULT false,  -- its pool could do without it: it takes nothing that another one can take
    give_back_nr   integer NOT NULL DEFAULT 0,  -- its newest give-back of unknown jobs (see give_back_unknown)
    left_at        timestamptz,             -- set: the registration has ended
    ending         text CHECK (ending IN ('left', 'dead', 'replaced')),
    orphans        boolean NOT NULL DEFAULT false,  -- it has ended, and still holds jobs (whose rows others had locked)
    CHECK ((left_at IS NULL) = (ending IS NULL))
);

CREATE UNIQUE INDEX executor_one_that_takes ON joex_private.executor (app_id) WHERE left_at IS NULL AND NOT draining;
-- (text_pattern_ops: an operator reads the executors whose app-ids begin alike, in each collation.)
CREATE INDEX executor_living ON joex_private.executor (app_id text_pattern_ops) WHERE left_at IS NULL;
CREATE INDEX executor_with_orphans ON joex_private.executor (id) WHERE orphans;
CREATE INDEX executor_ended ON joex_private.executor (left_at) WHERE left_at IS NOT NULL;

-- The executors that have nothing to do, in the order in which they fell asleep: submissions wake them. Rows below sleepers_from count no
-- more (see fall_asleep). (A table of its own: the row of an executor stays as it is, and so leaves no dead versions.)
CREATE TABLE joex_private.sleeper (
    executor_id   integer NOT NULL REFERENCES joex_private.executor ON DELETE CASCADE,
    nr            bigint NOT NULL,
    queues        text[] NOT NULL,              -- of the executor, which never changes them
    PRIMARY KEY (executor_id, nr)
);
CREATE INDEX sleeper_in_order ON joex_private.sleeper (nr);
CREATE SEQUENCE joex_private.sleeper_nr OWNED BY joex_private.sleeper.nr;
CREATE SEQUENCE joex_private.sleepers_from OWNED BY joex_private.sleeper.nr;

-- The starts of suspects whose rows were locked then, by lock id (see mark_start). A later start of the same executor removes those that are over.
CREATE TABLE joex_private.noted_start (
    lock_id      uuid PRIMARY KEY,
    executor_id  integer NOT NULL REFERENCES joex_private.executor ON DELETE CASCADE,
    at           timestamptz NOT NULL
);
CREATE INDEX noted_start_of_executor ON joex_private.noted_start (executor_id);

-- The lease of each living executor. (A table of its own: a heartbeat never waits for a transaction that has locked the executor's row.)
CREATE TABLE joex_private.lease (
    executor_id   integer PRIMARY KEY REFERENCES joex_private.executor ON DELETE CASCADE,
    heartbeat_at  timestamptz NOT NULL,         -- for people
    beat          bigint NOT NULL               -- the transaction of the last heartbeat, by which judges decide
) WITH (fillfactor = 50);                   -- room for heartbeats in the same page (HOT)
-- Of the executor that rescues, and of the one that puts back overdue runs (see claim).
CREATE SEQUENCE joex_private.rescue_claims OWNED BY joex_private.lease.beat;
CREATE SEQUENCE joex_private.overdue_claims OWNED BY joex_private.lease.beat;
-- The latest time at which one has searched for overdue runs (see leaves_overdue).
CREATE SEQUENCE joex_private.overdue_searches OWNED BY joex_private.lease.beat;

-- Types check the values of a job that never change, once. A constraint of the table costs more: each statement reads it anew, and checks
-- it for each version of a row. (An error in SQL shows the names of these constraints.)
CREATE DOMAIN joex_private.queue_name AS text NOT NULL CONSTRAINT "queue: 1 to 254 bytes" CHECK (VALUE <> '' AND octet_length(VALUE) <= 254);
CREATE DOMAIN joex_private.group_name AS text NOT NULL CONSTRAINT "group: 1 to 254 bytes" CHECK (VALUE <> '' AND octet_length(VALUE) <= 254);
-- (Names that begin with joex. are for Joex itself. LIKE costs less than starts_with, which cuts a text by its characters.)
CREATE DOMAIN joex_private.task_name AS text NOT NULL CONSTRAINT "task: 1 to 254 bytes" CHECK (VALUE <> '' AND octet_length(VALUE) <= 254)
    CONSTRAINT "task: must not begin with joex., as Joex's own names do" CHECK (VALUE NOT LIKE 'joex.%');
-- (A tracker of a periodic task holds two names: see joex_private.periodic_tracker.)
CREATE DOMAIN joex_private.tracker_name AS text
    CONSTRAINT "tracker: 1 to 254 bytes"
    CHECK (VALUE <> '' AND octet_length(VALUE) <= CASE WHEN starts_with(VALUE, 'periodic ') THEN 800 ELSE 254 END)
    CONSTRAINT "tracker: must not begin with joex., as Joex's own names do" CHECK (VALUE NOT LIKE 'joex.%');
CREATE DOMAIN joex_private.subject_text AS text NOT NULL CONSTRAINT "subject: at most 1000 bytes" CHECK (octet_length(VALUE) <= 1000);
CREATE DOMAIN joex_private.submitter_name AS text NOT NULL CONSTRAINT "submitter: at most 254 bytes" CHECK (octet_length(VALUE) <= 254);
CREATE DOMAIN joex_private.job_args AS jsonb NOT NULL CONSTRAINT "args: must be a JSON object" CHECK (jsonb_typeof(VALUE) = 'object');
CREATE DOMAIN joex_private.job_opts AS jsonb CONSTRAINT "opts: must be a JSON object" CHECK (jsonb_typeof(VALUE) = 'object');
CREATE DOMAIN joex_private.job_key AS bytea CONSTRAINT "key: 1 to 1000 bytes" CHECK (octet_length(VALUE) BETWEEN 1 AND 1000);
-- (No tuple packs into bytes that begin with ff: takes without a limit go up to there, see joex_client.highest_rank.)
CREATE DOMAIN joex_private.job_rank AS bytea NOT NULL CONSTRAINT "rank: at most 1000 bytes" CHECK (octet_length(VALUE) <= 1000)
    CONSTRAINT "rank: must not begin with the byte ff" CHECK (VALUE < '\xff');
CREATE DOMAIN joex_private.job_retries AS integer CONSTRAINT "retries: 0 or more" CHECK (VALUE >= 0);
-- (Years after 9999, and infinity, are beyond the dates of most languages: one such row would break each list that has it. A year less,
-- because what is computed from these times may be later, and zones differ.)
CREATE DOMAIN joex_private.job_due_time AS timestamptz CONSTRAINT "not_before: at most the year 9998" CHECK (
    VALUE < '9999-01-02 00:00+00');
-- (W3C: a traceparent; after a space, if there is one, the tracestate.)
CREATE DOMAIN joex_private.job_trace_context AS text CONSTRAINT "trace_context: expected a W3C traceparent (and tracestate)" CHECK (
    VALUE ~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}( [ -~]*[!-~])?$' AND octet_length(VALUE) <= 568);
CREATE DOMAIN joex_private.job_progress AS smallint CONSTRAINT "progress: 0 to 100" CHECK (VALUE BETWEEN 0 AND 100);

-- The columns that say in which place a job is, and what must hold between them. (A type too: a third of the cost of submitting one job
-- was to read these as constraints of the table.)
CREATE TYPE joex_private.job_place_columns AS (
    state joex_private.job_state, lane smallint, due_at timestamptz, executor_id integer, finished_at timestamptz, lock_id uuid,
    overdue_at timestamptz);
CREATE DOMAIN joex_private.job_place AS joex_private.job_place_columns
    CONSTRAINT job_is_in_one_place CHECK (
        num_nonnulls((VALUE).lane, (VALUE).due_at, (VALUE).executor_id, (VALUE).finished_at) = 1)
    CONSTRAINT job_only_a_run_is_overdue CHECK ((VALUE).overdue_at IS NULL OR (VALUE).executor_id IS NOT NULL)
    CONSTRAINT job_state_fits_its_place CHECK (     -- (ranges of states in the order of their type)
        CASE WHEN (VALUE).finished_at IS NOT NULL THEN (VALUE).state >= 'cancelled'
                  AND (VALUE).finished_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-31 00:00+00'  -- (as in job_due_time)
             WHEN (VALUE).executor_id IS NOT NULL THEN (VALUE).state BETWEEN 'scheduled' AND 'running' AND (VALUE).lock_id IS NOT NULL
             WHEN (VALUE).lane = 0 THEN (VALUE).state = 'stuck'
             WHEN (VALUE).lane IS NOT NULL THEN (VALUE).state = 'waiting' AND (VALUE).lane BETWEEN 1 AND 2
             ELSE (VALUE).state = 'waiting' OR (VALUE).state = 'stuck' END);

CREATE TABLE joex_private.job (
    id               uuid PRIMARY KEY DEFAULT joex_private.uuid7(),
    seq              bigint GENERATED BY DEFAULT AS IDENTITY,   -- first in, first out
    queue            joex_private.queue_name NOT NULL DEFAULT 'default',
    grp              joex_private.group_name NOT NULL DEFAULT 'default',
    ring             bigint NOT NULL,                       -- joex_private.ring(grp)
    task             joex_private.task_name NOT NULL,
    args             joex_private.job_args NOT NULL DEFAULT '{}',
    subject          joex_private.subject_text NOT NULL DEFAULT '',
    submitter        joex_private.submitter_name NOT NULL DEFAULT '',
    tracker          joex_private.tracker_name,
    priority         joex_private.job_priority NOT NULL DEFAULT 'low',
    -- Keyed jobs (see joex_client.add) have these three. FoundationDB's tuple layer packs keys and ranks into bytes that have the
    -- order of the values.
    key              joex_private.job_key,                          -- its id, unique within its task
    rank             joex_private.job_rank NOT NULL DEFAULT '',     -- its place in line, before seq
    opts             joex_private.job_opts,                         -- free fields
    state            joex_private.job_state NOT NULL DEFAULT 'waiting',
    lane             smallint,
    due_at           joex_private.job_due_time,
    runnable_since   timestamptz NOT NULL DEFAULT clock_timestamp(),    -- since when, or from when, a take can have it
    executor_id      integer,                               -- 0: a worker (see joex_client.accept)
    lock_id          uuid,                                  -- fencing token of the latest run
    held_since       bigint NOT NULL DEFAULT 0,             -- the latest seq of any job at its take (see sql/25_floors.sql)
    app_id           text,                                  -- the executor or worker of the latest run
    attempt          integer NOT NULL DEFAULT 0,            -- runs that were started
    failures         integer NOT NULL DEFAULT 0,            -- runs that failed since the submission or the last retry by hand
    losses           integer NOT NULL DEFAULT 0,            -- times its executor died while holding it; of a suspect, while it ran
    suspect          boolean NOT NULL DEFAULT false,        -- executors died with it: they run it alone, until a run has ended
    retries          joex_private.job_retries,                      -- re-runs allowed; null: the task's or the executor's default
    cancel_requested boolean NOT NULL DEFAULT false,
    resubmit_requested boolean NOT NULL DEFAULT false,      -- it runs once more when its run has ended
    remove_requested boolean NOT NULL DEFAULT false,        -- it disappears when its run has ended
    overdue_at       timestamptz,                           -- it is put back when its run has not reported by then
    renew_by         interval,                              -- a report moves overdue_at on by this; null: it stays
    progress         joex_private.job_progress NOT NULL DEFAULT 0,
    progress_message text,
    submitted_at     timestamptz NOT NULL DEFAULT now(),
    scheduled_at     timestamptz,
    started_at       timestamptz,
    finished_at      timestamptz,
    message          text,                                  -- of the result
    result           jsonb,
    error            text,                                  -- of the latest failed run
    trace_context    joex_private.job_trace_context,        -- of its submission
    CONSTRAINT job_has_its_place CHECK (
        num_nulls(ROW(state, lane, due_at, executor_id, finished_at, lock_id, overdue_at)::joex_private.job_place) = 0)
) WITH (
    -- A queue turns its rows over many times a day: vacuum by a small share of the table, and without pauses.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);

-- For rows that a client inserts without the functions of Joex. (No generated column: PostgreSQL reads its expression anew for each row that
-- is updated.)
CREATE FUNCTION joex_private.place_on_the_ring() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF joex_private.is_large(NEW.args) THEN
        PERFORM joex_private.check_size('args', NEW.args);
    END IF;
    NEW.ring := joex_private.ring(NEW.grp);
    RETURN NEW;
END $$;
CREATE TRIGGER place_on_the_ring BEFORE INSERT ON joex_private.job FOR EACH ROW WHEN (NEW.ring IS NULL)
EXECUTE FUNCTION joex_private.place_on_the_ring();

-- For rows that a client moves to another group. (After the update, which costs a second one here: a trigger before it locks each row of
-- each update in a step of its own, whichever columns change, and writes the lock to the log.)
CREATE FUNCTION joex_private.move_on_the_ring() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE joex_private.job j SET ring = joex_private.ring(j.grp) WHERE j.id = NEW.id AND j.ring <> joex_private.ring(j.grp);
    RETURN NULL;
END $$;
CREATE TRIGGER move_on_the_ring AFTER UPDATE OF grp, ring ON joex_private.job FOR EACH ROW
EXECUTE FUNCTION joex_private.move_on_the_ring();

-- (No two entries are equal. To look for such before each split of a page was a twentieth of the cost of a job in a batch.)
CREATE INDEX job_runnable ON joex_private.job (queue, ring, lane, rank, seq) WITH (deduplicate_items = off) WHERE lane IS NOT NULL;
CREATE INDEX job_due ON joex_private.job (queue, due_at) WHERE due_at IS NOT NULL;
-- (By minutes, so that the search for groups with due jobs meets few others; see joex_private.promote_in_turn.)
CREATE INDEX job_due_by_group ON joex_private.job (queue, date_bin('1 minute', due_at, '2000-01-01 00:00+00'), ring, due_at)
    WHERE due_at IS NOT NULL;
CREATE INDEX job_held ON joex_private.job (queue, ring, held_since, executor_id) WHERE executor_id IS NOT NULL;
CREATE INDEX job_overdue ON joex_private.job (queue, overdue_at) WHERE overdue_at IS NOT NULL;
-- (Retention keeps keyed jobs, so it must not read over them.)
CREATE INDEX job_finished ON joex_private.job (finished_at) WHERE finished_at IS NOT NULL AND key IS NULL;
CREATE INDEX job_finished_with_key ON joex_private.job (finished_at) WHERE finished_at IS NOT NULL AND key IS NOT NULL;
CREATE UNIQUE INDEX job_key ON joex_private.job (task, key) WHERE key IS NOT NULL;
-- (Per group: no tenant can take a tracker from another.)
CREATE UNIQUE INDEX job_one_unfinished_per_tracker ON joex_private.job (grp, tracker)
    WHERE tracker IS NOT NULL AND finished_at IS NULL;

-- Runs that have slots and no job, because their timeouts ended, or their code goes on after its end: takes count them as held by their group,
-- until their executors say that they are over.
CREATE TABLE joex_private.overrun (
    executor_id   integer NOT NULL,     -- (no foreign key: a worker may leave the transaction open, and its lock would stop the executor's end)
    lock_id       uuid NOT NULL,
    queue         text NOT NULL,
    ring          bigint NOT NULL,
    PRIMARY KEY (executor_id, lock_id)
);
CREATE INDEX overrun_of_group ON joex_private.overrun (queue, ring);

-- What people and programs have done to jobs, groups and the like (see joex.audit).
CREATE TABLE joex_private.act (
    nr       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    role     text NOT NULL DEFAULT session_user,
    caller   text,
    act      text NOT NULL,
    subject  text,
    queue    text,
    grp      text,
    detail   jsonb
);
CREATE INDEX act_at ON joex_private.act (at);

CREATE TABLE joex_private.job_log (
    seq      bigint GENERATED ALWAYS AS IDENTITY,
    job_id   uuid NOT NULL,                 -- (no foreign key: retention deletes a job's log with the job, in batches)
    attempt  integer NOT NULL,
    at       timestamptz NOT NULL,
    level    text NOT NULL CHECK (level IN ('debug', 'info', 'warning', 'error')),
    message  text NOT NULL,
    run      jsonb,                         -- of the last line of a run: its executor, start and end (see joex.attempts)
    PRIMARY KEY (job_id, seq)
);
CREATE INDEX job_log_run ON joex_private.job_log (job_id, seq) WHERE run IS NOT NULL;

-- The limits of arguments and results in bytes, where they differ from the defaults (see joex_private.largest). Not a constraint of
-- joex_private.job: a constraint that can change would prevent the restore of a dump.
CREATE TABLE joex_private.size_limit (
    field  text PRIMARY KEY CHECK (field IN ('args', 'result')),
    bytes  integer NOT NULL CONSTRAINT "bytes: expected 8000 to 32000000" CHECK (bytes BETWEEN 8000 AND 32000000)
);

-- Settings of a group in a queue; a group without a row has weight 1, runs, and has no limit.
CREATE TABLE joex_private.group_setting (
    queue        text NOT NULL CHECK (queue <> '' AND octet_length(queue) <= 254),
    grp          text NOT NULL CHECK (grp <> '' AND octet_length(grp) <= 254),
    ring         bigint NOT NULL,                       -- joex_private.ring(grp)
    weight       integer NOT NULL DEFAULT 1 CONSTRAINT "weight: 1 to 100" CHECK (weight BETWEEN 1 AND 100),
    paused       boolean NOT NULL DEFAULT false,
    max_running  integer CONSTRAINT "max_running: 0 or more" CHECK (max_running >= 0),
    -- (A submission counts up to this.)
    max_waiting  integer CONSTRAINT "max_waiting: 0 to 100000" CHECK (max_waiting BETWEEN 0 AND 100000),
    PRIMARY KEY (queue, grp)
);
CREATE INDEX group_setting_by_ring ON joex_private.group_setting (queue, ring);
CREATE INDEX group_setting_with_limit ON joex_private.group_setting (queue, ring) WHERE max_running IS NOT NULL;

-- 1: no group has, or has had, a limit of running jobs, so that ends of runs look for none. (A sequence, as roles_bound: to write a row would
-- be to keep it from others, for as long as the transaction is open that has set the first limit.)
CREATE SEQUENCE joex_private.limits_running;
SELECT setval('joex_private.limits_running', 1);
-- The same of limits of waiting jobs, for submissions; else which transaction has set the last one (see note_limit_waiting in sql/20_submit.sql).
CREATE SEQUENCE joex_private.limits_waiting;
SELECT setval('joex_private.limits_waiting', 1);

-- Rows to be locked (see try_mutex in sql/10_common.sql): one for each purpose, and one for each group with settings. And one for each group
-- with a limit to which a bound role has submitted in REPEATABLE READ; by: the last such transaction (see must_see_submissions).
CREATE TABLE joex_private.mutex (
    purpose  text NOT NULL,
    queue    text NOT NULL DEFAULT '',
    ring     bigint NOT NULL DEFAULT 0,
    by       xid8,
    PRIMARY KEY (purpose, queue, ring)
);
INSERT INTO joex_private.mutex (purpose) VALUES ('periodic'), ('floors'), ('sleepers'), ('limits');

-- The position of a group in its counting scheme: its newest row. Only takes write it, and only for groups in which jobs of both
-- priorities wait. (A new row each time: an update would wait for takes whose transactions are open, and read over dead versions while
-- vacuum is pinned.)
CREATE TABLE joex_private.priority_turns (
    queue     text NOT NULL,
    ring      bigint NOT NULL,
    position  integer NOT NULL,
    at        bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY,
    PRIMARY KEY (queue, ring, at)
);

-- The ring cursor of a queue is the value of a sequence, not of a row: a sequence advances outside of transactions, so that a take holds
-- the ring only while it chooses, not while its commit reaches the disk, and no dead rows pile up.
CREATE TABLE joex_private.queue (
    name    text PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 254),
    id      bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    cursor  regclass NOT NULL DEFAULT 0::regclass,  -- (the trigger makes both sequences)
    drawn   regclass NOT NULL DEFAULT 0::regclass,  -- how many entries of its plans have been drawn (see sql/35_plans.sql)
    paused_at   timestamptz,        -- set: no job of the queue begins
    paused_by   text                -- the caller that has paused it, or its role
);

-- The installing role owns the sequences, whichever role is the first to serve the queue. Takes grant them to the roles that may take jobs
-- (see grant_queue). (No role can call a trigger: the right to make sequences is the right to insert a queue. On a table of another role the
-- trigger would work with values whose types, casts and texts belong to that role. So other roles may not attach it, and it refuses other
-- tables.)
CREATE FUNCTION joex_private.make_ring_cursor() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_id bigint;
BEGIN
    IF TG_RELID <> 'joex_private.queue'::regclass THEN
        RAISE EXCEPTION 'joex_private.make_ring_cursor is the trigger of joex_private.queue alone' USING ERRCODE = 'insufficient_privilege';
    END IF;
    v_id := NEW.id;
    EXECUTE format('CREATE SEQUENCE IF NOT EXISTS joex_private.ring_cursor_%s MINVALUE -9223372036854775808', v_id);
    -- (Not unlogged: a standby that is promoted may have an unlogged sequence that PostgreSQL can't read, see ADR 32.)
    EXECUTE format('CREATE SEQUENCE IF NOT EXISTS joex_private.drawn_%s', v_id);
    UPDATE joex_private.queue q SET
        cursor = format('joex_private.ring_cursor_%s', v_id)::regclass,
        drawn = format('joex_private.drawn_%s', v_id)::regclass
    WHERE q.id = v_id;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION joex_private.make_ring_cursor() FROM PUBLIC;
-- After the insertion: one that finds the name taken has made no sequence. (Takes may try often, see serve_queue.) Always: where a
-- subscription inserts the row too, because what it writes next names the sequences. (It copies rows of sequences that exist.)
CREATE TRIGGER make_ring_cursor AFTER INSERT ON joex_private.queue FOR EACH ROW EXECUTE FUNCTION joex_private.make_ring_cursor();
ALTER TABLE joex_private.queue ENABLE ALWAYS TRIGGER make_ring_cursor;

-- The next services of a queue, which a take of a large fleet has chosen for the takes after it (see sql/35_plans.sql). Not logged: it
-- is worth nothing after a crash.
CREATE UNLOGGED TABLE joex_private.plan (
    queue     text NOT NULL,
    first     bigint NOT NULL,      -- the draw that gets the first entry
    tids      tid[] NOT NULL,       -- the rows of the jobs, in the order of service
    cursors   bigint[] NOT NULL,    -- the ring cursor before each service; none: all that could run was taken
    turns     smallint[] NOT NULL,  -- the position in the counting scheme of its group before it; null: the service is not counted
    ahead     integer NOT NULL,     -- how many services the next plan has
    made_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    renew_at  timestamptz NOT NULL,
    PRIMARY KEY (queue, first)
);
ALTER TABLE joex_private.plan ALTER COLUMN tids SET STORAGE PLAIN, ALTER COLUMN cursors SET STORAGE PLAIN,
    ALTER COLUMN turns SET STORAGE PLAIN;

-- Where takes begin to read while vacuum can't clear what lies before (see sql/25_floors.sql). Of the runnable jobs of rank ''
-- in a lane of the group none has a smaller seq, but for those of floor exceptions whose `at` is above `upto`. Of its jobs that are held
-- since before `held_upto` these are held.
CREATE TABLE joex_private.floor (
    queue      text NOT NULL,
    ring       bigint NOT NULL,
    upto       bigint NOT NULL,
    lane0      bigint NOT NULL,
    lane1      bigint NOT NULL,
    lane2      bigint NOT NULL,
    held_upto  bigint NOT NULL,
    held       uuid[] NOT NULL
);
CREATE UNIQUE INDEX floor_newest_first ON joex_private.floor (queue, ring, upto DESC);
ALTER TABLE joex_private.floor REPLICA IDENTITY USING INDEX floor_newest_first;
CREATE TABLE joex_private.floor_exception (
    queue  text NOT NULL,
    ring   bigint NOT NULL,
    at     bigint NOT NULL,     -- when it became runnable, among the seqs of jobs
    lane   smallint NOT NULL,
    seq    bigint NOT NULL
);
CREATE INDEX floor_exception_of_group ON joex_private.floor_exception (queue, ring, at);
-- (No key: where the sequence of seqs has gone back, after a fail-over, a job must come back all the same.)
ALTER TABLE joex_private.floor_exception REPLICA IDENTITY FULL;
CREATE SEQUENCE joex_private.floor_epoch OWNED BY joex_private.floor.upto;
CREATE SEQUENCE joex_private.long_takes OWNED BY joex_private.floor.upto;   -- how many takes had to walk over much; no value: none
CREATE SEQUENCE joex_private.floor_claims OWNED BY joex_private.floor.upto;     -- of the executor that raises floors (see claim)

-- TRUNCATE may let the seqs of jobs begin anew, below all floors: these go, and what was drawn for others is worth nothing.
CREATE FUNCTION joex_private.forget_floors() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM joex_private.floor;
    DELETE FROM joex_private.floor_exception;
    PERFORM setval('joex_private.floor_epoch', last_value + 2) FROM joex_private.floor_epoch WHERE is_called AND last_value % 2 = 1;
    RETURN NULL;
END $$;
CREATE TRIGGER forget_floors AFTER TRUNCATE ON joex_private.job FOR EACH STATEMENT EXECUTE FUNCTION joex_private.forget_floors();

-- How long a run of a task may go without a report (or, not renewable, may last) before its job is put back (see
-- joex_client.set_timeout).
CREATE TABLE joex_private.task_timeout (
    task       text PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 254),
    -- (A take adds it to the time of day: a sum beyond the calendar would stop all takes.)
    timeout    interval NOT NULL CONSTRAINT "timeout: more than zero, at most 100 years" CHECK (
        timeout > interval '0' AND timeout <= interval '36525 days'),
    renewable  boolean NOT NULL
);

-- The subscriptions of clients (see joex.subscribe), and the jobs that a subscriber waits for.
CREATE TABLE joex_private.subscriber (
    name    text PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 254),
    events  boolean NOT NULL,           -- to all events, not only to changes of its jobs
    until   timestamptz NOT NULL
);
-- (They find the subscription that lasts longest, for each submission.)
CREATE INDEX subscriber_until ON joex_private.subscriber (until);
CREATE INDEX subscriber_to_events_until ON joex_private.subscriber (until) WHERE events;
CREATE TABLE joex_private.subscription (
    job_id      uuid NOT NULL,
    subscriber  text NOT NULL REFERENCES joex_private.subscriber (name) ON DELETE CASCADE,
    PRIMARY KEY (subscriber, job_id)
);
CREATE INDEX subscription_of_job ON joex_private.subscription (job_id);

-- App-ids under which no executor takes a job or registers, until an operator forgets them. So an operator can remove an executor safely
-- (see joex_private.retire).
CREATE TABLE joex_private.retired (
    app_id      text PRIMARY KEY CHECK (app_id <> '' AND octet_length(app_id) <= 254),
    retired_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How the operators size their pools, and why: a row for each change (see joex_private.note_pool_step).
CREATE TABLE joex_private.pool_step (
    namespace  text NOT NULL,               -- for people
    home       text NOT NULL,               -- the first part of the app-ids of its executors: two clusters may have namespaces of one name
    pool       text NOT NULL,
    nr         bigint NOT NULL,             -- counts the steps of the pool: so a newest row, and rows in excess, are found at once
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    before     integer NOT NULL,
    target     integer NOT NULL,
    ready      integer NOT NULL,
    draining   integer NOT NULL,
    mode       text NOT NULL,
    why        text NOT NULL,
    wanted     integer,
    capped_by  text,
    runnable   integer NOT NULL,
    held       integer NOT NULL,
    next_due   timestamptz,
    PRIMARY KEY (home, pool, nr)
);
CREATE INDEX pool_step_at ON joex_private.pool_step (at);

-- The tokens of HTTP callers (see joex.core.access), by their hashes. A revoked token has no row.
CREATE TABLE joex_private.api_token (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text NOT NULL UNIQUE CHECK (name <> '' AND octet_length(name) <= 254),
    digest        bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),     -- SHA-256 of the token
    scopes        text[] NOT NULL CHECK (
        cardinality(scopes) > 0 AND scopes <@ ARRAY['view', 'payloads', 'submit', 'work', 'operate']),
    -- What it is bound to; null: all. (At most 100 of each: the lists of a bound token read group by group.)
    groups        text[] CHECK (cardinality(groups) BETWEEN 1 AND 100 AND array_position(groups, NULL) IS NULL),
    queues        text[] CHECK (cardinality(queues) BETWEEN 1 AND 100 AND array_position(queues, NULL) IS NULL),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at    timestamptz,                  -- null: never
    last_used_at  timestamptz                   -- to a minute
);

-- Subscriptions to notifications of waiting work: of a pool that could grow, while no executor is asleep (see joex_private.watch); and of
-- workers that wait in an accept (see joex_client.watch_for_workers).
CREATE TABLE joex_private.watch (
    queue  text NOT NULL CHECK (queue <> '' AND octet_length(queue) <= 254),
    name   text NOT NULL CHECK (name <> '' AND octet_length(name) <= 254),
    until  timestamptz NOT NULL,
    for_workers boolean NOT NULL DEFAULT false,
    PRIMARY KEY (name, queue, for_workers)    -- (a worker may have the name of an operator)
);
-- (A submission finds the watch of its queue that lasts longest; operators and the maintenance find those that ended first.)
CREATE INDEX watch_of_queue ON joex_private.watch (queue, for_workers, until);
CREATE INDEX watch_until ON joex_private.watch (until);

-- Periodic tasks: each submits jobs at the times of a timer. Only its owner changes a row. A row stays in its queue and its group.
CREATE TABLE joex_private.periodic_task (
    id                 text NOT NULL CONSTRAINT "id: 1 to 240 bytes" CHECK (id <> '' AND octet_length(id) <= 240),    -- it is also in a tracker
    owner              text NOT NULL DEFAULT 'user' CONSTRAINT "owner: 1 to 254 bytes" CHECK (owner <> '' AND octet_length(owner) <= 254),
    enabled            boolean NOT NULL DEFAULT true,
    task               text NOT NULL CONSTRAINT "task: 1 to 254 bytes" CHECK (task <> '' AND octet_length(task) <= 254),
    grp                text NOT NULL DEFAULT 'default' CONSTRAINT "group: 1 to 254 bytes" CHECK (grp <> '' AND octet_length(grp) <= 254),
    args               jsonb NOT NULL DEFAULT '{}' CONSTRAINT "args: must be a JSON object" CHECK (jsonb_typeof(args) = 'object'),
    subject            text NOT NULL DEFAULT '' CONSTRAINT "subject: at most 1000 bytes" CHECK (octet_length(subject) <= 1000),
    submitter          text NOT NULL DEFAULT '' CONSTRAINT "submitter: at most 254 bytes" CHECK (octet_length(submitter) <= 254),
    priority           joex_private.job_priority NOT NULL DEFAULT 'low',
    queue              text NOT NULL DEFAULT 'default' CONSTRAINT "queue: 1 to 254 bytes" CHECK (queue <> '' AND octet_length(queue) <= 254),
    timer              text NOT NULL CONSTRAINT "timer: 1 to 254 bytes" CHECK (timer <> '' AND octet_length(timer) <= 254),
    zone               text NOT NULL DEFAULT 'UTC' CONSTRAINT "zone: 1 to 64 bytes" CHECK (zone <> '' AND octet_length(zone) <= 64),
    starting_deadline  interval CONSTRAINT "starting_deadline: 0 to 1000 years"
                       CHECK (starting_deadline BETWEEN interval '0' AND interval '365250 days'),
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The owner writes the columns above, schedulers those below.
    revision           bigint NOT NULL DEFAULT 0,       -- another one with each of the owner's changes
    -- -infinity: not computed yet; infinity: there is no next time. (All others are times that Joex can read.)
    nextrun            timestamptz NOT NULL DEFAULT '-infinity'
                       CHECK (nextrun >= '1970-01-01 00:00+00' AND nextrun < '2300-01-01 00:00+00' OR NOT isfinite(nextrun)),
    worker             text,                            -- the scheduler that decided about it last, and when
    marked             timestamptz,
    last_run           timestamptz                      -- the latest time of the timer that was decided
                       CHECK (last_run >= '1970-01-01 00:00+00' AND last_run < '2300-01-01 00:00+00'),
    last_outcome       text CHECK (last_outcome IN ('submitted', 'started', 'overlapping', 'late')),
    last_job           uuid,                            -- the latest job that was submitted
    error              text,                            -- why it can't run: its timer, its zone, or its submission
    PRIMARY KEY (id, queue, grp),    -- (No tenant can take an id from another.)
    CONSTRAINT "task: must not begin with joex., as Joex's own names do" CHECK (owner = 'joex' OR NOT starts_with(task, 'joex.'))
) WITH (fillfactor = 50);
CREATE INDEX periodic_task_next ON joex_private.periodic_task (nextrun) WHERE enabled AND error IS NULL;
CREATE INDEX periodic_task_group ON joex_private.periodic_task (queue, grp, nextrun) WHERE enabled AND error IS NULL;
-- (A start of an executor reads the tasks of its app, in this order.)
CREATE INDEX periodic_task_owner ON joex_private.periodic_task (owner, id, queue, grp);
