"""The web application: the API, the pages and the health checks behind one set of guards."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rota.http import api, health, hooks, mcp, ui
from rota.http.admitting import Admitting
from rota.http.again import TryingAgain
from rota.http.bodies import BodyGuard
from rota.http.context import Web, sign_in_early
from rota.http.description import describe
from rota.http.errors import MCP_PATH, answer, install
from rota.http.heads import Heads
from rota.http.hosts import HostGuard, allowed_hosts
from rota.http.limiting import Limiting
from rota.http.redacting import Redacting
from rota.sessions.artifacts import Depot
from rota.sessions.messages import Post


def create_app(web: Web) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url="/api/openapi.json")
    app.state.web = web
    app.state.post = Post(web.db, web.wakes)
    settings = web.settings
    app.state.depot = Depot(web.db, settings.home, settings.artifacts_url, largest=settings.max_artifact_bytes)
    app.add_middleware(TryingAgain)
    app.add_middleware(Redacting, web=web)
    app.add_middleware(BodyGuard, settings=settings, sign_in=sign_in_early)
    app.add_middleware(Admitting, pool_size=settings.pool_size)
    app.add_middleware(Limiting, limits=web.limits)
    app.add_middleware(Heads)
    app.add_middleware(HostGuard, allowed=allowed_hosts(settings, web.url), show=_shown)
    app.state.sections = ui.SECTIONS
    app.router.routes.extend(_routes())
    install(app, _shown)
    describe(app)
    return app


def _routes() -> Iterator[BaseRoute]:
    """Each as its router made it: including a router in another makes all of its routes anew, which is a third of the
    time that a start takes, and has every request ask one router after the other."""
    for each in (health.router, hooks.router, *api.ROUTERS, mcp.router, *ui.PAGES):
        yield from each.routes


async def _shown(request: Request, told: dict[str, Any]) -> Response:
    """Programs get problem+json, or an error of their protocol; a person gets a page."""
    path = request.url.path
    for_programs = path.startswith(("/api/", "/hooks/")) or path == MCP_PATH
    wants_page = not for_programs and "text/html" in request.headers.get("Accept", "")
    return await ui.problem_page(request, told) if wants_page else answer(told, path)
