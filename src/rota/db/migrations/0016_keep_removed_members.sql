-- Why: somebody who was removed stays in the history of grants and tokens, and may come back; tokens are for what their
-- scopes say, and those made before there were any may do all that their person may.
-- Locks: members and users for a moment, tokens for the one UPDATE.

ALTER TABLE members ADD COLUMN removed_at timestamptz;

UPDATE users SET email = lower(email) WHERE email <> lower(email);
ALTER TABLE users ADD CONSTRAINT users_email_check CHECK (email = lower(email));

UPDATE tokens SET scopes = '{read,run,write,admin}' WHERE scopes = '{}';
ALTER TABLE tokens ALTER COLUMN scopes DROP DEFAULT,
    ADD CONSTRAINT tokens_scopes_check CHECK (scopes <> '{}' AND scopes <@ '{read,run,write,admin}'::text[]);

CREATE INDEX tokens_of_user ON tokens (workspace_id, user_id);
