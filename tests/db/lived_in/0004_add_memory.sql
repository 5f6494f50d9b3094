INSERT INTO memory (workspace_id, automation_id, key, value, confidence, run_id)
VALUES (id('house'), id('report'), 'sold', '{"count": 12}', 0.9, id('succeeded'));
