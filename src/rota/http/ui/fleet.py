"""The page of the fleet: who works, how much waits, and how late runs start."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db import runs, snapshots, workers
from rota.db.pool import Connection
from rota.http.context import InUnit, Shared, Web
from rota.http.ui import charts
from rota.http.ui import live as stream
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import PageRoute, fingerprint, zone_of
from rota.model.caller import Caller
from rota.roster.automations import now_of

SPAN, LEAST_SPAN, BUCKET = timedelta(hours=24), timedelta(hours=1), timedelta(minutes=10)
UNSEEN = ("last_seen_at", "runs")  # of a live worker: they change with every heartbeat
LATEST, MOST_WAITING = 20, 10_000  # runs of each stretch whose lateness is looked at; runs that wait and are counted

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/fleet", include_in_schema=False)


@router.get("")
async def fleet_page(
    unit: InUnit, request: Request, shared: Shared, live: Live = None, last_event_id: LastEventId = None
) -> Response:
    look = partial(_fleet, shared=shared, zone=zone_of(request, unit.caller))
    view = View("fleet/fleet.html", "fleet/_fleet.html", "fleet/_fleet.html", look)
    return await stream.shown(unit, request, shared, view, live, last_event_id)


async def _fleet(conn: Connection, caller: Caller, *, shared: Web, zone: str) -> dict[str, Any]:
    now = await now_of(conn)
    start = now - SPAN
    members = await workers.all_of(conn, caller.workspace_id, dead_after=shared.settings.timeouts.dead)
    history = await snapshots.over_time(conn, start=start, bucket=BUCKET)
    late = await runs.lateness(conn, caller.workspace_id, start=start, end=now, bucket=BUCKET, limit=LATEST)
    waiting = await runs.waiting(conn, caller.workspace_id, limit=MOST_WAITING)
    up = [each for each in members if each["status"] != "dead"]
    return {
        "workers": members,
        "up": len(up),
        "capacity": sum(each["places"] for each in up),
        "busy": sum(each["busy"] for each in up),
        "waiting": waiting,
        "latest": late[-1] if late else None,
        "figure": charts.figure,
        "charts": _drawn(history, late, _first(history, late, start, now), now, zone),
        "lives": True,
        "seen": fingerprint(_told(members), history, late, waiting),
    }


def _first(
    history: Sequence[Mapping[str, Any]], late: Sequence[Mapping[str, Any]], start: datetime, now: datetime
) -> datetime:
    """Where the charts begin: with the first sample, but an hour ago at the latest."""
    begun = min((row["at"] for row in (*history[:1], *late[:1])), default=now)
    return max(start, min(begun, now - LEAST_SPAN))


def _told(members: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As the page shows them: what it does not show is no reason to send it anew."""
    return [
        {name: value for name, value in each.items() if each["status"] == "dead" or name not in UNSEEN}
        for each in members
    ]


def _drawn(
    history: Sequence[Mapping[str, Any]], late: Sequence[Mapping[str, Any]], start: datetime, now: datetime, zone: str
) -> list[dict[str, Any]]:
    def over(name: str, rows: Sequence[Mapping[str, Any]]) -> list[tuple[datetime, float | None]]:
        return [(row["at"], row[name]) for row in rows]

    draw = partial(charts.lines, start=start, end=now, zone=zone)
    return [
        {
            "title": "Queue depth", "tone": "queued-tone", "keys": [("", "Waiting"), ("second", "Running")],
            "chart": draw({"line": over("queued", history), "line second": over("running", history)}, unit="",
                          told="Runs that wait and runs at work"),
        },
        {
            "title": "Start delay", "tone": "late-tone", "keys": [("", "p95"), ("second", "Median")],
            "chart": draw({"line": over("most", late), "line second": over("median", late)}, unit="s",
                          told="Time from slot to start"),
        },
        {
            "title": "CPU", "tone": "load-tone", "keys": [("", "CPU in use")],
            "chart": draw({"line": over("cpu_percent", history)}, unit="%", told="CPU in use"),
        },
        {
            "title": "Workers", "tone": "workers-tone", "keys": [("", "Workers alive")],
            "chart": draw({"line": over("workers", history)}, unit="", told="Workers alive"),
        },
    ]  # fmt: skip
