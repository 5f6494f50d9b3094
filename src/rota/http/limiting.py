"""How many requests a second one token or login may send, and one workspace; beyond that: when to come back.

Each process draws a fifth of a second's worth from the bucket in the database at a time, so that few requests cost a
write. Requests from this machine itself and those of agents at work are not counted.
"""

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.access.signing_in import ATTEMPT_TOKEN, hashed
from rota.db import rate_buckets
from rota.db.pool import PASSING, Database
from rota.errors import TooMany
from rota.http.cookies import login_of
from rota.http.errors import answer, of_error
from rota.model.caller import Caller
from rota.model.ids import WorkspaceId

BURST_SECONDS = 10
DRAWS_A_SECOND = 5
MOST_KNOWN = 10_000
STREAM_RETRY_SECONDS = 5
OF_THE_WORKSPACE = b""
IN_WORKSPACE = re.compile(r"/(?:api/v1/workspaces|w)/([^/]+)")


@dataclass(slots=True)
class Bucket:
    """What this process has drawn and not spent."""

    workspace_id: WorkspaceId
    key: bytes
    rate: int
    left: int = 0


class Limits:
    """Who sent with which secret is known once they were let in; until then they are not limited here."""

    def __init__(self, db: Database, *, rate: int, workspace_rate: int) -> None:
        self._db, self._rate, self._workspace_rate = db, rate, workspace_rate
        self._senders: dict[bytes, Bucket] = {}
        self._shares: dict[tuple[bytes, str], Bucket] = {}  # by the workspace as addresses name it: a login has several
        self._workspaces: dict[WorkspaceId, Bucket] = {}

    def know(self, secret: str, caller: Caller, workspace: str = "") -> None:
        sender = caller.token_id or caller.login_id
        if sender is None or ((known := hashed(secret)), workspace) in self._shares:
            return
        if len(self._shares) >= MOST_KNOWN:
            for each in (self._senders, self._shares, self._workspaces):
                each.clear()
        self._senders.setdefault(known, Bucket(caller.workspace_id, sender.bytes, self._rate))
        self._shares[known, workspace] = self._workspaces.setdefault(
            caller.workspace_id, Bucket(caller.workspace_id, OF_THE_WORKSPACE, self._workspace_rate)
        )

    async def take(self, secret: str, workspace: str = "") -> None:
        """Count a request, or refuse it until its bucket has something again."""
        known = hashed(secret)
        found = (self._senders.get(known), self._shares.get((known, workspace)))
        buckets = [bucket for bucket in found if bucket and bucket.rate]
        for bucket in buckets:
            if bucket.left <= 0:
                await self._draw(bucket)
        for bucket in buckets:
            bucket.left -= 1

    async def _draw(self, bucket: Bucket) -> None:
        wanted = math.ceil(bucket.rate / DRAWS_A_SECOND)
        async with self._db.connection() as conn:
            drawn = await rate_buckets.draw(
                conn, bucket.workspace_id, bucket.key, wanted=wanted, rate=bucket.rate,
                burst=bucket.rate * BURST_SECONDS,
            )  # fmt: skip
        bucket.left += drawn.taken
        if bucket.left <= 0:
            seconds = max(1, math.ceil((1 - drawn.level) / bucket.rate))
            whose = "this workspace" if bucket.key == OF_THE_WORKSPACE else "this token or login"
            raise TooMany(
                f"Too many requests of {whose}: {bucket.rate} a second are taken. Wait {seconds} s.",
                code="rate_limited", retry_after=seconds,
            )  # fmt: skip


class Streams:
    """How many streams and long polls each token, login or run has open in this process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[UUID] = Counter()

    @contextmanager
    def open(self, caller: Caller) -> Iterator[None]:
        holder = caller.token_id or caller.login_id or caller.run_id or caller.user_id
        if self._limit and self._open[holder] >= self._limit:
            raise TooMany(
                f"{self._limit} streams of this token or login are open, which is the limit. Close one first.",
                code="too_many_streams", limit=self._limit, retry_after=STREAM_RETRY_SECONDS,
            )  # fmt: skip
        self._open[holder] += 1
        try:
            yield
        finally:
            self._open[holder] -= 1
            if not self._open[holder]:
                del self._open[holder]


class Limiting:
    """ASGI, before anything else is done with a request."""

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if secret := _counted(scope):
            try:
                await self._limits.take(secret, _workspace(scope["path"]))
            except TooMany as refused:
                return await answer(of_error(refused))(scope, receive, send)
            except PASSING:
                pass  # the database is away: the request finds that out by itself
        return await self._app(scope, receive, send)


def _counted(scope: Scope) -> str | None:
    """The secret that a request is counted by before anything else; None for those that are not."""
    return sender_of(scope) if scope["type"] == "http" and scope["path"].startswith(("/api/", "/w/")) else None


def _workspace(path: str) -> str:
    """As the address names it."""
    match = IN_WORKSPACE.match(path)
    return match[1] if match else ""


def sender_of(scope: Scope) -> str | None:
    """The secret that a request was sent with, unless its sender is never limited."""
    if is_near(scope.get("client")):
        return None
    request = HTTPConnection(scope)  # which reads a header that stands there twice as the routes do
    if secret := bearer_of(request.headers.get("Authorization", "")):
        return None if ATTEMPT_TOKEN.fullmatch(secret) else secret
    return login_of(request) or None


def bearer_of(header: str) -> str:
    """The token of an `Authorization` header, read alike by all who look at it; empty if it brings none."""
    scheme, _, secret = header.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def is_near(client: tuple[str, int] | None) -> bool:
    """Whether a request comes from this machine, and not through a proxy on it, which says whose it is."""
    try:
        return client is None or ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
