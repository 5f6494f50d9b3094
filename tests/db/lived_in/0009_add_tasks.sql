-- Two agents on one goal: the first task waits for a worker, the second for the first, and a message for its reader.
INSERT INTO grants (workspace_id, id, user_id, account_id, scopes, expires_at)
VALUES (id('house'), id('grant of goal'), id('admin'), id('account'), ARRAY['agent:run:' || id('bee')], now() + interval '1 day');
INSERT INTO sessions (workspace_id, id, kind, origin, title, goal, has_tasks, agent_id, owner_id, last_seq)
VALUES (id('house'), id('goal'), 'background', 'user', 'Tidy up', 'Tidy up', true, id('bee'), id('admin'), 1);
INSERT INTO session_roles (workspace_id, session_id, name, agent_id, grant_id)
SELECT id('house'), id('goal'), role, id('bee'), id('grant of goal') FROM (VALUES ('planner'), ('worker')) AS seat(role);
INSERT INTO runs (workspace_id, id, session_id, agent_id, grant_id, revision, status, source, prompt, payload, created_by, queue, pool,
                  executor, timeout, ready_at, trace_id)
VALUES (id('house'), id('planning'), id('goal'), id('bee'), id('grant of goal'), 1, 'queued', 'task', 'Plan it.', '{"task": "plan"}',
        id('admin'), id('house'), 'default', 'command', '1 hour', now(), replace(id('planning')::text, '-', ''));
INSERT INTO tasks (workspace_id, session_id, id, key, role, status, unmet, prompt, timeout, batch, run_id)
SELECT id('house'), id('goal'), id('task ' || key), key, role, status, unmet, 'Plan it.', '1 hour', id('batch'), run_id
  FROM (VALUES ('plan', 'planner', 'ready', 0, id('planning')), ('do', 'worker', 'pending', 1, NULL))
       AS task(key, role, status, unmet, run_id);
INSERT INTO task_dependencies (workspace_id, session_id, task_id, depends_on)
VALUES (id('house'), id('goal'), id('task do'), id('task plan'));
INSERT INTO events (workspace_id, session_id, seq, kind, data)
VALUES (id('house'), id('goal'), 1, 'message', '{"from": "user", "to": "planner", "text": "Begin upstairs."}');
INSERT INTO deliveries (workspace_id, session_id, seq, role) VALUES (id('house'), id('goal'), 1, 'planner');
