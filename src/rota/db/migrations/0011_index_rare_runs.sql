-- Why: lists of failed, skipped, cancelled and waiting runs are read newest first; without this, finding fifty of a rare
-- status reads past every run of the workspace. Runs that succeed never enter it.
-- Locks: runs against writes while it is built, about a second for a million runs.

CREATE INDEX runs_rare ON runs (workspace_id, status, id)
 WHERE status IN ('failed', 'skipped', 'cancelled', 'awaiting_approval');
