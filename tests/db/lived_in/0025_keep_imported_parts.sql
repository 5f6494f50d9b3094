INSERT INTO sessions (workspace_id, id, kind, status, origin, title, owner_id, has_tasks, imported)
VALUES (id('house'), id('imported'), 'background', 'archived', 'user', 'From elsewhere', id('admin'), true,
        '{"lines": 3, "events": 0, "complete": true}');
INSERT INTO imported_parts (workspace_id, session_id, what, name, line, data) VALUES
    (id('house'), id('imported'), 'role', 'planner', 2, '{"agent": "Bee"}'),
    (id('house'), id('imported'), 'task', id('imported task')::text, 3,
     '{"key": "plan", "role": "planner", "status": "done", "prompt": "Plan it.", "depends_on": [], "timeout": 3600,
       "max_attempts": 1, "created_at": "2026-06-01T12:00:00Z"}');
