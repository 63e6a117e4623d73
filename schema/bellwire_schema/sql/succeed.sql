-- running -> succeeded. The token alone decides: a success by a living token stands, even past lease or deadline.
CREATE OR REPLACE FUNCTION bellwire.succeed(
    p_ids uuid[], p_tokens uuid[], p_attempts uuid[], p_results jsonb[])
RETURNS TABLE (attempt_id uuid, status text, state text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v bellwire.verdict[];
BEGIN
    SELECT array_agg(ROW(h.id, 'succeeded', 'succeeded', NULL, NULL, NULL, NULL, NULL, h.p_result, 1, 0, 0, 0, 0)::bellwire.verdict)
      INTO v
      FROM (SELECT i.p_result, j.*
              FROM (SELECT * FROM unnest(p_ids, p_tokens, p_results)
                        AS u(id, token, p_result) ORDER BY 1) AS i
             CROSS JOIN LATERAL (
                SELECT f.* FROM job f WHERE f.id = i.id AND f.token = i.token
                   FOR UPDATE SKIP LOCKED) AS j) AS h;
    RETURN QUERY SELECT * FROM _settle(p_ids, p_tokens, p_attempts, v);
END $$;
