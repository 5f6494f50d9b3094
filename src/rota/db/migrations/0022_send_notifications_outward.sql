-- Why: people who are not looking are told too, where they asked to be. A target is a sealed Apprise URL; what waits for it is
-- written with the notification, gathered by what it is about, and deleted once it was sent.
-- Locks: new tables only.

CREATE TABLE notification_targets (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    id           uuid NOT NULL,
    user_id      uuid NOT NULL REFERENCES users (id),
    name         text NOT NULL,
    scheme       text NOT NULL,
    sealed       bytea NOT NULL,
    key_id       text NOT NULL GENERATED ALWAYS AS (encode(substr(sealed, 2, get_byte(sealed, 0)), 'escape')) STORED,
    created_at   timestamptz NOT NULL DEFAULT now(),
    not_before   timestamptz NOT NULL DEFAULT now(),  -- of the next message; later while somebody is sending
    tries        integer NOT NULL DEFAULT 0,
    sent_at      timestamptz,
    failed_at    timestamptz,
    error        text,
    given_up     integer NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace_id, id)
);

CREATE INDEX notification_targets_of_user ON notification_targets (workspace_id, user_id);
CREATE INDEX notification_targets_by_key ON notification_targets (key_id);

CREATE TABLE notification_outbox (
    workspace_id  uuid NOT NULL,
    target_id     uuid NOT NULL,
    kind          text NOT NULL,
    subject_id    uuid NOT NULL,
    automation_id uuid,
    run_id        uuid,
    session_id    uuid,
    approval_id   uuid,
    grant_id      uuid,
    account_id    uuid,
    about         text NOT NULL,
    detail        text,
    count         integer NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, target_id, kind, subject_id),
    FOREIGN KEY (workspace_id, target_id) REFERENCES notification_targets (workspace_id, id) ON DELETE CASCADE
);
