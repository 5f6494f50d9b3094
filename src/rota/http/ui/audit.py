"""The page of the audit log, for admins: every word of a row leads to the rows that share it."""

from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db import audit, grants
from rota.db.audit import Choice
from rota.http.api.audit import Chosen
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Unit
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui.rendering import PageRoute, page
from rota.model.caller import Level
from rota.model.ids import as_uuid

LISTED = 50
NAMES = {"user_id": "user"}

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/settings/audit", include_in_schema=False)


@router.get("")
async def audit_page(unit: InUnit, request: Request, chosen: Chosen, cursor: Cursor = None) -> Response:
    """Changes and refusals, newest first."""
    unit.caller.must_be(Level.ADMIN, "read the audit log")
    before = read_cursor(cursor)
    found = await audit.page(unit.conn, unit.caller.workspace_id, chosen, cursor=before, limit=LISTED + 1)
    older, found = len(found) > LISTED, found[:LISTED]
    given = _given(chosen)
    facts: dict[str, Any] = {
        "entries": found,
        "names": {**_names(found), **await _names_by_id(unit, found)},
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
        "chosen": chosen,
        "kept": urlencode(given),
        "chips": [(_told(name, value, found), urlencode(_without(given, name))) for name, value in given.items()],
        "is_id": lambda ref: as_uuid(ref) is not None,
        "narrowed": lambda **more: urlencode({**given, **more}),
        "export": f"/api/v1/workspaces/{unit.caller.workspace_slug}/audit/export?{urlencode(given)}",
    }
    return await page(unit, request, "settings/audit.html", **facts)


def _names(found: list[dict[str, Any]]) -> dict[str, str]:
    """What things are called, as far as these entries tell: the newest name of each."""
    names: dict[str, str] = {}
    for each in found:
        told = {**(each["before"] or {}), **(each["after"] or {})}
        if name := told.get("name") or told.get("title"):
            names.setdefault(each["object_id"], str(name))
    return names


async def _names_by_id(unit: Unit, found: list[dict[str, Any]]) -> dict[str, str]:
    """What agents and automations are called now, by their ids."""
    ids = {known for each in found if each["object_id"] and (known := as_uuid(each["object_id"]))}
    named = await grants.names(unit.conn, unit.caller.workspace_id, sorted(ids))
    return {str(known): str(each["name"]) for known, each in named.items()}


def _given(chosen: Choice) -> dict[str, str]:
    """What was chosen, as an address says it."""
    said = {NAMES.get(name, name): value for name, value in chosen._asdict().items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in said.items()}


def _without(given: dict[str, str], name: str) -> dict[str, str]:
    return {each: value for each, value in given.items() if each != name}


def _told(name: str, value: str, found: list[dict[str, Any]]) -> str:
    match name:
        case "user":
            return f"by {found[0]['user']}" if found else "by one person"
        case "refused":
            return "refused" if value == "true" else "done"
        case "since" | "until":
            return f"{name} {value[:16]}"
        case _:
            return value
