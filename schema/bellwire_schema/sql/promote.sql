-- scheduled -> ready for what is due, by run_at, at most p_limit jobs; rows that others have locked wait for the next
-- turn. next_due is when the next scheduled job comes due, null where none waits.
CREATE OR REPLACE FUNCTION bellwire.promote(p_limit integer)
RETURNS TABLE (promoted bigint, next_due timestamptz) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH clock AS MATERIALIZED (SELECT bellwire.now() AS at),
    due AS MATERIALIZED (
        SELECT j.id FROM job j
         WHERE j.state = 'scheduled' AND j.run_at <= (SELECT at FROM clock)
         ORDER BY j.run_at, j.id LIMIT p_limit FOR UPDATE SKIP LOCKED),
    moved AS (
        UPDATE job j SET state = 'ready', reason = NULL, eligible_at = COALESCE(j.eligible_at, j.run_at)
         WHERE j.id = ANY (ARRAY(SELECT due.id FROM due))
        RETURNING j.id, j.kind, j.version, j.tenant, j.priority, j.eligible_at),
    woken AS (
        INSERT INTO outbox AS o (job_id, kind, version, tenant, rank, eligible_at)
        SELECT m.id, m.kind, m.version, m.tenant,
               m.eligible_at - m.priority * COALESCE(k.aging, interval '60 seconds'), m.eligible_at
          FROM moved m LEFT JOIN kind k ON k.name = m.kind
        ON CONFLICT (job_id) DO UPDATE SET admitted_at = NULL, rank = excluded.rank)
    SELECT (SELECT count(*) FROM moved),
           (SELECT j.run_at FROM job j WHERE j.state = 'scheduled' AND j.run_at > (SELECT at FROM clock)
             ORDER BY j.run_at LIMIT 1);
END $$;
