-- The two tables held in step, and both directions expected to be zero. Walks at most p_limit rows of each along its
-- primary key. What looks wrong is locked by its job first, skipping, and looked at again on a fresh snapshot before
-- anything is done: acting on what the walk saw would delete a living wake-up.
CREATE OR REPLACE FUNCTION bellwire.mend(p_after uuid, p_wakeup_after uuid, p_limit integer)
RETURNS TABLE (orphans bigint, missing bigint, "position" uuid, wakeup_position uuid) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_seen bigint;
    v_suspects uuid[];
    v_locked uuid[];
BEGIN
    SELECT count(*), (array_agg(o.job_id ORDER BY o.job_id DESC))[1],
           array_agg(o.job_id) FILTER (WHERE NOT EXISTS (SELECT FROM job j WHERE j.id = o.job_id AND j.state = 'ready'))
      INTO v_seen, wakeup_position, v_suspects
      FROM (SELECT w.job_id FROM outbox w WHERE p_wakeup_after IS NULL OR w.job_id > p_wakeup_after
             ORDER BY w.job_id LIMIT p_limit) AS o;
    IF v_seen < p_limit THEN
        wakeup_position := NULL;
    END IF;
    orphans := 0;
    IF v_suspects IS NOT NULL THEN
        SELECT array_agg(h.id) INTO v_locked FROM (
            SELECT j.id FROM job j WHERE j.id = ANY (v_suspects) ORDER BY j.id FOR UPDATE SKIP LOCKED) AS h;
        WITH gone AS (
            DELETE FROM outbox o
             WHERE o.job_id = ANY (v_suspects)
               AND CASE WHEN o.job_id = ANY (v_locked)
                        THEN NOT EXISTS (SELECT FROM job j WHERE j.id = o.job_id AND j.state = 'ready')
                        ELSE NOT EXISTS (SELECT FROM job j WHERE j.id = o.job_id) END
            RETURNING 1)
        SELECT count(*) INTO orphans FROM gone;
    END IF;

    SELECT count(*), (array_agg(s.id ORDER BY s.id DESC))[1],
           array_agg(s.id) FILTER (WHERE s.state = 'ready'
                                     AND NOT EXISTS (SELECT FROM outbox o WHERE o.job_id = s.id))
      INTO v_seen, "position", v_suspects
      FROM (SELECT j.id, j.state FROM job j WHERE p_after IS NULL OR j.id > p_after ORDER BY j.id LIMIT p_limit) AS s;
    IF v_seen < p_limit THEN
        "position" := NULL;
    END IF;
    missing := 0;
    IF v_suspects IS NOT NULL THEN
        SELECT array_agg(h.id) INTO v_locked FROM (
            SELECT j.id FROM job j WHERE j.id = ANY (v_suspects) ORDER BY j.id FOR UPDATE SKIP LOCKED) AS h;
        WITH added AS (
            INSERT INTO outbox (job_id, kind, version, tenant, rank, eligible_at)
            SELECT j.id, j.kind, j.version, j.tenant,
                   COALESCE(j.eligible_at, j.run_at) - j.priority * COALESCE(k.aging, interval '60 seconds'),
                   COALESCE(j.eligible_at, j.run_at)
              FROM job j LEFT JOIN kind k ON k.name = j.kind
             WHERE j.id = ANY (v_locked) AND j.state = 'ready'
            ON CONFLICT DO NOTHING RETURNING 1)
        SELECT count(*) INTO missing FROM added;
    END IF;
    RETURN NEXT;
END $$;
