"""The roles of the embedded PostgreSQL: what they may do, and their passwords.

`rota` is the superuser of the cluster and owns the tables. Only migrations use it, and people who back up or restore.
`rota_app` is what Rota works as: it reads and writes rows of the database `rota`, and may become the API's role.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping

OWNER, APPLICATION = "rota", "rota_app"
ROLES = (OWNER, APPLICATION)
DATABASE = "rota"

HBA = """\
# Rota writes this file whenever it starts the server. rota.pgpass beside it has the passwords.
local all all scram-sha-256
"""

# Stretching protects passwords that can be guessed. These have 256 random bits, and every connection would pay for it.
ITERATIONS = 1

# Every statement may be repeated: a conversion that was interrupted starts over. The API's role has the name that
# isolation.py derives from the owner's. Row-level security confines that role alone; `rota_app` also works for scheduler
# and workers, which serve all workspaces, so it bypasses the policies until it becomes the API's role.
STATEMENTS = """\
DO $$
BEGIN
    IF to_regrole('rota_app') IS NULL THEN CREATE ROLE rota_app; END IF;
    IF to_regrole('rota_api') IS NULL THEN CREATE ROLE rota_api; END IF;
END $$;

ALTER ROLE rota PASSWORD '{rota}';

ALTER ROLE rota_app LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION BYPASSRLS PASSWORD '{rota_app}';

GRANT rota_api TO rota_app WITH INHERIT FALSE, SET TRUE;

REVOKE ALL ON DATABASE rota, postgres, template1 FROM PUBLIC;

GRANT CONNECT ON DATABASE rota TO rota_app;

GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO rota_app;

GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO rota_app;

ALTER DEFAULT PRIVILEGES FOR ROLE rota IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO rota_app;

ALTER DEFAULT PRIVILEGES FOR ROLE rota IN SCHEMA public GRANT USAGE ON SEQUENCES TO rota_app;
"""


def new_passwords() -> dict[str, str]:
    return {role: secrets.token_hex(32) for role in ROLES}


def as_script(passwords: Mapping[str, str]) -> bytes:
    """Statements for `postgres --single -j`. They contain verifiers instead of passwords, in case one is logged."""
    return STATEMENTS.format(**{role: make_verifier(passwords[role]) for role in ROLES}).encode()


def as_passfile(passwords: Mapping[str, str]) -> str:
    """What libpq reads as a password file, for every place of the socket: a home may be moved."""
    return "".join(f"*:*:*:{role}:{passwords[role]}\n" for role in ROLES)


def is_passfile(text: str) -> bool:
    return all(re.search(rf"^\*:\*:\*:{role}:[0-9a-f]{{64}}$", text, re.MULTILINE) for role in ROLES)


def make_verifier(password: str) -> str:
    """What PostgreSQL stores to check a password by SCRAM-SHA-256 (RFC 5803)."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    salt_text, stored_text, server_text = (base64.b64encode(each).decode() for each in (salt, stored_key, server_key))
    return f"SCRAM-SHA-256${ITERATIONS}:{salt_text}${stored_text}:{server_text}"
