-- running -> ready: handed back at shutdown; uses up no attempt, but only so often.
CREATE OR REPLACE FUNCTION bellwire.release(
    p_ids uuid[], p_tokens uuid[], p_attempts uuid[])
RETURNS TABLE (attempt_id uuid, status text, state text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v bellwire.verdict[];
BEGIN
    SELECT array_agg(ROW(
           h.id, d.told[1], d.told[2], d.told[3], NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1)::bellwire.verdict)
      INTO v
      FROM (SELECT j.*
              FROM (SELECT * FROM unnest(p_ids, p_tokens)
                        AS u(id, token) ORDER BY 1) AS i
             CROSS JOIN LATERAL (
                SELECT f.* FROM job f WHERE f.id = i.id AND f.token = i.token
                   FOR UPDATE SKIP LOCKED) AS j) AS h
      LEFT JOIN kind k ON k.name = h.kind
      CROSS JOIN LATERAL (
          SELECT CASE WHEN h.cancel_requested_at IS NOT NULL THEN ARRAY['stopped', 'cancelled', 'cancelled']
                      WHEN h.releases + 1 > COALESCE(k.max_releases, 100) THEN ARRAY['failed', 'failed', 'abandoned']
                      ELSE ARRAY['released', 'ready', NULL] END AS told) AS d;
    RETURN QUERY SELECT * FROM _settle(p_ids, p_tokens, p_attempts, v);
END $$;

-- A claim whose answer was lost may have been committed long after: what carries one of its tokens is handed back.
CREATE OR REPLACE FUNCTION bellwire.release_doubtful(p_consumer uuid, p_tokens uuid[])
RETURNS TABLE (job_id uuid) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_ids uuid[]; v_tokens uuid[]; v_attempts uuid[];
BEGIN
    SELECT array_agg(j.id), array_agg(j.token), array_agg(j.attempt_id) INTO v_ids, v_tokens, v_attempts
      FROM job j WHERE j.state = 'running' AND j.consumer = p_consumer AND j.token = ANY (p_tokens);
    RETURN QUERY
    SELECT j.id FROM release(v_ids, v_tokens, v_attempts) r
      JOIN unnest(v_ids, v_attempts) AS j(id, attempt_id) ON j.attempt_id = r.attempt_id
     WHERE r.status = 'settled';
END $$;
