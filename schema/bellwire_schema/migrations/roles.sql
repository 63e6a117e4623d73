-- Roles belong to the whole server, so every step asks first: another database's migration may have made them,
-- or be making them right now, and a migrator without CREATEROLE may run once they are there.
-- Nothing here is granted to PUBLIC, and functions run as their owner: a role can do what its functions do.
DO $roles$
DECLARE
    v_role text;
    v_setting text;
    v_config text[];
BEGIN
    FOREACH v_role IN ARRAY ARRAY['bellwire_application', 'bellwire_relay', 'bellwire_consumer',
                                  'bellwire_operator', 'bellwire_viewer'] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = v_role);
        BEGIN
            -- Daemons log in as their role, since members of a role do not get its settings. No password is
            -- set here: until somebody sets one, no password lets anybody in.
            EXECUTE format('CREATE ROLE %I %s', v_role,
                CASE WHEN v_role IN ('bellwire_relay', 'bellwire_consumer') THEN 'LOGIN' ELSE 'NOLOGIN' END);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'role % is missing, and % may not create roles', v_role, current_user
                    USING ERRCODE = 'insufficient_privilege',
                          HINT = 'migrate as a role with CREATEROLE, or let a DBA run the output of '
                                 '''bellwire migrate --sql'' once';
        END;
    END LOOP;

    -- A half-open daemon would keep its rows locked for ever: these end it below the usual lease of 30 seconds.
    FOREACH v_role IN ARRAY ARRAY['bellwire_relay', 'bellwire_consumer'] LOOP
        SELECT s.setconfig INTO v_config
          FROM pg_db_role_setting s
         WHERE s.setrole = (SELECT oid FROM pg_roles WHERE rolname = v_role)
           AND s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database());
        FOREACH v_setting IN ARRAY ARRAY['default_transaction_isolation=read committed', 'synchronous_commit=on',
                                         'idle_in_transaction_session_timeout=25s', 'tcp_user_timeout=25s',
                                         'statement_timeout=30s'] LOOP
            CONTINUE WHEN v_setting = ANY (v_config);
            BEGIN
                EXECUTE format('ALTER ROLE %I IN DATABASE %I SET %I = %L', v_role, current_database(),
                               split_part(v_setting, '=', 1), split_part(v_setting, '=', 2));
            EXCEPTION WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'role % lacks the setting %, and % may not alter that role',
                                v_role, v_setting, current_user
                    USING ERRCODE = 'insufficient_privilege',
                          HINT = 'migrate as the role that created it, or let a DBA run the output of '
                                 '''bellwire migrate --sql'' once';
            END;
        END LOOP;
    END LOOP;

    -- Recovery ends the session of a half-open owner. Without it everything else works, and doctor says so.
    IF NOT pg_has_role('bellwire_relay', 'pg_signal_backend', 'MEMBER') THEN
        BEGIN
            GRANT pg_signal_backend TO bellwire_relay;
        EXCEPTION
            WHEN unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE WARNING 'could not grant pg_signal_backend to bellwire_relay: a superuser should';
        END;
    END IF;
END $roles$;

DO $grants$
DECLARE
    v_all constant text := 'bellwire_application, bellwire_relay, bellwire_consumer, bellwire_operator, '
                           'bellwire_viewer';
    -- Columns that hold what people sent: read by the handler's side alone.
    v_private constant text[] := ARRAY['job.payload', 'job.result', 'job.checkpoint', 'effect.response',
                                       'schedule.payload'];
    v_may constant jsonb := jsonb_build_object(
        'bellwire_application', ARRAY['submit', 'try_submit', 'try_submit_many', 'cancel', 'get_job', 'find_job',
            'drain_estimate', 'begin_attempt', 'complete', 'checkpoint', 'hold_token'],
        'bellwire_relay', ARRAY['now', 'own', 'disown', 'sleep', 'wake', 'admit', 'republish', 'note_publish',
            'promote', 'recover', 'expire', 'mend', 'measure', 'prune', 'overdue', 'await_row', 'evict'],
        'bellwire_consumer', ARRAY['now', 'claim', 'heartbeat', 'release_doubtful', 'succeed', 'retry',
            'throttle', 'snooze', 'fail', 'stop', 'release', 'beat_consumer', 'forget_consumer'],
        'bellwire_operator', ARRAY['now', 'submit', 'try_submit', 'try_submit_many', 'cancel', 'get_job',
            'find_job', 'drain_estimate', 'redrive', 'hasten', 'reprioritise'],
        'bellwire_viewer', ARRAY['now']);
    v record;
BEGIN
    EXECUTE 'REVOKE ALL ON SCHEMA bellwire FROM PUBLIC';
    EXECUTE 'GRANT USAGE ON SCHEMA bellwire TO ' || v_all;
    EXECUTE 'REVOKE ALL ON ALL FUNCTIONS IN SCHEMA bellwire FROM PUBLIC, ' || v_all;
    EXECUTE 'REVOKE ALL ON ALL TABLES IN SCHEMA bellwire FROM PUBLIC, ' || v_all;

    FOR v IN SELECT p.oid::regprocedure AS signature, r.role
               FROM jsonb_each(v_may) AS r (role, functions)
               JOIN pg_proc p ON p.pronamespace = 'bellwire'::regnamespace AND r.functions ? p.proname::text LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v.signature, v.role);
    END LOOP;

    FOR v IN SELECT c.relname, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
                        FILTER (WHERE c.relname || '.' || a.attname <> ALL (v_private)) AS columns,
                    bool_or(c.relname || '.' || a.attname = ANY (v_private)) AS partly
               FROM pg_class c
               JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              WHERE c.relnamespace = 'bellwire'::regnamespace AND c.relkind IN ('r', 'v', 'p')
              GROUP BY c.relname LOOP
        EXECUTE format('GRANT SELECT %s ON bellwire.%I TO bellwire_relay, bellwire_operator, bellwire_viewer',
                       CASE WHEN v.partly THEN '(' || v.columns || ')' END, v.relname);
    END LOOP;
    GRANT SELECT ON bellwire.installation, bellwire.alembic_version, bellwire.kind, bellwire.consumer,
        bellwire.outbox TO bellwire_consumer;
    GRANT INSERT, UPDATE ON bellwire.kind, bellwire.tenant, bellwire.kind_tenant TO bellwire_operator;
END $grants$;
