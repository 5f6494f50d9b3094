"""The pages of agents: who works here, how each stands, what it does, and what can be done with it."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db import agents as rows
from rota.db import automations, runs, workers
from rota.db.listener import RUNS
from rota.db.pool import Connection
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Shared, Unit, Web
from rota.http.shapes.agents import RunAgentIn
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui import forms
from rota.http.ui import live as stream
from rota.http.ui.automations import ref_of as automation_ref
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import Next, PageRoute, done, fingerprint, is_live, page, part
from rota.model.agent_config import LOCAL_KINDS, PROMPTLESS_KINDS
from rota.model.caller import Caller, Level
from rota.roster import agents, running

LISTED, RECENT, NAMED = 50, 10, 20
RESERVED = {"new"}  # slugs whose address is a page of its own

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/agents", include_in_schema=False)


def ref_of(agent: Mapping[str, Any]) -> str:
    return str(agent["id"] if agent["slug"] in RESERVED else agent["slug"])


def address_of(caller: Caller, agent: Mapping[str, Any]) -> str:
    return f"/w/{caller.workspace_slug}/agents/{ref_of(agent)}"


@router.get("")
async def list_page(
    unit: InUnit,
    request: Request,
    shared: Shared,
    cursor: Cursor = None,
    live: Live = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Agents, newest first, each with how it stands and what it did last."""
    look = partial(_list, shared=shared, before=read_cursor(cursor))
    view = View("agents/list.html", "agents/_results.html", "agents/_list.html", look)
    return await stream.shown(unit, request, shared, view, live, last_event_id)


async def _list(conn: Connection, caller: Caller, *, shared: Web, before: UUID | None) -> dict[str, Any]:
    found = await rows.page(conn, caller.workspace_id, before=before, limit=LISTED + 1)
    older, found = len(found) > LISTED, found[:LISTED]
    ids = [each["id"] for each in found]
    used = await rows.used_by(conn, caller.workspace_id, ids)
    latest = await runs.latest_of_agents(conn, caller.workspace_id, ids)
    served = await workers.served(conn, dead_after=shared.settings.timeouts.dead)
    return {
        "agents": [{**each, "ref": ref_of(each), "unserved": _unserved(each, served)} for each in found],
        "used": used,
        "latest": latest,
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
        "lives": before is None,
        "seen": fingerprint(found, used, latest, served, older),
    }


# ── One agent ────────────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/{agent}")
async def agent_page(
    unit: InUnit, request: Request, shared: Shared, agent: str, live: Live = None, last_event_id: LastEventId = None
) -> Response:
    found = await agents.find(unit.conn, unit.caller, agent)
    look = _look(shared, str(found["id"]))
    view = View("agents/agent.html", "agents/_agent_results.html", "agents/_agent.html", look)
    return await stream.shown(unit, request, shared, view, live, last_event_id)


def _look(shared: Web, ref: str) -> stream.Look:
    return partial(_agent, shared=shared, ref=ref)


async def _agent(conn: Connection, caller: Caller, *, shared: Web, ref: str) -> dict[str, Any]:
    found = await agents.find(conn, caller, ref)
    used = await automations.of_agent(conn, caller.workspace_id, found["id"], limit=NAMED + 1)
    latest = await runs.latest_of_agents(conn, caller.workspace_id, [found["id"]], limit=RECENT)
    recent = latest.get(found["id"], [])
    subjects = await runs.subjects(conn, caller.workspace_id, [each["id"] for each in recent])
    served = await workers.served(conn, dead_after=shared.settings.timeouts.dead)
    unserved = _unserved(found, served)
    sandboxes = await _sandboxes(conn, shared, found)
    doubts = await agents.doubts(conn, found, shared.http_allow) if caller.is_admin else []
    return {
        "agent": {**found, "ref": ref_of(found), "unserved": unserved},
        "needs_prompt": found["executor"] not in PROMPTLESS_KINDS,
        "automations": [{**each, "ref": automation_ref(each)} for each in used[:NAMED]],
        "more": len(used) > NAMED,
        "doubts": doubts,
        "sandboxes": sandboxes,
        "runs": recent,
        "served": served,
        "subjects": subjects,
        "form": UNTOUCHED,
        "lives": True,
        "seen": fingerprint(found, used, recent, subjects, doubts, sandboxes, served),
    }


