-- Why: people sign in with an identity provider; which of its subjects is which person here, and who is on their way there.
-- Locks: none that anybody waits for; tables of their own.

CREATE TABLE identities (
    issuer     text NOT NULL,
    subject    text NOT NULL,
    user_id    uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (issuer, subject)
);

CREATE TABLE oidc_sign_ins (
    state_hash   bytea PRIMARY KEY,
    browser_hash bytea NOT NULL,
    nonce        text NOT NULL,
    verifier     text NOT NULL,
    next         text NOT NULL,
    expires_at   timestamptz NOT NULL
);
