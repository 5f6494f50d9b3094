"""The list of automations, and what can be done to one from any page. What can be done are plain forms."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from rota.db import agents, runs, triggers
from rota.db import automations as rows
from rota.db.listener import RUNS, TRIGGERS
from rota.db.pool import Connection
from rota.http.api.paging import Cursor, Owner
from rota.http.context import InUnit, Shared, Unit
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui import live as stream
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import Next, PageRoute, choose, done, fingerprint
from rota.http.ui.sections import sections
from rota.http.ui.starters import STARTERS
from rota.http.ui.strip import BARS
from rota.model.caller import Caller
from rota.model.ids import AutomationId, as_uuid
from rota.roster import automations, members, running, views

LISTED, PALETTE = 50, 12
FILTERS = (("active", "Active"), ("paused", "Paused"), ("attention", "Needs attention"), ("deleted", "Deleted"))
RESERVED = {"new", "preview"}  # slugs whose address is a page of its own

Search = Annotated[str, Query(max_length=200)]

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/automations", include_in_schema=False)
finding = APIRouter(route_class=PageRoute, prefix="/w/{workspace}", include_in_schema=False)


@router.get("")
async def list_page(
    unit: InUnit,
    request: Request,
    shared: Shared,
    q: Search = "",
    status: str | None = None,
    cursor: Cursor = None,
    gone: str = "",
    owner: Owner = None,
    live: Live = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Every automation at a glance."""
    chosen, unknown = choose(status, rows.STANDINGS)
    look = partial(
        _list,
        q=" ".join(q.replace("\x00", "").split()),
        status=chosen,
        unknown=unknown,
        owner=owner,
        before=read_cursor(cursor),
        gone=gone,
    )
    view = View("automations/list.html", "automations/_results.html", "automations/_list.html", look)
    return await stream.shown(unit, request, shared, view, live, last_event_id)


async def _list(
    conn: Connection,
    caller: Caller,
    *,
    q: str,
    status: str | None,
    unknown: str = "",
    before: UUID | None,
    gone: str,
    owner: str | None = None,
) -> dict[str, Any]:
    workspace_id = caller.workspace_id
    owner_id = await members.find_owner(conn, caller, owner)
    found = await rows.page(
        conn, workspace_id, before=before, limit=LISTED + 1, standing=status, owner_id=owner_id, search=q
    )
    older, found = len(found) > LISTED, found[:LISTED]
    ids = [each["id"] for each in found]
    outcomes = await rows.outcomes(conn, workspace_id, ids, limit=BARS)
    told = await triggers.of_automations(conn, workspace_id, ids)
    agentless = not found and not await agents.page(conn, workspace_id, before=None, limit=1)
    return {
        "automations": [standing(each) for each in views.told(found, told, fires=0)],
        "outcomes": outcomes,
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
        "lives": before is None,
        "chosen": status,
        "owner": owner,
        "unknown": unknown,
        "q": q,
        "filters": FILTERS,
        "starters": STARTERS,
        "agentless": agentless,
        "gone": await _gone(conn, caller, gone),
        "seen": fingerprint(found, outcomes, older, told, agentless),
    }


async def _gone(conn: Connection, caller: Caller, ref: str) -> Mapping[str, Any] | None:
    """What was just deleted by a plain form, so that the page offers to take it back."""
    found = await rows.find(conn, caller.workspace_id, ref) if as_uuid(ref) else None
    return found if found and found["deleted_at"] else None


def standing(automation: Mapping[str, Any]) -> dict[str, Any]:
    """With one word for how it stands, and the reason if something is wrong."""
    parked = next((each["parked_error"] for each in automation["triggers"] if each["parked_error"]), None)
    stands = "deleted" if automation["deleted_at"] else "parked" if parked else automation["status"]
    return {**automation, "standing": stands, "parked_error": parked, "ref": ref_of(automation)}


