-- The first thing wrong with a submission, or null. The client says the same with better words before any SQL; this
-- is for those who come by plain SQL.
CREATE OR REPLACE FUNCTION bellwire._complaint(s bellwire.submission) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE
        WHEN s.kind IS NULL OR s.kind !~ '^[a-z][a-z0-9_.]{0,62}$'
            THEN jsonb_build_object('field', 'kind', 'message', 'a kind is [a-z][a-z0-9_.]{0,62}')
        WHEN s.version IS NULL OR s.version NOT BETWEEN 1 AND 32767
            THEN jsonb_build_object('field', 'version', 'message', 'a version is 1 to 32767')
        WHEN s.payload IS NULL OR jsonb_typeof(s.payload) <> 'object'
            THEN jsonb_build_object('field', 'payload', 'message', 'the payload is a JSON object')
        WHEN octet_length(s.payload::text) > 65536
             AND octet_length(replace(replace(s.payload::text, '": ', '":'), ', ', ',')) > 65536
            THEN jsonb_build_object('field', 'payload', 'message',
                                    'the payload is over 65,536 bytes; store it elsewhere and submit a reference')
        WHEN s.tenant IS NULL OR octet_length(s.tenant) > 200
            THEN jsonb_build_object('field', 'tenant', 'message', 'a tenant is text of at most 200 bytes')
        WHEN octet_length(s.key) > 1000  -- with kind and tenant it must fit into an index entry
            THEN jsonb_build_object('field', 'key', 'message', 'a key is at most 1,000 bytes')
        WHEN (s.key IS NULL) <> (s.unique_until IS NULL)
            THEN jsonb_build_object('field', 'unique_until', 'message',
                                    'a key needs unique_until (started, finished or pruned), and only a key has one')
        WHEN s.unique_until NOT IN ('started', 'finished', 'pruned')
            THEN jsonb_build_object('field', 'unique_until', 'message', 'one of started, finished, pruned')
        WHEN s.priority NOT BETWEEN -100 AND 100
            THEN jsonb_build_object('field', 'priority', 'message', 'a priority is -100 to 100')
        WHEN s.run_at IS NOT NULL AND s.run_in IS NOT NULL
            THEN jsonb_build_object('field', 'run_in', 'message', 'give run_at or run_in, not both')
        WHEN NOT isfinite(s.run_at) OR NOT isfinite(s.deadline)
            THEN jsonb_build_object('field', 'run_at', 'message', 'run_at and deadline are finite')
        -- A moment that a client cannot read would fail whoever reads it, a claim or a promotion, for everybody.
        WHEN s.run_at NOT BETWEEN '0001-01-02 00:00+00' AND '8000-01-01 00:00+00'
            THEN jsonb_build_object('field', 'run_at', 'message', 'run_at lies between the years 1 and 8000')
        WHEN s.deadline NOT BETWEEN '0001-01-02 00:00+00' AND '8000-01-01 00:00+00'
            THEN jsonb_build_object('field', 'deadline', 'message', 'a deadline lies between the years 1 and 8000')
        WHEN s.run_in NOT BETWEEN '-365000 days' AND '365000 days'
            THEN jsonb_build_object('field', 'run_in', 'message', 'run_in is at most 365,000 days')
        WHEN s.max_age <= interval '0' OR s.max_age > '365000 days'
            THEN jsonb_build_object('field', 'max_age', 'message', 'max_age is above zero, at most 365,000 days')
        WHEN s.on_duplicate NOT IN ('existing', 'replace', 'supersede', 'reopen')
            THEN jsonb_build_object('field', 'on_duplicate', 'message', 'one of existing, replace, supersede, reopen')
        WHEN s.on_duplicate <> 'existing' AND s.key IS NULL
            THEN jsonb_build_object('field', 'on_duplicate', 'message', 'only a job with a key can have a duplicate')
        END;
END $$;

