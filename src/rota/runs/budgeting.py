"""What runs may spend: set aside when they start, settled when they end, whoever ends them."""

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from rota.db import sessions, spending
from rota.db.pool import Connection
from rota.db.run_status import Ended
from rota.db.spending import Low
from rota.model.budget import ASK, Concern, Purse, admit, plain, purses
from rota.model.ids import WorkspaceId
from rota.model.run import SkipReason, Start
from rota.notify import telling

log = logging.getLogger(__name__)


async def reserve(conn: Connection, starts: Sequence[Start]) -> None:
    """Set aside what each run may spend. One for which not enough is left is skipped; most are concerned by no budget.

    Locks are taken in the order of those who end runs: runs, sessions, and last of all purses.
    """
    asked = [each for each in starts if each.budget == ASK]
    open_ones = [each for each in asked if each.skip_reason is None]
    concerned = {each.run_id: each for each in await _concerns(conn, open_ones)} if open_ones else {}
    for each in asked:
        each.budget = None
    if not concerned:
        return
    for each in open_ones:
        if each.id in concerned:
            each.budget = {unit: plain(cap) for unit, cap in concerned[each.id].caps.items()}
    await _set_aside(conn, [each for each in open_ones if each.id in concerned], concerned)


async def _concerns(conn: Connection, starts: Sequence[Start]) -> list[Concern]:
    return await spending.concerns(
        conn,
        (
            {"workspace_id": each.workspace_id, "id": each.id, "automation_id": each.automation_id,
             "grant_id": each.grant_id, "position": position}
            for position, each in enumerate(starts)
        ),
    )  # fmt: skip


async def _set_aside(conn: Connection, starts: Sequence[Start], concerned: dict[Any, Concern]) -> None:
    needed = purses(list(concerned.values()))
    if not needed:
        return  # each is held to what one run may spend, which needs nobody else's leave
    going_on = {(each.workspace_id, each.session_id) for each in starts if each.session_id and not each.fresh_session}
    for workspace_id, session_id in sorted(going_on):
        await sessions.lock(conn, workspace_id, session_id)
    since = {each.workspace_id: each.month_start for each in concerned.values()}
    taken = await spending.hold(conn, needed, since)
    admitted = admit(concerned.values(), taken)
    demands = [(run_id, each) for run_id in admitted for each in concerned[run_id].demands()]
    if demands:
        await spending.reserve(conn, demands)
    for each in starts:
        if each.id not in admitted:
            _skip(each)
    await _tell_of_low(conn, needed)


def _skip(start: Start) -> None:
    """Not enough is left. Its own session is not made; a turn or a task stays in the one it has."""
    start.skip_reason, start.budget = SkipReason.BUDGET, None
    start.lane, start.waits_for_lane = None, False
    if start.fresh_session or start.automation_id:
        start.session_id, start.fresh_session = None, False


async def release(conn: Connection, unwritten: Sequence[Start]) -> None:
    """Give back what was set aside for runs that were not written after all."""
    own = [(each.workspace_id, each.id) for each in unwritten if each.budget]
    if own:
        await spending.release(conn, own)


async def settle(conn: Connection, ended: Sequence[Ended]) -> None:
    """What was really spent takes the place of what was set aside; nothing of it, if the run never began."""
    own = [(each.workspace_id, each.id) for each in ended if each.budgeted]
    if own:
        await _tell_of_low(conn, await spending.settle(conn, own))


async def _tell_of_low(conn: Connection, touched: "dict[Purse, Any] | set[Purse]") -> list[Low]:
    """Once for each purse, when most of it is spent."""
    low = await spending.warn(conn, touched) if touched else []
    for each in low:
        facts = {"holder_id": each.purse.holder_id, "unit": each.purse.unit}
        log.warning("budget.low", extra={**facts, "spent": plain(each.spent), "cap": plain(each.cap)})
    if low:
        told = [(each.purse.workspace_id, each.purse.holder_id, _how_low(each)) for each in low]
        await telling.of_low_budgets(conn, told)
    return low


def _how_low(low: Low) -> str:
    return f"{plain(low.spent)} of {plain(low.cap)} {low.purse.unit} are spent this month."


async def changed(conn: Connection, workspace_id: WorkspaceId, holder_id: UUID) -> None:
    """An automation's or account's budget is another now: its purses are counted anew."""
    await spending.forget(conn, workspace_id, holder_id)
