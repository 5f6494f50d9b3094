INSERT INTO throttles (key, tries, last_at, open_at) VALUES (hash('ann@example.org'), 2, now(), now());
