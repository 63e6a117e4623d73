-- running -> scheduled because a dependency said "slower": uses up no attempt. With a scope it holds back the whole
-- tenant or kind; admission sees the hold and takes back what it has let go.
CREATE OR REPLACE FUNCTION bellwire.throttle(
    p_ids uuid[], p_tokens uuid[], p_attempts uuid[], p_codes text[], p_messages text[], p_delays interval[], p_scopes text[])
RETURNS TABLE (attempt_id uuid, status text, state text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v bellwire.verdict[];
BEGIN
    SELECT array_agg(ROW(
           h.id, d.told[1], d.told[2], d.told[3], CASE WHEN d.told[2] = 'scheduled' THEN clock.at + h.p_delay END,
           'throttled', h.p_code, h.p_message, NULL, 0, 0, 0, 1, 0)::bellwire.verdict)
      INTO v
      FROM (SELECT i.p_code, i.p_message, i.p_delay, i.p_scope, j.*
              FROM (SELECT * FROM unnest(p_ids, p_tokens, p_codes, p_messages, p_delays, p_scopes)
                        AS u(id, token, p_code, p_message, p_delay, p_scope) ORDER BY 1) AS i
             CROSS JOIN LATERAL (
                SELECT f.* FROM job f WHERE f.id = i.id AND f.token = i.token
                   FOR UPDATE SKIP LOCKED) AS j) AS h
      CROSS JOIN LATERAL (SELECT bellwire.now() AS at) AS clock
      LEFT JOIN kind k ON k.name = h.kind
      CROSS JOIN LATERAL (
          SELECT CASE WHEN h.cancel_requested_at IS NOT NULL THEN ARRAY['stopped', 'cancelled', 'cancelled']
                      WHEN h.waits + 1 > COALESCE(k.max_waits, 1000) THEN ARRAY['failed', 'failed', 'throttled_out']
                      WHEN h.deadline_at < clock.at + h.p_delay THEN ARRAY['failed', 'failed', 'deadline_exceeded']
                      ELSE ARRAY['throttled', 'scheduled', 'throttled'] END AS told) AS d;
    INSERT INTO hold AS held (kind, tenant, whole_kind, until, code)
    SELECT j.kind, CASE WHEN i.scope = 'kind' THEN '' ELSE j.tenant END, i.scope = 'kind',
           max(bellwire.now() + i.delay), max(i.code)
      FROM unnest(p_ids, p_codes, p_delays, p_scopes) AS i(id, code, delay, scope)
     CROSS JOIN LATERAL (SELECT f.kind, f.tenant FROM job f WHERE f.id = i.id OFFSET 0) AS j
     WHERE i.scope IS NOT NULL AND i.id = ANY (ARRAY(SELECT d.id FROM unnest(v) AS d)) GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (kind, tenant, whole_kind) DO UPDATE SET until = GREATEST(held.until, excluded.until), code = excluded.code;
    RETURN QUERY SELECT * FROM _settle(p_ids, p_tokens, p_attempts, v);
END $$;
