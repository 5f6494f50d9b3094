-- Why: secrets that agents work with. Agents, automations and revisions hold names of credentials, never a value.
-- Locks: adding the generated column rewrites webhook_secrets, a table of few rows, under an exclusive lock.

CREATE TABLE credentials (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    id           uuid NOT NULL,
    name         text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    description  text NOT NULL DEFAULT '',
    usable_by    text NOT NULL DEFAULT 'admin' CHECK (usable_by IN ('admin', 'member')),
    sealed       bytea NOT NULL,
    -- Which key opens it stands in front of what is sealed: its length in one byte, then its ASCII.
    key_id       text NOT NULL GENERATED ALWAYS AS (encode(substr(sealed, 2, get_byte(sealed, 0)), 'escape')) STORED,
    created_by   uuid NOT NULL REFERENCES users (id),
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz,
    PRIMARY KEY (workspace_id, id)
);
CREATE UNIQUE INDEX credentials_name ON credentials (workspace_id, name);

ALTER TABLE webhook_secrets
    ADD COLUMN key_id text NOT NULL GENERATED ALWAYS AS (encode(substr(sealed, 2, get_byte(sealed, 0)), 'escape')) STORED;

-- What is sealed with which key, for the start of a process and for those who turn the ring.
CREATE INDEX credentials_by_key ON credentials (key_id);
CREATE INDEX webhook_secrets_by_key ON webhook_secrets (key_id);

-- Names of variables, each with the name of a credential.
ALTER TABLE agents ADD COLUMN credentials jsonb NOT NULL DEFAULT '{}';
ALTER TABLE automations ADD COLUMN credentials jsonb NOT NULL DEFAULT '{}';
