-- Why: an attempt keeps the values it was given at its start. What it writes over HTTP was filtered by those that its credentials
--      have now, so a value that was replaced meanwhile came through; and once one was deleted, all it wrote was refused.
-- Locks: none that anybody waits for; the table is new.

CREATE TABLE former_credentials (
    workspace_id  uuid NOT NULL REFERENCES workspaces (id),
    id            uuid NOT NULL DEFAULT gen_random_uuid(),
    credential_id uuid NOT NULL, -- of a credential that may be gone
    name          text NOT NULL,
    sealed        bytea NOT NULL,
    key_id        text NOT NULL GENERATED ALWAYS AS (encode(substr(sealed, 2, get_byte(sealed, 0)), 'escape')) STORED,
    replaced_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, id)
);
CREATE INDEX former_credentials_by_name ON former_credentials (workspace_id, name);
