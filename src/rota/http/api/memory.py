"""What an automation remembers from one run to the next."""

from fastapi import APIRouter

from rota.db import memory as rows
from rota.errors import NotFound
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.context import InUnit
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.memory import MemoryIn, MemoryOut
from rota.http.shapes.pages import Page, cursor_of, read_text_cursor
from rota.model.ids import AutomationId
from rota.model.memory import Remembered
from rota.roster import automations
from rota.sessions import memory

router = APIRouter(prefix=API + "/automations/{automation}/memory", tags=["memory"], route_class=Repeatable)


@router.get("")
async def list_memory(
    unit: InUnit, automation: str, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[MemoryOut]:
    """What the automation remembers, by key. What has expired is not there."""
    found = await automations.find(unit.conn, unit.caller, automation, deleted=True)
    kept = await rows.page(
        unit.conn, unit.caller.workspace_id, found["id"], after=read_text_cursor(cursor) or "", limit=limit + 1
    )
    items = [MemoryOut.model_validate(each) for each in kept[:limit]]
    return Page(items=items, next_cursor=cursor_of(items[-1].key) if len(kept) > limit else None)


@router.get("/{key}")
async def get_memory(unit: InUnit, automation: str, key: str) -> MemoryOut:
    """What is remembered under a key; 404 if nothing is, or no longer."""
    found = await automations.find(unit.conn, unit.caller, automation, deleted=True)
    kept = await memory.recall(unit.conn, unit.caller.workspace_id, AutomationId(found["id"]), key)
    if not kept:
        raise NotFound("Nothing is remembered under this key.")
    return MemoryOut.model_validate(kept)


@router.put("/{key}")
async def put_memory(unit: InUnit, automation: str, key: str, body: MemoryIn) -> MemoryOut:
    """Remember a value under a key, in place of the one before; with `ttl` for a time."""
    found = await automations.find(unit.conn, unit.caller, automation)
    unit.caller.must_own(found["owner_id"], "change what this automation remembers")
    given = Remembered(key, body.value, body.ttl, body.confidence)
    kept = await memory.remember(unit.conn, unit.caller.workspace_id, AutomationId(found["id"]), given)
    return MemoryOut.model_validate(kept)


@router.delete("/{key}", status_code=204)
async def delete_memory(unit: InUnit, automation: str, key: str) -> None:
    """Forget what is under a key."""
    found = await automations.find(unit.conn, unit.caller, automation)
    unit.caller.must_own(found["owner_id"], "change what this automation remembers")
    await memory.forget(unit.conn, unit.caller.workspace_id, AutomationId(found["id"]), key)