def ref_of(automation: Mapping[str, Any]) -> str:
    by_id = automation["deleted_at"] or automation["slug"] in RESERVED
    return str(automation["id"] if by_id else automation["slug"])


@finding.get("/find")
async def find(unit: InUnit, request: Request, q: Search = "") -> Response:
    """Pages of the settings, automations and agents by name, for the palette."""
    root, wanted = f"/w/{unit.caller.workspace_slug}", q.replace("\x00", "").strip()
    found = await rows.names(unit.conn, unit.caller.workspace_id, wanted, limit=PALETTE)
    pages = [(f"Settings: {each.name}", f"settings/{each.path}", "Page") for each in sections(request, unit.caller)]
    named = [each for each in pages if wanted and wanted.lower() in each[0].lower()]
    who = await agents.names(unit.conn, unit.caller.workspace_id, wanted, limit=PALETTE) if wanted else []
    refs = [
        *named,
        *((each["name"], f"automations/{each['id']}", "Automation") for each in found),
        *((each["name"], f"agents/{each['id']}", "Agent") for each in who),
    ]
    told = [{"name": name, "href": f"{root}/{path}", "kind": kind} for name, path, kind in refs]
    return JSONResponse(told, headers={"Cache-Control": "no-store"})


# ── What can be done ─────────────────────────────────────────────────────────────────────────────────────────────


@router.post("/{automation}/run")
async def run(unit: InUnit, request: Request, automation: str, to: Next = "") -> Response:
    """Run it now, also while it is paused."""
    found = await automations.find(unit.conn, unit.caller, automation)
    run_id = await running.run_now(unit.conn, unit.caller, AutomationId(found["id"]))
    unit.wake(RUNS, unit.caller.workspace_id)
    started = await runs.find(unit.conn, unit.caller.workspace_id, run_id)
    assert started
    session = f"/w/{unit.caller.workspace_slug}/sessions/{started['session_id']}"
    return done(request, to or session, f"{found['name']} is on its way.", ("Watch it", session))


Act = Callable[[Connection, Caller, str], Awaitable[AutomationId]]


async def _act(unit: Unit, request: Request, automation: str, to: str, act: Act, told: str) -> Response:
    automation_id = await act(unit.conn, unit.caller, automation)
    unit.wake(TRIGGERS)
    unit.wake(RUNS, unit.caller.workspace_id)  # what waited behind a run that is skipped now goes on
    found = await automations.find(unit.conn, unit.caller, str(automation_id))
    address = f"/w/{unit.caller.workspace_slug}/automations/{ref_of(found)}"
    return done(request, to or address, told.format(name=found["name"]))


@router.post("/{automation}/pause")
async def pause(unit: InUnit, request: Request, automation: str, to: Next = "") -> Response:
    return await _act(unit, request, automation, to, automations.pause, "{name} is paused.")


@router.post("/{automation}/resume")
async def resume(unit: InUnit, request: Request, automation: str, to: Next = "") -> Response:
    return await _act(unit, request, automation, to, automations.resume, "{name} runs again.")


@router.post("/{automation}/restore")
async def restore(unit: InUnit, request: Request, automation: str, to: Next = "") -> Response:
    return await _act(unit, request, automation, to, automations.restore, "{name} is back.")


@router.post("/{automation}/delete")
async def delete(unit: InUnit, request: Request, automation: str) -> Response:
    """Stop it for good, with a way back: in the notice, or on the list for a plain form."""
    found = await automations.find(unit.conn, unit.caller, automation)
    await automations.delete(unit.conn, unit.caller, automation)
    unit.wake(TRIGGERS)
    unit.wake(RUNS, unit.caller.workspace_id)
    root = f"/w/{unit.caller.workspace_slug}/automations"
    undo = ("Undo", f"{root}/{found['id']}/restore")
    return done(request, f"{root}?gone={found['id']}", f"{found['name']} is deleted.", undo=undo)
