-- Why: what an automation's agents keep from one run to the next.
-- Locks: a share lock on automations, for an instant.

CREATE TABLE memory (
    workspace_id  uuid NOT NULL,
    automation_id uuid NOT NULL,
    key           text NOT NULL,
    value         jsonb NOT NULL,
    confidence    double precision CHECK (confidence BETWEEN 0 AND 1),
    expires_at    timestamptz,
    run_id        uuid,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, automation_id, key),
    FOREIGN KEY (workspace_id, automation_id) REFERENCES automations (workspace_id, id)
);

CREATE INDEX memory_expiring ON memory (expires_at) WHERE expires_at IS NOT NULL;
