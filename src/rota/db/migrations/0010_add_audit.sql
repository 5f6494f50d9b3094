-- Why: who changed what, and who tried to. A row is written with the change, in its transaction, and never again
-- touched; only the tables' owner deletes it once it is older than it is kept.
-- Locks: none but on the new table, and a moment on users, for its foreign key.

CREATE TABLE audit (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    id           uuid NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    user_id      uuid NOT NULL REFERENCES users (id),
    token_id     uuid,
    run_id       uuid,
    ip           text,
    action       text NOT NULL,
    object_kind  text NOT NULL,
    object_id    text,
    status       integer NOT NULL,
    code         text,
    before       jsonb,
    after        jsonb,
    PRIMARY KEY (workspace_id, id),
    CHECK ((status < 400) = (code IS NULL))
);

CREATE INDEX audit_of_object ON audit (workspace_id, object_kind, object_id, id);
CREATE INDEX audit_by_time ON audit USING brin (created_at);

CREATE FUNCTION refuse_change_of_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is only ever added to' USING ERRCODE = 'RT002';
END $$;

CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION refuse_change_of_audit();
CREATE TRIGGER audit_stays_whole BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_audit();
