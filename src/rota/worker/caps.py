"""How many more runs a capped agent or workspace may run: who claims for it locks it, so no gap is filled twice."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from uuid import UUID

from rota.db import queues as rows
from rota.db.pool import Connection
from rota.db.queues import Found
from rota.model.run import Claimed

MARK_SECONDS = 1.0  # how often it is written down that something capped is full
UNCAPPED = 1_000_000  # more than anybody has places

Agent = tuple[UUID, UUID]  # its workspace and its id


def capped(found: Found) -> bool:
    return found.workspace_capped or found.agent_capped


class Caps:
    def __init__(self) -> None:
        self._room: dict[UUID, int] = {}  # of workspaces and agents, as far as they could be locked
        self._held: set[UUID] = set()  # those locked by another
        self._marked: dict[UUID, float] = {}

    async def lock(self, conn: Connection, found: Iterable[Found]) -> None:
        """Until the claim that reads these queues is committed. Who is capped no more may still have a queue of its
        own: a run that came at the same moment."""
        bound = [each for each in found if capped(each)]
        spaces = {each.workspace_id for each in bound if each.workspace_capped}
        agents = {(each.workspace_id, each.queue) for each in bound if each.agent_capped}
        self._room, self._held = {}, set()
        if not bound:
            return
        caps = await rows.lock_capped(conn, list(spaces), list(agents))
        busy = await rows.running(conn, list({each.workspace_id for each in bound}))
        self._room = {each: UNCAPPED if cap is None else max(0, cap - busy.get(each, 0)) for each, cap in caps.items()}
        self._held = {*spaces, *(agent_id for _, agent_id in agents)} - caps.keys()
        full = {each for each, room in self._room.items() if not room}
        await self._mark_full(conn, spaces & full, {each for each in agents if each[1] in full})

    def most(self, found: Found, share: int) -> tuple[int, int]:
        """How many its queue and its workspace may give, of the share that each has."""
        in_queue = min(share, self._room.get(found.queue, 0)) if found.agent_capped else share
        in_workspace = self._room.get(found.workspace_id, 0) if found.workspace_capped else share
        return in_queue, in_workspace

    def holds(self, found: Found) -> bool:
        """Whether another worker claims for it just now."""
        return found.workspace_id in self._held or found.queue in self._held

    def full_with(self, runs: Sequence[Claimed]) -> set[UUID]:
        """Those that run as many as they may with these."""
        if not self._room:
            return set()
        taken: Counter[UUID] = Counter([run.workspace_id for run in runs])
        taken.update([run.queue for run in runs if run.queue != run.workspace_id])
        return {each for each, room in self._room.items() if taken[each] >= room}

    async def without_full(self, conn: Connection, found: Sequence[Found]) -> list[Found]:
        """Agents that are full come again with the hint that they have room."""
        full = {(each.workspace_id, each.queue) for each in found if each.agent_full}
        if full:
            await self._mark_full(conn, set(), full)
        return [each for each in found if not each.agent_full]

    async def _mark_full(self, conn: Connection, spaces: set[UUID], agents: set[Agent]) -> None:
        """Here is a place, which they may not take: the sweep that ends what is stuck may miss the moment."""
        now = time.monotonic()
        self._marked = {each: at for each, at in self._marked.items() if now - at < MARK_SECONDS}
        spaces = spaces - self._marked.keys()
        agents = {each for each in agents if each[1] not in self._marked}
        if spaces or agents:
            await rows.mark_seen_full(conn, list(spaces), list(agents))
            self._marked |= dict.fromkeys((*spaces, *(agent_id for _, agent_id in agents)), now)
