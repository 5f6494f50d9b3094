INSERT INTO snapshots (id, host, workers, sessions, running, queued, cpu_percent, memory_mb)
VALUES (id('snapshot'), 'attic', 1, 9, 1, 4, 12.5, 512);
