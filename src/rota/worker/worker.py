"""Claims runs up to its free places, executes them, and settles them in groups."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

import orjson

from rota import tracing
from rota.access.vault import Vault
from rota.db.listener import CANCELS, RUNS, Listener, Wakes
from rota.db.pool import PASSING, Connection, Database, Reserved
from rota.errors import Lost
from rota.failpoints import reach
from rota.metrics import BUSY_PLACES, CLAIMED, PICKUP
from rota.model.executor import Executor
from rota.model.ids import WorkerId
from rota.model.outcome import Failed, Outcome
from rota.model.run import Claimed
from rota.runs import claiming
from rota.runs.settling import Result
from rota.service import Wakeable
from rota.sessions.artifacts import LARGEST, Depot
from rota.sessions.desk import Office
from rota.sessions.messages import Post
from rota.timeouts import ask_again_after
from rota.trace.record import Recorder
from rota.worker.abandoning import Abandon
from rota.worker.attempt import NOWHERE, Attempt, Environment, assigned, granted, left_off, names_credentials
from rota.worker.beginning import Beginnings
from rota.worker.clock import Clock
from rota.worker.queues import Queues
from rota.worker.settler import LARGEST_GROUP, RETRY, Settler
from rota.worker.tokens import Token, Tokens

log = logging.getLogger(__name__)

LARGEST_CLAIM = LARGEST_GROUP  # what was claimed together ends together, if it is short
SMALLEST_HALF = 100  # with more places than twice this, one half works while the other is claimed
FEW_OF, GATHER_SECONDS = 8, 0.002
HEED_SECONDS = 0.05  # how long what waits is claimed without a look at who else came
MOST_CANCELLED = 100
MOST_AT_ONCE = 5  # attempts for each place, at work or being settled
LAST_OUTCOMES = timedelta(seconds=8)  # for those who were handed back to end and to be written
NOTHING_GIVEN: Mapping[str, str] = MappingProxyType({})


def new_worker_id() -> WorkerId:
    return WorkerId(f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")


def _facts(run: Claimed) -> dict[str, object]:
    return {"run_id": run.id, "attempt": run.attempt, "executor": run.executor, "trace_id": run.trace_id}


class Worker:
    """A pass fills the free places. Each attempt runs on its own; when it ends, its place is free again."""

    name = "worker"

    def __init__(
        self,
        db: Database,
        wakes: Wakes,
        recorder: Recorder,
        executors: Mapping[str, Executor],
        *,
        url: str,
        home: Path,
        places: int = 5,
        pools: Sequence[str] = ("default",),
        lease: timedelta = timedelta(seconds=60),
        poll: timedelta = timedelta(seconds=5),
        vault: Vault | None = None,
        depot: Depot | None = None,
        sandbox: str | None = None,
        patience: timedelta | None = None,
        retry: timedelta = RETRY,
        last_outcomes: timedelta = LAST_OUTCOMES,
    ) -> None:
        """`sandbox` names the one that agents with a process here run in, as `executors.sandbox` found it.

        `patience` is how long an executor has to end, each time it is asked to; `retry` the pause before a write is
        repeated; and `last_outcomes` how long a worker that leaves waits for outcomes to be written.
        """
        self.id = new_worker_id()
        self.sandbox = sandbox
        self.places = places
        self.pools = tuple(pools)
        self.kinds = tuple(executors)
        self.attempts: dict[UUID, Attempt] = {}
        self._cancelled: deque[UUID] = deque(maxlen=MOST_CANCELLED)  # lately, and not here: they may be on their way
        self.settler = Settler(db, wakes, self._settled, retry=retry)
        self.abandon = Abandon(db, executors, pools=self.pools, every=poll)
        self._db, self._wakes = db, wakes
        self._line = Reserved(db)
        depot = depot or Depot(db, home, "", largest=LARGEST)
        self._office = Office(db, wakes, recorder, Post(db, wakes), depot, retry=retry)
        self._executors = executors
        self._url, self._home, self._vault = url, home, vault
        self._lease, self._poll, self._patience = lease, poll, patience or ask_again_after(lease)
        self._last_outcomes = last_outcomes.total_seconds()
        self._beginnings = Beginnings(self._carry_out)
        self._tokens = Tokens()
        self._clock = Clock()
        self._queues = Queues(self.pools, self.kinds)
        self._look_at = time.monotonic()
        self._claimed_at, self._more_wait = 0.0, False
        self._settling = 0
        self._claiming = asyncio.Lock()
        self._draining = self._leaving = False
        self._loop: Wakeable | None = None

    def attach(self, loop: Wakeable) -> None:
        """Wake this loop whenever a place becomes free."""
        self._loop = loop

    def listen(self, listener: Listener, loop: Wakeable) -> None:
        self.attach(loop)
        listener.on(RUNS, self._hear)
        listener.on(CANCELS, self.cancel)

    def _hear(self, workspace_id: str) -> None:
        if workspace_id:
            self._queues.hint(UUID(workspace_id))
        else:
            self._look_at = 0.0  # notifications may have been lost: look everywhere
        if self._loop:
            self._loop.wake()

    async def once(self) -> float:
        if self._free() <= 0:
            return self._poll.total_seconds()
        async with self._claiming, self._line.connection() as conn:
            await self._look(conn)
            await self._fill(conn)
            if self._queues.hinted and self._free() > 0:
                await self._queues.follow_hints(conn)
                await self._fill(conn)
        if self._queues and self._free() > 0:
            return 0.0
        soon = self._queues.seconds_until_ready()
        poll = self._poll.total_seconds()
        return poll if soon is None else min(poll, max(soon, 0.001))

    async def _fill(self, conn: Connection) -> None:
        """Where short runs wait there is always a free place: so it ends after a while, or nobody else would be heard
        before the last of them."""
        heed_at = time.monotonic() + max(HEED_SECONDS, self._queues.looking_costs)
        while self._queues and self._free() > 0 and time.monotonic() < heed_at:
            await self._gather_places()
            asked = min(self._free(), max(self.places // 2, SMALLEST_HALF), LARGEST_CLAIM)
            if asked <= 0:
                break
            claimed = await self._claim(conn, asked)
            self._more_wait = len(claimed) == asked
            if len(claimed) < asked:
                await asyncio.sleep(0)  # first of all, the agents begin; otherwise, while the next half is claimed
            if not claimed:
                self._queues.exhausted()

    async def _gather_places(self) -> None:
        """Where many short runs wait, places become free one after the other: one claim for those within a few ms.
        Who comes to a queue that was empty is claimed at once."""
        if self._more_wait and self._free() < self.places // FEW_OF:
            await asyncio.sleep(self._claimed_at + GATHER_SECONDS - time.monotonic())

    @property
    def busy(self) -> int:
        """Places that are taken: an agent that has ended needs none while its outcome is being written."""
        return len(self.attempts) - self._settling

    def _free(self) -> int:
        """An agent that has ended needs no place while its outcome is written: several groups may be on their way."""
        if self._draining:
            return 0
        return min(self.places - self.busy, MOST_AT_ONCE * self.places - len(self.attempts))

    async def _look(self, conn: Connection) -> None:
        """Everywhere now and then, otherwise only where somebody said that there is something."""
        self._queues.admit()
        if (now := time.monotonic()) >= self._look_at:
            self._look_at = now + self._poll.total_seconds()
            await self._queues.look(conn)
        else:
            await self._queues.guess(conn)

    async def _claim(self, conn: Connection, free: int) -> list[Claimed]:
        offered = self._tokens.offer(free)
        if self._queues.capped(free):
            async with conn.transaction():  # what is capped stays locked until the claim is committed
                claimed = await self._claim_from(conn, free, offered)
        else:
            claimed = await self._claim_from(conn, free, offered)
        self._line.wrote(len(claimed))
        self._claimed_at = time.monotonic()
        if claimed:
            reach("worker.claimed")
        self._queues.claimed(claimed)
        self._begin(claimed, offered)
        return claimed

    async def _claim_from(self, conn: Connection, free: int, offered: Sequence[Token]) -> list[Claimed]:
        queues = await self._queues.to_read(conn, free)
        claimed = []
        if queues:
            hashes = [each.hash for each in offered]
            claimed = await claiming.claim(
                conn,
                self.id,
                queues=queues,
                places=free,
                lease=self._lease,
                token_hashes=hashes,
                sandbox=self.sandbox,
            )
        given = {run.number for run in claimed}
        self._tokens.unused(each for number, each in enumerate(offered) if number not in given)
        return claimed

    def _begin(self, claimed: Sequence[Claimed], offered: Sequence[Token]) -> None:
        begun = [
            Attempt(
                run,
                offered[run.number].secret,
                self._executors[run.executor],
                self._office.desk(run),
                self._clock,
                self._patience,
            )
            for run in claimed
        ]
        for attempt in begun:
            self.attempts[attempt.run.id] = attempt
            if attempt.run.id in self._cancelled:
                attempt.cancel()
            if self._leaving:
                attempt.hand_back()
        self._beginnings.begin(begun)
        for executor, count in Counter(run.executor for run in claimed).items():
            CLAIMED.labels(executor=executor).inc(count)
        BUSY_PLACES.set(self.busy)
        _tell_of_pickup(claimed)

    async def _carry_out(self, attempt: Attempt) -> None:
        if log.isEnabledFor(logging.INFO):
            log.info("run.claimed", extra=_facts(attempt.run))
        try:
            outcome = await self._outcome(attempt)
            reach("worker.executed")
        except Lost:
            log.warning("run.lost", extra=_facts(attempt.run))
            self._forget(attempt.run)
            self._place_freed()
        except (asyncio.CancelledError, *PASSING):
            self._forget(attempt.run)
            raise
        except Exception as failure:  # the top of an attempt: what it needs cannot be read, nor at the next try
            log.warning("run.unreadable", extra=_facts(attempt.run), exc_info=True)
            self._hand_in(attempt, attempt.broken_by(failure))
        else:
            self._hand_in(attempt, outcome)
        finally:
            attempt.ended()

    def _hand_in(self, attempt: Attempt, outcome: Outcome | None) -> None:
        self._settling += 1  # while the outcome is being written, its place may serve the next run
        self.settler.hand_in(Result(attempt.run, outcome, attempt.ran, attempt.said))
        self._place_freed()

    def _settled(self, results: Sequence[Result], accepted: Sequence[Result]) -> None:
        reach("worker.settled")
        self._settling -= len(results)
        for each in results:
            self._forget(each.run)
        if len(accepted) < len(results):
            kept = {(each.run.id, each.run.attempt) for each in accepted}
            for run in (each.run for each in results if (each.run.id, each.run.attempt) not in kept):
                log.warning("run.lost", extra=_facts(run))
        BUSY_PLACES.set(self.busy)
        self._place_freed()

    def _forget(self, run: Claimed) -> None:
        attempt = self.attempts.pop(run.id, None)
        if attempt and attempt.run.attempt != run.attempt:  # it is here again already, as another attempt
            self.attempts[run.id] = attempt

    def _place_freed(self) -> None:
        if self._loop and not self._draining:
            self._loop.wake()

    async def _outcome(self, attempt: Attempt) -> Outcome | None:
        run, given, before = attempt.run, NOTHING_GIVEN, NOWHERE
        spec = orjson.loads(run.spec)
        try:
            if run.attempt > 1:
                await attempt.prepare(self.abandon.before(run))
            if names_credentials(spec):
                granted_now = await granted(self._db, self._vault, run)
                if isinstance(granted_now, Failed):
                    return granted_now
                given = granted_now
            if not run.first_in_session:
                before = await left_off(self._db, run)
            if run.budget:
                await attempt.count_seconds()
        except PASSING as failure:
            log.warning("run.unassigned", extra={"run_id": run.id, "error": str(failure).strip()})
            return None  # nothing has begun: hand it back
        environment = Environment(run, self._url, attempt.secret, given, hide=attempt.hide)
        return await attempt.execute(assigned(run, spec, before, environment, self._home))

    def cancel(self, run_id: str) -> None:
        """Stop one run, if it is here; no id means that cancellations may have been missed, and renewal finds them."""
        if run_id and (attempt := self.attempts.get(UUID(run_id))):
            attempt.cancel()
        elif run_id:
            self._cancelled.append(UUID(run_id))

    async def drain(self, grace: timedelta, hurry: asyncio.Event) -> None:
        """Claim nothing more, let runs finish for a while or until somebody is in a hurry, then hand the rest back."""
        self._draining = True
        finished, impatient = asyncio.create_task(self._beginnings.ended()), asyncio.create_task(hurry.wait())
        await asyncio.wait({finished, impatient}, timeout=grace.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
        impatient.cancel()
        self._leaving = True
        for attempt in tuple(self.attempts.values()):
            attempt.hand_back()
        self.abandon.leave()
        await self._leave()

    async def _leave(self) -> None:
        """Not before all is written, also of what is being claimed just now; but where the database is away, and nobody
        can tell for how long, those who follow take over what is left here when its lease has ended."""
        try:
            async with asyncio.timeout(self._last_outcomes):
                async with self._claiming:
                    await self._beginnings.ended()
                await self.settler.finish()
        except TimeoutError:
            for attempt in tuple(self.attempts.values()):
                log.warning("run.lost", extra=_facts(attempt.run))
            await self._beginnings.cancel()
        await self.settler.close()
        await self._line.close()

    def drop_all(self) -> None:
        for attempt in tuple(self.attempts.values()):
            attempt.drop()


def _tell_of_pickup(claimed: Sequence[Claimed]) -> None:
    now = time.time()
    for run in claimed:
        PICKUP.observe(max(0.0, now - run.ready_at.timestamp()))
    if tracing.on():
        for run in claimed:
            # A run is ready at the beginning of the transaction that starts it, which is before it has its id.
            began = max(tracing.instant(run.ready_at), tracing.of_id(run.id))
            tracing.span("claim", run.trace_id, began=began, run_id=run.id, attempt=run.attempt)
