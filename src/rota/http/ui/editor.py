"""The editor: one form for a new automation and for one that is saved, and a preview of what it would do."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from rota.db import agents, credentials, grants, triggers
from rota.db.listener import RUNS, TRIGGERS
from rota.db.pool import Connection
from rota.errors import Conflict, Forbidden, Invalid
from rota.http.context import InUnit, Looking, Shared, Unit, Web, refuse
from rota.http.errors import of_validation, problem
from rota.http.shapes.automations import AutomationIn, AutomationPatch
from rota.http.shapes.triggers import TriggerIn
from rota.http.ui import choosing, drafts, words
from rota.http.ui.automations import ref_of
from rota.http.ui.drafts import Draft
from rota.http.ui.rendering import PageRoute, is_live, own_url, page, part, zone_of
from rota.http.ui.starters import STARTERS
from rota.model.agent_guide import GUIDES
from rota.model.caller import Caller, Level
from rota.model.credential import MOST_USES
from rota.model.cron import zone_names
from rota.model.ids import AutomationId, as_uuid
from rota.model.preview import ScheduleWarning
from rota.roster import automations, views
from rota.roster import triggers as forms
from rota.scheduler.preview import preview

FIRES = 5
MOST_CREDENTIALS = 200  # in a list to choose from
WEEKDAYS = {"mon": "Mon", "tue": "Tue", "wed": "Wed", "thu": "Thu", "fri": "Fri", "sat": "Sat", "sun": "Sun"}

editing = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/automations", include_in_schema=False)


class Fire(NamedTuple):
    """A slot to come, and the zone its trigger goes by."""

    at: datetime
    zone: str


class Foreseen(NamedTuple):
    """What a draft would do: each trigger in words or what is wrong with it, the next fires, and what may surprise."""

    texts: list[tuple[str, str]]
    fires: list[Fire]
    warnings: list[ScheduleWarning]
    sentence: str


# ── Pages ────────────────────────────────────────────────────────────────────────────────────────────────────────


@editing.get("/new")
async def new_page(unit: InUnit, request: Request, starter: str = "", agent: str = "") -> Response:
    """Blank, or with what a starter fills in; for the agent that is named, if there is one."""
    unit.caller.must_be(Level.MEMBER, "create an automation")
    chosen = next((each for each in STARTERS if each["key"] == starter), None)
    named = await agents.find(unit.conn, unit.caller.workspace_id, agent) if agent else None
    wanted = [named] if named and not named["deleted_at"] else []
    known = wanted or await agents.page(unit.conn, unit.caller.workspace_id, before=None, limit=1)
    given = {name: chosen[name] for name in ("name", "prompt", "trigger")} if chosen else {}
    draft = drafts.blank(zone_of(request, unit.caller), known[0]["slug"] if known else "", **given)
    return await _form(unit, request, draft, None)


@editing.post("/new")
async def create(unit: InUnit, request: Request, shared: Shared) -> Response:
    """Save it, or show the form again with everything that was typed."""
    unit.caller.must_be(Level.MEMBER, "create an automation")
    draft = await _sent(unit, request)
    if await _rearranged(unit, request, draft):
        return await _form(unit, request, draft, None)
    if not (automation_id := await _created(unit, draft)):
        return await _refused(unit, request, draft, None)
    unit.wake(RUNS, unit.caller.workspace_id)
    return await _saved(unit, request, shared, automation_id)


@editing.get("/{automation}/edit")
async def edit_page(unit: InUnit, request: Request, automation: str) -> Response:
    found = await automations.find(unit.conn, unit.caller, automation)
    unit.caller.must_own(found["owner_id"], "change this automation")
    [view] = await views.shown(unit.conn, unit.caller.workspace_id, [found])
    return await _form(unit, request, drafts.of(view), found)


@editing.post("/{automation}/edit")
async def change(unit: InUnit, request: Request, shared: Shared, automation: str) -> Response:
    found = await automations.find(unit.conn, unit.caller, automation)
    draft = await _sent(unit, request)
    if await _rearranged(unit, request, draft):
        return await _form(unit, request, draft, found)
    if not await _changed(unit, draft, found):
        return await _refused(unit, request, draft, found)
    return await _saved(unit, request, shared, AutomationId(found["id"]))


@editing.post("/preview")
async def preview_part(unit: Looking, request: Request, of: str = "") -> Response:
    """What the form would do as it stands. Saves nothing."""
    draft = await _sent(unit, request)
    return part(
        unit, request, "automations/_preview.html", foreseen=await foresee(unit.conn, unit.caller, draft, of or None)
    )


async def _sent(unit: Unit, request: Request) -> Draft:
    """What somebody sent, with the agent and the automations that they may have written by name."""
    draft = drafts.read(await request.form(), zone_of(request, unit.caller))
    draft.fields["agent"] = await _meant(unit, draft, choosing.AGENT, draft.fields["agent"], "agent")
    for at, given in enumerate(draft.triggers):
        if given["kind"] in forms.INBOUND and not given["id"]:  # which keeps no zone of its own
            given["clock"] = unit.caller.timezone
        if given["kind"] == "after":
            given["after"] = await _meant(unit, draft, choosing.AUTOMATION, given["after"], f"triggers.{at}.after")
    return draft


async def _meant(unit: Unit, draft: Draft, kind: choosing.Kind, typed: str, field: str) -> str:
    try:
        return await choosing.meant(unit.conn, unit.caller, kind, typed, field) if typed.strip() else ""
    except Invalid as refused:
        draft.errors.setdefault(field, refused.message)
    return typed


async def _refused(unit: Unit, request: Request, draft: Draft, found: Mapping[str, Any] | None) -> Response:
    """The form again; the audit log is told that it was refused."""
    field, message = next(iter(draft.errors.items()))
    refuse(request, problem(422, "invalid", message, field=field))
    return await _form(unit, request, draft, found)


async def _form(unit: Unit, request: Request, draft: Draft, found: Mapping[str, Any] | None) -> Response:
    conn, caller = unit.conn, unit.caller
    root = f"/w/{caller.workspace_slug}/automations"
    others = await choosing.automations_offered(conn, caller)
    facts = {
        "draft": draft,
        "typed": request.method == "POST",
        "automation": found,
        "action": f"{root}/{ref_of(found)}/edit" if found else f"{root}/new",
        "back": f"{root}/{ref_of(found)}" if found else root,
        "of": str(found["id"]) if found else "",
        "agents": await choosing.agents_offered(conn, caller),
        "credentials": await credentials.names(
            conn, caller.workspace_id, admin=caller.is_admin, limit=MOST_CREDENTIALS + 1
        ),
        "most_credentials": MOST_CREDENTIALS,
        "guides": GUIDES,
        "others": others.without(found["slug"]) if found else others,
        "gone": await _gone(conn, caller, found),
        "home": caller.timezone,
        "zones": sorted(zone_names()),
        "kinds": drafts.KINDS,
        "weekdays": WEEKDAYS,
        "foreseen": await foresee(conn, caller, draft, str(found["id"]) if found else None),
        "holder": await _holder(conn, caller, found),
        "me": caller.name,
    }
    if is_live(request):  # one trigger or secret more or less, in place
        shown = "secrets" if _pressed(request).startswith(("secret", "drop")) else "triggers"
        response = part(unit, request, f"automations/_{shown}.html", **facts)
        response.headers["HX-Trigger"] = json.dumps({"changed": {"target": "#preview"}})
        return response
    response = await page(unit, request, "automations/editor.html", **facts)
    response.status_code = 422 if draft.errors else 200
    return response


async def _gone(conn: Connection, caller: Caller, found: Mapping[str, Any] | None) -> dict[str, str]:
    """The automations it runs after that are deleted: how a form names them, and what a person reads."""
    stored = await _stored(conn, caller, str(found["id"])) if found else []
    gone = [each for each in stored if each["after_deleted_at"]]
    return {str(each["after_automation_id"]): f"{each['after_name']} (deleted)" for each in gone}


async def _holder(conn: Connection, caller: Caller, found: Mapping[str, Any] | None) -> str | None:
    """On whose behalf it runs, if that is somebody else's."""
    grant = await grants.find(conn, caller.workspace_id, found["grant_id"]) if found else None
    return grant["user"] if grant and grant["user_id"] != caller.user_id else None


