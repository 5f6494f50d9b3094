"""`rota automations`: saved prompts with triggers and policies."""

from typing import Any

import click

from rota.cli import showing
from rota.cli.applying.telling import field
from rota.cli.following import answered
from rota.cli.noun import (
    JSON,
    REF,
    Rota,
    asks_rota,
    changing,
    each_of,
    fields,
    once,
    owner,
    pages,
    pairs_of,
    text_of,
    with_fields,
)
from rota.cli.runs import LEDGER
from rota.cli.showing import Column, Item, brief, local
from rota.cli.triggers import WHEN, parked, schedule_of, schedules, tell_secrets
from rota.errors import Invalid, NotFound

command = click.Group(
    "automations", help="List, show, save, run, pause and delete automations; ask what a schedule would do."
)

POLICIES = (
    "session", "overlap", "catch_up", "catch_up_limit", "late_after", "max_attempts", "max_rescues",
    "max_task_depth", "max_tasks", "timeout", "start_within", "approval_expires", "pre_approvals",
    "pause_after_failures", "budget", "scopes",
)  # fmt: skip


def _last_run(automation: Item) -> str:
    last = automation["last_run"]
    return f"{last['status']}, {brief(last['finished_at'] or last['queued_at'])}" if last else showing.NOTHING


AUTOMATIONS = [
    Column("slug", "slug", whole=True),
    Column("name", "name"),
    Column("schedule", "schedule_text"),
    Column("status", "status"),
    Column("last run", _last_run),
    Column("next", lambda automation: brief(automation["next_fire_at"])),
]
REVISIONS = [
    Column("revision", "revision"),
    Column("saved", lambda revision: brief(revision["created_at"])),
    Column("by", "created_by"),
    Column("changed", lambda revision: each_of(revision["changed"], most=8)),
]


def _facts(automation: Item) -> list[tuple[str, object]]:
    kept = ("name", "slug", "id")
    return [
        *((name, automation[name]) for name in kept),
        ("status", automation["status"]),
        ("paused for", automation["paused_reason"]),
        ("agent", automation["agent"]),
        ("prompt", automation["prompt"]),
        ("input", automation["input"]),
        ("credentials", automation["credentials"]),
        ("schedule", automation["schedule_text"]),
        ("triggers", "\n".join([*map(_trigger, automation["triggers"]), ""])),
        ("next fires", "\n".join(local(each) for each in automation["next_fires"])),
        ("last run", _last_run(automation)),
        ("owner", automation["owner"]),
        ("grant", automation["grant_problem"]),
        *((name.replace("_", " "), automation[name]) for name in POLICIES),
        ("revision", automation["revision"]),
        ("changed", local(automation["updated_at"])),
    ]


def _trigger(trigger: Item) -> str:
    parts = [trigger["id"], trigger["text"], trigger["hook_path"], parked(trigger)]
    return showing.BETWEEN.join(filter(None, parts))


def _saves(function: Any) -> Any:
    """The options that create and edit share."""
    for option in (
        click.option("--agent", help="Who works"),
        click.option("--prompt", help="What is asked; `-`: from the standard input"),
        click.option("--input", "input_", type=JSON, help="An input as JSON, beside the prompt or in its place"),
        schedules,
        click.option("--trigger", "triggers", type=JSON, multiple=True, help="A trigger, as JSON. Repeatable"),
        click.option("--credential", "credentials", multiple=True, metavar="VAR=NAME", help="Give it one. Repeatable"),
        click.option("--scope", "scopes", multiple=True, help="What its grant also allows: workspace:read. Repeatable"),
        click.option("--slug", help="Its short name for addresses [made from the name]"),
        fields,
    )[::-1]:
        function = option(function)
    return function


def _body(
    prompt: str | None,
    input_: Any,
    triggers: tuple[Any, ...],
    credentials: tuple[str, ...],
    scopes: tuple[str, ...],
    fields: tuple[str, ...],
    **given: Any,
) -> dict[str, Any]:
    when = {name: given.pop(name) for name in WHEN}
    saved = {
        **given,
        "prompt": text_of(prompt) if prompt is not None else None,
        "input": input_,
        "schedule": schedule_of(**when),
        "triggers": list(triggers) or None,
        "credentials": pairs_of(credentials, "--credential"),
        "scopes": list(scopes) or None,
    }
    return with_fields(saved, fields)


