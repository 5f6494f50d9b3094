"""The audit log, for admins: who changed what, and who tried to."""

import csv
import io
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, Depends, Query
from starlette.responses import StreamingResponse

from rota.db import audit, isolation
from rota.db.audit import Choice
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.context import InUnit, Shared, Signed, Web
from rota.http.routes import API
from rota.http.shapes.audit import AuditOut
from rota.http.shapes.fields import Instant
from rota.http.shapes.pages import Page, page_of, read_cursor
from rota.model.caller import Caller, Level

router = APIRouter(prefix=API + "/audit", tags=["audit"])

BATCH = 1000
MEDIA = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}
FILE: dict[int | str, dict[str, Any]] = {200: {"content": {"application/jsonl": {}, "text/csv": {}}}}


def _choice(
    user: Annotated[UUID | None, Query(description="Id of who asked")] = None,
    action: Annotated[str | None, Query(max_length=100, examples=["automation.pause"])] = None,
    object_kind: Annotated[str | None, Query(max_length=100, examples=["automation"])] = None,
    object_id: Annotated[str | None, Query(max_length=200)] = None,
    refused: Annotated[bool | None, Query(description="Only what was refused, or only what was done")] = None,
    since: Instant | None = None,
    until: Instant | None = None,
) -> Choice:
    return Choice(user, action, object_kind, object_id, refused, since, until)


Chosen = Annotated[Choice, Depends(_choice)]


@router.get("")
async def list_audit(
    unit: InUnit, chosen: Chosen, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[AuditOut]:
    """Every change of the workspace and every refused one, newest first. For admins."""
    unit.caller.must_be(Level.ADMIN, "read the audit log")
    found = await audit.page(unit.conn, unit.caller.workspace_id, chosen, cursor=read_cursor(cursor), limit=limit + 1)
    return page_of(found, limit, AuditOut)


@router.get("/export", response_class=StreamingResponse, responses=FILE)
async def export_audit(
    caller: Signed,
    shared: Shared,
    chosen: Chosen,
    form: Annotated[Literal["jsonl", "csv"], Query(alias="format")] = "jsonl",
) -> StreamingResponse:
    """The same as a file, newest first, however long: a JSON object a line, or `format=csv`. For admins."""
    caller.must_be(Level.ADMIN, "export the audit log")
    write = _json_lines if form == "jsonl" else _csv
    headers = {"Content-Disposition": f'attachment; filename="audit.{form}"', "Cache-Control": "no-store"}
    return StreamingResponse(_export(shared, caller, chosen, write), media_type=MEDIA[form], headers=headers)


Rows = list[dict[str, Any]]


async def _export(
    shared: Web, caller: Caller, chosen: Choice, write: Callable[[Rows, bool], bytes]
) -> AsyncIterator[bytes]:
    """In pages, so that neither a transaction nor the memory is held for as long as somebody reads."""
    cursor, first = None, True
    while not shared.closing.is_set():
        async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
            found = await audit.page(conn, caller.workspace_id, chosen, cursor=cursor, limit=BATCH)
        yield write([AuditOut.model_validate(each).model_dump(mode="json") for each in found], first)
        if len(found) < BATCH:
            return
        cursor, first = found[-1]["id"], False


def _json_lines(rows: Rows, _: bool) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def _csv(rows: Rows, first: bool) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    if first:
        writer.writerow(AuditOut.model_fields)
    writer.writerows(_cells(row.values()) for row in rows)
    return text.getvalue().encode()


def _cells(values: Iterable[Any]) -> list[str]:
    return [_inert(orjson.dumps(each).decode() if isinstance(each, dict) else str(each or "")) for each in values]


def _inert(cell: str) -> str:
    """A spreadsheet would run a cell that begins so as a formula."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