-- The top-level fields in which two payloads differ, in order.
CREATE OR REPLACE FUNCTION bellwire._differing(p_a jsonb, p_b jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT COALESCE(jsonb_agg(k ORDER BY k), '[]') FROM (
        SELECT COALESCE(a.key, b.key) AS k FROM jsonb_each(p_a) a FULL JOIN jsonb_each(p_b) b ON b.key = a.key
         WHERE a.value IS DISTINCT FROM b.value) AS d
$$;

-- What a submission gets that found a job in its place: existing, or a key conflict that names the fields. Payloads of
-- two versions are not compared; one whose payload is gone or is not JSON is compared by its digest.
CREATE OR REPLACE FUNCTION bellwire._meet(s bellwire.submission, j bellwire.job) RETURNS bellwire.receipt
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN j.kind <> s.kind OR j.tenant <> s.tenant THEN
            ROW(s.n, j.id, NULL, j.state, j.run_at, 'key_conflict',
                jsonb_build_object('fields', jsonb_build_array('job_id'), 'digest_only', false))::receipt
        WHEN j.version <> s.version
             OR (j.payload IS NOT NULL AND j.codec = 'json' AND s.codec = 'json' AND j.payload = s.payload)
             OR ((j.payload IS NULL OR j.codec <> 'json' OR s.codec <> 'json')
                 AND (j.args_digest IS NULL OR s.args_digest IS NULL OR j.args_digest = s.args_digest)) THEN
            ROW(s.n, j.id, 'existing', j.state, j.run_at, NULL, NULL)::receipt
        WHEN j.payload IS NOT NULL AND j.codec = 'json' AND s.codec = 'json' THEN
            ROW(s.n, j.id, NULL, j.state, j.run_at, 'key_conflict',
                jsonb_build_object('fields', _differing(j.payload, s.payload), 'digest_only', false))::receipt
        ELSE
            ROW(s.n, j.id, NULL, j.state, j.run_at, 'key_conflict',
                jsonb_build_object('fields', '[]'::jsonb, 'digest_only', true))::receipt
        END
$$;

-- Writes a set whose members come sorted by key, so that two sets take their keys in one order. Insert and look-up are
-- statements of their own, so the look-up sees the winner that the insert waited for; where the winner vanished in
-- between, both are tried again.
CREATE OR REPLACE FUNCTION bellwire._write(p_jobs bellwire.submission[], p_now timestamptz)
RETURNS bellwire.receipt[] LANGUAGE plpgsql AS $$
DECLARE
    v_pending submission[] := p_jobs;
    v_ids uuid[];
    v_done receipt[] := '{}';
    v_job submission;
    v_one receipt;
BEGIN
    FOR tries IN 1 .. 10 LOOP
        WITH fresh AS (
            INSERT INTO job (id, kind, version, key, label, unique_until, args_digest, payload, codec, tenant,
                             priority, ordering_key, state, reason, run_at, eligible_at, deadline_at, max_age,
                             trace_context, created_at)
            SELECT u.job_id, u.kind, u.version, u.key, u.key, u.unique_until, u.args_digest, u.payload, u.codec,
                   u.tenant, u.priority, u.ordering_key,
                   CASE WHEN u.run_at > p_now THEN 'scheduled' ELSE 'ready' END,
                   CASE WHEN u.run_at > p_now THEN 'run_at' END,
                   u.run_at, CASE WHEN u.run_at <= p_now THEN p_now END, u.deadline, u.max_age,
                   u.trace_context, p_now
              FROM unnest(v_pending) AS u
            ON CONFLICT DO NOTHING
            RETURNING id, kind, version, tenant, priority, state),
        woken AS (
            INSERT INTO outbox (job_id, kind, version, tenant, rank, eligible_at)
            SELECT f.id, f.kind, f.version, f.tenant,
                   p_now - f.priority * COALESCE(k.aging, interval '60 seconds'), p_now
              FROM fresh f LEFT JOIN kind k ON k.name = f.kind WHERE f.state = 'ready')
        SELECT array_agg(f.id) INTO v_ids FROM fresh f;
        IF cardinality(v_ids) = 1 AND cardinality(p_jobs) = 1 THEN  -- the common case needs no query to say so
            v_job := p_jobs[1];
            RETURN ARRAY[ROW(v_job.n, v_job.job_id, 'created',
                             CASE WHEN v_job.run_at > p_now THEN 'scheduled' ELSE 'ready' END, v_job.run_at, NULL,
                             NULL)::receipt];
        END IF;
        v_done := v_done || ARRAY(  -- two of one set may bring the same id: only the first of them was written
            SELECT DISTINCT ON (u.job_id) ROW(u.n, u.job_id, 'created',
                       CASE WHEN u.run_at > p_now THEN 'scheduled' ELSE 'ready' END, u.run_at, NULL, NULL)::receipt
              FROM unnest(v_pending) WITH ORDINALITY AS u(n, kind, version, payload, tenant, key, unique_until, priority,
                       ordering_key, run_at, run_in, deadline, max_age, job_id, on_duplicate, wake, args_digest, codec,
                       trace_context, place)
             WHERE u.job_id IN (SELECT unnest(v_ids)) ORDER BY u.job_id, u.place);
        IF cardinality(v_done) = cardinality(p_jobs) THEN
            RETURN v_done;
        END IF;

        -- Somebody was first: the id that was brought counts before the key.
        v_pending := _left(v_pending, v_done);
        v_done := v_done || ARRAY(
            SELECT _meet(s, CASE WHEN i.id IS NOT NULL THEN i ELSE h END)
              FROM unnest(v_pending) AS s
              LEFT JOIN job i ON i.id = s.job_id
              LEFT JOIN job h ON h.kind = s.kind AND h.tenant = s.tenant AND h.key = s.key
             WHERE i.id IS NOT NULL OR (h.id IS NOT NULL AND s.on_duplicate = 'existing'));
        FOREACH v_job IN ARRAY _left(v_pending, v_done) LOOP
            CONTINUE WHEN v_job.on_duplicate = 'existing';
            v_one := _submit_over(v_job);
            IF v_one.n IS NOT NULL THEN
                v_done := v_done || v_one;
            END IF;
        END LOOP;
        IF cardinality(v_done) = cardinality(p_jobs) THEN
            RETURN v_done;
        END IF;
        v_pending := _left(v_pending, v_done);
    END LOOP;
    RAISE EXCEPTION 'could not submit: the holder of the key vanished ten times' USING ERRCODE = '40001';
END $$;

CREATE OR REPLACE FUNCTION bellwire._left(p_pending bellwire.submission[], p_done bellwire.receipt[])
RETURNS bellwire.submission[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(SELECT p FROM unnest(p_pending) AS p WHERE p.n NOT IN (SELECT d.n FROM unnest(p_done) AS d)
                  ORDER BY p.kind, p.tenant, p.key, p.n)
$$;

-- One way in for every client: a set is written as a whole or not at all, and answered in the order given.
CREATE OR REPLACE FUNCTION bellwire._submit(p_jobs bellwire.submission[]) RETURNS SETOF bellwire.receipt
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := bellwire.now();
    v_jobs submission[];
    v_done receipt[];
    v_refused receipt[];
    v_bounded boolean;
    v_sleepers uuid[];
BEGIN
    -- Ids from the database's clock, ascending in the order given, unless brought by the caller.
    SELECT array_agg(ROW(u.n, u.kind, u.version, u.payload, u.tenant, u.key, u.unique_until, COALESCE(u.priority, 0),
                         u.ordering_key, w.run_at, u.run_in,
                         CASE WHEN w.complaint IS NULL THEN COALESCE(u.deadline, w.run_at + u.max_age) END,
                         CASE WHEN w.complaint IS NULL THEN COALESCE(u.max_age, u.deadline - w.run_at) END,
                         COALESCE(u.job_id, uuid7(v_now, u.n)),
                         COALESCE(u.on_duplicate, 'existing'), u.wake, u.args_digest, COALESCE(u.codec, 'json'),
                         u.trace_context)::submission ORDER BY u.kind, u.tenant, u.key, u.n),
           array_agg(ROW(u.n, NULL, NULL, NULL, NULL, 'payload_invalid', w.complaint)::receipt ORDER BY u.n)
               FILTER (WHERE w.complaint IS NOT NULL),
           bool_or(k.backlog IS NOT NULL),
           array_agg(DISTINCT o.relay) FILTER (WHERE o.asleep_until > v_now AND w.run_at <= v_now
                                                     AND u.wake IS NOT FALSE)
      INTO v_jobs, v_refused, v_bounded, v_sleepers
      FROM unnest(p_jobs) AS u
     CROSS JOIN LATERAL (SELECT _complaint(u) AS complaint OFFSET 0) AS c
     CROSS JOIN LATERAL (SELECT CASE WHEN c.complaint IS NULL THEN COALESCE(u.run_at, v_now + u.run_in, v_now) END
                                AS run_at, c.complaint OFFSET 0) AS w
      LEFT JOIN kind k ON k.name = u.kind
      LEFT JOIN kind_owner o ON o.kind = u.kind;
    IF v_bounded AND v_refused IS NULL THEN
        -- Capacity is compared with a measured number; a measure older than 30 s refuses nobody. A repeat of what is
        -- there already is no new work.
        SELECT array_agg(ROW(u.n, NULL, NULL, NULL, NULL, 'over_capacity', jsonb_build_object(
                   'backlog', m.ready + m.scheduled,
                   'drain_seconds', (m.ready + m.scheduled) / NULLIF(m.finished_per_second, 0)))::receipt ORDER BY u.n)
          INTO v_refused
          FROM unnest(v_jobs) AS u
          JOIN kind k ON k.name = u.kind AND k.backlog IS NOT NULL AND k.when_full = 'reject'
          JOIN measure m ON m.kind = u.kind AND m.measured_at > v_now - interval '30 seconds'
                        AND m.ready + m.scheduled >= k.backlog
         WHERE NOT EXISTS (SELECT FROM job j WHERE j.id = u.job_id)
           AND NOT EXISTS (SELECT FROM job j WHERE j.kind = u.kind AND j.tenant = u.tenant AND j.key = u.key);
    END IF;
    IF v_refused IS NULL AND cardinality(v_jobs) = 1 THEN
        -- A single submit decides every refusal before it writes, so it needs no subtransaction.
        v_done := _write(v_jobs, v_now);
        IF v_done[1].code IS NOT NULL THEN
            v_refused := v_done;
        END IF;
    ELSIF v_refused IS NULL THEN
        BEGIN
            v_done := _write(v_jobs, v_now);
            SELECT array_agg(d) INTO v_refused FROM unnest(v_done) AS d WHERE d.code IS NOT NULL;
            IF v_refused IS NOT NULL THEN
                RAISE EXCEPTION 'refused' USING ERRCODE = 'BW001';
            END IF;
        EXCEPTION WHEN SQLSTATE 'BW001' THEN
            NULL;
        END;
    END IF;
    IF v_refused IS NOT NULL THEN
        RETURN QUERY
        SELECT u.n, r.job_id, NULL::text, r.state, r.run_at, COALESCE(r.code, 'not_submitted'), r.detail
          FROM unnest(p_jobs) AS u LEFT JOIN unnest(v_refused) AS r ON r.n = u.n ORDER BY u.n;
        RETURN;
    END IF;
    -- Only a relay that says it sleeps is woken: NOTIFY in every transaction would serialise commits.
    IF v_sleepers IS NOT NULL AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('bellwire_relay_' || replace(r::text, '-', ''), '') FROM unnest(v_sleepers) AS r;
    END IF;
    IF cardinality(v_done) = 1 THEN
        RETURN NEXT v_done[1];
    ELSE
        RETURN QUERY SELECT d.* FROM unnest(v_done) AS d ORDER BY d.n;
    END IF;
END $$;

-- A submission that means to do something about the job that holds its key. Null: the key is free now, insert again.
CREATE OR REPLACE FUNCTION bellwire._submit_over(s bellwire.submission) RETURNS bellwire.receipt
LANGUAGE plpgsql AS $$
DECLARE
    v_holder job;
    v_met receipt;
BEGIN
    SELECT j.* INTO v_holder FROM job j WHERE j.kind = s.kind AND j.tenant = s.tenant AND j.key = s.key FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    v_met := _meet(s, v_holder);
    IF s.on_duplicate = 'replace' AND v_holder.state IN ('ready', 'scheduled') THEN
        PERFORM replace(ARRAY[v_holder.id], ARRAY[s]);
        RETURN (SELECT ROW(s.n, j.id, 'replaced', j.state, j.run_at, NULL, NULL)::receipt FROM job j
                 WHERE j.id = v_holder.id);
    ELSIF s.on_duplicate = 'supersede' AND v_holder.finished_at IS NULL THEN
        PERFORM supersede(ARRAY[v_holder.id], ARRAY[s.job_id]);
        RETURN NULL;
    ELSIF s.on_duplicate = 'reopen' AND v_holder.state IN ('failed', 'cancelled') AND v_met.code IS NULL THEN
        IF EXISTS (SELECT FROM redrive(ARRAY[v_holder.id], NULL, 'application', 'reopened by a submit') r
                    WHERE r.outcome = 'redriven') THEN
            RETURN (SELECT ROW(s.n, j.id, 'reopened', j.state, j.run_at, NULL, NULL)::receipt FROM job j
                     WHERE j.id = v_holder.id);
        END IF;
    END IF;
    RETURN v_met;
END $$;
