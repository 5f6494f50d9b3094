INSERT INTO rate_buckets (workspace_id, key, level, taken, filled_at) VALUES (id('house'), hash('scripts'), 99, 1, now());
