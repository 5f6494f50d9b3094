"""Artifacts as people look at them: text and pictures in place, all else to be saved. Never run, never framed."""

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from rota.db import isolation
from rota.errors import NotFound
from rota.http.api.artifacts import GUARDED
from rota.http.context import Keeping, Shared, Signed, Web, unit_of
from rota.http.ui.markdown import markdown
from rota.http.ui.rendering import PageRoute, is_live, page, part
from rota.model.artifact import IMAGES, preview_of
from rota.model.caller import Caller
from rota.model.ids import SessionId, as_uuid
from rota.model.text import plain
from rota.sessions import artifacts
from rota.sessions.artifacts import Depot

SHOWN_BYTES = 100_000

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/sessions", include_in_schema=False)


async def _find(shared: Web, caller: Caller, session: str, artifact: str) -> dict[str, Any]:
    session_id, artifact_id = as_uuid(session), as_uuid(artifact)
    if session_id is None or artifact_id is None:
        raise NotFound("There is no such artifact.")
    async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        return await artifacts.find(conn, caller.workspace_id, SessionId(session_id), artifact_id)


@router.get("/{session}/artifacts/{artifact}")
async def preview(
    request: Request, workspace: str, caller: Signed, shared: Shared, depot: Keeping, session: str, artifact: str
) -> Response:
    """What is in it, as far as it can be shown; in place for htmx."""
    found = await _find(shared, caller, session, artifact)
    kind = preview_of(found)
    said, cut = await _text(depot, caller, found) if kind in {"text", "markdown"} else ("", False)
    facts = {
        "artifact": found,
        "kind": kind,
        "text": said,
        "prose": markdown(said) if kind == "markdown" else None,
        "cut": cut,
        "address": f"/w/{caller.workspace_slug}/sessions/{session}",
    }
    async with unit_of(request, workspace) as unit:
        if is_live(request):
            return part(unit, request, "sessions/_preview.html", **facts)
        return await page(unit, request, "sessions/preview.html", **facts)


async def _text(depot: Depot, caller: Caller, found: dict[str, Any]) -> tuple[str, bool]:
    """The beginning of it, and whether there is more."""
    pieces, size = [], 0
    async for piece in await depot.content(caller.workspace_id, found):
        pieces.append(piece)
        size += len(piece)
        if size > SHOWN_BYTES:
            break
    whole = b"".join(pieces)
    return plain(whole[:SHOWN_BYTES].decode(errors="replace"))[0], len(whole) > SHOWN_BYTES


@router.get("/{session}/artifacts/{artifact}/image")
async def image(caller: Signed, shared: Shared, depot: Keeping, session: str, artifact: str) -> Response:
    """A picture that a page of ours shows. Whatever it holds, no browser takes it for anything else."""
    found = await _find(shared, caller, session, artifact)
    if found["media_type"] not in IMAGES or preview_of(found) != "image":
        raise NotFound("This artifact is no picture that can be shown.")
    headers = {
        **GUARDED,
        "Content-Length": str(found["size"]),
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(found['name'], safe='')}",
        "Cross-Origin-Resource-Policy": "same-origin",
        "ETag": f'"{found["sha256"]}"',
    }
    content = await depot.content(caller.workspace_id, found)
    return StreamingResponse(content, headers=headers, media_type=found["media_type"])
