-- What stays admitted is published again by its age alone, whatever the queue looks like: 5 s after its admission, then
-- after 10, 20, 40 and every 60 s, until it is claimed or taken back. A net that waits for quiet would starve under
-- steady flow. With p_all everything that is out, whatever its age: on a take-over, and when the broker comes back;
-- that is no sign of trouble, so it makes nothing wait longer. Hints live for two minutes, so repeats never pile up.
--
-- It marks what it answers with, and skips what somebody holds: a claim, most likely. Only relays that serve a kind by
-- an unexpired token repeat anything of it; no lock fences that, since a hint too many harms nobody. A kind and version
-- that no live consumer declares is left to admission, which takes it back. Where nothing is due nothing is written.
CREATE OR REPLACE FUNCTION bellwire.republish(
    p_relay uuid, p_token uuid, p_all boolean DEFAULT false, p_limit integer DEFAULT 5000)
RETURNS TABLE (kind text, version smallint, job_ids uuid[], "least" integer, hearers integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := bellwire.now();
    -- Nothing younger is due, which the index knows.
    v_before timestamptz := CASE WHEN p_all THEN 'infinity' ELSE v_now - interval '5 seconds' END;
    v_kinds text[];
BEGIN
    SELECT array_agg(o.kind) INTO v_kinds FROM kind_owner o
     WHERE o.relay = p_relay AND o.token = p_token AND o.expires_at > v_now
       AND COALESCE((SELECT true FROM outbox w WHERE w.kind = o.kind AND w.admitted_at IS NOT NULL LIMIT 1), false);
    IF v_kinds IS NULL THEN
        RETURN;
    END IF;
    -- A mark that a crash forgets costs one hint too many.
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN QUERY
    WITH declared AS MATERIALIZED (
        SELECT u.kind, u.version, min(c.slots) AS least, count(*)::integer AS hearers
          FROM consumer c CROSS JOIN LATERAL unnest(c.kinds, c.versions) AS u(kind, version)
         WHERE c.beat_at > v_now - interval '15 seconds' AND NOT c.stopping AND u.kind = ANY (v_kinds)
         GROUP BY u.kind, u.version),
    due AS MATERIALIZED (
        SELECT w.job_id
          FROM declared d
         CROSS JOIN LATERAL (
            SELECT o.job_id, COALESCE(o.published_at, o.admitted_at) AS told_at FROM outbox o
             WHERE o.kind = d.kind AND o.version = d.version AND o.admitted_at <= v_before
               AND (p_all OR COALESCE(o.published_at, o.admitted_at)
                             + LEAST(interval '60 seconds', interval '5 seconds' * (1 << LEAST(o.publishes, 4)))
                             <= v_now)) AS w
         ORDER BY w.told_at, w.job_id LIMIT p_limit),
    held AS MATERIALIZED (
        -- Written where it lies: joined by id, a plan made for a tiny table reads all of it for each.
        SELECT w.place
          FROM due
         CROSS JOIN LATERAL (
            SELECT o.ctid AS place FROM outbox o
             WHERE o.job_id = due.job_id AND COALESCE(o.admitted_at > '-infinity', false)
               FOR UPDATE SKIP LOCKED) AS w),
    told AS (
        UPDATE outbox o
           SET published_at = v_now, publishes = CASE WHEN p_all THEN o.publishes ELSE LEAST(o.publishes + 1, 32000) END
          FROM held WHERE o.ctid = held.place
        RETURNING o.job_id, o.kind, o.version)
    SELECT d.kind, d.version, array_agg(t.job_id ORDER BY t.job_id), d.least, d.hearers
      FROM told t JOIN declared d ON d.kind = t.kind AND d.version = t.version
     GROUP BY d.kind, d.version, d.least, d.hearers ORDER BY d.kind, d.version;
END $$;
