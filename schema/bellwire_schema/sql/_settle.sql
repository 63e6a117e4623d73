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
         CROSS JOIN LATERAL (SELECT f.* FROM job f WHERE f.id = i.id OFFSET 0) AS j
          JOIN kind k ON k.name = j.kind AND k.on_failed_kind IS NOT NULL
        RETURNING id, kind, version, tenant, eligible_at)
    INSERT INTO outbox (job_id, kind, version, tenant, rank, eligible_at)
    SELECT id, kind, version, tenant, eligible_at, eligible_at FROM made;
END $$;

-- The one writer of every ending. The caller has locked the rows by id and token, in id order; here they get the
-- attempt row, the new state, the wake-up where the new state is ready, and the follow-up where it is failed.
-- Each job is looked up once, by its id, in a subquery that no plan can turn round, then written where it lies: joined
-- freely, a plan that a session made when the table was tiny reads the whole table once it has grown.
CREATE OR REPLACE FUNCTION bellwire._end(p_verdicts bellwire.verdict[])
RETURNS TABLE (id uuid, attempt_id uuid, state text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_failed uuid[];
BEGIN
    RETURN QUERY
    WITH clock AS (SELECT bellwire.now() AS at),
    v AS MATERIALIZED (
        SELECT u.*, j.* FROM unnest(p_verdicts) AS u CROSS JOIN LATERAL (
            SELECT f.ctid AS place, f.attempt_id, f.attempt, f.generation, f.consumer, f.consumer_version, f.host,
                   f.started_at, f.heartbeat_at, f.progress, f.deadline_at, f.kind, f.version, f.tenant, f.priority,
                   f.eligible_at
              FROM job f WHERE f.id = u.id OFFSET 0) AS j),
    receipt AS (
        INSERT INTO attempt (id, job_id, number, generation, consumer, consumer_version, host, started_at,
                             heartbeat_at, ended_at, outcome, error_class, code, message, progress, late)
        SELECT v.attempt_id, v.id, v.attempt, v.generation, v.consumer, v.consumer_version, v.host, v.started_at,
               v.heartbeat_at, clock.at, v.outcome, v.error_class, v.code, v.message, v.progress,
               v.state = 'succeeded' AND COALESCE(v.deadline_at < clock.at, false)
          FROM clock, v),
    woken AS (
        INSERT INTO outbox AS o (job_id, kind, version, tenant, rank, eligible_at)
        SELECT v.id, v.kind, v.version, v.tenant,
               COALESCE(v.eligible_at, clock.at) - v.priority * COALESCE(k.aging, interval '60 seconds'),
               COALESCE(v.eligible_at, clock.at)
          FROM clock, v LEFT JOIN kind k ON k.name = v.kind
         WHERE v.state = 'ready'
        ON CONFLICT (job_id) DO UPDATE SET admitted_at = NULL, rank = excluded.rank)
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
      FROM clock, v WHERE j.ctid = v.place
    RETURNING v.id, v.attempt_id, v.state;
    SELECT array_agg(u.id) INTO v_failed FROM unnest(p_verdicts) AS u WHERE u.state = 'failed';
    IF v_failed IS NOT NULL THEN
        PERFORM _follow_up(v_failed);
    END IF;
END $$;

-- What a settle answers, in the caller's order. A token that matches nothing is looked up by attempt id: the attempt
-- row is the receipt of an answer that was lost; another's ending of it (a recovery) means the lease is lost.
CREATE OR REPLACE FUNCTION bellwire._settle(
    p_ids uuid[], p_tokens uuid[], p_attempts uuid[], p_verdicts bellwire.verdict[])
RETURNS TABLE (attempt_id uuid, status text, state text) LANGUAGE plpgsql AS $$
DECLARE
    v_ended uuid[];
BEGIN
    IF cardinality(p_verdicts) = cardinality(p_ids) THEN  -- all matched, each by its own token
        RETURN QUERY SELECT e.attempt_id, 'settled', e.state FROM _end(p_verdicts) AS e;
        RETURN;
    END IF;
    IF p_verdicts IS NOT NULL THEN
        SELECT array_agg(e.attempt_id) INTO v_ended FROM _end(p_verdicts) AS e;
    END IF;
    RETURN QUERY
    SELECT i.attempt_id,
           CASE WHEN i.attempt_id = ANY (v_ended) THEN 'settled'
                WHEN a.outcome <> 'recovered' THEN 'already'
                WHEN j.token = i.token THEN 'busy'
                ELSE 'lost' END,
           j.state
      FROM unnest(p_ids, p_tokens, p_attempts) WITH ORDINALITY AS i(id, token, attempt_id, n)
      LEFT JOIN LATERAL (SELECT f.outcome FROM attempt f WHERE f.id = i.attempt_id OFFSET 0) AS a ON true
      LEFT JOIN LATERAL (SELECT f.token, f.state FROM job f WHERE f.id = i.id OFFSET 0) AS j ON true
     ORDER BY i.n;
END $$;
