-- Why: budgets of automations and accounts. What a run may spend is set aside when it is fired and settled when it ends.
-- Whoever fires locks one row of `spending` for each purse (a holder's month and unit); whoever ends a run writes only
-- the run's own reservations, so that endings never wait for each other. Settled reservations are folded into
-- `spending` by the next one who fires.
-- Locks: accounts, automations and runs for a moment each: columns without a default rewrite nothing.

ALTER TABLE accounts
    ADD COLUMN currency   text NOT NULL DEFAULT 'USD' CHECK (currency ~ '^[A-Z]{3}$'),
    ADD COLUMN budget     jsonb,
    ADD COLUMN updated_at timestamptz NOT NULL DEFAULT now();
CREATE UNIQUE INDEX accounts_name ON accounts (workspace_id, name);
CREATE INDEX accounts_with_budget ON accounts (workspace_id) WHERE budget IS NOT NULL;

ALTER TABLE automations ADD COLUMN budget jsonb;

-- What this run may spend of each unit over all its attempts; NULL where no budget concerns it.
ALTER TABLE runs ADD COLUMN budget jsonb;

CREATE TABLE spending (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    holder_id    uuid NOT NULL,  -- an account or an automation
    month        date NOT NULL,  -- its first day, in the workspace's zone
    unit         text NOT NULL,
    cap          numeric NOT NULL CHECK (cap > 0),
    spent        numeric NOT NULL CHECK (spent >= 0),
    warned_at    timestamptz,
    PRIMARY KEY (workspace_id, holder_id, month, unit)
);

CREATE TABLE reservations (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    run_id       uuid NOT NULL,
    holder_id    uuid NOT NULL,
    unit         text NOT NULL,
    month        date NOT NULL,
    amount       numeric NOT NULL CHECK (amount > 0),
    settled      numeric CHECK (settled >= 0),  -- what was really spent, once the run has ended
    PRIMARY KEY (workspace_id, run_id, holder_id, unit)
);
CREATE INDEX reservations_of_holder ON reservations (workspace_id, holder_id, month, unit);

-- Run ids are in the order of time: a span of time is a span of ids.
CREATE INDEX usage_of_account ON usage (workspace_id, account_id, run_id);
