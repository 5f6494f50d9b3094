"""`rota triggers`: when an automation fires, trigger by trigger."""

from collections.abc import Iterable
from typing import Any

import click

from rota.cli.noun import JSON, REF, Rota, asks_rota, changing, fields, with_fields
from rota.cli.showing import Column, Item, brief, local
from rota.errors import Invalid, NotFound

command = click.Group("triggers", help="List, show, add, change and delete triggers of an automation.")

WHEN = ("cron", "every", "time", "at", "timezone", "schedule")
ENDINGS = ("succeeded", "failed", "cancelled", "skipped")
OVERLAPS = ("skip", "queue_one", "queue_all", "allow", "replace")


# ── What a schedule is said with, for automations too ────────────────────────────────────────────────────────────


def schedules(function: Any) -> Any:
    """The options that say when."""
    for option in (
        click.option("--cron", help='A cron expression: "0 9 * * 1-5"'),
        click.option("--every", help="So often: 15m, 2d"),
        click.option("--time", help="With --every in days, at this time of day: 09:00"),
        click.option("--at", help="Once: 2027-01-01T09:00"),
        click.option("--timezone", help="Of the schedule: Europe/Berlin [the workspace's]"),
        click.option("--schedule", type=JSON, help="Any form of a schedule or trigger, as JSON"),
    )[::-1]:
        function = option(function)
    return function


def schedule_of(
    cron: str | None, every: str | None, time: str | None, at: str | None, timezone: str | None, schedule: Any
) -> Any:
    """What the options say of when, as the API takes it; None if they say nothing."""
    said = {"cron": cron, "every": every, "time": time, "at": at, "timezone": timezone}
    given = {name: value for name, value in said.items() if value is not None}
    if schedule is not None and given:
        raise Invalid(f"Give --schedule or --{next(iter(given))}, not both.", field="schedule")
    return schedule if schedule is not None else (given or None)


def tell_secrets(triggers: Iterable[Item]) -> None:
    """Webhooks that are new have a secret, in this answer only."""
    for trigger in triggers:
        if trigger["secret"]:
            click.echo(f"{trigger['hook_path']} has the secret {trigger['secret']}, which is never shown again.")


# ── One by one ───────────────────────────────────────────────────────────────────────────────────────────────────


def parked(trigger: Item) -> str | None:
    """Why it cannot fire, if so. That it is switched off stands in its text."""
    return f"parked: {trigger['parked_error']}" if trigger["parked_error"] else None


def _status(trigger: Item) -> str:
    return parked(trigger) or ("enabled" if trigger["enabled"] else "disabled")


def _fires(trigger: Item) -> str:
    return f"{trigger['fires']} of {trigger['max_fires']}" if trigger["max_fires"] else str(trigger["fires"])


TRIGGERS = [
    Column("id", "id", whole=True),
    Column("kind", "kind"),
    Column("when", "text"),
    Column("fires", _fires),
    Column("next", lambda trigger: parked(trigger) or brief(trigger["next_fire_at"])),
    Column("address", "hook_path"),
]


def _facts(trigger: Item) -> list[tuple[str, object]]:
    return [
        ("id", trigger["id"]),
        ("kind", trigger["kind"]),
        ("when", trigger["text"]),
        ("schedule", trigger["schedule"]),
        ("timezone", trigger["timezone"]),
        ("address", trigger["hook_path"]),
        ("status", _status(trigger)),
        ("next", local(trigger["next_fire_at"])),
        ("fires", _fires(trigger)),
        ("starts", local(trigger["starts_at"]) if trigger["starts_at"] else None),
        ("ends", local(trigger["ends_at"]) if trigger["ends_at"] else None),
        ("jitter", trigger["jitter"]),
        ("overlap", trigger["overlap"]),
    ]


