-- Why: how the house was doing over time, and a cheap way to find what is old enough to be pruned.
-- Locks: the BRIN index locks events against writes while it is
-- built, which takes about a second for ten million events.

CREATE TABLE snapshots (
    id          uuid PRIMARY KEY,
    taken_at    timestamptz NOT NULL DEFAULT now(),
    host        text NOT NULL,
    workers     integer NOT NULL,
    sessions    integer NOT NULL,
    running     integer NOT NULL,
    queued      integer NOT NULL,
    cpu_percent real,
    memory_mb   real
);
CREATE INDEX snapshots_by_time ON snapshots (taken_at);

-- Events are written in the order of time, so a few bytes for each range of pages tell what is old.
CREATE INDEX events_by_time ON events USING brin (created_at);
CREATE INDEX start_keys_by_time ON start_keys USING brin (created_at);

