-- Policy changes by people only, and every change leaves an audit row, whoever makes it: by trigger, so that an
-- UPDATE typed into psql is on record too. No trigger stands on a hot table.
-- The actor and the reason come from the settings bellwire.actor and bellwire.reason where the writer set them.
CREATE OR REPLACE FUNCTION bellwire._audit_policy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_old jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
    v_new jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
    v_row jsonb := coalesce(v_new, v_old);
BEGIN
    -- When it was last applied is no change of policy.
    IF v_old - 'applied_at' IS NOT DISTINCT FROM v_new - 'applied_at' THEN
        RETURN NULL;
    END IF;
    INSERT INTO bellwire.audit (actor, action, kind, tenant, reason, old, new)
    VALUES (coalesce(nullif(current_setting('bellwire.actor', true), ''), session_user),
            lower(TG_TABLE_NAME || '.' || TG_OP),
            CASE TG_TABLE_NAME WHEN 'kind' THEN v_row ->> 'name' ELSE v_row ->> 'kind' END,
            CASE TG_TABLE_NAME WHEN 'tenant' THEN v_row ->> 'name' ELSE v_row ->> 'tenant' END,
            nullif(current_setting('bellwire.reason', true), ''),
            v_old, v_new);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON bellwire.kind
    FOR EACH ROW EXECUTE FUNCTION bellwire._audit_policy();
CREATE OR REPLACE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON bellwire.tenant
    FOR EACH ROW EXECUTE FUNCTION bellwire._audit_policy();
CREATE OR REPLACE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON bellwire.kind_tenant
    FOR EACH ROW EXECUTE FUNCTION bellwire._audit_policy();
CREATE OR REPLACE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON bellwire.schedule
    FOR EACH ROW EXECUTE FUNCTION bellwire._audit_policy();
