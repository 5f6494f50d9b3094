-- Why: people are told when a run failed, waits for them, or will not go on; each may choose what they want to hear of.
-- Locks: new tables; grants for a moment, for a column without a default.

CREATE TABLE notifications (
    workspace_id  uuid NOT NULL REFERENCES workspaces (id),
    user_id       uuid NOT NULL REFERENCES users (id),
    id            uuid NOT NULL,
    latest_id     uuid NOT NULL,  -- as an id made when it last grew: newest first is its order
    kind          text NOT NULL CHECK (kind IN ('run_failed', 'needs_approval', 'paused', 'budget_low', 'grant_expiring')),
    subject_id    uuid NOT NULL,  -- what it is about; unread ones about the same thing are one
    automation_id uuid,
    run_id        uuid,
    session_id    uuid,
    approval_id   uuid,
    grant_id      uuid,
    account_id    uuid,
    about         text NOT NULL,
    detail        text,
    count         integer NOT NULL DEFAULT 1 CHECK (count > 0),
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    read_at       timestamptz,
    PRIMARY KEY (workspace_id, user_id, id)
);

CREATE UNIQUE INDEX notifications_unread ON notifications (workspace_id, user_id, kind, subject_id) WHERE read_at IS NULL;
CREATE INDEX notifications_of_user ON notifications (workspace_id, user_id, latest_id);
CREATE INDEX notifications_by_subject ON notifications (workspace_id, subject_id) WHERE read_at IS NULL;
CREATE INDEX notifications_by_time ON notifications (updated_at);

CREATE TABLE notification_choices (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    user_id      uuid NOT NULL REFERENCES users (id),
    kind         text NOT NULL CHECK (kind IN ('run_failed', 'needs_approval', 'paused', 'budget_low', 'grant_expiring')),
    bell         boolean NOT NULL,
    outward      boolean NOT NULL,
    PRIMARY KEY (workspace_id, user_id, kind)
);

ALTER TABLE grants ADD COLUMN expiry_told_at timestamptz;
CREATE INDEX grants_expiring ON grants (expires_at)
 WHERE automation_id IS NOT NULL AND revoked_at IS NULL AND expiry_told_at IS NULL;
