"""Roles: the seats of agents in a session."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rota.access import grants
from rota.db import agents, sessions
from rota.db.pool import Connection
from rota.errors import Conflict, Invalid
from rota.model.caller import Caller
from rota.model.ids import AgentId, SessionId, WorkspaceId
from rota.model.message import AGENT, ALL, ROLE, USER
from rota.model.session import SessionStatus, extended, room_for_roles
from rota.sessions import changing

NOT_ROLES = frozenset({ALL, USER, AGENT, "rota", "tool"})  # words with a meaning of their own where roles are named
GRANT_LASTS = timedelta(days=7)  # the tasks of a session may take longer than one run


async def agent_named(conn: Connection, workspace_id: WorkspaceId, ref: str, field: str) -> dict[str, Any]:
    """The agent that a field names, which may work."""
    agent = await agents.find(conn, workspace_id, ref)
    if not agent or agent["deleted_at"]:
        raise Invalid(f"There is no agent {ref[:80]!r}.", code="unknown_agent", field=field)
    if agent["status"] == "paused":
        raise Conflict("This agent is paused.", code="agent_paused", field=field)
    return agent


async def give(conn: Connection, caller: Caller, session_id: SessionId, name: str, agent: str) -> None:
    """Give an agent one more role in a session that goes on, or may."""
    session = await changing.find(conn, caller.workspace_id, session_id)
    caller.must_own(session["owner_id"], "give roles in this session")
    extended(SessionStatus(session["status"]))
    room_for_roles(len(await sessions.roles(conn, caller.workspace_id, session_id)), 1)
    await add(conn, caller, session_id, [(name, agent)])


async def add(
    conn: Connection, caller: Caller, session_id: SessionId, given: Sequence[tuple[str, str]], *, field: str = ""
) -> list[AgentId]:
    """Give roles to agents, each on a grant of the caller; the agents. `given` holds pairs of name and agent."""
    seated = []
    for at, (name, ref) in enumerate(given):
        inside = f"{field}.{at}." if field else ""
        check_name(name, f"{inside}name")
        agent = await agent_named(conn, caller.workspace_id, ref, f"{inside}agent")
        agent_id = AgentId(agent["id"])
        grant_id = await grants.make(conn, caller, agent_id, lasts=GRANT_LASTS)
        if not await sessions.add_role(conn, caller.workspace_id, session_id, name, agent_id, grant_id):
            raise Conflict(f"This session has a role {name!r} already.", code="role_exists", field=f"{inside}name")
        seated.append(agent_id)
    return seated


def check_name(name: str, field: str) -> None:
    if not ROLE.fullmatch(name) or name in NOT_ROLES:
        raise Invalid(
            "A role has 1 to 63 small letters, digits, dashes and underscores, begins with a letter or digit, "
            f"and is none of {', '.join(sorted(NOT_ROLES))}.",
            code="invalid_role",
            field=field,
        )
