-- Why: until a table is first analysed, PostgreSQL takes "of this workspace and not deleted" for a handful of rows, and looked
-- for an automation's id among all names of its workspace: ten thousand that are due together took half a minute instead of
-- half a second. An index that begins with the name cannot be taken for that.
-- Locks: agents and automations against writes while it is built, well under a second for a hundred thousand.

DROP INDEX agents_slug, automations_slug;
CREATE UNIQUE INDEX agents_slug ON agents (slug, workspace_id) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX automations_slug ON automations (slug, workspace_id) WHERE deleted_at IS NULL;
