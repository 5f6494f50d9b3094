INSERT INTO contents (workspace_id, sha256, size) VALUES (id('house'), hash('All is well.'), 12);
INSERT INTO artifacts (workspace_id, id, session_id, run_id, attempt, name, media_type, sha256, size)
VALUES (id('house'), id('artifact'), id('session of succeeded'), id('succeeded'), 1, 'report.txt', 'text/plain', hash('All is well.'), 12);
