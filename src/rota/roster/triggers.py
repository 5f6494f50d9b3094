"""Reads the forms in which triggers are written and keeps an automation's triggers equal to them."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from rota.db import triggers
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model.firing import Timing
from rota.model.ids import new_id
from rota.model.schedule import AtSchedule, Compiled, CronSchedule, EverySchedule, read_schedule

TIMED = frozenset({"cron", "every", "at"})
DEFAULTS: Mapping[str, Any] = {
    "cron": None, "every": None, "time_of_day": None, "at": None, "event": None, "after_automation_id": None,
    "after_on": None, "editor_mode": None, "editor": None, "overlap": None, "starts_at": None, "ends_at": None,
    "max_fires": None, "jitter": None, "enabled": True, "fires": 0,
}  # fmt: skip
DEFINITION = (
    "kind",
    "cron",
    "every",
    "time_of_day",
    "at",
    "timezone",
    "event",
    "after_automation_id",
    "after_on",
)
LIMITS = ("overlap", "starts_at", "ends_at", "max_fires", "jitter", "enabled")


def read(form: Mapping[str, Any], *, timezone: str, now: datetime, field: str) -> dict[str, Any]:
    """One trigger as a row. `form` holds the schedule's keys and the trigger's own limits, of the right type."""
    limits = {name: form[name] for name in LIMITS if form.get(name) is not None}
    schedule = {name: value for name, value in form.items() if name not in (*LIMITS, "id")}
    try:
        compiled = read_schedule(schedule, default_timezone=timezone, now=now)
    except Invalid as refused:
        inner = f".{refused.field}" if refused.field and refused.field != field else ""
        raise Invalid(refused.message, code=refused.code, field=field + inner) from None
    row = {**DEFAULTS, **_columns(compiled, timezone), **limits, "anchor_at": now}
    _check_limits(row, field)
    return row


def _columns(compiled: Compiled, timezone: str) -> dict[str, Any]:
    shown = {
        "kind": compiled.kind,
        "timezone": timezone,
        "editor_mode": compiled.editor_mode,
        "editor": compiled.editor,
    }
    match compiled.schedule:
        case CronSchedule(cron, zone):
            return {**shown, "cron": cron, "timezone": zone}
        case EverySchedule(every=every, time_of_day=time_of_day, timezone=zone):
            return {**shown, "every": every, "time_of_day": time_of_day, "timezone": zone}
        case AtSchedule(at):
            return {**shown, "at": at}


def _check_limits(row: Mapping[str, Any], field: str) -> None:
    starts, ends = row["starts_at"], row["ends_at"]
    if starts and ends and ends <= starts:
        raise Invalid("It would end before it starts.", code="invalid_schedule", field=f"{field}.ends_at")
    if next_fire(row, row["anchor_at"]) is None and row["kind"] in TIMED and row["enabled"]:
        raise Invalid("It would never fire within its limits.", code="never_fires", field=f"{field}.ends_at")


def timing(row: Mapping[str, Any]) -> Timing:
    return Timing(
        row["kind"], row["cron"], row["every"], row["time_of_day"], row["at"], row["timezone"], row["anchor_at"],
        row["starts_at"], row["ends_at"], row["max_fires"], row["fires"],
    )  # fmt: skip


def next_fire(row: Mapping[str, Any], now: datetime) -> datetime | None:
    return timing(row).next_after(now) if row["kind"] in TIMED and row["enabled"] else None


async def save(
    conn: Connection, automation: Mapping[str, Any], rows: Sequence[dict[str, Any]], *, now: datetime
) -> list[dict[str, Any]]:
    """Make these the automation's triggers. One that stays as it was keeps its id, anchor and count of fires."""
    before = await triggers.of_automations(conn, automation["workspace_id"], [automation["id"]])
    active = automation["status"] == "active"
    kept: set[Any] = set()
    for row in rows:
        same = next((each for each in before if each["id"] not in kept and _same(each, row)), None)
        if same:
            kept.add(same["id"])
        else:
            row |= {
                "workspace_id": automation["workspace_id"],
                "automation_id": automation["id"],
                "id": new_id(),
            }
            await triggers.insert(conn, _storable(row) | {"next_fire_at": next_fire(row, now) if active else None})
    await triggers.delete(conn, automation["workspace_id"], [each["id"] for each in before if each["id"] not in kept])
    return await triggers.of_automations(conn, automation["workspace_id"], [automation["id"]])


def _same(stored: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return all(stored[name] == row[name] for name in (*DEFINITION, *LIMITS, "editor_mode", "editor"))


def _storable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "editor": Jsonb(row["editor"]) if row["editor"] is not None else None}


async def resume(conn: Connection, automation: Mapping[str, Any], *, now: datetime) -> None:
    """Count from now, with the anchors kept: what was due meanwhile is not made up for."""
    for row in await triggers.of_automations(conn, automation["workspace_id"], [automation["id"]]):
        await triggers.set_next(conn, automation["workspace_id"], row["id"], next_fire(row, now))


def upcoming(rows: Sequence[Mapping[str, Any]], count: int, now: datetime) -> list[datetime]:
    """The next fires of several triggers together, soonest first."""
    found: list[datetime] = []
    for row in rows:
        instant, left = row["next_fire_at"], count
        while instant and left:
            found.append(instant)
            instant, left = timing(row).next_after(instant), left - 1
    return sorted(each for each in set(found) if each > now - timedelta(minutes=1))[:count]
