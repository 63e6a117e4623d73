-- A half-open owner keeps its rows locked for as long as the operating system believes in it. A job whose lease has been
-- over for longer than p_over, and which recovery could not take, is held by somebody's open transaction.
CREATE OR REPLACE FUNCTION bellwire.overdue(p_over interval, p_limit integer) RETURNS SETOF uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bellwire, pg_temp
AS $$
    SELECT j.id FROM job j WHERE j.state = 'running' AND j.lease_expires_at < bellwire.now() - p_over
     ORDER BY j.lease_expires_at LIMIT p_limit
$$;

-- Waits briefly for the job's row, so that another connection can ask what this one waits for. True: nobody holds it.
CREATE OR REPLACE FUNCTION bellwire.await_row(p_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bellwire, pg_temp SET lock_timeout = '500ms'
AS $$
BEGIN
    PERFORM 1 FROM job j WHERE j.id = p_id FOR UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Ends the sessions that p_waiter waits for, where they are ours: a daemon's, or one that an attempt's transaction has
-- marked. Runs as the caller, who needs pg_signal_backend. An application's own session is named, not ended.
CREATE OR REPLACE FUNCTION bellwire.evict(p_waiter integer)
RETURNS TABLE (pid integer, application_name text, ended boolean) LANGUAGE sql VOLATILE
SET search_path = bellwire, pg_temp
AS $$
    SELECT a.pid, a.application_name,
           CASE WHEN a.application_name LIKE 'bellwire%' OR a.usename IN ('bellwire_relay', 'bellwire_consumer')
                THEN pg_terminate_backend(a.pid) ELSE false END
      FROM unnest(pg_blocking_pids(p_waiter)) AS b(pid) JOIN pg_stat_activity a ON a.pid = b.pid
$$;
