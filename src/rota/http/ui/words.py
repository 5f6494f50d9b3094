"""Facts in the words of a page: statuses, reasons, and times as people tell them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

from markupsafe import Markup

from rota.db.workers import lacking
from rota.model.cron import load_zone
from rota.model.firing import QUEUEING_KINDS, effective_overlap
from rota.model.reasons import FAILED, SKIPPED
from rota.model.task import TOO_DEEP, TOO_MANY_OF_RUN

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
# As people see a task. `asking` is one that runs and waits for an answer.
TASK_WORDS = {
    "asking": "Waiting for approval",
    "running": "Running",
    "ready": "Ready",
    "pending": "Waiting",
    "done": "Done",
    "failed": "Failed",
    "skipped": "Skipped",
}
TASK_PILLS = {
    "asking": "awaiting_approval",
    "running": "running",
    "ready": "queued",
    "pending": "queued",
    "done": "succeeded",
    "failed": "failed",
    "skipped": "skipped",
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

AGENT_KINDS = {
    "command": "Program",
    "python": "Python function",
    "http": "Web service",
    "acp": "Coding agent",
    "llm": "Language model",
    "langgraph": "Graph",
    "kubernetes": "Container",
}
SANDBOXES = {
    "guard": "Guard: it cannot see Rota's files, keys and processes",
    "user": "Separate user: it cannot read Rota's files; it can see other processes",
    "none": "None: it can read what Rota's user can read, including Rota's keys",
    "off": "Turned off: it can read what Rota's user can read, including Rota's keys",
}
SESSION_KINDS = {"interactive": "Chats", "background": "Background", "automation": "Automations"}
SESSIONS = {
    "active": "Active",
    "paused": "Paused",
    "draft": "Draft",
    "done": "Done",
    "failed": "Failed",
    "archived": "Archived",
}
SESSION_PILLS = {
    "active": "active",
    "paused": "paused",
    "draft": "queued",
    "done": "succeeded",
    "failed": "failed",
    "archived": "skipped",
}

VERBS = {
    "enable": "Start",
    "pause": "Pause",
    "resume": "Resume",
    "complete": "Complete",
    "fail": "Give up",
    "archive": "Archive",
}
HUES = 8


def hue(name: str) -> int:
    """The colour of a role, which is the same wherever it speaks."""
    return crc32(name.encode()) % HUES


def size_of(count: int) -> str:
    """Bytes as people count them."""
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.1f} GB"


def unit_named(unit: str, currency: str = "") -> str:
    """What was spent, as a heading; of money also which, where it is known."""
    unit, _, other = unit.partition(" ") if unit.startswith("money ") else (unit, "", "")
    currency = other or currency
    return f"{unit.capitalize()}, {currency}" if unit == "money" and currency else unit.capitalize()


APPROVALS = {
    "pending": "Waiting",
    "approved": "Approved",
    "refused": "Refused",
    "expired": "Expired",
    "cancelled": "Withdrawn",
}


def answered(approval: Mapping[str, Any]) -> str:
    """What became of a question, in a sentence."""
    text = f": {approval['text']}" if approval["text"] else ""
    match approval["status"]:
        case "approved" | "refused" as status:
            label = next((each["label"] for each in approval["options"] if each["id"] == approval["option_id"]), "")
            by = approval["answered_by_name"] or "a pre-approval"
            return f"{APPROVALS[status]} by {by}, “{label}”{text}"
        case "expired":
            return "Nobody answered in time."
        case "cancelled":
            return "Its run ended before anybody answered."
        case _:
            return "Waiting for an answer."


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
            return Note("Waiting to retry", detail=run.get("error_detail") or "")
        case "running" | "awaiting_approval" if run.get("cancel_requested_at"):
            return Note("Cancelling")
        case "awaiting_approval":
            return Note("Waiting for approval")
        case _:
            return Note(run["summary"] or "")


def waits_for(run: Mapping[str, Any], served: Mapping[str, Collection[str]] | None) -> tuple[str, str]:
    """What a queued run waits for, and what of it no live worker serves. `served` is None where it is not known."""
    if run["ready_at"] is None:
        return "Waiting for the previous run", ""
    lacks = lacking(served, run["executor"], run["pool"]) if served is not None else None
    match lacks:
        case "worker":
            return "Waiting: no worker is running", lacks
        case "kind":
            return f"Waiting: no worker runs agents of the kind “{run['executor']}”", lacks
        case "pool":
            return f"Waiting: no worker of the pool “{run['pool']}” runs agents of the kind “{run['executor']}”", lacks
    again = run.get("tries") or run.get("rescues")
    return "Waiting to retry" if again else "Waiting for a worker", ""


def tries_again_at(run: Mapping[str, Any], *, now: datetime | None = None) -> datetime | None:
    """When a run that goes back to the queue may be claimed again, if that is still to come."""
    ready_at: datetime | None = run["ready_at"]
    again = run["tries"] or run["rescues"]
    return ready_at if again and ready_at and ready_at > (now or datetime.now(UTC)) else None


def _skipped(run: Mapping[str, Any]) -> Note:
    before = run.get("missed") or {"count": 0, "since": run["slot"]}
    if run["skip_reason"] == "missed":  # those before it, and its own slot
        return Note(f"Missed: {_slots(before['count'] + 1)} since", instant(before["since"]))
    text = SKIPPED.get(run["skip_reason"], "Skipped")
    if not before["count"]:
        return Note(text)
    return Note(f"{text}; missed {_slots(before['count'])} since", instant(before["since"]))


def hindered(reason: str) -> str:
    """What all slots of an automation come to, for now."""
    return f"Every slot is skipped: {SKIPPED[reason].removeprefix('Skipped: ')}."


def _slots(count: int, how: str = "") -> str:
    return f"{count} {how}{'slot' if count == 1 else 'slots'}"


def made_up_for(run: Mapping[str, Any]) -> Note | None:
    """A run that stands for slots which passed before it."""
    missed = run.get("missed")
    if not missed or run["status"] == "skipped":
        return None
    return Note(f"Makes up for {_slots(missed['count'], 'missed ')} since", instant(missed["since"]))


# ── Times ────────────────────────────────────────────────────────────────────────────────────────────────────────


def instant(value: datetime | str) -> datetime:
    """A time as a column or as JSON gives it, in UTC."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.astimezone(UTC)


