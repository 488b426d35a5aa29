-- Names shared by the other files. The files are installed in the order of their names.

-- The advisory-lock classes of Joex, so that its keys meet nobody else's by accident ("joex" in ASCII, plus a number).
--   0 migration; 1 an executor lives (held by its session); 2 an executor takes (shared) or ends (exclusive);
--   3 the ring of a queue; 4 a group with a limit, while a take from it has not committed; 5 an app-id is registered or
--   retired
-- Where several are taken, then in this order: 5, 0, 2, the row of the executor.
CREATE OR REPLACE FUNCTION joex.lock_class(n integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 1785685000 + n';

CREATE OR REPLACE FUNCTION joex.lane(priority joex.job_priority) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT CASE priority WHEN 'high' THEN 1::smallint ELSE 2::smallint END $$;

-- Wake executors that sleep and serve the queue: no more than there are jobs, and the latest to fall asleep first, so that
-- the longest idle stay idle (and can be scaled away). An executor that fills all its slots and leaves work behind wakes
-- the next ones (see take), so a few names are enough. Nobody asleep: then those who could add executors are told, if they
-- want to be (see joex.watch). Else no notification, because NOTIFY makes its transaction take a lock that all notifying
-- transactions of the server share.
--
-- The snapshot of a REPEATABLE READ transaction may be older than the moment an executor fell asleep, or a pool began to
-- watch: it can't know, and so notifies in any case (an empty list means: whoever sleeps, look).
CREATE OR REPLACE FUNCTION joex.wake(p_queue text, p_jobs bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_ids integer[];
BEGIN
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        SELECT array_agg(s.id) INTO v_ids FROM (
            SELECT e.id FROM joex.executor e
            WHERE e.left_at IS NULL AND e.asleep_since IS NOT NULL AND NOT e.draining AND p_queue = ANY (e.queues)
            ORDER BY e.asleep_since DESC LIMIT least(p_jobs, 4)) s;
        IF v_ids IS NULL THEN
            IF EXISTS (SELECT FROM joex.watch w WHERE w.queue = p_queue AND w.until > clock_timestamp()) THEN
                PERFORM pg_notify('joex_operator', json_build_object('queue', p_queue)::text);
            END IF;
            RETURN;
        END IF;
    ELSE
        PERFORM pg_notify('joex_operator', json_build_object('queue', p_queue)::text);
    END IF;
    PERFORM pg_notify('joex_wake', json_build_object('queue', p_queue, 'executors', coalesce(v_ids, '{}'))::text);
END $$;

-- Tell executors something about one of theirs: {"do": "cancel", "executor": 7, "job": "..."} and the like.
CREATE OR REPLACE FUNCTION joex.tell(p_executor integer, p_do text, p_job uuid DEFAULT NULL) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT pg_notify('joex_control', json_build_object('do', p_do, 'executor', p_executor, 'job', p_job)::text) $$;

-- Tell those who add and remove executors that one has come, drains, or has gone.
CREATE OR REPLACE FUNCTION joex.tell_operators(p_app_id text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT FROM joex.watch) THEN
        PERFORM pg_notify('joex_operator', json_build_object('executor', p_app_id)::text);
    END IF;
END $$;
