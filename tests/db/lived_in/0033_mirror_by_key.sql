-- And so it is by its next function: a claimed run is handed back, and another one is fired.
UPDATE runs SET status = 'queued', ready_at = now(), worker_id = NULL, lease_until = NULL WHERE id = id('turn');
INSERT INTO runs (workspace_id, id, automation_id, session_id, agent_id, grant_id, revision, status, source, lane, queue, pool,
                  executor, timeout, start_within, ready_at, trace_id)
VALUES (id('house'), id('next'), id('slow'), id('session of capped'), id('snail'), id('grant of slow'), 1, 'queued', 'after', NULL,
        id('snail'), 'default', 'command', '1 hour', '15 minutes', now(), replace(id('next')::text, '-', ''));
