"""`/mcp`: the API's routes as tools of the Model Context Protocol, for whoever holds a token.

A call is a request to this very application, with the caller's token: what a route checks, counts and writes down, it
does for a tool too. Nothing is kept between requests, so any replica may answer the next.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from rota.errors import Invalid, Refused
from rota.http.attempt_access import may_try
from rota.http.context import Shared, holder_of_token, refuse_foreign_origin
from rota.http.errors import MCP_PATH
from rota.http.limiting import sender_of
from rota.mcp import calling, protocol
from rota.mcp.forms import Form, form_of
from rota.mcp.tools import TOOLS, Tool
from rota.model.caller import Caller

router = APIRouter()

HERE = "http://rota"

Shelf = Mapping[str, tuple[Tool, Form]]


@router.post(MCP_PATH, include_in_schema=False)
async def receive(request: Request, shared: Shared) -> Response:
    """One message, or several of a client that is so old."""
    refuse_foreign_origin(request)
    caller = await holder_of_token(request)
    body = await request.body()
    if not body:
        raise Refused("The body is empty; send a JSON-RPC message.", code="not_json")
    given = orjson.loads(body)
    if not protocol.is_call(given) and (sender := sender_of(request.scope)):
        await shared.limits.take(sender)  # a call is counted by the API
    toolbox = _Toolbox(request, caller, await _shelf(request.app))
    reply = await protocol.answer(given, request.headers, toolbox)
    content = b"" if reply.body is None else orjson.dumps(reply.body)
    return Response(content, reply.status, media_type="application/json" if content else None)


@dataclass(frozen=True, slots=True)
class _Toolbox:
    """The tools in the hands of one caller."""

    request: Request
    caller: Caller
    shelf: "Shelf"

    def listed(self) -> list[dict[str, Any]]:
        """Those that the token has the scope for; with the token of an attempt, those whose routes are open to it."""
        return [_description(tool, form) for tool, form in self.shelf.values() if self._may_try(tool)]

    def _may_try(self, tool: Tool) -> bool:
        if reach := self.caller.reach:
            return may_try(reach, tool.method, tool.path)
        return self.caller.scopes is None or tool.needs in self.caller.scopes

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            asked = calling.request_of(*self.shelf[name], str(self.caller.workspace_id), arguments)
        except Invalid as wrong:
            return calling.invalid(wrong)
        answered = await self._send(asked)
        return calling.result_of(answered.status_code, answered.content)

    async def _send(self, asked: calling.Asked) -> httpx.Response:
        """As if the caller had sent it: from their address, which is counted and written down."""
        address = (sender.host, sender.port) if (sender := self.request.client) else ("127.0.0.1", 0)
        transport = httpx.ASGITransport(self.request.app, raise_app_exceptions=False, client=address)
        headers = {name: self.request.headers[name] for name in ("Authorization", "Host")} | asked.headers
        sent = httpx.Request(
            asked.method, HERE + asked.path, params=asked.query, headers=headers, content=asked.content
        )
        answered = await transport.handle_async_request(sent)
        await answered.aread()
        return answered


async def _shelf(app: FastAPI) -> Shelf:
    """Made once of what the application says of itself, aside: that takes half a second."""
    if not hasattr(app.state, "shelf"):
        document = await asyncio.to_thread(app.openapi)
        app.state.shelf = {tool.name: (tool, form_of(tool, document)) for tool in TOOLS}
    found: Shelf = app.state.shelf
    return found


def _description(tool: Tool, form: Form) -> dict[str, Any]:
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": form.schema(tool.example),
        "annotations": {"title": tool.title, **tool.effect.hints()},
    }