async def _rearranged(unit: Unit, request: Request, draft: Draft) -> bool:
    """A button of the form other than “Save”: a trigger or a secret more or less, or a look at the preview."""
    pressed = _pressed(request) or str((await request.form()).get("do", "save"))
    wanted, _, digits = pressed.partition("-")
    at = int(digits) if digits.isdecimal() and len(digits) < 4 else MOST_USES  # there are never so many
    if wanted == "add" and len(draft.triggers) < forms.MOST_TRIGGERS:
        zone = draft.triggers[-1]["timezone"] if draft.triggers else zone_of(request, unit.caller)
        draft.triggers.append({**drafts.TRIGGER, "timezone": zone})
    elif wanted == "secret" and draft.secrets is not None and len(draft.secrets) < MOST_USES:
        draft.secrets.append(dict.fromkeys(drafts.SECRET, ""))
    elif wanted == "drop" and draft.secrets and at < len(draft.secrets):
        del draft.secrets[at]
    elif wanted == "remove" and at < len(draft.triggers):
        del draft.triggers[at]
    if wanted not in {"add", "remove", "secret", "drop", "preview"}:
        return False
    unit.record = None  # nothing is to be saved yet
    return True


def _pressed(request: Request) -> str:
    """The button of a part that htmx sends."""
    return request.query_params.get("do", "")


