-- ready, scheduled -> ready / scheduled with the newest arguments; a job that was claimed meanwhile is left alone. The
-- wake-up is written anew, un-admitted, or removed where the job is now scheduled.
CREATE OR REPLACE FUNCTION bellwire.replace(p_ids uuid[], p_jobs bellwire.submission[])
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
    DELETE FROM outbox o WHERE o.job_id = ANY (v_ids);
    RETURN QUERY
    WITH clock AS (SELECT bellwire.now() AS at),
    changed AS (
        UPDATE job j
           SET version = s.version, payload = s.payload, codec = s.codec, args_digest = s.args_digest,
               unique_until = COALESCE(s.unique_until, j.unique_until), ordering_key = s.ordering_key, priority = s.priority,
               run_at = s.run_at, deadline_at = s.deadline, max_age = s.max_age, trace_context = s.trace_context,
               state = CASE WHEN s.run_at > clock.at THEN 'scheduled' ELSE 'ready' END,
               reason = CASE WHEN s.run_at > clock.at THEN 'run_at' END,
               eligible_at = CASE WHEN s.run_at > clock.at THEN NULL ELSE COALESCE(j.eligible_at, clock.at) END
          FROM clock, unnest(p_ids) WITH ORDINALITY AS i(id, n)
          JOIN unnest(p_jobs) WITH ORDINALITY AS s(sn, kind, version, payload, tenant, key, unique_until, priority,
               ordering_key, run_at, run_in, deadline, max_age, job_id, on_duplicate, wake, args_digest, codec,
               trace_context, n) ON s.n = i.n
         WHERE j.id = i.id AND j.id = ANY (v_ids)
        RETURNING j.id, j.kind, j.version, j.tenant, j.priority, j.state, j.eligible_at),
    woken AS (
        INSERT INTO outbox (job_id, kind, version, tenant, rank, eligible_at)
        SELECT c.id, c.kind, c.version, c.tenant,
               c.eligible_at - c.priority * COALESCE(k.aging, interval '60 seconds'), c.eligible_at
          FROM changed c LEFT JOIN kind k ON k.name = c.kind WHERE c.state = 'ready')
    SELECT c.id FROM changed c;
END $$;