async def _sandboxes(conn: Connection, shared: Web, agent: Mapping[str, Any]) -> list[str]:
    """The sandboxes in force on the workers that would run it; none for a kind without a process on their machine."""
    if agent["executor"] not in LOCAL_KINDS:
        return []
    dead_after = shared.settings.timeouts.dead
    return await workers.sandboxes(conn, kind=agent["executor"], pool=agent["pool"], dead_after=dead_after)


def _unserved(agent: Mapping[str, Any], served: Mapping[str, Collection[str]]) -> workers.Lacking | None:
    """What of it no live worker serves: its kind, or that in its pool; or that there is no worker."""
    return workers.lacking(served, agent["executor"], agent["pool"])


async def _refused(unit: Unit, request: Request, shared: Web, agent: str, form: Form) -> Response:
    """The page again, or for htmx its forms, with what was typed beside what is wrong with it."""
    facts = {**await _look(shared, agent)(unit.conn, unit.caller), "form": form}
    if is_live(request):
        response = part(unit, request, "agents/_deeds.html", **facts)
        response.headers.update({"HX-Retarget": "#deeds", "HX-Reswap": "innerHTML"})
    else:
        # Its own stream belongs to its own address, which is not that of a form.
        response = await page(unit, request, "agents/agent.html", **{**facts, "lives": False})
    response.status_code = form.status
    return response


# ── What can be done ─────────────────────────────────────────────────────────────────────────────────────────────


@router.post("/{agent}/run")
async def run(unit: InUnit, request: Request, shared: Shared, agent: str) -> Response:
    """Run it with a prompt, in a session of its own; on to that."""
    unit.caller.must_be(Level.MEMBER, "run an agent")
    found = await agents.find(unit.conn, unit.caller, agent)
    typed = await forms.typed(request, "prompt", "scopes")
    try:
        async with unit.conn.transaction():
            prompt, scopes = typed["prompt"].replace("\r\n", "\n") or None, [typed["scopes"]] if typed["scopes"] else []
            body = RunAgentIn.model_validate({"prompt": prompt, "scopes": scopes})
            run_id = await running.run_agent(unit.conn, unit.caller, str(found["id"]), body.model_dump())
    except forms.WRONG as wrong:
        return await _refused(unit, request, shared, agent, forms.rejected(request, wrong, "run", typed))
    unit.wake(RUNS, unit.caller.workspace_id)
    started = await runs.find(unit.conn, unit.caller.workspace_id, run_id)
    assert started
    return forms.gone(request, f"/w/{unit.caller.workspace_slug}/sessions/{started['session_id']}")


async def _turn(unit: Unit, request: Request, agent: str, to: str, status: str, told: str) -> Response:
    changed, _ = await agents.change(unit.conn, unit.caller, agent, {"status": status})
    unit.wake(RUNS, unit.caller.workspace_id)  # what waited behind a run that is skipped now goes on
    return done(request, to or address_of(unit.caller, changed), f"{changed['name']} {told}")


@router.post("/{agent}/pause")
async def pause(unit: InUnit, request: Request, agent: str, to: Next = "") -> Response:
    return await _turn(unit, request, agent, to, "paused", "is paused. What waited for it is skipped.")


@router.post("/{agent}/resume")
async def resume(unit: InUnit, request: Request, agent: str, to: Next = "") -> Response:
    return await _turn(unit, request, agent, to, "active", "works again.")


@router.post("/{agent}/delete")
async def delete(unit: InUnit, request: Request, shared: Shared, agent: str) -> Response:
    """For good; refused while automations use it."""
    unit.caller.must_be(Level.ADMIN, "delete an agent")
    try:
        async with unit.conn.transaction():
            await agents.delete(unit.conn, unit.caller, agent)
    except forms.WRONG as wrong:
        return await _refused(unit, request, shared, agent, forms.rejected(request, wrong, "delete", {}))
    return forms.gone(request, f"/w/{unit.caller.workspace_slug}/agents")
