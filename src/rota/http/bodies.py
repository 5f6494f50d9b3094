"""Refuses a body that is too large, not JSON, too deep, or that PostgreSQL could not store, before anybody reads it."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import orjson
import psycopg
from python_multipart.multipart import parse_options_header
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.errors import Invalid, Refused, TooLarge
from rota.http.errors import MCP_PATH, answer, of_any
from rota.http.receiving import Body, UnauthenticatedBodies
from rota.model.text import LARGEST, SMALLEST
from rota.settings import Settings

DEEPEST = 64
SMALL = 65_536  # bytes that are read before it is known whose they are
AT_ONCE_SECONDS = 0.05  # many clients send the body right after the headers, but not together with them
FORMS = (b"application/x-www-form-urlencoded", b"multipart/form-data")
# Contents of any kind and size, which their routes read in pieces and within limits of their own.
UPLOAD = re.compile(r"/api/v1/workspaces/[^/]+/(sessions/[^/]+/artifacts|runs/[^/]+/desk/(artifact|checkpoint))")
# An export may be sent to its import as it is. Further lines of a long one come as JSON, which says where they belong.
IMPORT = re.compile(r"/api/v1/workspaces/[^/]+/sessions/import")
NDJSON = b"application/x-ndjson"


class BodyGuard:
    """ASGI: reads the whole body, checks it, and hands it on. `sign_in` says whether the caller of a request is known,
    or refuses it; it is asked before a body is read that is large or does not arrive at once."""

    def __init__(self, app: ASGIApp, *, settings: Settings, sign_in: Callable[[Scope], Awaitable[bool]]) -> None:
        self._app = app
        self._sign_in = sign_in
        self._largest = settings.max_body_bytes
        self._pause = settings.body_seconds
        self._unauthenticated = UnauthenticatedBodies(settings.max_unauthenticated_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            _check_address(scope)
        except Refused as refused:
            return await answer(of_any(refused), scope["path"])(scope, receive, send)
        if is_upload(scope):
            with suppress(ClientDisconnect):
                await self._app(scope, Body(receive, self._pause).receive, send)
            return None
        if scope["method"] in {"GET", "HEAD", "OPTIONS"}:
            return await self._app(scope, receive, send)
        return await self._take_in(scope, receive, send)

    async def _take_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(receive, self._pause)
        with self._unauthenticated.counting(body):
            try:
                content = await self._read(scope, body)
                if content and _is_export(scope):
                    scope, content = _as_json(scope, content)
                if content:
                    _check_body(scope, content)
            except ClientDisconnect:
                return None
            except (Refused, psycopg.Error) as refused:
                return await answer(of_any(refused), scope["path"])(scope, receive, send)
            if _needs_sign_in(scope):
                self._unauthenticated.release(body)  # the route signs in before it does anything else
            return await self._app(scope, replay(content, receive), send)

    async def _read(self, scope: Scope, body: Body) -> bytes:
        declared = declared_size(scope)
        self._refuse_larger(declared)
        pieces: list[bytes] = []
        if _needs_sign_in(scope):
            if declared <= SMALL and not _expects_continue(scope):
                with suppress(TimeoutError):
                    async with asyncio.timeout(AT_ONCE_SECONDS):
                        await self._read_on(body, pieces, SMALL)
            if not body.complete and await self._sign_in(scope):
                self._unauthenticated.release(body)
        await self._read_on(body, pieces, self._largest)
        return b"".join(pieces)

    async def _read_on(self, body: Body, pieces: list[bytes], enough: int) -> None:
        """Until the body is complete or larger than `enough`."""
        while not body.complete and body.size <= enough:
            message = await body.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            pieces.append(message.get("body", b""))
            self._refuse_larger(body.size)
            self._unauthenticated.update(body)

    def _refuse_larger(self, size: int) -> None:
        if size > self._largest:
            raise TooLarge(
                f"The body is larger than {self._largest} bytes.", code="body_too_large", limit=self._largest
            )


def _needs_sign_in(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith(("/api/v1/workspaces/", "/w/")) or path == MCP_PATH


def declared_size(scope: Scope) -> int:
    """What `Content-Length` says; 0 without it."""
    value = _header(scope, b"content-length")
    return int(value) if value.isdigit() else 0


def _expects_continue(scope: Scope) -> bool:
    return _header(scope, b"expect").lower() == b"100-continue"


def _check_address(scope: Scope) -> None:
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        raise Refused("The address holds a NUL character, which cannot be stored.", code="nul_character")


def is_upload(scope: Scope) -> bool:
    match = UPLOAD.fullmatch(scope["path"])
    if match is None:
        return False
    return match[2] == "checkpoint" or (scope["method"] == "POST" and "name" in QueryParams(scope["query_string"]))


def _is_export(scope: Scope) -> bool:
    return IMPORT.fullmatch(scope["path"]) is not None and _content_type(scope) == NDJSON


def _as_json(scope: Scope, content: bytes) -> tuple[Scope, bytes]:
    """The request with the lines of an export as the JSON that its route takes."""
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    for number, line in lines:
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise Refused(f"Line {number} is not JSON: {error}.", code="not_json", line=number) from None
    headers = [(name, value) for name, value in scope["headers"] if name not in {b"content-type", b"content-length"}]
    taken = b'{"lines":[' + b",".join(line for _, line in lines) + b"]}"
    described = [(b"content-type", b"application/json"), (b"content-length", str(len(taken)).encode())]
    return {**scope, "headers": [*headers, *described]}, taken


def _check_body(scope: Scope, body: bytes) -> None:
    """The API takes JSON that says so: what another site's page may send unasked is never taken for a request to it."""
    kind = _content_type(scope)
    ours = scope["path"].startswith("/api/") or scope["path"] == MCP_PATH
    if ours and kind != b"application/json" and not kind.endswith(b"+json"):
        raise Refused("Send the body with `Content-Type: application/json`.", code="not_json", field="Content-Type")
    if kind not in FORMS:
        check(body)
    elif parse_options_header(_header(scope, b"content-type"))[1].get(b"charset", b"utf-8").lower() not in {
        b"utf-8",
        b"utf8",
    }:
        # Python knows encodings in which a form can hold what no text can.
        raise Refused("A form is read as UTF-8; send it so.", code="not_utf8", field="Content-Type")


