-- Why: one script must not take a shared server for itself: a bucket for each token or login, and one for each workspace,
-- which all API processes draw from.
-- Locks: none that anybody waits for; a table of its own.

CREATE TABLE rate_buckets (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    key          bytea NOT NULL,
    level        double precision NOT NULL,
    taken        integer NOT NULL,
    filled_at    timestamptz NOT NULL,
    PRIMARY KEY (workspace_id, key)
);
CREATE INDEX rate_buckets_by_time ON rate_buckets (filled_at);
