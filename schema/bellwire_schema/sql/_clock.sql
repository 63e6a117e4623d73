-- The one clock. STABLE and a bare SELECT, so the planner inlines it; the test kit puts a shifted one in its place.
CREATE OR REPLACE FUNCTION bellwire.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT statement_timestamp()';

-- UUIDv7 (RFC 9562): 48 bits of milliseconds, 12 bits of their fraction, then the ordinal within the statement
-- (18 bits), so a set ascends in the order given, then 44 random bits.
CREATE OR REPLACE FUNCTION bellwire.uuid7(p_at timestamptz, p_ordinal integer) RETURNS uuid
LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
DECLARE
    us bigint := extract(epoch FROM p_at) * 1000000;
BEGIN
    RETURN (lpad(to_hex(us / 1000), 12, '0')
            || '7' || lpad(to_hex((us % 1000) * 4096 / 1000), 3, '0')
            || to_hex(8 | ((p_ordinal >> 16) & 3)) || lpad(to_hex(p_ordinal & 65535), 4, '0')
            || right(gen_random_uuid()::text, 11))::uuid;
END $$;

-- Full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter"): uniform(0, base x factor^(n - 1)),
-- capped (at a century), never below the floor. Factor and exponent are clamped, so no policy overflows and
-- takes a batch with it.
CREATE OR REPLACE FUNCTION bellwire.backoff(
    p_base interval, p_factor double precision, p_cap interval, p_floor interval, p_jitter boolean,
    p_n integer, p_random double precision) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT GREATEST(p_floor, make_interval(secs => (
        LEAST(3e9, extract(epoch FROM p_cap)::double precision,
              extract(epoch FROM p_base)::double precision
              * power(LEAST(GREATEST(p_factor, 1e-4), 1e4), LEAST(GREATEST(p_n, 1) - 1, 60)))
        * CASE WHEN p_jitter THEN p_random ELSE 1 END)))
$$;
