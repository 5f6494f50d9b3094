-- Why: at every end of a run it is asked whether its automation has failed before or is deleted, and whether its session has
-- tasks. Mostly neither is so: an index of those few answers without reading the automation and the session.
-- Locks: automations and sessions against writes while they are built, about a second for a million sessions.

CREATE INDEX automations_failing_or_deleted ON automations (workspace_id, id) WHERE failures > 0 OR deleted_at IS NOT NULL;
CREATE INDEX sessions_with_tasks ON sessions (workspace_id, id) WHERE has_tasks;
