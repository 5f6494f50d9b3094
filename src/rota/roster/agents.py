"""Agents: saving, changing and deleting who works."""

import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import orjson

from rota.access import credentials
from rota.db import agents, clock, queues, workers
from rota.db.pool import Connection
from rota.errors import Conflict, Invalid, NotFound
from rota.model import agent_config
from rota.model.address import PUBLIC_ONLY, AllowList
from rota.model.caller import Caller, Level
from rota.model.credential import check_http_secret
from rota.model.ids import AgentId, new_id
from rota.model.run import SkipReason
from rota.roster import slugs, triggers
from rota.runs import cancelling

SERVED_LATELY = timedelta(days=7)
DEFAULTS: Mapping[str, Any] = {
    "instructions": "",
    "credentials": {},
    "pool": "default",
    "max_concurrent": None,
    "status": "active",
}


async def create(
    conn: Connection, caller: Caller, values: Mapping[str, Any], *, allow: AllowList = PUBLIC_ONLY
) -> tuple[dict[str, Any], Sequence[str]]:
    """Save a new agent. Returns it with warnings about its configuration. `allow` are the targets that an agent of the
    kind `http` may call."""
    caller.must_be(Level.ADMIN, "create an agent")
    warnings = await _check(conn, {**DEFAULTS, **values}, allow)
    uses = await credentials.check_uses(conn, caller, values.get("credentials", {}))
    agent_id = AgentId(new_id())
    slug = await slugs.free(
        lambda some: agents.taken(conn, caller.workspace_id, some), values.get("slug"), values["name"], kind="agent"
    )
    agent = {
        **DEFAULTS,
        **values,
        "credentials": uses,
        "slug": slug,
        "id": agent_id,
        "workspace_id": caller.workspace_id,
        "created_by": caller.user_id,
    }
    await agents.insert(conn, agent)
    await agents.add_revision(conn, caller.workspace_id, agent_id, 1, {"agent": spec(agent)}, caller.user_id)
    return await find(conn, caller, str(agent_id)), warnings


async def change(
    conn: Connection, caller: Caller, ref: str, values: Mapping[str, Any], *, allow: AllowList = PUBLIC_ONLY
) -> tuple[dict[str, Any], Sequence[str]]:
    """Save a change: a new revision of the agent and of every automation that uses it, unless it only pauses, resumes
    or caps it, which no revision tells."""
    caller.must_be(Level.ADMIN, "change an agent")
    found = await find(conn, caller, ref, lock=True)
    if not values:
        return found, await doubts(conn, found, allow)  # no revision of what is not changed
    agent = {**found, **values, "workspace_id": caller.workspace_id}
    as_before = all(agent[name] == found[name] for name in ("executor", "config", "credentials"))
    warnings = await (doubts if as_before else _check)(conn, agent, allow)
    agent["credentials"] = await credentials.check_uses(conn, caller, agent["credentials"])
    if agent["slug"] != found["slug"]:
        await slugs.free(
            lambda some: agents.taken(conn, caller.workspace_id, some),
            slugs.checked(agent["slug"]),
            agent["name"],
            kind="agent",
        )
    other_queue = (agent["max_concurrent"] is None) != (found["max_concurrent"] is None)
    if other_queue:  # a run that is just being written would come to the old one
        await agents.shut(conn, caller.workspace_id, agent["id"])
    await agents.lock_automations(conn, caller.workspace_id, agent["id"])
    revised = _written(spec(agent)) != _written(spec(found))
    agent["revision"] = found["revision"] + revised
    await agents.update(conn, agent)
    if revised:
        await _add_revision(conn, caller, agent)
    if other_queue:
        queue = agent["id"] if agent["max_concurrent"] else caller.workspace_id
        await queues.move(conn, caller.workspace_id, agent["id"], queue)
    if agent["status"] == "paused" and found["status"] == "active":
        await cancelling.skip_waiting_of_agent(conn, caller.workspace_id, agent["id"])
    if agent["status"] == "active" and found["status"] == "paused":
        now = await clock.now(conn)
        await triggers.resume_of(conn, caller.workspace_id, agent["id"], reason=SkipReason.AGENT_PAUSED, now=now)
    return await find(conn, caller, str(agent["id"])), warnings


async def _add_revision(conn: Connection, caller: Caller, agent: Mapping[str, Any]) -> None:
    as_saved = spec(agent)
    await agents.add_revision(
        conn, caller.workspace_id, agent["id"], agent["revision"], {"agent": as_saved}, caller.user_id
    )
    await agents.carry_to_automations(conn, caller.workspace_id, agent["id"], as_saved, caller.user_id)


async def delete(conn: Connection, caller: Caller, ref: str) -> None:
    """Delete an agent that no automation uses any more. Its runs stay readable."""
    caller.must_be(Level.ADMIN, "delete an agent")
    agent = await find(conn, caller, ref, lock=True)
    used = await agents.used_by(conn, caller.workspace_id, [agent["id"]])
    if used:
        raise Conflict(
            f"{used[agent['id']]} automation(s) use this agent; delete them or give them another one first.",
            code="agent_in_use",
        )
    await agents.delete(conn, caller.workspace_id, agent["id"])


async def find(conn: Connection, caller: Caller, ref: str, *, lock: bool = False, hold: bool = False) -> dict[str, Any]:
    agent = await agents.find(conn, caller.workspace_id, ref, lock=lock, hold=hold)
    if not agent or agent["deleted_at"]:
        raise NotFound("There is no such agent.")
    return agent


async def doubts(conn: Connection, agent: Mapping[str, Any], allow: AllowList) -> Sequence[str]:
    """What may not work about an agent that is saved, as saving it would say now."""
    try:
        return await _check(conn, agent, allow)
    except Invalid as wrong:
        return [f"{wrong.field}: {wrong.message}"]


async def _check(conn: Connection, agent: Mapping[str, Any], allow: AllowList) -> Sequence[str]:
    """Kinds that we don't know are for those workers to judge that serve them."""
    check_http_secret(agent["executor"], agent["credentials"])
    served = await workers.served(conn, dead_after=SERVED_LATELY)
    return agent_config.check(
        agent["executor"], agent["config"], which=shutil.which, has=_has_module, also=sorted(served), allow=allow
    )


def _has_module(name: str) -> bool:
    """Whether it could be imported, without doing so."""
    return find_spec(name) is not None


def spec(agent: Mapping[str, Any]) -> dict[str, Any]:
    """What of an agent becomes part of a revision."""
    return {
        "id": str(agent["id"]), "slug": agent["slug"], "name": agent["name"], "executor": agent["executor"],
        "config": agent["config"], "instructions": agent["instructions"],
        "credentials": agent["credentials"], "pool": agent["pool"],
    }  # fmt: skip


def _written(spec: Mapping[str, Any]) -> bytes:
    """To compare by: in Python true is 1."""
    return orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
