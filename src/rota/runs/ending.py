"""One ending for every way a run ends: its lane's next run, and what follows from it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

from rota import tracing
from rota.db import aftermath, queues, run_status, triggers
from rota.db.aftermath import Concerned
from rota.db.at_once import Step
from rota.db.listener import RUNS, TRIGGERS
from rota.db.pool import Connection
from rota.db.run_status import Ended
from rota.errors import Invalid
from rota.model.ids import AgentId, AutomationId, WorkspaceId
from rota.model.run import TERMINAL, Claimed, SkipReason, Source, Start, Status
from rota.notify import telling
from rota.notify.telling import Failure
from rota.runs import budgeting, tasking

UNCOUNTED = frozenset({"chat", "task"})
BY_HAND = frozenset({"chat", "task", "retry"})
COUNTED = frozenset({Status.SUCCEEDED, Status.FAILED})  # ends, of which a row of failures is made


async def end(conn: Connection, changed: Sequence[Ended], *, by_worker: bool = False) -> None:
    """Apply what follows when runs end or go back to the queue, and wake workers where runs may be ready then.

    Their last events are written with their status. Most endings concern nobody else; one look at the batch finds those
    that do. A worker that settles runs traces them itself (`by_worker`).
    """
    if changed:
        if tracing.on() and not by_worker:
            ended = [each for each in changed if each.status in TERMINAL]
            conn.afterwards(lambda: _trace(ended))
        asked = aftermath.ask(_concerning(changed), _agents(changed))
        await end_concerning(conn, changed, await aftermath.concerned(conn, asked))


def _trace(ended: Sequence[Ended]) -> None:
    """The spans of runs that nobody will settle. They began when they were started, which their ids tell."""
    for each in ended:
        facts = {"run_id": each.id, "source": each.source, "status": each.status}
        error = each.error_class if each.status == Status.FAILED else None
        tracing.run(each.trace_id, began=tracing.of_id(each.id), error=error, **facts)


def ask(succeeded: Sequence[Claimed]) -> Step:
    """The look at a batch of successes, in the order of their workspaces: a lane is an automation or a session."""
    ids: dict[WorkspaceId, list[UUID]] = {}
    agents: dict[WorkspaceId, list[AgentId]] = {}
    for workspace_id, those in groupby(succeeded, attrgetter("workspace_id")):
        runs = list(those)
        ids[workspace_id] = [each.session_id for each in runs]
        ids[workspace_id] += [each.automation_id for each in runs if each.automation_id]
        agents[workspace_id] = list({each.agent_id for each in runs})
    return aftermath.ask(ids, agents)


async def end_concerning(conn: Connection, changed: Sequence[Ended], concerned: Sequence[Concerned]) -> None:
    """The same, where those whom it concerns are known."""
    ready = {each.workspace_id for each in changed if each.status == Status.QUEUED}
    ended = [each for each in changed if each.status in TERMINAL]
    await budgeting.settle(conn, ended)
    has_room = {each.workspace_id for each in concerned if each.has_room}
    ready |= has_room
    waited_for = {each.workspace_id for each in concerned if each.waited_for}
    there = [each for each in ended if each.workspace_id in waited_for]
    lanes = {(each.workspace_id, lane) for each in there for lane in _waited_for(each)}
    if lanes and await run_status.promote(conn, lanes):
        ready |= waited_for
    automated = [each for each in ended if _automated(each)]
    if automated:
        await _follow_up(conn, automated, concerned)
    skipped = [each for each in automated if each.status == Status.SKIPPED]
    if skipped:
        await _uncount(conn, skipped)
    failed = [each for each in ended if each.status == Status.FAILED]
    if failed:
        await telling.of_failed(conn, [_failure(each) for each in failed])
    with_tasks = {(each.workspace_id, session_id) for each in concerned for session_id in each.with_tasks or ()}
    if with_tasks or any(each.source in BY_HAND for each in changed):
        ready |= await tasking.end(conn, changed, with_tasks)
    await _mark_left(conn, [each for each in changed if each.freed and each.workspace_id in has_room])
    conn.wake(RUNS, ready)


def _failure(run: Ended) -> Failure:
    return Failure(run.workspace_id, run.id, run.automation_id, run.session_id, run.error_class)


def _automated(run: Ended) -> bool:
    return run.automation_id is not None and run.source not in UNCOUNTED


def _concerning(changed: Sequence[Ended]) -> dict[WorkspaceId, list[UUID]]:
    """What their ends may concern, by workspace: lanes and sessions in which others wait, and automations."""
    ids: dict[WorkspaceId, list[UUID]] = {each.workspace_id: [] for each in changed}
    for each in changed:
        if each.status in TERMINAL:
            ids[each.workspace_id] += _waited_for(each)
    return ids


def _agents(changed: Sequence[Ended]) -> dict[WorkspaceId, list[AgentId]]:
    """Those that may run another one now, if they are capped: also since they began with these."""
    agents: defaultdict[WorkspaceId, set[AgentId]] = defaultdict(set)
    for each in changed:
        if each.agent_id:
            agents[each.workspace_id].add(each.agent_id)
    return {workspace_id: list(those) for workspace_id, those in agents.items()}


async def _mark_left(conn: Connection, freed: Sequence[Ended]) -> None:
    """Until now there was no room for who waits: a sweep that comes before they are claimed must not find them stuck.
    Comes last: who saves an automation has its row, and waits for its agent's."""
    if freed:
        await queues.mark_left(conn, Counter((each.workspace_id, each.agent_id) for each in freed))