@command.command("list")
@click.option("--deleted", is_flag=True, help="Also those that can be restored")
@owner
@pages
@asks_rota
def list_(rota: Rota, deleted: bool, owner: str | None, limit: int | None) -> None:
    """Automations, newest first."""
    rota.listed("/automations", AUTOMATIONS, limit=limit, deleted=deleted or None, owner=owner)


@command.command()
@click.argument("automation", type=REF)
@asks_rota
def show(rota: Rota, automation: str) -> None:
    """One automation, with its next fires. A deleted one is found by its id."""
    rota.shown(rota.ask("GET", f"/automations/{automation}"), _facts)


@command.command()
@click.argument("name")
@_saves
@click.option("--paused", is_flag=True, help="Save it paused")
@click.option("--run-now", is_flag=True, help="Run it once when it is saved")
@once
@asks_rota
def create(rota: Rota, name: str, paused: bool, run_now: bool, key: str | None, **given: Any) -> None:
    """Save an automation called NAME. A webhook's secret is shown this once."""
    body = {**_body(**given), "name": name}
    if paused:
        body["status"] = "paused"
    if run_now:
        body["run_immediately"] = True
    _saved(rota, rota.ask("POST", "/automations", body, key=key))


@command.command()
@click.argument("automation", type=REF)
@click.option("--name", help="Another name")
@_saves
@click.option("--accept-grant", is_flag=True, help="Let somebody else's automation run on your authority")
@asks_rota
def edit(rota: Rota, automation: str, accept_grant: bool, **given: Any) -> None:
    """Save a change as a new revision. A schedule or triggers replace all that it has."""
    body = changing(_body(**given)) | ({"accept_grant": True} if accept_grant else {})
    _saved(rota, rota.ask("PATCH", f"/automations/{automation}", body))


def _saved(rota: Rota, automation: Item) -> None:
    due = automation["next_fire_at"]
    told = f", next {local(due)}" if due else ""
    rota.said(automation, f"{automation['slug']} is saved, revision {automation['revision']}{told}.")
    if not rota.as_json:
        tell_secrets(automation["triggers"])


@command.command()
@click.argument("automation", type=REF)
@click.option("--payload", type=JSON, help="Given to the agent, as JSON (`-`: from the standard input)")
@click.option("--follow", is_flag=True, help="Print what it says, until it has ended")
@once
@asks_rota
def run(rota: Rota, automation: str, payload: Any, follow: bool, key: str | None) -> None:
    """Run it now, also while it is paused. Prints the run's id.

    With --follow it ends with 0 if the run succeeded, else with 1.
    """
    body = None if payload is None else {"payload": payload}
    answered(rota, rota.ask("POST", f"/automations/{automation}/run", body, key=key), follow=follow)


def _verb(name: str, says: str, told: str) -> None:
    """One of the changes that need nothing but the automation."""

    @command.command(name, help=told)
    @click.argument("automation", type=REF)
    @asks_rota
    def change(rota: Rota, automation: str) -> None:
        changed = rota.ask("POST", f"/automations/{automation}/{name}")
        due = changed["next_fire_at"]
        rota.said(changed, f"{changed['slug']} is {says}" + (f", next {local(due)}." if due else "."))


_verb("pause", "paused", "Fire nothing until it is resumed. What waits is skipped, what runs finishes.")
_verb("resume", "active", "Fire again, counting from now.")
_verb("restore", "restored", "Take back a deletion, by its id, with a new grant; next fire from now.")


@command.command()
@click.argument("automation", type=REF)
@asks_rota
def delete(rota: Rota, automation: str) -> None:
    """Stop it for good. Its history stays readable and it can be restored; prints the id that does, if you may read."""
    found = rota.seen(f"/automations/{automation}")
    gone = rota.ask("DELETE", f"/automations/{found['id'] if found else automation}")
    rota.said(gone, _deleted(found) if found else f"{automation} is deleted; `rota automations restore` takes its id.")


