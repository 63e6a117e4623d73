-- Renews leases by token; a row that somebody else has locked is busy, not lost: it is renewed at the next beat.
-- A lease past its timeout, its deadline or without progress is not renewed, so recovery takes it.
CREATE OR REPLACE FUNCTION bellwire.heartbeat(
    p_ids uuid[], p_tokens uuid[], p_progress bigint[], p_totals bigint[], p_notes text[])
RETURNS TABLE (job_id uuid, token uuid, status text, cancel_requested_at timestamptz, cancel_actor text,
               cancel_reason text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH clock AS (SELECT bellwire.now() AS at),
    input AS MATERIALIZED (
        SELECT * FROM unnest(p_ids, p_tokens, p_progress, p_totals, p_notes) AS i(id, token, progress, total, note)),
    held AS MATERIALIZED (
        SELECT j.id, j.token, j.started_at, j.timeout, j.deadline_at, j.progress_timeout, j.progress_at,
               j.cancel_requested_at, j.cancel_actor, j.cancel_reason,
               i.progress, i.total, i.note, COALESCE(i.progress > COALESCE(j.progress, -1), false) AS risen
          FROM input i JOIN job j ON j.id = i.id AND j.token = i.token
         ORDER BY j.id FOR UPDATE OF j SKIP LOCKED),
    judged AS MATERIALIZED (
        SELECT h.*, CASE WHEN h.started_at + h.timeout <= clock.at OR h.deadline_at <= clock.at THEN 'timed_out'
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
    SELECT i.id, i.token,
           CASE WHEN g.id IS NOT NULL THEN g.status
                WHEN EXISTS (SELECT FROM job j WHERE j.id = i.id AND j.token = i.token) THEN 'busy'
                ELSE 'lost' END,
           g.cancel_requested_at, g.cancel_actor, g.cancel_reason
      FROM input i LEFT JOIN judged g ON g.id = i.id AND g.token = i.token;
END $$;
