-- ready -> running for at most as many jobs as attempt ids are brought. The jobs are locked first, skipping; their
-- wake-ups are deleted in a second statement on a fresh snapshot, and only what lost its wake-up there is claimed:
-- a statement that had waited for a job row would have re-read the job but not the outbox. Jobs are looked up by id in
-- subqueries that no plan can turn round, and written where they lie; "admitted" is said so that the index of all that
-- is admitted does not seem to answer for one id. Plans made when the tables were tiny go wrong otherwise.
-- A poll may leave to the hints what was admitted less than p_min_age ago.
CREATE OR REPLACE FUNCTION bellwire.claim(
    p_consumer uuid, p_consumer_version text, p_host text, p_kinds text[], p_versions smallint[],
    p_attempts uuid[], p_tokens uuid[], p_ids uuid[] DEFAULT NULL, p_min_age interval DEFAULT '0')
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
    v_before timestamptz := CASE WHEN p_min_age > '0' THEN bellwire.now() - p_min_age ELSE 'infinity' END;
BEGIN
    IF p_ids IS NULL THEN
        SELECT array_agg(picked.id) INTO v_ids FROM (
            SELECT j.id
              FROM (SELECT o.job_id, o.admitted_at
                      FROM unnest(p_kinds, p_versions) AS d(kind, version)
                     CROSS JOIN LATERAL (
                         SELECT w.job_id, w.admitted_at FROM outbox w
                          WHERE w.kind = d.kind AND w.version = d.version AND w.admitted_at <= v_before
                          ORDER BY w.admitted_at LIMIT v_limit * 4) AS o
                     ORDER BY o.admitted_at LIMIT v_limit * 4) AS o
             CROSS JOIN LATERAL (
                SELECT f.id FROM job f
                 WHERE f.id = o.job_id
                   AND (f.deadline_at IS NULL OR f.deadline_at > bellwire.now())
                   AND (f.ordering_key IS NULL OR NOT EXISTS (
                           SELECT FROM job e WHERE e.kind = f.kind AND e.tenant = f.tenant
                              AND e.ordering_key = f.ordering_key AND e.finished_at IS NULL AND e.id < f.id))
                   FOR UPDATE OF f SKIP LOCKED) AS j
             LIMIT v_limit) AS picked;
    ELSE
        SELECT array_agg(picked.id) INTO v_ids FROM (
            SELECT j.id
              FROM unnest(p_ids) AS i(id)
             CROSS JOIN LATERAL (
                SELECT w.job_id FROM outbox w
                 WHERE w.job_id = i.id AND COALESCE(w.admitted_at > '-infinity', false) OFFSET 0) AS o
             CROSS JOIN LATERAL (
                SELECT f.id FROM job f
                 WHERE f.id = o.job_id
                   AND EXISTS (SELECT FROM unnest(p_kinds, p_versions) AS d(kind, version)
                                WHERE d.kind = f.kind AND d.version = f.version)
                   AND (f.deadline_at IS NULL OR f.deadline_at > bellwire.now())
                   AND (f.ordering_key IS NULL OR NOT EXISTS (
                           SELECT FROM job e WHERE e.kind = f.kind AND e.tenant = f.tenant
                              AND e.ordering_key = f.ordering_key AND e.finished_at IS NULL AND e.id < f.id))
                   FOR UPDATE OF f SKIP LOCKED) AS j
             LIMIT v_limit) AS picked;
    END IF;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH clock AS (SELECT bellwire.now() AS at),
    woken AS (
        -- A wake-up whose locked job is not ready has nothing to say; it goes too.
        DELETE FROM outbox o WHERE o.job_id = ANY (v_ids) AND COALESCE(o.admitted_at > '-infinity', false)
        RETURNING o.job_id AS id, o.kind),
    placed AS MATERIALIZED (
        SELECT w.kind, row_number() OVER () AS n, j.place
          FROM woken w CROSS JOIN LATERAL (
            SELECT f.ctid AS place FROM job f WHERE f.id = w.id AND f.state = 'ready' OFFSET 0) AS j)
    UPDATE job j
       SET state = 'running', reason = NULL, attempt = j.attempt + 1,
           attempt_id = p_attempts[p.n], token = p_tokens[p.n], consumer = p_consumer,
           consumer_version = p_consumer_version, host = p_host, started_at = clock.at, heartbeat_at = clock.at,
           lease = COALESCE(k.lease, interval '30 seconds'),
           lease_expires_at = clock.at + COALESCE(k.lease, interval '30 seconds'),
           timeout = k.timeout, progress_timeout = k.progress_timeout,
           progress = NULL, progress_total = NULL, progress_note = NULL, progress_at = clock.at,
           key = CASE WHEN j.unique_until = 'started' THEN NULL ELSE j.key END
      FROM clock, placed p LEFT JOIN kind k ON k.name = p.kind
     WHERE j.ctid = p.place
    RETURNING j.id, j.attempt_id, j.token, j.kind, j.version, j.attempt, j.generation, j.payload, j.codec, j.tenant,
              j.label, j.priority, j.run_at, j.deadline_at, j.deadline_at - clock.at, j.started_at, j.lease,
              j.timeout, j.progress_timeout, j.checkpoint, j.attempts_used, j.trace_context;
END $$;
