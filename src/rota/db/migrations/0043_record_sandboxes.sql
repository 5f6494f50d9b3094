-- Why: an agent's page and the list of workers show which sandbox a worker's agents run in.
-- Locks: workers (one row per worker process), for the moment in which a column is added.

ALTER TABLE workers ADD COLUMN sandbox text;
COMMENT ON COLUMN workers.sandbox IS 'guard, user, none or off; null for a worker of an older Rota';
