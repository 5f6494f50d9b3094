-- One agent asked and was parked with a checkpoint; another waits for its answer in its place.
INSERT INTO sessions (workspace_id, id, kind, origin, automation_id, agent_id, owner_id, last_seq)
SELECT id('house'), id('session of ' || run), 'automation', 'run_now', id(automation), id('bee'), id('admin'), 2
  FROM (VALUES ('parked', 'letter'), ('asking', 'gone')) AS session(run, automation);
INSERT INTO runs (workspace_id, id, automation_id, session_id, agent_id, grant_id, revision, status, source, lane, priority, queue,
                  pool, executor, timeout, start_within, ready_at, started_at, attempt, worker_id, lease_until, trace_id)
SELECT id('house'), id(name), id(automation), id('session of ' || name), id('bee'), id('grant of ' || automation), 1,
       'awaiting_approval', 'run_now', id(automation), 1, id('house'), 'default', 'command', '1 hour', '15 minutes', now(), now(), 1,
       'attic-71-0a1b2c3d', lease_until, replace(id(name)::text, '-', '')
  FROM (VALUES ('parked', 'letter', NULL), ('asking', 'gone', now())) AS run(name, automation, lease_until);
INSERT INTO approvals (workspace_id, id, run_id, session_id, attempt, question, options, ran, expires_at)
SELECT id('house'), id('approval of ' || run), id(run), id('session of ' || run), 1, 'Send it?',
       '[{"id": "approve", "label": "Approve", "approves": true}, {"id": "refuse", "label": "Refuse", "approves": false}]', ran,
       now() + interval '1 day'
  FROM (VALUES ('parked', interval '3 seconds'), ('asking', NULL)) AS asked(run, ran);
INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data)
SELECT id('house'), id('session of ' || run), seq, kind, id(run), attempt, data
  FROM (VALUES ('parked'), ('asking')) AS asked(run) CROSS JOIN LATERAL (VALUES
       (1, 'run', NULL, '{"status": "queued", "source": "run_now", "prompt": "Do it."}'::jsonb),
       (2, 'approval', 1, jsonb_build_object('approval_id', id('approval of ' || run), 'status', 'pending', 'question', 'Send it?')))
       AS event(seq, kind, attempt, data);
INSERT INTO checkpoints (workspace_id, session_id, thread, run_id, attempt, data)
VALUES (id('house'), id('session of parked'), id('session of parked'), id('parked'), 1, 'half way');
