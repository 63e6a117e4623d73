-- ready, scheduled -> cancelled; running: a request with actor, reason and time, which the attempt hears with its next
-- beat. Jobs are locked first, in id order; their wake-ups go in a second statement on a fresh snapshot.
CREATE OR REPLACE FUNCTION bellwire.cancel(p_ids uuid[], p_actor text, p_reason text)
RETURNS TABLE (job_id uuid, outcome text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[];
BEGIN
    SELECT array_agg(h.id) INTO v_ids FROM (
        SELECT j.id FROM job j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR UPDATE) AS h;
    DELETE FROM outbox o WHERE o.job_id = ANY (v_ids);
    RETURN QUERY
    WITH clock AS (SELECT bellwire.now() AS at),
    changed AS (
        UPDATE job j
           SET cancel_requested_at = COALESCE(j.cancel_requested_at, clock.at),
               cancel_actor = COALESCE(j.cancel_actor, p_actor),
               cancel_reason = COALESCE(j.cancel_reason, p_reason),
               state = CASE WHEN j.state = 'running' THEN 'running' ELSE 'cancelled' END,
               reason = CASE WHEN j.state = 'running' THEN j.reason ELSE 'cancelled' END,
               finished_at = CASE WHEN j.state = 'running' THEN NULL ELSE clock.at END,
               key = CASE WHEN j.unique_until <> 'pruned' AND j.state <> 'running' THEN NULL ELSE j.key END
          FROM clock
         WHERE j.id = ANY (v_ids) AND j.finished_at IS NULL
        RETURNING j.id, j.state)
    SELECT i.id, CASE WHEN c.state = 'cancelled' THEN 'cancelled' WHEN c.id IS NOT NULL THEN 'requested'
                      WHEN i.id = ANY (v_ids) THEN 'too_late' ELSE 'not_found' END
      FROM unnest(p_ids) WITH ORDINALITY AS i(id, n) LEFT JOIN changed c ON c.id = i.id ORDER BY i.n;
END $$;
