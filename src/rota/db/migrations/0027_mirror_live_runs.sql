-- Why: what changes while a run lives stood in seven indexes of the ledger, so that every claim and every end wrote them all
-- anew. Now the ledger's indexes have only what never changes, and a narrow table has what the queue, lanes and caps look
-- for. The table of runs keeps it: no statement can forget it. It is only changed under the lock of the run.
-- Locks: runs against writes while indexes are built, about a second for a million runs.

CREATE TABLE live_runs (
    workspace_id  uuid NOT NULL,
    id            uuid NOT NULL,
    automation_id uuid,
    session_id    uuid,
    agent_id      uuid NOT NULL,
    lane          uuid,
    queue         uuid NOT NULL,
    ready_at      timestamptz,
    priority      smallint NOT NULL,
    leased        boolean NOT NULL,
    status        text NOT NULL,
    source        text NOT NULL,
    pool          text NOT NULL,
    executor      text NOT NULL,
    PRIMARY KEY (workspace_id, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

INSERT INTO live_runs
SELECT workspace_id, id, automation_id, session_id, agent_id, lane, queue, ready_at, priority, lease_until IS NOT NULL, status,
       source, pool, executor
  FROM runs WHERE finished_at IS NULL;

-- Promise 3: at most one run holds a lane. A queued run holds it as soon as it is ready.
CREATE UNIQUE INDEX live_runs_one_per_lane ON live_runs (workspace_id, lane)
    WHERE lane IS NOT NULL
      AND (status IN ('running', 'awaiting_approval') OR (status = 'queued' AND ready_at IS NOT NULL));
CREATE INDEX live_runs_waiting_for_lane ON live_runs (workspace_id, lane, priority, id)
    WHERE status = 'queued' AND ready_at IS NULL;
CREATE INDEX live_runs_ready ON live_runs (workspace_id, queue, pool, executor, priority, ready_at)
    WHERE status = 'queued' AND ready_at IS NOT NULL;
CREATE INDEX live_runs_at_work ON live_runs (workspace_id, agent_id) WHERE status IN ('running', 'awaiting_approval');
CREATE INDEX live_runs_of_automation ON live_runs (workspace_id, automation_id);

-- Always by the primary key: a plan made while the table is nearly empty serves also when it holds a million.
CREATE FUNCTION mirror_live_runs() RETURNS trigger LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO live_runs
        SELECT workspace_id, id, automation_id, session_id, agent_id, lane, queue, ready_at, priority,
               lease_until IS NOT NULL, status, source, pool, executor
          FROM written WHERE finished_at IS NULL;
        RETURN NULL;
    END IF;
    DELETE FROM live_runs l USING written w
     WHERE (w.finished_at IS NOT NULL OR TG_OP = 'DELETE') AND l.workspace_id = w.workspace_id AND l.id = w.id;
    UPDATE live_runs l
       SET status = w.status, ready_at = w.ready_at, leased = w.lease_until IS NOT NULL, lane = w.lane,
           priority = w.priority, queue = w.queue
      FROM written w
     WHERE w.finished_at IS NULL AND l.workspace_id = w.workspace_id AND l.id = w.id
       AND (l.status, l.ready_at, l.leased, l.lane, l.priority, l.queue)
           IS DISTINCT FROM (w.status, w.ready_at, w.lease_until IS NOT NULL, w.lane, w.priority, w.queue);
    RETURN NULL;
END $$;
CREATE TRIGGER runs_started AFTER INSERT ON runs REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION mirror_live_runs();
CREATE TRIGGER runs_changed AFTER UPDATE ON runs REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION mirror_live_runs();
CREATE TRIGGER runs_deleted AFTER DELETE ON runs REFERENCING OLD TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION mirror_live_runs();

DROP INDEX runs_one_per_lane, runs_waiting_for_lane, runs_ready, runs_running, runs_awaiting, runs_in_flight, runs_rare;

-- Lists of rare endings, newest first. A run that succeeds has neither column, and never touches them.
CREATE INDEX runs_failed ON runs (workspace_id, id) WHERE error_class NOT IN ('cancelled_by_user', 'replaced');
CREATE INDEX runs_cancelled ON runs (workspace_id, id) WHERE error_class IN ('cancelled_by_user', 'replaced');
CREATE INDEX runs_skipped ON runs (workspace_id, id) WHERE skip_reason IS NOT NULL;
ALTER TABLE runs ADD CONSTRAINT runs_cancelled_by CHECK (
    (status = 'cancelled') = (error_class IN ('cancelled_by_user', 'replaced')));
