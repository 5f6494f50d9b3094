-- Messages had no roles to go to before there were tasks (0009), but a repeated write was known by its key.
INSERT INTO write_keys (workspace_id, scope_id, key, body_hash, answer)
VALUES (id('house'), id('session of succeeded'), 'once', hash('body'), '{"id": 3}');
