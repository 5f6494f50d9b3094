"""Deletes what is older than it is kept, a bounded number of rows at a time. Runs stay."""

from datetime import timedelta

from rota.db.pool import Connection

# As = ANY(ARRAY(…)) each deletes at most so many rows, found by an index of time. What may be renewed is asked again
# outside: PostgreSQL up to the releases of autumn 2025 deletes a row found by its ctid also when it was changed meanwhile.
EVENTS = """
WITH gone AS (
    DELETE FROM events WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM events WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
 RETURNING workspace_id, session_id, seq, kind),
undelivered AS (
    DELETE FROM deliveries d USING gone
     WHERE gone.kind = 'message' AND d.workspace_id = gone.workspace_id AND d.session_id = gone.session_id
       AND d.seq = gone.seq)
SELECT 1 FROM gone
"""
WRITE_KEYS = """
DELETE FROM write_keys WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM write_keys WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
"""
SNAPSHOTS = """
DELETE FROM snapshots WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM snapshots WHERE taken_at < now() - %(kept)s LIMIT %(limit)s))
"""
START_KEYS = """
DELETE FROM start_keys WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM start_keys WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
"""
HELD_WORDS = """
DELETE FROM held_words WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM held_words WHERE held_at < now() - %(kept)s LIMIT %(limit)s)) AND held_at < now() - %(kept)s
"""
RATE_BUCKETS = """
DELETE FROM rate_buckets WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM rate_buckets WHERE filled_at < now() - %(kept)s LIMIT %(limit)s)) AND filled_at < now() - %(kept)s
"""
WORKERS = """
DELETE FROM workers WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM workers WHERE last_seen_at < now() - %(kept)s LIMIT %(limit)s)) AND last_seen_at < now() - %(kept)s
"""
MEMORY = """
DELETE FROM memory WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM memory WHERE expires_at < now() - %(kept)s LIMIT %(limit)s)) AND expires_at < now() - %(kept)s
"""
AUDIT = """
DELETE FROM audit WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM audit WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
"""
NOTIFICATIONS = """
DELETE FROM notifications WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM notifications WHERE updated_at < now() - %(kept)s LIMIT %(limit)s)) AND updated_at < now() - %(kept)s
"""
CHECKPOINTS = """
-- Not where a run may still go on.
DELETE FROM checkpoints WHERE ctid = ANY(ARRAY(
    SELECT c.ctid FROM checkpoints c
     WHERE c.stored_at < now() - %(kept)s
       AND NOT EXISTS (SELECT FROM runs r WHERE r.workspace_id = c.workspace_id AND r.session_id = c.session_id
                          AND r.finished_at IS NULL)
     LIMIT %(limit)s)) AND stored_at < now() - %(kept)s
"""
ABANDONMENTS = """
-- Whose kind nobody has served for so long.
DELETE FROM abandonments WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM abandonments WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
"""
APPROVALS = """
-- Of runs that have ended: what was asked and answered is part of the transcript.
DELETE FROM approvals WHERE ctid = ANY(ARRAY(
    SELECT a.ctid FROM approvals a JOIN runs r ON r.workspace_id = a.workspace_id AND r.id = a.run_id
     WHERE a.created_at < now() - %(kept)s AND r.finished_at < now() - %(kept)s LIMIT %(limit)s))
"""
WEBHOOK_SECRETS = """
-- Which have run out: they were replaced.
DELETE FROM webhook_secrets WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM webhook_secrets WHERE expires_at < now() - %(kept)s LIMIT %(limit)s))
"""
FORMER_CREDENTIALS = """
-- Once nobody is at work who may have been given them.
DELETE FROM former_credentials WHERE ctid = ANY(ARRAY(
    SELECT f.ctid FROM former_credentials f
     WHERE f.replaced_at < now() - %(kept)s
       AND NOT EXISTS (SELECT FROM taken_runs t JOIN runs r ON r.workspace_id = t.workspace_id AND r.id = t.id
                        WHERE t.workspace_id = f.workspace_id AND r.started_at < f.replaced_at + %(kept)s)
     LIMIT %(limit)s))
"""
SIGN_INS = """
WITH links AS (DELETE FROM sign_in_links WHERE expires_at < now()),
on_the_way AS (DELETE FROM oidc_sign_ins WHERE expires_at < now()),
throttled AS (DELETE FROM throttles WHERE greatest(last_at, open_at) < now() - interval '1 day')
DELETE FROM logins WHERE least(expires_at, last_used_at + idle) < now()
"""


async def prune(conn: Connection, query: str, kept: timedelta, limit: int) -> int:
    return (await conn.execute(query.encode(), {"kept": kept, "limit": limit})).rowcount


async def prune_sign_ins(conn: Connection) -> int:
    return (await conn.execute(SIGN_INS)).rowcount
