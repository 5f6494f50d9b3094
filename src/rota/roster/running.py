"""Runs that a person starts: run now, an agent directly, and a retry."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from rota.access import grants
from rota.db import automations, runs, start_keys
from rota.db import grants as grant_rows
from rota.db.automations import Held
from rota.db.pool import Connection
from rota.errors import Conflict, Invalid, NotFound
from rota.model.agent_config import PROMPTLESS_KINDS
from rota.model.caller import Caller, Level
from rota.model.firing import Policy, place
from rota.model.grant_scope import optional_of
from rota.model.ids import AgentId, AutomationId, GrantId, RunId, SessionId, WorkspaceId, new_id
from rota.model.run import PRIORITY, TERMINAL, SkipReason, Source, Start, Status
from rota.model.session import SessionStatus, extended
from rota.roster import agents
from rota.runs import cancelling, starting, tasking
from rota.sessions import changing, chat, repeats

Started = TypeVar("Started", bound=UUID)

DIRECT_TIMEOUT = timedelta(hours=1)
START_WITHIN = timedelta(minutes=15)


async def run_now(conn: Connection, caller: Caller, automation_id: AutomationId, *, payload: Any = None) -> RunId:
    """Start a run at once, also of a paused automation; `next_fire_at` stays. At most one may wait."""
    return await run_held(conn, caller, (await find_to_run(conn, caller, str(automation_id))).held, payload=payload)


class ToRun(NamedTuple):
    """An automation to be run now, and what a request with the same key led to before."""

    held: Held
    earlier: start_keys.Earlier | None = None


async def find_to_run(conn: Connection, caller: Caller, ref: str, key: str | None = None) -> ToRun:
    """Wait for the turn of the key, then for the automation."""
    repeats.check_key(key)
    turn = start_keys.turn(caller.workspace_id, key) if key else []
    held, found = await automations.hold(conn, caller.workspace_id, ref, *turn)
    if held is None:
        raise NotFound("There is no such automation.")
    return ToRun(held, start_keys.earlier(found) if key else None)


async def run_held(conn: Connection, caller: Caller, held: Held, *, payload: Any = None) -> RunId:
    """Of an automation that is locked."""
    caller.must_own(held.owner_id, "run this automation")
    return await _start_one(conn, caller, held, Source.RUN_NOW, payload=payload)


async def retry(conn: Connection, caller: Caller, run_id: RunId) -> RunId:
    """Start a new run with the same revision, prompt and payload as one that failed, was cancelled or skipped."""
    old = await runs.find(conn, caller.workspace_id, run_id)
    if not old:
        raise NotFound("There is no such run.")
    if old["status"] == Status.SUCCEEDED or old["status"] not in TERMINAL:
        raise Conflict(
            f"Only a failed, cancelled or skipped run can be retried; this one is {old['status']}.",
            code="not_retryable",
        )
    if not old["automation_id"]:
        return await _retry_by_hand(conn, caller, old)
    held, _ = await automations.hold(conn, caller.workspace_id, str(old["automation_id"]))
    if held is None:
        raise Conflict("Its automation is deleted; restore it first.", code="automation_deleted")
    caller.must_own(held.owner_id, "retry this run")
    return await _start_one(conn, caller, held, Source.RETRY, again=old)


async def _retry_by_hand(conn: Connection, caller: Caller, old: Mapping[str, Any]) -> RunId:
    """A task again, a turn of a conversation again, or an agent that was run directly."""
    if old["source"] == Source.TASK:
        return await _retry_task(conn, caller, old)
    earlier = old["retry_of"] and await runs.find(conn, caller.workspace_id, old["retry_of"])
    goes_on = old["session_id"] and earlier and earlier["session_id"] == old["session_id"]
    if old["source"] == Source.CHAT or goes_on:
        given = {"prompt": old["prompt"], "given": old["input"], "retry_of": old["id"]}
        return await chat.turn(conn, caller, old["session_id"], **given)
    values = {**old, "scopes": await _scopes_of(conn, caller, old)}
    return await run_agent(conn, caller, str(old["agent_id"]), values, again=old)


async def _retry_task(conn: Connection, caller: Caller, old: Mapping[str, Any]) -> RunId:
    """The task is ready again, with a new run; what was skipped because of it waits again."""
    session = await changing.find(conn, caller.workspace_id, old["session_id"])
    caller.must_own(session["owner_id"], "retry this run")
    agent = await _awake(conn, caller, str(old["agent_id"]))
    start = await _by_hand(conn, caller, agent, {"timeout": old["timeout"]})
    start.session_id, start.fresh_session, start.lane, start.start_within = old["session_id"], False, None, None
    start.source, start.priority = Source.TASK, PRIORITY[Source.RETRY]
    _repeat(start, old)
    # The run first, then the session: locks are taken in that order everywhere. A refusal takes both back.
    await starting.start(conn, [start])
    if start.skip_reason:
        raise Conflict("Not enough is left of the month's budget for another run.", code="budget")
    now = await changing.move(conn, caller.workspace_id, old["session_id"], extended, by=caller.name)
    where = await tasking.again(conn, caller.workspace_id, old["id"], start.id)
    if where is None:
        raise Conflict("Its task has a later run; retry that one.", code="not_retryable")
    if now["status"] != SessionStatus.ACTIVE:
        await tasking.hold(conn, where)
    return start.id


async def cancel(conn: Connection, caller: Caller, run_id: RunId) -> None:
    """Cancel a run of one's own, or any as an admin."""
    found = await runs.find(conn, caller.workspace_id, run_id)
    if not found:
        raise NotFound("There is no such run.")
    automation = found["automation_id"] and await automations.find(
        conn, caller.workspace_id, str(found["automation_id"])
    )
    caller.must_own(automation["owner_id"] if automation else found["created_by"], "cancel this run")
    await cancelling.cancel(conn, caller.workspace_id, run_id)


