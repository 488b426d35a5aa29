-- The tables of Joex. Functions and views are in ../sql: they are installed anew after the numbered migrations.
--
-- A job is in exactly one of four places, and one column says which:
--   lane         runnable now          (0 retry that is due, 1 high priority, 2 low priority)
--   due_at       runnable later        (a retry that waits, or a submission with a not-before time)
--   executor_id  held by an executor   (scheduled or running)
--   finished_at  finished              (success, failed, cancelled)
-- Each place has its own partial index, so that ten million finished jobs cost a taker nothing.

CREATE TYPE joex.job_state AS ENUM ('waiting', 'scheduled', 'running', 'stuck', 'cancelled', 'failed', 'success');
CREATE TYPE joex.job_priority AS ENUM ('high', 'low');

-- Time-ordered ids (UUID version 7, RFC 9562). PostgreSQL 18 brings the function; for 16 and 17 the same layout is
-- made here: 48 bits of milliseconds over a random UUID, the version nibble set from 4 (0100) to 7 (0111).
DO $do$
BEGIN
    IF current_setting('server_version_num')::int >= 180000 THEN
        CREATE FUNCTION joex.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT pg_catalog.uuidv7()';
    ELSE
        CREATE FUNCTION joex.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
            SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
                   placing substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                   FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid $$;
    END IF;
END $do$;

-- A group's place on the ring of its queue: 56 bits of a hash, so that a cursor (place and services given there) fits
-- into one bigint. Two groups meet on one place with a chance of about 1 in 10 million at 100,000 groups; they would
-- then share one turn, nothing else.
CREATE FUNCTION joex.ring(grp text) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS
    'SELECT pg_catalog.hashtextextended(grp, 0) >> 8';

CREATE TABLE joex.executor (
    id             integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- one start of an executor: its incarnation
    app_id         text NOT NULL CHECK (app_id <> '' AND octet_length(app_id) <= 254),
    pod_uid        text,                    -- the pod it runs in; a restart in place keeps it, a new pod does not
    host           text NOT NULL,
    boot_id        text NOT NULL DEFAULT '',  -- with pid and process_start: this very process, for restarts in place
    pid            integer NOT NULL,
    process_start  text NOT NULL DEFAULT '',
    version        text NOT NULL,
    queues         text[] NOT NULL CHECK (cardinality(queues) > 0),
    tasks          text[] NOT NULL,
    pool_size      integer NOT NULL CHECK (pool_size > 0),
    http_address   text,
    lease          interval NOT NULL,       -- silence after which it is dead, when its lock is free
    locks          boolean NOT NULL,        -- false: it can't hold a session lock (transaction pooling); only time judges
    started_at     timestamptz NOT NULL DEFAULT now(),
    heartbeat_at   timestamptz NOT NULL DEFAULT now(),
    asleep_since   timestamptz,             -- set: it has nothing to do and wants to be woken
    draining       boolean NOT NULL DEFAULT false,
    left_at        timestamptz,             -- set: this incarnation has ended
    ending         text CHECK (ending IN ('left', 'dead', 'replaced')),
    orphans        boolean NOT NULL DEFAULT false,  -- it has ended, and jobs are still marked with it (rows locked by others)
    CHECK ((left_at IS NULL) = (ending IS NULL)),
    CHECK (left_at IS NULL OR asleep_since IS NULL)
) WITH (fillfactor = 50);                   -- room for the heartbeat's updates in the same page (HOT)

CREATE UNIQUE INDEX executor_one_live_incarnation ON joex.executor (app_id) WHERE left_at IS NULL;
CREATE INDEX executor_with_orphans ON joex.executor (id) WHERE orphans;
CREATE INDEX executor_ended ON joex.executor (left_at) WHERE left_at IS NOT NULL;

