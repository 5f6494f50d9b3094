-- The first Rota: one admin, two agents, automations with every kind of trigger, and runs in every state it knew.

INSERT INTO workspaces (id, slug, name) VALUES (id('house'), 'default', 'Default');
INSERT INTO users (id, name) VALUES (id('admin'), 'Local admin');
INSERT INTO members (workspace_id, user_id, level) VALUES (id('house'), id('admin'), 'admin');
INSERT INTO accounts (workspace_id, id, name) VALUES (id('house'), id('account'), 'Default');
INSERT INTO tokens (workspace_id, id, user_id, name, secret_hash)
VALUES (id('house'), id('token'), id('admin'), 'scripts', hash('rota_of_the_first_days'));
INSERT INTO logins (secret_hash, user_id, expires_at) VALUES
    (hash('login-of-the-first-days'), id('admin'), now() + interval '30 days'),
    (hash('login-on-the-phone'), id('admin'), now() + interval '30 days');
INSERT INTO sign_in_links (secret_hash, user_id, expires_at) VALUES (hash('link'), id('admin'), now() + interval '1 day');

INSERT INTO agents (workspace_id, id, slug, name, executor, config, max_concurrent, created_by) VALUES
    (id('house'), id('bee'), 'bee', 'Bee', 'command', '{"argv": ["true"]}', NULL, id('admin')),
    (id('house'), id('snail'), 'snail', 'Snail', 'command', '{"argv": ["true"]}', 1, id('admin'));

INSERT INTO grants (workspace_id, id, user_id, account_id, scopes)
SELECT id('house'), id('grant of ' || name), id('admin'), id('account'), ARRAY['agent:run:' || id(agent)]
  FROM (VALUES ('digest', 'bee'), ('mail', 'bee'), ('report', 'bee'), ('diary', 'bee'), ('slow', 'snail'), ('letter', 'bee'), ('gone', 'bee'))
       AS automation(name, agent);

INSERT INTO automations (workspace_id, id, slug, name, agent_id, owner_id, grant_id, prompt, session, session_id, overlap, status,
                         deleted_at)
SELECT id('house'), id(name), name, initcap(name), id(agent), id('admin'), id('grant of ' || name), 'Do it.', session,
       CASE session WHEN 'same' THEN id('session of diary') END, overlap, status, deleted_at
  FROM (VALUES ('digest', 'bee', 'new', NULL, 'active', NULL::timestamptz), ('mail', 'bee', 'new', 'queue_all', 'active', NULL),
               ('report', 'bee', 'new', NULL, 'active', NULL), ('diary', 'bee', 'same', NULL, 'paused', NULL),
               ('slow', 'snail', 'new', 'allow', 'active', NULL), ('letter', 'bee', 'new', NULL, 'active', NULL),
               ('gone', 'bee', 'new', NULL, 'active', now()))
       AS automation(name, agent, session, overlap, status, deleted_at);

INSERT INTO triggers (workspace_id, id, automation_id, kind, cron, every, time_of_day, at, timezone, event, after_automation_id,
                      after_on, editor_mode, editor, anchor_at, next_fire_at)
