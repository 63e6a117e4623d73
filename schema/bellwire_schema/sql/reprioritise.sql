-- A new priority for what has not started: its wake-up gets the new rank and is un-admitted. An upsert, because a plain
-- UPDATE during a promote changes the job and misses the wake-up.
CREATE OR REPLACE FUNCTION bellwire.reprioritise(p_ids uuid[], p_priority smallint, p_actor text, p_reason text)
RETURNS TABLE (job_id uuid) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[];
BEGIN
    SELECT array_agg(h.id) INTO v_ids FROM (
        SELECT j.id FROM job j WHERE j.id = ANY (p_ids) AND j.state IN ('ready', 'scheduled')
         ORDER BY j.id FOR UPDATE) AS h;
    RETURN QUERY
    WITH moved AS (
        UPDATE job j SET priority = p_priority WHERE j.id = ANY (v_ids)
        RETURNING j.id, j.kind, j.version, j.tenant, j.priority, j.state, COALESCE(j.eligible_at, j.run_at) AS since),
    woken AS (
        INSERT INTO outbox AS o (job_id, kind, version, tenant, rank, eligible_at)
        SELECT m.id, m.kind, m.version, m.tenant,
               m.since - m.priority * COALESCE(k.aging, interval '60 seconds'), m.since
          FROM moved m LEFT JOIN kind k ON k.name = m.kind WHERE m.state = 'ready'
        ON CONFLICT (job_id) DO UPDATE SET admitted_at = NULL, rank = excluded.rank),
    noted AS (
        INSERT INTO audit (actor, action, kind, tenant, job_id, reason, new)
        SELECT p_actor, 'set-priority', m.kind, m.tenant, m.id, p_reason, to_jsonb(p_priority) FROM moved m)
    SELECT m.id FROM moved m;
END $$;
