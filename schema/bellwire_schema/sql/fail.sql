-- running -> failed: an error that no retry can mend.
CREATE OR REPLACE FUNCTION bellwire.fail(
    p_ids uuid[], p_tokens uuid[], p_attempts uuid[], p_classes text[], p_codes text[], p_messages text[])
RETURNS TABLE (attempt_id uuid, status text, state text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v bellwire.verdict[];
BEGIN
    SELECT array_agg(ROW(h.id, 'failed', 'failed', h.p_class, NULL, h.p_class, h.p_code, h.p_message, NULL, 1, 0, 0, 0, 0)::bellwire.verdict)
      INTO v
      FROM (SELECT i.p_class, i.p_code, i.p_message, j.*
              FROM (SELECT * FROM unnest(p_ids, p_tokens, p_classes, p_codes, p_messages)
                        AS u(id, token, p_class, p_code, p_message) ORDER BY 1) AS i
             CROSS JOIN LATERAL (
                SELECT f.* FROM job f WHERE f.id = i.id AND f.token = i.token
                   FOR UPDATE SKIP LOCKED) AS j) AS h;
    RETURN QUERY SELECT * FROM _settle(p_ids, p_tokens, p_attempts, v);
END $$;
