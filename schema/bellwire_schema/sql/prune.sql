-- terminal -> gone, with attempts and effects, past the kind's retention; skips what others hold.
CREATE OR REPLACE FUNCTION bellwire.prune(p_limit integer) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[];
BEGIN
    WITH clock AS (SELECT bellwire.now() AS at),
    old AS (
        SELECT j.id FROM clock, job j LEFT JOIN kind k ON k.name = j.kind
         WHERE j.finished_at < (SELECT c.at - LEAST(interval '7 days', min(LEAST(
                                    p.retain_succeeded, p.retain_failed, p.retain_cancelled)))
                                  FROM clock c LEFT JOIN kind p ON true GROUP BY c.at)
           AND j.finished_at < clock.at - CASE j.state
                   WHEN 'succeeded' THEN COALESCE(k.retain_succeeded, interval '7 days')
                   WHEN 'failed' THEN COALESCE(k.retain_failed, interval '90 days')
                   ELSE COALESCE(k.retain_cancelled, interval '30 days') END
         ORDER BY j.finished_at LIMIT p_limit FOR UPDATE OF j SKIP LOCKED)
    SELECT array_agg(old.id) INTO v_ids FROM old;
    DELETE FROM attempt a WHERE a.job_id = ANY (v_ids);
    DELETE FROM effect e WHERE e.job_id = ANY (v_ids);
    DELETE FROM job j WHERE j.id = ANY (v_ids);
    RETURN COALESCE(cardinality(v_ids), 0);
END $$;
