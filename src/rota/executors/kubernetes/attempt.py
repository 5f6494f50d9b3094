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
from rota.executors.kubernetes.cluster import JOBS, PODS, SECRETS, Cluster, Doubt, Refused
from rota.executors.kubernetes.gateway import Unreachable
from rota.executors.kubernetes.log import Stamped, Told, order, read_told
from rota.executors.kubernetes.manifest import (
    CONTAINER,
    OUTCOME,
    TOLD,
    VERDICT,
    Object,
    annotation,
    attempt_of,
    name_of,
)
from rota.executors.kubernetes.mirror import Mirror
from rota.executors.kubernetes.node import NodeWatch
from rota.executors.kubernetes.removing import delete_secret, remove
from rota.executors.kubernetes.starting import Start
from rota.executors.kubernetes.verdict import read_verdict, write_verdict
from rota.executors.transcript import Tail, Transcript
from rota.model.agent_config import KubernetesConfig
from rota.model.executor import Assignment, Desk
from rota.model.ids import RunId
from rota.model.outcome import Outcome, Succeeded

INSIST_SECONDS = 60.0
PAUSE_SECONDS = 0.5
LAST_WORDS_SECONDS = 5.0
MARK_SECONDS = 1.0
VERDICT_SECONDS = 10.0
LOG_SECONDS = 30.0
LEAVE_SECONDS = 30.0
QUOTA_SECONDS = 2.0
LINGER = timedelta(seconds=30)
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
        self._began = time.monotonic()
        self._name = name_of(assignment.run_id)
        self._secret = manifest.secret(assignment, config, url=url)
        self._mirror = Mirror(cluster, assignment.run_id)
        self._transcript = Transcript(desk, config.output_limit)
        self._counter, self._tail = Counter(self._transcript), Tail()
        self._told = self._marked = Told()
        self._owner: Object = {}
        self._job_uid = ""
        self._taking = asyncio.Lock()
        self._hearing: asyncio.Task[None] | None = None
        self._heard_at = 0.0  # when the log said something
        self._unread: str | None = None  # why the last answer was not the log to its end
        self._unread_since: float | None = None
        self._node, self._silence_noted = NodeWatch(), False
        self._has_succeeded = False  # by what an earlier attempt has noted at the Job
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
            await self._finish(outcome)
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
                self._secret = await self._create(SECRETS, self._secret)
                return
            except Refused as refusal:
                if refusal.status != 409:
                    raise
            if await self._take_over():
                return

    async def _create(self, kind: str, body: Object) -> Object:
        """Where a quota is full, wait for room as long as for a pod that does not begin."""
        noted = False
        while True:
            try:
                return await self._insist(lambda: self._cluster.create(kind, body))
            except Refused as refusal:
                waited = time.monotonic() - self._began
                if not refusal.over_quota or waited >= self._config.start_timeout.total_seconds():
                    raise
                if not noted:
                    await self._note(waiting=str(refusal))
                noted = True
            await asyncio.sleep(QUOTA_SECONDS)

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
            "annotations": {each: annotation(found, each) or "" for each in (TOLD, VERDICT)},
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
                job = await self._create(JOBS, asked)
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
        self._job_uid = job["metadata"]["uid"]
        self._owner = {"ownerReferences": manifest.owned_by(job)}
        await self._change_secret({})

    async def _adopt(self) -> Object | None:
        job = await self._insist(lambda: self._cluster.find(JOBS, self._name))
        if job is None:
            return None
        self._refuse_later(job)
        if job["metadata"].get("deletionTimestamp") or annotation(job, OUTCOME) == FAILED:
            await self._replace(job)
            return None
        before = attempt_of(job)
        self._has_succeeded = annotation(job, OUTCOME) == SUCCEEDED
        left = _age(job) + self._assignment.timeout
        change = {
            "metadata": {"labels": {manifest.ATTEMPT: str(self._assignment.attempt)}},
            **({} if words.is_over(job) else {"spec": {"activeDeadlineSeconds": manifest.deadline(left)}}),
        }
        job = await self._insist(lambda: self._cluster.patch(JOBS, self._name, change))
        marks = [read_told(annotation(each, TOLD)) for each in (job, self._secret)]
        self._told = self._marked = max(marks, key=lambda told: (order(told.stamp), told.lines, told.part))
        self._counter.verdict = read_verdict(annotation(self._secret, VERDICT), job["metadata"]["uid"])
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
        began, killed = time.monotonic(), False
        while (found := await self._insist(lambda: self._cluster.find(JOBS, self._name))) is not None:
            if found["metadata"]["uid"] != uid:
                return
            if not killed and time.monotonic() - began >= (self._grace + LINGER).total_seconds():
                killed = True
                await self._kill()
            await self._mirror.change(within=PAUSE_SECONDS)

    def _refuse_later(self, found: Object) -> None:
        if attempt_of(found) > self._assignment.attempt:
            raise Lost("A later attempt has adopted the Job.")

    # ── Working ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _outcome(self) -> Outcome:
        if self._has_succeeded:
            return self._success()
        start = Start(self._cluster, self._mirror, self._node, self._config, self._desk, patience=self._patience)
        failure = await start.wait()
        if failure is not None:
            return failure
        await self._hear()
        await self._see_end()
        if self._unread is not None and words.has_log(self._mirror.pod or self._mirror.last_pod):
            await self._note(unread=f"the end of the log could not be read: {self._unread}")
        return self._judge()

    async def _hear(self) -> None:
        """Read the log to its end, over any number of answers that break off."""
        while True:
            last = self._is_over()
            pod = self._mirror.pod or self._mirror.last_pod
            if pod is None:
                return
            self._hearing = asyncio.create_task(self._hear_once(pod["metadata"]["name"], follow=not last))
            await self._heard(self._hearing)
            if last and not self._is_worth_reading_again():
                return
            if last or not self._is_over():
                await self._mirror.change(within=PAUSE_SECONDS)

    def _is_worth_reading_again(self) -> bool:
        """A report of an error may be in what was not read, so the last read is repeated for a while."""
        if self._unread is None or self._mirror.pod is None or not words.has_log(self._mirror.pod):
            return False
        now = time.monotonic()
        self._unread_since = now if self._unread_since is None else self._unread_since
        return now - self._unread_since < LOG_SECONDS

    async def _heard(self, hearing: "asyncio.Task[None]") -> None:
        """Wait for the end of an answer. A line that has died says nothing more, also when the agent has ended; one
        that still speaks, or waits for us to write it down, is heard to its end."""
        over_at: float | None = None
        while not hearing.done():
            if self._is_over():
                over_at = over_at or time.monotonic()
            await self._note_silence()
            if over_at and self._silent_since(over_at) > LAST_WORDS_SECONDS:
                hearing.cancel()
            changed = asyncio.create_task(
                self._mirror.change(within=PAUSE_SECONDS if over_at or self._node.is_in_doubt else None)
            )
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

    async def _note_silence(self) -> None:
        if self._node.silent_since is not None and not self._silence_noted:
            self._silence_noted = True
            await self._note(waiting="the node of the pod does not answer; it may come back")

    async def _hear_once(self, pod: str, *, follow: bool) -> None:
        self._unread = "the cluster stopped sending it"
        lines, stream = Stamped(self._told), EventStream(self._transcript, self._counter)
        try:
            pieces = self._cluster.log(pod, CONTAINER, since=self._told.since, follow=follow)
            async with aclosing(pieces):
                async for piece in pieces:
                    await self._take(lines.feed(piece), lines, stream)
            await self._take(lines.rest(), lines, stream)
            self._unread = lines.complaint or None
        except (Refused, Unreachable) as failure:
            self._unread = str(failure)
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
        while self._mirror.job is not None and not self._mirror.is_repeated:
            if self._node.is_lost(self._mirror.pod):
                return
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
            or self._node.is_lost(mirror.pod)
        )

    def _judge(self) -> Outcome:
        job, pod = self._mirror.job, self._mirror.pod or self._mirror.last_pod
        end, verdict = words.ended(pod), self._counter.verdict
        if isinstance(verdict, Error):
            return verdict.outcome
        if end is not None and end.code in self._config.success_exit_codes:
            is_known = self._unread is None or isinstance(verdict, Done)
            return self._success() if is_known else words.unread(end, self._unread or "")
        if pod is not None and self._node.is_lost(self._mirror.pod):
            return words.lost_node(pod)
        interrupted = words.interruption(pod, job)
        if interrupted is None and end is not None:
            return words.failure(end, self._config, self._tail.last_line())
        return interrupted or words.vanished(pod, job)

    def _success(self) -> Succeeded:
        verdict = self._counter.verdict
        return Succeeded(verdict.summary if isinstance(verdict, Done) else None)

    async def _mark(self) -> None:
        """Note in the cluster up to where the log was told, for the attempt that may adopt the Job."""
        while True:
            await asyncio.sleep(MARK_SECONDS)
            await self._mark_once()

    async def _mark_once(self) -> None:
        """Never ahead of what is stored."""
        told = self._told
        if told != self._marked:
            # It is of a line that counts as told, or of one that the next attempt hears again.
            verdict = write_verdict(self._counter.verdict, self._job_uid)
            await self._desk.stored()
            if await self._change_secret({"annotations": {TOLD: str(told), VERDICT: verdict}}):
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

    async def _change_secret(self, about: Object) -> bool:
        """Only as long as it is ours: a version that somebody else has made is refused, and nothing is changed."""
        version = self._secret["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version, **self._owner, **about}}
        try:
            self._secret = await self._cluster.patch(SECRETS, self._name, change)
            return True
        except (Refused, Unreachable) as failure:
            log.debug("kubernetes.unmarked", extra={"job": self._name, "error": str(failure)})
            with suppress(Refused, Unreachable):
                found = await self._cluster.find(SECRETS, self._name)
                if found is not None and attempt_of(found) == self._assignment.attempt:
                    self._secret = found
            return False

    # ── Ending ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _finish(self, outcome: Outcome) -> None:
        """Leave a Job that ends by itself, and end one that does not."""
        ends, succeeded = await self._ends_by_itself(), isinstance(outcome, Succeeded)
        is_suspended = words.is_suspended(self._mirror.job)
        if (ends and succeeded) or (not is_suspended and (ends or succeeded)):
            await self._leave(outcome, at_once=not ends)
        else:
            await self._stop()

    async def _ends_by_itself(self) -> bool:
        """Containers beside the agent's get a moment to end as well."""
        until = time.monotonic() + LAST_WORDS_SECONDS
        while not (ends := words.will_end(self._mirror.job, self._mirror.pod)):
            if words.ended(self._mirror.pod) is None or time.monotonic() >= until:
                break
            await self._rest()
        return ends

    async def _leave(self, outcome: Outcome, *, at_once: bool) -> None:
        """The Job stays for a while to be looked at, and for an attempt that finds this one's outcome unwritten. If it
        would not end by itself it ends `at_once`, by its deadline: deleted, it could not be found by that attempt."""
        how = SUCCEEDED if isinstance(outcome, Succeeded) else FAILED
        keep = math.ceil(self._config.keep_finished.total_seconds())
        change: Object = {
            "metadata": {"annotations": {OUTCOME: how, TOLD: str(self._told)}},
            "spec": {"ttlSecondsAfterFinished": keep},
        }
        if at_once and self._mirror.job is not None:
            change["spec"]["activeDeadlineSeconds"] = math.ceil(_age(self._mirror.job).total_seconds())
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
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
        removed = await self._insist(lambda: remove(self._cluster, self._run_id, self._assignment.attempt))
        if removed:
            is_lost = self._node.is_lost(self._mirror.pod)
            patience = timedelta() if is_lost else self._grace + LINGER
            if not await self._see_gone(patience):
                await self._kill()
                if not await self._see_gone(LINGER):
                    raise Unreachable("the Job is deleted, but its end was not seen")
        if self._hearing is not None:
            await asyncio.wait({self._hearing}, timeout=PAUSE_SECONDS)

    async def _see_gone(self, patience: timedelta) -> bool:
        """False if the Job is still there after so long, as with a node that does not confirm the end of the pod."""
        until = time.monotonic() + patience.total_seconds()
        while await self._insist(lambda: self._cluster.find(JOBS, self._name)) is not None:
            if time.monotonic() >= until:
                return False
            await self._rest()
        return True

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
        until, doubt = time.monotonic() + INSIST_SECONDS, Doubt()
        while True:
            try:
                return await ask()
            except (Refused, Unreachable) as failure:
                lasting = isinstance(failure, Refused) and doubt.is_final(failure)
                if lasting or time.monotonic() >= until:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    async def _note(self, **about: str) -> None:
        await self._desk.tool("kubernetes", {"job": self._name, **about})

    @property
    def _run_id(self) -> RunId:
        return self._assignment.run_id


def _age(job: Object) -> timedelta:
    """How long the Job's deadline has been counting."""
    began = (job.get("status") or {}).get("startTime")
    return max(datetime.now(UTC) - datetime.fromisoformat(began), timedelta()) if began else timedelta()


async def _dismiss(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
