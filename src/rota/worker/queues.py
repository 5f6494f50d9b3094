"""What a worker knows of the queues it serves: which hold something, and from where on to read them."""

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
from rota.worker.turns import MOST_AT_ONCE, Turns

EVER = "-infinity"
MOST_REMEMBERED = 10_000  # workspaces
FEW_LOOKS = 4  # for more, one look everywhere is cheaper
LONGEST_BLIND = 1.0  # seconds, also where a look took long once
SHARE_OF_LOOKING = 0.1  # of the time may be spent on looking where there are many queues
HELD_SECONDS = 0.05  # until a look at what another worker just claims, or claims for
MARK_SECONDS = 1.0  # how often it is written down that something capped is full
UNCAPPED = 1_000_000  # more than anybody has places
LATE_COMMITS = timedelta(seconds=5)  # a run may become visible this long after its ready_at


class Queues:
    """Workspaces take turns: at each claim as many of them as there are places, then the next. So a claim costs what it
    gives, not what waits, and who has a long queue comes again only after all others."""

    def __init__(self, pools: Sequence[str], kinds: Sequence[str]) -> None:
        self._pools, self._kinds = pools, kinds
        self._turns = Turns()
        self._later: dict[Queue, tuple[float, Found]] = {}
        self._offered: list[Found] = []
        self._read: set[Queue] = set()  # of those offered
        self._seen: set[Queue] = set()  # something waited there when somebody looked
        self._room: dict[UUID, int] = {}  # of what is capped, as far as it could be locked
        self._held: set[UUID] = set()  # what is capped and locked by another
        self._share = 0
        self._since: dict[Queue, datetime] = {}
        self._hinted: set[UUID] = set()
        self._guessed: set[UUID] = set()  # since somebody looked there
        self._remembered: dict[UUID, dict[Queue, Found]] = {}
        self._look_again_at: dict[UUID | None, float] = {}
        self.looking_costs = 0.0  # seconds that are to go by after what the last look took
        self._marked: dict[UUID, float] = {}

    def hint(self, workspace_id: UUID) -> None:
        """Somebody says that this workspace has a run to claim."""
        self._hinted.add(workspace_id)

    async def look(self, conn: Connection) -> None:
        """Look everywhere, and read every queue from its beginning again. Who waited for a turn keeps it."""
        for known in (self._since, self._hinted, self._guessed, self._look_again_at):
            known.clear()
        found = await self._find(conn)
        places = self._turns.places()
        self._turns, self._later, self._seen = Turns(), {}, set()
        for each in sorted(found, key=lambda each: places.get((each.priority, each.workspace_id), len(places))):
            self._add_seen(each)

    @property
    def hinted(self) -> bool:
        return bool(self._hinted)

    async def guess(self, conn: Connection) -> None:
        """What was hinted at is mostly in a queue that held something before: claim from there first, then look. Look
        at once where nothing is known, or too much, or where the guess was made before: others have taken all places
        since, and would again. But that must not take too much of the time."""
        now = time.monotonic()
        unknown = [
            each for each in self._hinted if not self._guess_at(each) and now >= self._look_again_at.get(each, 0.0)
        ]
        if len(unknown) <= FEW_LOOKS:
            for workspace_id in unknown:
                self._hinted.discard(workspace_id)
                await self._look_into(conn, workspace_id)
        elif now >= self._look_again_at.get(None, 0.0):
            await self.follow_hints(conn)

    def _guess_at(self, workspace_id: UUID) -> bool:
        """Whether something was found before, and this is the first guess since."""
        remembered = self._remembered.get(workspace_id, {})
        if not 0 < len(remembered) <= MOST_AT_ONCE:
            return False
        for found in remembered.values():
            self._add(found)
        first = workspace_id not in self._guessed
        self._guessed.add(workspace_id)
        return first

    def _remember(self, found: Sequence[Found]) -> None:
        if len(self._remembered) > MOST_REMEMBERED:
            self._remembered.clear()
        for each in found:
            self._remembered.setdefault(each.workspace_id, {})[each.key] = _ready(each)

    async def follow_hints(self, conn: Connection) -> None:
        """Look where somebody said that something is. One look is enough for many hints."""
        hinted, self._hinted = self._hinted, set()
        if hinted:
            await self._look_into(conn, next(iter(hinted)) if len(hinted) == 1 else None)

    async def _look_into(self, conn: Connection, workspace_id: UUID | None) -> None:
        began = time.monotonic()
        for found in await self._find(conn, workspace_id):
            self._add_seen(found)
        self._guessed = self._guessed - {workspace_id} if workspace_id else set()
        now = time.monotonic()
        self.looking_costs = min((now - began) / SHARE_OF_LOOKING, LONGEST_BLIND)
        self._look_again_at[workspace_id] = now + self.looking_costs

    async def _find(self, conn: Connection, workspace_id: UUID | None = None) -> list[Found]:
        """Those that are full come again with the hint that they have room."""
        found = await rows.find(conn, pools=self._pools, kinds=self._kinds, workspace_id=workspace_id)
        self._remember(found)
        full = {(each.workspace_id, each.queue) for each in found if each.agent_full}
        if full:
            await self._mark_full(conn, set(), full)
        return [each for each in found if not each.agent_full]

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
            self._add(_ready(found))
            self.hint(found.workspace_id)

    def capped(self, places: int) -> bool:
        """Whether one of those whose turn it is is capped."""
        return any(each.workspace_capped or each.agent_capped for each in self._turns.now(places))

    async def to_read(self, conn: Connection, places: int) -> list[dict[str, Any]]:
        """The queues to claim from now, each with the most it may give. Locks what is capped."""
        self._offered = ready = self._turns.now(places)
        # Twice as many as each would have to give: some have fewer. What is read beyond that would be read in vain.
        self._share = min(places, -(-2 * places // max(1, len({each.workspace_id for each in ready}))))
        spaces = {each.workspace_id for each in ready if each.workspace_capped}
        agents = {(each.workspace_id, each.queue) for each in ready if each.agent_capped}
        self._room, self._held = await self._lock(conn, spaces, agents) if spaces or agents else ({}, set())
        read = [(each, row) for each in ready if (row := self._row(each))]
        self._read = {each.key for each, _ in read}
        return [row for _, row in read]

    async def _lock(
        self, conn: Connection, spaces: set[UUID], agents: set[tuple[UUID, UUID]]
    ) -> tuple[dict[UUID, int], set[UUID]]:
        """How many more each may run, and those that another holds. Who is capped no more may still have a queue of its
        own: a run that came at the same moment."""
        caps = await rows.lock_capped(conn, list(spaces), list(agents))
        busy = await rows.running(conn, list(spaces | {workspace_id for workspace_id, _ in agents}))
        room = {capped: UNCAPPED if cap is None else max(0, cap - busy.get(capped, 0)) for capped, cap in caps.items()}
        full = {capped for capped, more in room.items() if not more}
        await self._mark_full(conn, spaces & full, {each for each in agents if each[1] in full})
        return room, {*spaces, *(agent_id for _, agent_id in agents)} - caps.keys()

    async def _mark_full(self, conn: Connection, spaces: set[UUID], agents: set[tuple[UUID, UUID]]) -> None:
        """Here is a place, which they may not take: the sweep that ends what is stuck may miss the moment."""
        now = time.monotonic()
        self._marked = {capped: at for capped, at in self._marked.items() if now - at < MARK_SECONDS}
        spaces = spaces - self._marked.keys()
        agents = {each for each in agents if each[1] not in self._marked}
        if spaces or agents:
            await rows.mark_seen_full(conn, list(spaces), list(agents))
            self._marked |= dict.fromkeys((*spaces, *(agent_id for _, agent_id in agents)), now)

    def _row(self, found: Found) -> dict[str, Any] | None:
        """None if it is full, or if another worker claims for it just now."""
        in_queue = min(self._share, self._room.get(found.queue, 0) if found.agent_capped else self._share)
        in_workspace = self._room.get(found.workspace_id, 0) if found.workspace_capped else self._share
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
        full = self._full(runs) if self._room else set()
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

    def _done(self, found: Found) -> None:
        """It has no more to give, until a hint or the next look. But look there again soon if another worker claims for
        it just now, or may hold what was seen there: it chooses from more than it has places for, and tells nobody what
        it leaves."""
        self._turns.drop(found)
        capped = found.workspace_id in self._held or found.queue in self._held
        if capped or (found.key in self._read and found.key in self._seen):
            self._later[found.key] = (time.monotonic() + HELD_SECONDS, found)

    def _full(self, runs: Sequence[Claimed]) -> set[UUID]:
        """What is capped and runs as many as it may with these."""
        taken: Counter[UUID] = Counter([run.workspace_id for run in runs])
        taken.update([run.queue for run in runs if run.queue != run.workspace_id])
        return {capped for capped, room in self._room.items() if taken[capped] >= room}

    def _read_on(self, runs: Iterable[Claimed]) -> None:
        """From here: what is behind has been claimed, but for commits that come late."""
        by_time = sorted(runs, key=attrgetter("ready_at"))
        latest = {(run.queue.int, run.pool, run.executor, run.priority): run for run in by_time}
        for run in latest.values():
            key = Queue(run.workspace_id, run.queue, run.pool, run.executor, run.priority)
            since = run.ready_at - LATE_COMMITS
            self._since[key] = max(self._since.get(key, since), since)

    def exhausted(self) -> None:
        """Those whose turn it was had nothing. What was seen there may be behind the place of reading, too, if it was
        committed late."""
        for each in self._offered:
            self._done(each)
        for key in self._seen & self._read:
            self._since.pop(key, None)
        self._seen -= self._read


def _ready(found: Found) -> Found:
    return found._replace(ready_in=0.0, later_in=None)
