-- Why: a role that a person gave in a session is a seat of its agent; one that an agent named for its tasks is not, and goes
--      with the grant of the run in which it was named last. They were told apart by the age of their grants.
-- Locks: session_roles, for as long as it takes to read it.

ALTER TABLE session_roles ADD COLUMN named_by_agent boolean NOT NULL DEFAULT false;

-- A person's role has a grant that was made with it, in one transaction.
UPDATE session_roles s SET named_by_agent = true
  FROM grants g WHERE g.workspace_id = s.workspace_id AND g.id = s.grant_id AND g.created_at <> s.created_at;
