"""The settings lead to their first page."""

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from rota.http.context import InUnit
from rota.http.ui.rendering import PageRoute
from rota.http.ui.sections import HOME, sections

router = APIRouter(route_class=PageRoute, prefix=HOME, include_in_schema=False)


@router.get("")
async def first_section(unit: InUnit, request: Request) -> Response:
    first = sections(request, unit.caller)[0]
    return RedirectResponse(f"/w/{unit.caller.workspace_slug}/settings/{first.path}", 303)
