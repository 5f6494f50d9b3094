"""What the end of a run means for a session's tasks: the next ones start, or are skipped, and the session settles.

Everything here happens under the lock of the session's row, which whoever ends a run takes with the run's last event:
of two workers that finish siblings at once, the second sees what the first did, and one of them starts the successor.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rota.db import checkpoints, events, run_status, sessions, tasks
from rota.db.events import NewEvent
from rota.db.pool import Connection
from rota.db.run_status import Ended
from rota.db.tasks import Changed, End, Where
from rota.model.ids import AgentId, RunId, WorkspaceId, new_id
from rota.model.run import TERMINAL, Claimed, SkipReason, Source, Start, Status

OF_CHAT = frozenset({Source.CHAT, Source.RETRY})
FAILED = frozenset({Status.FAILED, Status.CANCELLED, Status.SKIPPED})


async def end(conn: Connection, changed: Sequence[Ended], with_tasks: Iterable[Where]) -> set[WorkspaceId]:
    """Apply what ended to tasks and sessions; the workspaces in which runs were started. `with_tasks`: sessions whose
    tasks decide how they end."""
    own = [each for each in changed if each.source == Source.TASK and each.session_id]
    waiting = [each for each in own if each.status == Status.QUEUED]
    if waiting:
        ids = [(each.workspace_id, each.id) for each in waiting]
        await run_status.hold_in_paused(conn, ids)
        await tell(conn, await tasks.of_runs(conn, ids))
    ended = [each for each in own if each.status in TERMINAL]
    started = await _advance(conn, [_end(each) for each in ended]) if ended else set()
    outcomes = dict.fromkeys(with_tasks, False) | {
        (each.workspace_id, each.session_id): each.status in FAILED
        for each in changed
        if each.session_id and each.status in TERMINAL and (each.source == Source.TASK or _is_chat(each))
    }
    if outcomes:
        await _settle_sessions(conn, outcomes)
    return started


def _is_chat(run: Ended) -> bool:
    return run.source in OF_CHAT and not run.automation_id


def _end(run: Ended) -> End:
    return End(run.workspace_id, run.id, run.status == Status.SUCCEEDED, run.error_class or run.skip_reason)


async def _advance(conn: Connection, ended: Sequence[End]) -> set[WorkspaceId]:
    settled = await tasks.settle(conn, ended)
    if not settled:
        return set()
    done = [each for each in settled if each.status == "done"]
    if done:
        await tasks.lower(conn, done)
    failed = [(each.workspace_id, each.session_id, each.id) for each in settled if each.status == "failed"]
    skipped = await tasks.skip(conn, failed) if failed else []
    await tell(conn, [*settled, *skipped])
    return await release(conn, {(each.workspace_id, each.session_id) for each in settled})


async def tell(conn: Connection, changed: Sequence[Changed]) -> None:
    await events.append(conn, [_event(each) for each in changed])


def _event(task: Changed) -> NewEvent:
    data = {"task": task.key, "task_id": task.id, "role": task.role, "status": task.status, "reason": task.reason}
    given = {name: value for name, value in data.items() if value is not None}
    if task.place:
        given["place"], given["of"] = task.place
    if task.retried:
        given["retried"] = True
    return NewEvent(task.workspace_id, task.session_id, "task", given, task.run_id)


async def report_running(conn: Connection, claimed: Sequence[Claimed]) -> None:
    """Tell the sessions of these claimed runs that their tasks are running, unless their lease has ended since."""
    attempts = [(run.workspace_id, run.id, run.attempt) for run in claimed]
    async with conn.transaction():
        held = await events.hold(conn, attempts)
        running = [(run.workspace_id, run.id) for run in claimed if (run.workspace_id, run.id, run.attempt) in held]
        await tell(conn, [task._replace(status="running") for task in await tasks.of_runs(conn, running)])


async def release(conn: Connection, where: Iterable[Where]) -> set[WorkspaceId]:
    """Start a run for each task that waits for nobody any more, if its session is active and its agent may work; the
    workspaces in which some were started."""
    from rota.runs import starting  # noqa: PLC0415 — starting a run may end others, and an ended run start one

    found = await tasks.releasable(conn, where)
    if not found:
        return set()
    starts = [_start(task) for task in found]
    pairs = zip(found, starts, strict=True)
    ready = [(task["workspace_id"], task["session_id"], task["id"], run.id) for task, run in pairs]
    await tasks.make_ready(conn, ready)
    await starting.start(conn, starts)
    await tell(conn, [_ready(*each) for each in zip(found, starts, strict=True) if not each[1].skip_reason])
    refused = [End(each.workspace_id, each.id, False, each.skip_reason) for each in starts if each.skip_reason]
    if refused:
        await _advance(conn, refused)
    return {each.workspace_id for each in starts}


def _ready(task: dict[str, Any], run: Start) -> Changed:
    where = task["workspace_id"], task["session_id"]
    return Changed(*where, task["id"], task["key"], task["role"], run.id, "ready", None)


def _start(task: dict[str, Any]) -> Start:
    return Start(
        workspace_id=task["workspace_id"],
        id=RunId(new_id()),
        agent_id=task["agent_id"],
        grant_id=task["grant_id"],
        owner_id=task["owner_id"],
        created_by=task["owner_id"],
        revision=task["revision"],
        source=Source.TASK,
        queue=AgentId(task["agent_id"]) if task["capped"] else WorkspaceId(task["workspace_id"]),
        executor=task["executor"],
        pool=task["pool"],
        timeout=task["timeout"],
        max_attempts=task["max_attempts"],
        session_id=task["session_id"],
        fresh_session=False,
        prompt=task["prompt"],
        input=task["input"],
        payload=_payload(task),
        skip_reason=_refusal(task),
    )


def _payload(task: dict[str, Any]) -> dict[str, Any]:
    """What the agent is told beside its prompt: which task it is, the goal, and what those before it had to say."""
    left_out = task["waited_for"] - len(task["dependencies"])
    return {
        "task": {"id": str(task["id"]), "key": task["key"], "role": task["role"]},
        "goal": task["goal"],
        "dependencies": task["dependencies"],
        **({"dependencies_left_out": left_out} if left_out else {}),
    }


def _refusal(task: dict[str, Any]) -> SkipReason | None:
    if task["agent_deleted"]:
        return SkipReason.DELETED
    return SkipReason.AGENT_PAUSED if task["agent_paused"] else None


async def _settle_sessions(conn: Connection, failed: dict[Where, bool]) -> None:
    settled = await sessions.settle(conn, failed)
    await events.append(
        conn,
        [NewEvent(workspace, session, "session", {"status": status}) for workspace, session, status in settled],
    )


# What a person does with a whole session. Runs are locked before their session, as everywhere; a run that appears in
# between is found under the session's lock, and one that is being claimed in that instant counts as claimed.


async def lock(conn: Connection, where: Where) -> None:
    """Before the session is paused or ended: wait for those who claim or end its runs just now."""
    await run_status.lock_live(conn, *where)


async def hold(conn: Connection, where: Where) -> None:
    """The session was paused: tasks that nobody has claimed do not start; what runs finishes."""
    await run_status.hold(conn, *where)


async def let_go(conn: Connection, where: Where) -> None:
    """The session is active: start what was held back, and what became ready meanwhile."""
    await run_status.let_go(conn, *where)
    await go_on(conn, where)


async def go_on(conn: Connection, where: Where) -> None:
    """Start what waits for nobody any more. Where nothing is left to do, because all of it is skipped or refused, the
    session ends."""
    await release(conn, [where])
    await _settle_sessions(conn, {where: False})


async def close(conn: Connection, where: Where) -> None:
    """The session was ended by hand: nothing more begins in it, and what runs is stopped."""
    from rota.runs import cancelling  # noqa: PLC0415 — the end of a run calls this module

    await tell(conn, await tasks.close(conn, where))
    await cancelling.stop_session(conn, *where)


async def again(conn: Connection, workspace_id: WorkspaceId, old: RunId, new: RunId) -> Where | None:
    """A failed task goes on with another run, from where the last one was, and what was skipped because of it waits
    again. None if `old` is no failed task's latest run. The session's row must be locked."""
    task = await tasks.again(conn, workspace_id, old, new)
    if task is None:
        return None
    await checkpoints.hand_on(conn, workspace_id, task.session_id, old=old, new=new)
    await tell(conn, [task._replace(retried=True), *await tasks.revive(conn, task)])
    return task.workspace_id, task.session_id
