"""Runs that a person starts: run now, an agent directly, and a retry."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from rota.access import grants
from rota.db import automations, runs, start_keys
from rota.db.pool import Connection
from rota.errors import Conflict, Invalid, NotFound
from rota.model.caller import Caller, Level
from rota.model.firing import place
from rota.model.ids import AgentId, AutomationId, GrantId, RunId, SessionId, WorkspaceId, new_id
from rota.model.run import PRIORITY, TERMINAL, SkipReason, Source, Start, Status
from rota.roster import agents
from rota.runs import cancelling, starting

DIRECT_TIMEOUT = timedelta(hours=1)
START_WITHIN = timedelta(minutes=15)


async def run_now(conn: Connection, caller: Caller, automation_id: AutomationId, *, payload: Any = None) -> RunId:
    """Start a run at once, also of a paused automation; `next_fire_at` stays. At most one may wait."""
    found = await automations.find(conn, caller.workspace_id, str(automation_id), lock=True)
    if not found or found["deleted_at"]:
        raise NotFound("There is no such automation.")
    caller.must_own(found["owner_id"], "run this automation")
    return await _start_one(conn, caller, automation_id, Source.RUN_NOW, payload=payload)


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
        return await run_agent(conn, caller, str(old["agent_id"]), old, again=old)
    found = await automations.find(conn, caller.workspace_id, str(old["automation_id"]), lock=True)
    if not found or found["deleted_at"]:
        raise Conflict("Its automation is deleted; restore it first.", code="automation_deleted")
    caller.must_own(found["owner_id"], "retry this run")
    return await _start_one(conn, caller, AutomationId(found["id"]), Source.RETRY, again=old)


async def cancel(conn: Connection, caller: Caller, run_id: RunId) -> list[UUID]:
    """Cancel a run of one's own, or any as an admin; the ids of those that a worker must stop."""
    found = await runs.find(conn, caller.workspace_id, run_id)
    if not found:
        raise NotFound("There is no such run.")
    automation = found["automation_id"] and await automations.find(
        conn, caller.workspace_id, str(found["automation_id"])
    )
    caller.must_own(automation["owner_id"] if automation else found["created_by"], "cancel this run")
    return await cancelling.cancel(conn, caller.workspace_id, run_id)


async def _start_one(
    conn: Connection,
    caller: Caller,
    automation_id: AutomationId,
    source: Source,
    *,
    payload: Any = None,
    again: Mapping[str, Any] | None = None,
) -> RunId:
    policy, flight = await automations.policy(conn, caller.workspace_id, automation_id)
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
        if again["agent_id"] != policy.agent_id:
            agent = await _awake(conn, caller, str(again["agent_id"]))
            start.agent_id, start.queue = agent["id"], _queue(caller, agent)
            start.grant_id = await _short_grant(conn, caller, agent)
    await starting.start(conn, [start])
    return start.id


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


async def _short_grant(conn: Connection, caller: Caller, agent: Mapping[str, Any]) -> GrantId:
    return await grants.make(conn, caller.workspace_id, caller.user_id, agent["id"], lasts=grants.SHORT)


def _queue(caller: Caller, agent: Mapping[str, Any]) -> AgentId | WorkspaceId:
    return AgentId(agent["id"]) if agent["max_concurrent"] else caller.workspace_id


def _refusal(reason: str) -> str:
    return {
        SkipReason.AGENT_PAUSED: "Its agent is paused.",
        SkipReason.GRANT_REVOKED: "Its grant was revoked; save the automation again to give it a new one.",
        SkipReason.GRANT_EXPIRED: "Its grant has expired; save the automation again to give it a new one.",
        SkipReason.GRANT_SCOPE: "Its grant does not allow this agent; save the automation again.",
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
    if values.get("prompt") is None and values.get("input") is None:
        raise Invalid("Give a prompt, an input, or both.", code="nothing_to_do", field="prompt")
    session_id = SessionId(new_id())
    start = Start(
        workspace_id=caller.workspace_id,
        id=RunId(new_id()),
        agent_id=agent["id"],
        grant_id=await _short_grant(conn, caller, agent),
        owner_id=caller.user_id,
        revision=agent["revision"],
        source=Source.RETRY if again else Source.RUN_NOW,
        queue=_queue(caller, agent),
        executor=agent["executor"],
        pool=agent["pool"],
        timeout=values.get("timeout") or DIRECT_TIMEOUT,
        start_within=START_WITHIN,
        session_id=session_id,
        lane=session_id,
        prompt=values.get("prompt"),
        input=values.get("input"),
        created_by=caller.user_id,
        priority=PRIORITY[Source.RUN_NOW],
    )
    if again:
        _repeat(start, again)
    await starting.start(conn, [start])
    return start.id


def check_key(key: str | None) -> None:
    if key is not None and (not 1 <= len(key) <= 200 or not key.isprintable()):
        raise Invalid(
            "An Idempotency-Key has 1 to 200 printable characters.",
            code="invalid_key",
            field="Idempotency-Key",
        )


async def once_for_key(
    conn: Connection,
    caller: Caller,
    key: str | None,
    request: Mapping[str, Any],
    begin: Callable[[], Awaitable[RunId]],
) -> RunId:
    """The same key and request give the same run, also after it failed; another request with that key is refused."""
    caller.must_be(Level.MEMBER, "start a run")
    if key is None:
        return await begin()
    check_key(key)
    body_hash = hashlib.sha256(orjson.dumps(request, option=orjson.OPT_SORT_KEYS, default=str)).digest()
    await start_keys.lock(conn, caller.workspace_id, key)
    earlier = await start_keys.find(conn, caller.workspace_id, key)
    if earlier is None:
        run_id = await begin()
        await start_keys.add(conn, caller.workspace_id, key, body_hash, run_id)
        return run_id
    if earlier[0] != body_hash:
        raise Invalid("This Idempotency-Key was used with another request.", code="key_reused", field="Idempotency-Key")
    return earlier[1]
