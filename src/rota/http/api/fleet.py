"""The fleet: workers, and which kinds of agents somebody serves."""

from typing import Any

from fastapi import APIRouter

from rota.db import snapshots, workers
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.context import InUnit, Shared
from rota.http.routes import API
from rota.http.shapes.fields import Instant
from rota.http.shapes.fleet import SnapshotOut, WorkerOut
from rota.http.shapes.pages import Page, page_of, read_cursor
from rota.model import agent_config
from rota.model.agent_guide import guide_to

router = APIRouter(prefix=API, tags=["fleet"])


@router.get("/workers")
async def list_workers(unit: InUnit, shared: Shared) -> Page[WorkerOut]:
    """Workers, how they are, and the runs of this workspace in their hands with the last line each has said."""
    found = await workers.all_of(unit.conn, unit.caller.workspace_id, dead_after=shared.settings.timeouts.dead)
    return Page(items=[WorkerOut.model_validate(each) for each in found])


@router.get("/snapshots")
async def list_snapshots(
    unit: InUnit, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None, before: Instant | None = None
) -> Page[SnapshotOut]:
    """How the house was doing, newest first; with `before`, only what was taken before that instant."""
    found = await snapshots.page(unit.conn, before=before, last=read_cursor(cursor), limit=limit + 1)
    return page_of(found, limit, SnapshotOut)


@router.get("/executors")
async def list_executors(unit: InUnit, shared: Shared) -> Page[dict[str, Any]]:
    """Kinds of agents, whether a live worker serves them, and in which pools. Those that Rota brings say what they run
    and need, with an agent to begin with."""
    served = await workers.served(unit.conn, dead_after=shared.settings.timeouts.dead)
    kinds = sorted(served.keys() | set(agent_config.KINDS))
    return Page(
        items=[
            {"kind": kind, "served": kind in served, "pools": served.get(kind, []), **_guided(kind)} for kind in kinds
        ]
    )


def _guided(kind: str) -> dict[str, Any]:
    guide = guide_to(kind)
    if guide is None:
        return {}
    return {"runs": guide.runs, "extra": guide.extra, "needs": guide.needs or None, "example": guide.example}