def _waited_for(run: Ended) -> set[UUID]:
    """Its lane; its automation, in whose lane others wait also if it runs beside that or has another; and its session,
    whose turns wait for it."""
    return {each for each in (run.lane, run.automation_id, run.session_id) if each}


async def _follow_up(conn: Connection, ended: Sequence[Ended], concerned: Sequence[Concerned]) -> None:
    """What the end means for the automations."""
    failed = any(each.status == Status.FAILED for each in ended)
    if failed or any(each.failing for each in concerned):
        paused = await aftermath.count_failures(conn, _outcomes(ended))
        for workspace_id, automation_id in paused:
            await _pause(conn, workspace_id, automation_id)
        if paused:
            await telling.of_paused(conn, paused)
    if any(each.awaited for each in concerned):
        await _fire_after(conn, [_for_those_after(each) for each in ended])
    deleted = [(each.workspace_id, automation_id) for each in concerned for automation_id in each.deleted or ()]
    if deleted:
        await aftermath.revoke_of_deleted(conn, deleted)


def _outcomes(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    """Of each automation whether a run of it succeeded, and how many have failed since: they come as they ended."""
    counted: dict[tuple[WorkspaceId, AutomationId | None], dict[str, Any]] = {}
    for each in ended:
        if each.status in COUNTED:
            key = each.workspace_id, each.automation_id
            row = counted.setdefault(key, {"workspace_id": key[0], "id": key[1], "succeeded": False, "failed": 0})
            failed = each.status == Status.FAILED
            row |= {"failed": row["failed"] + 1} if failed else {"succeeded": True, "failed": 0}
    return list(counted.values())


async def _pause(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId) -> None:
    """It failed as often in a row as it may: rest its triggers and skip what waits, which is an end like any other."""
    from rota.runs import passing  # noqa: PLC0415 — as below

    await passing.record(conn, workspace_id, automation_id, SkipReason.PAUSED)
    await triggers.rest(conn, workspace_id, automation_id)
    skipped = await run_status.end_queued(
        conn, workspace_id, automation_id=automation_id, status=Status.SKIPPED, skip_reason=SkipReason.PAUSED
    )
    await end(conn, skipped)


async def _uncount(conn: Connection, skipped: Sequence[Ended]) -> None:
    """They were fired, and never ran: only runs count as fires. A trigger that rested for them goes on from now."""
    for workspace_id, trigger_id, timing, now in await triggers.uncount(
        conn, [(each.workspace_id, each.id) for each in skipped]
    ):
        with suppress(Invalid, ValueError):  # it cannot be read any more, and rests
            await triggers.go_on(conn, workspace_id, trigger_id, timing.next_after(now))
            conn.wake(TRIGGERS)


def _for_those_after(run: Ended) -> dict[str, Any]:
    return {
        "workspace_id": run.workspace_id,
        "automation_id": run.automation_id,
        "run_id": run.id,
        "status": run.status,
        "summary": run.summary,
    }


async def tell_of_skips(conn: Connection, skipped: Sequence[Start]) -> None:
    """A run that was skipped as it started has ended too: fire what waits for it."""
    if tracing.on():
        conn.afterwards(lambda: _trace_skips(skipped))
    automations: defaultdict[WorkspaceId, list[UUID]] = defaultdict(list)
    for each in skipped:
        if each.automation_id:
            automations[each.workspace_id].append(each.automation_id)
    if any(each.awaited for each in await aftermath.concerned(conn, aftermath.ask(automations))):
        ended = {"status": Status.SKIPPED, "summary": None}
        given = [
            {"workspace_id": each.workspace_id, "automation_id": each.automation_id, "run_id": each.id, **ended}
            for each in skipped
        ]
        await _fire_after(conn, given)


def _trace_skips(skipped: Sequence[Start]) -> None:
    for each in skipped:
        facts = {"run_id": each.id, "source": each.source, "status": Status.SKIPPED}
        tracing.run(each.id.hex, began=tracing.of_id(each.id), error=None, **facts)


async def _fire_after(conn: Connection, ended: list[dict[str, Any]]) -> None:
    """Fire what waits for these ends."""
    from rota.runs import triggering  # noqa: PLC0415 — starting a run may end others, and an ended run start one

    occurrences = [
        triggering.Occurrence(workspace_id, trigger_id, Source.AFTER, told["run_id"], told)
        for workspace_id, trigger_id, told in await triggers.after(conn, ended)
    ]
    if occurrences:
        await triggering.fire(conn, occurrences)
        conn.wake(RUNS, {each.workspace_id for each in occurrences})


async def revoke_idle(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId) -> None:
    """Revoke the grant of a deleted automation, unless a run of it is still live: then its end does it. One that is
    just ending knows nothing of the deletion, and is waited for."""
    await run_status.hold_all(conn, workspace_id, automation_id)
    await aftermath.revoke_of_deleted(conn, [(workspace_id, automation_id)])