# ── Saving ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def _created(unit: Unit, draft: Draft) -> AutomationId | None:
    values = draft.values() | {"run_immediately": bool(draft.fields["run_immediately"])}
    given = await _checked(unit, draft, values, AutomationIn, [])
    if given is None:
        return None
    body, saved = given
    whole = {name: getattr(body, name) for name in type(body).model_fields}
    try:
        async with unit.conn.transaction():
            automation_id = await automations.create(unit.conn, unit.caller, whole, saved)
    except (Invalid, Conflict, Forbidden) as refused:
        draft.refuse(refused.field or "", refused.message)
        return None
    return automation_id


async def _changed(unit: Unit, draft: Draft, found: Mapping[str, Any]) -> bool:
    stored = await triggers.of_automations(unit.conn, unit.caller.workspace_id, [found["id"]])
    given = await _checked(unit, draft, draft.values(), AutomationPatch, stored)
    if given is None:
        return False
    body, saved = given
    try:
        async with unit.conn.transaction():
            await _refuse_if_stale(unit, draft, AutomationId(found["id"]))
            # The page has said on whose behalf it runs, and on whose once this is saved.
            await automations.change(unit.conn, unit.caller, str(found["id"]), body.given(), saved, accept_grant=True)
    except (Invalid, Conflict, Forbidden) as refused:
        draft.refuse(refused.field or "", refused.message)
    return not draft.errors


async def _refuse_if_stale(unit: Unit, draft: Draft, automation_id: AutomationId) -> None:
    """Nobody's change is overwritten unseen. Who has been told of it may save once more."""
    now = await automations.find(unit.conn, unit.caller, str(automation_id), lock=True)
    began, draft.revision = draft.revision, str(now["revision"])
    if began and began != draft.revision:
        told = (
            "It was changed while you were writing. Look at what it is now, then save again to put yours in its place."
        )
        raise Invalid(told, field="revision")


Body = AutomationIn | AutomationPatch


async def _checked(
    unit: Unit, draft: Draft, values: dict[str, Any], shape: type[Body], stored: Sequence[Mapping[str, Any]]
) -> tuple[Body, list[dict[str, Any]]] | None:
    """The body and the triggers' forms if everything is right; else every field that is wrong, each with its words."""
    body = _validated(draft, shape, values, "")
    saved: list[dict[str, Any]] = []
    for at, given in enumerate(draft.triggers):
        if empty := drafts.left_empty(given):
            draft.errors.update({f"triggers.{at}.{name}": told for name, told in empty.items()})
            continue
        form = drafts.kept(given, stored)
        checked = _validated(draft, TriggerIn, form, f"triggers.{at}.")
        if isinstance(checked, TriggerIn):
            saved.append(checked.form(f"triggers.{at}"))
            await _read(unit.conn, unit.caller, saved[-1], f"triggers.{at}", draft, stored)
    return (body, saved) if isinstance(body, Body) and not draft.errors else None


def _validated(draft: Draft, shape: type[Any], values: Mapping[str, Any], prefix: str) -> Any:
    try:
        return shape.model_validate(values, strict=False)
    except ValidationError as invalid:
        for each in of_validation(invalid.errors())["errors"]:
            draft.refuse(prefix + each["field"], each["message"])
    return None


async def _read(
    conn: Connection,
    caller: Caller,
    form: Mapping[str, Any],
    field: str,
    draft: Draft,
    stored: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any] | None:
    """A trigger as a row, or what is wrong with it."""
    try:
        now = await automations.now_of(conn)
        return await forms.read(conn, caller, form, now=now, field=field, stored=stored)
    except Invalid as refused:
        draft.refuse(refused.field or field, refused.message)
    return None


async def _saved(unit: Unit, request: Request, shared: Web, automation_id: AutomationId) -> Response:
    """On to its page; if a webhook was made, over one that shows its secret this once."""
    unit.wake(TRIGGERS)
    found = await automations.find(unit.conn, unit.caller, str(automation_id))
    [view] = await views.shown(unit.conn, unit.caller.workspace_id, [found])
    secrets = await new_secrets(unit, shared, view)
    if secrets:
        return await secrets_page(unit, request, shared, found, secrets)
    return RedirectResponse(f"/w/{unit.caller.workspace_slug}/automations/{ref_of(found)}", 303)


