-- What applications call. A refusal is a row here (code, detail), because a raise would abort the caller's transaction;
-- bellwire.submit raises. The same for every client.
CREATE OR REPLACE FUNCTION bellwire.try_submit(
    kind text, version integer, payload jsonb, tenant text DEFAULT '', key text DEFAULT NULL,
    unique_until text DEFAULT NULL, priority integer DEFAULT 0, ordering_key text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, run_in interval DEFAULT NULL, deadline timestamptz DEFAULT NULL,
    max_age interval DEFAULT NULL, job_id uuid DEFAULT NULL, on_duplicate text DEFAULT 'existing',
    wake boolean DEFAULT true, args_digest bytea DEFAULT NULL, codec text DEFAULT 'json',
    trace_context jsonb DEFAULT NULL)
RETURNS bellwire.answer LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
DECLARE
    s submission := ROW(1, kind, version, payload, COALESCE(tenant, ''), key, unique_until, COALESCE(priority, 0),
                        ordering_key, run_at, run_in, deadline, max_age, job_id, COALESCE(on_duplicate, 'existing'), wake,
                        args_digest, COALESCE(codec, 'json'), trace_context)::submission;
    v_now timestamptz := bellwire.now();
    v_due timestamptz := COALESCE(run_at, v_now + run_in, v_now);
    v_backlog integer;
    v_aging interval;
    v_sleeper uuid;
    v_answer answer;
BEGIN
    -- A new job that nothing speaks against is by far the most common: it takes two statements. Whatever is not
    -- plainly that takes the road of the sets, which decides everything.
    IF s.on_duplicate = 'existing' AND _complaint(s) IS NULL THEN
        SELECT k.backlog, COALESCE(k.aging, interval '60 seconds'), o.relay INTO v_backlog, v_aging, v_sleeper
          FROM (VALUES (s.kind)) AS one(kind)
          LEFT JOIN kind k ON k.name = one.kind
          LEFT JOIN kind_owner o ON o.kind = one.kind AND o.asleep_until > v_now;
        IF v_backlog IS NULL THEN
            WITH fresh AS (
                INSERT INTO job (id, kind, version, key, label, unique_until, args_digest, payload, codec, tenant,
                                 priority, ordering_key, state, reason, run_at, eligible_at, deadline_at, max_age,
                                 trace_context, created_at)
                VALUES (COALESCE(s.job_id, uuid7(v_now, 1)), s.kind, s.version, s.key, s.key, s.unique_until,
                        s.args_digest, s.payload, s.codec, s.tenant, s.priority, s.ordering_key,
                        CASE WHEN v_due > v_now THEN 'scheduled' ELSE 'ready' END,
                        CASE WHEN v_due > v_now THEN 'run_at' END,
                        v_due, CASE WHEN v_due <= v_now THEN v_now END, COALESCE(s.deadline, v_due + s.max_age),
                        COALESCE(s.max_age, s.deadline - v_due), s.trace_context, v_now)
                ON CONFLICT DO NOTHING RETURNING id, state),
            woken AS (
                INSERT INTO outbox (job_id, kind, version, tenant, rank, eligible_at)
                SELECT f.id, s.kind, s.version, s.tenant, v_now - s.priority * v_aging, v_now
                  FROM fresh f WHERE f.state = 'ready')
            SELECT f.id, 'created', f.state, v_due INTO v_answer FROM fresh f;
            IF FOUND THEN
                IF v_sleeper IS NOT NULL AND s.wake IS NOT FALSE AND v_answer.state = 'ready'
                   AND pg_notification_queue_usage() < 0.5 THEN
                    PERFORM pg_notify('bellwire_relay_' || replace(v_sleeper::text, '-', ''), '');
                END IF;
                RETURN v_answer;
            END IF;
        END IF;
    END IF;
    SELECT r.job_id, r.outcome, r.state, r.run_at, r.code, r.detail INTO v_answer FROM _submit(ARRAY[s]) AS r;
    RETURN v_answer;
END $$;

CREATE OR REPLACE FUNCTION bellwire.submit(
    kind text, version integer, payload jsonb, tenant text DEFAULT '', key text DEFAULT NULL,
    unique_until text DEFAULT NULL, priority integer DEFAULT 0, ordering_key text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, run_in interval DEFAULT NULL, deadline timestamptz DEFAULT NULL,
    max_age interval DEFAULT NULL, job_id uuid DEFAULT NULL, on_duplicate text DEFAULT 'existing',
    wake boolean DEFAULT true, args_digest bytea DEFAULT NULL, codec text DEFAULT 'json',
    trace_context jsonb DEFAULT NULL)
RETURNS bellwire.answer LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
DECLARE
    v_answer answer;
