-- Lets up to p_quota wake-ups of one kind and version go: weighted round-robin over the tenants that wait, walked from
-- the cursor, by rank within a tenant. A turn that the quota cuts short goes on where it stopped (spent), so weights
-- hold even when a cycle admits one job at a time. The walk probes the index once a waiting tenant, so a cycle costs
-- what it admits, not how many tenants wait. Wake-ups that an application's transaction holds are skipped.
CREATE OR REPLACE FUNCTION bellwire._admit_kind(
    p_kind text, p_version smallint, p_quota integer, p_tenant_cap integer, p_blocked text[],
    OUT job_ids uuid[], OUT held text) LANGUAGE plpgsql
AS $$
DECLARE
    v_now timestamptz := bellwire.now();
    v_cursor text;
    v_spent integer;     -- how much of its weight the first tenant below has used in the turn it is in
    v_last text;
    v_tenants text[];    -- those that may go, in the order of the walk
    v_weights integer[];
    v_left integer[];    -- how many each may still get under its cap
    v_take integer[];
    v_remaining integer := p_quota;
    v_rounds integer;
    v_total integer;
    v_got uuid[];
    v_from text[];
    v_cut boolean;
    i integer;
BEGIN
    job_ids := '{}';
    SELECT b.cursor, b.spent INTO v_cursor, v_spent FROM bucket b
     WHERE b.kind = p_kind AND b.version = p_version FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO bucket (kind, version) VALUES (p_kind, p_version) ON CONFLICT DO NOTHING;
        v_cursor := '';
        v_spent := 0;
    END IF;
    WITH RECURSIVE after AS (
        (SELECT o.tenant, 1 AS n FROM outbox o
          WHERE o.kind = p_kind AND o.version = p_version AND o.admitted_at IS NULL AND o.tenant > v_cursor
          ORDER BY o.tenant LIMIT 1)
        UNION ALL
        SELECT x.tenant, w.n + 1 FROM after w CROSS JOIN LATERAL (
            SELECT o.tenant FROM outbox o
             WHERE o.kind = p_kind AND o.version = p_version AND o.admitted_at IS NULL AND o.tenant > w.tenant
             ORDER BY o.tenant LIMIT 1) AS x
         WHERE w.n < 2 * p_quota),
    wrapped AS (
        (SELECT o.tenant, 1 AS n FROM outbox o
          WHERE o.kind = p_kind AND o.version = p_version AND o.admitted_at IS NULL AND o.tenant <= v_cursor
          ORDER BY o.tenant LIMIT 1)
        UNION ALL
        SELECT x.tenant, w.n + 1 FROM wrapped w CROSS JOIN LATERAL (
            SELECT o.tenant FROM outbox o
             WHERE o.kind = p_kind AND o.version = p_version AND o.admitted_at IS NULL
               AND o.tenant > w.tenant AND o.tenant <= v_cursor
             ORDER BY o.tenant LIMIT 1) AS x
         WHERE w.n < 2 * p_quota),
    walk AS (
        -- Whose turn was cut short stands first.
        SELECT v_cursor AS tenant, 0 AS lap, 1 AS n
         WHERE v_spent > 0
           AND COALESCE((SELECT true FROM outbox o WHERE o.kind = p_kind AND o.version = p_version
                            AND o.admitted_at IS NULL AND o.tenant = v_cursor LIMIT 1), false)
        UNION ALL SELECT tenant, 1, n FROM after
        UNION ALL SELECT tenant, 2, n FROM wrapped WHERE v_spent = 0 OR tenant <> v_cursor
         ORDER BY lap, n LIMIT 2 * p_quota),
    judged AS (
        SELECT w.tenant, row_number() OVER (ORDER BY w.lap, w.n) AS n, COALESCE(t.weight, 1)::integer AS weight,
               CASE WHEN w.tenant = ANY (p_blocked) THEN 0
                    -- More than any quota and any weight.
                    WHEN p_tenant_cap IS NULL THEN p_quota + 1000
                    ELSE GREATEST(0, p_tenant_cap
                         - (SELECT count(*) FROM job j
                             WHERE j.state = 'running' AND j.kind = p_kind AND j.tenant = w.tenant)::integer
                         - (SELECT count(*) FROM outbox o
                             WHERE o.kind = p_kind AND o.tenant = w.tenant AND o.admitted_at IS NOT NULL)::integer)
                    END AS free
          FROM walk w LEFT JOIN tenant t ON t.name = w.tenant)
    SELECT array_agg(tenant ORDER BY n) FILTER (WHERE free > 0), array_agg(weight ORDER BY n) FILTER (WHERE free > 0),
           array_agg(free ORDER BY n) FILTER (WHERE free > 0), (array_agg(tenant ORDER BY n DESC))[1],
           CASE WHEN bool_or(free = 0 AND NOT tenant = ANY (p_blocked)) THEN 'tenant_cap'
                WHEN bool_or(free = 0) THEN 'paused' END
      INTO v_tenants, v_weights, v_left, v_last, held
      FROM judged;
    IF v_tenants IS NULL OR v_tenants[1] <> v_cursor OR v_weights[1] <= v_spent THEN
        v_spent := 0;
    END IF;
    IF v_tenants IS NULL THEN
        -- Nobody on this stretch may go: the next cycle looks beyond it.
        v_cursor := COALESCE(v_last, v_cursor);
    END IF;

    WHILE v_remaining > 0 AND v_tenants IS NOT NULL LOOP
        v_take := '{}';
        v_total := 0;
        IF v_spent > 0 THEN
            -- The rest of the turn that was cut short.
            v_take[1] := LEAST(v_weights[1] - v_spent, v_left[1], v_remaining);
            v_total := v_take[1];
            v_spent := v_spent + v_take[1];
            v_last := v_tenants[1];
            v_cut := v_spent < v_weights[1];
            i := 1;
        ELSE
            -- As many whole rounds as fit; where not even one fits, one round for the first tenants only.
            SELECT sum(w) INTO v_total FROM unnest(v_weights) AS w;
            v_rounds := GREATEST(1, v_remaining / v_total);
            v_total := 0;
            FOR n IN 1 .. cardinality(v_tenants) LOOP
                i := n;
                v_take[i] := LEAST(v_rounds * v_weights[i], v_left[i], v_remaining - v_total);
                v_total := v_total + v_take[i];
                v_last := v_tenants[i];
                EXIT WHEN v_total >= v_remaining;
            END LOOP;
            v_cut := v_rounds = 1 AND v_take[i] < LEAST(v_weights[i], v_left[i]);
            v_spent := CASE WHEN v_cut THEN v_take[i] ELSE 0 END;
        END IF;
        WITH picked AS MATERIALIZED (
            SELECT x.place FROM unnest(v_tenants, v_take) AS t(tenant, n)
             CROSS JOIN LATERAL (
                SELECT o.ctid AS place FROM outbox o
                 WHERE o.kind = p_kind AND o.version = p_version AND o.admitted_at IS NULL AND o.tenant = t.tenant
                 ORDER BY o.rank, o.job_id LIMIT t.n FOR UPDATE SKIP LOCKED) AS x
             WHERE t.n > 0),
        gone AS (
            -- Written where they lie: joined by id, a plan made when nothing waited reads all that waits. What was
            -- told of an earlier admission's hint is over.
            UPDATE outbox o SET admitted_at = v_now, publishes = 0, publish_error = NULL, published_at = NULL
              FROM picked WHERE o.ctid = picked.place
            RETURNING o.job_id, o.tenant)
        SELECT array_agg(job_id), array_agg(tenant) INTO v_got, v_from FROM gone;
        job_ids := job_ids || COALESCE(v_got, '{}');
        v_remaining := v_remaining - COALESCE(cardinality(v_got), 0);
        v_cursor := v_last;
        -- Who gave less than it was asked for has no more; who reached its cap is done. The others stand in the order
        -- of the walk from here on, first the one whose turn was cut short.
        SELECT array_agg(t.tenant ORDER BY t.n = i AND v_cut DESC, t.n > i DESC, t.n),
               array_agg(t.weight ORDER BY t.n = i AND v_cut DESC, t.n > i DESC, t.n),
               array_agg((t.lefts - t.take)::integer ORDER BY t.n = i AND v_cut DESC, t.n > i DESC, t.n)
          INTO v_tenants, v_weights, v_left
          FROM (SELECT u.tenant, u.weight, u.lefts, COALESCE(u.take, 0) AS take, u.n,
                       (SELECT count(*) FROM unnest(v_from) AS f(tenant) WHERE f.tenant = u.tenant) AS got
                  FROM unnest(v_tenants, v_weights, v_left, v_take) WITH ORDINALITY
                       AS u(tenant, weight, lefts, take, n)) AS t
         WHERE t.got = t.take AND t.lefts > t.take;
        IF v_tenants IS NULL OR v_tenants[1] <> v_last OR NOT v_cut THEN
            v_spent := 0;
        END IF;
    END LOOP;
    UPDATE bucket b SET cursor = v_cursor, spent = v_spent
     WHERE b.kind = p_kind AND b.version = p_version AND (b.cursor, b.spent) IS DISTINCT FROM (v_cursor, v_spent);
    IF v_remaining = 0 THEN
        held := NULL;
    END IF;
