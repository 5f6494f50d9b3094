"""The forms of agents: choosing a kind, and one form for a new agent and for one that is saved."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from rota.db import credentials, workers
from rota.errors import Conflict, Forbidden, Invalid
from rota.http.api.agents import refuse_barred
from rota.http.context import InUnit, Shared, Unit, Web
from rota.http.ui import agent_fields, forms
from rota.http.ui.agents import address_of
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.rendering import PageRoute, local, page
from rota.model.agent_config import BARRED, KINDS, LOCAL_KINDS
from rota.model.agent_guide import Guide, guide_to
from rota.model.caller import Level
from rota.roster import agents

NAMED = 8  # credentials, in one line
STALE = "It was changed while you were writing. Look at what it is now, then save again to put yours in its place."
WRONG = (*forms.WRONG, Forbidden)

editing = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/agents", include_in_schema=False)


class Kind(NamedTuple):
    """A kind to choose. `barred` is why it cannot be used here; without a guide an installed package brings it."""

    kind: str
    guide: Guide | None
    served: bool
    barred: str


async def _kinds(unit: Unit, shared: Web) -> list[Kind]:
    served = await workers.served(unit.conn, dead_after=shared.settings.timeouts.dead)
    known = (*KINDS, *sorted(served.keys() - {*KINDS}))
    return [Kind(each, guide_to(each), each in served, _barred(shared, each)) for each in known]


def _barred(shared: Web, kind: str) -> str:
    return "" if shared.settings.local_agents or kind not in LOCAL_KINDS else BARRED.format(kind=kind)


# ── Pages ────────────────────────────────────────────────────────────────────────────────────────────────────────


@editing.get("/new")
async def new_page(
    unit: InUnit, request: Request, shared: Shared, kind: str = "", to: Annotated[str, Query(alias="next")] = ""
) -> Response:
    """The kinds to choose from; with one that is chosen, the form. `next` is the page that wants an agent."""
    unit.caller.must_be(Level.ADMIN, "create an agent")
    known = await _kinds(unit, shared)
    if not kind:
        return await page(unit, request, "agents/kinds.html", kinds=known, start=_start(unit, to), chosen="")
    return await _form(unit, request, shared, None, agent_fields.blank(_chosen(kind, known)), to=to)


def _start(unit: Unit, to: str) -> str:
    """What the address of a new agent's form begins with, before its kind."""
    came = f"next={quote(to, safe='/')}&" if local(to, "") else ""
    return f"/w/{unit.caller.workspace_slug}/agents/new?{came}kind="


def _chosen(kind: str, known: list[Kind]) -> str:
    if kind not in {each.kind for each in known}:
        raise Invalid("There is no such kind of agent; choose one of those that the page lists.", field="kind")
    return kind


@editing.get("/{agent}/edit")
async def edit_page(unit: InUnit, request: Request, shared: Shared, agent: str, kind: str = "") -> Response:
    """As it is saved; with another kind, what that needs in place of its configuration."""
    unit.caller.must_be(Level.ADMIN, "change an agent")
    found = await agents.find(unit.conn, unit.caller, agent)
    fields = agent_fields.of(found)
    if kind and kind != found["executor"]:
        chosen = agent_fields.blank(_chosen(kind, await _kinds(unit, shared)))
        fields |= {name: chosen[name] for name in ("executor", "config")}
    return await _form(unit, request, shared, found, fields)


async def _form(
    unit: Unit,
    request: Request,
    shared: Web,
    found: Mapping[str, Any] | None,
    fields: Mapping[str, str],
    form: Form = UNTOUCHED,
    to: str = "",
) -> Response:
    known = await credentials.page(unit.conn, unit.caller.workspace_id, before=None, limit=NAMED + 1)
    root = f"/w/{unit.caller.workspace_slug}/agents"
    home = address_of(unit.caller, found) if found else root
    facts = {
        "agent": found,
        "fields": fields,
        "of": str(found["id"]) if found else "new",
        "guide": guide_to(fields["executor"]),
        "kinds": await _kinds(unit, shared),
        "credentials": [each["name"] for each in known[:NAMED]],
        "more_credentials": len(known) > NAMED,
        "revision": form.fields.get("revision") or (str(found["revision"]) if found else ""),
        "action": f"{home}/change" if found else root,
        "start": f"{home}/edit?kind=" if found else _start(unit, to),
        "back": home,
        "next": local(to, ""),
    }
    return await forms.shown(unit, request, "agents/form.html", form, **facts)


# ── Saving ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def _typed(request: Request) -> dict[str, str]:
    typed = await forms.typed(request, *agent_fields.SHOWN, "revision")
    return {name: text.replace("\r\n", "\n") for name, text in typed.items()}  # as browsers send the end of a line


@editing.post("")
async def create(unit: InUnit, request: Request, shared: Shared) -> Response:
    """Save it, or show the form again with everything that was typed."""
    unit.caller.must_be(Level.ADMIN, "create an agent")
    typed, to = await _typed(request), (await forms.typed(request, "next"))["next"]
    try:
        async with unit.conn.transaction():
            refuse_barred(unit, shared, typed["executor"])
            values = agent_fields.read(typed)
            saved, _ = await agents.create(unit.conn, unit.caller, values, allow=shared.http_allow)
    except WRONG as wrong:
        return await _form(unit, request, shared, None, typed, forms.rejected(request, wrong, "new", typed), to)
    unit.about(saved["id"])
    return forms.gone(request, local(to, address_of(unit.caller, saved)))


@editing.post("/{agent}/change")
async def change(unit: InUnit, request: Request, shared: Shared, agent: str) -> Response:
    """What the form shows is put in place of what was there; the rest stays."""
    unit.caller.must_be(Level.ADMIN, "change an agent")
    found = await agents.find(unit.conn, unit.caller, agent, lock=True)
    typed = await _typed(request)
    began, typed["revision"] = typed["revision"], str(found["revision"])
    try:
        async with unit.conn.transaction():
            if began and began != typed["revision"]:
                raise Conflict(STALE)
            if typed["executor"] != found["executor"]:
                refuse_barred(unit, shared, typed["executor"])
            values, ref = agent_fields.read(typed), str(found["id"])
            saved, _ = await agents.change(unit.conn, unit.caller, ref, values, allow=shared.http_allow)
    except WRONG as wrong:
        return await _form(unit, request, shared, found, typed, forms.rejected(request, wrong, found["id"], typed))
    return forms.gone(request, address_of(unit.caller, saved))
