-- Why: who comes to wait asks what holds its lane, and found it among all that wait there: the longer the line of an automation,
-- the more each arrival and each end took. With `waits` in the index those that wait are not read.
-- Locks: live_runs, for as long as it takes to index what is live.

DROP INDEX live_runs_of_automation;
CREATE INDEX live_runs_of_automation ON live_runs (automation_id, waits);
