"""What a request works with: who asks, one transaction, and the wakes to send once it is committed."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
from fastapi import Depends, Request, Response
from psycopg import Rollback
from starlette.routing import Match
from starlette.types import Scope

from rota.access import signing_in
from rota.access.vault import Vault
from rota.db import at_once, isolation
from rota.db.listener import Listener, Wakes
from rota.db.pool import Connection, Database
from rota.errors import Forbidden, Unauthenticated
from rota.http import attempt_access
from rota.http.auditing import Record
from rota.http.cookies import login_of
from rota.http.errors import is_tried_again
from rota.http.limiting import Limits, Streams, bearer_of
from rota.http.repeating import Repeated, Taken, take
from rota.http.routes import refuse_unknown_body, refuse_unknown_parameters, within_workspace
from rota.model import scope
from rota.model.address import AllowList
from rota.model.caller import Caller
from rota.model.scope import READING
from rota.sessions.artifacts import Depot
from rota.sessions.messages import Post
from rota.settings import Settings
from rota.trace.follow import Readers

CSRF_FIELD, CSRF_HEADER = "csrf", "X-Rota-CSRF"


@dataclass(frozen=True, slots=True)
class Web:
    """What the web server shares between requests. Nothing that another replica would miss."""

    db: Database
    wakes: Wakes
    listener: Listener
    settings: Settings
    vault: Vault
    url: str = ""  # how browsers reach it
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    readers: Readers = field(init=False)
    limits: Limits = field(init=False)
    streams: Streams = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        limits = Limits(self.db, rate=settings.rate_limit, workspace_rate=settings.workspace_rate_limit)
        object.__setattr__(self, "limits", limits)
        object.__setattr__(self, "streams", Streams(settings.max_streams))
        object.__setattr__(self, "readers", Readers(self.db, self.listener, self.closing))

    @property
    def http_allow(self) -> AllowList:
        """Targets that agents of the kind `http` may have."""
        return AllowList(self.settings.http_allow)


@dataclass(slots=True)
class Unit:
    """One transaction of one caller, confined to their workspace by the database too. It is committed before the answer
    is sent; the wakes go out after the commit."""

    conn: Connection
    caller: Caller
    _role: str | None = None
    record: Record | None = None
    taken: Taken | None = None
    trial: bool = False

    def only_try(self, response: Response) -> None:
        """Answer as if it were done, with 200, and keep nothing of it."""
        self.trial = True
        response.status_code = HTTPStatus.OK

    def beyond_workspace(self) -> AbstractAsyncContextManager[None]:
        """For the few looks that a workspace doesn't bound: a person's other memberships, what they sign in with."""
        return isolation.lifted(self.conn, self._role)

    def call(self, verb: str) -> None:
        """Name what the request does by this verb in the audit log."""
        if self.record:
            self.record.call(verb)

    def about(self, object_id: UUID) -> None:
        """For the audit log: which thing was made, or was named by its slug."""
        if self.record:
            self.record.about(object_id)

    def show_once(self, secret: str | None) -> None:
        """In this answer only: what is kept for a repeat has null in its place."""
        if self.taken and secret:
            self.taken.hide(secret)

    async def keep(self, answer: Response) -> None:
        """For a repeat, where the transaction ends before the route has answered."""
        if self.taken:
            await self.taken.keep(answer)

    def wake(self, channel: str, payload: object = "") -> None:
        self.conn.wake(channel, [payload])


def web(request: Request) -> Web:
    found: Web = request.app.state.web
    return found


def _post(request: Request) -> Post:
    found: Post = request.app.state.post
    return found


def _depot(request: Request) -> Depot:
    found: Depot = request.app.state.depot
    return found


async def _secret_of(request: Request) -> tuple[str, bool]:
    """What a request signs in with: a bearer token, or a cookie, and which of the two."""
    secret, by_token = _find_secret(request)
    if not by_token:
        await refuse_forged(request, secret)
    return secret, by_token


def _find_secret(request: Request) -> tuple[str, bool]:
    if secret := bearer_of(request.headers.get("Authorization", "")):
        return secret, True
    if cookie := login_of(request):
        return cookie, False
    raise Unauthenticated(
        "Send a token as `Authorization: Bearer rota_…`, or sign in with the link that `rota up` prints."
    )


def _let_in(request: Request, workspace: str, secret: str, caller: Caller) -> Caller:
    """A token must be for this kind of request."""
    request.state.caller = caller
    web(request).limits.know(secret, caller, workspace)
    if caller.login_id is None:
        scope.check(caller.scopes, scope.needed(request.method, within_workspace(request)))
    return caller


@asynccontextmanager
async def _signed_in(request: Request, workspace: str) -> AsyncIterator[tuple[Connection, Caller, str | None]]:
    """A transaction of who asks, confined to their workspace, and the role it works under: one round trip."""
    secret, by_token = await _secret_of(request)
    db = web(request).db
    ask, told = _BY_TOKEN if by_token else _BY_LOGIN
    at_work = by_token and signing_in.ATTEMPT_TOKEN.fullmatch(secret)
    with suppress(Rollback):
        async with db.connection() as conn:
            role = await isolation.role_of(db, conn)
            steps = [] if at_work else [ask(workspace, secret), *isolation.told_workspace(role)]
            async with at_once.transaction(conn, *steps) as found:
                caller = await signing_in.caller_by_token(conn, workspace, secret) if at_work else told(found[0])
                _let_in(request, workspace, secret, caller)
                if at_work:
                    await isolation.confine(db, conn, caller.workspace_id)
                    await attempt_access.check(request, conn, caller)
                yield conn, caller, role


_BY_TOKEN = (signing_in.ask_token, signing_in.told_token)
_BY_LOGIN = (signing_in.ask_login, signing_in.told_login)


async def holder_of_token(request: Request) -> Caller:
    """Who asks, in the workspace that their token is of, where no address names one. A login is no way in."""
    secret = bearer_of(request.headers.get("Authorization", ""))
    if not secret:
        raise Unauthenticated("Send a token as `Authorization: Bearer rota_…`; `rota tokens create NAME` makes one.")
    async with web(request).db.connection() as conn:
        caller = await signing_in.caller_by_token(conn, None, secret)
        web(request).limits.know(secret, caller)
        await signing_in.note_use(conn, caller)
    return caller


async def sign_in_early(scope: Scope) -> bool:
    """Refuse a request whose token or login does not hold, or does not allow it, before its body is read. The route
    signs in again, in its own transaction. False if there is no such route."""
    matches = (route.matches(scope) for route in scope["app"].routes)
    found = next((child for match, child in matches if match is Match.FULL), None)
    if found is None:
        return False
    request = Request({**scope, **found})
    if "workspace" not in request.path_params:
        await holder_of_token(request)
        return True
    workspace, shared, record = request.path_params["workspace"], web(request), Record.of(request)
    secret, by_token = _find_secret(request)
    if not by_token:
        refuse_foreign_origin(request)
    sign_in = signing_in.caller_by_token if by_token else signing_in.caller_by_login
    async with shared.db.connection() as conn:
        caller = await sign_in(conn, workspace, secret)
    try:
        _let_in(request, workspace, secret, caller)
    except Forbidden as refused:
        if record:
            await record.write_refusal(shared.db, caller, refused)
        raise
    return True


def refuse_foreign_origin(request: Request) -> None:
    """A browser says where a request comes from; a change that another site asked for is refused."""
    if request.method in READING:
        return
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    foreign = origin is not None and _host(origin) != request.headers.get("Host")
    if foreign or site in {"cross-site", "same-site"}:
        raise Forbidden("This request comes from another site.", code="foreign_origin")


async def refuse_forged(request: Request, login: str) -> None:
    """A change by cookie comes from a page of ours: its origin says so, and it carries what only that page knows."""
    refuse_foreign_origin(request)
    if request.method in READING:
        return
    given = request.headers.get(CSRF_HEADER) or await _form_field(request)
    if not secrets.compare_digest(given.encode(), signing_in.csrf_of(login).encode()):
        raise Forbidden(
            "This form is not of your present sign-in. Load its page again, then try again.", code="csrf_token"
        )


async def _form_field(request: Request) -> str:
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind not in {"application/x-www-form-urlencoded", "multipart/form-data"}:
        return ""
    given = (await request.form()).get(CSRF_FIELD)
    return given if isinstance(given, str) else ""


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


async def _unit(request: Request, workspace: str, response: Response) -> AsyncIterator[Unit]:
    """A transaction for one request. What it changes is told in the audit log by the same transaction; what was
    refused, by one of its own."""
    shared, record = web(request), Record.of(request)
    request.state.caller = None
    try:
        async with _signed_in(request, workspace) as signed:
            unit = await _begin(request, *signed, record)
            with _noting_loss(request, unit.conn):
                yield unit
            await _finish(request, unit, response)
    except Repeated:
        raise  # nothing is changed, and the first is told in the log
    except Exception as error:
        if record and (caller := request.state.caller) and not is_tried_again(request, error):
            await record.write_refusal(shared.db, caller, error)
        raise
    if record and (told := refusal(request)):
        await record.write_refusal(shared.db, unit.caller, told)


@contextmanager
def _noting_loss(request: Request, conn: Connection) -> Iterator[None]:
    """A connection that is lost here was lost before COMMIT was sent, so the request can be made again. PostgreSQL ends
    the connection of a process that froze in a transaction."""
    request.state.lost_before_commit = False
    try:
        yield
    except psycopg.Error:
        request.state.lost_before_commit = conn.was_ended
        raise


@asynccontextmanager
async def unit_of(request: Request, workspace: str) -> AsyncIterator[Unit]:
    """For a route that is only sometimes one transaction."""
    undecided = Response()
    undecided.status_code = None  # type: ignore[assignment]  # as FastAPI gives it to a route
    async with asynccontextmanager(_unit)(request, workspace, undecided) as unit:
        yield unit


async def _begin(request: Request, conn: Connection, caller: Caller, role: str | None, record: Record | None) -> Unit:
    refuse_unknown_parameters(request)
    await refuse_unknown_body(request)
    taken = await take(request, conn, caller, web(request).vault)
    if record:
        await record.look(conn, caller)
    return Unit(conn, caller, role, record, taken)


async def _finish(request: Request, unit: Unit, response: Response) -> None:
    if unit.trial or refusal(request):
        raise Rollback
    if unit.record:
        # What the route has said in the course of it, else what it always answers.
        answered = response.status_code or getattr(request.scope["route"], "status_code", None) or HTTPStatus.OK
        told = await unit.record.tell(unit.conn, unit.caller, answered)
        if not unit.caller.unnoted:
            return await at_once.commit(unit.conn, told)
        await at_once.run(unit.conn, told)
    return await _note_use(unit)


async def _note_use(unit: Unit) -> None:
    if unit.caller.unnoted:
        async with unit.beyond_workspace():
            await signing_in.note_use(unit.conn, unit.caller)


async def _looking(request: Request, workspace: str) -> AsyncIterator[Unit]:
    async with _signed_in(request, workspace) as signed:
        unit = await _begin(request, *signed, None)
        yield unit
        await _note_use(unit)


looking_of = asynccontextmanager(_looking)


def refuse(request: Request, told: dict[str, Any]) -> None:
    """A route that answers a refusal itself, as a page, says so: nothing of its transaction may stay."""
    request.state.refusal = told


def refusal(request: Request) -> dict[str, Any] | None:
    return getattr(request.state, "refusal", None)


async def sign(request: Request, workspace: str) -> Caller:
    """Who asks, for an answer that goes on after the transaction."""
    secret, by_token = await _secret_of(request)
    sign_in = signing_in.caller_by_token if by_token else signing_in.caller_by_login
    async with web(request).db.connection() as conn:
        caller = _let_in(request, workspace, secret, await sign_in(conn, workspace, secret))
        await attempt_access.check(request, conn, caller)
        refuse_unknown_parameters(request)
        await refuse_unknown_body(request)
        await signing_in.note_use(conn, caller)
        return caller


# scope="function": FastAPI would otherwise commit after the answer was sent, and a failed commit would come too late.
InUnit = Annotated[Unit, Depends(_unit, scope="function")]
# For a POST that the audit log is not told of: it only reads, or marks as read.
Looking = Annotated[Unit, Depends(_looking, scope="function")]
Signed = Annotated[Caller, Depends(sign)]
Shared = Annotated[Web, Depends(web)]
Posting = Annotated[Post, Depends(_post)]
Keeping = Annotated[Depot, Depends(_depot)]
