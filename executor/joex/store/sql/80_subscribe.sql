-- Notifications of changes of jobs, for clients that do not poll.

-- Subscribe, or renew a subscription. While it lasts, Joex notifies on the channel joex_jobs of changes of the jobs given to
-- joex.wait_for and, with events, on joex_events of all events. Returns true if the subscription goes on without a gap; false if it
-- begins now: it is new, or it was renewed too late, so that notifications may be missing and Joex has forgotten the jobs given to
-- joex.wait_for. When this has committed, a transaction below the joex.horizon may still change a job without a notification.
CREATE OR REPLACE FUNCTION joex.subscribe(
    name text,                          -- of the client: each has its own
    lasts interval,                     -- renew it well before
    events boolean DEFAULT true
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    v_until timestamptz;
BEGIN
    SELECT s.until INTO v_until FROM joex_private.subscriber s WHERE s.name = name FOR UPDATE;
    DELETE FROM joex_private.subscriber s WHERE s.until < clock_timestamp() - interval '1 hour' AND s.name <> name;
    INSERT INTO joex_private.subscriber AS s (name, events, until) VALUES (name, events, clock_timestamp() + lasts)
    ON CONFLICT ON CONSTRAINT subscriber_pkey DO UPDATE SET until = excluded.until, events = excluded.events;
    RETURN coalesce(v_until - lasts / 10 > clock_timestamp(), false);   -- (the renewal commits a little later)
END $$;

-- End a subscription, and its waits.
CREATE OR REPLACE FUNCTION joex.unsubscribe(name text) RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM joex_private.subscriber s WHERE s.name = unsubscribe.name $$;

-- Add jobs to a subscription.
CREATE OR REPLACE FUNCTION joex.wait_for(name text, ids uuid[]) RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO joex_private.subscription (job_id, subscriber) SELECT DISTINCT i.id, wait_for.name FROM unnest(ids) i(id)
    ON CONFLICT DO NOTHING $$;

-- Remove jobs from a subscription.
CREATE OR REPLACE FUNCTION joex.wait_no_more(name text, ids uuid[]) RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM joex_private.subscription s WHERE s.subscriber = wait_no_more.name AND s.job_id = ANY (ids) $$;

-- A transaction id that is larger than that of each transaction that writes now. Call it in a transaction of its own: while
-- `pg_snapshot_xmin(pg_current_snapshot())` is below it, one of those transactions is still open.
CREATE OR REPLACE FUNCTION joex.horizon() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    -- (The end of a snapshot would not do: it is at most the id after the last committed one, and younger transactions may be open.)
    SELECT pg_current_xact_id()::text::bigint $$;
