-- Inside the user's own transaction. Completion and checkpoint are its last statements: a lock on the job row held to
-- COMMIT would starve the heartbeat. p_since is when the block's transaction began: one that was ended inside the block,
-- by plain SQL that no driver notices, is another by now, and nothing is written into that.
CREATE OR REPLACE FUNCTION bellwire.begin_attempt(p_installation uuid, p_lease interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bellwire, pg_temp
AS $$
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout',
                       ceil(extract(epoch FROM p_lease) * 1000)::bigint::text, true);
    PERFORM set_config('application_name', 'bellwire attempt', true);
    RETURN EXISTS (SELECT FROM installation WHERE id = p_installation);
END $$;

CREATE OR REPLACE FUNCTION bellwire.complete(p_id uuid, p_token uuid, p_attempt uuid, p_result jsonb, p_since text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bellwire, pg_temp SET enable_seqscan = off
AS $$
BEGIN
    IF p_since <> extract(epoch FROM transaction_timestamp())::text THEN
        RETURN 'outside';
    END IF;
    PERFORM 1 FROM job WHERE id = p_id AND token = p_token FOR UPDATE;  -- waits, as the batch does not
    RETURN (SELECT s.status FROM succeed(ARRAY[p_id], ARRAY[p_token], ARRAY[p_attempt], ARRAY[p_result]) s);
END $$;

CREATE OR REPLACE FUNCTION bellwire.checkpoint(p_id uuid, p_token uuid, p_checkpoint jsonb, p_since text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bellwire, pg_temp SET enable_seqscan = off
AS $$
BEGIN
    IF p_since <> extract(epoch FROM transaction_timestamp())::text THEN
        RETURN NULL;
    END IF;
    UPDATE job SET checkpoint = p_checkpoint WHERE id = p_id AND token = p_token;
    RETURN FOUND;
END $$;

-- FOR SHARE: a plain read of the token is no fence, nor is FOR KEY SHARE.
CREATE OR REPLACE FUNCTION bellwire.hold_token(p_id uuid, p_token uuid, p_since text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bellwire, pg_temp SET enable_seqscan = off
AS $$
BEGIN
    IF p_since <> extract(epoch FROM transaction_timestamp())::text THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM job WHERE id = p_id AND token = p_token FOR SHARE;
    RETURN FOUND;
END $$;
