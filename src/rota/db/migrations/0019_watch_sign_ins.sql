-- Why: logins end when they are idle, are shown to their person one by one, and guesses at passwords come slower and slower.
-- Locks: logins for a moment; a table of its own that nobody uses yet.

ALTER TABLE logins
    ADD COLUMN id         uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    ADD COLUMN idle       interval NOT NULL DEFAULT '7 days',
    ADD COLUMN ip         text,
    ADD COLUMN user_agent text;

CREATE TABLE throttles (
    key     bytea PRIMARY KEY,
    tries   integer NOT NULL,
    last_at timestamptz NOT NULL,
    open_at timestamptz NOT NULL
);
