"""What a worker knows of the queues it serves: which hold something, and from where on to read them."""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from rota.db import queues as rows
from rota.db.pool import Connection
from rota.db.queues import Found, Queue
from rota.model.run import Claimed

EVER = "-infinity"
MOST_REMEMBERED = 10_000  # workspaces
MARK_SECONDS = 1.0  # how often it is written down that something capped is full
LATE_COMMITS = timedelta(seconds=5)  # a run may become visible this long after its ready_at


class Queues:
    def __init__(self, pools: Sequence[str], kinds: Sequence[str]) -> None:
        self._pools, self._kinds = pools, kinds
        self._known: dict[Queue, Found] = {}
        self._since: dict[Queue, datetime] = {}
        self._hinted: set[UUID] = set()
        self._remembered: dict[UUID, dict[Queue, Found]] = {}
        self._marked: dict[UUID, float] = {}

    def hint(self, workspace_id: UUID) -> None:
        """Somebody says that this workspace has a run to claim."""
        self._hinted.add(workspace_id)

    async def look(self, conn: Connection) -> None:
        """Look everywhere, and read every queue from its beginning again."""
        self._since.clear()
        self._hinted.clear()
        self._known = {found.key: found for found in await self._find(conn)}

    @property
    def hinted(self) -> bool:
        return bool(self._hinted)

    def guess(self) -> None:
        """What was hinted at is mostly in a queue that held something before: claim from there first, then look."""
        for workspace_id in self._hinted:
            for key, found in self._remembered.get(workspace_id, {}).items():
                self._known[key] = found

    def _remember(self, found: Sequence[Found]) -> None:
        if len(self._remembered) > MOST_REMEMBERED:
            self._remembered.clear()
        for each in found:
            self._remembered.setdefault(each.workspace_id, {})[each.key] = each._replace(ready_in=0.0)

    async def follow_hints(self, conn: Connection) -> None:
        """Look where somebody said that something is. One look is enough for many hints."""
        hinted, self._hinted = self._hinted, set()
        if len(hinted) == 1:
            [workspace_id] = hinted
            self._known.update({found.key: found for found in await self._find(conn, workspace_id)})
        elif hinted:
            self._known.update({found.key: found for found in await self._find(conn)})

    async def _find(self, conn: Connection, workspace_id: UUID | None = None) -> list[Found]:
        found = await rows.find(conn, pools=self._pools, kinds=self._kinds, workspace_id=workspace_id)
        self._remember(found)
        return found

    def __bool__(self) -> bool:
        return any(found.ready_in <= 0 for found in self._known.values())

    def seconds_until_ready(self) -> float | None:
        """When the first run that is queued for later may be claimed."""
        return min((found.ready_in for found in self._known.values() if found.ready_in > 0), default=None)

    def passed(self, seconds: float) -> None:
        """Time went by: what was queued for later may be ready now."""
        self._known = {key: found._replace(ready_in=found.ready_in - seconds) for key, found in self._known.items()}

    @property
    def capped(self) -> bool:
        """Whether something that may be claimed now is capped."""
        return any(each.workspace_capped or each.agent_capped for each in self._known.values() if each.ready_in <= 0)

    async def to_read(self, conn: Connection, places: int) -> list[dict[str, Any]]:
        """The queues to claim from, each with the most it may give. Locks what is capped."""
        ready = [found for found in self._known.values() if found.ready_in <= 0]
        spaces = {each.workspace_id for each in ready if each.workspace_capped}
        agents = {(each.workspace_id, each.queue) for each in ready if each.agent_capped}
        most: dict[UUID, int] = {}
        if spaces or agents:
            caps = await rows.lock_capped(conn, list(spaces), list(agents))
            busy = await rows.running(conn, list(spaces | {workspace_id for workspace_id, _ in agents}))
            most = {capped: max(0, cap - busy.get(capped, 0)) for capped, cap in caps.items()}
            await self._mark_full(conn, spaces, agents, {capped for capped, room in most.items() if not room})
        return [row for each in ready if (row := self._row(each, most, places))]

    async def _mark_full(
        self, conn: Connection, spaces: set[UUID], agents: set[tuple[UUID, UUID]], full: set[UUID]
    ) -> None:
        """Here is a place, which they may not take: the sweep that ends what is stuck may miss the moment."""
        now = time.monotonic()
        self._marked = {capped: at for capped, at in self._marked.items() if now - at < MARK_SECONDS}
        unmarked = full - self._marked.keys()
        if unmarked:
            await rows.mark_seen_full(conn, list(spaces & unmarked), [each for each in agents if each[1] in unmarked])
            self._marked |= dict.fromkeys(unmarked, now)

    def _row(self, found: Found, most: dict[UUID, int], places: int) -> dict[str, Any] | None:
        """None if it is full, or if another worker claims for it just now."""
        in_queue = most.get(found.queue, 0) if found.agent_capped else places
        in_workspace = most.get(found.workspace_id, 0) if found.workspace_capped else places
        if not in_queue or not in_workspace:
            return None
        limits = {"since": self._since.get(found.key, EVER), "most": in_queue, "most_in_workspace": in_workspace}
        return {**found.key._asdict(), **limits, "workspace_capped": found.workspace_capped}

    def claimed(self, runs: Iterable[Claimed]) -> None:
        """Read on from here: what is behind has been claimed, but for commits that come late."""
        latest: dict[tuple[int, str, str, int], Claimed] = {}
        for run in runs:
            place = (run.queue.int, run.pool, run.executor, run.priority)
            if place not in latest or run.ready_at > latest[place].ready_at:
                latest[place] = run
        for run in latest.values():
            key = Queue(run.workspace_id, run.queue, run.pool, run.executor, run.priority)
            since = run.ready_at - LATE_COMMITS
            self._since[key] = max(self._since.get(key, since), since)

    def exhausted(self) -> None:
        """Nothing more to claim: forget the queues until a hint or the next look."""
        self._known = {key: found for key, found in self._known.items() if found.ready_in > 0}
