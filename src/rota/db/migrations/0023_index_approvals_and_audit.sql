-- Why: the pages of approvals and of the audit log read a page of what was chosen, not all that was ever asked or done.
-- Approvals and audit rows are written one at a time, never by the hot path.
-- Locks: both tables against writes while each index is built, seconds for a million rows.

CREATE INDEX approvals_by_status ON approvals (workspace_id, status, id);
CREATE INDEX audit_of_action ON audit (workspace_id, action, id);
CREATE INDEX audit_of_user ON audit (workspace_id, user_id, id);
CREATE INDEX audit_refused ON audit (workspace_id, id) WHERE code IS NOT NULL;
