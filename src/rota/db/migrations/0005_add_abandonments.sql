-- Why: what a lost attempt left outside is cleaned up by a worker, at least once, also when the run has ended; and a
-- heartbeat tells which runs are in a worker's hands.
-- Locks: workers, for an instant.

CREATE TABLE abandonments (
    workspace_id uuid NOT NULL,
    run_id       uuid NOT NULL,
    attempt      integer NOT NULL,
    executor     text NOT NULL,
    pool         text NOT NULL,
    tries        integer NOT NULL DEFAULT 0,
    due_at       timestamptz NOT NULL DEFAULT now(),
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, run_id, attempt),
    FOREIGN KEY (workspace_id, run_id) REFERENCES runs (workspace_id, id)
);
CREATE INDEX abandonments_due ON abandonments (due_at);

ALTER TABLE workers ADD COLUMN at_work jsonb NOT NULL DEFAULT '[]';
