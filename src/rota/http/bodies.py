"""Refuses a body that is too large, not JSON, too deep, or that PostgreSQL could not store, before anybody reads it."""

from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.errors import Invalid, Refused, TooLarge
from rota.http.errors import answer, of_error

DEEPEST = 64


class BodyGuard:
    """ASGI: reads the whole body, checks it, and hands it on."""

    def __init__(self, app: ASGIApp, *, largest: int) -> None:
        self._app = app
        self._largest = largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS", "DELETE"}:
            return await self._app(scope, receive, send)
        try:
            body = await self._read(receive)
            if body and b"form" not in _content_type(scope):
                check(body)
        except Refused as refused:
            return await answer(of_error(refused))(scope, receive, send)
        return await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes:
        chunks, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._largest:
                raise TooLarge(
                    f"The body is larger than {self._largest} bytes.",
                    code="body_too_large",
                    limit=self._largest,
                )
            if not message.get("more_body"):
                return b"".join(chunks)


def check(body: bytes) -> Any:
    """The body as a value, or why it is refused. A key that stands twice counts with its last value."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(f"The body is not JSON: {error}.", code="not_json") from None
    _walk(value)
    return value


def _walk(value: Any) -> None:
    stack = [(value, 1)]
    while stack:
        current, depth = stack.pop()
        if depth > DEEPEST:
            raise Refused(f"The body is nested deeper than {DEEPEST} levels.", code="too_deep")
        if isinstance(current, str) and "\x00" in current:
            raise Refused("The body holds a NUL character, which cannot be stored.", code="nul_character")
        if isinstance(current, dict):
            stack.extend((each, depth + 1) for pair in current.items() for each in pair)
        elif isinstance(current, list):
            stack.extend((each, depth + 1) for each in current)


def clean_text(value: str, field: str) -> str:
    """Text of a form or a query, which never passes through JSON."""
    if "\x00" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise Invalid("The text holds a character that cannot be stored.", code="nul_character", field=field)
    return value


def _content_type(scope: Scope) -> bytes:
    return next((value.lower() for name, value in scope["headers"] if name == b"content-type"), b"")


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
