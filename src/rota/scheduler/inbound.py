"""What comes from outside: webhooks and named events fire their triggers, each message once."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from rota.access.vault import Vault
from rota.db import isolation, triggers, webhook_secrets
from rota.db.listener import RUNS
from rota.db.pool import Connection, Database
from rota.errors import Broken, NotFound
from rota.model import webhook
from rota.model.caller import Caller, Level
from rota.model.ids import WorkspaceId
from rota.model.run import Source
from rota.roster.automations import now_of
from rota.runs import triggering
from rota.runs.triggering import Fired, Occurrence


async def receive_webhook(
    db: Database, vault: Vault, trigger_id: UUID, *, headers: dict[str, str | None], body: bytes, payload: Any
) -> Fired:
    """Check the signature and start the run. The same webhook-id gives the same run."""
    async with db.transaction() as conn:
        # The trigger's id is all that is known: the one look that is not within a workspace.
        found = await triggers.find_webhook(conn, trigger_id)
        if not found:
            raise NotFound("There is no such webhook.")
        workspace_id = WorkspaceId(found[0])
        await isolation.confine(db, conn, workspace_id)
        conn.wake(RUNS, [workspace_id])
        return await _fire_webhook(conn, vault, workspace_id, trigger_id, headers, body, payload)


async def _fire_webhook(
    conn: Connection,
    vault: Vault,
    workspace_id: WorkspaceId,
    trigger_id: UUID,
    headers: dict[str, str | None],
    body: bytes,
    payload: Any,
) -> Fired:
    sealed = await webhook_secrets.valid(conn, workspace_id, trigger_id)
    places = [(each, f"webhook/{workspace_id}/{trigger_id}/{secret_id}") for secret_id, each in sealed]
    key = webhook.verify(_opened(vault, places), **headers, body=body, now=await now_of(conn))
    fired = await triggering.fire(conn, [Occurrence(workspace_id, trigger_id, Source.WEBHOOK, key, payload)])
    if (trigger_id, key) not in fired:
        raise NotFound("There is no such webhook.")  # it is past its limits
    return fired


def _opened(vault: Vault, sealed: Sequence[tuple[bytes, str]]) -> list[str]:
    """The secrets whose key is at hand. One that was sealed with a lost key must not shut out its successor."""
    opened, failures = [], []
    for each, place in sealed:
        try:
            opened.append(vault.unseal(each, place))
        except Broken as failure:
            failures.append(failure)
    if failures and not opened:
        raise failures[0]
    return opened


async def publish_event(conn: Connection, caller: Caller, event: str, data: Any, key: str | None) -> Fired:
    """Fire every trigger of this workspace that waits for the event."""
    caller.must_be(Level.MEMBER, "post an event")
    return await triggering.publish(conn, caller.workspace_id, event, data, key)
