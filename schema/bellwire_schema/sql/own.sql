-- Which relay serves which kind: a short lease by row, not an advisory lock, which poolers break. One call beats the
-- relay's registry row, renews what it has, lets go of what is above its share, and takes what is free or expired.
--
-- p_avoid are kinds of which the relay could publish nothing for an ownership's length. Where another live relay says
-- that its broker is well, they go to that one; else they are served as ever, since consumers poll. So that there is
-- room for all that is let go, relays that are not unwell share the kinds among themselves, as if the unwell were not
-- there; an unwell one keeps at most its share of all, and takes no more than that. A relay avoids only while it calls
-- itself unwell: else nobody would make room.
CREATE OR REPLACE FUNCTION bellwire.own(
    p_relay uuid, p_token uuid, p_host text, p_pid integer, p_version text, p_lease interval,
    p_broker_well boolean DEFAULT NULL, p_broker_error text DEFAULT NULL, p_avoid text[] DEFAULT '{}')
RETURNS TABLE (kind text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := bellwire.now();
    v_share bigint;
    v_mine bigint;
    v_avoid text[] := '{}';
BEGIN
    INSERT INTO relay AS r (id, version, host, pid, started_at, beat_at, broker_well, broker_error, broker_since)
    VALUES (p_relay, p_version, p_host, p_pid, v_now, v_now, p_broker_well, left(p_broker_error, 240),
            CASE WHEN p_broker_well IS NOT NULL THEN v_now END)
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, broker_well = excluded.broker_well,
        broker_error = excluded.broker_error,
        broker_since = CASE WHEN r.broker_well = excluded.broker_well THEN r.broker_since
                            ELSE excluded.broker_since END;
    DELETE FROM relay r WHERE r.beat_at < v_now - interval '1 day';
    v_share := (SELECT ceil(((SELECT count(*) FROM kind) + 1)::numeric
                            / CASE WHEN p_broker_well IS NOT FALSE AND bool_or(r.broker_well)
                                   THEN count(*) FILTER (WHERE r.broker_well IS NOT FALSE) ELSE count(*) END)
                  FROM relay r WHERE r.beat_at > v_now - p_lease);
    IF p_broker_well IS FALSE AND EXISTS (
        SELECT FROM relay r WHERE r.id <> p_relay AND r.beat_at > v_now - p_lease AND r.broker_well) THEN
        -- What belongs to no kind has no queue.
        v_avoid := array_remove(p_avoid, '*');
    END IF;
    WITH mine AS MATERIALIZED (
        SELECT o.kind FROM kind_owner o WHERE o.relay = p_relay AND o.token = p_token ORDER BY o.kind FOR UPDATE),
    ranked AS (
        SELECT m.kind, CASE WHEN m.kind = ANY (v_avoid) THEN v_share + 1
                            ELSE row_number() OVER (ORDER BY m.kind = ANY (v_avoid), m.kind) END AS n FROM mine m),
    surplus AS (
        DELETE FROM kind_owner o USING ranked r WHERE o.kind = r.kind AND r.n > v_share)
    UPDATE kind_owner o SET expires_at = v_now + p_lease FROM ranked r WHERE o.kind = r.kind AND r.n <= v_share;
    GET DIAGNOSTICS v_mine = ROW_COUNT;
    IF v_mine < v_share THEN
        INSERT INTO kind_owner AS o (kind, relay, token, expires_at)
        SELECT f.name, p_relay, p_token, v_now + p_lease
          FROM (SELECT w.name FROM (SELECT '*' AS name UNION ALL SELECT k.name FROM kind k) AS w
                 WHERE w.name <> ALL (v_avoid)
                   AND NOT EXISTS (SELECT FROM kind_owner e WHERE e.kind = w.name AND e.expires_at > v_now)
                 ORDER BY w.name LIMIT v_share - v_mine) AS f
        ON CONFLICT (kind) DO UPDATE
           SET relay = excluded.relay, token = excluded.token, expires_at = excluded.expires_at, asleep_until = NULL
         WHERE o.expires_at <= v_now;
    END IF;
    RETURN QUERY SELECT o.kind FROM kind_owner o
      WHERE o.relay = p_relay AND o.token = p_token AND o.expires_at > v_now ORDER BY o.kind;
END $$;

CREATE OR REPLACE FUNCTION bellwire.disown(p_relay uuid, p_token uuid) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp
AS $$
BEGIN
    DELETE FROM kind_owner WHERE relay = p_relay AND token = p_token;
    DELETE FROM relay WHERE id = p_relay;
END $$;

-- The sleep flag: never later than the ownership's end. A submit that reads it notifies.
CREATE OR REPLACE FUNCTION bellwire.sleep(p_relay uuid, p_token uuid, p_for interval) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bellwire, pg_temp
AS $$
DECLARE
    v_until timestamptz;
BEGIN
    WITH mine AS MATERIALIZED (
        SELECT o.kind FROM kind_owner o WHERE o.relay = p_relay AND o.token = p_token ORDER BY o.kind FOR UPDATE),
    flagged AS (
        UPDATE kind_owner o SET asleep_until = LEAST(bellwire.now() + p_for, o.expires_at)
          FROM mine WHERE o.kind = mine.kind RETURNING o.asleep_until)
    SELECT min(asleep_until) INTO v_until FROM flagged;
    RETURN v_until;
END $$;

CREATE OR REPLACE FUNCTION bellwire.wake(p_relay uuid, p_token uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bellwire, pg_temp
AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    WITH mine AS MATERIALIZED (
        SELECT o.kind FROM kind_owner o
         WHERE o.relay = p_relay AND o.token = p_token AND o.asleep_until IS NOT NULL ORDER BY o.kind FOR UPDATE)
    UPDATE kind_owner o SET asleep_until = NULL FROM mine WHERE o.kind = mine.kind;
END $$;
