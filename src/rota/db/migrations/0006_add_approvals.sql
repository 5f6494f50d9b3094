-- Why: an agent may ask a person and wait, with or without its process, and goes on from where it left off.
-- Locks: runs against writes while the small partial index is built; nothing waits for an approval yet.
-- automations and revisions are not rewritten: the new column has a constant default.

CREATE TABLE approvals (
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL,
    run_id       uuid NOT NULL,
    session_id   uuid NOT NULL,
    attempt      integer NOT NULL,              -- the last that asked it
    key          text,
    question     text NOT NULL,
    detail       jsonb,
    options      jsonb NOT NULL,
    status       text NOT NULL DEFAULT 'pending'
                 CHECK (status IN ('pending', 'approved', 'refused', 'expired', 'cancelled')),
    option_id    text,
    answer_text  text,
    answered_by  uuid REFERENCES users (id),    -- nobody, when a pre-approval answered
    ran          interval,                      -- how long its try had run when it was parked
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,
    answered_at  timestamptz,
    PRIMARY KEY (workspace_id, id),
    FOREIGN KEY (workspace_id, run_id) REFERENCES runs (workspace_id, id),
    CHECK ((status = 'pending') = (answered_at IS NULL)),
    CHECK ((status IN ('approved', 'refused')) = (option_id IS NOT NULL))
);
-- Asking again with the same key is the same question, unless it came to nothing.
CREATE UNIQUE INDEX approvals_one_per_key ON approvals (workspace_id, run_id, key)
    WHERE key IS NOT NULL AND status IN ('pending', 'approved', 'refused');
CREATE INDEX approvals_of_run ON approvals (workspace_id, run_id);
CREATE INDEX approvals_pending ON approvals (expires_at) WHERE status = 'pending';

CREATE TABLE checkpoints (
    workspace_id uuid NOT NULL,
    session_id   uuid NOT NULL,
    thread       uuid NOT NULL,                 -- the session's own, or a task's run: tasks work side by side
    run_id       uuid NOT NULL,
    attempt      integer NOT NULL,
    data         bytea NOT NULL,
    stored_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (workspace_id, session_id, thread)
);
CREATE INDEX checkpoints_by_time ON checkpoints (stored_at);

ALTER TABLE automations ADD COLUMN pre_approvals text[] NOT NULL DEFAULT '{}';

CREATE INDEX runs_awaiting ON runs (workspace_id, agent_id) WHERE status = 'awaiting_approval';
