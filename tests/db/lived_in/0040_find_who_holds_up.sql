-- The starter that reads the whole workspace with the token of its attempt.

INSERT INTO agents (workspace_id, id, slug, name, executor, config, created_by)
VALUES (id('house'), id('reader'), 'reader', 'Reader', 'python', '{"function": "rota.starters.agents:digest"}', id('admin'));
INSERT INTO grants (workspace_id, id, user_id, account_id, scopes, automation_id)
VALUES (id('house'), id('grant of weekday'), id('admin'), id('account'), ARRAY['agent:run:' || id('reader')], id('weekday'));
INSERT INTO automations (workspace_id, id, slug, name, agent_id, owner_id, grant_id, prompt)
VALUES (id('house'), id('weekday'), 'weekday', 'Weekday', id('reader'), id('admin'), id('grant of weekday'), 'Sum up.');
