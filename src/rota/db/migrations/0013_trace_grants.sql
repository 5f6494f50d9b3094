-- Why: a grant says what it was made for, which one it took the place of, and who ended it, so that renewing and
-- replacing keep the history.
-- Locks: grants for a moment (columns without a default), then each automation's grant for the one UPDATE.

ALTER TABLE grants
    ADD COLUMN automation_id uuid,
    ADD COLUMN replaces      uuid,
    ADD COLUMN revoked_by    uuid REFERENCES users (id);

UPDATE grants g SET automation_id = a.id FROM automations a WHERE a.workspace_id = g.workspace_id AND a.grant_id = g.id;

CREATE INDEX grants_of_automation ON grants (workspace_id, automation_id, id) WHERE automation_id IS NOT NULL;
