-- Two starters: one that reads the whole workspace with the token of its attempt, and one that does not.

INSERT INTO agents (workspace_id, id, slug, name, executor, config, created_by)
SELECT id('house'), id(name), name, initcap(name), 'python', jsonb_build_object('function', function), id('admin')
  FROM (VALUES ('reader', 'rota.starters.agents:digest'), ('counter', 'rota.starters.agents:count')) AS agent(name, function);

INSERT INTO grants (workspace_id, id, user_id, account_id, scopes, automation_id)
SELECT id('house'), id('grant of ' || name), id('admin'), id('account'), ARRAY['agent:run:' || id(agent)], id(name)
  FROM (VALUES ('weekday', 'reader'), ('counting', 'counter')) AS automation(name, agent);

INSERT INTO automations (workspace_id, id, slug, name, agent_id, owner_id, grant_id, prompt)
SELECT id('house'), id(name), name, initcap(name), id(agent), id('admin'), id('grant of ' || name), 'Do it.'
  FROM (VALUES ('weekday', 'reader'), ('counting', 'counter')) AS automation(name, agent);
