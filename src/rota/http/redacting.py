"""Takes an attempt's secrets out of what it writes by its token, before any route reads it."""

import re
import time
from typing import Any
from urllib.parse import urlencode

import orjson
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.access import credentials
from rota.errors import RotaError
from rota.http.bodies import is_upload
from rota.http.context import Web
from rota.http.errors import answer, of_error
from rota.http.limiting import bearer_of
from rota.model.redaction import NOTHING_SECRET, Redactor

KNOWN_SECONDS = 5.0
MOST_KNOWN = 1000
PREFIX = "rota_run_"
SPEECH = re.compile(r"/api/v1/workspaces/[^/]+/runs/[^/]+/desk/say")
SCOPE = "rota.redactor"


class Redacting:
    """ASGI, inside the body's guard. Requests of people, and those that only read, pass as they are."""

    def __init__(self, app: ASGIApp, *, web: Web) -> None:
        self._app = app
        self._web = web
        self._known: dict[str, tuple[float, Redactor]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _attempt_token(scope)
        if token is None:
            return await self._app(scope, receive, send)
        try:
            redactor = await self._redactor(token)
        except RotaError as refused:
            return await answer(of_error(refused), scope["path"])(scope, receive, send)
        if redactor:
            receive = receive if is_upload(scope) or _is_speech(scope) else _redacting(redactor, receive)
            scope = {**_without(redactor, scope), SCOPE: redactor}
        return await self._app(scope, receive, send)

    async def _redactor(self, token: str) -> Redactor:
        """What an attempt was given hardly changes while it works, and it may write often."""
        until, redactor = self._known.get(token, (0.0, Redactor()))
        if time.monotonic() < until:
            return redactor
        async with self._web.db.connection() as conn:
            redactor = await credentials.redactor_by_token(conn, self._web.vault, token)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[token] = time.monotonic() + KNOWN_SECONDS, redactor
        return redactor


def redactor_of(request: Request) -> Redactor:
    """For the route that reads words as they were sent."""
    found: Redactor = request.scope.get(SCOPE, NOTHING_SECRET)
    return found


def _is_speech(scope: Scope) -> bool:
    return bool(SPEECH.fullmatch(scope["path"]))


def _attempt_token(scope: Scope) -> str | None:
    if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS"}:
        return None
    given: bytes = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    token = bearer_of(given.decode("latin-1"))
    return token if token.startswith(PREFIX) else None


def _without(redactor: Redactor, scope: Scope) -> Scope:
    """Its address and what comes before its body. A query is looked at as its route will read it: any character may be
    escaped there, or none."""
    asked = QueryParams(scope["query_string"]).multi_items()
    query = urlencode([(redactor.text(name), redactor.text(value)) for name, value in asked], safe="[]").encode()
    headers = [
        (name, value if name == b"authorization" else redactor.text(value.decode("latin-1")).encode("latin-1"))
        for name, value in scope["headers"]
    ]
    return {**scope, "path": redactor.text(scope["path"]), "query_string": query, "headers": headers}


def _redacting(redactor: Redactor, receive: Receive) -> Receive:
    """The guard gives the body in one piece, and has made sure that it is JSON or a form."""

    async def redacted() -> Message:
        message = await receive()
        body: bytes = message.get("body", b"")
        return {**message, "body": _clean(redactor, body)} if body else message

    return redacted


def _clean(redactor: Redactor, body: bytes) -> bytes:
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return b""  # a form, which no page takes from an attempt
    return orjson.dumps(redactor.value(value))
