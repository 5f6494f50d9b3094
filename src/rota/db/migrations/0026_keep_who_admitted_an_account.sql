-- Why: whoever makes an account, or a link for it, can sign in as that person. So the account is that workspace's until
-- the person has proved to be themself, and joins no other. What the server's operator changes has no user in the log.
-- Locks: users and audit for the moment that a catalogue change takes; users once more to fill the new column.

ALTER TABLE users ADD COLUMN admitted_by uuid REFERENCES workspaces (id);

UPDATE users u
   SET admitted_by = (SELECT m.workspace_id FROM members m WHERE m.user_id = u.id ORDER BY m.created_at, m.workspace_id LIMIT 1)
 WHERE u.email IS NOT NULL AND NOT EXISTS (SELECT FROM identities i WHERE i.user_id = u.id)
   AND (SELECT count(*) FROM members m WHERE m.user_id = u.id) = 1;

ALTER TABLE audit ALTER COLUMN user_id DROP NOT NULL;
