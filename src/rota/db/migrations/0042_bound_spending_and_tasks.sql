-- Why: agents at work had two ways to go on without a limit. A run that had used up its budget was stopped by its worker, so
--      everything it reported until then still counted; now the report that reaches a cap stops its run in the same
--      transaction, and cancel_detail says which cap that was. An agent whose tasks add tasks created as many as a session
--      holds; now tasks know their depth, an automation limits it and the number of tasks of one run, and a run counts the
--      tasks that were refused.
-- Locks: automations, runs and tasks exclusively, for an instant each (new columns with constant defaults write no row), and
--        tasks against writes while the index is built: about a second for a million tasks.

ALTER TABLE automations
    ADD COLUMN max_task_depth integer NOT NULL DEFAULT 8 CHECK (max_task_depth > 0),
    ADD COLUMN max_tasks integer NOT NULL DEFAULT 100 CHECK (max_tasks >= 0);

ALTER TABLE runs
    ADD COLUMN cancel_detail text,
    ADD COLUMN refused_tasks jsonb;

ALTER TABLE tasks ADD COLUMN depth integer NOT NULL DEFAULT 1 CHECK (depth > 0);
CREATE INDEX tasks_added_by_run ON tasks (workspace_id, added_by_run) WHERE added_by_run IS NOT NULL;

COMMENT ON COLUMN automations.max_task_depth IS 'How deep tasks that add tasks may go; a task that no task added has depth 1.';
COMMENT ON COLUMN automations.max_tasks IS 'How many tasks one run may add, over all its attempts.';
COMMENT ON COLUMN runs.cancel_detail IS 'Which cap was reached, if cancel_reason is budget_exceeded.';
COMMENT ON COLUMN runs.refused_tasks IS 'By error code, how many tasks of its agent were refused; null if none was.';
COMMENT ON COLUMN tasks.depth IS 'One more than that of the task whose run added it; 1 if a person or a run that is no task did.';
