-- running -> scheduled because the handler asks for it: uses up no attempt, is counted, bounded by the deadline.
CREATE OR REPLACE FUNCTION bellwire.snooze(
    p_ids uuid[], p_tokens uuid[], p_attempts uuid[], p_codes text[], p_delays interval[])
RETURNS TABLE (attempt_id uuid, status text, state text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v bellwire.verdict[];
BEGIN
    SELECT array_agg(ROW(
           h.id, d.told[1], d.told[2], d.told[3], CASE WHEN d.told[2] = 'scheduled' THEN clock.at + h.p_delay END,
           'snoozed', h.p_code, NULL, NULL, 0, 0, 0, 1, 0)::bellwire.verdict)
      INTO v
      FROM (SELECT i.p_code, i.p_delay, j.*
              FROM (SELECT * FROM unnest(p_ids, p_tokens, p_codes, p_delays)
                        AS u(id, token, p_code, p_delay) ORDER BY 1) AS i
             CROSS JOIN LATERAL (
                SELECT f.* FROM job f WHERE f.id = i.id AND f.token = i.token
                   FOR UPDATE SKIP LOCKED) AS j) AS h
      CROSS JOIN LATERAL (SELECT bellwire.now() AS at) AS clock
      LEFT JOIN kind k ON k.name = h.kind
      CROSS JOIN LATERAL (
          SELECT CASE WHEN h.cancel_requested_at IS NOT NULL THEN ARRAY['stopped', 'cancelled', 'cancelled']
                      WHEN h.waits + 1 > COALESCE(k.max_waits, 1000) THEN ARRAY['failed', 'failed', 'throttled_out']
                      WHEN h.deadline_at < clock.at + h.p_delay THEN ARRAY['failed', 'failed', 'deadline_exceeded']
                      ELSE ARRAY['snoozed', 'scheduled', 'snoozed'] END AS told) AS d;
    RETURN QUERY SELECT * FROM _settle(p_ids, p_tokens, p_attempts, v);
END $$;
