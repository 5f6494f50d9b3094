"""Running → succeeded, failed, cancelled, or queued again: writes how attempts ended, many at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from rota.db import run_status
from rota.db.pool import Connection
from rota.model.outcome import Outcome
from rota.model.run import Claimed, Settlement, Status, settlement
from rota.runs import ending


@dataclass(frozen=True, slots=True)
class Result:
    """How one attempt ended; `None` hands the run back, which counts as nothing."""

    run: Claimed
    outcome: Outcome | None


async def settle(conn: Connection, results: Sequence[Result]) -> set[tuple[UUID, int]]:
    """Write the outcomes; the attempts that were accepted. Any other had lost its lease, and nothing of it is kept."""
    rows = [run_status.settlement_row(each.run, _settlement(each)) for each in results]
    accepted = await run_status.settle(conn, rows)
    retried = {each.run.id: each for each in results}
    await ending.end(
        conn,
        accepted,
        {ended.id: _why(retried[ended.id]) for ended in accepted if ended.status == Status.QUEUED},
    )
    return {(ended.id, ended.attempt) for ended in accepted}


def _settlement(result: Result) -> Settlement:
    if result.outcome is None:
        return Settlement(Status.QUEUED, result.run.tries)
    return settlement(result.outcome, tries=result.run.tries, max_attempts=result.run.max_attempts)


def _why(result: Result) -> str:
    return "handed back: its worker stopped" if result.outcome is None else getattr(result.outcome, "detail", "")
