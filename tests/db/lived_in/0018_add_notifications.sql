INSERT INTO notifications (workspace_id, user_id, id, latest_id, kind, subject_id, automation_id, run_id, session_id, about, detail)
VALUES (id('house'), id('admin'), id('notified'), id('notified'), 'run_failed', id('report'), id('report'), id('failed'),
        id('session of failed'), 'Report', 'exited with code 1');
INSERT INTO notification_choices (workspace_id, user_id, kind, bell, outward) VALUES (id('house'), id('admin'), 'paused', true, false);
