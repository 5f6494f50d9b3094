"""Reads the forms in which triggers are written and keeps an automation's triggers equal to them."""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from rota.access.vault import Vault
from rota.db import automations, pauses, triggers, webhook_secrets
from rota.db.listener import TRIGGERS
from rota.db.pool import Connection
from rota.errors import Conflict, Invalid, NotFound
from rota.model import webhook
from rota.model.caller import Caller
from rota.model.cron import EPOCH, did_you_mean
from rota.model.duration import format_duration, parse_duration
from rota.model.event import event_name
from rota.model.firing import Timing
from rota.model.ids import AgentId, AutomationId, TriggerId, WorkspaceId, new_id
from rota.model.preview import closest
from rota.model.run import SkipReason
from rota.model.schedule import AtSchedule, Compiled, CronSchedule, EverySchedule, read_schedule, short_form
from rota.runs import passing

TIMED = frozenset({"cron", "every", "at"})
INBOUND = {"webhook": ("webhook",), "event": ("event",), "after": ("after", "on")}
KINDS = ("cron", "every", "at", "mode", *INBOUND)
ENDINGS = ("succeeded", "failed", "cancelled", "skipped")
SECRET_OVERLAP = timedelta(hours=24)
MOST_TRIGGERS = 50
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


async def read(
    conn: Connection,
    caller: Caller,
    form: Mapping[str, Any],
    *,
    now: datetime,
    field: str,
    stored: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """One trigger as a row. `form` holds the keys that say when, and the trigger's own limits, of the right type. One
    that says what is `stored` already may stay, also when it could not be saved anew: its instant has passed."""
    if stored:
        row = await _row(conn, caller, form, EPOCH, field, stored) | {"anchor_at": now}
        if any(_same(each, row) for each in stored):
            return row
    row = await _row(conn, caller, form, now, field)
    _check_limits(row, field, since=now)
    await _refuse_too_often(conn, caller, row, field)
    return row


async def _row(
    conn: Connection,
    caller: Caller,
    form: Mapping[str, Any],
    now: datetime,
    field: str,
    stored: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    limits = {name: form[name] for name in LIMITS if form.get(name) is not None}
    when = {name: value for name, value in form.items() if name not in (*LIMITS, "id", "field")}
    try:
        return {**DEFAULTS, **await _when(conn, caller, when, now, stored), **limits, "anchor_at": now}
    except Invalid as refused:
        inner = None if refused.field in {field, "schedule"} else refused.field
        raise Invalid(refused.message, code=refused.code, field=_within(field, inner)) from None


def _within(field: str, inner: str | None) -> str | None:
    """Where a key of the trigger stands in the request, which may be nothing but the trigger: `field` is empty then."""
    return ".".join(each for each in (field, inner) if each) or None


async def _refuse_too_often(conn: Connection, caller: Caller, row: Mapping[str, Any], field: str) -> None:
    if row["kind"] not in {"cron", "every"}:
        return
    minimum = await triggers.minimum_interval(conn, caller.workspace_id)
    if minimum and (apart := closest(timing(row).schedule(), row["anchor_at"])) < minimum:
        raise Invalid(
            f"It would fire every {format_duration(apart)}; this workspace wants at least {format_duration(minimum)}"
            " between fires.",
            code="too_often", field=_within(field, None),
        )  # fmt: skip


async def refuse_one_more(conn: Connection, automation: Mapping[str, Any]) -> None:
    """A list has no more than so many, so that one by one they are no more either."""
    if len(await triggers.of_automations(conn, automation["workspace_id"], [automation["id"]])) >= MOST_TRIGGERS:
        raise Conflict(
            f"An automation has at most {MOST_TRIGGERS} triggers. Take one away first.",
            code="too_many_triggers", limit=MOST_TRIGGERS,
        )  # fmt: skip


async def refuse_too_many(conn: Connection, workspace_id: WorkspaceId) -> None:
    """After a schedule was saved or came back: more than the workspace may have are taken back with it."""
    limit = await triggers.over_limit(conn, workspace_id)
    if limit is not None:
        raise Conflict(
            f"This workspace may have {limit} schedules, and has them. Delete one first.",
            code="too_many_schedules", limit=limit,
        )  # fmt: skip


async def _when(
    conn: Connection, caller: Caller, form: Mapping[str, Any], now: datetime, stored: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    if not any(key in KINDS for key in form):
        hint = "".join(did_you_mean(key, KINDS) for key in list(form)[:1])
        raise Invalid(f"A trigger needs one of {', '.join(KINDS)}.{hint}", code="invalid_schedule")
    kind = next((kind for kind in INBOUND if kind in form), None)
    if kind is None:
        compiled = read_schedule(form, default_timezone=caller.timezone, now=now)
        return _columns(compiled, caller.timezone)
    for key in form:
        if key not in INBOUND[kind]:
            raise Invalid(f"A trigger with “{kind}” has no key {key[:64]!r}.", code="invalid_trigger", field=key[:64])
    row = {"kind": kind, "timezone": caller.timezone}
    match kind:
        case "webhook":
            return row | _webhook(form["webhook"])
        case "event":
            return row | {"event": event_name(form["event"])}
        case _:
            return row | await _after(conn, caller, form, {each["after_automation_id"] for each in stored})


def _webhook(value: Any) -> dict[str, Any]:
    if value not in ({}, True):
        raise Invalid("A webhook takes no options: write {}.", code="invalid_trigger", field="webhook")
    return {}


async def _after(conn: Connection, caller: Caller, form: Mapping[str, Any], known: Collection[UUID]) -> dict[str, Any]:
    if not form["after"]:
        raise Invalid("Say after which automation.", code="unknown_automation", field="after")
    earlier = await automations.find(conn, caller.workspace_id, str(form["after"])[:64])
    if not earlier:
        raise Invalid(f"There is no automation {str(form['after'])[:64]!r}.", code="unknown_automation", field="after")
    if earlier["deleted_at"] and earlier["id"] not in known:
        raise Invalid(f"The automation {earlier['name']!r} is deleted.", code="unknown_automation", field="after")
    on = form.get("on", ["succeeded"])
    if not isinstance(on, list) or not on or any(each not in ENDINGS for each in on):
        raise Invalid(f"`on` lists at least one of {', '.join(ENDINGS)}.", code="invalid_trigger", field="on")
    return {"after_automation_id": earlier["id"], "after_on": sorted(set(on))}


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
        case AtSchedule(at, zone):
            return {**shown, "at": at, "timezone": zone}


def _check_limits(row: Mapping[str, Any], field: str, *, since: datetime) -> None:
    starts, ends = row["starts_at"], row["ends_at"]
    if starts and ends and ends <= starts:
        raise Invalid("It would end before it starts.", code="invalid_schedule", field=_within(field, "ends_at"))
    if row["enabled"] and not _ever_fires(row, since):
        limit = "ends_at" if ends else "starts_at" if starts else None
        raise Invalid("It would never fire within its limits.", code="never_fires", field=_within(field, limit))


def _ever_fires(row: Mapping[str, Any], since: datetime) -> bool:
    if row["kind"] not in TIMED:
        return not row["ends_at"] or row["ends_at"] > since
    try:
        return next_fire(row, since) is not None
    except Invalid:  # the calendar ends before it would
        return False


def timing(row: Mapping[str, Any]) -> Timing:
    return Timing(
        row["kind"], row["cron"], row["every"], row["time_of_day"], row["at"], row["timezone"], row["anchor_at"],
        row["starts_at"], row["ends_at"], row["max_fires"], row["fires"],
    )  # fmt: skip


def form_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The form that gives this trigger when it is saved again; for a schedule that can't be read, what there is."""
    match row["kind"]:
        case "webhook":
            return {"webhook": {}}
        case "event":
            return {"event": row["event"]}
        case "after":
            return {"after": str(row["after_automation_id"]), "on": row["after_on"]}
        case _:
            return short_form(timing(row).schedule())


def limits_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What of its limits was chosen."""
    return {name: row[name] for name in LIMITS if row[name] != DEFAULTS[name]}


async def changed(
    conn: Connection, caller: Caller, stored: Mapping[str, Any], form: Mapping[str, Any], *, now: datetime
) -> dict[str, Any]:
    """The trigger as a partial form leaves it: its limits, or a part of what says when, such as another zone. Without a
    new definition it keeps its anchor."""
    limits = {name: form[name] if name in form else stored[name] for name in LIMITS}
    when = {name: value for name, value in form.items() if name not in LIMITS}
    if when:
        given, there = {**_whole(stored, when), **limits}, {**stored, **limits}
        row = await read(conn, caller, given, now=now, field="", stored=[there]) | limits
        if not _alike(stored, row):
            return row
        stored = {**stored, "editor_mode": row["editor_mode"], "editor": row["editor"]}
    row = {**stored, **limits}
    moved = any(row[name] != stored[name] for name in ("enabled", "starts_at", "ends_at"))
    _check_limits({**row, "fires": 0}, "", since=now if moved else row["anchor_at"])
    return row


def _whole(stored: Mapping[str, Any], when: Mapping[str, Any]) -> dict[str, Any]:
    """A part of what says when, with the rest as it is stored. Another definition keeps what it says nothing about and
    can have: the zone, the time of day, how the other automation has to end."""
    if not any(name in KINDS for name in when):
        return {**(stored["editor"] or form_of(stored)), **when}
    if stored["kind"] == "after" and "after" in when:
        return {"on": stored["after_on"], **when}
    if stored["kind"] in INBOUND or any(name in INBOUND for name in when):
        return dict(when)
    kept = {"timezone": stored["timezone"]}
    if stored["time_of_day"] and "mode" not in when and _in_days(when.get("every")):
        kept["time"] = f"{stored['time_of_day']:%H:%M}"
    return {**kept, **when}


def _in_days(every: Any) -> bool:
    with suppress(Invalid):
        return not parse_duration(every) % timedelta(days=1)
    return False


def next_fire(row: Mapping[str, Any], now: datetime) -> datetime | None:
    return timing(row).next_after(now) if row["kind"] in TIMED and row["enabled"] else None


async def _next_due(
    conn: Connection, automation: Mapping[str, Any], row: Mapping[str, Any], now: datetime
) -> datetime | None:
    """When it is due; None while its automation or the workspace is paused. The automation must be locked."""
    due = next_fire(row, now) if automation["status"] == "active" else None
    return None if due and await pauses.is_paused(conn, automation["workspace_id"]) else due


async def save(
    conn: Connection,
    automation: Mapping[str, Any],
    rows: Sequence[dict[str, Any]],
    *,
    now: datetime,
    fields: Sequence[str],
) -> list[dict[str, Any]]:
    """Make these the automation's triggers; `fields` are where they are written. One whose definition stays keeps its
    id, anchor and count of fires, and so a webhook its address."""
    before = await triggers.of_automations(conn, automation["workspace_id"], [automation["id"]])
    kept = _kept(before, rows)
    for at, row in enumerate(rows):
        if at not in kept:
            await add(conn, automation, row, now=now, field=fields[at])
        elif not _same(kept[at], row):
            await change(conn, automation, kept[at]["id"], going_on(row, [kept[at]]), now=now)
    still = {each["id"] for each in kept.values()}
    await remove(conn, automation, [each["id"] for each in before if each["id"] not in still], now=now)
    if _timed(rows) > _timed(before):
        await refuse_too_many(conn, automation["workspace_id"])
    return await triggers.of_automations(conn, automation["workspace_id"], [automation["id"]])


def _kept(before: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Which trigger each of these rows is, by its place: first those that are equal, then those that say when alike."""
    kept: dict[int, Mapping[str, Any]] = {}
    free = {each["id"]: each for each in before}
    for matches in (_same, _alike):
        for at, row in enumerate(rows):
            found = None if at in kept else next((each for each in free.values() if matches(each, row)), None)
            if found:
                kept[at] = free.pop(found["id"])
    return kept


def going_on(row: dict[str, Any], stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row as it is saved: the trigger that says when alike gives it its anchor and its count of fires."""
    known = next((each for each in stored if _alike(each, row)), None)
    return {**row, "anchor_at": known["anchor_at"], "fires": known["fires"]} if known else row


def _timed(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(row["kind"] in TIMED for row in rows)


async def add(
    conn: Connection, automation: Mapping[str, Any], row: Mapping[str, Any], *, now: datetime, field: str
) -> TriggerId:
    """Save one more trigger; it first fires at its next slot."""
    trigger_id = TriggerId(new_id())
    due = await _next_due(conn, automation, row, now)
    owner = {"workspace_id": automation["workspace_id"], "automation_id": automation["id"], "id": trigger_id}
    await _refuse_cycle(conn, automation, row, field)
    await triggers.insert(conn, _storable(row) | owner | {"next_fire_at": due})
    return trigger_id


async def change(
    conn: Connection, automation: Mapping[str, Any], trigger_id: UUID, row: Mapping[str, Any], *, now: datetime
) -> None:
    """Give a trigger another definition; it keeps its id and how often it fired, and counts from now."""
    stored = await find(conn, automation, trigger_id)
    await _pass_over(conn, automation, {trigger_id}, now)
    due = await _next_due(conn, automation, {**row, "fires": stored["fires"]}, now)
    await _refuse_cycle(conn, automation, row, "")
    place = {"workspace_id": automation["workspace_id"], "id": trigger_id, "next_fire_at": due}
    await triggers.update(conn, _storable(row) | place)
    if _timed([row]) > _timed([stored]):
        await refuse_too_many(conn, automation["workspace_id"])


async def remove(
    conn: Connection, automation: Mapping[str, Any], ids: list[TriggerId], *, now: datetime | None = None
) -> None:
    if ids:
        await _pass_over(conn, automation, set(ids), now)
        await triggers.delete(conn, automation["workspace_id"], ids)


async def _pass_over(
    conn: Connection, automation: Mapping[str, Any], ids: Collection[UUID], now: datetime | None
) -> None:
    """Another schedule counts from now: what these were due for and did not fire is missed."""
    await passing.record(conn, automation["workspace_id"], automation["id"], SkipReason.MISSED, only=ids, until=now)


async def find(conn: Connection, automation: Mapping[str, Any], trigger_id: UUID) -> dict[str, Any]:
    rows = await triggers.of_automations(conn, automation["workspace_id"], [automation["id"]])
    found = next((row for row in rows if row["id"] == trigger_id), None)
    if not found:
        raise NotFound("There is no such trigger.")
    return found


async def _refuse_cycle(conn: Connection, automation: Mapping[str, Any], row: Mapping[str, Any], field: str) -> None:
    """Automations that run after each other in a circle would never stop."""
    if row["kind"] != "after":
        return
    await triggers.lock_after(conn, automation["workspace_id"])
    path = await triggers.after_path(conn, automation["workspace_id"], row["after_automation_id"], automation["id"])
    if path:
        circle = [automation["slug"], *path]
        message = f"They would run after each other in a circle: {' → '.join(circle)}."
        raise Invalid(message, code="after_cycle", field=_within(field, "after"), path=circle)


async def first_secret(conn: Connection, vault: Vault, workspace_id: UUID, trigger_id: UUID) -> str | None:
    """A secret for a webhook that has none yet; None if it has one, which is never shown again."""
    if await webhook_secrets.valid(conn, workspace_id, trigger_id):
        return None
    return await new_secret(conn, vault, workspace_id, trigger_id)


async def new_secret(conn: Connection, vault: Vault, workspace_id: UUID, trigger_id: UUID) -> str:
    """Another secret for a webhook, shown this once. The ones before stay valid for a day."""
    secret, secret_id = webhook.new_secret(os.urandom(24)), new_id()
    sealed = vault.seal(secret, f"webhook/{workspace_id}/{trigger_id}/{secret_id}")
    await webhook_secrets.add(conn, workspace_id, trigger_id, secret_id, sealed=sealed, overlap=SECRET_OVERLAP)
    return secret


def _same(stored: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return _alike(stored, row) and all(stored[name] == row[name] for name in (*LIMITS, "editor_mode", "editor"))


def _alike(stored: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether they say the same about when. What comes from outside is of no zone: there stands the workspace's."""
    no_zone = stored["kind"] in INBOUND
    return all(stored[name] == row[name] for name in DEFINITION if not (no_zone and name == "timezone"))


def _storable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "editor": Jsonb(row["editor"]) if row["editor"] is not None else None}


async def resume(conn: Connection, automation: Mapping[str, Any], *, now: datetime) -> None:
    """Count from now, with the anchors kept: what was due meanwhile is not made up for. One that cannot be evaluated is
    parked, as the scheduler does; the others fire, or rest until the workspace is resumed."""
    for row in await triggers.of_automations(conn, automation["workspace_id"], [automation["id"]]):
        try:
            due = await _next_due(conn, {**automation, "status": "active"}, row, now)
            await triggers.set_next(conn, automation["workspace_id"], row["id"], due)
        except Invalid as refused:
            await triggers.park(conn, automation["workspace_id"], row["id"], refused.message)


async def resume_of(
    conn: Connection, workspace_id: WorkspaceId, agent_id: AgentId | None = None, *, reason: SkipReason, now: datetime
) -> None:
    """Let the schedules of an agent or a workspace that was resumed count from now. Slots that were due by now and not
    fired yet are skipped. The automations must be locked."""
    for automation_id in await triggers.due_of(conn, workspace_id, agent_id, until=now):
        await passing.record(conn, workspace_id, automation_id, reason, until=now)
    await _set_resting(
        conn, workspace_id, await triggers.resting(conn, workspace_id, agent_id=agent_id, until=now), now
    )


async def resume_of_automation(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, *, now: datetime
) -> None:
    """Let resting schedules of an automation count from now: it got another agent, and the one before may be paused."""
    resting = await triggers.resting(conn, workspace_id, automation_id=automation_id, until=now)
    await _set_resting(conn, workspace_id, [row for row in resting if row["next_fire_at"] is None], now)


async def _set_resting(
    conn: Connection, workspace_id: WorkspaceId, rows: Sequence[Mapping[str, Any]], now: datetime
) -> None:
    times: list[tuple[TriggerId, datetime | None]] = []
    for row in rows:
        try:
            times.append((row["id"], next_fire(row, now)))
        except Invalid as refused:
            await triggers.park(conn, workspace_id, row["id"], refused.message)
    if times:
        await triggers.set_next_of_all(conn, workspace_id, times)
        conn.wake(TRIGGERS)


def upcoming(rows: Sequence[Mapping[str, Any]], count: int, now: datetime) -> list[datetime]:
    """The next fires of several triggers together, soonest first. One that is late has those that follow."""
    since = now - timedelta(minutes=1)
    found: list[datetime] = []
    for row in rows:
        with suppress(Invalid, ValueError):  # it cannot be read: the scheduler will park it and say why
            left = count if row["max_fires"] is None else min(count, row["max_fires"] - row["fires"])
            found += _upcoming(row, left, since)
    return sorted(set(found))[:count]


def _upcoming(row: Mapping[str, Any], count: int, since: datetime) -> list[datetime]:
    found: list[datetime] = []
    instant = row["next_fire_at"]
    if instant and instant <= since:
        instant = timing(row).next_after(since)
    while instant and len(found) < count:
        found.append(instant)
        instant = timing(row).next_after(instant)
    return found
