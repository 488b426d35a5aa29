-- Hearing of what happens to jobs, without asking again and again.

-- Listen for so long (again and again: it must be renewed) under this name, on the channels joex_events (all events; only where
-- p_events) and joex_jobs (changes of the jobs given to wait_for). When this has committed, a transaction below the
-- joex.horizon may still change a job without telling. True: it goes on without a gap. False: it begins; or it was renewed
-- too late, so that something may have been missed, and the jobs given to wait_for be forgotten.
CREATE OR REPLACE FUNCTION joex.subscribe(p_name text, p_for interval, p_events boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_until timestamptz;
BEGIN
    SELECT s.until INTO v_until FROM joex_private.subscriber s WHERE s.name = p_name FOR UPDATE;
    DELETE FROM joex_private.subscriber s WHERE s.until < clock_timestamp() - interval '1 hour' AND s.name <> p_name;
    INSERT INTO joex_private.subscriber AS s (name, events, until) VALUES (p_name, p_events, clock_timestamp() + p_for)
    ON CONFLICT (name) DO UPDATE SET until = excluded.until, events = excluded.events;
    RETURN coalesce(v_until - p_for / 10 > clock_timestamp(), false);   -- (it is renewed when this commits, a little later)
END $$;

-- Listen no more.
CREATE OR REPLACE FUNCTION joex.unsubscribe(p_name text) RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM joex_private.subscriber s WHERE s.name = p_name $$;

-- A subscriber wants to hear of these jobs.
CREATE OR REPLACE FUNCTION joex.wait_for(p_name text, p_ids uuid[]) RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO joex_private.subscription (job_id, subscriber) SELECT DISTINCT i.id, p_name FROM unnest(p_ids) i(id)
    ON CONFLICT DO NOTHING $$;

-- A subscriber has heard enough of these jobs.
CREATE OR REPLACE FUNCTION joex.wait_no_more(p_name text, p_ids uuid[]) RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM joex_private.subscription s WHERE s.subscriber = p_name AND s.job_id = ANY (p_ids) $$;
