"""What a schedule would do, before it is saved: its next fires in words and times, and what may surprise."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from rota.db import people, runs, triggers
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model import preview as rules
from rota.model.caller import Caller
from rota.model.describe import describe
from rota.model.ids import AutomationId
from rota.model.preview import Fire, ScheduleWarning
from rota.model.schedule import read_schedule
from rota.roster import automations
from rota.roster.triggers import MOST_TRIGGERS

CROWD = 20
COUNTED = CROWD * MOST_TRIGGERS  # triggers, among which a crowd is always found


class Preview(NamedTuple):
    text: str
    fires: list[Fire]
    warnings: list[ScheduleWarning]


async def preview(
    conn: Connection,
    caller: Caller,
    form: Mapping[str, Any],
    *,
    after: datetime | None,
    count: int,
    automation: str | None = None,
    most_counted: int = COUNTED,
) -> Preview:
    """Preview a schedule. Of triggers that are due at the same time, at most `most_counted` are counted."""
    now = after or await automations.now_of(conn)
    try:
        schedule = read_schedule(form, default_timezone=caller.timezone, now=now).schedule
    except Invalid as refused:
        inner = f".{refused.field}" if refused.field and refused.field != "schedule" else ""
        raise Invalid(refused.message, code=refused.code, field=f"schedule{inner}") from None
    fires = rules.preview(schedule, now, count)
    own = AutomationId((await automations.find(conn, caller, automation))["id"]) if automation else None
    workspace = await people.find_workspace(conn, caller.workspace_slug)
    warnings = rules.warnings(
        schedule,
        now,
        usual_duration=await runs.usual_duration(conn, caller.workspace_id, own) if own else None,
        minimum_interval=workspace["minimum_interval"] if workspace else None,
    )
    return Preview(describe(schedule), fires, [*warnings, *await _crowded(conn, caller, fires, own, most_counted)])


async def _crowded(
    conn: Connection, caller: Caller, fires: list[Fire], own: AutomationId | None, most_counted: int
) -> list[ScheduleWarning]:
    if not fires:
        return []
    minute = fires[0].at.replace(second=0, microsecond=0)
    following = minute + timedelta(minutes=1)
    due = await triggers.due_between(conn, caller.workspace_id, minute, following, but=own, limit=most_counted)
    if due < CROWD:
        return []
    many = f"{due:,} or more" if due == most_counted else due
    message = f"{many} other automations are due in the same minute; another minute would start sooner."
    return [ScheduleWarning("crowded", message)]
