INSERT INTO audit (workspace_id, id, user_id, action, object_kind, object_id, status, after)
VALUES (id('house'), id('audited'), id('admin'), 'automation.create', 'automation', id('report')::text, 201, '{"name": "Report"}');
