"""Pausing a workspace: no trigger of it starts a run until it is resumed, by an admin or at the end that was set."""

from datetime import datetime, timedelta

from rota.db import automations, clock, pauses
from rota.db.listener import RUNS, TRIGGERS
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model.caller import Caller, Level
from rota.model.ids import WorkspaceId
from rota.model.run import SkipReason
from rota.roster import triggers
from rota.runs import cancelling


async def pause(
    conn: Connection, caller: Caller, *, reason: str, until: datetime | None = None, lasts: timedelta | None = None
) -> None:
    """Pause the workspace, or give its pause another reason and end. Waiting runs that a trigger started are skipped,
    those at work finish."""
    caller.must_be(Level.ADMIN, "pause the workspace")
    workspace_id = caller.workspace_id
    until = await _end_of(conn, until, lasts)
    if since := await pauses.end(conn, workspace_id, None, if_over=True):
        await _resume_schedules(conn, workspace_id, since)
    await pauses.begin(conn, workspace_id, caller.user_id, reason=reason, until=until)
    await automations.lock_all(conn, workspace_id)
    await cancelling.skip_waiting_of_workspace(conn, workspace_id)
    _wake(conn, workspace_id)


async def _end_of(conn: Connection, until: datetime | None, lasts: timedelta | None) -> datetime | None:
    if until and lasts:
        raise Invalid("Give `until` or `lasts`, not both.", field="lasts")
    now = await clock.now(conn)
    if until and until <= now:
        raise Invalid("`until` has passed. Give a later time, or none.", code="until_passed", field="until")
    return now + lasts if lasts else until


async def resume(conn: Connection, caller: Caller) -> None:
    """Let the triggers of the workspace fire again; schedules count from now. Does nothing if it is not paused."""
    caller.must_be(Level.ADMIN, "resume the workspace")
    if since := await pauses.end(conn, caller.workspace_id, caller.user_id):
        await _resume_schedules(conn, caller.workspace_id, since)
        _wake(conn, caller.workspace_id)


async def end_next(conn: Connection, now: datetime | None) -> WorkspaceId | None:
    """Resume one workspace whose pause has reached its end. Its schedules count from that end, so that slots since then
    are late and not lost."""
    ended = await pauses.end_next(conn, now)
    if ended is None:
        return None
    workspace_id, since = ended
    await _resume_schedules(conn, workspace_id, since)
    _wake(conn, workspace_id)
    return workspace_id


async def _resume_schedules(conn: Connection, workspace_id: WorkspaceId, since: datetime) -> None:
    await automations.lock_all(conn, workspace_id)
    await triggers.resume_of(conn, workspace_id, reason=SkipReason.PAUSED, now=since)


def _wake(conn: Connection, workspace_id: WorkspaceId) -> None:
    conn.wake(TRIGGERS)
    conn.wake(RUNS, [workspace_id])
