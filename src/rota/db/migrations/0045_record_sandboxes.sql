-- Record which sandbox a worker's agents run in, so that an agent's page and the list of workers can show it.
-- Takes an ACCESS EXCLUSIVE lock on `workers` (one row per worker process) for the moment of adding a column.
ALTER TABLE workers ADD COLUMN sandbox text;
COMMENT ON COLUMN workers.sandbox IS 'guard, user, none or off; null for a worker of an older Rota';
