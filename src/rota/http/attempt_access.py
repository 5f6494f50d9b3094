"""What the token of an attempt may do: everything at the desk of its run, and read what is its own.

Every other route is closed to it: a new route is closed until it is listed here. The scope `workspace:read` in the
run's grant opens the rest of the workspace for reading. Nothing but the desk is ever open for writing.
"""

from collections.abc import Iterator, Mapping

from fastapi import Request

from rota.db import attempts
from rota.db.pool import Connection
from rota.errors import Forbidden, NotFound
from rota.http.routes import API, within_workspace
from rota.model.caller import Caller, Level, Reach
from rota.model.grant_scope import WORKSPACE_READ
from rota.model.ids import as_uuid
from rota.model.scope import PREVIEWS, READING

DESK = f"{API}/runs/{{run_id}}/desk/"

_SESSION = {"session_id": "session"}
_AUTOMATION = {"automation": "automation"}

# Routes that read one object or a list: the parameters that must name something of the attempt's own, and what each
# names. A list has query parameters here; without any of them it spans the workspace and is refused.
OWN: Mapping[str, Mapping[str, str]] = {
    "/sessions/{session_id}": _SESSION,
    "/sessions/{session_id}/artifacts": _SESSION,
    "/sessions/{session_id}/artifacts/{artifact_id}/content": _SESSION,
    "/sessions/{session_id}/events": _SESSION,
    "/sessions/{session_id}/export": _SESSION,
    "/sessions/{session_id}/messages": _SESSION,
    "/sessions/{session_id}/origin": _SESSION,
    "/sessions/{session_id}/roles": _SESSION,
    "/sessions/{session_id}/tasks": _SESSION,
    "/sessions/{session_id}/trace": _SESSION,
    "/sessions/{session_id}/transcript": _SESSION,
    "/automations/{automation}": _AUTOMATION,
    "/automations/{automation}/memory": _AUTOMATION,
    "/automations/{automation}/memory/{key}": _AUTOMATION,
    "/automations/{automation}/revisions": _AUTOMATION,
    "/automations/{automation}/runs": _AUTOMATION,
    "/runs": {"session": "session", "automation": "automation"},
    "/runs/{run_id}": {"run_id": "run"},
    "/approvals": {"session": "session"},
    "/approvals/{approval_id}": {"approval_id": "approval"},
    "/agents/{agent}": {"agent": "agent"},
    "/grants/{grant_id}": {"grant_id": "grant"},
    "/accounts/{account_id}": {"account_id": "account"},
}

# What belongs to a person, and the audit log: closed to agents whatever their grant allows.
OF_PEOPLE = frozenset({"me", "notifications", "audit"})


async def check(request: Request, conn: Connection, caller: Caller) -> None:
    """Refuse what the token of an attempt may not do. An object that is not its own answers as a missing one."""
    reach, path = caller.reach, str(request.scope["route"].path)
    if reach is None or path.startswith(DESK):
        return
    inside = within_workspace(request)
    if not _is_read(request.method, inside):
        raise Forbidden(
            "The token of an attempt changes nothing, except at the desk of its own run.", needs=Level.MEMBER
        )
    if _is_of_people(inside):
        raise Forbidden("This is for people; the token of an attempt cannot read it.", needs=Level.MEMBER)
    if reach.is_whole_workspace:
        return
    named = list(_named(request, OWN.get(inside, {}))) if path.startswith(API) else []
    if not named:
        raise Forbidden(
            "The token of this attempt reads its own session, its automation and what its grant names. The rest of the"
            f" workspace needs the scope `{WORKSPACE_READ}` in the grant: save the automation, or start the run, with"
            f' `"scopes": ["{WORKSPACE_READ}"]`.',
            code="scope_missing", needs_scope=WORKSPACE_READ,
        )  # fmt: skip
    for kind, ref in named:
        if not await _is_own(conn, caller, reach, kind, ref):
            raise NotFound(f"There is no such {kind}.")


def may_try(reach: Reach, method: str, path: str) -> bool:
    """Whether a route of the API, by its path within the workspace, is open to such a token at all."""
    readable = _is_read(method, path) and not _is_of_people(path)
    return readable and (reach.is_whole_workspace or path in OWN)


def _is_read(method: str, path: str) -> bool:
    return method in READING or path in PREVIEWS


def _is_of_people(path: str) -> bool:
    return path.lstrip("/").partition("/")[0] in OF_PEOPLE


def _named(request: Request, parameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The objects that a request names, by kind and reference."""
    given = [*request.path_params.items(), *request.query_params.multi_items()]
    return ((parameters[name], str(value)) for name, value in given if name in parameters)


async def _is_own(conn: Connection, caller: Caller, reach: Reach, kind: str, ref: str) -> bool:
    """Runs and approvals belong to the session, runs to the automation too; the grant names agents and an account."""
    workspace_id, object_id = caller.workspace_id, as_uuid(ref)
    match kind:
        case "automation":
            found = await attempts.find_named(conn, workspace_id, kind, ref)
            return found is not None and found == reach.automation_id
        case "agent":
            found = await attempts.find_named(conn, workspace_id, kind, ref)
            return found is not None and reach.has_agent(found)
        case "run":
            return await attempts.has_run(conn, workspace_id, reach.session_id, reach.automation_id, object_id)
        case "approval":
            return await attempts.has_approval(conn, workspace_id, reach.session_id, object_id)
        case _:
            own = {"session": reach.session_id, "grant": reach.grant_id, "account": reach.account_id}
            return object_id == own[kind]
