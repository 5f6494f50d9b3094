-- Why: one workspace of a shared server must not fill it with schedules.
-- Locks: workspaces for a moment, for a column without a default.

ALTER TABLE workspaces ADD COLUMN max_schedules integer CHECK (max_schedules > 0);
