-- The tables of schema bellwire. No foreign keys between them: the edges keep them in step, and they would
-- cost half of a submit. Native enums are not used either: a CHECK can be widened inside a transaction.

CREATE TABLE bellwire.installation (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    functions_digest text,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp()
);
INSERT INTO bellwire.installation DEFAULT VALUES;

CREATE TABLE bellwire.job (
    id uuid PRIMARY KEY,
    kind text NOT NULL CONSTRAINT job_kind_ck CHECK (kind ~ '^[a-z][a-z0-9_.]{0,62}$'),
    version smallint NOT NULL CONSTRAINT job_version_ck CHECK (version >= 1),
    key text,
    label text,
    unique_until text CONSTRAINT job_unique_until_ck CHECK (unique_until IN ('started', 'finished', 'pruned')),
    args_digest bytea,
    payload jsonb,
    codec text NOT NULL DEFAULT 'json',
    tenant text NOT NULL DEFAULT '',
    priority smallint NOT NULL DEFAULT 0 CONSTRAINT job_priority_ck CHECK (priority BETWEEN -100 AND 100),
    ordering_key text,
    state text NOT NULL CONSTRAINT job_state_ck
        CHECK (state IN ('scheduled', 'ready', 'running', 'succeeded', 'failed', 'cancelled')),
    reason text,
    run_at timestamptz NOT NULL,
    eligible_at timestamptz,
    deadline_at timestamptz,
    max_age interval,
    max_attempts smallint,
    attempt bigint NOT NULL DEFAULT 0,
    attempts_used smallint NOT NULL DEFAULT 0,
    unknown_errors smallint NOT NULL DEFAULT 0,
    deaths smallint NOT NULL DEFAULT 0,
    waits smallint NOT NULL DEFAULT 0,
    releases smallint NOT NULL DEFAULT 0,
    generation integer NOT NULL DEFAULT 1,
    attempt_id uuid,
    token uuid,
    consumer uuid,
    consumer_version text,
    host text,
    started_at timestamptz,
    heartbeat_at timestamptz,
    lease_expires_at timestamptz,
    lease interval,
    timeout interval,
    progress_timeout interval,
    progress bigint,
    progress_total bigint,
    progress_note text,
    progress_at timestamptz,
    checkpoint jsonb,
    cancel_requested_at timestamptz,
    cancel_actor text,
    cancel_reason text,
    superseded_by uuid,
    result jsonb,
    first_code text,
    last_code text,
    last_message text,
    triage_note text,
    trace_context jsonb,
    created_at timestamptz NOT NULL,
    finished_at timestamptz,
    CONSTRAINT job_key_ck CHECK (key IS NULL OR unique_until IS NOT NULL),
    -- A token exists exactly while the job runs, so the token alone is the guard of every settle.
    CONSTRAINT job_token_ck CHECK ((token IS NOT NULL) = (state = 'running')),
    CONSTRAINT job_lease_ck CHECK (
        num_nonnulls(token, attempt_id, consumer, started_at, heartbeat_at, lease_expires_at, lease) IN (0, 7)),
    CONSTRAINT job_scheduled_ck CHECK (state <> 'scheduled' OR reason IS NOT NULL),
    CONSTRAINT job_finished_ck CHECK ((finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled')))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

CREATE UNIQUE INDEX job_key ON bellwire.job (kind, tenant, key) WHERE key IS NOT NULL;
-- The only two indexes that say running: caps and recovery. Statements guarded by a token never mention state,
-- so no plan can take these by mistake under stale statistics.
CREATE INDEX job_running ON bellwire.job (kind, tenant) WHERE state = 'running';
CREATE INDEX job_lease ON bellwire.job (lease_expires_at) WHERE state = 'running';
CREATE INDEX job_due ON bellwire.job (run_at, id) WHERE state = 'scheduled';
CREATE INDEX job_deadline ON bellwire.job (deadline_at)
    WHERE deadline_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX job_ordering ON bellwire.job (kind, tenant, ordering_key, id)
    WHERE ordering_key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX job_finished ON bellwire.job (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX job_failed ON bellwire.job (kind, finished_at) WHERE state = 'failed';

CREATE TABLE bellwire.attempt (
    id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    number bigint NOT NULL,
    generation integer NOT NULL,
    consumer uuid,
    consumer_version text,
    host text,
    started_at timestamptz NOT NULL,
    heartbeat_at timestamptz,
    ended_at timestamptz NOT NULL,
    outcome text NOT NULL CONSTRAINT attempt_outcome_ck CHECK (outcome IN
        ('succeeded', 'retry', 'throttled', 'snoozed', 'failed', 'stopped', 'released', 'recovered')),
    error_class text,
    code text,
    message text,
    progress bigint,
    late boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX attempt_job ON bellwire.attempt (job_id, number);

CREATE TABLE bellwire.outbox (
    job_id uuid PRIMARY KEY,
    kind text NOT NULL,
    version smallint NOT NULL,
    tenant text NOT NULL,
    rank timestamptz NOT NULL,
    eligible_at timestamptz NOT NULL,
    admitted_at timestamptz,
    publishes smallint NOT NULL DEFAULT 0,
    publish_error text
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX outbox_waiting ON bellwire.outbox (kind, version, tenant, rank, job_id) WHERE admitted_at IS NULL;
CREATE INDEX outbox_admitted ON bellwire.outbox (kind, version, admitted_at) WHERE admitted_at IS NOT NULL;

CREATE TABLE bellwire.effect (
    job_id uuid NOT NULL,
    name text NOT NULL,
    attempt bigint NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'confirmed', 'refused', 'uncertain')),
    args_digest bytea,
    remote_id text,
    response jsonb,
    call_timeout interval,
    written_at timestamptz NOT NULL,
    ended_at timestamptz,
    PRIMARY KEY (job_id, name)
);

-- Policy: what the code declares, and beside it what operators override (which wins until override_until).
CREATE TABLE bellwire.kind (
    name text PRIMARY KEY CONSTRAINT kind_name_ck CHECK (name ~ '^[a-z][a-z0-9_.]{0,62}$'),
    app text NOT NULL,
    versions smallint[] NOT NULL DEFAULT '{1}',
    retired_at timestamptz,
    lease interval NOT NULL DEFAULT '30 seconds',
    timeout interval,
    progress_timeout interval,
    max_attempts smallint NOT NULL DEFAULT 5,
    retry_base interval NOT NULL DEFAULT '30 seconds',
    retry_factor double precision NOT NULL DEFAULT 2,
    retry_cap interval NOT NULL DEFAULT '10 minutes',
    retry_floor interval NOT NULL DEFAULT '0',
    retry_jitter boolean NOT NULL DEFAULT true,
    max_unknown smallint,
    max_deaths smallint NOT NULL DEFAULT 5,
    max_waits smallint NOT NULL DEFAULT 1000,
    max_releases smallint NOT NULL DEFAULT 100,
    aging interval NOT NULL DEFAULT '60 seconds',
    objective interval,
    interruptible boolean NOT NULL DEFAULT false,
    running integer,
    running_per_tenant integer,
    backlog integer,
    when_full text NOT NULL DEFAULT 'reject' CHECK (when_full IN ('reject', 'delay', 'accept')),
    on_failed_kind text,
    on_failed_version smallint,
    retain_succeeded interval NOT NULL DEFAULT '7 days',
    retain_failed interval NOT NULL DEFAULT '90 days',
    retain_cancelled interval NOT NULL DEFAULT '30 days',
    retain_payload interval,
    paused_at timestamptz, paused_until timestamptz, paused_by text, paused_reason text,
    override jsonb, override_until timestamptz, override_by text, override_reason text,
    applied_at timestamptz NOT NULL DEFAULT statement_timestamp()
);
CREATE TABLE bellwire.tenant (
    name text PRIMARY KEY,
    weight smallint NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 1000),
    paused_at timestamptz, paused_until timestamptz, paused_by text, paused_reason text,
    override jsonb, override_until timestamptz, override_by text, override_reason text
);
CREATE TABLE bellwire.kind_tenant (
    kind text NOT NULL,
    tenant text NOT NULL,
    paused_at timestamptz, paused_until timestamptz, paused_by text, paused_reason text,
    override jsonb, override_until timestamptz, override_by text, override_reason text,
    PRIMARY KEY (kind, tenant)
);

-- Which relay serves which kind ('*': what belongs to none). Read by every submit, so it holds nothing hot.
CREATE TABLE bellwire.kind_owner (
    kind text PRIMARY KEY,
    relay uuid NOT NULL,
    token uuid NOT NULL,
    expires_at timestamptz NOT NULL,
    asleep_until timestamptz
) WITH (fillfactor = 50);
-- Relays' own rows: written by relays, read by few.
CREATE TABLE bellwire.bucket (
    kind text NOT NULL,
    version smallint NOT NULL,
    cursor text NOT NULL DEFAULT '',
    spent smallint NOT NULL DEFAULT 0,
    tokens double precision,
    refilled_at timestamptz,
    PRIMARY KEY (kind, version)
) WITH (fillfactor = 50);
CREATE TABLE bellwire.measure (
    kind text PRIMARY KEY,
    measured_at timestamptz NOT NULL,
    ready bigint NOT NULL,
    scheduled bigint NOT NULL,
    running bigint NOT NULL,
    failed bigint NOT NULL,
    oldest_ready_at timestamptz,
    oldest_running_at timestamptz,
    finished_per_second double precision,
    stuck jsonb
) WITH (fillfactor = 50);
CREATE TABLE bellwire.hold (
    kind text NOT NULL,
    tenant text NOT NULL DEFAULT '',
    whole_kind boolean NOT NULL DEFAULT false,
    until timestamptz NOT NULL,
    code text,
    PRIMARY KEY (kind, tenant, whole_kind)
);
-- Wake-ups and jobs that no loop can move on; each is tried again once a minute.
CREATE TABLE bellwire.stuck (
    job_id uuid PRIMARY KEY,
    edge text NOT NULL,
    error text NOT NULL,
    retry_at timestamptz NOT NULL
);

CREATE TABLE bellwire.consumer (
    id uuid PRIMARY KEY,
    app text NOT NULL,
    app_version text,
    host text NOT NULL,
    pid integer NOT NULL,
    slots integer NOT NULL CHECK (slots >= 1),
    kinds text[] NOT NULL,
    versions smallint[] NOT NULL,
    started_at timestamptz NOT NULL,
    beat_at timestamptz NOT NULL,
    stopping boolean NOT NULL DEFAULT false,
    CONSTRAINT consumer_kinds_ck CHECK (cardinality(kinds) = cardinality(versions))
) WITH (fillfactor = 50);
CREATE TABLE bellwire.relay (
    id uuid PRIMARY KEY,
    version text,
    host text NOT NULL,
    pid integer NOT NULL,
    started_at timestamptz NOT NULL,
    beat_at timestamptz NOT NULL,
    broker_well boolean
) WITH (fillfactor = 50);

CREATE TABLE bellwire.schedule (
    name text PRIMARY KEY,
    app text NOT NULL,
    kind text NOT NULL,
    version smallint NOT NULL,
    payload jsonb NOT NULL,
    cron text,
    every interval,
    tz text NOT NULL DEFAULT 'UTC',
    start_at timestamptz,
    end_at timestamptz,
    jitter interval,
    catch_up text NOT NULL CHECK (catch_up IN ('skip', 'latest', 'all')),
    catch_up_max integer,
    overlap text NOT NULL CHECK (overlap IN ('allow', 'skip', 'queue')),
    revision integer NOT NULL DEFAULT 1,
    paused boolean NOT NULL DEFAULT false,
    next_at timestamptz,
    error text,
    CONSTRAINT schedule_rule_ck CHECK ((cron IS NULL) <> (every IS NULL))
);
CREATE TABLE bellwire.occurrence (
    schedule text NOT NULL,
    scheduled_for timestamptz NOT NULL,
    job_id uuid,
    skipped text,
    made_at timestamptz NOT NULL,
    PRIMARY KEY (schedule, scheduled_for),
    CONSTRAINT occurrence_ck CHECK ((job_id IS NULL) <> (skipped IS NULL))
);
CREATE TABLE bellwire.redrive (
    id uuid PRIMARY KEY,
    selection jsonb NOT NULL,
    rate double precision,
    canary integer,
    stop_above double precision,
    actor text NOT NULL,
    reason text NOT NULL,
    status text NOT NULL CHECK (status IN ('running', 'stopped', 'done')),
    position uuid,
    redriven bigint NOT NULL DEFAULT 0,
    refused bigint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL,
    ended_at timestamptz
);
CREATE TABLE bellwire.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT statement_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    kind text,
    tenant text,
    job_id uuid,
    reason text,
    old jsonb,
    new jsonb
);
CREATE INDEX audit_job ON bellwire.audit (job_id) WHERE job_id IS NOT NULL;

-- All attempts: those that ended, and the running ones read from their jobs.
CREATE VIEW bellwire.attempts AS
    SELECT id, job_id, number, generation, consumer, consumer_version, host, started_at, heartbeat_at, ended_at,
           outcome, error_class, code, message, progress, late
      FROM bellwire.attempt
    UNION ALL
    SELECT attempt_id, id, attempt, generation, consumer, consumer_version, host, started_at, heartbeat_at, NULL,
           'running', NULL, NULL, NULL, progress, false
      FROM bellwire.job WHERE state = 'running';

-- What crosses between functions: a submission on its way in, its receipt, and the verdict on an attempt.
CREATE TYPE bellwire.submission AS (
    n integer, kind text, version integer, payload jsonb, tenant text, key text, unique_until text,
    priority integer, ordering_key text, run_at timestamptz, run_in interval, deadline timestamptz,
    max_age interval, job_id uuid, on_duplicate text, wake boolean, args_digest bytea, codec text,
    trace_context jsonb);
CREATE TYPE bellwire.receipt AS (
    n integer, job_id uuid, outcome text, state text, run_at timestamptz, code text, detail jsonb);
CREATE TYPE bellwire.answer AS (
    job_id uuid, outcome text, state text, run_at timestamptz, code text, detail jsonb);
CREATE TYPE bellwire.verdict AS (
    id uuid, outcome text, state text, reason text, run_at timestamptz, error_class text, code text,
    message text, result jsonb, used smallint, unknown_errors smallint, deaths smallint, waits smallint,
    releases smallint);
