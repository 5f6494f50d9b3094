"""One attempt at a run whose agent is a Job: begun or adopted, heard to its end, and cleaned up after."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from rota.errors import Lost
from rota.executors.events import Counter, Done, Error, EventStream
from rota.executors.kubernetes import manifest, words
from rota.executors.kubernetes.cluster import JOBS, PODS, SECRETS, Cluster, Refused
from rota.executors.kubernetes.gateway import Unreachable
from rota.executors.kubernetes.log import Stamped, Told, order, read_told
from rota.executors.kubernetes.manifest import CONTAINER, OUTCOME, TOLD, Object, annotation, attempt_of, name_of
from rota.executors.kubernetes.mirror import Mirror
from rota.executors.transcript import Tail, Transcript
from rota.model.agent_config import KubernetesConfig
from rota.model.duration import format_duration
from rota.model.executor import Assignment, Desk
from rota.model.ids import RunId
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded

INSIST_SECONDS = 60.0
PAUSE_SECONDS = 0.5
LAST_WORDS_SECONDS = 5.0
MARK_SECONDS = 1.0
VERDICT_SECONDS = 10.0
LINGER = timedelta(seconds=10)
PROLONGED = timedelta(minutes=10)
SUCCEEDED, FAILED = "succeeded", "failed"

T = TypeVar("T")
log = logging.getLogger(__name__)


class Attempt:
    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        config: KubernetesConfig,
        desk: Desk,
        *,
        grace: timedelta,
        patience: timedelta,
        url: str,
    ) -> None:
        self._cluster, self._assignment, self._config, self._desk = cluster, assignment, config, desk
        self._grace, self._patience = grace, patience.total_seconds()
        self._name = name_of(assignment.run_id)
        self._secret = manifest.secret(assignment, config, url=url)
        self._mirror = Mirror(cluster, assignment.run_id)
        self._transcript = Transcript(desk, config.output_limit)
        self._counter, self._tail = Counter(self._transcript), Tail()
        self._told = self._marked = Told()
        self._taking = asyncio.Lock()
        self._hearing: asyncio.Task[None] | None = None
        self._heard_at = 0.0  # when the log said something
        self._ends_at = 0.0  # by the Job's own deadline, on this machine's clock

    async def carry_out(self) -> Outcome:
        watching = asyncio.create_task(self._mirror.keep())
        helping: list[asyncio.Task[Any]] = [watching]
        try:
            await self._hold()
            await self._mirror.ready()
            await self._employ()
            helping += [asyncio.create_task(self._mark()), asyncio.create_task(self._prolong())]
            outcome = await self._outcome()
            await _dismiss(helping[1:])
            await self._desk.stored()  # before the cluster is told how far it was heard
            await self._leave(outcome)
        except BaseException as ending:
            await _dismiss(helping[1:])
            await (self._let_go() if self._goes_on(ending) else self._stop())
            raise
        else:
            return outcome
        finally:
            await _dismiss([*helping, *([self._hearing] if self._hearing else [])])

    # ── Beginning ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hold(self) -> None:
        """Have the Secret: its label says which attempt the Job belongs to, and its version lets only one change it."""
        while True:
            try:
                self._secret = await self._insist(lambda: self._cluster.create(SECRETS, self._secret))
                return
            except Refused as refusal:
                if refusal.status != 409:
                    raise
            if await self._take_over():
                return

    async def _take_over(self) -> bool:
        found = await self._insist(lambda: self._cluster.find(SECRETS, self._name))
        if found is None:
            return False
        self._refuse_later(found)
        about = {
            **self._secret["metadata"],
            **{
                key: found["metadata"][key]
                for key in ("resourceVersion", "ownerReferences")
                if key in found["metadata"]
            },
            "annotations": {TOLD: annotation(found, TOLD) or ""},
        }
        try:
            changed = {**self._secret, "metadata": about}
            self._secret = await self._insist(lambda: self._cluster.replace(SECRETS, self._name, changed))
        except Refused as refusal:
            if refusal.status in (404, 409):
                return False
            raise
        return True

    async def _employ(self) -> None:
        """Begin the Job, or adopt the one that an earlier attempt of this run has begun."""
        asked = manifest.job(self._assignment, self._config, grace=self._grace)
        while True:
            try:
                job = await self._insist(lambda: self._cluster.create(JOBS, asked))
                break
            except Refused as refusal:
                if refusal.status != 409:
                    raise
            adopted = await self._adopt()
            if adopted is not None:
                job = adopted
                break
        self._mirror.see(job)
        self._ends_at = time.monotonic() + job["spec"]["activeDeadlineSeconds"] - _age(job).total_seconds()
        await self._change_secret({"ownerReferences": manifest.owned_by(job)})

    async def _adopt(self) -> Object | None:
        job = await self._insist(lambda: self._cluster.find(JOBS, self._name))
        if job is None:
            return None
        self._refuse_later(job)
        if job["metadata"].get("deletionTimestamp") or annotation(job, OUTCOME) == FAILED:
            await self._replace(job)
            return None
        before = attempt_of(job)
        left = _age(job) + self._assignment.timeout
        change = {
            "metadata": {"labels": {manifest.ATTEMPT: str(self._assignment.attempt)}},
            **({} if words.is_over(job) else {"spec": {"activeDeadlineSeconds": manifest.deadline(left)}}),
        }
        job = await self._insist(lambda: self._cluster.patch(JOBS, self._name, change))
        marks = [read_told(annotation(each, TOLD)) for each in (job, self._secret)]
        self._told = self._marked = max(marks, key=lambda told: (order(told.stamp), told.lines))
        if before != self._assignment.attempt:  # else it is the answer to our own question that was lost
            await self._hurry()
            why = f"adopted from attempt {before}"
            await self._desk.tool("resume", {"job": self._name, "resumed": True, "why": why})
        return job

    async def _hurry(self) -> None:
        """A kubelet looks for changed Secrets now and then, but at once when something about the pod has changed."""
        labels = {manifest.ATTEMPT: str(self._assignment.attempt)}
        listed = await self._insist(lambda: self._cluster.list(PODS, labelSelector=f"{manifest.RUN}={self._run_id}"))
        for pod in listed.get("items") or []:
            with suppress(Refused, Unreachable):
                await self._cluster.patch(PODS, pod["metadata"]["name"], {"metadata": {"labels": labels}})

    async def _replace(self, job: Object) -> None:
        """Of a try that has failed, or of one that is being deleted, nothing goes on."""
        uid = job["metadata"]["uid"]
        await self._insist(
            lambda: self._cluster.delete(JOBS, self._name, propagationPolicy="Foreground", preconditions={"uid": uid})
        )
        while (found := await self._insist(lambda: self._cluster.find(JOBS, self._name))) is not None:
            if found["metadata"]["uid"] != uid:
                return
            await self._mirror.change(within=PAUSE_SECONDS)

    def _refuse_later(self, found: Object) -> None:
        if attempt_of(found) > self._assignment.attempt:
            raise Lost("A later attempt has adopted the Job.")

    # ── Working ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _outcome(self) -> Outcome:
        failure = await self._wait_for_start()
        if failure is not None:
            await self._stop()
            return failure
        await self._hear()
        await self._see_end()
        return self._judge()

    async def _wait_for_start(self) -> Failed | None:
        began = since = time.monotonic()
        noted: tuple[str, str] | None = None
        while not self._has_begun():
            now, obstacle = time.monotonic(), words.obstacle(self._mirror.pod, self._config)
            if obstacle is None or (noted and noted[0] != obstacle.kind):
                since = now
            if obstacle is not None and (obstacle.kind, obstacle.words) != noted:
                noted = (obstacle.kind, obstacle.words)
                await self._desk.tool("kubernetes", {"job": self._name, "waiting": obstacle.words})
            if obstacle and (obstacle.final or (obstacle.stubborn and now - since >= self._patience)):
                return obstacle.failure
            if now - began >= self._config.start_timeout.total_seconds():
                return self._never_began(obstacle)
            await self._mirror.change(within=min(self._patience, PAUSE_SECONDS) if obstacle else PAUSE_SECONDS)
        return None

    def _has_begun(self) -> bool:
        return words.begun(self._mirror.pod) or words.is_over(self._mirror.job) or self._mirror.job is None

    def _never_began(self, obstacle: words.Obstacle | None) -> Failed:
        span = format_duration(self._config.start_timeout)
        why = (
            obstacle.words
            if obstacle
            else "the cluster has made no pod"
            if not self._mirror.pod
            else "nobody knows why"
        )
        return Failed(ErrorClass.EXECUTOR_ERROR, f"the agent did not begin within {span}: {why}")

    async def _hear(self) -> None:
        """Hear the log to its end, over any number of answers that break off."""
        last = False
        while not last:
            last = self._is_over()
            pod = self._mirror.pod or self._mirror.last_pod
            if pod is None:
                return
            self._hearing = asyncio.create_task(self._hear_once(pod["metadata"]["name"], follow=not last))
            await self._heard(self._hearing)
            if not last and not self._is_over():
                await self._mirror.change(within=PAUSE_SECONDS)

    async def _heard(self, hearing: "asyncio.Task[None]") -> None:
        """Wait for the end of an answer. A line that has died says nothing more, also when the agent has ended; one
        that still speaks, or waits for us to write it down, is heard to its end."""
        over_at: float | None = None
        while not hearing.done():
            if self._is_over():
                over_at = over_at or time.monotonic()
            if over_at and self._silent_since(over_at) > LAST_WORDS_SECONDS:
                hearing.cancel()
            changed = asyncio.create_task(self._mirror.change(within=PAUSE_SECONDS if over_at else None))
            try:
                await asyncio.wait({hearing, changed}, return_when=asyncio.FIRST_COMPLETED)
                if changed.done():
                    changed.result()  # what the cluster refuses to tell; asked again, it would say so at once
            finally:
                await _dismiss([changed])
        with suppress(asyncio.CancelledError):
            hearing.result()

    def _silent_since(self, over_at: float) -> float:
        return 0.0 if self._taking.locked() else time.monotonic() - max(over_at, self._heard_at)

    async def _hear_once(self, pod: str, *, follow: bool) -> None:
        lines, stream = Stamped(self._told), EventStream(self._transcript, self._counter)
        try:
            pieces = self._cluster.log(pod, CONTAINER, since=self._told.since, follow=follow)
            async with aclosing(pieces):
                async for piece in pieces:
                    await self._take(lines.feed(piece), lines, stream)
            await self._take(lines.rest(), lines, stream)
        except (Refused, Unreachable) as failure:
            log.debug("kubernetes.log_broke_off", extra={"job": self._name, "error": str(failure)})
        async with self._taking:
            await stream.end()

    async def _take(self, text: bytes, lines: Stamped, stream: EventStream) -> None:
        async with self._taking:
            if text:
                self._tail.hear(text)
                await stream.hear(text)
            self._told = lines.told
        self._heard_at = time.monotonic()

    async def _see_end(self) -> None:
        """Until the cluster has said how it ended; of a pod that was deleted its Job says why. A Job may be heard to be
        over before its pod is: each is watched by itself."""
        until = None
        while self._mirror.job is not None:
            end, over = words.ended(self._mirror.pod), words.is_over(self._mirror.job)
            if over and (end or self._mirror.pod is None):
                return
            if end is not None and not self._is_suspicious(end):
                return
            until = until or (time.monotonic() + VERDICT_SECONDS if over or end or not self._mirror.pod else None)
            if until and time.monotonic() >= until:
                return
            await self._mirror.change(within=PAUSE_SECONDS)

    def _is_suspicious(self, end: words.Ended) -> bool:
        return end.code in (137, 143) or bool((self._mirror.pod or {})["metadata"].get("deletionTimestamp"))

    def _is_over(self) -> bool:
        mirror = self._mirror
        return (
            words.ended(mirror.pod) is not None
            or mirror.job is None
            or words.is_over(mirror.job)
            or (mirror.pod is None and mirror.last_pod is not None)
        )

    def _judge(self) -> Outcome:
        job, pod = self._mirror.job, self._mirror.pod or self._mirror.last_pod
        end, verdict = words.ended(pod), self._counter.verdict
        if isinstance(verdict, Error):
            return verdict.outcome
        if end is not None and end.code in self._config.success_exit_codes:
            return Succeeded(verdict.summary if isinstance(verdict, Done) else None)
        interrupted = words.interruption(pod, job)
        if interrupted is not None:
            return interrupted
        if end is not None:
            return words.failure(end, self._config, self._tail.last_line())
        return words.vanished(pod, job)

    async def _mark(self) -> None:
        """Note in the cluster up to where the log was told, for the attempt that may adopt the Job."""
        while True:
            await asyncio.sleep(MARK_SECONDS)
            await self._mark_once()

    async def _mark_once(self) -> None:
        """Never ahead of what is stored."""
        told = self._told
        if told != self._marked:
            await self._desk.stored()
            await self._change_secret({"annotations": {TOLD: str(told)}})
            self._marked = told

    async def _prolong(self) -> None:
        """The worker decides when the time is up: it knows how long the agent has waited for an answer."""
        while True:
            await asyncio.sleep(max(self._ends_at - time.monotonic() - manifest.MARGIN.total_seconds() / 2, 0.0))
            job = self._mirror.job
            if job is not None:
                seconds = manifest.deadline(_age(job) + PROLONGED)
                with suppress(Refused, Unreachable):
                    await self._cluster.patch(JOBS, self._name, {"spec": {"activeDeadlineSeconds": seconds}})
                    self._ends_at = time.monotonic() + PROLONGED.total_seconds() + manifest.MARGIN.total_seconds()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _change_secret(self, about: Object) -> None:
        """Only as long as it is ours: a version that somebody else has made is refused, and nothing is changed."""
        change = {"metadata": {"resourceVersion": self._secret["metadata"]["resourceVersion"], **about}}
        try:
            self._secret = await self._cluster.patch(SECRETS, self._name, change)
        except (Refused, Unreachable) as failure:
            log.debug("kubernetes.unmarked", extra={"job": self._name, "error": str(failure)})
            with suppress(Refused, Unreachable):
                found = await self._cluster.find(SECRETS, self._name)
                if found is not None and attempt_of(found) == self._assignment.attempt:
                    self._secret = found

    # ── Ending ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _leave(self, outcome: Outcome) -> None:
        """The Job stays for a while to be looked at, and for an attempt that finds this one's outcome unwritten."""
        how = SUCCEEDED if isinstance(outcome, Succeeded) else FAILED
        keep = math.ceil(self._config.keep_finished.total_seconds())
        change = {
            "metadata": {"annotations": {OUTCOME: how, TOLD: str(self._told)}},
            "spec": {"ttlSecondsAfterFinished": keep},
        }
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                if self._mirror.job is not None:
                    with suppress(Refused):
                        await self._insist(lambda: self._cluster.patch(JOBS, self._name, change))
                await self._insist(lambda: delete_secret(self._cluster, self._run_id, self._assignment.attempt))
        except (Refused, Unreachable, TimeoutError) as failure:
            log.warning("kubernetes.left", extra={"job": self._name, "error": str(failure)})

    def _goes_on(self, ending: BaseException) -> bool:
        """Whether the Job is the next attempt's: the worker goes away, or has lost the run to somebody else."""
        return isinstance(ending, Lost) or (isinstance(ending, asyncio.CancelledError) and self._desk.handed_on)

    async def _let_go(self) -> None:
        """Leave the Job as it is, with a mark up to where its log was told. Where that cannot be stored an earlier mark
        stays, and the next attempt tells a little of it again."""
        with suppress(Lost, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                async with self._taking:  # not between what was said and the note of it
                    await _dismiss([self._hearing] if self._hearing else [])
                await self._mark_once()

    async def _stop(self) -> None:
        """Delete everything and see it gone. Whoever cancels twice is in a hurry."""
        stopping, hurrying = asyncio.create_task(self._remove()), []
        impatience: asyncio.CancelledError | None = None
        while not stopping.done():
            try:
                await asyncio.wait({stopping})
            except asyncio.CancelledError as again:
                impatience = again
                hurrying.append(asyncio.create_task(self._kill()))
        await _dismiss(hurrying)
        failure = stopping.exception()
        if failure is not None:
            log.warning("kubernetes.left", extra={"job": self._name, "error": str(failure)})
        if impatience is not None:
            raise impatience

    async def _remove(self) -> None:
        async with asyncio.timeout((self._grace + LINGER).total_seconds()):
            removed = await self._insist(lambda: remove(self._cluster, self._run_id, self._assignment.attempt))
            while removed and await self._cluster.find(JOBS, self._name) is not None:
                await self._rest()
        if self._hearing is not None:
            await asyncio.wait({self._hearing}, timeout=PAUSE_SECONDS)

    async def _rest(self) -> None:
        """Until something has changed, or for a while where the cluster does not tell of that any more."""
        try:
            await self._mirror.change(within=PAUSE_SECONDS)
        except Refused:
            await asyncio.sleep(PAUSE_SECONDS)

    async def _kill(self) -> None:
        for pod in self._mirror.pods:
            with suppress(Refused, Unreachable):
                await self._cluster.delete(PODS, pod["metadata"]["name"], gracePeriodSeconds=0)

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        until = time.monotonic() + INSIST_SECONDS
        while True:
            try:
                return await ask()
            except (Refused, Unreachable) as failure:
                lasting = isinstance(failure, Refused) and not failure.passing
                if lasting or time.monotonic() >= until:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    @property
    def _run_id(self) -> RunId:
        return self._assignment.run_id


async def remove(cluster: Cluster, run_id: RunId, attempt: int) -> bool:
    """Delete what the attempts of a run up to this one have made, the Job in the foreground: it goes after its pod.
    What a later attempt has adopted stays."""
    if not await delete_secret(cluster, run_id, attempt):
        return False
    while (job := await cluster.find(JOBS, name_of(run_id))) is not None:
        if attempt_of(job) > attempt:
            return False
        about = job["metadata"]
        try:
            just_this = {"uid": about["uid"], "resourceVersion": about["resourceVersion"]}
            await cluster.delete(JOBS, about["name"], propagationPolicy="Foreground", preconditions=just_this)
            return True
        except Refused as refusal:
            if refusal.status != 409:
                raise
    return True


async def delete_secret(cluster: Cluster, run_id: RunId, attempt: int) -> bool:
    """False if it belongs to a later attempt."""
    while (secret := await cluster.find(SECRETS, name_of(run_id))) is not None:
        if attempt_of(secret) > attempt:
            return False
        about = secret["metadata"]
        try:
            just_this = {"uid": about["uid"], "resourceVersion": about["resourceVersion"]}
            await cluster.delete(SECRETS, about["name"], preconditions=just_this)
            return True
        except Refused as refusal:
            if refusal.status != 409:
                raise
    return True


def _age(job: Object) -> timedelta:
    """How long the Job's deadline has been counting."""
    began = (job.get("status") or {}).get("startTime")
    return max(datetime.now(UTC) - datetime.fromisoformat(began), timedelta()) if began else timedelta()


async def _dismiss(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
