-- Others came: one who stayed, one who was removed, and one who will sign in with an identity provider.
INSERT INTO users (id, name, email)
SELECT id(name), initcap(name), name || '@example.org' FROM (VALUES ('ann'), ('ben'), ('cem')) AS person(name);
INSERT INTO members (workspace_id, user_id, level, removed_at)
VALUES (id('house'), id('ann'), 'member', NULL), (id('house'), id('ben'), 'viewer', now()), (id('house'), id('cem'), 'admin', NULL);
