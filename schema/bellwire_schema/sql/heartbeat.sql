-- Renews leases by token; a row that somebody else has locked is busy, not lost: it is renewed at the next beat.
-- A lease past its timeout, its deadline or without progress is not renewed, so recovery takes it. Jobs are looked up by
-- bitmap, because a plain index scan may also read the whole table, and does where the plan was made when it was tiny.
CREATE OR REPLACE FUNCTION bellwire.heartbeat(
    p_ids uuid[], p_tokens uuid[], p_progress bigint[], p_totals bigint[], p_notes text[])
RETURNS TABLE (job_id uuid, token uuid, status text, cancel_requested_at timestamptz, cancel_actor text,
               cancel_reason text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_indexscan = off SET enable_indexonlyscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH clock AS (SELECT bellwire.now() AS at),
    input AS MATERIALIZED (
        SELECT * FROM unnest(p_ids, p_tokens, p_progress, p_totals, p_notes) AS i(id, token, progress, total, note)),
    held AS MATERIALIZED (
        SELECT i.id, i.token, i.progress, i.total, i.note, j.started_at, j.timeout, j.deadline_at, j.progress_timeout,
               j.progress_at, j.cancel_requested_at, j.cancel_actor, j.cancel_reason,
               COALESCE(i.progress > COALESCE(j.progress, -1), false) AS risen
          FROM (SELECT * FROM input ORDER BY id) AS i
          LEFT JOIN LATERAL (
            SELECT f.* FROM job f WHERE f.id = i.id AND f.token = i.token FOR UPDATE SKIP LOCKED) AS j ON true),
    judged AS MATERIALIZED (
        SELECT h.*, CASE WHEN h.started_at IS NULL THEN NULL  -- not held
                         WHEN h.started_at + h.timeout <= clock.at OR h.deadline_at <= clock.at THEN 'timed_out'
                         WHEN h.progress_at + h.progress_timeout <= clock.at AND NOT h.risen THEN 'stalled'
                         ELSE 'alive' END AS status
          FROM held h, clock),
    beat AS (
        UPDATE job j
           SET heartbeat_at = clock.at, lease_expires_at = clock.at + j.lease,
               progress = CASE WHEN g.risen THEN g.progress ELSE j.progress END,
               progress_at = CASE WHEN g.risen THEN clock.at ELSE j.progress_at END,
               progress_total = COALESCE(g.total, j.progress_total),
               progress_note = COALESCE(g.note, j.progress_note)
          FROM judged g, clock WHERE j.id = g.id AND g.status = 'alive')
    SELECT g.id, g.token,
           COALESCE(g.status, (SELECT 'busy' FROM job f WHERE f.id = g.id AND f.token = g.token), 'lost'),
           g.cancel_requested_at, g.cancel_actor, g.cancel_reason
      FROM judged g;
END $$;
