-- Why: the page of accounts draws a month of usage, of which a busy house has hundreds of thousands of rows. What ended is
-- charged for good, so `watch` sums it up by quarters of an hour, which every zone's days are made of.
-- Locks: new tables only.

CREATE TABLE usage_spans (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    starts_at    timestamptz NOT NULL,
    account_id   uuid NOT NULL,
    unit         text NOT NULL,
    amount       numeric NOT NULL,
    PRIMARY KEY (workspace_id, starts_at, account_id, unit)
);

-- How far the spans of each workspace reach; what is newer stands in the ledger alone.
CREATE TABLE usage_tallies (
    workspace_id uuid PRIMARY KEY REFERENCES workspaces (id),
    until        timestamptz NOT NULL
);
