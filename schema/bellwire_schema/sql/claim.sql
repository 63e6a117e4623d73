-- ready -> running for at most as many jobs as attempt ids are brought. The jobs are locked first, skipping; their
-- wake-ups are deleted in a second statement on a fresh snapshot, and only what lost its wake-up there is claimed:
-- a statement that had waited for a job row would have re-read the job but not the outbox.
CREATE OR REPLACE FUNCTION bellwire.claim(
    p_consumer uuid, p_consumer_version text, p_host text, p_kinds text[], p_versions smallint[],
    p_attempts uuid[], p_tokens uuid[], p_ids uuid[] DEFAULT NULL)
RETURNS TABLE (job_id uuid, attempt_id uuid, token uuid, kind text, version smallint, attempt bigint,
               generation integer, payload jsonb, codec text, tenant text, key text, priority smallint,
               run_at timestamptz, deadline_at timestamptz, remaining interval, started_at timestamptz,
               lease interval, timeout interval, progress_timeout interval, checkpoint jsonb,
               attempts_used smallint, trace_context jsonb) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[];
    v_limit integer := cardinality(p_attempts);
BEGIN
    IF p_ids IS NULL THEN
        SELECT array_agg(picked.id) INTO v_ids FROM (
            SELECT j.id
              FROM (SELECT o.job_id, o.admitted_at
                      FROM unnest(p_kinds, p_versions) AS d(kind, version)
                     CROSS JOIN LATERAL (
                         SELECT w.job_id, w.admitted_at FROM outbox w
                          WHERE w.kind = d.kind AND w.version = d.version AND w.admitted_at IS NOT NULL
                          ORDER BY w.admitted_at LIMIT v_limit * 4) AS o
                     ORDER BY o.admitted_at LIMIT v_limit * 4) AS o
              JOIN job j ON j.id = o.job_id
             WHERE (j.deadline_at IS NULL OR j.deadline_at > bellwire.now())
               AND (j.ordering_key IS NULL OR NOT EXISTS (
                       SELECT FROM job e WHERE e.kind = j.kind AND e.tenant = j.tenant
                          AND e.ordering_key = j.ordering_key AND e.finished_at IS NULL AND e.id < j.id))
             LIMIT v_limit FOR UPDATE OF j SKIP LOCKED) AS picked;
    ELSE
        SELECT array_agg(picked.id) INTO v_ids FROM (
            SELECT j.id
              FROM unnest(p_ids) AS i(id)
              JOIN job j ON j.id = i.id
             WHERE EXISTS (SELECT FROM unnest(p_kinds, p_versions) AS d(kind, version)
                            WHERE d.kind = j.kind AND d.version = j.version)
               AND EXISTS (SELECT FROM outbox w WHERE w.job_id = j.id AND w.admitted_at IS NOT NULL)
               AND (j.deadline_at IS NULL OR j.deadline_at > bellwire.now())
               AND (j.ordering_key IS NULL OR NOT EXISTS (
                       SELECT FROM job e WHERE e.kind = j.kind AND e.tenant = j.tenant
                          AND e.ordering_key = j.ordering_key AND e.finished_at IS NULL AND e.id < j.id))
             LIMIT v_limit FOR UPDATE OF j SKIP LOCKED) AS picked;
    END IF;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH clock AS (SELECT bellwire.now() AS at),
    woken AS (
        -- A wake-up whose locked job is not ready has nothing to say; it goes too.
        DELETE FROM outbox o USING unnest(v_ids) WITH ORDINALITY AS i(id, n)
         WHERE o.job_id = i.id AND o.admitted_at IS NOT NULL
        RETURNING o.job_id AS id, o.kind, i.n)
    UPDATE job j
       SET state = 'running', reason = NULL, attempt = j.attempt + 1,
           attempt_id = p_attempts[w.n], token = p_tokens[w.n], consumer = p_consumer,
           consumer_version = p_consumer_version, host = p_host, started_at = clock.at, heartbeat_at = clock.at,
           lease = COALESCE(k.lease, interval '30 seconds'),
           lease_expires_at = clock.at + COALESCE(k.lease, interval '30 seconds'),
           timeout = k.timeout, progress_timeout = k.progress_timeout,
           progress = NULL, progress_total = NULL, progress_note = NULL, progress_at = clock.at,
           key = CASE WHEN j.unique_until = 'started' THEN NULL ELSE j.key END
      FROM clock, woken w LEFT JOIN kind k ON k.name = w.kind
     WHERE j.id = w.id AND j.state = 'ready'
    RETURNING j.id, j.attempt_id, j.token, j.kind, j.version, j.attempt, j.generation, j.payload, j.codec, j.tenant,
              j.label, j.priority, j.run_at, j.deadline_at, j.deadline_at - clock.at, j.started_at, j.lease,
              j.timeout, j.progress_timeout, j.checkpoint, j.attempts_used, j.trace_context;
END $$;
