"""Grants: whose authority agents run on, what it allows, and one way to end it."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query

from rota.db import grants as rows
from rota.db.listener import RUNS
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.context import InUnit, Unit
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.grants import GrantOut, GrantStory
from rota.http.shapes.pages import Page, page_of, read_cursor
from rota.roster import automations, grants

router = APIRouter(prefix=API + "/grants", tags=["grants"], route_class=Repeatable)


@router.get("")
async def list_grants(
    unit: InUnit,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    user: Annotated[UUID | None, Query(description="Id of whose they are")] = None,
    automation: Annotated[str | None, Query(min_length=1, description="Id or slug")] = None,
    status: Literal["valid", "revoked", "expired"] | None = None,
) -> Page[GrantOut]:
    """Grants, newest first: who lets which agents run. With `automation`, the history of its grants."""
    found = await automations.find(unit.conn, unit.caller, automation, deleted=True) if automation else None
    page = await rows.page(
        unit.conn, unit.caller.workspace_id, before=read_cursor(cursor), limit=limit + 1, user_id=user,
        automation_id=found["id"] if found else None, status=status,
    )  # fmt: skip
    return page_of(page, limit, GrantOut)


async def _story(unit: Unit, grant_id: UUID) -> GrantStory:
    found = await grants.find(unit.conn, unit.caller, grant_id)
    return GrantStory.model_validate({**found, **await rows.uses(unit.conn, unit.caller.workspace_id, found)})


@router.get("/{grant_id}")
async def get_grant(unit: InUnit, grant_id: UUID) -> GrantStory:
    """One grant: what it allows, which automations run on it now, and what it was used for."""
    return await _story(unit, grant_id)


@router.post("/{grant_id}/revoke")
async def revoke_grant(unit: InUnit, grant_id: UUID) -> GrantStory:
    """End it now: what waits is skipped, what has begun fails `grant_invalid`, its agents are stopped and get no
    credentials. Automations stay and skip until their grant is renewed. A repeat changes nothing."""
    await grants.revoke(unit.conn, unit.caller, grant_id)
    unit.wake(RUNS, unit.caller.workspace_id)
    return await _story(unit, grant_id)
