"""New sessions that people open: a conversation with an agent, or a goal for several."""

from collections.abc import Mapping, Sequence
from typing import Any

from rota.db import sessions
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model.caller import Caller, Level
from rota.model.ids import AgentId, SessionId, new_id
from rota.model.run import summarised
from rota.model.session import SessionStatus
from rota.model.task import TaskForm
from rota.sessions import chat, roles, tasks


async def converse(
    conn: Connection,
    caller: Caller,
    agent: str,
    *,
    title: str | None = None,
    prompt: str | None = None,
    given: Any = None,
) -> SessionId:
    """Open an interactive session; with a prompt or an input its first turn starts at once."""
    caller.must_be(Level.MEMBER, "open a session")
    found = await roles.agent_named(conn, caller.workspace_id, agent, "agent")
    session_id = SessionId(new_id())
    await sessions.insert(
        conn, caller.workspace_id, session_id, kind="interactive", status=SessionStatus.ACTIVE,
        owner_id=caller.user_id, agent_id=found["id"], title=title or summarised(prompt),
    )  # fmt: skip
    if prompt is not None or given is not None:
        await chat.turn(conn, caller, session_id, prompt=prompt, given=given)
    return session_id


async def pursue(
    conn: Connection,
    caller: Caller,
    goal: str,
    *,
    seats: Sequence[Mapping[str, str]],
    forms: Sequence[TaskForm] = (),
    title: str | None = None,
    draft: bool = False,
) -> SessionId:
    """Open a background session: a goal, roles with their agents, and the first tasks. A draft starts nothing."""
    caller.must_be(Level.MEMBER, "open a session")
    if not seats:
        raise Invalid("A background session needs at least one role.", code="no_roles", field="roles")
    lead = await roles.agent_named(conn, caller.workspace_id, seats[0]["agent"], "roles.0.agent")
    session_id = SessionId(new_id())
    await sessions.insert(
        conn, caller.workspace_id, session_id, kind="background", goal=goal, title=title or summarised(goal),
        status=SessionStatus.DRAFT if draft else SessionStatus.ACTIVE, owner_id=caller.user_id,
        agent_id=AgentId(lead["id"]),
    )  # fmt: skip
    await roles.add(conn, caller, session_id, [(seat["name"], seat["agent"]) for seat in seats], field="roles")
    if forms:
        await tasks.add(conn, caller.workspace_id, session_id, forms)
    return session_id