SELECT id('house'), id(kind || ' of ' || automation), id(automation), kind, cron, every, time_of_day, at, 'UTC', event, after,
       after_on, mode, editor::jsonb, now() - interval '1 day', next_fire_at
  FROM (VALUES
    ('digest', 'cron', '* * * * *', NULL::interval, NULL::time, NULL::timestamptz, NULL, NULL::uuid, NULL::text[], NULL, NULL,
     date_trunc('minute', now())),
    ('mail', 'webhook', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    ('report', 'event', NULL, NULL, NULL, NULL, 'sold', NULL, NULL, NULL, NULL, NULL),
    ('report', 'at', NULL, NULL, NULL, '2040-01-01 09:00Z', NULL, NULL, NULL, NULL, NULL, '2040-01-01 09:00Z'),
    ('diary', 'every', NULL, '2 days', '09:00', NULL, NULL, NULL, NULL, 'interval',
     '{"mode": "interval", "unit": "days", "every": 2, "time": "09:00", "timezone": "UTC"}', NULL),
    ('slow', 'after', NULL, NULL, NULL, NULL, NULL, id('gone'), '{succeeded}', NULL, NULL, NULL))
       AS t(automation, kind, cron, every, time_of_day, at, event, after, after_on, mode, editor, next_fire_at);

-- Sealed by that Rota's vault with the key k1, 32 zero bytes.
INSERT INTO webhook_secrets (workspace_id, trigger_id, id, sealed)
VALUES (id('house'), id('webhook of mail'), id('webhook secret'), '\x026b31938268e9fe10a2e6be516067fa807b4f6fb111cc00574336863680eacb31fc681d922b5ae26833226bd1bfa001fe9a2f801b8570ab64ff8e7b547f60baa1d5786bcf');

INSERT INTO revisions (workspace_id, subject_id, revision, spec, created_by)
SELECT workspace_id, id, 1, jsonb_build_object('agent', spec), created_by
  FROM agents, jsonb_build_object('id', id, 'slug', slug, 'name', name, 'executor', executor, 'config', config,
                                  'instructions', instructions, 'pool', pool) AS spec;
INSERT INTO revisions (workspace_id, subject_id, revision, spec, created_by)
SELECT a.workspace_id, a.id, 1, v.spec || jsonb_build_object(
           'name', a.name, 'prompt', a.prompt, 'input', NULL, 'triggers', '[]'::jsonb, 'session', a.session, 'overlap', a.overlap,
           'catch_up', 'one', 'catch_up_limit', NULL, 'late_after', '1m', 'max_attempts', 1, 'max_rescues', 2, 'timeout', '1h',
           'start_within', '15m', 'approval_expires', '1d', 'pause_after_failures', NULL), a.owner_id
  FROM automations a JOIN revisions v ON v.subject_id = a.agent_id;

-- Runs, each in a session of its own. One that waits for its lane is not ready; what was skipped has no session.
INSERT INTO sessions (workspace_id, id, kind, status, origin, automation_id, agent_id, owner_id, last_seq)
SELECT id('house'), id('session of ' || name), 'automation', status, origin, id(automation), id('bee'), id('admin'), seq
  FROM (VALUES ('ready', 'mail', 'webhook', 'active', 1), ('waiting', 'mail', 'webhook', 'active', 1),
               ('capped', 'slow', 'run_now', 'active', 1), ('later', 'slow', 'run_now', 'active', 3),
               ('running', 'report', 'run_now', 'active', 2), ('diary', 'diary', 'schedule', 'active', 0),
               ('succeeded', 'report', 'run_now', 'done', 4), ('failed', 'report', 'event', 'failed', 3),
               ('cancelled', 'gone', 'run_now', 'failed', 2))
       AS session(name, automation, origin, status, seq);

INSERT INTO runs (workspace_id, id, automation_id, trigger_id, session_id, agent_id, grant_id, revision, status, source, slot, lane,
                  priority, queue, pool, executor, max_attempts, timeout, start_within, ready_at, started_at, finished_at, attempt, tries, rescues,
                  worker_id, lease_until, skip_reason, error_class, error_detail, summary, trace_id)
SELECT id('house'), id(name), id(automation), id(trigger), CASE WHEN status <> 'skipped' THEN id('session of ' || name) END, id(agent),
       id('grant of ' || automation), 1, status, source, slot, CASE automation WHEN 'slow' THEN NULL ELSE id(automation) END,
       CASE source WHEN 'run_now' THEN 1 ELSE 2 END, CASE agent WHEN 'bee' THEN id('house') ELSE id(agent) END, 'default', 'command',
       CASE name WHEN 'later' THEN 2 ELSE 1 END, '1 hour', '15 minutes', ready_at, started_at, finished_at, attempt, tries, rescues, worker_id, lease_until, skip_reason,
       error_class, error_detail, summary, replace(id(name)::text, '-', '')
  FROM (VALUES
    ('ready', 'mail', 'bee', 'webhook of mail', 'webhook', 'queued', NULL::timestamptz, now(),
     NULL::timestamptz, NULL::timestamptz, 0, 0, 0, NULL, NULL::timestamptz, NULL, NULL, NULL, NULL),
    ('waiting', 'mail', 'bee', 'webhook of mail', 'webhook', 'queued', NULL, NULL,
     NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL),
    ('capped', 'slow', 'snail', NULL, 'run_now', 'queued', NULL, now(),
     NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL),
    ('later', 'slow', 'snail', NULL, 'run_now', 'queued', NULL, now() + interval '1 hour',
     now(), NULL, 1, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL),
    ('running', 'report', 'bee', NULL, 'run_now', 'running', NULL, now(),
     now(), NULL, 2, 0, 1, 'attic-71-0a1b2c3d', now(), NULL, NULL, NULL, NULL),
    ('succeeded', 'report', 'bee', NULL, 'run_now', 'succeeded', NULL, now(),
     now(), now(), 1, 0, 0, 'attic-71-0a1b2c3d', NULL, NULL, NULL, NULL, 'All is well.'),
    ('failed', 'report', 'bee', 'event of report', 'event', 'failed', NULL, now(),
     now(), now(), 1, 1, 0, 'attic-71-0a1b2c3d', NULL, NULL, 'agent_error', 'exited with code 1', NULL),
    ('cancelled', 'gone', 'bee', NULL, 'run_now', 'cancelled', NULL, now(),
     NULL, now(), 0, 0, 0, NULL, NULL, NULL, 'cancelled_by_user', 'Cancelled before it began.', NULL),
    ('skipped', 'digest', 'bee', 'cron of digest', 'schedule', 'skipped', '2026-06-01 11:59Z', NULL,
     NULL, now(), 0, 0, 0, NULL, NULL, 'prior_in_flight', NULL, NULL, NULL))
       AS run(name, automation, agent, trigger, source, status, slot, ready_at, started_at, finished_at, attempt, tries, rescues,
              worker_id, lease_until, skip_reason, error_class, error_detail, summary);

INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data)
SELECT workspace_id, session_id, 1, 'run', id, NULL, jsonb_build_object('status', 'queued', 'source', source, 'prompt', 'Do it.')
  FROM runs WHERE session_id IS NOT NULL;
INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data)
SELECT id('house'), id('session of ' || run), seq, kind, id(run), attempt, data::jsonb
  FROM (VALUES ('later', 2, 'run', 1, '{"status": "running", "worker_id": "attic-71-0a1b2c3d"}'),
               ('later', 3, 'run', 1, '{"status": "queued", "error_class": "agent_error"}'),
               ('running', 2, 'run', 2, '{"status": "running", "worker_id": "attic-71-0a1b2c3d"}'),
               ('succeeded', 2, 'run', 1, '{"status": "running", "worker_id": "attic-71-0a1b2c3d"}'),
               ('succeeded', 3, 'output', 1, '{"text": "All is well."}'),
               ('succeeded', 4, 'run', 1, '{"status": "succeeded", "summary": "All is well."}'),
               ('failed', 2, 'run', 1, '{"status": "running", "worker_id": "attic-71-0a1b2c3d"}'),
               ('failed', 3, 'run', 1, '{"status": "failed", "error_class": "agent_error", "error_detail": "exited with code 1"}'),
               ('cancelled', 2, 'run', NULL, '{"status": "cancelled", "error_class": "cancelled_by_user"}'))
       AS event(run, seq, kind, attempt, data);

INSERT INTO start_keys (workspace_id, key, body_hash, run_id) VALUES (id('house'), 'once', hash('body'), id('succeeded'));
INSERT INTO usage (workspace_id, run_id, attempt, unit, amount, account_id)
VALUES (id('house'), id('succeeded'), 1, 'tokens', 1200, id('account'));
INSERT INTO workers (id, host, pid, places, kinds, pools)
VALUES ('attic-71-0a1b2c3d', 'attic', 71, 5, '{command,python}', '{default}');
