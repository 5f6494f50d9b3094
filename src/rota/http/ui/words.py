"""Facts in the words of a page: statuses, reasons, and times as people tell them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from rota.model.cron import load_zone
from rota.model.duration import format_duration
from rota.model.firing import effective_overlap
from rota.model.reasons import FAILED, SKIPPED

STATUS = {
    "queued": "Queued",
    "running": "Running",
    "awaiting_approval": "Needs approval",
    "succeeded": "Succeeded",
    "failed": "Failed",
    "skipped": "Skipped",
    "cancelled": "Cancelled",
    "active": "Active",
    "paused": "Paused",
    "parked": "Needs attention",
    "deleted": "Deleted",
}
SOURCES = {
    "schedule": "Schedule",
    "run_now": "Run now",
    "webhook": "Webhook",
    "event": "Event",
    "after": "After another",
    "task": "Task",
    "chat": "Chat",
    "retry": "Retry",
}
STARTED_BY = {
    "schedule": "its schedule",
    "run_now": "“Run now”",
    "webhook": "a webhook",
    "event": "an event",
    "after": "another automation",
    "retry": "a retry",
}


@dataclass(frozen=True, slots=True)
class Note:
    """What became of a run, in a sentence. `since` ends it with an instant."""

    text: str
    since: datetime | None = None
    detail: str = ""


def note(run: Mapping[str, Any]) -> Note:
    match run["status"]:
        case "skipped":
            return _skipped(run)
        case "failed" | "cancelled":
            return Note(FAILED.get(run["error_class"], "It failed"), detail=run.get("error_detail") or "")
        case "queued" if run.get("tries") or run.get("rescues"):
            return Note("Waits for another try", detail=run.get("error_detail") or "")
        case "running" | "awaiting_approval" if run.get("cancel_requested_at"):
            return Note("Is being cancelled")
        case _:
            return Note(run["summary"] or "")


def _skipped(run: Mapping[str, Any]) -> Note:
    if run["skip_reason"] != "missed":
        return Note(SKIPPED.get(run["skip_reason"], "Skipped"))
    before = run.get("missed") or {"count": 0, "since": run["slot"]}
    count = before["count"] + 1  # those before it, and its own slot
    return Note(f"Missed: {count} {'slot' if count == 1 else 'slots'} since", instant(before["since"]))


def made_up_for(run: Mapping[str, Any]) -> Note | None:
    """A run that stands for slots which passed before it."""
    missed = run.get("missed")
    if not missed or run["status"] == "skipped":
        return None
    count = missed["count"]
    return Note(f"Makes up for {count} missed {'slot' if count == 1 else 'slots'} since", instant(missed["since"]))


# ── Times ────────────────────────────────────────────────────────────────────────────────────────────────────────


def instant(value: datetime | str) -> datetime:
    """A time as a column or as JSON gives it, in UTC."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.astimezone(UTC)


def stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def ago(value: datetime | str | None, *, now: datetime | None = None) -> Markup:
    """A time relative to now, with the exact instant behind it. rota.js keeps it fresh."""
    if value is None:
        return Markup('<span class="none">–</span>')
    moment = instant(value)
    return _time(moment, "data-ago", relative(moment - (now or datetime.now(UTC)), moment))


def at(value: datetime | str | None, zone: str = "UTC") -> Markup:
    """A time on the clock of a zone."""
    if value is None:
        return Markup('<span class="none">–</span>')
    moment = instant(value)
    return _time(moment, "data-at", clock(moment, zone))


def hms(value: datetime, zone: str = "UTC") -> Markup:
    """The time of day alone."""
    moment = instant(value)
    return _time(moment, "data-at", f"{moment.astimezone(load_zone(zone)):%H:%M:%S}")


def elapsed(run: Mapping[str, Any], *, now: datetime | None = None) -> Markup:
    """How long a run took, or has taken so far."""
    if not run["started_at"]:
        return Markup('<span class="none">–</span>')
    started = instant(run["started_at"])
    if run["finished_at"]:
        return Markup("<span>{}</span>").format(span(instant(run["finished_at"]) - started))
    return _time(started, "data-since", span((now or datetime.now(UTC)) - started))


def _time(moment: datetime, kind: str, text: str) -> Markup:
    form = '<time datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC" ' + kind + ">{}</time>"
    return Markup(form).format(stamp(moment), moment, text)  # noqa: S704 — the form is ours, what it holds is escaped


def relative(distance: timedelta, moment: datetime) -> str:
    """ "in 5 min", "3 h ago", or the day when it is over a week away. rota.js has the same rule."""
    seconds = int(distance.total_seconds())
    size = abs(seconds)
    if size < 2:
        return "now"
    if size >= 7 * 86400:
        return f"{moment:%-d %b %Y}"
    amount = next(
        f"{size // unit} {name}" for unit, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")) if size >= unit
    )
    return f"in {amount}" if seconds > 0 else f"{amount} ago"


def span(length: timedelta) -> str:
    seconds = max(length.total_seconds(), 0.0)
    if seconds < 1:
        return f"{int(seconds * 1000)} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{int(seconds)} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600)} h"


def clock(moment: datetime, zone: str) -> str:
    return f"{moment.astimezone(load_zone(zone)):%a %-d %b, %H:%M}"


def offset(moment: datetime, zone: str) -> str:
    """How far the zone's clock is from UTC at that moment, and its name."""
    shown = f"{moment.astimezone(load_zone(zone)):%z}"
    return zone if zone == "UTC" else f"{shown[:3]}:{shown[3:5]} {zone}"


# ── Policies ─────────────────────────────────────────────────────────────────────────────────────────────────────

OVERLAP = {
    "skip": "Skip while one runs",
    "queue_one": "Queue one",
    "queue_all": "Queue all",
    "allow": "Run side by side",
    "replace": "Replace the one that runs",
}
CATCH_UP = {"one": "Run the latest", "skip": "Only if on time", "all": "Run the last {limit}"}


def policies(automation: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What an automation does when things go otherwise than planned."""
    tries = automation["max_attempts"]
    overlaps = {
        effective_overlap(each["kind"], each["overlap"], automation["overlap"]) for each in automation["triggers"]
    }
    return [
        ("Overlap", " or ".join(OVERLAP[each] for each in sorted(overlaps)) or OVERLAP["queue_one"]),
        ("Missed slots", CATCH_UP[automation["catch_up"]].format(limit=automation["catch_up_limit"])),
        ("Time limit", format_duration(automation["timeout"])),
        ("Tries", "Once" if tries == 1 else f"Up to {tries}"),
        ("Session", "Goes on in one" if automation["session"] == "same" else "A new one each time"),
    ]
