"""The workspace itself: its name, its time zone and its limits."""

from collections.abc import Mapping
from typing import Any

from rota.db import workspaces
from rota.db.pool import Connection
from rota.model.caller import Caller, Level
from rota.model.cron import load_zone


async def change(conn: Connection, caller: Caller, values: Mapping[str, Any]) -> None:
    """Change the fields in `values`; None takes a limit away. For admins."""
    caller.must_be(Level.ADMIN, "change the workspace")
    workspace = await workspaces.find(conn, caller.workspace_id, lock=True)
    if "timezone" in values:
        load_zone(values["timezone"])
    await workspaces.change(conn, {**workspace, **values})
