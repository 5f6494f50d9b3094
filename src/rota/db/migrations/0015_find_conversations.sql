-- Why: the list of conversations must not look through a million sessions of automations. Those are not in the index, so
--      that firing costs no more; and no column that changes is, so that updates stay within their page.
-- Locks: sessions against writes while the index is built.

CREATE INDEX sessions_of_people ON sessions (workspace_id, kind, id) WHERE kind <> 'automation';
