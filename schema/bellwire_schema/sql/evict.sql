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

-- Ends the sessions that await_row waits for now, where they are ours: a daemon's, or one that an attempt's transaction
-- has marked. Runs as the caller, who needs pg_signal_backend. An application's own session is named, not ended. The
-- waiter is found by what it runs, because a pooler hides which server session a client has.
CREATE OR REPLACE FUNCTION bellwire.evict() RETURNS TABLE (pid integer, application_name text, ended boolean)
LANGUAGE sql VOLATILE SET search_path = bellwire, pg_temp
AS $$
    SELECT a.pid, a.application_name,
           -- A superuser's session may be ended by superusers only: it is named, too.
           CASE WHEN (a.application_name LIKE 'bellwire%' OR a.usename IN ('bellwire_relay', 'bellwire_consumer'))
                     AND (NOT holder.rolsuper OR me.rolsuper)
                THEN pg_terminate_backend(a.pid) ELSE false END
      FROM (SELECT DISTINCT b.pid
              FROM pg_stat_activity w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b(pid)
             WHERE w.datname = current_database() AND w.wait_event_type = 'Lock'
               AND w.query LIKE '%bellwire.await_row(%' AND w.pid <> pg_backend_pid()) AS blocking
      JOIN pg_stat_activity a ON a.pid = blocking.pid
      JOIN pg_roles holder ON holder.oid = a.usesysid
      JOIN pg_roles me ON me.rolname = current_user
$$;
