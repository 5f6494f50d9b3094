-- Why: usage comes from a worker, which writes its total again and again, and from its agent over HTTP, which adds.
-- `recorded` is how much of the amount is the worker's total, so that neither disturbs the other.
-- Locks: an exclusive one on usage while its rows are written anew.

ALTER TABLE usage ADD COLUMN recorded numeric NOT NULL DEFAULT 0 CHECK (recorded >= 0);
UPDATE usage SET recorded = amount;
