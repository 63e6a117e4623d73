-- ready, scheduled -> cancelled, running: a cancel request; the key is free for the job that supersedes.
CREATE OR REPLACE FUNCTION bellwire.supersede(p_ids uuid[], p_by uuid[])
RETURNS TABLE (job_id uuid, state text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[];
BEGIN
    SELECT array_agg(h.id) INTO v_ids FROM (
        SELECT j.id FROM job j WHERE j.id = ANY (p_ids) AND j.finished_at IS NULL ORDER BY j.id FOR UPDATE) AS h;
    DELETE FROM outbox o WHERE o.job_id = ANY (v_ids);
    RETURN QUERY
    UPDATE job j
       SET superseded_by = i.by, key = NULL,
           cancel_requested_at = COALESCE(j.cancel_requested_at, clock.at),
           cancel_actor = COALESCE(j.cancel_actor, 'application'),
           cancel_reason = COALESCE(j.cancel_reason, 'superseded'),
           state = CASE WHEN j.state = 'running' THEN 'running' ELSE 'cancelled' END,
           reason = CASE WHEN j.state = 'running' THEN j.reason ELSE 'superseded' END,
           finished_at = CASE WHEN j.state = 'running' THEN NULL ELSE clock.at END
      FROM (SELECT bellwire.now() AS at) AS clock, unnest(p_ids, p_by) AS i(id, by)
     WHERE j.id = i.id AND j.id = ANY (v_ids)
    RETURNING j.id, j.state;
END $$;
