-- Why: the time that a run waits for an agent or a workspace that runs as many as it may does not count as waiting for a
-- place, also once there is room again.
-- Locks: none that anybody waits for; two columns without a default.

ALTER TABLE agents ADD COLUMN full_at timestamptz;
ALTER TABLE workspaces ADD COLUMN full_at timestamptz;
