-- Why: the token of an attempt no longer reads the whole workspace unless its grant has the scope `workspace:read`. The
--      starter “Weekday digest” reads the latest runs and the names of automations with that token, so the grants of the
--      automations that run its function get the scope. They can read what they could before, and no other grant can.
-- Locks: the rows of these grants, one for each such automation, for as long as a few look-ups take.

UPDATE grants g SET scopes = g.scopes || 'workspace:read'::text
  FROM automations a JOIN agents w ON w.workspace_id = a.workspace_id AND w.id = a.agent_id
 WHERE g.workspace_id = a.workspace_id AND g.id = a.grant_id AND NOT 'workspace:read' = ANY(g.scopes)
   AND w.executor = 'python' AND w.config ->> 'function' = 'rota.starters.agents:digest';
