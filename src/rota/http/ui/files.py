"""Serves the static files: forever under an address with their version, and to be asked for again under any other."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.errors import NotFound
from rota.http.ui.assets import assets
from rota.http.ui.rendering import PageRoute

FOREVER = "public, max-age=31536000, immutable"

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/static/{name:path}")
async def static(request: Request, name: str, v: str = "") -> Response:
    found = assets().get(name)
    if not found:
        raise NotFound("There is no such file.")
    # Another replica may be a version ahead or behind: what it asked for must not be kept under the wrong name.
    headers = {"Cache-Control": FOREVER if v == found.version else "no-cache", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return Response(found.body, media_type=found.media_type, headers=headers)
    return Response(found.zipped, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})
