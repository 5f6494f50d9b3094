-- Why: whether a run has waited too long was looked up in the ledger, for everything that waits, at every rescue pass: with
--      200,000 waiting, half a second each time, and PostgreSQL came to read the whole ledger for it. Now the queue itself
--      tells when the first of them may be stuck. Tasks wait as long as it takes.
-- Locks: runs and ready_runs, for as long as it takes to write the latter anew: seconds for a million that wait.

LOCK TABLE runs IN SHARE ROW EXCLUSIVE MODE;

ALTER TABLE ready_runs ADD COLUMN stuck_at timestamptz;
UPDATE ready_runs l SET stuck_at = r.ready_at + r.start_within
  FROM runs r
 WHERE r.workspace_id = l.workspace_id AND r.id = l.id AND r.source <> 'task' AND r.start_within IS NOT NULL;

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
        INSERT INTO ready_runs (workspace_id, id, queue, pool, executor, priority, ready_at, stuck_at)
        SELECT workspace_id, id, queue, pool, executor, priority, ready_at,
               CASE WHEN source <> 'task' THEN ready_at + start_within END
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
        INSERT INTO ready_runs (workspace_id, id, queue, pool, executor, priority, ready_at, stuck_at)
        SELECT workspace_id, id, queue, pool, executor, priority, ready_at,
               CASE WHEN source <> 'task' THEN ready_at + start_within END
          FROM written WHERE status = 'queued' AND ready_at IS NOT NULL;
        UPDATE live_runs l
           SET waits = r.ready_at IS NULL, priority = r.priority, lane = r.lane
          FROM runs r
         WHERE l.workspace_id = ANY(spaces) AND l.id = ANY(queued) AND r.workspace_id = l.workspace_id AND r.id = l.id
           AND (l.waits, l.priority, l.lane) IS DISTINCT FROM (r.ready_at IS NULL, r.priority, r.lane);
    END IF;
    RETURN NULL;
END $$;
