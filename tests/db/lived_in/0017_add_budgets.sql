-- The account has a budget, and a run has set some of it aside.
UPDATE accounts SET budget = '{"per_month": {"tokens": 50000}, "per_run": {"tokens": 10000}}' WHERE id = id('account');
INSERT INTO sessions (workspace_id, id, kind, origin, agent_id, owner_id, last_seq)
VALUES (id('house'), id('chat'), 'interactive', 'user', id('bee'), id('admin'), 1);
INSERT INTO grants (workspace_id, id, user_id, account_id, scopes, expires_at)
VALUES (id('house'), id('grant of chat'), id('admin'), id('account'), ARRAY['agent:run:' || id('bee')], now() + interval '1 day');
INSERT INTO runs (workspace_id, id, session_id, agent_id, grant_id, revision, status, source, prompt, created_by, lane, priority, queue,
                  pool, executor, timeout, start_within, ready_at, budget, trace_id)
VALUES (id('house'), id('turn'), id('chat'), id('bee'), id('grant of chat'), 1, 'queued', 'chat', 'Hello?', id('admin'), id('chat'), 0,
        id('house'), 'default', 'command', '1 hour', '15 minutes', now(), '{"tokens": 10000}', replace(id('turn')::text, '-', ''));
INSERT INTO events (workspace_id, session_id, seq, kind, run_id, data)
VALUES (id('house'), id('chat'), 1, 'run', id('turn'), '{"status": "queued", "source": "chat", "prompt": "Hello?"}');
INSERT INTO spending (workspace_id, holder_id, month, unit, cap, spent)
VALUES (id('house'), id('account'), date_trunc('month', now()), 'tokens', 50000, 1200);
INSERT INTO reservations (workspace_id, run_id, holder_id, unit, month, amount)
VALUES (id('house'), id('turn'), id('account'), 'tokens', date_trunc('month', now()), 10000);
