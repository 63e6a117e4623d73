-- ready, scheduled -> failed (deadline_exceeded). Jobs first, skipping what others hold; their wake-ups and the change
-- in a second statement on a fresh snapshot.
CREATE OR REPLACE FUNCTION bellwire.expire(p_limit integer)
RETURNS TABLE (job_id uuid, kind text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[];
BEGIN
    SELECT array_agg(h.id) INTO v_ids FROM (
        SELECT j.id FROM job j
         WHERE j.deadline_at <= bellwire.now() AND j.finished_at IS NULL AND j.state IN ('ready', 'scheduled')
         ORDER BY j.deadline_at LIMIT p_limit FOR UPDATE SKIP LOCKED) AS h;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM outbox o WHERE o.job_id = ANY (v_ids);
    RETURN QUERY
    UPDATE job j SET state = 'failed', reason = 'deadline_exceeded', finished_at = clock.at,
           first_code = COALESCE(j.first_code, 'deadline_exceeded'),
           last_code = COALESCE(j.last_code, 'deadline_exceeded'),
           key = CASE WHEN j.unique_until <> 'pruned' THEN NULL ELSE j.key END
      FROM (SELECT bellwire.now() AS at) AS clock
     WHERE j.id = ANY (v_ids)
    RETURNING j.id, j.kind;
    PERFORM _follow_up(v_ids);
END $$;
