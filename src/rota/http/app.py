"""The web application: the API, the pages and the health checks behind one set of guards."""

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from rota.http import api, health, hooks, mcp, ui
from rota.http.again import TryingAgain
from rota.http.bodies import BodyGuard
from rota.http.context import Web
from rota.http.description import describe
from rota.http.errors import MCP_PATH, answer, install
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
    app.add_middleware(BodyGuard, largest=web.settings.max_body_bytes)
    app.add_middleware(Limiting, limits=web.limits)
    app.include_router(health.router)
    app.include_router(hooks.router)
    app.include_router(api.router)
    app.include_router(mcp.router)
    ui.install(app)
    install(app, _shown)
    _put_routes_together(app)
    describe(app)
    return app


def _put_routes_together(app: FastAPI) -> None:
    """FastAPI does so when it first looks for a route, which would make the first visitor wait a fifth of a second."""
    nowhere = {"type": "http", "method": "GET", "path": "/-", "root_path": "", "headers": [], "app": app}
    for route in app.router.routes:
        route.matches(nowhere)


async def _shown(request: Request, told: dict[str, Any]) -> Response:
    """Programs get problem+json, or an error of their protocol; a person gets a page."""
    path = request.url.path
    for_programs = path.startswith(("/api/", "/hooks/")) or path == MCP_PATH
    wants_page = not for_programs and "text/html" in request.headers.get("Accept", "")
    return await ui.problem_page(request, told) if wants_page else answer(told, path)
