-- The first table of live runs is kept while they go on: one is claimed, one is given to another queue, one ends.
UPDATE runs SET status = 'running', attempt = 1, worker_id = 'attic-71-0a1b2c3d', lease_until = now(), started_at = now()
 WHERE id = id('turn');
UPDATE runs SET queue = id('house') WHERE id = id('capped');
UPDATE runs SET status = 'failed', error_class = 'stuck', finished_at = now() WHERE id = id('capped');
