"""Running → succeeded, failed, cancelled, or queued again: writes how attempts ended, many at once."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from rota.db import abandonments, aftermath, at_once, run_status
from rota.db.aftermath import Concerned
from rota.db.pool import Connection
from rota.db.run_status import Ended
from rota.failpoints import reach
from rota.model.ids import AutomationId, WorkspaceId
from rota.model.outcome import Outcome, Parked, Succeeded
from rota.model.run import Claimed, Settlement, Status, settlement, summarised
from rota.runs import ending, parking
from rota.runs.parking import ParkedRun


class Result(NamedTuple):
    """How one attempt ended; `None` hands the run back, which counts as nothing. `ran` is how long its try has run,
    `said` what the agent said last, if it came to no good end."""

    run: Claimed
    outcome: Outcome | None
    ran: timedelta = timedelta()
    said: str = ""


def parted(results: Sequence[Result]) -> tuple[Sequence[Result], Sequence[Result]]:
    """Those for `succeed`, and all others for `settle`. Each part is a transaction of its own, which locks runs and
    then sessions in id order: so of many that share a session, as tasks do, nobody takes the short way."""
    plain = sorted(filter(_is_plain, results), key=_place)
    if not _sessions_are_in_order(plain):
        return [], results
    return plain, [each for each in results if not _is_plain(each)] if len(plain) < len(results) else []


def _is_plain(result: Result) -> bool:
    """A success that no budget and no task concerns, and no answer in a conversation."""
    run = result.run
    return type(result.outcome) is Succeeded and run.budget is None and run.source not in ending.BY_HAND


def _place(result: Result) -> tuple[int, int]:
    return result.run.workspace_id.int, result.run.id.int


def _sessions_are_in_order(results: Sequence[Result]) -> bool:
    """Mostly: the session of a run is made right after it. Each comes once, then."""
    sessions = [(each.run.workspace_id.int, each.run.session_id.int) for each in results]
    return all(one < other for one, other in pairwise(sessions))


async def succeed(conn: Connection, results: Sequence[Result]) -> Sequence[Result]:
    """As `settle`, the short way: one statement writes them, another looks whom it concerns, which is mostly nobody."""
    runs = [each.run for each in results]
    held = aftermath.hold_failing(_automations(runs))
    written = run_status.succeed(runs, [_summary(each) for each in results])
    async with at_once.transaction(conn, held, written, ending.ask(runs)) as (_, [(count, numbers)], concerned):
        accepted = results if count == len(results) else [results[number - 1] for number in numbers or ()]
        if concerned:
            await ending.end_concerning(
                conn, [_ended(each) for each in accepted], [Concerned(*row) for row in concerned]
            )
        reach("worker.written")
    return accepted


def _summary(result: Result) -> str | None:
    assert isinstance(result.outcome, Succeeded)
    return summarised(result.outcome.summary)


def _ended(result: Result) -> Ended:
    run = result.run
    return Ended(
        run.workspace_id, run.id, run.session_id, run.automation_id, None, run.attempt, Status.SUCCEEDED, run.source,
        None, _summary(result), None, run.trace_id, agent_id=run.agent_id, freed=True,
    )  # fmt: skip


async def settle(conn: Connection, results: Sequence[Result]) -> Sequence[Result]:
    """Write the outcomes; those that were accepted. The others had lost their lease, and nothing of them is kept."""
    async with conn.transaction():
        accepted = await _settle(conn, results)
        reach("worker.written")
    return accepted


async def _settle(conn: Connection, results: Sequence[Result]) -> Sequence[Result]:
    rows = [_row(each) for each in results]
    await _hold_counted(conn, results, rows)
    ended = _in_order(results, await run_status.settle(conn, rows))
    await ending.end(conn, ended, by_worker=True)
    accepted = results if len(ended) == len(results) else _accepted(results, ended)
    handed_back = [each.run for each in accepted if each.outcome is None]
    if handed_back:  # what they left outside is their next attempt's, or to be cleaned up once the run has ended
        await abandonments.add(conn, [(run.workspace_id, run.id, run.attempt) for run in handed_back])
    parked = [each for each in ended if each.status == Status.AWAITING_APPROVAL]
    if parked:
        asked = {each.run.id: each for each in results}
        await parking.follow_up(conn, [_parked(each, asked[each.id]) for each in parked])
    return accepted


async def _hold_counted(conn: Connection, results: Sequence[Result], rows: Sequence[dict[str, Any]]) -> None:
    """Failures in a row are counted in automations, which come before runs: or who fires and who settles wait for each
    other."""
    ends = [row["status"] for row in rows]
    held = _automations([each.run for each, end in zip(results, ends, strict=True) if end in ending.COUNTED])
    if held and Status.FAILED in ends:
        await aftermath.hold(conn, held)
    elif held:
        await at_once.run(conn, aftermath.hold_failing(held))


def _automations(runs: Sequence[Claimed]) -> list[tuple[WorkspaceId, AutomationId]]:
    return [(run.workspace_id, run.automation_id) for run in runs if run.automation_id]


def _in_order(results: Sequence[Result], ended: Sequence[Ended]) -> Sequence[Ended]:
    """As they ended, by which failures in a row are counted."""
    place = {each.run.id: number for number, each in enumerate(results)}
    return sorted(ended, key=lambda each: place[each.id])


def _accepted(results: Sequence[Result], ended: Sequence[Ended]) -> Sequence[Result]:
    written = {(each.id, each.attempt) for each in ended}
    return [each for each in results if (each.run.id, each.run.attempt) in written]


def _row(result: Result) -> dict[str, Any]:
    settled = settlement_of(result)
    reason = _why(result, settled) if settled.status == Status.QUEUED else None
    return run_status.settlement_row(result.run, settled, reason=reason)


def _parked(run: Ended, result: Result) -> ParkedRun:
    assert isinstance(result.outcome, Parked)
    return ParkedRun(run, result.outcome.approval_id, result.ran)


def settlement_of(result: Result) -> Settlement:
    """What is written of one attempt."""
    if result.outcome is None:
        return Settlement(Status.QUEUED, result.run.tries)
    run = result.run
    return settlement(result.outcome, tries=run.tries, max_attempts=run.max_attempts, said=result.said)


def _why(result: Result, settled: Settlement) -> str:
    return "handed back by a worker that stopped" if result.outcome is None else settled.error_detail or ""
