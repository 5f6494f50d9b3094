-- Why: messages between agents. A message is an event of its session; each recipient has a delivery, which stays
-- until it is acknowledged. A key makes a repeated write the same write.
-- Locks: none but on the new tables.

CREATE TABLE session_roles (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    session_id   uuid NOT NULL,
    name         text NOT NULL,
    agent_id     uuid NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, session_id, name)
);

-- No foreign keys to sessions and events: both are written together with the delivery, under the session's row lock.
CREATE TABLE deliveries (
    workspace_id uuid NOT NULL,
    session_id   uuid NOT NULL,
    seq          bigint NOT NULL,
    role         text NOT NULL,
    acked_at     timestamptz,
    PRIMARY KEY (workspace_id, session_id, seq, role)
);

CREATE INDEX deliveries_unacked ON deliveries (workspace_id, session_id, role, seq) WHERE acked_at IS NULL;

-- `scope_id` is the session, or the run whose agent writes: each has its own keys.
CREATE TABLE write_keys (
    workspace_id uuid NOT NULL,
    scope_id     uuid NOT NULL,
    key          text NOT NULL,
    body_hash    bytea NOT NULL,
    answer       jsonb NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, scope_id, key)
);

CREATE INDEX write_keys_by_time ON write_keys USING brin (created_at);
