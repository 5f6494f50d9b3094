-- Why: lists of automations, runs and sessions can be limited to one owner. Without an index, a list of somebody who owns few
-- reads those of everybody. A run belongs to the owner of its automation; only runs without one are indexed by who started
-- them, so that runs of automations cost no more.
-- Sessions are also listed by their agent.
-- Locks: automations, runs and sessions against writes while their indexes are built: about a second for a million rows.

CREATE INDEX automations_of_owner ON automations (workspace_id, owner_id, id);
CREATE INDEX runs_of_person ON runs (workspace_id, created_by, id) WHERE automation_id IS NULL;
CREATE INDEX sessions_of_owner ON sessions (workspace_id, owner_id, id);
CREATE INDEX sessions_of_agent ON sessions (workspace_id, agent_id, id);
