INSERT INTO notification_targets (workspace_id, id, user_id, name, scheme, sealed)
VALUES (id('house'), id('target'), id('admin'), 'Phone', 'ntfys', '\x026b31c32bbe9a718d2b4c733e6527cdbfe9db7cd4d4b4e15c66127d915ca879c6027be93a7df315ea2e5a9a8b4b45cb4aaefa1df9b6f00528d185cefa');
INSERT INTO notification_outbox (workspace_id, target_id, kind, subject_id, automation_id, run_id, session_id, about, detail)
VALUES (id('house'), id('target'), 'run_failed', id('report'), id('report'), id('failed'), id('session of failed'), 'Report',
        'exited with code 1');