def _deleted(automation: Item) -> str:
    return f"{automation['slug']} is deleted; `rota automations restore {automation['id']}` takes it back."


@command.command("renew-grant")
@click.argument("automation", type=REF)
@click.option("--lasts", help="For so long: 90d [for good]")
@click.option("--account", help="Id of the account to charge [the one before]")
@asks_rota
def renew_grant(rota: Rota, automation: str, lasts: str | None, account: str | None) -> None:
    """Let it run on your authority from now on."""
    body = with_fields({"lasts": lasts, "account": account}, ())
    renewed = rota.ask("POST", f"/automations/{automation}/renew-grant", body)
    rota.said(renewed, f"{renewed['slug']} runs on the grant {renewed['grant_id']}.")


@command.command()
@click.argument("automation", type=REF)
@pages
@asks_rota
def runs(rota: Rota, automation: str, limit: int | None) -> None:
    """The ledger, newest first: every slot is here, as a run or as a skip with its reason."""
    rota.listed(f"/automations/{automation}/runs", LEDGER, limit=limit)


@command.command()
@click.argument("automation", type=REF)
@pages
@asks_rota
def revisions(rota: Rota, automation: str, limit: int | None) -> None:
    """What was saved and when, newest first, and what changed."""
    rota.listed(f"/automations/{automation}/revisions", REVISIONS, limit=limit)


@command.command()
@click.argument("automation", type=REF)
@click.argument("old", type=click.IntRange(1), required=False)
@click.argument("new", type=click.IntRange(1), required=False)
@asks_rota
def diff(rota: Rota, automation: str, old: int | None, new: int | None) -> None:
    """What changed from the revision OLD to NEW; to the newest, or by it, unless told."""
    was, became = _two_revisions(rota, automation, old, new)
    names = [name for name in was["spec"] | became["spec"] if was["spec"].get(name) != became["spec"].get(name)]
    changed = {name: {"from": was["spec"].get(name), "to": became["spec"].get(name)} for name in names}
    if rota.as_json:
        rota.said({"from": was["revision"], "to": became["revision"], "changed": changed}, "")
        return
    click.echo(f"Revision {was['revision']} → {became['revision']}, saved by {showing.one_line(became['created_by'])}")
    for name, each in changed.items():
        for line in field(showing.one_line(name), each["from"], each["to"]):
            click.echo(line)
    if not changed:
        click.secho("Nothing changed.", dim=True, err=True)


def _two_revisions(rota: Rota, automation: str, old: int | None, new: int | None) -> tuple[Item, Item]:
    kept: dict[int, Item] = {}
    for each in rota.all_of(f"/automations/{automation}/revisions"):
        kept[each["revision"]] = each
        new = new or each["revision"]
        old = old or new - 1
        if each["revision"] <= min(old, new):
            break
    for wanted in (old, new):
        if wanted not in kept:
            told = f"has no revision {wanted}" if wanted else "has no revision before the first"
            raise NotFound(f"The automation {told}; `rota automations revisions` lists them.")
    assert old
    assert new
    return kept[old], kept[new]


@command.command()
@schedules
@click.option("--count", type=click.IntRange(1, 100), default=5, show_default=True, help="How many fires")
@click.option("--after", help="Those after this instant: 2027-03-27T00:00:00Z [now]")
@click.option("--automation", help="Warn if this one usually takes longer than the interval")
@asks_rota
def preview(rota: Rota, count: int, after: str | None, automation: str | None, **when: Any) -> None:
    """Say what a schedule would do, without saving it: in words, with its next fires and warnings."""
    schedule = schedule_of(**when)
    if schedule is None:
        raise Invalid("Say when: --cron, --every, --at or --schedule.", field="schedule")
    told = rota.ask(
        "POST",
        "/automations/preview",
        with_fields({"schedule": schedule, "after": after, "automation": automation}, ()) | {"count": count},
    )
    if rota.as_json:
        rota.said(told, "")
        return
    click.echo(showing.clean(told["text"]))
    for fire in told["fires"]:
        click.echo(f"  {fire['local']}  ({showing.distance(fire['at'])})")
    for warning in told["warnings"]:
        click.secho(showing.clean(warning["message"]), fg="yellow", err=True)
