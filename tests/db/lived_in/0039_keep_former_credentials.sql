INSERT INTO former_credentials (workspace_id, credential_id, name, sealed)
SELECT workspace_id, id, name, sealed FROM credentials;
