"""Refuses requests for a host name that is not this server's.

DNS rebinding: a page of another site has its own name resolve to this machine, and its browser then takes Rota for a
part of that site. Only the `Host` that the browser sends tells this apart. An IP address cannot be rebound, so any
address is let in. A name must be known: `localhost`, where the server listens, its URLs, and ROTA_ALLOWED_HOSTS.
"""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.http.errors import problem
from rota.settings import ANY_HOST, Settings

# A probe may send any name, and the answer tells nothing but whether the server works.
PROBES = frozenset({"/healthz", "/readyz"})
HOST = re.compile(r"(?P<name>[^\s:/@\[\]]+|\[[0-9a-f:.]+\])(:(?P<port>\d{1,5}))?", re.IGNORECASE)
LARGEST_PORT = 65535

Show = Callable[[Request, dict[str, Any]], Awaitable[Response]]


def allowed_hosts(settings: Settings, url: str) -> frozenset[str]:
    """The names this server is reached by: where it listens, its URLs, and what the operator adds."""
    urls = (url, settings.url, settings.kubernetes_url)
    named = [settings.host, *settings.allowed_hosts, *(urlsplit(each).hostname or "" for each in urls)]
    return frozenset(_plain(each) for each in named if each)


class HostGuard:
    """ASGI, before everything else."""

    def __init__(self, app: ASGIApp, *, allowed: Collection[str], show: Show) -> None:
        self._app, self._allowed, self._show = app, frozenset(allowed), show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"} or scope["path"] in PROBES:
            return await self._app(scope, receive, send)
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if given and all(map(self._is_allowed, given)):
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        response = await self._show(Request(scope), _refusal(given[0] if given else ""))
        return await response(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        found = HOST.fullmatch(host)
        if found is None or int(found["port"] or 0) > LARGEST_PORT:
            return False
        name = _plain(found["name"])
        is_local = name == "localhost" or name.endswith(".localhost")
        return is_local or _is_address(name) or name in self._allowed or ANY_HOST in self._allowed


def _plain(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refusal(host: str) -> dict[str, Any]:
    shown = repr(host[:100]) if host else "no host"
    return problem(
        421,
        "host_not_allowed",
        f"This request is for {shown}, which is not a name of this server. If it should be, set ROTA_URL to the public"
        " address of the server, or add the name to ROTA_ALLOWED_HOSTS, and start it again.",
    )
