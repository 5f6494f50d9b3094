-- The first attempt of the run that was rescued.
INSERT INTO abandonments (workspace_id, run_id, attempt, executor, pool)
VALUES (id('house'), id('running'), 1, 'command', 'default');
