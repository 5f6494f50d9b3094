-- Why: a claim changed the row of its run in live_runs, and with it four index entries: a quarter of what PostgreSQL did for
-- a short run. Now what changes with a claim stands in tables of its own, so that it leaves the queue by a deletion, and what
-- is looked for by automation and lane is written when a run starts and when it ends.
-- Locks: runs and live_runs, for as long as it takes to copy what is live.

LOCK TABLE runs IN SHARE ROW EXCLUSIVE MODE;

ALTER TABLE live_runs RENAME TO live_runs_before;
ALTER TABLE live_runs_before RENAME CONSTRAINT live_runs_pkey TO live_runs_before_pkey;
DROP INDEX live_runs_one_per_lane, live_runs_waiting_for_lane, live_runs_of_automation;

-- What has not ended. It is written when a run starts, comes to hold its lane, and ends.
CREATE TABLE live_runs (
    workspace_id  uuid NOT NULL,
    id            uuid NOT NULL,
    automation_id uuid,
    session_id    uuid,
    agent_id      uuid NOT NULL,
    lane          uuid,
    priority      smallint NOT NULL,
    source        text NOT NULL,
    waits         boolean NOT NULL,
    PRIMARY KEY (workspace_id, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- What may be claimed, now or later.
CREATE TABLE ready_runs (
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL,
    queue        uuid NOT NULL,
    pool         text NOT NULL,
    executor     text NOT NULL,
    priority     smallint NOT NULL,
    ready_at     timestamptz NOT NULL,
    PRIMARY KEY (id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- What was claimed: it runs, or waits for an answer, in its place (leased) or parked.
CREATE TABLE taken_runs (
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL,
    agent_id     uuid NOT NULL,
    session_id   uuid,
    status       text NOT NULL,
    leased       boolean NOT NULL,
    PRIMARY KEY (workspace_id, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

INSERT INTO live_runs
SELECT workspace_id, id, automation_id, session_id, agent_id, lane, priority, source, status = 'queued' AND ready_at IS NULL
  FROM live_runs_before;
INSERT INTO ready_runs
SELECT workspace_id, id, queue, pool, executor, priority, ready_at
  FROM live_runs_before WHERE status = 'queued' AND ready_at IS NOT NULL;
INSERT INTO taken_runs
SELECT workspace_id, id, agent_id, session_id, status, leased
  FROM live_runs_before WHERE status IN ('running', 'awaiting_approval');
DROP TABLE live_runs_before;

-- Beside the key no index of a table begins with what its key begins with. To a planner that takes the table for empty, by the
-- workspace would be as good as by the key, and what was deleted since it was last tidied would be read again and again.
-- Promise 3: at most one run holds a lane. A queued run holds it as soon as it is ready.
CREATE UNIQUE INDEX live_runs_one_per_lane ON live_runs (lane) WHERE lane IS NOT NULL AND NOT waits;
CREATE INDEX live_runs_waiting_for_lane ON live_runs (lane, priority, id) WHERE waits;
CREATE INDEX live_runs_of_automation ON live_runs (automation_id);
CREATE INDEX taken_runs_of_agent ON taken_runs (agent_id);
CREATE INDEX ready_runs_in_order ON ready_runs (workspace_id, queue, pool, executor, priority, ready_at);

-- What a run was is not asked but found: it is deleted where it no longer belongs. What is claimed comes out of the queue, all
-- of it, and what ends was mostly taken; what was taken before or changed by hand may stand anywhere.
CREATE OR REPLACE FUNCTION mirror_live_runs() RETURNS trigger LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    spaces uuid[];
    ended uuid[];
    taken uuid[];
    queued uuid[];
    found integer;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO live_runs (workspace_id, id, automation_id, session_id, agent_id, lane, priority, source, waits)
        SELECT workspace_id, id, automation_id, session_id, agent_id, lane, priority, source,
               status = 'queued' AND ready_at IS NULL
          FROM written WHERE finished_at IS NULL;
        INSERT INTO ready_runs (workspace_id, id, queue, pool, executor, priority, ready_at)
        SELECT workspace_id, id, queue, pool, executor, priority, ready_at
          FROM written WHERE status = 'queued' AND ready_at IS NOT NULL;
        INSERT INTO taken_runs (workspace_id, id, agent_id, session_id, status, leased)
        SELECT workspace_id, id, agent_id, session_id, status, lease_until IS NOT NULL
          FROM written WHERE status IN ('running', 'awaiting_approval');
        RETURN NULL;
    END IF;
    SELECT array_agg(DISTINCT workspace_id),
           array_agg(id) FILTER (WHERE finished_at IS NOT NULL OR TG_OP = 'DELETE'),
           array_agg(id) FILTER (WHERE status IN ('running', 'awaiting_approval') AND TG_OP = 'UPDATE'),
           array_agg(id) FILTER (WHERE status = 'queued' AND TG_OP = 'UPDATE')
      INTO spaces, ended, taken, queued FROM written;
    IF ended IS NOT NULL THEN
        DELETE FROM live_runs WHERE workspace_id = ANY(spaces) AND id = ANY(ended);
        DELETE FROM taken_runs WHERE workspace_id = ANY(spaces) AND id = ANY(ended);
        GET DIAGNOSTICS found = ROW_COUNT;
        IF found < cardinality(ended) THEN
            DELETE FROM ready_runs WHERE id = ANY(ended);
        END IF;
    END IF;
    IF taken IS NOT NULL THEN
        DELETE FROM ready_runs WHERE id = ANY(taken);
        GET DIAGNOSTICS found = ROW_COUNT;
        IF found = cardinality(taken) THEN
            INSERT INTO taken_runs (workspace_id, id, agent_id, session_id, status, leased)
            SELECT workspace_id, id, agent_id, session_id, status, lease_until IS NOT NULL
              FROM written WHERE status IN ('running', 'awaiting_approval');
        ELSE
            INSERT INTO taken_runs AS t (workspace_id, id, agent_id, session_id, status, leased)
            SELECT workspace_id, id, agent_id, session_id, status, lease_until IS NOT NULL
              FROM written WHERE status IN ('running', 'awaiting_approval')
                ON CONFLICT (workspace_id, id) DO UPDATE SET status = excluded.status, leased = excluded.leased
             WHERE (t.status, t.leased) IS DISTINCT FROM (excluded.status, excluded.leased);
            UPDATE live_runs SET waits = false WHERE workspace_id = ANY(spaces) AND id = ANY(taken) AND waits;
        END IF;
    END IF;
    IF queued IS NOT NULL THEN
        DELETE FROM taken_runs WHERE workspace_id = ANY(spaces) AND id = ANY(queued);
        DELETE FROM ready_runs WHERE id = ANY(queued);
        INSERT INTO ready_runs (workspace_id, id, queue, pool, executor, priority, ready_at)
        SELECT workspace_id, id, queue, pool, executor, priority, ready_at
          FROM written WHERE status = 'queued' AND ready_at IS NOT NULL;
        UPDATE live_runs l
           SET waits = r.ready_at IS NULL, priority = r.priority, lane = r.lane
          FROM runs r
         WHERE l.workspace_id = ANY(spaces) AND l.id = ANY(queued) AND r.workspace_id = l.workspace_id AND r.id = l.id
           AND (l.waits, l.priority, l.lane) IS DISTINCT FROM (r.ready_at IS NULL, r.priority, r.lane);
    END IF;
    RETURN NULL;
END $$;
