-- Why: an admin can pause all automations of a workspace with a reason, for good or until an instant. A pause is a row of
--      its own, so that "Why didn't it run?" can tell of past pauses, and so that it can be locked before triggers and
--      automations; the row of the workspace is locked by claims and by those who add schedules.
-- Locks: none on existing tables but a share of workspaces and users, for the instant in which the references are made.

CREATE TABLE pauses (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    id           uuid NOT NULL,
    reason       text NOT NULL CHECK (reason <> ''),
    paused_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_by    uuid NOT NULL REFERENCES users (id),
    until        timestamptz,
    resumed_at   timestamptz,
    resumed_by   uuid REFERENCES users (id),
    PRIMARY KEY (workspace_id, id)
);

CREATE UNIQUE INDEX pauses_one_at_a_time ON pauses (workspace_id) WHERE resumed_at IS NULL;
CREATE INDEX pauses_that_end ON pauses (until) WHERE resumed_at IS NULL;

COMMENT ON COLUMN pauses.paused_by IS 'Whoever gave the present reason and end.';
COMMENT ON COLUMN pauses.until IS 'When it ends by itself; null if somebody has to resume.';
COMMENT ON COLUMN pauses.resumed_by IS 'Null while it lasts, and if it ended by itself.';
