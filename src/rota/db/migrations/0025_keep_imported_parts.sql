-- Why: an imported session shows the roles and tasks of the one that was exported. They have no agents, grants or runs here, and
-- nothing may ever start them, so they stand beside the tables of those that work.
-- Locks: new table only.

CREATE TABLE imported_parts (
    workspace_id uuid  NOT NULL REFERENCES workspaces (id),
    session_id   uuid  NOT NULL,
    what         text  NOT NULL CHECK (what IN ('role', 'task')),
    name         text  NOT NULL,  -- of a role; the id of a task
    line         integer NOT NULL,
    data         jsonb NOT NULL,
    PRIMARY KEY (workspace_id, session_id, what, name)
);
