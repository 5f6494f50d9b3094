-- Why: sessions in which several agents work: roles with their agents, and tasks that wait for each other.
-- Locks: new tables, and columns of sessions that need no rewrite (an instant under an exclusive lock).

-- On whose authority the runs of a role's tasks act.
ALTER TABLE session_roles
    ADD COLUMN grant_id uuid NOT NULL,
    ADD FOREIGN KEY (workspace_id, agent_id) REFERENCES agents (workspace_id, id),
    ADD FOREIGN KEY (workspace_id, grant_id) REFERENCES grants (workspace_id, id);

-- An imported session is only read, and its agent may not exist here.
ALTER TABLE sessions
    ADD COLUMN goal text,
    ADD COLUMN has_tasks boolean NOT NULL DEFAULT false,
    ADD COLUMN imported jsonb,
    ALTER COLUMN agent_id DROP NOT NULL,
    ADD CONSTRAINT sessions_agent_check CHECK (agent_id IS NOT NULL OR imported IS NOT NULL);

-- Changed only under the lock of the session's row. `unmet` counts the dependencies that are not done. Whether a ready
-- task is running is told by its run.
CREATE TABLE tasks (
    workspace_id uuid NOT NULL,
    session_id   uuid NOT NULL,
    id           uuid NOT NULL,
    key          text NOT NULL,
    role         text NOT NULL,
    status       text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'ready', 'done', 'failed', 'skipped')),
    unmet        integer NOT NULL CHECK (unmet >= 0),
    prompt       text,
    input        jsonb,
    timeout      interval NOT NULL,
    max_attempts integer NOT NULL DEFAULT 1 CHECK (max_attempts > 0),
    batch        uuid NOT NULL,
    added_by_run uuid,
    run_id       uuid,
    reason       text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    finished_at  timestamptz,
    PRIMARY KEY (workspace_id, session_id, id),
    FOREIGN KEY (workspace_id, session_id, role) REFERENCES session_roles (workspace_id, session_id, name),
    CHECK (prompt IS NOT NULL OR input IS NOT NULL),
    CHECK (status NOT IN ('ready', 'done', 'failed') OR run_id IS NOT NULL),
    CHECK ((status IN ('done', 'failed', 'skipped')) = (finished_at IS NOT NULL))
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX tasks_key ON tasks (workspace_id, session_id, key);
CREATE UNIQUE INDEX tasks_of_run ON tasks (workspace_id, run_id) WHERE run_id IS NOT NULL;
CREATE INDEX tasks_releasable ON tasks (workspace_id, session_id) WHERE status = 'pending' AND unmet = 0;
CREATE INDEX tasks_open ON tasks (workspace_id, session_id) WHERE status IN ('pending', 'ready');

CREATE TABLE task_dependencies (
    workspace_id uuid NOT NULL,
    session_id   uuid NOT NULL,
    task_id      uuid NOT NULL,
    depends_on   uuid NOT NULL,
    PRIMARY KEY (workspace_id, session_id, task_id, depends_on),
    FOREIGN KEY (workspace_id, session_id, task_id) REFERENCES tasks (workspace_id, session_id, id),
    FOREIGN KEY (workspace_id, session_id, depends_on) REFERENCES tasks (workspace_id, session_id, id),
    CHECK (task_id <> depends_on)
);

CREATE INDEX task_dependants ON task_dependencies (workspace_id, session_id, depends_on);
