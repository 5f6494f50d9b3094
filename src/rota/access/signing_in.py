"""Who is behind a secret: an API token, a one-time link, a browser's login, the token of one attempt."""

import base64
import hashlib
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from rota.access import passwords, throttling
from rota.db import at_once, attempts, people, tokens
from rota.db.at_once import Step
from rota.db.pool import Connection, Database
from rota.errors import Forbidden, NotFound, Unauthenticated
from rota.model.caller import Caller, Level, Reach
from rota.model.ids import RunId, SessionId, TokenId, UserId, WorkspaceId, as_uuid, new_id
from rota.model.scope import ALL, Scope

LINK_LASTS = timedelta(hours=24)
LOGIN_LASTS, LOGIN_IDLE = timedelta(days=30), timedelta(days=7)
LONGEST_EMAIL = 254
ATTEMPT_TOKEN = re.compile(r"rota_run_([0-9a-f]{32})_([0-9a-f]{32})_(\d{1,9})_([\w-]{16,64})", re.ASCII)


def hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


async def add_token(
    conn: Connection,
    workspace_id: WorkspaceId,
    user_id: UserId,
    name: str,
    *,
    scopes: Collection[str] = ALL,
    lasts: timedelta | None = None,
) -> tuple[TokenId, str]:
    """A new API token of this person, and its secret, which is shown this once."""
    token_id, secret = TokenId(new_id()), "rota_" + secrets.token_urlsafe(32)
    kept = [scope for scope in ALL if scope in scopes]
    made = await tokens.add(
        conn, workspace_id, token_id, user_id, name=name, secret_hash=hashed(secret), scopes=kept, lasts=lasts
    )
    if not made:
        raise Forbidden("You were just removed from this workspace.")
    return token_id, secret


async def create_link(conn: Connection, user_id: UserId) -> str:
    """A one-time secret for the address that `rota up` prints. An earlier one that was not used dies."""
    secret = secrets.token_urlsafe(32)
    await people.add_link(conn, user_id, hashed(secret), LINK_LASTS)
    return secret


@dataclass(frozen=True, slots=True)
class Visit:
    """A browser that signs in: how long its login lasts, also unused, and what its person knows it by."""

    lasts: timedelta = LOGIN_LASTS
    idle: timedelta = LOGIN_IDLE
    ip: str | None = None
    user_agent: str | None = None


def csrf_of(login: str) -> str:
    """What the forms of a login's pages carry and another site cannot know. It tells nothing of the login's secret."""
    return base64.urlsafe_b64encode(hashed(f"csrf:{login}")).decode().rstrip("=")


async def sign_in(conn: Connection, link: str, visit: Visit | None = None) -> str:
    """Trade a one-time link for a login; the cookie's secret."""
    user_id = await people.use_link(conn, hashed(link))
    if not user_id:
        raise Unauthenticated(
            "This link was used already, is too old, or a newer one was made. `rota sign-in` prints a new one.",
            code="link_used",
        )
    return await open_login(conn, user_id, visit or Visit())


async def open_login(conn: Connection, user_id: UserId, visit: Visit) -> str:
    """A new login with a secret of its own, whatever the browser had before."""
    secret = secrets.token_urlsafe(32)
    await people.add_login(
        conn, user_id, hashed(secret), lasts=visit.lasts, idle=visit.idle, ip=visit.ip, user_agent=visit.user_agent
    )
    return secret


async def sign_in_by_password(db: Database, email: str, password: str, visit: Visit) -> str:
    """The cookie's secret. Who is wrong is told the same, after the same time, whether or not the account is there."""
    email = email.strip().lower()[:LONGEST_EMAIL]
    await throttling.begin(db, email, visit.ip or "")
    async with db.connection() as conn:
        found = await people.find_password(conn, email)
    if not await passwords.is_right(found["password_hash"] if found else None, password) or not found:
        raise _wrong_password()
    if found["disabled"]:
        raise _disabled()
    await throttling.succeed(db, email, visit.ip or "")
    async with db.transaction() as conn:
        if not await people.still_has_password(conn, found["id"], found["password_hash"]):
            raise _wrong_password()
        return await open_login(conn, UserId(found["id"]), visit)


async def caller_by_token(conn: Connection, workspace: str | None, secret: str) -> Caller:
    """Who holds this bearer token, in this workspace, or in the token's own if none is named. Another workspace's token
    is told that the workspace doesn't exist."""
    if ATTEMPT_TOKEN.fullmatch(secret):
        return await _agent_at_work(conn, workspace, secret)
    [rows] = await at_once.run(conn, ask_token(workspace, secret))
    return told_token(rows)


