"""Where a person wants to be told outside: saved once, never shown again, and tried out."""

from collections.abc import Collection
from importlib.util import find_spec
from typing import Any
from uuid import UUID

from rota.access.vault import Vault
from rota.db import targets as rows
from rota.db.pool import Connection
from rota.errors import Conflict, NotFound
from rota.model.address import AllowList
from rota.model.caller import Caller, Level
from rota.model.ids import WorkspaceId, new_id
from rota.model.outward import ALLOW_SETTING, MOST_TARGETS, checked_url
from rota.notify.courier_process import check_service
from rota.notify.reading import person


def place(workspace_id: WorkspaceId, target_id: UUID) -> str:
    """What a target's URL is bound to: in another row it doesn't open."""
    return f"target/{workspace_id}/{target_id}"


async def all_of(conn: Connection, caller: Caller) -> list[dict[str, Any]]:
    person(caller)
    return await rows.all_of(conn, caller.workspace_id, caller.user_id)


async def create(
    conn: Connection,
    vault: Vault,
    caller: Caller,
    *,
    name: str,
    url: str,
    allow: Collection[str] = (),
    schemes: Collection[str] = (),
) -> dict[str, Any]:
    """Seal a target. `allow` and `schemes` are the operator's."""
    person(caller)
    caller.must_be(Level.MEMBER, "be told outside")
    if find_spec("apprise") is None:
        raise Conflict("Install `rota[notify]` on the server to send notifications outward.", code="apprise_missing")
    if len(await rows.all_of(conn, caller.workspace_id, caller.user_id)) >= MOST_TARGETS:
        raise Conflict(f"You have {MOST_TARGETS} already; take one away first.", code="too_many_targets")
    scheme = checked_url(url.strip(), AllowList(allow, setting=ALLOW_SETTING), schemes)
    await check_service(url.strip(), scheme)
    target_id = new_id()
    sealed = vault.seal(url.strip(), place(caller.workspace_id, target_id))
    given = {"workspace_id": caller.workspace_id, "user_id": caller.user_id, "id": target_id, "name": name}
    await rows.insert(conn, {**given, "scheme": scheme, "sealed": sealed})
    return await find(conn, caller, target_id)


async def find(conn: Connection, caller: Caller, target_id: UUID) -> dict[str, Any]:
    person(caller)
    found = await rows.find(conn, caller.workspace_id, caller.user_id, target_id)
    if not found:
        raise NotFound("There is no such target.")
    return found


async def delete(conn: Connection, caller: Caller, target_id: UUID) -> None:
    """With what waits for it."""
    await find(conn, caller, target_id)
    await rows.delete(conn, caller.workspace_id, caller.user_id, target_id)


async def test(conn: Connection, caller: Caller, target_id: UUID) -> dict[str, Any]:
    """Put a test on its way; wake `OUTWARD` after the commit."""
    await find(conn, caller, target_id)
    caller.must_be(Level.MEMBER, "send a test")
    await rows.test(conn, caller.workspace_id, target_id)
    return await find(conn, caller, target_id)
