-- Why: the sessions that were imported, or that webhooks started, were looked for among all that schedules ever started; and
--      grants that were revoked among all. Firing a schedule costs no more, and no column of sessions that changes is
--      indexed, as their status would be: each end of a run would then write its session's entries anew.
-- Locks: sessions and grants against writes while each index is built, about a second for a million rows.

CREATE INDEX sessions_of_rare_origin ON sessions (workspace_id, origin, id) WHERE origin <> 'schedule';
CREATE INDEX grants_revoked ON grants (workspace_id, id) WHERE revoked_at IS NOT NULL;
