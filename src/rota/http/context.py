"""What a request works with: who asks, one transaction, and the wakes to send once it is committed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from rota.access import signing_in
from rota.access.vault import Vault
from rota.db import isolation
from rota.db.listener import Listener, Wakes
from rota.db.pool import Connection, Database
from rota.errors import Forbidden, Unauthenticated
from rota.model.caller import Caller
from rota.sessions.artifacts import Depot
from rota.sessions.messages import Post
from rota.settings import Settings
from rota.trace.follow import Readers

COOKIE = "rota_login"


@dataclass(frozen=True, slots=True)
class Web:
    """What the web server shares between requests. Nothing that another replica would miss."""

    db: Database
    wakes: Wakes
    listener: Listener
    settings: Settings
    vault: Vault
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    readers: Readers = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "readers", Readers(self.db, self.listener, self.closing))


@dataclass(slots=True)
class Unit:
    """One transaction of one caller, confined to their workspace by the database too. It is committed before the answer
    is sent; the wakes go out after the commit."""

    conn: Connection
    caller: Caller
    _role: str | None = None
    _wakes: list[tuple[str, str]] = field(default_factory=list)

    def beyond_workspace(self) -> AbstractAsyncContextManager[None]:
        """For the few looks that a workspace doesn't bound: a person's other memberships, what they sign in with."""
        return isolation.lifted(self.conn, self._role)

    def wake(self, channel: str, payload: object = "") -> None:
        self._wakes.append((channel, str(payload)))

    def send_wakes(self, wakes: Wakes) -> None:
        for channel, payload in self._wakes:
            wakes.send(channel, [payload])


def web(request: Request) -> Web:
    found: Web = request.app.state.web
    return found


def _post(request: Request) -> Post:
    found: Post = request.app.state.post
    return found


def _depot(request: Request) -> Depot:
    found: Depot = request.app.state.depot
    return found


async def caller_of(request: Request, conn: Connection, workspace: str) -> Caller:
    """Who asks, by bearer token or by cookie."""
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and secret:
        return await signing_in.caller_by_token(conn, workspace, secret.strip())
    if cookie := request.cookies.get(COOKIE):
        refuse_foreign_origin(request)
        return await signing_in.caller_by_login(conn, workspace, cookie)
    raise Unauthenticated(
        "Send a token as `Authorization: Bearer rota_…`, or sign in with the link that `rota up` prints."
    )


def refuse_foreign_origin(request: Request) -> None:
    """A browser says where a request comes from; a change that another site asked for is refused."""
    if request.method in {"GET", "HEAD", "OPTIONS"}:
        return
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    foreign = origin is not None and _host(origin) != request.headers.get("Host")
    if foreign or site in {"cross-site", "same-site"}:
        raise Forbidden("This request comes from another site.", code="foreign_origin")


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


async def _unit(request: Request, workspace: str) -> AsyncIterator[Unit]:
    shared = web(request)
    async with shared.db.transaction() as conn:
        caller = await caller_of(request, conn, workspace)
        unit = Unit(conn, caller, await isolation.confine(shared.db, conn, caller.workspace_id))
        yield unit
    unit.send_wakes(shared.wakes)


async def sign(request: Request) -> Caller:
    """Who asks, for an answer that goes on after the transaction."""
    async with web(request).db.connection() as conn:
        return await caller_of(request, conn, request.path_params["workspace"])


# scope="function": FastAPI would otherwise commit after the answer was sent, and a failed commit would come too late.
InUnit = Annotated[Unit, Depends(_unit, scope="function")]
Signed = Annotated[Caller, Depends(sign)]
Shared = Annotated[Web, Depends(web)]
Posting = Annotated[Post, Depends(_post)]
Keeping = Annotated[Depot, Depends(_depot)]