def stamp(moment: datetime) -> str:
    """An instant of UTC to the second."""
    return f"{moment.isoformat()[:19]}Z"


def ago(value: datetime | str | None, zone: str = "UTC", *, now: datetime | None = None) -> Markup:
    """A time relative to now, with the exact instant behind it. rota.js keeps it fresh."""
    if value is None:
        return Markup('<span class="none">–</span>')
    moment = instant(value)
    return _time(moment, "data-ago", relative(moment, now or datetime.now(UTC), zone))


def away(value: datetime) -> Markup:
    """How far off a time is, beside which the time itself stands: in days where it is over a week."""
    moment, now = instant(value), datetime.now(UTC)
    days = int((moment - now).total_seconds() // 86400)
    return _time(moment, "", f"in {days} days") if days >= 7 else ago(moment, now=now)


def due(moment: datetime) -> Markup:
    """A time to come, relative to now: once it has, it is now."""
    return _time(instant(moment), "data-due", relative(moment, datetime.now(UTC), "UTC"))


def at(value: datetime | str | None, zone: str = "UTC", *, seconds: bool = False) -> Markup:
    """A time on the clock of a zone, to the minute or to the second."""
    if value is None:
        return Markup('<span class="none">–</span>')
    moment = instant(value)
    kind = "second" if seconds else "day"  # how a first visit from another zone rewrites it
    return _time(moment, f'data-at="{kind}"', clock(moment, zone, seconds=seconds))


def at_place(value: datetime, zone: str) -> Markup:
    """The same on the clock of a place that is not the reader's, whose zone stands beside it."""
    moment = instant(value)
    return _time(moment, "", clock(moment, zone))


def hms(value: datetime, zone: str = "UTC") -> Markup:
    """The time of day alone."""
    moment = instant(value)
    return _time(moment, 'data-at="second"', f"{moment.astimezone(load_zone(zone)):%H:%M:%S}")


def elapsed(run: Mapping[str, Any], *, now: datetime | None = None) -> Markup:
    """How long a run took, or has taken so far."""
    if not run["started_at"]:
        return Markup('<span class="none">–</span>')
    started = instant(run["started_at"])
    if run["finished_at"]:
        return Markup("<span>{}</span>").format(span(instant(run["finished_at"]) - started))
    return _time(started, "data-since", span((now or datetime.now(UTC)) - started))


def _time(moment: datetime, kind: str, text: str) -> Markup:
    """All of it is ours and made of numbers, so nothing needs to be escaped: a list has hundreds of these."""
    iso = stamp(moment)
    return Markup(f'<time datetime="{iso}" title="{iso[:10]} {iso[11:19]} UTC" {kind}>{text}</time>')  # nosec B704 # noqa: S704


def relative(moment: datetime, now: datetime, zone: str) -> str:
    """ "in 5 min", "3 h ago", or when it is on the clock if that is over a week away. rota.js has the same rule."""
    seconds = int((moment - now).total_seconds())
    size = abs(seconds)
    if size < 2:
        return "now"
    if size >= 7 * 86400:
        return clock(moment, zone, now)
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


def clock(moment: datetime, zone: str, now: datetime | None = None, *, seconds: bool = False) -> str:
    """With the year unless it is this one. rota.js has the same rule."""
    local = moment.astimezone(load_zone(zone))
    this_year = local.year == (now or datetime.now(UTC)).astimezone(local.tzinfo).year
    time = f"{local:%H:%M:%S}" if seconds else f"{local:%H:%M}"
    return f"{local:%a %-d %b}, {time}" if this_year else f"{local:%a %-d %b %Y}, {time}"


def offset(moment: datetime, zone: str) -> str:
    """How far the zone's clock is from UTC at that moment, and its name."""
    return zone if zone == "UTC" else f"{utc_offset(moment, zone)} {zone}"


def utc_offset(moment: datetime, zone: str) -> str:
    shown = f"{moment.astimezone(load_zone(zone)):%z}"
    return f"{shown[:3]}:{shown[3:5]}"


def both_clocks(moment: datetime, zone: str, reader: str) -> str:
    """`09:00 Los Angeles = 18:00 Berlin`: an instant in its own zone and in the reader's; "" if both clocks agree."""
    there, here = moment.astimezone(load_zone(zone)), moment.astimezone(load_zone(reader))
    if there.utcoffset() == here.utcoffset():
        return ""
    days = (here.date() - there.date()).days
    other_day = f" ({'next' if days > 0 else 'previous'} day)" if days else ""
    return f"{there:%H:%M} {_place(zone)} = {here:%H:%M} {_place(reader)}{other_day}"


def _place(zone: str) -> str:
    return zone.rpartition("/")[2].replace("_", " ")


# ── Policies ─────────────────────────────────────────────────────────────────────────────────────────────────────

OVERLAP = {
    "skip": "A {what} that comes while a run is still going is skipped, and the history says so.",
    "queue_one": "A {what} that comes while a run is still going waits, one at most.",
    "queue_all": "A {what} that comes while a run is still going waits for its turn.",
    "allow": "Runs may go side by side.",
    "replace": "A {what} that comes while a run is still going stops that run and takes its place.",
}
CATCH_UP = {
    "one": "After an outage the latest missed slot is made up for, once.",
    "skip": "After an outage nothing is made up for: a slot over {late_after} late is recorded as missed.",
    "all": "After an outage the last {catch_up_limit} missed slots are made up for, oldest first.",
}


REFUSED_TASKS = {
    TOO_DEEP: "too deep below the first task",
    TOO_MANY_OF_RUN: "more than one run may add",
}


def lost_run(run: Mapping[str, Any]) -> str:
    """What became of a run whose worker is dead."""
    since = run["since"]
    if since is None:
        return "deleted since"
    ended = since["status"] not in {"queued", "running", "awaiting_approval"}
    if ended:
        return STATUS[since["status"]].lower()
    if since["status"] == "queued":
        return "waiting for another worker"
    if since["attempt"] == run["attempt"]:
        return "waiting to be taken back when its lease ends"
    return f"attempt {since['attempt']} on {since['worker_id']}" if since["worker_id"] else "waiting for approval"


def refused_tasks(run: Mapping[str, Any]) -> str:
    """How many tasks its agent could not add, and why."""
    refused = run["refused_tasks"]
    total = sum(refused.values())
    why = " and ".join(f"{count:,} {REFUSED_TASKS.get(code, code)}" for code, count in sorted(refused.items()))
    return f"{total:,} {'task was' if total == 1 else 'tasks were'} refused: {why}." if total else ""


def policy_sentence(policies: Mapping[str, str], overlaps: Iterable[tuple[str, str]]) -> str:
    """What an automation will do when things go otherwise than planned. Policies as they are written in a form;
    `overlaps` are what each kind of trigger brings, a slot or a call, and what becomes of it.
    """
    chosen: dict[str, set[str]] = {}
    for what, overlap in overlaps:
        chosen.setdefault(overlap, set()).add(what)
    parts = [
        OVERLAP[each].format(what=" or ".join(sorted(chosen[each], reverse=True))) for each in OVERLAP if each in chosen
    ]
    by_the_clock = any("slot" in whats for whats in chosen.values())
    if by_the_clock and policies["catch_up"] in CATCH_UP:
        parts.append(CATCH_UP[policies["catch_up"]].format(**policies))
    parts.append(f"A run may take {policies['timeout']}{_tries(policies['max_attempts'])}.")
    if policies["pause_after_failures"]:
        count = policies["pause_after_failures"]
        parts.append(f"It is paused after {count} failure{'s' * (count != '1')} in a row.")
    same = policies["session"] == "same"
    parts.append("All runs go on in one session." if same else "Every run starts a fresh session.")
    return " ".join(parts)


def _tries(most: str) -> str:
    return " and is not tried again when it fails" if most in {"", "1"} else f" and is tried up to {most} times"


def overlaps_of(automation: Mapping[str, Any]) -> set[tuple[str, str]]:
    """What its triggers do when a run is still going, each by its own rule or the automation's."""
    return {overlap_of(each["kind"], each["overlap"], automation["overlap"]) for each in automation["triggers"]}


def overlap_of(kind: str, own: str | None, general: str | None) -> tuple[str, str]:
    what = "call" if kind in QUEUEING_KINDS else "slot"
    return what, effective_overlap(kind, own, general)


# What a browser calls itself by; the first that fits, since each names those it wants to be taken for.
BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
SYSTEMS = (
    ("iPhone", "iPhone"), ("iPad", "iPad"), ("Android", "Android"), ("Windows", "Windows"), ("Macintosh", "macOS"),
    ("CrOS", "ChromeOS"), ("Linux", "Linux"),
)  # fmt: skip


def browser(user_agent: str | None) -> str:
    """What a person would call the browser and the machine; a short one of its own as it is."""
    told = user_agent or ""
    name = next((name for mark, name in BROWSERS if mark in told), "")
    system = next((name for mark, name in SYSTEMS if mark in told), "")
    return f"{name} on {system}" if name and system else name or told[:60].strip() or "A browser"
