"""Automations as people read them: the schedule in words, the next fires, the last run. For the API and the pages."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rota.db import triggers
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model.cron import load_zone
from rota.model.describe import day_in_words, describe
from rota.model.ids import WorkspaceId
from rota.roster.triggers import form_of, timing, upcoming

FIRES_SHOWN = 3


async def shown(conn: Connection, workspace_id: WorkspaceId, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each automation with its triggers, in two queries for the whole page."""
    return told(rows, await triggers.of_automations(conn, workspace_id, [row["id"] for row in rows]))


def told(
    rows: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], *, fires: int = FIRES_SHOWN
) -> list[dict[str, Any]]:
    """The same from triggers that are at hand."""
    of: dict[Any, list[Mapping[str, Any]]] = {row["id"]: [] for row in rows}
    for each in found:
        of[each["automation_id"]].append(each)
    return [_automation(row, of[row["id"]], fires) for row in rows]


def _automation(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], fires: int) -> dict[str, Any]:
    told = [_trigger(each) for each in rows]
    due = [each["next_fire_at"] for each in rows if each["next_fire_at"]]
    return {
        **row,
        "status": "deleted" if row["deleted_at"] else row["status"],
        "agent": row["agent_slug"],
        "owner": row["owner_name"],
        "triggers": told,
        "schedule_text": _joined([each["text"] for each in told]) or "Only when run by hand",
        "next_fire_at": min(due, default=None),
        "next_fires": upcoming(rows, fires, datetime.now(UTC)),
    }


def _trigger(row: Mapping[str, Any]) -> dict[str, Any]:
    hook = f"/hooks/{row['id']}" if row["kind"] == "webhook" else None
    try:
        return {**row, "schedule": form_of(row), "text": text_of(row), "hook_path": hook}
    except (Invalid, ValueError):  # parked: its definition can't be read, its error says why
        return {**row, "schedule": None, "text": "Cannot be read", "hook_path": hook}


def text_of(row: Mapping[str, Any]) -> str:
    """When a trigger fires, and within which limits."""
    return _when(row) + _limits(row)


def _when(row: Mapping[str, Any]) -> str:
    match row["kind"]:
        case "webhook":
            return "When its webhook is called"
        case "event":
            return f"On the event “{row['event']}”"
        case "after":
            return f"After “{row['after_name']}” {_either(row['after_on'])}"
        case _:
            return describe(timing(row).schedule())


def _limits(row: Mapping[str, Any]) -> str:
    """What keeps it from firing as often as its words say."""
    zone = load_zone(row["timezone"] or "UTC")
    parts = []
    now = datetime.now(zone)
    if row["starts_at"] and row["starts_at"] > now:
        start = row["starts_at"].astimezone(zone)
        parts.append(f", from {start:%H:%M}" if start.date() == now.date() else f", from {day_in_words(start)}")
    if row["ends_at"]:
        parts.append(f", until {day_in_words(row['ends_at'].astimezone(zone))}")
    if row["max_fires"]:
        times = "once" if row["max_fires"] == 1 else f"{row['max_fires']:,} times"
        parts.append(f", {times}{' (done)' if row['fires'] >= row['max_fires'] else ''}")
    return "".join(parts) + ("" if row["enabled"] else " (switched off)")


def _joined(texts: Sequence[str]) -> str:
    """One sentence: what follows the first begins small."""
    return "; ".join(text if at == 0 else text[0].lower() + text[1:] for at, text in enumerate(texts))


def _either(endings: Sequence[str]) -> str:
    told = {"succeeded": "succeeded", "failed": "failed", "cancelled": "was cancelled", "skipped": "was skipped"}
    return " or ".join(told[each] for each in endings)
