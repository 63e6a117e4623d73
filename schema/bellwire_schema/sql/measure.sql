-- Backlog and ages, computed once and read by everybody. Counts stop at 100,000 a kind and say so by that number.
CREATE OR REPLACE FUNCTION bellwire.measure(
    p_relay uuid, p_token uuid, p_kinds text[] DEFAULT '{}', p_rates double precision[] DEFAULT '{}')
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = bellwire, pg_temp SET jit = off
AS $$
DECLARE
    v_now timestamptz := bellwire.now();
    v_count bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM kind_owner o WHERE o.kind = '*' AND o.relay = p_relay AND o.token = p_token
                      AND o.expires_at > v_now) THEN
        RETURN 0;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO measure AS m (kind, measured_at, ready, scheduled, running, failed, oldest_ready_at,
                              oldest_running_at, finished_per_second)
    SELECT k.name, v_now, r.n, COALESCE(s.n, 0), COALESCE(g.n, 0), f.n, r.oldest, g.oldest, rate.per_second
      FROM (SELECT name FROM kind
            UNION SELECT w.kind FROM (SELECT o.kind FROM outbox o LIMIT 100000) AS w) AS k
     CROSS JOIN LATERAL (
        SELECT count(*) AS n, min(w.eligible_at) AS oldest FROM (
            SELECT o.eligible_at FROM outbox o WHERE o.kind = k.name LIMIT 100000) AS w) AS r
     CROSS JOIN LATERAL (
        SELECT count(*) AS n FROM (
            SELECT FROM job j WHERE j.kind = k.name AND j.state = 'failed' LIMIT 100000) AS w) AS f
      LEFT JOIN (SELECT w.kind, count(*) AS n FROM (
                    SELECT j.kind FROM job j WHERE j.state = 'scheduled' ORDER BY j.run_at LIMIT 100000) AS w
                  GROUP BY w.kind) AS s ON s.kind = k.name
      LEFT JOIN (SELECT j.kind, count(*) AS n, min(j.started_at) AS oldest FROM job j
                  WHERE j.state = 'running' GROUP BY j.kind) AS g ON g.kind = k.name
      LEFT JOIN unnest(p_kinds, p_rates) AS rate(kind, per_second) ON rate.kind = k.name
    ON CONFLICT (kind) DO UPDATE
       SET measured_at = excluded.measured_at, ready = excluded.ready, scheduled = excluded.scheduled,
           running = excluded.running, failed = excluded.failed, oldest_ready_at = excluded.oldest_ready_at,
           oldest_running_at = excluded.oldest_running_at, finished_per_second = excluded.finished_per_second;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
