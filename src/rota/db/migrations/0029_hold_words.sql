-- Why: an agent that speaks over HTTP may cut a secret in two requests, which two replicas may take. What may be a secret's
-- beginning is held until the next words come. Kept is how much of which form of which secret it is, never a letter of it.
-- Locks: none that anybody waits for; a table of its own.

CREATE TABLE held_words (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    run_id       uuid NOT NULL,
    attempt      integer NOT NULL,
    form         integer NOT NULL CHECK (form >= 0),
    size         integer NOT NULL CHECK (size > 0),
    shown        integer NOT NULL CHECK (shown >= 0),
    covered      integer NOT NULL CHECK (covered >= 0),
    held_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, run_id, attempt),
    FOREIGN KEY (workspace_id, run_id) REFERENCES runs (workspace_id, id)
);

CREATE INDEX held_words_old ON held_words (held_at);