async def _start_one(
    conn: Connection,
    caller: Caller,
    held: Held,
    source: Source,
    *,
    payload: Any = None,
    again: Mapping[str, Any] | None = None,
) -> RunId:
    automation_id, _, policy, flight = held
    if flight.waiting:
        queued = await runs.queued_of(conn, caller.workspace_id, automation_id)
        if queued:
            raise Conflict("A run of this automation is already queued.", code="already_queued", run_id=str(queued))
        flight = flight._replace(waiting=False)  # it was claimed between the two looks
    if policy.refused:
        raise Conflict(_refusal(policy.refused), code=policy.refused)
    placed, _ = place(policy, "queue_one", flight)
    start = policy.start(source, placed, created_by=caller.user_id, payload=payload)
    if again:
        _repeat(start, again)
        start.prompt = await automations.prompt_then(conn, caller.workspace_id, automation_id, start.revision)
        if again["agent_id"] != policy.agent_id or await _changed_hands(conn, caller, again, policy):
            agent = await _awake(conn, caller, str(again["agent_id"]))
            start.agent_id, start.queue = agent["id"], _queue(caller, agent)
            start.grant_id = await _short_grant(
                conn,
                caller,
                agent,
                start.timeout,
                scopes=await _scopes_of(conn, caller, again),
                charging=policy.grant_id,
            )
    await starting.start(conn, [start])
    return start.id


async def _changed_hands(conn: Connection, caller: Caller, old: Mapping[str, Any], policy: Policy) -> bool:
    """Whether somebody else answers for the automation since: they have not agreed to what it was to do before."""
    then = await grant_rows.find(conn, caller.workspace_id, old["grant_id"])
    now = await grant_rows.find(conn, caller.workspace_id, policy.grant_id)
    return not then or not now or bool(then["user_id"] != now["user_id"])


def _repeat(start: Start, old: Mapping[str, Any]) -> None:
    """The same work for the same agent as it stood then."""
    start.retry_of = old["id"]
    for name in ("revision", "executor", "pool", "timeout", "max_attempts", "prompt", "input", "payload"):
        setattr(start, name, old[name])


async def _awake(conn: Connection, caller: Caller, ref: str) -> dict[str, Any]:
    agent = await agents.find(conn, caller, ref)
    if agent["status"] == "paused":
        raise Conflict("This agent is paused.", code="agent_paused")
    return agent


async def _short_grant(
    conn: Connection,
    caller: Caller,
    agent: Mapping[str, Any],
    timeout: timedelta,
    *,
    scopes: Sequence[str] = (),
    charging: GrantId | None = None,
) -> GrantId:
    """Of the caller, for as long as the run may take. It charges the account of the automation's grant, if the run is
    an automation's."""
    lasts = max(grants.SHORT, START_WITHIN + timeout)
    return await grants.make(conn, caller, agent["id"], scopes=scopes, lasts=lasts, charging=charging)


