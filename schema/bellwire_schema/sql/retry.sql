-- running -> scheduled by backoff, or -> failed where a budget or the deadline is reached, or -> cancelled where that
-- was asked for: decided here, in the statement that records the failure. Policy is the kind's, read now.
CREATE OR REPLACE FUNCTION bellwire.retry(
    p_ids uuid[], p_tokens uuid[], p_attempts uuid[], p_classes text[], p_codes text[], p_messages text[], p_randoms double precision[], p_delays interval[])
RETURNS TABLE (attempt_id uuid, status text, state text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v bellwire.verdict[];
BEGIN
    SELECT array_agg(ROW(
           h.id, e.outcome, e.state, e.reason, e.run_at, h.p_class, h.p_code, h.p_message, NULL, 1,
           e.unknown, e.death, 0, 0)::bellwire.verdict)
      INTO v
      FROM (SELECT i.p_class, i.p_code, i.p_message, i.p_random, i.p_delay, j.*
              FROM (SELECT * FROM unnest(p_ids, p_tokens, p_classes, p_codes, p_messages, p_randoms, p_delays)
                        AS u(id, token, p_class, p_code, p_message, p_random, p_delay) ORDER BY 1) AS i
             CROSS JOIN LATERAL (
                SELECT f.* FROM job f WHERE f.id = i.id AND f.token = i.token
                   FOR UPDATE SKIP LOCKED) AS j) AS h
      CROSS JOIN LATERAL (SELECT bellwire.now() AS at) AS clock
      LEFT JOIN kind k ON k.name = h.kind
      CROSS JOIN LATERAL (
          SELECT clock.at + COALESCE(h.p_delay, backoff(
                     COALESCE(k.retry_base, '30 seconds'), COALESCE(k.retry_factor, 2),
                     COALESCE(k.retry_cap, '10 minutes'), COALESCE(k.retry_floor, '0'),
                     COALESCE(k.retry_jitter, true), h.attempts_used + 1, h.p_random)) AS at,
                 CASE WHEN h.p_class = 'unknown' THEN 1 ELSE 0 END AS unknown,
                 CASE WHEN h.p_class = 'process_died' THEN 1 ELSE 0 END AS death) AS next
      CROSS JOIN LATERAL (
          SELECT next.unknown, next.death,
                 CASE WHEN h.cancel_requested_at IS NOT NULL THEN ARRAY['stopped', 'cancelled', 'cancelled']
                      WHEN h.attempts_used + 1 >= COALESCE(h.max_attempts, k.max_attempts, 5)
                           OR (next.unknown = 1 AND h.unknown_errors + 1 >= k.max_unknown)
                           OR (next.death = 1 AND h.deaths + 1 >= COALESCE(k.max_deaths, 5))
                           THEN ARRAY['failed', 'failed', 'exhausted']
                      WHEN h.deadline_at < next.at THEN ARRAY['failed', 'failed', 'deadline_exceeded']
                      ELSE ARRAY['retry', 'scheduled', 'retry'] END AS told,
                 next.at AS run_at_) AS d
      CROSS JOIN LATERAL (
          SELECT d.told[1] AS outcome, d.told[2] AS state, d.told[3] AS reason, d.unknown, d.death,
                 CASE WHEN d.told[2] = 'scheduled' THEN d.run_at_ END AS run_at) AS e;
    RETURN QUERY SELECT * FROM _settle(p_ids, p_tokens, p_attempts, v);
END $$;
