"""The pages of automations: the list, and one with its runs. What can be done there are plain forms."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db import agents, runs, triggers
from rota.db import automations as rows
from rota.db.listener import RUNS, TRIGGERS
from rota.db.pool import Connection
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Unit
from rota.http.shapes import cursor_of, read_cursor
from rota.http.ui.rendering import Next, PageRoute, done, fingerprint, is_live, page, part, unchanged
from rota.http.ui.strip import BARS
from rota.http.ui.words import policies
from rota.model.caller import Caller
from rota.model.ids import AutomationId, WorkspaceId
from rota.roster import automations, running, views
from rota.roster.triggers import upcoming

LISTED, HISTORY, FIRES = 50, 50, 3

# Ready to copy where there is nothing yet.
STARTERS: Sequence[Mapping[str, str]] = (
    {
        "name": "Morning digest",
        "prompt": "Summarise what changed since yesterday and what needs me today.",
        "schedule": '{"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}',
        "words": "Weekdays at 09:00",
    },
    {
        "name": "Inbox sorter",
        "prompt": "Label new issues by area, and ask for steps where they are missing.",
        "schedule": '{"every": "15m"}',
        "words": "Every 15 minutes",
    },
    {
        "name": "Friday report",
        "prompt": "Write this week’s report from the runs and commits since Monday.",
        "schedule": '{"mode": "weekly", "weekdays": ["fri"], "time": "16:00"}',
        "words": "Fridays at 16:00",
    },
)

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/automations", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Fire:
    """A slot to come, and the zone its trigger goes by."""

    at: datetime
    zone: str


@router.get("")
async def list_page(unit: InUnit, request: Request, cursor: Cursor = None, seen: str | None = None) -> Response:
    """Every automation at a glance. htmx asks again with what it has `seen`, and mostly there is nothing new."""
    conn, workspace_id = unit.conn, unit.caller.workspace_id
    found = await rows.page(conn, workspace_id, before=read_cursor(cursor), limit=LISTED + 1)
    older, found = len(found) > LISTED, found[:LISTED]
    ids = [each["id"] for each in found]
    outcomes = await rows.outcomes(conn, workspace_id, ids, limit=BARS)
    mark = fingerprint(found, outcomes, older, await triggers.of_automations(conn, workspace_id, ids))
    if is_live(request) and seen == mark:
        return unchanged()
    facts: dict[str, Any] = {
        "automations": [_standing(each) for each in await views.shown(conn, workspace_id, found)],
        "outcomes": outcomes,
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": cursor is None,
        "seen": mark,
    }
    if not found:
        facts |= await _starters(unit, request)
    if is_live(request):
        return part(unit, request, "automations/_list.html", **facts)
    return await page(unit, request, "automations/list.html", **facts)


def _standing(automation: Mapping[str, Any]) -> dict[str, Any]:
    """With one word for how it stands, and the reason if something is wrong."""
    parked = next((each["parked_error"] for each in automation["triggers"] if each["parked_error"]), None)
    standing = "deleted" if automation["deleted_at"] else "parked" if parked else automation["status"]
    ref = automation["id"] if automation["deleted_at"] else automation["slug"]
    return {**automation, "standing": standing, "parked_error": parked, "ref": ref}


async def _starters(unit: Unit, request: Request) -> dict[str, Any]:
    known = await agents.page(unit.conn, unit.caller.workspace_id, before=None, limit=1)
    return {
        "starters": STARTERS,
        "agent": known[0]["slug"] if known else None,
        "api": f"{str(request.base_url).rstrip('/')}/api/v1/workspaces/{unit.caller.workspace_slug}",
    }


@router.get("/{automation}")
async def detail_page(
    unit: InUnit, request: Request, automation: str, cursor: Cursor = None, seen: str | None = None
) -> Response:
    """One automation: when it runs, what it is told, and what became of every slot."""
    conn, workspace_id = unit.conn, unit.caller.workspace_id
    found = await automations.find(conn, unit.caller, automation, deleted=True)
    history = await _history(conn, workspace_id, AutomationId(found["id"]), read_cursor(cursor))
    older, history = len(history) > HISTORY, history[:HISTORY]
    mark = fingerprint(found, history, await triggers.of_automations(conn, workspace_id, [found["id"]]))
    if is_live(request) and seen == mark:
        return unchanged()
    [view] = await views.shown(conn, workspace_id, [found])
    facts: dict[str, Any] = {
        "automation": _standing(view),
        "fires": fires(view["triggers"], datetime.now(UTC)),
        "policies": policies(view),
        "runs": history,
        "older": cursor_of(history[-1]["id"]) if older else None,
        "first": cursor is None,
        "seen": mark,
    }
    if is_live(request):
        return part(unit, request, "automations/_detail.html", **facts)
    return await page(unit, request, "automations/detail.html", **facts)


async def _history(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, before: UUID | None
) -> list[dict[str, Any]]:
    return await runs.page(conn, workspace_id, before=before, limit=HISTORY + 1, automation_id=automation_id)


def fires(rows: Sequence[Mapping[str, Any]], now: datetime) -> list[Fire]:
    """The next fires of all triggers together, each on the clock of its own trigger."""
    found = [Fire(at, row["timezone"]) for row in rows for at in upcoming([row], FIRES, now)]
    return sorted(found, key=lambda each: each.at)[:FIRES]


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
    found = await automations.find(unit.conn, unit.caller, str(automation_id))
    address = f"/w/{unit.caller.workspace_slug}/automations/{found['slug']}"
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
