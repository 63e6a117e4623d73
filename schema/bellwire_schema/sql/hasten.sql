-- scheduled -> ready, now, whatever it was waiting for.
CREATE OR REPLACE FUNCTION bellwire.hasten(p_ids uuid[], p_actor text, p_reason text)
RETURNS TABLE (job_id uuid) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH clock AS (SELECT bellwire.now() AS at),
    held AS MATERIALIZED (
        SELECT j.id, j.state FROM job j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR UPDATE),
    moved AS (
        UPDATE job j SET state = 'ready', reason = NULL, eligible_at = COALESCE(j.eligible_at, clock.at)
          FROM clock WHERE j.id = ANY (ARRAY(SELECT held.id FROM held WHERE held.state = 'scheduled'))
        RETURNING j.id, j.kind, j.version, j.tenant, j.priority, j.eligible_at),
    woken AS (
        INSERT INTO outbox AS o (job_id, kind, version, tenant, rank, eligible_at)
        SELECT m.id, m.kind, m.version, m.tenant,
               m.eligible_at - m.priority * COALESCE(k.aging, interval '60 seconds'), m.eligible_at
          FROM moved m LEFT JOIN kind k ON k.name = m.kind
        ON CONFLICT (job_id) DO UPDATE SET admitted_at = NULL, rank = excluded.rank),
    noted AS (
        INSERT INTO audit (actor, action, kind, tenant, job_id, reason)
        SELECT p_actor, 'run-now', m.kind, m.tenant, m.id, p_reason FROM moved m)
    SELECT m.id FROM moved m;
END $$;