END $$;

-- Admission for every kind this relay owns. First the ownership rows are locked by their unexpired token, then counts
-- are taken on a fresh snapshot: in one statement a second relay in a take-over would count on its old snapshot. Where
-- nothing waits and nothing must be taken back it only reads. It may commit without waiting for the disk: an admission
-- that a crash forgets is made again. least and hearers are for who publishes: the slots of the smallest live consumer
-- of the kind and version, and how many there are.
CREATE OR REPLACE FUNCTION bellwire.admit(
    p_relay uuid, p_token uuid, p_kinds text[], p_versions smallint[], p_recent integer[],
    p_notify boolean DEFAULT true)
RETURNS TABLE (kind text, version smallint, job_ids uuid[], outstanding integer, win integer, waiting boolean,
               held text, "least" integer, hearers integer) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := bellwire.now();
    v_owned text[];
    v_busy text[];
    v_kind record;
    v_got record;
    v_blocked text[];
    v_quota integer;
    v_cap_left integer;
    v_heard uuid[] := '{}';
BEGIN
    -- Read only: which of our kinds have a wake-up at all. Scalar probes of the two partial indexes: an EXISTS is turned
    -- into a join that reads the whole backlog for every kind. From the end, because what was just submitted stands
    -- there, and what was taken since the last vacuum lies before it.
    SELECT array_agg(o.kind) INTO v_busy FROM kind_owner o
     WHERE o.relay = p_relay AND o.token = p_token AND o.expires_at > v_now
       AND COALESCE((SELECT true FROM outbox w WHERE w.kind = o.kind AND w.admitted_at IS NULL
                      ORDER BY w.version DESC, w.tenant DESC, w.rank DESC, w.job_id DESC LIMIT 1),
                    (SELECT true FROM outbox w WHERE w.kind = o.kind AND w.admitted_at IS NOT NULL LIMIT 1), false);
    IF v_busy IS NULL THEN
        RETURN;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT array_agg(locked.kind) INTO v_owned FROM (
        SELECT o.kind FROM kind_owner o
         WHERE o.kind = ANY (v_busy) AND o.relay = p_relay AND o.token = p_token AND o.expires_at > v_now
         ORDER BY o.kind FOR UPDATE) AS locked;
    IF v_owned IS NULL THEN
        RETURN;
    END IF;

    FOR v_kind IN
        WITH alive AS MATERIALIZED (
            SELECT c.id, c.slots, c.kinds, c.versions,
                   GREATEST(0, c.slots - COALESCE(r.n, 0)) AS free
              FROM consumer c
              LEFT JOIN (SELECT j.consumer, count(*)::integer AS n FROM job j WHERE j.state = 'running'
                          GROUP BY j.consumer) AS r ON r.consumer = c.id
             WHERE c.beat_at > v_now - interval '15 seconds' AND NOT c.stopping),
        declared AS MATERIALIZED (
            SELECT u.kind, u.version, sum(a.slots)::integer AS slots, sum(a.free)::integer AS free,
                   min(a.slots) AS least, count(*)::integer AS hearers,
                   array_agg(a.id ORDER BY a.free DESC) FILTER (WHERE a.free > 0) AS listeners
              FROM alive a CROSS JOIN LATERAL unnest(a.kinds, a.versions) AS u(kind, version)
             WHERE u.kind = ANY (v_owned)
             GROUP BY u.kind, u.version),
        -- What is out: at most the window, so the index says it quickly.
        out AS MATERIALIZED (
            SELECT o.kind, o.version, count(*)::integer AS n
              FROM unnest(v_owned) AS k(name) JOIN outbox o ON o.kind = k.name AND o.admitted_at IS NOT NULL
             GROUP BY o.kind, o.version)
        SELECT COALESCE(d.kind, t.kind) AS kind, COALESCE(d.version, t.version) AS version,
               COALESCE(d.slots, 0) AS slots, COALESCE(d.free, 0) AS free, d.listeners, COALESCE(t.n, 0) AS n,
               COALESCE(d.least, 0) AS least, COALESCE(d.hearers, 0) AS hearers,
               COALESCE(rec.n, 0) AS recent,
               k.paused_at IS NOT NULL AND COALESCE(k.paused_until > v_now, true)
                 OR EXISTS (SELECT FROM hold h WHERE h.kind = COALESCE(d.kind, t.kind) AND h.whole_kind
                                AND h.until > v_now) AS paused,
               COALESCE(CASE WHEN COALESCE(k.override_until > v_now, true)
                             THEN (k.override ->> 'running')::integer END, k.running) AS cap,
               COALESCE(CASE WHEN COALESCE(k.override_until > v_now, true)
                             THEN (k.override ->> 'running_per_tenant')::integer END, k.running_per_tenant) AS tenant_cap
          FROM declared d
          FULL JOIN out t ON t.kind = d.kind AND t.version = d.version
          LEFT JOIN kind k ON k.name = COALESCE(d.kind, t.kind)
          LEFT JOIN unnest(p_kinds, p_versions, p_recent) AS rec(kind, version, n)
                 ON rec.kind = d.kind AND rec.version = d.version
         ORDER BY 1, 2
    LOOP
        kind := v_kind.kind; version := v_kind.version; job_ids := '{}'; held := NULL; waiting := false;
        outstanding := v_kind.n; least := v_kind.least; hearers := v_kind.hearers;
        win := GREATEST(1, LEAST(v_kind.free + v_kind.recent, 2 * v_kind.slots));
        IF v_kind.paused OR v_kind.slots = 0 THEN
            -- Nobody may, or nobody can, run it: what is out comes back.
            held := CASE WHEN v_kind.paused THEN 'paused' ELSE 'no_consumer' END;
            win := 0;
            IF v_kind.n > 0 THEN
                outstanding := v_kind.n - _unadmit(v_kind.kind, v_kind.version, NULL);
            END IF;
            waiting := true;
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT array_agg(b.tenant) INTO v_blocked FROM (
            SELECT x.tenant FROM kind_tenant x WHERE x.kind = v_kind.kind AND x.paused_at IS NOT NULL
               AND COALESCE(x.paused_until > v_now, true)
            UNION SELECT x.name FROM tenant x WHERE x.paused_at IS NOT NULL AND COALESCE(x.paused_until > v_now, true)
            UNION SELECT h.tenant FROM hold h WHERE h.kind = v_kind.kind AND NOT h.whole_kind AND h.until > v_now) AS b;
        IF v_blocked IS NOT NULL AND v_kind.n > 0 THEN
            outstanding := v_kind.n - _unadmit(v_kind.kind, v_kind.version, v_blocked);
        END IF;
        IF v_kind.tenant_cap IS NOT NULL AND outstanding > 0 THEN
            -- More than a tenant's cap is out only where the cap was lowered.
            outstanding := outstanding - COALESCE((
                SELECT sum(_unadmit(v_kind.kind, v_kind.version, ARRAY[s.tenant], s.surplus)) FROM (
                    SELECT o.tenant, (count(*) - v_kind.tenant_cap
                           + (SELECT count(*) FROM job j WHERE j.state = 'running' AND j.kind = v_kind.kind
                                 AND j.tenant = o.tenant))::integer AS surplus
                      FROM outbox o WHERE o.kind = v_kind.kind AND o.admitted_at IS NOT NULL
                     GROUP BY o.tenant) AS s
                 WHERE s.surplus > 0), 0)::integer;
        END IF;
        v_quota := win - outstanding;
        IF v_quota <= 0 THEN
            held := 'window';
        END IF;
        IF v_kind.cap IS NOT NULL THEN
            v_cap_left := v_kind.cap
                - (SELECT count(*) FROM job j WHERE j.state = 'running' AND j.kind = v_kind.kind)::integer
                - (SELECT count(*) FROM outbox o WHERE o.kind = v_kind.kind AND o.admitted_at IS NOT NULL)::integer;
            IF v_cap_left < 0 AND outstanding > 0 THEN
                -- Likewise: the last in order come back.
                outstanding := outstanding - _unadmit(v_kind.kind, v_kind.version, NULL, -v_cap_left);
            END IF;
            IF v_cap_left < v_quota THEN
                v_quota := v_cap_left;
                held := 'cap';
            END IF;
        END IF;
        IF v_quota > 0 THEN
            v_got := _admit_kind(v_kind.kind, v_kind.version, v_quota, v_kind.tenant_cap, COALESCE(v_blocked, '{}'));
            job_ids := v_got.job_ids;
            outstanding := outstanding + cardinality(job_ids);
            held := CASE WHEN cardinality(job_ids) = v_quota THEN COALESCE(held, 'window') ELSE v_got.held END;
            IF cardinality(job_ids) > 0 AND v_kind.listeners IS NOT NULL THEN
                v_heard := v_heard || v_kind.listeners[1 : cardinality(job_ids)];
            END IF;
        END IF;
        -- Who was given less than the quota, and not for a cap, had no more: looking again would walk over all that was
        -- taken since the last vacuum.
        waiting := NOT (v_quota > 0 AND cardinality(job_ids) < v_quota AND held IS NULL)
                   AND EXISTS (SELECT FROM outbox o WHERE o.kind = v_kind.kind AND o.version = v_kind.version
                                  AND o.admitted_at IS NULL);
        IF NOT waiting THEN
            held := NULL;
        END IF;
        IF waiting OR outstanding > 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
    IF p_notify THEN
        PERFORM pg_notify('bellwire_' || replace(h.id::text, '-', ''), '')
           FROM (SELECT DISTINCT u.id FROM unnest(v_heard) AS u(id)) AS h;
    END IF;
END $$;

-- Takes admissions back: of one kind and version, or of some of its tenants; where a number is given, so many, the
-- last in order first. Skips what a claim holds. A pause, a lowered cap and a version that nobody runs come here;
-- trouble with publishing never does: its wake-ups stay admitted, and pollers take them.
CREATE OR REPLACE FUNCTION bellwire._unadmit(
    p_kind text, p_version smallint, p_tenants text[], p_most integer DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_count integer;
BEGIN
    WITH back AS MATERIALIZED (
        SELECT o.ctid AS place FROM outbox o
         WHERE o.kind = p_kind AND o.version = p_version AND o.admitted_at IS NOT NULL
           AND (p_tenants IS NULL OR o.tenant = ANY (p_tenants))
         ORDER BY o.rank DESC, o.job_id DESC LIMIT p_most FOR UPDATE SKIP LOCKED)
    UPDATE outbox o SET admitted_at = NULL FROM back WHERE o.ctid = back.place;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