async def new_secrets(unit: Unit, shared: Web, view: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Address and secret of every webhook that had none."""
    found = []
    for each in view["triggers"]:
        if each["kind"] == "webhook":
            secret = await forms.first_secret(unit.conn, shared.vault, unit.caller.workspace_id, each["id"])
            found += [(each["hook_path"], secret)] if secret else []
    return found


async def secrets_page(
    unit: Unit, request: Request, shared: Web, automation: Mapping[str, Any], secrets: Sequence[tuple[str, str]]
) -> Response:
    shown = [(own_url(request, shared) + path, secret) for path, secret in secrets]
    return await page(
        unit, request, "automations/secrets.html", automation=automation, ref=ref_of(automation), secrets=shown
    )


# ── Foreseeing ───────────────────────────────────────────────────────────────────────────────────────────────────


async def foresee(conn: Connection, caller: Caller, draft: Draft, of: str | None) -> Foreseen:
    texts: list[tuple[str, str]] = []
    fires: list[Fire] = []
    warnings: list[ScheduleWarning] = []
    stored = await _stored(conn, caller, of)
    for given in draft.triggers:
        own = [each for each in stored if str(each["id"]) == given["id"]]
        text, found, warned = await _foresee_one(conn, caller, given, of, own)
        texts.append(text)
        fires += found
        warnings += [each for each in warned if each not in warnings]
    overlaps = {_overlap(each, draft.fields["overlap"]) for each in draft.triggers}
    told = {name: draft.fields[name] or str(drafts.blank("UTC").fields[name]) for name in drafts.POLICIES}
    return Foreseen(texts, sorted(fires)[:FIRES], warnings, words.policy_sentence(told, overlaps))


def _overlap(given: Mapping[str, Any], general: str) -> tuple[str, str]:
    kind = given["kind"] if given["kind"] in forms.INBOUND else "cron"
    return words.overlap_of(kind, given["overlap"] or None, general or None)


One = tuple[tuple[str, str], list[Fire], Sequence[ScheduleWarning]]


async def _stored(conn: Connection, caller: Caller, of: str | None) -> list[dict[str, Any]]:
    if not (of and (automation_id := as_uuid(of))):
        return []
    return await triggers.of_automations(conn, caller.workspace_id, [AutomationId(automation_id)])


async def _foresee_one(
    conn: Connection, caller: Caller, given: Mapping[str, Any], of: str | None, stored: Sequence[Mapping[str, Any]]
) -> One:
    """`stored` is the trigger as it is saved: unless its times change, it goes on from its anchor and its count."""
    if empty := drafts.left_empty(given):
        return ("", next(iter(empty.values()))), [], []
    same = drafts.untouched(given, stored)
    if given["kind"] in forms.INBOUND:
        return (views.text_of(same), "") if same else await _inbound(conn, caller, given), [], []
    apart = Draft({}, [])
    form = _validated(apart, TriggerIn, drafts.trigger_form(given), "")
    try:
        shown = await preview(conn, caller, drafts.when(given), after=None, count=1, automation=of)
    except Invalid as refused:
        return ("", refused.message), [], []
    row = await _read(conn, caller, form.form("trigger"), "trigger", apart) if form else None
    if row is None:
        return (shown.text, next(iter(apart.errors.values()))), [], shown.warnings
    whole = same or forms.going_on(row, stored)
    fires = _fires(whole, row["anchor_at"])
    return (views.text_of(whole), ""), fires, shown.warnings if fires else []  # nothing surprises of what never fires


async def _inbound(conn: Connection, caller: Caller, given: Mapping[str, Any]) -> tuple[str, str]:
    """In the words that its page will have for it once it is saved, or what is wrong with it."""
    apart = Draft({}, [])
    form = _validated(apart, TriggerIn, drafts.trigger_form(given), "")
    row = await _read(conn, caller, form.form("trigger"), "trigger", apart) if form else None
    if row is None:
        return "", next(iter(apart.errors.values()))
    earlier = row["after_automation_id"] and await automations.find(conn, caller, str(row["after_automation_id"]))
    return views.text_of({**row, "after_name": earlier["name"] if earlier else None}), ""


def _fires(row: Mapping[str, Any], now: datetime) -> list[Fire]:
    upcoming = forms.upcoming([{**row, "next_fire_at": forms.next_fire(row, now)}], FIRES, now)
    return [Fire(each, row["timezone"]) for each in upcoming]
