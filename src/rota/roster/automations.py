"""Automations: saving, changing, pausing, deleting and restoring what runs on a schedule."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from rota.access import credentials, grants
from rota.db import agents as agent_rows
from rota.db import automations, clock, pauses, triggers
from rota.db import grants as grant_rows
from rota.db.pool import Connection
from rota.errors import Conflict, Invalid, NotFound
from rota.model import budget, scope
from rota.model.caller import Caller, Level
from rota.model.credential import check_http_secret
from rota.model.duration import format_duration
from rota.model.grant_scope import check_optional
from rota.model.ids import AutomationId, SessionId, TriggerId, new_id
from rota.model.run import SkipReason
from rota.model.scope import Scope
from rota.model.task import MAX_TASK_DEPTH, MAX_TASKS
from rota.roster import agents, running, slugs
from rota.roster import triggers as trigger_forms
from rota.runs import budgeting, cancelling, ending, passing

DEFAULTS: Mapping[str, Any] = {
    "prompt": None, "input": None, "credentials": {}, "session": "new", "session_id": None, "overlap": None,
    "catch_up": "one", "catch_up_limit": None, "late_after": timedelta(seconds=60), "max_attempts": 1, "max_rescues": 2,
    "max_task_depth": MAX_TASK_DEPTH, "max_tasks": MAX_TASKS,
    "timeout": timedelta(hours=1), "start_within": timedelta(minutes=15), "approval_expires": timedelta(hours=24),
    "pre_approvals": [], "pause_after_failures": None, "budget": None, "scopes": [], "status": "active",
}  # fmt: skip
POLICIES = (
    "session", "overlap", "catch_up", "catch_up_limit", "late_after", "max_attempts", "max_rescues",
    "max_task_depth", "max_tasks", "timeout", "start_within", "approval_expires", "pre_approvals",
    "pause_after_failures", "budget",
)  # fmt: skip
# A change of these needs the editor's own grant. The scopes are the grant's own, so a change of them needs a new one.
ACTS = ("prompt", "input", "credentials", "agent_id", "pre_approvals", "scopes")


async def create(
    conn: Connection, caller: Caller, values: Mapping[str, Any], forms: Sequence[Mapping[str, Any]]
) -> AutomationId:
    """Save a new automation with its grant, triggers and first revision, all in one transaction."""
    caller.must_be(Level.MEMBER, "create an automation")
    if values.get("run_immediately"):
        scope.check(caller.scopes, Scope.RUN, field="run_immediately")
    await pauses.hold(conn, caller.workspace_id)
    now = await now_of(conn)
    agent = await _agent(conn, caller, values["agent"])
    automation = {**DEFAULTS, **values, "id": AutomationId(new_id()), "workspace_id": caller.workspace_id}
    automation |= {"agent_id": agent["id"], "owner_id": caller.user_id}
    _check(automation, agent)
    automation["budget"] = budget.checked(automation["budget"])
    automation["credentials"] = await credentials.check_uses(conn, caller, automation["credentials"])
    rows = [await _read(conn, caller, form, now) for form in forms]
    automation["slug"] = await slugs.free(
        lambda some: automations.taken(conn, caller.workspace_id, some),
        values.get("slug"),
        values["name"],
        kind="automation",
    )
    automation["scopes"] = check_optional(automation["scopes"])
    automation["grant_id"] = await grants.make(
        conn, caller, agent["id"], scopes=automation["scopes"], automation_id=automation["id"]
    )
    if automation["session"] == "same":
        automation["session_id"] = SessionId(new_id())
    await automations.insert(conn, automation)
    if automation["session"] == "same":
        await automations.open_session(conn, automation)
    saved = await trigger_forms.save(conn, automation, rows, now=now, fields=[_field(form) for form in forms])
    await agent_rows.add_revision(
        conn, caller.workspace_id, automation["id"], 1, _spec(automation, agent, saved), caller.user_id
    )
    if values.get("run_immediately"):
        await running.run_now(conn, caller, automation["id"])
    return AutomationId(automation["id"])


async def change(
    conn: Connection,
    caller: Caller,
    ref: str,
    values: Mapping[str, Any],
    forms: Sequence[Mapping[str, Any]] | None,
    *,
    accept_grant: bool = False,
) -> AutomationId:
    """Save a change as a new revision. `forms` replaces the triggers; None leaves them alone."""
    found = await _locked(conn, caller, ref, "change this automation")
    if not values and forms is None:
        return AutomationId(found["id"])  # nothing is saved, so there is no revision of it
    now = await now_of(conn)
    agent = await _agent_after(conn, caller, found, values)
    automation = {**found, **values, "agent_id": agent["id"]}
    _check(automation, agent)
    automation["budget"] = budget.checked(automation["budget"])
    if automation["budget"] != found["budget"]:
        await budgeting.changed(conn, caller.workspace_id, found["id"])
    if automation["slug"] != found["slug"]:
        await slugs.free(
            lambda some: automations.taken(conn, caller.workspace_id, some),
            slugs.checked(automation["slug"]),
            automation["name"],
            kind="automation",
        )
    await _keep_authority(conn, caller, found, automation, accepted=accept_grant)
    await _keep_session(conn, automation)
    await automations.update(conn, automation)
    if forms is not None:
        stored = await triggers.of_automations(conn, caller.workspace_id, [found["id"]])
        rows = [await _read(conn, caller, form, now, stored) for form in forms]
        saved = await trigger_forms.save(conn, automation, rows, now=now, fields=[_field(form) for form in forms])
    else:
        saved = await triggers.of_automations(conn, caller.workspace_id, [found["id"]])
    if agent["id"] != found["agent_id"]:
        await trigger_forms.resume_of_automation(conn, caller.workspace_id, found["id"], now=now)
    revision = found["revision"] + 1
    await agent_rows.add_revision(
        conn, caller.workspace_id, found["id"], revision, _spec(automation, agent, saved), caller.user_id
    )
    return AutomationId(found["id"])


async def add_trigger(conn: Connection, caller: Caller, ref: str, form: Mapping[str, Any]) -> TriggerId:
    """Give it one more trigger, which first fires at its next slot."""
    found = await _locked(conn, caller, ref, "change this automation")
    now = await now_of(conn)
    row = await trigger_forms.read(conn, caller, form, now=now, field="")
    await trigger_forms.refuse_one_more(conn, found)
    trigger_id = await trigger_forms.add(conn, found, row, now=now, field="")
    if row["kind"] in trigger_forms.TIMED:
        await trigger_forms.refuse_too_many(conn, caller.workspace_id)
    await _revise(conn, caller, found)
    return trigger_id


async def change_trigger(conn: Connection, caller: Caller, ref: str, trigger_id: UUID, form: Mapping[str, Any]) -> None:
    """Change one trigger by itself. What the form leaves out stays as it was."""
    found = await _locked(conn, caller, ref, "change this automation")
    stored = await trigger_forms.find(conn, found, trigger_id)
    if not form:
        return
    now = await now_of(conn)
    row = await trigger_forms.changed(conn, caller, stored, form, now=now)
    await trigger_forms.change(conn, found, trigger_id, row, now=now)
    await _revise(conn, caller, found)


async def remove_trigger(conn: Connection, caller: Caller, ref: str, trigger_id: UUID) -> None:
    """Take one trigger away. Its runs stay in the ledger."""
    found = await _locked(conn, caller, ref, "change this automation")
    await trigger_forms.find(conn, found, trigger_id)
    await trigger_forms.remove(conn, found, [TriggerId(trigger_id)])
    await _revise(conn, caller, found)


async def _locked(conn: Connection, caller: Caller, ref: str, to: str) -> dict[str, Any]:
    found = await find(conn, caller, ref, lock=True)
    caller.must_own(found["owner_id"], to)
    return found


async def _revise(conn: Connection, caller: Caller, found: Mapping[str, Any]) -> None:
    """A new revision that differs in its triggers only, or in an agent that was changed while it was deleted."""
    agent = await agents.find(conn, caller, str(found["agent_id"]))
    rows = await triggers.of_automations(conn, caller.workspace_id, [found["id"]])
    await automations.update(conn, dict(found))
    revision = found["revision"] + 1
    await agent_rows.add_revision(
        conn, caller.workspace_id, found["id"], revision, _spec(found, agent, rows), caller.user_id
    )


async def pause(conn: Connection, caller: Caller, ref: str) -> AutomationId:
    """Nothing of it fires until it is resumed. What waits is skipped, what runs finishes."""
    found = await _locked(conn, caller, ref, "pause this automation")
    await passing.record(conn, caller.workspace_id, found["id"], SkipReason.PAUSED)
    if found["status"] == "active":  # else it says why it was paused, and by how many failures
        await automations.set_status(conn, caller.workspace_id, found["id"], "paused")
    await triggers.rest(conn, caller.workspace_id, found["id"])
    await cancelling.skip_waiting(conn, caller.workspace_id, found["id"], SkipReason.PAUSED)
    return AutomationId(found["id"])


async def resume(conn: Connection, caller: Caller, ref: str) -> AutomationId:
    """Fire again, from now on."""
    found = await _locked(conn, caller, ref, "resume this automation")
    if found["status"] != "active":
        await automations.set_status(conn, caller.workspace_id, found["id"], "active")
        await trigger_forms.resume(conn, found, now=await now_of(conn))
    return AutomationId(found["id"])


async def delete(conn: Connection, caller: Caller, ref: str) -> None:
    """Stop firing and forget nothing: history stays, and the automation can be restored."""
    found = await _locked(conn, caller, ref, "delete this automation")
    await passing.record(conn, caller.workspace_id, found["id"], SkipReason.DELETED)
    await automations.delete(conn, caller.workspace_id, found["id"])
    await triggers.rest(conn, caller.workspace_id, found["id"])
    await cancelling.skip_waiting(conn, caller.workspace_id, found["id"], SkipReason.DELETED)
    await ending.revoke_idle(conn, caller.workspace_id, found["id"])


async def restore(conn: Connection, caller: Caller, ref: str) -> AutomationId:
    """Take back a deletion, with a new grant of whoever restores it; next fire from now."""
    found = await find(conn, caller, ref, lock=True, deleted=True)
    caller.must_own(found["owner_id"], "restore this automation")
    if not found["deleted_at"]:
        raise Conflict("This automation is not deleted.", code="not_deleted")
    if await automations.find(conn, caller.workspace_id, found["slug"]):
        raise Conflict(
            f"Another automation has the slug {found['slug']!r} now; rename it first.",
            code="slug_taken",
            field="slug",
        )
    agent = await agent_rows.find(conn, caller.workspace_id, str(found["agent_id"]), hold=True)
    if not agent or agent["deleted_at"]:
        raise Conflict("Its agent is deleted.", code="agent_deleted")
    grant_id = await grants.make(
        conn, caller, found["agent_id"], scopes=found["scopes"], automation_id=found["id"], replaces=found["grant_id"]
    )  # fmt: skip
    restored = {**found, "grant_id": grant_id, "owner_id": caller.user_id}
    await _keep_session(conn, restored)
    changed = {name: restored[name] for name in ("grant_id", "owner_id", "session_id")}
    await automations.restore(conn, caller.workspace_id, found["id"], **changed)
    await _revise(conn, caller, restored)
    await trigger_forms.refuse_too_many(conn, caller.workspace_id)
    if found["status"] == "active":
        await trigger_forms.resume(conn, found, now=await now_of(conn))
    return AutomationId(found["id"])


async def find(
    conn: Connection, caller: Caller, ref: str, *, lock: bool = False, deleted: bool = False
) -> dict[str, Any]:
    found = await automations.find(conn, caller.workspace_id, ref, lock=lock)
    if not found or (found["deleted_at"] and not deleted):
        raise NotFound("There is no such automation.")
    return found


async def now_of(conn: Connection) -> datetime:
    return await clock.now(conn)


async def _agent(conn: Connection, caller: Caller, ref: str) -> dict[str, Any]:
    """The agent it shall use, held so that nobody changes or deletes it before this is saved."""
    try:
        return await agents.find(conn, caller, ref, hold=True)
    except NotFound:
        raise Invalid(f"There is no agent {ref[:64]!r}.", code="unknown_agent", field="agent") from None


async def _agent_after(
    conn: Connection, caller: Caller, found: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Its agent after a change. One that stays is not held: who changes it waits for this automation, and a wait
    for each other would be a deadlock."""
    wanted = values.get("agent", found["agent_slug"])
    if wanted in {found["agent_slug"], str(found["agent_id"])}:
        return await agents.find(conn, caller, str(found["agent_id"]))
    return await _agent(conn, caller, wanted)


