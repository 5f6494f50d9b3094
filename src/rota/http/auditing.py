"""One row of the audit log for every request that changes something, also for those that were refused."""

import logging
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fastapi import Request

from rota.db import audit, isolation
from rota.db.at_once import Step
from rota.db.audit import Entry
from rota.db.pool import PASSING, Connection, Database
from rota.http.errors import of_any
from rota.http.routes import within_workspace
from rota.model.audit import Action, action_of, difference
from rota.model.caller import Caller

log = logging.getLogger(__name__)

CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# What happens often and is told elsewhere in full: for these nothing is looked at before and after.
BRISK = frozenset({("run", "create"), ("automation", "run"), ("event", "create"), ("message", "ack")})
LONGEST_REF = 200  # a key of a memory; ids, slugs and names are shorter


def _cut(ref: str) -> str:
    """What names something is never longer; what does not, however long, must fit the log's index all the same."""
    return ref if len(ref) <= LONGEST_REF else f"{ref[: LONGEST_REF - 1]}…"


@dataclass(slots=True)
class Record:
    """What one request asks to change, and how that thing stood before."""

    action: Action
    object_id: str | None
    ip: str | None
    _before: dict[str, Any] | None = field(default=None, init=False)

    @classmethod
    def of(cls, request: Request) -> "Record | None":
        """None for a request that only reads."""
        if request.method not in CHANGING:
            return None
        path = within_workspace(request)
        action = action_of(request.method, path)
        named = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        about = path.rstrip("/").endswith("}") or action.verb != "create"
        ref = request.path_params.get(named[-1]) if named and about else None
        if action.kind == "workspace":
            ref = request.path_params["workspace"]
        return cls(action, None if ref is None else _cut(str(ref)), request.client.host if request.client else None)

    async def look(self, conn: Connection, caller: Caller) -> None:
        """Remember how the thing stands before it is changed, and its id if it was named by its slug."""
        if self.object_id is not None and self.action not in BRISK:
            self._before = await audit.look(conn, caller.workspace_id, self.action.kind, self.object_id)
        if self._before:
            self.object_id = str(self._before["id"])

    def about(self, object_id: UUID) -> None:
        """The thing that was made, or that was named by its slug."""
        self.object_id = str(object_id)

    async def tell(self, conn: Connection, caller: Caller, status: int) -> Step:
        """The last step of the change's transaction, with what is answered to it."""
        after = None
        if self.object_id is not None and self.action not in BRISK:
            after = await audit.look(conn, caller.workspace_id, self.action.kind, self.object_id)
        before, after = difference(self._before, after)
        return audit.adding(self._entry(caller, status, before=before, after=after))

    async def write_refusal(self, db: Database, caller: Caller, error: BaseException | dict[str, Any]) -> None:
        """In a transaction of its own: that of the change is gone."""
        told = error if isinstance(error, dict) else of_any(error)
        try:
            async with isolation.in_workspace(db, caller.workspace_id) as conn:
                await audit.add(conn, self._entry(caller, told["status"], code=told["code"]))
        except PASSING as failure:
            log.warning("audit.unwritten", extra={"action": str(self.action), "error": str(failure).strip()})

    def _entry(self, caller: Caller, status: int, **facts: Any) -> Entry:
        return Entry(
            caller.workspace_id, caller.user_id, str(self.action), self.action.kind, self.object_id, status,
            token_id=caller.token_id, run_id=caller.run_id, ip=self.ip, **facts,
        )  # fmt: skip
