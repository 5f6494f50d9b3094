-- Why: the runs of one agent were looked for among all of the workspace: of one that ran long ago its page showed none, and the
-- API read the whole ledger to find out that there is none.
-- Locks: runs against writes while it is built, about a second for a million runs.

CREATE INDEX runs_of_agent ON runs (workspace_id, agent_id, id);