def ask_token(workspace: str | None, secret: str) -> Step:
    """Whose token this is, as a step of others; not for that of an attempt. It tells the transaction the workspace."""
    return tokens.SIGN_IN, {"ref": workspace, "id": workspace and as_uuid(workspace), "hash": hashed(secret)}


def told_token(rows: Sequence[Sequence[Any]]) -> Caller:
    if not rows:
        raise Unauthenticated("The token is unknown, revoked or expired. `rota tokens create NAME` makes a new one.")
    [(user_id, token_id, scopes, unnoted, *member)] = rows
    return replace(_member(user_id, *member), token_id=token_id, scopes=frozenset(map(Scope, scopes)), unnoted=unnoted)


async def note_use(conn: Connection, caller: Caller) -> None:
    """Write down that a token or login is used, at most once a minute. The last thing that a request does: its row is
    then held while nobody is waited for, and whoever revokes it never waits for a slow request."""
    if caller.unnoted and caller.token_id:
        await tokens.note_use(conn, caller.workspace_id, caller.token_id)
    elif caller.unnoted and caller.login_id:
        await people.note_login(conn, caller.login_id)


async def caller_by_login(conn: Connection, workspace: str, secret: str) -> Caller:
    [rows] = await at_once.run(conn, ask_login(workspace, secret))
    return told_login(rows)


def ask_login(workspace: str, secret: str) -> Step:
    """As of a token."""
    return people.SIGN_IN, {"ref": workspace, "id": as_uuid(workspace), "hash": hashed(secret)}


def told_login(rows: Sequence[Sequence[Any]]) -> Caller:
    if not rows:
        raise _ended()
    [(login_id, user_id, unnoted, disabled, *member)] = rows
    if disabled:
        raise _disabled()
    return replace(_member(user_id, *member), login_id=login_id, unnoted=unnoted)


async def user_by_login(conn: Connection, secret: str) -> UserId:
    return UserId((await find_login(conn, secret))["user_id"])


async def find_login(conn: Connection, secret: str) -> dict[str, Any]:
    found = await people.find_login(conn, hashed(secret))
    if not found:
        raise _ended()
    if found["disabled"]:
        raise _disabled()
    return found


def _ended() -> Unauthenticated:
    return Unauthenticated("Your sign-in has ended. Sign in again.")


def _wrong_password() -> Unauthenticated:
    return Unauthenticated("The e-mail address or the password is wrong.", code="wrong_password")


def _disabled() -> Unauthenticated:
    return Unauthenticated("This account is disabled. Ask whoever runs this server.", code="account_disabled")


async def _caller(conn: Connection, workspace: str, user_id: UserId) -> Caller:
    found = await people.find_membership(conn, workspace, user_id) or {}
    names = ("id", "slug", "timezone", "level", "name", "disabled")
    return _member(user_id, *(found.get(name) for name in names))


def _member(
    user_id: UserId, workspace_id: Any, slug: Any, timezone: Any, level: Any, name: Any, disabled: Any, *_: Any
) -> Caller:
    """As the database tells it; nothing of all that for who is no member of such a workspace."""
    if workspace_id is None:
        raise NotFound("There is no such workspace.")
    if disabled:
        raise _disabled()
    return Caller(workspace_id, slug, timezone, user_id, name, Level(level))


async def find_attempt(conn: Connection, secret: str) -> dict[str, Any] | None:
    """The attempt whose token this is, while it holds its lease and its grant."""
    parts = ATTEMPT_TOKEN.fullmatch(secret)
    if parts is None:
        return None
    return await attempts.by_token(conn, UUID(parts[1]), UUID(parts[2]), int(parts[3]), hashed(parts[4]))


async def _agent_at_work(conn: Connection, workspace: str | None, secret: str) -> Caller:
    attempt = await find_attempt(conn, secret)
    if not attempt:
        raise Unauthenticated(
            "This attempt has ended or lost its lease; its token is worth nothing now.", code="attempt_over"
        )
    caller = await _caller(conn, workspace or str(attempt["workspace_id"]), attempt["user_id"])
    if caller.workspace_id != attempt["workspace_id"]:
        raise NotFound("There is no such workspace.")
    session_id, run_id = SessionId(attempt["session_id"]), RunId(attempt["run_id"])
    reach = Reach(
        session_id, attempt["automation_id"], attempt["grant_id"], attempt["account_id"], frozenset(attempt["scopes"])
    )
    at_work = {"agent_in_session": session_id, "run_id": run_id, "attempt": attempt["attempt"], "reach": reach}
    return replace(caller, level=Level.VIEWER, **at_work)
