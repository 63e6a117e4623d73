-- A consumer is alive while its heartbeat thread says so. What it declares (kind i in version i) is what it may claim.
-- p_hears: whether the broker has it registered for hints; null where it was given no broker.
CREATE OR REPLACE FUNCTION bellwire.beat_consumer(
    p_id uuid, p_app text, p_app_version text, p_host text, p_pid integer, p_slots integer, p_kinds text[],
    p_versions smallint[], p_stopping boolean, p_hears boolean DEFAULT NULL, p_hears_error text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp
AS $$
BEGIN
    INSERT INTO consumer (id, app, app_version, host, pid, slots, kinds, versions, started_at, beat_at, stopping,
                          hears, hears_error)
    VALUES (p_id, p_app, p_app_version, p_host, p_pid, p_slots, p_kinds, p_versions, bellwire.now(), bellwire.now(),
            p_stopping, p_hears, left(p_hears_error, 240))
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, stopping = excluded.stopping, slots = excluded.slots,
        hears = excluded.hears, hears_error = excluded.hears_error;
    DELETE FROM consumer c WHERE c.beat_at < bellwire.now() - interval '1 day';
END $$;

CREATE OR REPLACE FUNCTION bellwire.forget_consumer(p_id uuid) RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path = bellwire, pg_temp
AS 'DELETE FROM bellwire.consumer WHERE id = p_id';