def _saves(function: Any) -> Any:
    """The options that add and edit share."""
    for option in (
        schedules,
        click.option("--webhook", is_flag=True, help="A signed request, to an address of its own"),
        click.option("--event", help="An event of this name: invoice.paid"),
        click.option("--after", help="The end of this automation"),
        click.option(
            "--on", "endings", type=click.Choice(ENDINGS), multiple=True, help="With --after, how. Repeatable"
        ),
        click.option("--starts-at", help="Not before: 2027-01-01T00:00:00Z"),
        click.option("--ends-at", help="Not after"),
        click.option("--max-fires", type=int, help="So often, then no more"),
        click.option("--jitter", help="Spread its fires over: 5m"),
        click.option("--overlap", type=click.Choice(OVERLAPS), help="In place of the automation's"),
        click.option("--enable/--disable", "enabled", default=None, help="Let it fire, or hold it"),
        fields,
    )[::-1]:
        function = option(function)
    return function


def _body(webhook: bool, endings: tuple[str, ...], fields: tuple[str, ...], **given: Any) -> dict[str, Any]:
    when = schedule_of(**{name: given.pop(name) for name in WHEN}) or {}
    if not isinstance(when, dict):
        raise Invalid('A schedule is a JSON object, such as {"every": "15m"}.', field="--schedule")
    told = {**when, **given, "on": list(endings) or None, "webhook": {} if webhook else None}
    return with_fields(told, fields)


@command.command("list")
@click.argument("automation", type=REF)
@asks_rota
def list_(rota: Rota, automation: str) -> None:
    """The triggers of an AUTOMATION, and when each fires next."""
    found = rota.ask("GET", f"/automations/{automation}")["triggers"]
    rota.tabled({"items": found, "next_cursor": None}, TRIGGERS)


@command.command()
@click.argument("automation", type=REF)
@click.argument("trigger")
@asks_rota
def show(rota: Rota, automation: str, trigger: str) -> None:
    """One trigger, with its limits."""
    for each in rota.ask("GET", f"/automations/{automation}")["triggers"]:
        if each["id"] == trigger.lower():
            return rota.shown(each, _facts)
    raise NotFound("There is no such trigger of this automation.")


@command.command()
@click.argument("automation", type=REF)
@_saves
@asks_rota
def add(rota: Rota, automation: str, **given: Any) -> None:
    """Give an AUTOMATION one more trigger. A webhook's secret is shown this once."""
    body = _body(**given)
    if not body:
        raise Invalid("Say when: --cron, --every, --at, --webhook, --event, --after or --schedule.", field="schedule")
    _saved(rota, rota.ask("POST", f"/automations/{automation}/triggers", body))


@command.command()
@click.argument("automation", type=REF)
@click.argument("trigger", type=REF)
@_saves
@asks_rota
def edit(rota: Rota, automation: str, trigger: str, **given: Any) -> None:
    """Change one trigger: hold it, let it fire, or give it another schedule, which counts from now."""
    _saved(rota, rota.ask("PATCH", f"/automations/{automation}/triggers/{trigger}", changing(_body(**given))))


def _saved(rota: Rota, trigger: Item) -> None:
    due = trigger["next_fire_at"]
    told = parked(trigger) or (f"next {local(due)}" if due else None)
    rota.said(trigger, f"{trigger['id']} is saved: {trigger['text']}{f', {told}' if told else ''}.")
    if not rota.as_json:
        tell_secrets([trigger])


@command.command()
@click.argument("automation", type=REF)
@click.argument("trigger", type=REF)
@asks_rota
def delete(rota: Rota, automation: str, trigger: str) -> None:
    """Take one trigger away. Its runs stay in the ledger."""
    gone = rota.ask("DELETE", f"/automations/{automation}/triggers/{trigger}")
    rota.said(gone, f"{trigger} is deleted.")


@command.command("renew-secret")
@click.argument("automation", type=REF)
@click.argument("trigger", type=REF)
@asks_rota
def renew_secret(rota: Rota, automation: str, trigger: str) -> None:
    """A new secret for a webhook, shown this once. The one before stays valid for 24 hours."""
    renewed = rota.ask("POST", f"/automations/{automation}/triggers/{trigger}/secret")
    if rota.as_json:
        rota.said(renewed, "")
    else:
        tell_secrets([renewed])
