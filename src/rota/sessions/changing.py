"""The lifecycle of a session: every change of its status by a person, as an event of its log."""

from collections.abc import Callable
from typing import Any

from rota.db import events, sessions
from rota.db.events import NewEvent
from rota.db.pool import Connection
from rota.errors import Conflict, NotFound
from rota.model.caller import Caller
from rota.model.ids import AutomationId, SessionId, WorkspaceId
from rota.model.session import SessionStatus, Verb, after
from rota.runs import tasking

Step = Callable[[SessionStatus], SessionStatus]


async def find(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> dict[str, Any]:
    session = await sessions.find(conn, workspace_id, session_id)
    if not session:
        raise NotFound("There is no such session.")
    return session


async def change(conn: Connection, caller: Caller, session_id: SessionId, verb: Verb) -> None:
    """Enable, pause, resume, complete, fail or archive.

    Pausing holds tasks that nobody has claimed. Ending by hand skips what has not begun and cancels what runs, but for
    the runs of an automation, which end by themselves.
    """
    where = (caller.workspace_id, session_id)
    found = await find(conn, *where)
    caller.must_own(found["owner_id"], f"{verb} this session")
    after(verb, SessionStatus(found["status"]))
    if verb in {Verb.PAUSE, Verb.COMPLETE, Verb.FAIL}:
        await tasking.lock(conn, where)
    await move(conn, *where, lambda status: after(verb, status), verb=verb, by=caller.name)
    match verb:
        case Verb.PAUSE:
            await tasking.hold(conn, where)
        case Verb.ENABLE | Verb.RESUME:
            await tasking.let_go(conn, where)
        case Verb.COMPLETE | Verb.FAIL:
            await tasking.close(conn, where)
        case Verb.ARCHIVE:
            await _refuse_in_use(conn, where, found["automation_id"])


async def _refuse_in_use(
    conn: Connection, where: tuple[WorkspaceId, SessionId], automation_id: AutomationId | None
) -> None:
    """What can only be read is not written to: neither by a run that goes on, nor by an automation's next one."""
    if await sessions.has_live_run(conn, *where):
        raise Conflict("A run goes on in this session; cancel it or wait for its end.", code="session_in_use")
    if automation_id and await sessions.goes_on(conn, *where, automation_id):
        raise Conflict(
            "Its automation goes on in this session; give it `session: new`, or delete it.", code="session_in_use"
        )


async def move(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, step: Step, **told: str
) -> dict[str, Any]:
    """Lock a session and lead it to its next status; the session as it is then."""
    session = await sessions.lock(conn, workspace_id, session_id)
    if not session:
        raise NotFound("There is no such session.")
    was = SessionStatus(session["status"])
    to = step(was)
    if to != was:
        await sessions.move(conn, workspace_id, session_id, was=was, to=to)
        await events.append(conn, [NewEvent(workspace_id, session_id, "session", {"status": to, **told})])
    return {**session, "status": to}
