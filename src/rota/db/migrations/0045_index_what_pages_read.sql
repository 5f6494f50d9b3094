-- Why: some pages and lists read a whole workspace to find a few rows: a search in the names of automations, the automations
--      that are paused, need attention, use a credential or run on one grant, the approvals of one session, and the grants and
--      tokens that end or have not ended. Each index holds only what its query shows. No worker or scheduler changes an
--      indexed column when it fires, claims or ends a run.
-- Locks: writes to automations, triggers, approvals, grants and tokens wait while the indexes of the table are built, about
--      half a second for 100,000 automations.

CREATE INDEX automations_by_name ON automations (workspace_id, id) INCLUDE (name, slug, agent_id) WHERE deleted_at IS NULL;
CREATE INDEX automations_paused ON automations (workspace_id, id) WHERE status = 'paused' AND deleted_at IS NULL;
-- Led by the grant: by the workspace it would be chosen for other conditions while a table has no statistics.
CREATE INDEX automations_of_grant ON automations (grant_id, workspace_id);
CREATE INDEX automations_with_credentials ON automations (workspace_id, id) WHERE credentials <> '{}' AND deleted_at IS NULL;

-- The automations of one agent are listed by id.
DROP INDEX automations_of_agent;
CREATE INDEX automations_of_agent ON automations (workspace_id, agent_id, id);

CREATE INDEX triggers_parked ON triggers (workspace_id, automation_id) WHERE parked_error IS NOT NULL;
CREATE INDEX approvals_of_session ON approvals (workspace_id, session_id, id);
CREATE INDEX grants_ending ON grants (workspace_id, id) WHERE expires_at IS NOT NULL AND revoked_at IS NULL;
CREATE INDEX tokens_not_revoked ON tokens (workspace_id, id) WHERE revoked_at IS NULL;
