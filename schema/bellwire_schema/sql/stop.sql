-- running -> cancelled: the handler stopped at a safe point because somebody had asked it to.
CREATE OR REPLACE FUNCTION bellwire.stop(
    p_ids uuid[], p_tokens uuid[], p_attempts uuid[], p_messages text[])
RETURNS TABLE (attempt_id uuid, status text, state text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v bellwire.verdict[];
BEGIN
    SELECT array_agg(ROW(h.id, 'stopped', 'cancelled', 'cancelled', NULL, 'cancelled', 'cancelled', h.p_message, NULL, 1, 0, 0, 0, 0)::bellwire.verdict)
      INTO v
      FROM (SELECT i.p_message, j.*
              FROM (SELECT * FROM unnest(p_ids, p_tokens, p_messages)
                        AS u(id, token, p_message) ORDER BY 1) AS i
             CROSS JOIN LATERAL (
                SELECT f.* FROM job f WHERE f.id = i.id AND f.token = i.token AND f.cancel_requested_at IS NOT NULL
                   FOR UPDATE SKIP LOCKED) AS j) AS h;
    RETURN QUERY SELECT * FROM _settle(p_ids, p_tokens, p_attempts, v);
END $$;