BEGIN
    v_answer := try_submit(kind, version, payload, tenant, key, unique_until, priority, ordering_key, run_at, run_in,
                           deadline, max_age, job_id, on_duplicate, wake, args_digest, codec, trace_context);
    IF v_answer.code IS NOT NULL THEN
        RAISE EXCEPTION 'bellwire.submit refused: %', v_answer.code
            USING ERRCODE = CASE v_answer.code WHEN 'key_conflict' THEN 'unique_violation'
                                               WHEN 'over_capacity' THEN 'insufficient_resources'
                                               ELSE 'invalid_parameter_value' END,
                  DETAIL = v_answer.detail::text;
    END IF;
    RETURN v_answer;
END $$;

-- A JSON array of objects with the names of try_submit's arguments (args_digest in hex). All or none; rows in order.
CREATE OR REPLACE FUNCTION bellwire.try_submit_many(jobs jsonb)
RETURNS TABLE (ordinal integer, job_id uuid, outcome text, state text, run_at timestamptz, code text, detail jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = bellwire, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_jobs submission[];
BEGIN
    IF jsonb_array_length(jobs) > 100000 THEN
        RETURN QUERY SELECT 1, NULL::uuid, NULL::text, NULL::text, NULL::timestamptz, 'payload_invalid',
            jsonb_build_object('field', 'jobs', 'message', 'at most 100,000 jobs a call: split the set');
        RETURN;
    END IF;
    SELECT array_agg(ROW(u.n, u.kind, u.version, u.payload, COALESCE(u.tenant, ''), u.key, u.unique_until, u.priority,
                         u.ordering_key, u.run_at, u.run_in, u.deadline, u.max_age, u.job_id, u.on_duplicate, u.wake,
                         decode(u.args_digest, 'hex'), u.codec, u.trace_context)::submission ORDER BY u.n)
      INTO v_jobs
      FROM ROWS FROM (jsonb_to_recordset(jobs) AS (
               kind text, version integer, payload jsonb, tenant text, key text, unique_until text, priority integer,
               ordering_key text, run_at timestamptz, run_in interval, deadline timestamptz, max_age interval,
               job_id uuid, on_duplicate text, wake boolean, args_digest text, codec text, trace_context jsonb))
           WITH ORDINALITY AS u(kind, version, payload, tenant, key, unique_until, priority, ordering_key, run_at,
               run_in, deadline, max_age, job_id, on_duplicate, wake, args_digest, codec, trace_context, n);
    IF v_jobs IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT r.n, r.job_id, r.outcome, r.state, r.run_at, r.code, r.detail FROM _submit(v_jobs) AS r;
END $$;

-- Where a job stands. find_job: the holder of the key.
CREATE OR REPLACE FUNCTION bellwire.get_job(p_id uuid)
RETURNS TABLE (job_id uuid, kind text, version smallint, key text, tenant text, priority smallint, state text,
               reason text, run_at timestamptz, deadline_at timestamptz, attempt bigint, attempts_used smallint,
               generation integer, created_at timestamptz, finished_at timestamptz, result jsonb, first_code text,
               last_code text, cancel_requested_at timestamptz, cancel_actor text, cancel_reason text,
               progress bigint, progress_total bigint, progress_note text) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bellwire, pg_temp
AS $$
    SELECT j.id, j.kind, j.version, j.label, j.tenant, j.priority, j.state, j.reason, j.run_at, j.deadline_at,
           j.attempt, j.attempts_used, j.generation, j.created_at, j.finished_at, j.result, j.first_code, j.last_code,
           j.cancel_requested_at, j.cancel_actor, j.cancel_reason, j.progress, j.progress_total, j.progress_note
      FROM job j WHERE j.id = p_id
$$;
CREATE OR REPLACE FUNCTION bellwire.find_job(p_kind text, p_tenant text, p_key text)
RETURNS TABLE (job_id uuid, kind text, version smallint, key text, tenant text, priority smallint, state text,
               reason text, run_at timestamptz, deadline_at timestamptz, attempt bigint, attempts_used smallint,
               generation integer, created_at timestamptz, finished_at timestamptz, result jsonb, first_code text,
               last_code text, cancel_requested_at timestamptz, cancel_actor text, cancel_reason text,
               progress bigint, progress_total bigint, progress_note text) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bellwire, pg_temp
AS $$
    SELECT g.* FROM job j CROSS JOIN LATERAL get_job(j.id) AS g
     WHERE j.kind = p_kind AND j.tenant = p_tenant AND j.key = p_key
$$;

-- How long the backlog of a kind takes at the pace last measured; null where nothing was measured lately.
CREATE OR REPLACE FUNCTION bellwire.drain_estimate(p_kind text) RETURNS interval
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bellwire, pg_temp
AS $$
    SELECT make_interval(secs => m.ready / m.finished_per_second) FROM measure m
     WHERE m.kind = p_kind AND m.finished_per_second > 0 AND m.measured_at > bellwire.now() - interval '30 seconds'
$$;
