"""The Model Context Protocol: messages in, answers out. Nothing is remembered from one message to the next.

Two eras are spoken. Up to 2025-11-25 a client begins with `initialize`; since 2026-07-28 every request says which
version it is of, and repeats in headers what stands in its body.
"""

import base64
import binascii
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rota import __version__
from rota.mcp.tools import BY_NAME, INSTRUCTIONS

MODERN = ("2026-07-28",)
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26")
VERSIONS = (*MODERN, *LEGACY)
UNSAID = BATCHED = "2025-03-26"  # what a client speaks that does not say so, and the one version that has batches
MOST_AT_ONCE = 50

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022

META = "io.modelcontextprotocol/"
VERSION_HEADER, METHOD_HEADER, NAME_HEADER = "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"
SERVER = {"name": "rota", "title": "Rota", "version": __version__}
CAPABILITIES: dict[str, Any] = {"tools": {}}
TOOLS_KEPT_MS, DISCOVERY_KEPT_MS = 300_000, 3_600_000


class Toolbox(Protocol):
    """What one caller may use."""

    def listed(self) -> list[dict[str, Any]]: ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: Any = None


class Wrong(Exception):
    """A message that cannot be answered as it is; told as a JSON-RPC error."""

    def __init__(self, code: int, message: str, *, status: int = 200, **data: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.status, self.data = code, message, status, data


@dataclass(frozen=True, slots=True)
class Message:
    method: str
    params: dict[str, Any] = field(default_factory=dict)
    id: str | int | None = None  # None for a notification

    @property
    def meta(self) -> dict[str, Any]:
        found = self.params.get("_meta")
        return found if isinstance(found, dict) else {}


def is_call(given: Any) -> bool:
    """Whether this is the call of a tool, which is a request to the API."""
    return isinstance(given, dict) and given.get("method") == "tools/call"


async def answer(given: Any, headers: Mapping[str, str], toolbox: Toolbox) -> Reply:
    """The answer to one POST."""
    if not isinstance(given, list):
        return await _answer_one(given, headers, toolbox)
    if wrong := _batch_is_wrong(given, headers):
        return Reply(400, _error(None, wrong))
    replies = [await _answer_one(each, headers, toolbox) for each in given]
    bodies = [reply.body for reply in replies if reply.body is not None]
    return Reply(200, bodies) if bodies else Reply(202)


def _batch_is_wrong(given: list[Any], headers: Mapping[str, str]) -> Wrong | None:
    if headers.get(VERSION_HEADER, UNSAID) != BATCHED:
        return Wrong(
            INVALID_REQUEST, f"Only version {BATCHED} takes several messages at once; send one for each request."
        )
    if not 0 < len(given) <= MOST_AT_ONCE:
        return Wrong(INVALID_REQUEST, f"Send 1 to {MOST_AT_ONCE} messages at once.")
    if any(isinstance(each, dict) and each.get("method") == "initialize" for each in given):
        return Wrong(INVALID_REQUEST, "Send `initialize` by itself, before anything else.")
    return None


async def _answer_one(given: Any, headers: Mapping[str, str], toolbox: Toolbox) -> Reply:
    try:
        message = _read(given)
        if message is None:
            return Reply(202)
        version = _version(message, headers)
        result = await _result(message, version, toolbox)
    except Wrong as wrong:
        return Reply(wrong.status, _error(_id(given), wrong))
    if version in MODERN:
        result = {"resultType": "complete", **result, "_meta": {f"{META}serverInfo": SERVER}}
    return Reply(200, {"jsonrpc": "2.0", "id": message.id, "result": result})


def _read(given: Any) -> Message | None:
    """None for what wants no answer: a notification, or the response to a request that was never made."""
    if not isinstance(given, dict) or given.get("jsonrpc") != "2.0":
        raise Wrong(INVALID_REQUEST, 'A message is an object with "jsonrpc": "2.0".', status=400)
    method, params = given.get("method"), given.get("params", {})
    if method is None and "id" in given and ("result" in given or "error" in given):
        return None
    if not isinstance(method, str):
        raise Wrong(INVALID_REQUEST, "`method` is missing.", status=400)
    if "id" not in given:
        return None
    if _id(given) is None:
        raise Wrong(INVALID_REQUEST, "`id` is a text or a whole number.", status=400)
    if not isinstance(params, dict):
        raise Wrong(INVALID_PARAMS, "`params` is an object.")
    return Message(method, params, _id(given))


def _id(given: Any) -> str | int | None:
    found = given.get("id") if isinstance(given, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


# ── Versions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _version(message: Message, headers: Mapping[str, str]) -> str:
    """Which version a request is of, by its own words."""
    header, stated = headers.get(VERSION_HEADER), message.meta.get(f"{META}protocolVersion")
    if message.method == "initialize":
        return LEGACY[0]
    version = stated or header or UNSAID
    if stated is not None and stated != header:
        raise _mismatch(VERSION_HEADER, header, stated)
    if version not in VERSIONS:
        raise Wrong(
            UNSUPPORTED_VERSION, f"Version {version!r} is not spoken here; {', '.join(VERSIONS)} are.", status=400,
            supported=VERSIONS, requested=version,
        )  # fmt: skip
    if version in MODERN:
        _check_modern(message, headers)
    return str(version)


def _check_modern(message: Message, headers: Mapping[str, str]) -> None:
    """All that a request of this era must carry."""
    for name, kind in (("protocolVersion", str), ("clientCapabilities", dict)):
        if not isinstance(message.meta.get(META + name), kind):
            raise Wrong(INVALID_PARAMS, f"`params._meta` lacks `{META}{name}`.", status=400)
    if headers.get(METHOD_HEADER) != message.method:
        raise _mismatch(METHOD_HEADER, headers.get(METHOD_HEADER), message.method)
    tool = message.params.get("name")
    if message.method == "tools/call" and isinstance(tool, str) and _plain(headers.get(NAME_HEADER)) != tool:
        raise _mismatch(NAME_HEADER, headers.get(NAME_HEADER), tool)


def _mismatch(header: str, found: str | None, stated: Any) -> Wrong:
    told = "is missing" if found is None else f"is {found[:64]!r}"
    return Wrong(HEADER_MISMATCH, f"The header {header} {told}; the body says {str(stated)[:64]!r}.", status=400)


def _plain(header: str | None) -> str | None:
    """The value of a header, which may be wrapped to carry any character."""
    if header is None or not (header.startswith("=?base64?") and header.endswith("?=")):
        return header
    try:
        return base64.b64decode(header[9:-2], validate=True).decode()
    except (binascii.Error, ValueError):
        return None


# ── Methods ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _result(message: Message, version: str, toolbox: Toolbox) -> dict[str, Any]:
    modern = version in MODERN
    match message.method:
        case "tools/list":
            return _tools(message, toolbox) | (_kept(TOOLS_KEPT_MS, "private") if modern else {})
        case "tools/call":
            return await _call(message, toolbox)
        case "server/discover" if modern:
            said = {"supportedVersions": VERSIONS, "capabilities": CAPABILITIES, "instructions": INSTRUCTIONS}
            return said | _kept(DISCOVERY_KEPT_MS, "public")
        case "initialize" if not modern:
            return _initialize(message)
        case "ping" if not modern:
            return {}
        case _:
            raise Wrong(
                METHOD_NOT_FOUND, f"There is no method {message.method[:64]!r} in {version}; Rota offers tools.",
                status=404 if modern else 200,
            )  # fmt: skip


def _initialize(message: Message) -> dict[str, Any]:
    asked = message.params.get("protocolVersion")
    if not isinstance(asked, str):
        raise Wrong(INVALID_PARAMS, "`protocolVersion` is missing.")
    chosen = asked if asked in LEGACY else LEGACY[0]
    return {
        "protocolVersion": chosen, "capabilities": CAPABILITIES, "serverInfo": SERVER, "instructions": INSTRUCTIONS,
    }  # fmt: skip


def _tools(message: Message, toolbox: Toolbox) -> dict[str, Any]:
    if message.params.get("cursor") is not None:
        raise Wrong(INVALID_PARAMS, "All tools are on one page; leave `cursor` out.")
    return {"tools": toolbox.listed()}


async def _call(message: Message, toolbox: Toolbox) -> dict[str, Any]:
    name, arguments = message.params.get("name"), message.params.get("arguments", {})
    if not isinstance(name, str) or name not in BY_NAME:
        near = difflib.get_close_matches(str(name)[:64], BY_NAME, n=1)
        raise Wrong(
            INVALID_PARAMS, f"There is no tool {str(name)[:64]!r}." + (f" Did you mean {near[0]}?" if near else "")
        )
    if not isinstance(arguments, dict | None):
        raise Wrong(INVALID_PARAMS, "`arguments` is an object.")
    return await toolbox.call(name, arguments or {})


def _kept(milliseconds: int, scope: str) -> dict[str, Any]:
    """How long a client may keep this answer, and whether for others too."""
    return {"ttlMs": milliseconds, "cacheScope": scope}


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _error(message_id: str | int | None, wrong: Wrong) -> dict[str, Any]:
    return error(message_id, wrong.code, wrong.message, wrong.data)


def error(
    message_id: str | int | None, code: int, message: str, data: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    told = {"code": code, "message": message} | ({"data": dict(data)} if data else {})
    return {"jsonrpc": "2.0", "id": message_id, "error": told}


def of_problem(told: Mapping[str, Any]) -> dict[str, Any]:
    """A refusal of the whole request, before its message was read. Beside the protocol's own codes, a code is the
    status."""
    match told:
        case {"code": "not_json", **more} if "field" not in more:
            code = PARSE_ERROR
        case {"status": 400 | 422}:
            code = INVALID_REQUEST
        case {"status": int(status)} if status >= 500:
            code = INTERNAL_ERROR
        case _:
            code = told["status"]
    return error(None, code, told["detail"], told)
