-- Takes jobs back from leases that have expired by the database's clock. The token that is current now is what ends
-- the attempt, in one statement that skips locked rows: a row locked by its own attempt's transaction is alive.
CREATE OR REPLACE FUNCTION bellwire.recover(p_limit integer, p_randoms double precision[])
RETURNS TABLE (job_id uuid, kind text, outcome text, state text, consumer uuid) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v bellwire.verdict[];
    v_who uuid[];
    v_kinds text[];
BEGIN
    SELECT array_agg(ROW(h.id, 'recovered', d.told[1], d.told[2],
                         CASE WHEN d.told[1] = 'scheduled' THEN next.at END,
                         cause.code, cause.code, d.told[3], NULL, 1, 0, cause.death, 0, 0)::bellwire.verdict),
           array_agg(h.consumer), array_agg(h.kind)
      INTO v, v_who, v_kinds
      FROM (SELECT j.*, row_number() OVER () AS n FROM (
              SELECT j.* FROM job j
               WHERE j.state = 'running' AND j.lease_expires_at <= bellwire.now()
               ORDER BY j.lease_expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED) AS j) AS h
     CROSS JOIN LATERAL (SELECT bellwire.now() AS at) AS clock
      LEFT JOIN kind k ON k.name = h.kind
     CROSS JOIN LATERAL (
        SELECT c.code, CASE WHEN c.code = 'lease_expired' THEN 1 ELSE 0 END AS death FROM (
            SELECT CASE WHEN h.started_at + h.timeout <= h.lease_expires_at
                             OR h.deadline_at <= h.lease_expires_at THEN 'timed_out'
                        WHEN h.progress_at + h.progress_timeout <= h.lease_expires_at THEN 'stalled'
                        ELSE 'lease_expired' END AS code) AS c) AS cause
     CROSS JOIN LATERAL (
        SELECT clock.at + backoff(
            COALESCE(k.retry_base, '30 seconds'), COALESCE(k.retry_factor, 2), COALESCE(k.retry_cap, '10 minutes'),
            COALESCE(k.retry_floor, '0'), COALESCE(k.retry_jitter, true), h.attempts_used + 1,
            p_randoms[1 + (h.n - 1) % cardinality(p_randoms)]) AS at) AS next
     CROSS JOIN LATERAL (
        SELECT CASE WHEN h.cancel_requested_at IS NOT NULL THEN ARRAY['cancelled', 'cancelled', NULL]
                    WHEN h.deadline_at <= clock.at THEN ARRAY['failed', 'deadline_exceeded', NULL]
                    WHEN h.attempts_used + 1 >= COALESCE(h.max_attempts, k.max_attempts, 5)
                         OR (cause.death = 1 AND h.deaths + 1 >= COALESCE(k.max_deaths, 5))
                         THEN ARRAY['failed', 'exhausted', NULL]
                    -- The first death since the last redrive says little about the job: it goes back at once.
                    WHEN cause.death = 1 AND h.deaths = 0 THEN ARRAY['ready', NULL, NULL]
                    WHEN h.deadline_at < next.at THEN ARRAY['failed', 'deadline_exceeded', NULL]
                    ELSE ARRAY['scheduled', 'recovered', NULL] END AS told) AS d;
    IF v IS NULL THEN
        RETURN;
    END IF;
    PERFORM _end(v);
    RETURN QUERY SELECT u.id, k.kind, u.code, u.state, k.consumer
      FROM unnest(v) WITH ORDINALITY AS u(id, outcome, state, reason, run_at, error_class, code, message, result,
                                          used, unknown_errors, deaths, waits, releases, n)
      JOIN unnest(v_who, v_kinds) WITH ORDINALITY AS k(consumer, kind, n) ON k.n = u.n;
END $$;
