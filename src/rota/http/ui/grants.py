"""The pages of grants: on whose authority agents run, one button that ends it, and one that gives it anew."""

from typing import Any, Literal
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db import grants as rows
from rota.db.listener import RUNS
from rota.errors import NotFound
from rota.http.api.paging import Cursor
from rota.http.context import InUnit
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui.rendering import Next, PageRoute, done, is_live, page, part
from rota.model.caller import Caller
from rota.model.grant_scope import AGENT_RUN, WORKSPACE_READ, agent_of
from rota.model.ids import GrantId, as_uuid
from rota.roster import grants

LISTED = 50
STOPPING = 100  # runs that are listed before a grant is revoked

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/settings/grants", include_in_schema=False)


@router.get("")
async def list_page(
    unit: InUnit, request: Request, shown: Literal["current", "all"] = "current", cursor: Cursor = None
) -> Response:
    """What automations run on now; or every grant there ever was, newest first."""
    before, workspace_id = read_cursor(cursor), unit.caller.workspace_id
    look = rows.of_automations if shown == "current" else rows.page
    found = await look(unit.conn, workspace_id, before=before, limit=LISTED + 1)
    older, found = len(found) > LISTED, found[:LISTED]
    last = found[-1]["automation_id" if shown == "current" else "id"] if older else None
    facts = {
        "grants": await _told(unit.conn, unit.caller, found),
        "shown": shown,
        "older": cursor_of(last) if last else None,
        "first": before is None,
    }
    if is_live(request):
        return part(unit, request, "settings/_grants.html", **facts)
    return await page(unit, request, "settings/grants.html", **facts)


async def _told(conn: Any, caller: Caller, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the names of the agents and the automation that each is for, and whether this reader may end or renew it."""
    agents = {ref for each in found for ref in map(agent_of, each["scopes"]) if ref}
    automations = {each["automation_id"] for each in found if each["automation_id"]}
    named = await rows.names(conn, caller.workspace_id, [*agents, *automations])
    unknown = {"name": None, "owner_id": None}
    return [
        {
            **each,
            "agents": [
                named.get(agent_of(scope), {"name": scope})["name"]
                for scope in each["scopes"]
                if scope.startswith(AGENT_RUN)
            ],
            "reads_workspace": WORKSPACE_READ in each["scopes"],
            "automation_name": named.get(each["automation_id"], unknown)["name"],
            "mine": caller.owns(each["user_id"]),
            "renewable": caller.owns(named.get(each["automation_id"], unknown)["owner_id"]),
        }
        for each in found
    ]


@router.get("/{grant}")
async def grant_page(unit: InUnit, request: Request, grant: str) -> Response:
    """One grant: what it allows, what runs on it, and what it was used for."""
    found = await grants.find(unit.conn, unit.caller, _id(grant))
    [told] = await _told(unit.conn, unit.caller, [found])
    facts = {"grant": told, "uses": await rows.uses(unit.conn, unit.caller.workspace_id, found)}
    if is_live(request):
        return part(unit, request, "settings/_grant.html", **facts)
    return await page(unit, request, "settings/grant.html", **facts)


def _id(ref: str) -> UUID:
    found: UUID | None = as_uuid(ref)
    if found is None:
        raise NotFound("There is no such grant.")
    return found


@router.get("/{grant}/revoke")
async def revoke_page(unit: InUnit, request: Request, grant: str) -> Response:
    """What stops if the grant is revoked, and the button that does it."""
    found = await grants.find(unit.conn, unit.caller, _id(grant))
    unit.caller.must_own(found["user_id"], "revoke this grant")
    [told] = await _told(unit.conn, unit.caller, [found])
    stopping = await rows.live_runs(unit.conn, unit.caller.workspace_id, GrantId(found["id"]), limit=STOPPING)
    uses = await rows.uses(unit.conn, unit.caller.workspace_id, found)
    facts = {"grant": told, "uses": uses, "stopping": stopping, "more": len(stopping) == STOPPING}
    return await page(unit, request, "settings/revoke.html", **facts)


@router.post("/{grant}/revoke")
async def revoke(unit: InUnit, request: Request, grant: str, to: Next = "") -> Response:
    """End it now, with all that runs on it."""
    await grants.revoke(unit.conn, unit.caller, _id(grant))
    unit.wake(RUNS, unit.caller.workspace_id)
    home = f"/w/{unit.caller.workspace_slug}/settings/grants"
    return done(request, to or f"{home}/{grant}", "The grant is revoked. What ran on it is being stopped.")


@router.post("/{grant}/renew")
async def renew(unit: InUnit, request: Request, grant: str, to: Next = "") -> Response:
    """A new one of the reader's own for the automation, in place of this."""
    found = await grants.find(unit.conn, unit.caller, _id(grant))
    if not found["automation_id"]:
        raise NotFound("Only the grant of an automation can be renewed.")
    await grants.renew(unit.conn, unit.caller, str(found["automation_id"]))
    home = f"/w/{unit.caller.workspace_slug}/settings/grants"
    return done(request, to or home, "It runs on a new grant of yours.")
