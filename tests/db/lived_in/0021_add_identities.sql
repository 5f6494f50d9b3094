INSERT INTO identities (issuer, subject, user_id) VALUES ('https://id.example.org', 'cem', id('cem'));
INSERT INTO oidc_sign_ins (state_hash, browser_hash, nonce, verifier, next, expires_at)
VALUES (hash('state'), hash('browser'), 'nonce', 'verifier', '/', now() + interval '10 minutes');
