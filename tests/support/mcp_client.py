"""A client of the Model Context Protocol for tests, down on the wire."""

from itertools import count
from typing import Any

from httpx import AsyncClient, Response

from rota.mcp.protocol import LEGACY, META, METHOD_HEADER, MODERN, NAME_HEADER, VERSION_HEADER

CAPABILITIES: dict[str, Any] = {f"{META}clientCapabilities": {}}


class Wire:
    """One caller's way to `/mcp`, of either era."""

    def __init__(self, client: AsyncClient, token: str, *, version: str = LEGACY[0]) -> None:
        self.client, self.token, self.version = client, token, version
        self._numbers = count(1)

    async def post(self, json: Any = None, **options: Any) -> Response:
        """Whatever is given, with what every request has."""
        common = {"Authorization": f"Bearer {self.token}", VERSION_HEADER: self.version}
        headers = {name: value for name, value in {**common, **options.pop("headers", {})}.items() if value is not None}
        given = {"json": json} if json is not None else {}
        return await self.client.post("/mcp", headers=headers, **given, **options)

    async def send(self, method: str, **params: Any) -> Response:
        headers = {}
        if self.version in MODERN:
            params["_meta"] = {f"{META}protocolVersion": self.version, **CAPABILITIES}
            headers = {METHOD_HEADER: method} | ({NAME_HEADER: params["name"]} if "name" in params else {})
        message = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}
        return await self.post(message, headers=headers)

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        answer = await self.send(method, **params)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        result: dict[str, Any] = answer.json()["result"]
        return result

    async def tools(self) -> dict[str, dict[str, Any]]:
        return {tool["name"]: tool for tool in (await self.result("tools/list"))["tools"]}

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        return await self.result("tools/call", name=tool, arguments=arguments)

    async def assert_done(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """What a tool gives, when it does what it was asked."""
        result = await self.call(tool, **arguments)
        assert result["isError"] is False, result
        given: dict[str, Any] = result["structuredContent"]
        return given

    async def assert_refused(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The problem that a tool tells, with its words under `text`."""
        result = await self.call(tool, **arguments)
        assert result["isError"] is True, result
        [said] = result["content"]
        return {**result["structuredContent"], "text": said["text"]}


def assert_protocol_error(answer: Response, status: int, code: int) -> dict[str, Any]:
    """The error that a whole request was refused with."""
    assert answer.headers["content-type"] == "application/json"
    told: dict[str, Any] = answer.json()
    assert told["jsonrpc"] == "2.0"
    assert (answer.status_code, told["error"]["code"]) == (status, code), told
    assert told["error"]["message"]
    return {"id": told["id"], **told["error"]}
