-- Why: what agents leave behind. Content is kept outside the database by its hash, once for each workspace; its row says
-- that it is there. Content that no artifact needs is doomed first, then deleted, then forgotten: whoever saves the same
-- meanwhile is told to try again, and so never refers to what is about to go.
-- Locks: none but on the new tables.

CREATE TABLE contents (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    sha256       bytea NOT NULL CHECK (length(sha256) = 32),
    size         bigint NOT NULL CHECK (size >= 0),
    touched_at   timestamptz NOT NULL DEFAULT now(),
    doomed_at    timestamptz,
    PRIMARY KEY (workspace_id, sha256)
);

CREATE INDEX contents_by_time ON contents (touched_at);

CREATE TABLE artifacts (
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL,
    session_id   uuid NOT NULL,
    run_id       uuid,
    attempt      integer,
    name         text NOT NULL,
    media_type   text NOT NULL,
    uri          text,
    sha256       bytea,
    size         bigint,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, id),
    FOREIGN KEY (workspace_id, session_id) REFERENCES sessions (workspace_id, id),
    FOREIGN KEY (workspace_id, sha256) REFERENCES contents (workspace_id, sha256),
    CHECK ((uri IS NULL) = (sha256 IS NOT NULL)),
    CHECK ((sha256 IS NULL) = (size IS NULL))
);

CREATE INDEX artifacts_of_session ON artifacts (workspace_id, session_id, id);
CREATE INDEX artifacts_of_content ON artifacts (workspace_id, sha256) WHERE sha256 IS NOT NULL;
CREATE INDEX artifacts_by_time ON artifacts USING brin (created_at);