async def _keep_session(conn: Connection, automation: dict[str, Any]) -> None:
    """With `session: same` it goes on in the session it has, or in a new one if that can only be read."""
    if automation["session"] == "same" and not await automations.can_go_on(conn, automation):
        automation["session_id"] = SessionId(new_id())
        await automations.open_session(conn, automation)


async def _read(
    conn: Connection,
    caller: Caller,
    form: Mapping[str, Any],
    now: datetime,
    stored: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    return await trigger_forms.read(conn, caller, form, now=now, field=_field(form), stored=stored)


def _field(form: Mapping[str, Any]) -> str:
    return str(form.get("field", "schedule"))


def _check(automation: Mapping[str, Any], agent: Mapping[str, Any]) -> None:
    check_http_secret(agent["executor"], automation["credentials"])
    if automation["prompt"] is None and automation["input"] is None:
        raise Invalid("Give a prompt, an input, or both.", code="nothing_to_do", field="prompt")
    if automation["catch_up"] == "all" and automation["catch_up_limit"] is None:
        raise Invalid("catch_up “all” needs a catch_up_limit: how many missed slots may run.", field="catch_up_limit")


async def _keep_authority(
    conn: Connection, caller: Caller, found: Mapping[str, Any], automation: dict[str, Any], *, accepted: bool
) -> None:
    """Who changes what the agent does answers for it: unless the grant is their own, it is replaced by one that is,
    which they must accept. One of their own that no longer holds, or is for another agent or other scopes, is replaced
    too."""
    automation["scopes"] = check_optional(automation["scopes"])
    changed = any(automation[name] != found[name] for name in ACTS)
    if changed:
        automation["credentials"] = await credentials.check_uses(conn, caller, automation["credentials"])
    grant = await grant_rows.find(conn, caller.workspace_id, found["grant_id"])
    assert grant, "an automation has a grant"
    mine = grant["user_id"] == caller.user_id
    if changed and not mine and not accepted:
        raise Conflict(
            f"It runs on the authority of {grant['user']}. Saved so, it would run on yours: send `accept_grant: true`.",
            code="grant_would_change", field="accept_grant", holder=grant["user"],
        )  # fmt: skip
    lapsed = grant["status"] != "valid" or any(automation[name] != found[name] for name in ("agent_id", "scopes"))
    if (changed and not mine) or (mine and lapsed):
        automation["grant_id"] = await grants.make(
            conn, caller, automation["agent_id"], scopes=automation["scopes"], automation_id=found["id"],
            replaces=found["grant_id"],
        )  # fmt: skip


def _spec(automation: Mapping[str, Any], agent: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    policies = _all_plain({name: automation[name] for name in POLICIES})
    forms = [{**trigger_forms.form_of(row), **_all_plain(trigger_forms.limits_of(row))} for row in rows]
    return {
        "name": automation["name"], "prompt": automation["prompt"], "input": automation["input"],
        "credentials": automation["credentials"], "agent": agents.spec(agent), "triggers": forms, **policies,
        **({"scopes": automation["scopes"]} if automation["scopes"] else {}),
    }  # fmt: skip


def _all_plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    match value:
        case timedelta():
            return format_duration(value)
        case datetime():
            return value.astimezone(UTC).isoformat()
        case _:
            return value
