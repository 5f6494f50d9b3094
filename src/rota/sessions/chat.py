"""Chat: a person's message in a session is a run that sees the transcript so far."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rota.access import grants
from rota.db import agents, automations
from rota.db.pool import Connection
from rota.errors import Conflict, Invalid
from rota.model.caller import Caller
from rota.model.ids import AgentId, GrantId, RunId, SessionId, new_id
from rota.model.run import PRIORITY, Source, Start
from rota.model.session import SessionStatus, followed_up
from rota.runs import starting
from rota.sessions import changing

TIMEOUT = timedelta(hours=1)
START_WITHIN = timedelta(minutes=15)


async def turn(
    conn: Connection,
    caller: Caller,
    session_id: SessionId,
    *,
    prompt: str | None,
    given: Any = None,
    retry_of: RunId | None = None,
) -> RunId:
    """Start a turn, on a short grant of the caller, behind the turns before it and what an automation does in
    the session, whose account it charges too. A session that had ended goes on."""
    session = await changing.find(conn, caller.workspace_id, session_id)
    caller.must_own(session["owner_id"], "write in this session")
    if prompt is None and given is None:
        raise Invalid("Give a prompt, an input, or both.", code="nothing_to_do", field="prompt")
    followed_up(SessionStatus(session["status"]))
    agent = await agents.find(conn, caller.workspace_id, str(session["agent_id"]), start=True)
    assert agent, "only an imported session has none, and that is archived"
    if agent["deleted_at"]:
        raise Conflict("The agent of this session was deleted.", code="agent_deleted")
    if agent["status"] == "paused":
        raise Conflict("The agent of this session is paused.", code="agent_paused")
    automation = session["automation_id"] and await automations.find(
        conn, caller.workspace_id, str(session["automation_id"])
    )
    charging = automation["grant_id"] if automation else None
    grant_id = await grants.make(conn, caller, agent["id"], lasts=grants.SHORT, charging=charging)
    start = _start(caller, session_id, agent, grant_id, prompt=prompt, given=given, retry_of=retry_of)
    # The run first, then the session: locks are taken in that order everywhere. A refusal takes both back.
    await starting.start(conn, [start])
    if not start.skip_reason:  # not enough is left of its budget: nothing goes on
        await changing.move(conn, caller.workspace_id, session_id, followed_up, by=caller.name)
    return start.id


def _start(
    caller: Caller,
    session_id: SessionId,
    agent: Mapping[str, Any],
    grant_id: GrantId,
    *,
    prompt: str | None,
    given: Any,
    retry_of: RunId | None,
) -> Start:
    agent_id = AgentId(agent["id"])
    source = Source.RETRY if retry_of else Source.CHAT
    return Start(
        workspace_id=caller.workspace_id,
        id=RunId(new_id()),
        agent_id=agent_id,
        grant_id=grant_id,
        owner_id=caller.user_id,
        created_by=caller.user_id,
        revision=agent["revision"],
        source=source,
        retry_of=retry_of,
        queue=agent_id if agent["max_concurrent"] else caller.workspace_id,
        executor=agent["executor"],
        pool=agent["pool"],
        timeout=TIMEOUT,
        start_within=START_WITHIN,
        session_id=session_id,
        fresh_session=False,
        lane=session_id,
        waits_for_lane=True,
        prompt=prompt,
        input=given,
        priority=PRIORITY[source],
    )
