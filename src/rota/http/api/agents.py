"""Agents: who works."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from rota.db import agents as rows
from rota.db import runs, sessions
from rota.db.listener import RUNS
from rota.errors import Forbidden
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.api.repeats import IdempotencyKey, Once
from rota.http.context import InUnit, Shared, Unit, Web
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.agents import AgentIn, AgentOut, AgentPatch, RunAgentIn
from rota.http.shapes.pages import Page, page_of, read_cursor
from rota.http.shapes.runs import RunOut
from rota.http.shapes.sessions import SessionOut
from rota.model.agent_config import BARRED, LOCAL_KINDS
from rota.model.ids import AgentId
from rota.roster import agents, running

router = APIRouter(prefix=API + "/agents", tags=["agents"], route_class=Repeatable)

DryRun = Annotated[bool, Query(description="Check it, and answer with 200 as if it were saved; nothing is")]


@router.get("")
async def list_agents(unit: InUnit, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[AgentOut]:
    """Agents, newest first."""
    found = await rows.page(unit.conn, unit.caller.workspace_id, before=read_cursor(cursor), limit=limit + 1)
    return page_of(found, limit, AgentOut)


@router.post("", status_code=201, responses={200: {"model": AgentOut, "description": "With `dry_run`"}})
async def create_agent(
    unit: InUnit, shared: Shared, once: Once, response: Response, body: AgentIn, dry_run: DryRun = False
) -> AgentOut:
    """Save an agent. A program that this machine doesn't have is a warning: the worker may be another machine."""
    if dry_run:
        unit.only_try(response)
    values: dict[str, Any] = body.model_dump()
    refuse_barred(unit, shared, body.executor)
    warnings: Sequence[str] = ()

    async def make() -> AgentId:
        nonlocal warnings
        agent, warnings = await agents.create(unit.conn, unit.caller, values, allow=shared.http_allow)
        return AgentId(agent["id"])

    agent = await agents.find(unit.conn, unit.caller, str(await once(body, make)))
    return AgentOut.model_validate({**agent, "warnings": warnings})


@router.get("/{agent}")
async def get_agent(unit: InUnit, agent: str) -> AgentOut:
    """One agent, by id or slug."""
    return AgentOut.model_validate(await agents.find(unit.conn, unit.caller, agent))


@router.patch("/{agent}")
async def change_agent(
    unit: InUnit, shared: Shared, response: Response, agent: str, body: AgentPatch, dry_run: DryRun = False
) -> AgentOut:
    """Change an agent: a new revision of it and of each automation that uses it, unless only `status` or
    `max_concurrent` changes. Fired runs keep theirs."""
    if dry_run:
        unit.only_try(response)
    if "executor" in body.model_fields_set:
        refuse_barred(unit, shared, body.executor)
    changed, warnings = await agents.change(unit.conn, unit.caller, agent, body.given(), allow=shared.http_allow)
    return AgentOut.model_validate({**changed, "warnings": warnings})


def refuse_barred(unit: Unit, shared: Web, kind: str) -> None:
    """Kinds that run programs on the server, where its operator does not allow that."""
    if not shared.settings.local_agents and unit.caller.is_admin and kind in LOCAL_KINDS:
        raise Forbidden(BARRED.format(kind=kind), code="local_agents_off", field="executor")


@router.delete("/{agent}", status_code=204)
async def delete_agent(unit: InUnit, agent: str) -> None:
    """Delete an agent. Answers 409 while automations use it."""
    await agents.delete(unit.conn, unit.caller, agent)


@router.get("/{agent}/runs")
async def list_agent_runs(
    unit: InUnit, agent: str, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[RunOut]:
    """Runs of one agent, newest first."""
    found = await agents.find(unit.conn, unit.caller, agent)
    page = await runs.page(
        unit.conn, unit.caller.workspace_id, before=read_cursor(cursor), limit=limit + 1, agent_id=found["id"]
    )
    return page_of(page, limit, RunOut)


@router.get("/{agent}/sessions")
async def list_agent_sessions(
    unit: InUnit, agent: str, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[SessionOut]:
    """Sessions of one agent, newest first: those that were opened with it, and those of its automations and runs."""
    found = await agents.find(unit.conn, unit.caller, agent)
    page = await sessions.page(
        unit.conn, unit.caller.workspace_id, before=read_cursor(cursor), limit=limit + 1, agent_id=found["id"]
    )
    return page_of(page, limit, SessionOut)


@router.post("/{agent}/runs", status_code=201)
async def run_agent(
    unit: InUnit, agent: str, body: RunAgentIn | None = None, idempotency_key: IdempotencyKey = None
) -> RunOut:
    """Run an agent directly, in a session of its own. The kinds `command`, `python`, `http` and `kubernetes` need
    neither a prompt nor an input."""
    conn, caller, body = unit.conn, unit.caller, body or RunAgentIn()
    found = await agents.find(conn, caller, agent)
    request = {"run": "agent", "agent": str(found["id"]), **body.model_dump()}
    values = {"prompt": body.prompt, "input": body.input, "timeout": body.timeout, "scopes": body.scopes}
    run_id = await running.once_for_key(
        conn,
        caller,
        idempotency_key,
        request,
        lambda: running.run_agent(conn, caller, agent, values),
    )
    unit.about(run_id)
    unit.wake(RUNS, unit.caller.workspace_id)
    return RunOut.model_validate(await runs.find(conn, caller.workspace_id, run_id))
