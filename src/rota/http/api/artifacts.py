"""Artifacts of a session: uploaded and downloaded in pieces, or pointed to by a URI."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import StreamingResponse

from rota.db import artifacts as rows
from rota.db import isolation
from rota.db.listener import session_channel
from rota.db.pool import Connection
from rota.errors import Conflict, Invalid
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.api.repeats import IdempotencyKey
from rota.http.api.sessions import find
from rota.http.bodies import declared_size
from rota.http.context import InUnit, Keeping, Shared, Signed, Web
from rota.http.routes import API
from rota.http.shapes.artifacts import ArtifactIn, ArtifactOut
from rota.http.shapes.pages import Page, page_of, read_cursor
from rota.model.artifact import check_uri, named, served_as
from rota.model.ids import SessionId
from rota.model.session import SessionStatus
from rota.sessions import artifacts, repeats
from rota.sessions.artifacts import Author, Depot

router = APIRouter(prefix=API + "/sessions/{session_id}/artifacts", tags=["artifacts"])

ArtifactName = Annotated[str | None, Query(description="For an upload: what it is called. The body is the content.")]
Hash = Annotated[str | None, Query(description="What the content's hash must be", pattern="^[0-9a-fA-F]{64}$")]
UPLOAD: dict[str, Any] = {
    "requestBody": {
        "content": {
            "application/json": {"schema": ArtifactIn.model_json_schema()},
            "*/*": {"schema": {"type": "string", "format": "binary"}},
        }
    }
}
CONTENT: dict[int | str, dict[str, Any]] = {200: {"content": {"*/*": {}}}}
GUARDED = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-cache",
}


async def take_in(
    request: Request,
    shared: Web,
    depot: Depot,
    author: Author,
    name: str | None,
    sha256: str | None,
    *,
    key: str | None,
) -> ArtifactOut:
    """The body is the content if a name is given, else it says where something outside is."""
    if name is None:
        body = await _read(request)
        uri, called = check_uri(body.uri), named(body.name or "link", body.media_type or "text/uri-list")
        request_of = {"name": called.name, "uri": uri}
        added = await _once(shared, author, key, request_of, lambda conn: artifacts.link(conn, author, called, uri))
    else:
        called = named(name, request.headers.get("Content-Type"))
        async with depot.receive(request.stream(), size=declared_size(request.scope), sha256=sha256) as draft:
            await depot.keep(author.workspace_id, draft)
            request_of = {"name": called.name, "sha256": draft.sha256.hex()}
            added = await _once(
                shared, author, key, request_of, lambda conn: artifacts.add(conn, author, called, draft)
            )
    shared.wakes.send(session_channel(author.session_id))
    return ArtifactOut.model_validate(added)


async def _once(
    shared: Web,
    author: Author,
    key: str | None,
    request: dict[str, Any],
    write: Callable[[Connection], Awaitable[Any]],
) -> Any:
    scope = author.run_id or author.session_id
    async with isolation.in_workspace(shared.db, author.workspace_id) as conn:
        return await repeats.once(conn, author.workspace_id, scope, key, {"artifact": request}, write)


async def _read(request: Request) -> ArtifactIn:
    body = await request.body()
    if not body:
        raise Invalid("Give `?name=` with a body to keep, or JSON with the `uri` of something outside.", field="name")
    try:
        return ArtifactIn.model_validate_json(body)
    except ValidationError as wrong:
        raise RequestValidationError(wrong.errors()) from None


@router.get("")
async def list_artifacts(
    unit: InUnit, session_id: UUID, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[ArtifactOut]:
    """What was left in this session, newest first."""
    await find(unit.conn, unit.caller.workspace_id, session_id)
    found = await rows.page(
        unit.conn, unit.caller.workspace_id, SessionId(session_id), before=read_cursor(cursor), limit=limit + 1
    )
    return page_of(found, limit, ArtifactOut)


@router.post("", status_code=201, openapi_extra=UPLOAD)
async def add_artifact(
    request: Request,
    caller: Signed,
    shared: Shared,
    depot: Keeping,
    session_id: UUID,
    name: ArtifactName = None,
    sha256: Hash = None,
    idempotency_key: IdempotencyKey = None,
) -> ArtifactOut:
    """Keep the body under `?name=report.md`; without a name, the body is JSON with the `uri` of something outside."""
    async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        session = await find(conn, caller.workspace_id, session_id)
    caller.must_own(session["owner_id"], "add artifacts to this session")
    if session["status"] == SessionStatus.ARCHIVED:
        raise Conflict("This session is archived; it can only be read.", code="session_archived")
    repeats.check_key(idempotency_key)
    author = Author(caller.workspace_id, SessionId(session_id))
    return await take_in(request, shared, depot, author, name, sha256, key=idempotency_key)


@router.get("/{artifact_id}/content", response_class=StreamingResponse, responses=CONTENT)
async def get_content(
    caller: Signed, shared: Shared, depot: Keeping, session_id: UUID, artifact_id: UUID
) -> StreamingResponse:
    """The content, as an attachment. 404 if it is kept elsewhere; `uri` says where."""
    async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        found = await artifacts.find(conn, caller.workspace_id, SessionId(session_id), artifact_id)
    content = await depot.content(caller.workspace_id, found)
    headers = {
        **GUARDED,
        "Content-Length": str(found["size"]),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found['name'], safe='')}",
        "ETag": f'"{found["sha256"]}"',
    }
    return StreamingResponse(content, headers=headers, media_type=served_as(found["media_type"]))