def check(body: bytes) -> Any:
    """The body as a value, or why it is refused. A key that stands twice counts with its last value."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(f"The body is not JSON: {error}.", code="not_json") from None
    if _walk(value):
        _refuse_large_numbers(body)
    return value


def _walk(value: Any) -> bool:
    """Refuse what is too deep or holds NUL; whether a number is so large that it may have been a whole one."""
    stack, large = [(value, 1)], False
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
        elif isinstance(current, float):
            large |= abs(current) >= -SMALLEST
    return large


def _refuse_large_numbers(body: bytes) -> None:
    """orjson turns a whole number of over 64 bits into a nearby float: better refused than changed in silence."""

    def whole(digits: str) -> int:
        if len(digits) > len(str(SMALLEST)) or not SMALLEST <= int(digits) <= LARGEST:
            raise Refused(f"The number {digits[:40]} is too large: it has over 64 bits.", code="number_too_large")
        return int(digits)

    json.loads(body, parse_int=whole)


def clean_text(value: str, field: str) -> str:
    """Text of a form or a query, which never passes through JSON."""
    if "\x00" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise Invalid("The text holds a character that cannot be stored.", code="nul_character", field=field)
    return value


def _content_type(scope: Scope) -> bytes:
    return _header(scope, b"content-type").partition(b";")[0].strip().lower()


def _header(scope: Scope, wanted: bytes) -> bytes:
    given: bytes = next((value for name, value in scope["headers"] if name == wanted), b"")
    return given


def replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
