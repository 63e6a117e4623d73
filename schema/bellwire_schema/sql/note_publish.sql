-- Counts trouble with publishing on the wake-ups whose hint it was (error i for id i), so that explain and doctor can
-- tell. Admission stands: they are published again by age, and pollers may take them meanwhile. What was claimed or
-- taken back since is left alone, as is what somebody holds. The last trouble is what is remembered.
CREATE OR REPLACE FUNCTION bellwire.note_publish(p_relay uuid, p_token uuid, p_ids uuid[], p_errors text[])
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_now timestamptz := bellwire.now();
    v_kinds text[];
    v_count integer;
BEGIN
    SELECT array_agg(o.kind) INTO v_kinds FROM kind_owner o
     WHERE o.relay = p_relay AND o.token = p_token AND o.expires_at > v_now;
    IF v_kinds IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    WITH said AS MATERIALIZED (
        SELECT DISTINCT ON (s.id) s.id, s.error
          FROM unnest(p_ids, p_errors) WITH ORDINALITY AS s(id, error, n) ORDER BY s.id, s.n DESC),
    held AS MATERIALIZED (
        SELECT w.place, said.error
          FROM said
         CROSS JOIN LATERAL (
            SELECT o.ctid AS place FROM outbox o
             WHERE o.job_id = said.id AND o.kind = ANY (v_kinds) AND COALESCE(o.admitted_at > '-infinity', false)
               FOR UPDATE SKIP LOCKED) AS w)
    UPDATE outbox o
       SET publish_error = left(held.error, 240), publishes = LEAST(o.publishes + 1, 32000), published_at = v_now
      FROM held WHERE o.ctid = held.place;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
