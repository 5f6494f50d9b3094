"""The page of one automation: when it runs, what it is told, and what became of every slot."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from rota.db import agents, memory, runs, triggers, workers
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Shared, Unit, Web
from rota.http.shapes.fields import LAST_YEAR, LEAST_YEAR
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui import charts, drafts, words
from rota.http.ui import live as stream
from rota.http.ui.automations import standing
from rota.http.ui.editor import Fire, secrets_page
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.limits import access_and_limits
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import PageRoute, fingerprint, own_url, page, zone_of
from rota.model.budget import SECONDS
from rota.model.caller import Caller
from rota.model.cron import known_zone, load_zone
from rota.model.ids import AutomationId, id_at
from rota.model.run import SkipReason
from rota.roster import automations, views
from rota.roster import triggers as trigger_forms
from rota.roster.triggers import upcoming
from rota.roster.why import Answer, why

HISTORY, FIRES, REMEMBERED = 50, 3, 50
COUNTED, SPENT = 10_000, 2_000  # runs that a picture is drawn of
SPENT_DAYS = 30

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/automations", include_in_schema=False)


@router.get("/{automation}")
async def detail_page(
    unit: InUnit,
    request: Request,
    shared: Shared,
    automation: str,
    view: Literal["table", "calendar"] = "table",
    day: date | None = None,
    at: Annotated[str, Query(max_length=40)] = "",
    cursor: Cursor = None,
    live: Live = None,
    last_event_id: LastEventId = None,
) -> Response:
    found = await automations.find(unit.conn, unit.caller, automation, deleted=True)
    look = partial(
        _detail,
        ref=str(found["id"]),  # its slug is free for another once it is deleted
        view=view,
        day=day,
        asked=at,
        before=read_cursor(cursor),
        zone=zone_of(request, unit.caller),
        url=own_url(request, shared),
        dead_after=shared.settings.timeouts.dead,
    )
    shows = View("automations/detail.html", "automations/_detail_results.html", "automations/_detail.html", look)
    return await stream.shown(unit, request, shared, shows, live, last_event_id)


async def shown_again(unit: Unit, request: Request, shared: Web, ref: str, form: Form) -> Response:
    """The page with a form of it that was refused, as it was filled in."""
    zone, url = zone_of(request, unit.caller), own_url(request, shared)
    facts = await _detail(
        unit.conn, unit.caller, ref=ref, view="table", day=None, asked="", before=None, zone=zone, url=url,
        dead_after=shared.settings.timeouts.dead,
    )  # fmt: skip
    response = await page(unit, request, "automations/detail.html", **facts | {"form": form, "lives": False})
    response.status_code = form.status
    return response


async def _detail(
    conn: Connection,
    caller: Caller,
    *,
    ref: str,
    view: str,
    day: date | None,
    asked: str,
    before: UUID | None,
    zone: str,
    url: str,
    dead_after: timedelta,
) -> dict[str, Any]:
    workspace_id = caller.workspace_id
    found = await automations.find(conn, caller, ref, deleted=True)
    automation_id = AutomationId(found["id"])
    since, until = _bounds(day, zone)
    history = await runs.page(
        conn, workspace_id, before=before or until, limit=HISTORY + 1, since=since, automation_id=automation_id
    )
    older, history = len(history) > HISTORY, history[:HISTORY]
    rows = await triggers.of_automations(conn, workspace_id, [found["id"]])
    [shown] = views.told([found], rows)
    remembered = await memory.page(conn, workspace_id, automation_id, after="", limit=REMEMBERED)
    agent = await agents.find(conn, workspace_id, str(found["agent_id"]))
    hindrance = _hindrance(found, agent)
    limits = await access_and_limits(conn, caller, found, agent)
    served = await workers.served(conn, dead_after=dead_after)
    drawn = await _pictures(conn, caller, found, zone) if view == "calendar" else {}
    return {
        "automation": standing(shown),
        "fires": fires(shown["triggers"], datetime.now(UTC)),
        "sentence": words.policy_sentence(drafts.of(shown).fields, words.overlaps_of(shown)),
        "hindrance": hindrance,
        "limits": limits,
        "agent": agent,
        "served": served,
        "unserved": _unserved(found, agent, served),
        "memory": remembered,
        "form": UNTOUCHED,
        "url": url,
        "runs": history,
        "older": cursor_of(history[-1]["id"]) if older else None,
        "first": before is None,
        "view": view,
        "day": day,
        "asked": asked,
        "answer": await _answer(conn, caller, found, asked, zone) if asked else None,
        "lives": before is None and view == "table" and not asked and day is None,
        "seen": fingerprint(found, history, rows, remembered, hindrance, limits, served),
        **drawn,
    }


def _hindrance(found: Mapping[str, Any], agent: Mapping[str, Any] | None) -> str | None:
    """Why its slots are skipped for now, all of them: as the ledger will give it for each."""
    if found["deleted_at"]:
        return None
    paused = SkipReason.AGENT_PAUSED if agent and agent["status"] == "paused" else None
    return paused or found["grant_problem"]


def _unserved(
    found: Mapping[str, Any], agent: Mapping[str, Any] | None, served: Mapping[str, Collection[str]]
) -> workers.Lacking | None:
    """What of its agent no live worker serves, so that its runs would wait."""
    return workers.lacking(served, agent["executor"], agent["pool"]) if agent and not found["deleted_at"] else None


def _bounds(day: date | None, zone: str) -> tuple[UUID | None, UUID | None]:
    """The ids of what was written on a day of the reader's. A run is written when its slot is due, or later."""
    if day is None or not 1971 <= day.year <= 9000:
        return None, None
    start = datetime.combine(day, time(), load_zone(zone))
    return id_at(start), id_at(datetime.combine(day + timedelta(days=1), time(), load_zone(zone)))


