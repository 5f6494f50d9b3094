INSERT INTO usage_spans (workspace_id, starts_at, account_id, unit, amount)
VALUES (id('house'), '2026-06-01 12:00Z', id('account'), 'tokens', 1200);
INSERT INTO usage_tallies (workspace_id, until) VALUES (id('house'), '2026-06-01 12:15Z');
