"""The queues that a worker serves: whose turn it is, and from where on to read each."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

from rota.db import queues as rows
from rota.db.pool import Connection
from rota.db.queues import Found, Queue
from rota.model.run import Claimed
from rota.worker.caps import Caps, capped
from rota.worker.hints import Hints, ready
from rota.worker.turns import Turns

EVER = "-infinity"
FEW_LOOKS = 4  # for more, one look everywhere is cheaper
HELD_SECONDS = 0.05  # until a look at what another worker just claims, or claims for
LATE_COMMITS = timedelta(seconds=5)  # a run may become visible this long after its ready_at


class Queues:
    """Workspaces take turns: at each claim as many of them as there are places, then the next. So a claim costs what it
    gives, not what waits, and who has a long queue comes again only after all others."""

    def __init__(self, pools: Sequence[str], kinds: Sequence[str]) -> None:
        self._pools, self._kinds = pools, kinds
        self._hints, self._caps = Hints(), Caps()
        self._turns = Turns()
        self._later: dict[Queue, tuple[float, Found]] = {}
        self._since: dict[Queue, datetime] = {}
        self._seen: set[Queue] = set()  # something waited there when somebody looked
        self._offered: list[Found] = []  # those whose turn it is, for the claim that is made
        self._read: set[Queue] = set()  # of those offered
        self._share = 0

    def hint(self, workspace_id: UUID) -> None:
        """Somebody says that this workspace has a run to claim."""
        self._hints.add(workspace_id)

    @property
    def hinted(self) -> bool:
        return bool(self._hints)

    @property
    def looking_costs(self) -> float:
        return self._hints.looking_costs

    async def look(self, conn: Connection) -> None:
        """Look everywhere, and read every queue from its beginning again. Who waited for a turn keeps it."""
        self._since.clear()
        self._hints.clear()
        found = await self._find(conn)
        places = self._turns.places()
        self._turns, self._later, self._seen = Turns(), {}, set()
        for each in sorted(found, key=lambda each: places.get((each.priority, each.workspace_id), len(places))):
            self._add_seen(each)

    async def guess(self, conn: Connection) -> None:
        """What was hinted at is mostly in a queue that held something before: claim from there first, then look. But
        look at once where a guess is worth nothing."""
        known, unknown = self._hints.guesses()
        for found in known:
            self._add(found)
        if len(unknown) <= FEW_LOOKS:
            for workspace_id in unknown:
                self._hints.discard(workspace_id)
                await self._look_into(conn, workspace_id)
        elif self._hints.may_look():
            await self.follow_hints(conn)

    async def follow_hints(self, conn: Connection) -> None:
        """Look where somebody said that something is. One look is enough for many hints."""
        if hinted := self._hints.take():
            await self._look_into(conn, hinted.pop() if len(hinted) == 1 else None)

    async def _look_into(self, conn: Connection, workspace_id: UUID | None) -> None:
        began = time.monotonic()
        for found in await self._find(conn, workspace_id):
            self._add_seen(found)
        self._hints.looked(workspace_id, time.monotonic() - began)

    async def _find(self, conn: Connection, workspace_id: UUID | None = None) -> list[Found]:
        found = await rows.find(conn, pools=self._pools, kinds=self._kinds, workspace_id=workspace_id)
        self._hints.remember(found)
        return await self._caps.without_full(conn, found)

    def _add(self, found: Found) -> None:
        if found.later_in is not None:
            self._later[found.key] = (time.monotonic() + found.later_in, found)
        if found.ready_in <= 0:
            self._turns.add(found)

    def _add_seen(self, found: Found) -> None:
        self._add(found)
        self._seen.add(found.key)

    def __bool__(self) -> bool:
        return bool(self._turns)

    def seconds_until_ready(self) -> float | None:
        """When the first run that is queued for later may be claimed."""
        soonest = min((at for at, _ in self._later.values()), default=None)
        return None if soonest is None else max(0.0, soonest - time.monotonic())

    def admit(self) -> None:
        """Time went by: what was queued for later may be ready now. Whether more is behind it, a look will tell."""
        now = time.monotonic()
        for found in [found for at, found in self._later.values() if at <= now]:
            del self._later[found.key]
            self._add(ready(found))
            self.hint(found.workspace_id)

    def capped(self, places: int) -> bool:
        """Whether one of those whose turn it is is capped."""
        return any(map(capped, self._turns.now(places)))

    async def to_read(self, conn: Connection, places: int) -> list[dict[str, Any]]:
        """The queues to claim from now, each with the most it may give. Locks what is capped."""
        self._offered = self._turns.now(places)
        # Twice as many as each would have to give: some have fewer. What is read beyond that would be read in vain.
        spaces = len({each.workspace_id for each in self._offered})
        self._share = min(places, -(-2 * places // max(1, spaces)))
        await self._caps.lock(conn, self._offered)
        read = [(each, row) for each in self._offered if (row := self._row(each))]
        self._read = {each.key for each, _ in read}
        return [row for _, row in read]

    def _row(self, found: Found) -> dict[str, Any] | None:
        """None if it is full, or if another worker claims for it just now."""
        in_queue, in_workspace = self._caps.most(found, self._share)
        if not in_queue or not in_workspace:
            return None
        limits = {"since": self._since.get(found.key, EVER), "most": in_queue, "room": in_workspace}
        return {**found.key._asdict(), **limits, "workspace_capped": found.workspace_capped}

    def claimed(self, runs: Sequence[Claimed]) -> None:
        """This is what those gave whose turn it was: now it is the others'. Who gave all that was there is done, and so
        is who is full, until a hint tells that it has room."""
        self._read_on(runs)
        given = Counter([run.workspace_id.int for run in runs])  # by their numbers: Python hashes a UUID slowly
        of_each = {run.workspace_id.int: run for run in runs}
        done = {run.workspace_id for space, run in of_each.items() if given[space] == run.waiting < self._share}
        full = self._caps.full_with(runs)
        for each in self._offered:
            if each.workspace_id in full:
                self._turns.drop_workspace(each.workspace_id)
            elif each.queue in full:
                self._turns.drop(each)
            elif each.workspace_id in done:
                self._done(each)
            else:
                self._turns.put_last(each)
        if runs:
            self._seen -= self._read

    def exhausted(self) -> None:
        """Those whose turn it was had nothing. What was seen there may be behind the place of reading, too, if it was
        committed late."""
        for each in self._offered:
            self._done(each)
        for key in self._seen & self._read:
            self._since.pop(key, None)
        self._seen -= self._read

    def _done(self, found: Found) -> None:
        """It has no more to give, until a hint or the next look. But look there again soon if another worker claims for
        it just now, or may hold what was seen there: it chooses from more than it has places for, and tells nobody what
        it leaves."""
        self._turns.drop(found)
        if self._caps.holds(found) or (found.key in self._read and found.key in self._seen):
            self._later[found.key] = (time.monotonic() + HELD_SECONDS, found)

    def _read_on(self, runs: Iterable[Claimed]) -> None:
        """From here: what is behind has been claimed, but for commits that come late."""
        by_time = sorted(runs, key=attrgetter("ready_at"))
        latest = {(run.queue.int, run.pool, run.executor, run.priority): run for run in by_time}
        for run in latest.values():
            key = Queue(run.workspace_id, run.queue, run.pool, run.executor, run.priority)
            since = run.ready_at - LATE_COMMITS
            self._since[key] = max(self._since.get(key, since), since)