def fires(rows: Sequence[Mapping[str, Any]], now: datetime) -> list[Fire]:
    """The next fires of all triggers together, each on the clock of its own trigger."""
    found = [Fire(at, known_zone(row["timezone"]).key) for row in rows for at in upcoming([row], FIRES, now)]
    return sorted(found)[:FIRES]


async def _pictures(conn: Connection, caller: Caller, found: Mapping[str, Any], zone: str) -> dict[str, Any]:
    """The calendar of half a year, and what a month of runs took."""
    automation_id = AutomationId(found["id"])
    today = datetime.now(load_zone(zone)).date()
    start = datetime.combine(charts.first_day(today), time(), load_zone(zone))
    counts = await runs.by_day(conn, caller.workspace_id, automation_id, since=id_at(start), zone=zone, limit=COUNTED)
    month = [today - timedelta(days=ago) for ago in range(SPENT_DAYS - 1, -1, -1)]
    begin = id_at(datetime.combine(month[0], time(), load_zone(zone)))
    spent = await runs.spent_by_day(conn, caller.workspace_id, automation_id, since=begin, zone=zone, limit=SPENT)
    total = sum(row["count"] for row in counts)
    return {
        "calendar": charts.calendar(counts, today),
        "counted": total if total >= COUNTED else None,
        "spent": [_spent(unit, spent, month) for unit in _units(spent)],
    }


def _units(spent: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is drawn. The ledger's seconds are left out: they are those of runs with a budget alone."""
    found = {row["unit"] for row in spent} - {SECONDS}
    return sorted(found, key=lambda unit: (unit != "run time", unit))[:4]


def _spent(unit: str, spent: Sequence[Mapping[str, Any]], month: Sequence[date]) -> tuple[str, str, charts.Chart]:
    by_day = {row["day"]: row["amount"] for row in spent if row["unit"] == unit}
    total = charts.spent(sum(by_day.values()), unit)
    days = [(day, by_day.get(day, 0.0)) for day in month]
    name = words.unit_named(unit)
    return (
        name,
        total,
        charts.bars(days, unit=charts.told_in(unit), told=f"{name} by day, {total} in {SPENT_DAYS} days"),
    )


async def _answer(conn: Connection, caller: Caller, found: Mapping[str, Any], asked: str, zone: str) -> Answer:
    """Why it did or did not run at a minute of the reader's clock."""
    try:
        moment = datetime.fromisoformat(asked)
        minute = (moment if moment.tzinfo else moment.replace(tzinfo=load_zone(zone))).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid("Give a date and a time, such as 2026-11-15T09:00.", field="at") from None
    if not LEAST_YEAR <= minute.year <= LAST_YEAR:
        raise Invalid(f"Give a time of the years {LEAST_YEAR} to {LAST_YEAR}.", field="at")
    return await why(conn, caller.workspace_id, found, minute.replace(second=0, microsecond=0), caller.timezone)


@router.post("/{automation}/triggers/{trigger_id}/secret")
async def renew_secret(unit: InUnit, request: Request, shared: Shared, automation: str, trigger_id: UUID) -> Response:
    """A new secret for a webhook, shown this once."""
    found = await automations.find(unit.conn, unit.caller, automation, lock=True)
    unit.caller.must_own(found["owner_id"], "renew this secret")
    trigger = await trigger_forms.find(unit.conn, found, trigger_id)
    if trigger["kind"] != "webhook":
        raise Invalid("Only a webhook has a secret.", code="not_a_webhook", field="trigger_id")
    secret = await trigger_forms.new_secret(unit.conn, shared.vault, unit.caller.workspace_id, trigger_id)
    return await secrets_page(unit, request, shared, found, [(f"/hooks/{trigger_id}", secret)])
