"""Where a route stands within a workspace: by this the audit log names what it does, and a token's scope is chosen.
And what it takes: a filter that is spelled wrong must not give everything."""

from collections import Counter
from collections.abc import Iterator

import orjson
from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from rota.errors import Invalid

WRITING = ("DELETE", "PATCH", "POST", "PUT")
API, PAGES = "/api/v1/workspaces/{workspace}", "/w/{workspace}"
ROOTS = (API, PAGES)


def within_workspace(request: Request) -> str:
    """`/automations/{automation}/pause`, of the API and of the pages alike, those of the settings too."""
    path = str(request.scope["route"].path)
    for root in ROOTS:
        path = path.removeprefix(root)
    return path.removeprefix("/settings")


def refuse_unknown_parameters(request: Request) -> None:
    """Of the API: what stands behind the `?` is known to the route, and stands there once."""
    if not request.query_params or not request.url.path.startswith("/api/"):
        return
    known = sorted({*_parameters(request.scope["route"].dependant)})
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        shown = name[:64]
        if name not in known:
            takes = f"this address takes {', '.join(known)}" if known else "this address takes none"
            raise Invalid(f"There is no parameter {shown!r}; {takes}.", field=shown)
        if count > 1:
            raise Invalid(f"The parameter {shown!r} stands there {count} times; give it once.", field=shown)


async def refuse_unknown_body(request: Request) -> None:
    """Of the API: a route that takes no body is sent none. Who writes `{"until": …}` there means something by it."""
    route = request.scope["route"]
    if request.method not in WRITING or not request.url.path.startswith("/api/") or _takes_body(route):
        return
    body = await request.body()
    given = orjson.loads(body) if body else None
    if given:
        named = str(next(iter(given)))[:64] if isinstance(given, dict) else None
        raise Invalid("This address takes no body; leave it out.", field=named)


def _takes_body(route: APIRoute) -> bool:
    """As FastAPI reads it, or as the route does by itself, which it then describes."""
    return bool(route.dependant.body_params) or "requestBody" in (route.openapi_extra or {})


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (each.alias for each in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameters(inner)