CREATE TABLE joex.job (
    id               uuid PRIMARY KEY DEFAULT joex.uuid7(),
    seq              bigint GENERATED ALWAYS AS IDENTITY,   -- first in, first out
    queue            text NOT NULL DEFAULT 'default' CHECK (queue <> '' AND octet_length(queue) <= 254),
    grp              text NOT NULL DEFAULT 'default' CHECK (grp <> '' AND octet_length(grp) <= 254),
    ring             bigint NOT NULL GENERATED ALWAYS AS (joex.ring(grp)) STORED,
    task             text NOT NULL CHECK (task <> '' AND octet_length(task) <= 254),
    args             jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(args) = 'object'),
    subject          text NOT NULL DEFAULT '' CHECK (octet_length(subject) <= 1000),
    submitter        text NOT NULL DEFAULT '' CHECK (octet_length(submitter) <= 254),
    tracker          text CHECK (tracker <> '' AND octet_length(tracker) <= 254),
    priority         joex.job_priority NOT NULL DEFAULT 'low',
    state            joex.job_state NOT NULL DEFAULT 'waiting',
    lane             smallint CHECK (lane BETWEEN 0 AND 2),
    due_at           timestamptz,
    runnable_since   timestamptz NOT NULL DEFAULT clock_timestamp(),    -- the time from which on it can be taken
    executor_id      integer,
    lock_id          uuid,                                  -- fencing token of the latest run
    app_id           text,                                  -- the executor of the latest run
    attempt          integer NOT NULL DEFAULT 0,            -- runs that were started
    failures         integer NOT NULL DEFAULT 0,            -- runs that failed since the submission or the last retry by hand
    losses           integer NOT NULL DEFAULT 0,            -- times its executor died while holding it
    retries          integer CHECK (retries >= 0),          -- re-runs allowed; null: the task's or the executor's default
    cancel_requested boolean NOT NULL DEFAULT false,
    progress         smallint NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    progress_message text,
    submitted_at     timestamptz NOT NULL DEFAULT now(),
    scheduled_at     timestamptz,
    started_at       timestamptz,
    finished_at      timestamptz,
    message          text,                                  -- of the result
    result           jsonb,
    error            text,                                  -- of the latest failed run
    CONSTRAINT job_is_in_one_place CHECK (num_nonnulls(lane, due_at, executor_id, finished_at) = 1),
    CONSTRAINT job_state_fits_its_place CHECK (
        CASE WHEN finished_at IS NOT NULL THEN state IN ('success', 'failed', 'cancelled')
             WHEN executor_id IS NOT NULL THEN state IN ('scheduled', 'running') AND lock_id IS NOT NULL
             WHEN lane = 0 THEN state = 'stuck'
             WHEN lane IS NOT NULL THEN state = 'waiting'
             ELSE state IN ('waiting', 'stuck') END)
) WITH (
    -- A queue turns its rows over many times a day: vacuum by a small share of the table, and without pauses.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX job_runnable ON joex.job (queue, ring, lane, seq) WHERE lane IS NOT NULL;
CREATE INDEX job_due ON joex.job (queue, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX job_held ON joex.job (queue, ring, executor_id) WHERE executor_id IS NOT NULL;
CREATE INDEX job_finished ON joex.job (finished_at) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX job_one_unfinished_per_tracker ON joex.job (tracker)
    WHERE tracker IS NOT NULL AND finished_at IS NULL;

CREATE TABLE joex.job_log (
    seq      bigint GENERATED ALWAYS AS IDENTITY,
    job_id   uuid NOT NULL,                 -- no foreign key: retention deletes a job's log with it, in batches
    attempt  integer NOT NULL,
    at       timestamptz NOT NULL,
    level    text NOT NULL CHECK (level IN ('debug', 'info', 'warning', 'error')),
    message  text NOT NULL,
    PRIMARY KEY (job_id, seq)
);

-- Settings of a group in a queue; a group without a row has weight 1, runs, and has no limit.
CREATE TABLE joex.group_setting (
    queue        text NOT NULL CHECK (queue <> '' AND octet_length(queue) <= 254),
    grp          text NOT NULL CHECK (grp <> '' AND octet_length(grp) <= 254),
    ring         bigint NOT NULL GENERATED ALWAYS AS (joex.ring(grp)) STORED,
    weight       integer NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 100),
    paused       boolean NOT NULL DEFAULT false,
    max_running  integer CHECK (max_running >= 0),
    PRIMARY KEY (queue, grp)
);
CREATE INDEX group_setting_by_ring ON joex.group_setting (queue, ring);

-- Where a group stands in its counting scheme. Written by takers alone, and only for groups in which both priorities wait.
CREATE TABLE joex.counting (
    queue     text NOT NULL,
    ring      bigint NOT NULL,
    position  integer NOT NULL,
    PRIMARY KEY (queue, ring)
) WITH (fillfactor = 50);

-- The ring cursor of a queue is the value of a sequence, not of a row: a sequence is moved outside of transactions, so
-- that a taker holds the ring only while it chooses, not while its commit reaches the disk, and no dead rows pile up.
CREATE TABLE joex.queue (
    name    text PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 254),
    id      integer GENERATED ALWAYS AS IDENTITY UNIQUE,
    cursor  regclass NOT NULL
);

-- App-ids under which nobody takes a job any more, nor registers, until the name is forgotten: this is what makes it
-- safe to remove an executor from outside (see joex.retire).
CREATE TABLE joex.retired (
    app_id      text PRIMARY KEY CHECK (app_id <> '' AND octet_length(app_id) <= 254),
    retired_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Who wants to hear of work that waits while no executor is asleep: a pool that could grow, until then (see joex.watch).
CREATE TABLE joex.watch (
    queue  text NOT NULL CHECK (queue <> '' AND octet_length(queue) <= 254),
    name   text NOT NULL CHECK (name <> '' AND octet_length(name) <= 254),
    until  timestamptz NOT NULL,
    PRIMARY KEY (queue, name)
) WITH (fillfactor = 50);

-- Jobs that are submitted again and again. `owner` says who made a row; nobody else changes it by accident.
CREATE TABLE joex.periodic_task (
    id                 text PRIMARY KEY CHECK (id <> '' AND octet_length(id) <= 254),
    owner              text NOT NULL CHECK (owner <> '' AND octet_length(owner) <= 254),
    enabled            boolean NOT NULL,
    task               text NOT NULL CHECK (task <> '' AND octet_length(task) <= 254),
    grp                text NOT NULL CHECK (grp <> '' AND octet_length(grp) <= 254),
    args               jsonb NOT NULL CHECK (jsonb_typeof(args) = 'object'),
    subject            text NOT NULL CHECK (octet_length(subject) <= 1000),
    submitter          text NOT NULL CHECK (octet_length(submitter) <= 254),
    priority           joex.job_priority NOT NULL,
    queue              text NOT NULL CHECK (queue <> '' AND octet_length(queue) <= 254),
    timer              text NOT NULL CHECK (timer <> '' AND octet_length(timer) <= 254),
    zone               text NOT NULL CHECK (zone <> '' AND octet_length(zone) <= 64),
    starting_deadline  interval CHECK (starting_deadline >= interval '0'),
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Chores that some executor submits as a job of the system group every so often.
CREATE TABLE joex.chore (
    name          text PRIMARY KEY,
    submitted_at  timestamptz NOT NULL
);