async def _scopes_of(conn: Connection, caller: Caller, run: Mapping[str, Any]) -> list[str]:
    """The optional scopes of the grant that a run works on. A retry has the same."""
    grant = await grant_rows.find(conn, caller.workspace_id, run["grant_id"])
    return optional_of(grant["scopes"]) if grant else []


def _queue(caller: Caller, agent: Mapping[str, Any]) -> AgentId | WorkspaceId:
    return AgentId(agent["id"]) if agent["max_concurrent"] else caller.workspace_id


def _refusal(reason: str) -> str:
    return {
        SkipReason.AGENT_PAUSED: "Its agent is paused.",
        SkipReason.GRANT_REVOKED: "Its grant was revoked; renew it with `POST …/renew-grant`.",
        SkipReason.GRANT_EXPIRED: "Its grant has expired; renew it with `POST …/renew-grant`.",
        SkipReason.GRANT_SCOPE: "Its grant does not allow this agent; renew it with `POST …/renew-grant`.",
    }.get(SkipReason(reason), "It may not run now.")


async def run_agent(
    conn: Connection,
    caller: Caller,
    ref: str,
    values: Mapping[str, Any],
    *,
    again: Mapping[str, Any] | None = None,
) -> RunId:
    """Run an agent directly, in a session of its own, on a short grant of the caller."""
    caller.must_be(Level.MEMBER, "run an agent")
    agent = await _awake(conn, caller, ref)
    told = values.get("prompt") is not None or values.get("input") is not None
    if not told and agent["executor"] not in PROMPTLESS_KINDS:
        raise Invalid(
            f"Agents of the kind “{agent['executor']}” need a prompt, an input, or both.",
            code="nothing_to_do", field="prompt",
        )  # fmt: skip
    start = await _by_hand(conn, caller, agent, values)
    if again:
        start.source = Source.RETRY
        _repeat(start, again)
    await starting.start(conn, [start])
    return start.id


async def _by_hand(conn: Connection, caller: Caller, agent: Mapping[str, Any], values: Mapping[str, Any]) -> Start:
    """A run of this agent in a session of its own, on a short grant of the caller."""
    session_id, timeout = SessionId(new_id()), values.get("timeout") or DIRECT_TIMEOUT
    return Start(
        workspace_id=caller.workspace_id,
        id=RunId(new_id()),
        agent_id=agent["id"],
        grant_id=await _short_grant(conn, caller, agent, timeout, scopes=values.get("scopes") or ()),
        owner_id=caller.user_id,
        revision=agent["revision"],
        source=Source.RUN_NOW,
        queue=_queue(caller, agent),
        executor=agent["executor"],
        pool=agent["pool"],
        timeout=timeout,
        start_within=START_WITHIN,
        session_id=session_id,
        lane=session_id,
        prompt=values.get("prompt"),
        input=values.get("input"),
        created_by=caller.user_id,
        priority=PRIORITY[Source.RUN_NOW],
    )


async def once_for_key(
    conn: Connection,
    caller: Caller,
    key: str | None,
    request: Mapping[str, Any],
    begin: Callable[[], Awaitable[Started]],
) -> Started:
    """The same key and request of the same person give the same run, session or batch, also after it failed; another
    is refused: who may not do it is not told that it is done."""
    caller.must_be(Level.MEMBER, "start a run")
    asked = {"by": caller.user_id, **request}
    started, _ = await repeats.made_once(conn, caller.workspace_id, key, asked, begin)
    return started


async def run_once_for_key(conn: Connection, caller: Caller, found: ToRun, payload: Any, key: str | None) -> RunId:
    """The same for a run now, which has had its turn."""
    caller.must_be(Level.MEMBER, "start a run")

    def begin() -> Awaitable[RunId]:
        return run_held(conn, caller, found.held, payload=payload)

    if key is None:
        return await begin()
    asked = {"by": caller.user_id, "run": "automation", "automation": str(found.held.id), "payload": payload}
    started, _ = await repeats.made_in_turn(conn, caller.workspace_id, key, asked, found.earlier, begin)
    return started
