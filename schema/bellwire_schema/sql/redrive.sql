-- failed, cancelled -> ready: the same job id, the next generation, an audit row. Each id is judged alone: a key that
-- somebody else has taken refuses that one. Tallies, cancel request and refused effects are cleared; the deadline is
-- the one given or as long as the first was, never the old.
CREATE OR REPLACE FUNCTION bellwire.redrive(
    p_ids uuid[], p_generations integer[], p_actor text, p_reason text, p_deadline timestamptz DEFAULT NULL,
    p_keep_checkpoint boolean DEFAULT true)
RETURNS TABLE (job_id uuid, outcome text, holder uuid) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[];
    v_outcomes text[];
    v_holders uuid[];
BEGIN
    PERFORM 1 FROM job j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR UPDATE;
    BEGIN
        WITH clock AS (SELECT bellwire.now() AS at),
        seen AS MATERIALIZED (
            SELECT i.id, i.n, j.kind, j.tenant, j.label, h.id AS holder,
                   CASE WHEN j.id IS NULL THEN 'not_found'
                        WHEN j.state NOT IN ('failed', 'cancelled') THEN 'not_redrivable'
                        WHEN p_generations[i.n] <> j.generation THEN 'generation_differs'
                        WHEN j.payload IS NULL THEN 'payload_gone'
                        WHEN h.id IS NOT NULL THEN 'key_taken'
                        ELSE 'redriven' END AS outcome
              FROM unnest(p_ids) WITH ORDINALITY AS i(id, n)
              LEFT JOIN job j ON j.id = i.id
              LEFT JOIN job h ON h.kind = j.kind AND h.tenant = j.tenant AND h.key = j.label AND h.id <> j.id),
        -- Of those that may go, the first that is named takes the key.
        judged AS MATERIALIZED (
            SELECT s.id, s.n,
                   CASE WHEN s.outcome = 'redriven' AND first_value(s.id) OVER same_key <> s.id
                        THEN 'key_taken' ELSE s.outcome END AS outcome,
                   CASE WHEN s.outcome = 'key_taken' THEN s.holder
                        WHEN s.outcome = 'redriven' AND first_value(s.id) OVER same_key <> s.id
                        THEN first_value(s.id) OVER same_key END AS holder
              FROM seen s
            WINDOW same_key AS (PARTITION BY s.outcome, s.kind, s.tenant, s.label,
                                             CASE WHEN s.label IS NULL THEN s.id END ORDER BY s.n)),
        moved AS (
            UPDATE job j
               SET state = 'ready', reason = NULL, generation = j.generation + 1, run_at = clock.at,
                   eligible_at = clock.at, finished_at = NULL, deadline_at = COALESCE(p_deadline, clock.at + j.max_age),
                   key = j.label, superseded_by = NULL, attempts_used = 0, unknown_errors = 0, deaths = 0, waits = 0,
                   releases = 0, cancel_requested_at = NULL, cancel_actor = NULL, cancel_reason = NULL,
                   triage_note = NULL, checkpoint = CASE WHEN p_keep_checkpoint THEN j.checkpoint END
              FROM clock WHERE j.id = ANY (ARRAY(SELECT g.id FROM judged g WHERE g.outcome = 'redriven'))
            RETURNING j.id, j.kind, j.version, j.tenant, j.priority, j.generation, j.eligible_at),
        woken AS (
            INSERT INTO outbox AS o (job_id, kind, version, tenant, rank, eligible_at)
            SELECT m.id, m.kind, m.version, m.tenant,
                   m.eligible_at - m.priority * COALESCE(k.aging, interval '60 seconds'), m.eligible_at
              FROM moved m LEFT JOIN kind k ON k.name = m.kind
            ON CONFLICT (job_id) DO UPDATE SET admitted_at = NULL, rank = excluded.rank),
        cleared AS (
            DELETE FROM effect e WHERE e.job_id = ANY (ARRAY(SELECT m.id FROM moved m)) AND e.status = 'refused'),
        noted AS (
            INSERT INTO audit (actor, action, kind, tenant, job_id, reason, new)
            SELECT p_actor, 'redrive', m.kind, m.tenant, m.id, p_reason, jsonb_build_object('generation', m.generation)
              FROM moved m)
        -- Into variables: rows already returned would stay when the write below them fails.
        SELECT array_agg(g.id ORDER BY g.n), array_agg(g.outcome ORDER BY g.n), array_agg(g.holder ORDER BY g.n)
          INTO v_ids, v_outcomes, v_holders FROM judged g;
        RETURN QUERY SELECT * FROM unnest(v_ids, v_outcomes, v_holders);
        RETURN;
    EXCEPTION WHEN unique_violation THEN
        -- Somebody took a key between the look and the write: judge each alone, so only that one is refused.
        IF cardinality(p_ids) = 1 THEN
            RETURN QUERY SELECT p_ids[1], 'key_taken', h.id FROM job j LEFT JOIN job h
                ON h.kind = j.kind AND h.tenant = j.tenant AND h.key = j.label WHERE j.id = p_ids[1];
            RETURN;
        END IF;
    END;
    FOR i IN 1 .. cardinality(p_ids) LOOP
        RETURN QUERY SELECT r.job_id, r.outcome, r.holder
          FROM redrive(p_ids[i : i], p_generations[i : i], p_actor, p_reason, p_deadline, p_keep_checkpoint) r;
    END LOOP;
END $$;
