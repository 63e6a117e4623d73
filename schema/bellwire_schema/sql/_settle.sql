-- The follow-ups of jobs that have just failed: one job of the kind's on_failed each, written by the failing edge
-- itself, whoever runs it. The payload is FailedJob's: job_id, failed_kind, key, code.
CREATE OR REPLACE FUNCTION bellwire._follow_up(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH clock AS (SELECT bellwire.now() AS at),
    made AS (
        INSERT INTO job (id, kind, version, payload, tenant, state, run_at, eligible_at, created_at)
        SELECT uuid7(clock.at, i.n::integer), k.on_failed_kind, k.on_failed_version,
               jsonb_build_object('job_id', j.id, 'failed_kind', j.kind, 'key', j.label,
                                  'code', COALESCE(j.last_code, j.reason, 'failed')),
               j.tenant, 'ready', clock.at, clock.at, clock.at
          FROM clock, unnest(p_ids) WITH ORDINALITY AS i(id, n)
          JOIN job j ON j.id = i.id
          JOIN kind k ON k.name = j.kind AND k.on_failed_kind IS NOT NULL
        RETURNING id, kind, version, tenant, eligible_at)
    INSERT INTO outbox (job_id, kind, version, tenant, rank, eligible_at)
    SELECT id, kind, version, tenant, eligible_at, eligible_at FROM made;
END $$;

-- The one writer of every ending. The caller has locked the rows by id and token, in id order; here they get the
-- attempt row, the new state, the wake-up where the new state is ready, and the follow-up where it is failed.
CREATE OR REPLACE FUNCTION bellwire._end(p_verdicts bellwire.verdict[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_failed uuid[];
BEGIN
    WITH clock AS (SELECT bellwire.now() AS at),
    v AS MATERIALIZED (SELECT * FROM unnest(p_verdicts)),
    receipt AS (
        INSERT INTO attempt (id, job_id, number, generation, consumer, consumer_version, host, started_at,
                             heartbeat_at, ended_at, outcome, error_class, code, message, progress, late)
        SELECT j.attempt_id, j.id, j.attempt, j.generation, j.consumer, j.consumer_version, j.host, j.started_at,
               j.heartbeat_at, clock.at, v.outcome, v.error_class, v.code, v.message, j.progress,
               v.state = 'succeeded' AND COALESCE(j.deadline_at < clock.at, false)
          FROM clock, v JOIN job j ON j.id = v.id),
    woken AS (
        INSERT INTO outbox AS o (job_id, kind, version, tenant, rank, eligible_at)
        SELECT j.id, j.kind, j.version, j.tenant,
               COALESCE(j.eligible_at, clock.at) - j.priority * COALESCE(k.aging, interval '60 seconds'),
               COALESCE(j.eligible_at, clock.at)
          FROM clock, v JOIN job j ON j.id = v.id LEFT JOIN kind k ON k.name = j.kind
         WHERE v.state = 'ready'
        ON CONFLICT (job_id) DO UPDATE SET admitted_at = NULL, rank = excluded.rank),
    ended AS (
        UPDATE job j
           SET state = v.state, reason = v.reason, result = v.result,
               run_at = COALESCE(v.run_at, j.run_at),
               attempts_used = j.attempts_used + v.used,
               unknown_errors = j.unknown_errors + v.unknown_errors,
               deaths = j.deaths + v.deaths,
               waits = j.waits + v.waits,
               releases = j.releases + v.releases,
               first_code = COALESCE(j.first_code, v.code),
               last_code = COALESCE(v.code, j.last_code),
               last_message = COALESCE(v.message, j.last_message),
               finished_at = CASE WHEN v.state IN ('succeeded', 'failed', 'cancelled') THEN clock.at END,
               key = CASE WHEN j.unique_until = 'finished' AND v.state IN ('succeeded', 'failed', 'cancelled')
                          THEN NULL ELSE j.key END,
               attempt_id = NULL, token = NULL, consumer = NULL, consumer_version = NULL, host = NULL,
               started_at = NULL, heartbeat_at = NULL, lease_expires_at = NULL, lease = NULL, timeout = NULL,
               progress_timeout = NULL, progress_at = NULL
          FROM clock, v WHERE j.id = v.id
        RETURNING j.id, j.state)
    SELECT array_agg(id) FILTER (WHERE state = 'failed') INTO v_failed FROM ended;
    IF v_failed IS NOT NULL THEN
        PERFORM _follow_up(v_failed);
    END IF;
END $$;

-- What a settle answers, in the caller's order. A token that matches nothing is looked up by attempt id: the attempt
-- row is the receipt of an answer that was lost; another's ending of it (a recovery) means the lease is lost.
CREATE OR REPLACE FUNCTION bellwire._settle(
    p_ids uuid[], p_tokens uuid[], p_attempts uuid[], p_verdicts bellwire.verdict[])
RETURNS TABLE (attempt_id uuid, status text, state text) LANGUAGE plpgsql AS $$
BEGIN
    IF p_verdicts IS NOT NULL THEN
        PERFORM _end(p_verdicts);
    END IF;
    IF cardinality(p_verdicts) = cardinality(p_ids) THEN  -- all matched, each by its own token
        RETURN QUERY
        SELECT i.attempt_id, 'settled', v.state
          FROM unnest(p_ids, p_attempts) AS i(id, attempt_id) JOIN unnest(p_verdicts) v ON v.id = i.id;
        RETURN;
    END IF;
    RETURN QUERY
    WITH v AS MATERIALIZED (SELECT u.id, u.state FROM unnest(p_verdicts) u)
    SELECT i.attempt_id,
           CASE WHEN EXISTS (SELECT FROM attempt a WHERE a.id = i.attempt_id AND a.outcome <> 'recovered')
                     THEN CASE WHEN v.id IS NOT NULL THEN 'settled' ELSE 'already' END
                WHEN EXISTS (SELECT FROM job j WHERE j.id = i.id AND j.token = i.token) THEN 'busy'
                ELSE 'lost' END,
           (SELECT j.state FROM job j WHERE j.id = i.id)
      FROM unnest(p_ids, p_tokens, p_attempts) WITH ORDINALITY AS i(id, token, attempt_id, n)
      LEFT JOIN v ON v.id = i.id
     ORDER BY i.n;
END $$;
