"""The address of every page and of every list of the API, also filtered and far from its beginning."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import urlencode
from uuid import UUID

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from bench import run_state
from bench.stage import Stage
from rota.http.routes import API
from rota.http.shapes.pages import cursor_of

PAGES = "/w/{workspace}"

# Why no address is made for these routes.
EXEMPT = {
    f"{API}/sessions/{{session_id}}/trace": "a stream: it reads pages of events, as /events does",
    f"{PAGES}/sessions/{{session}}/stream": "a stream: it reads pages of events, as /events does",
    f"{PAGES}/top": "a stream: the counts at the top of every page, which each page reads too",
    f"{API}/audit/export": "a file of the whole audit log, read in batches",
    f"{API}/sessions/{{session_id}}/artifacts/{{artifact_id}}/content": "a file, found as its preview is",
    f"{PAGES}/sessions/{{session}}/artifacts/{{artifact}}/image": "a file, found as its preview is",
    f"{API}/runs/{{run_id}}/desk": "for the token of an attempt",
}
# Parameters that change no query, or wait for something to happen.
NO_QUERY = {"live", "limit", "wait", "gone", "starter", "next", "agent"}

SEARCHED = "automation 77"
LONG_AGO = datetime.now(UTC) - timedelta(days=90)
RECENTLY = datetime.now(UTC) - timedelta(days=9)

FIND_OBJECTS = """
SELECT json_build_object(
       'agent', (SELECT id FROM agents ORDER BY id DESC LIMIT 1),
       'account', (SELECT id FROM accounts ORDER BY id LIMIT 1),
       'user', (SELECT user_id FROM members ORDER BY user_id LIMIT 1),
       'automation', (SELECT id FROM automations WHERE deleted_at IS NULL ORDER BY id DESC LIMIT 1),
       'slug', (SELECT slug FROM automations WHERE deleted_at IS NULL ORDER BY id DESC LIMIT 1),
       'key', (SELECT key FROM memory ORDER BY key LIMIT 1),
       'grant', (SELECT grant_id FROM automations WHERE deleted_at IS NULL ORDER BY id LIMIT 1),
       'long', (SELECT id FROM sessions ORDER BY last_seq DESC LIMIT 1),
       'approval', (SELECT id FROM approvals ORDER BY id DESC LIMIT 1),
       'credential', (SELECT name FROM credentials ORDER BY name LIMIT 1),
       'artifact', (SELECT id FROM artifacts ORDER BY id DESC LIMIT 1),
       'kept_in', (SELECT session_id FROM artifacts ORDER BY id DESC LIMIT 1))
"""


async def find_objects(stage: Stage) -> dict[str, Any]:
    """One object of each kind that an address can name, by the name of the kind."""
    async with stage.db.connection() as conn:
        row = await (await conn.execute(FIND_OBJECTS)).fetchone()
        assert row
        return dict(row[0]) | await run_state.find_examples(conn)


async def find_cursors(stage: Stage) -> dict[str, str]:
    """For each list a cursor that stands in the middle of it, by the last word of its address."""
    cursors = {
        name: cursor_of(await _middle(stage, table))
        for name, table in {
            "agents": "agents", "automations": "automations", "runs": run_state.RUNS, "sessions": "sessions", "audit": "audit",
            "approvals": "approvals", "grants": "grants", "tokens": "tokens", "members": "users", "accounts": "accounts",
            "credentials": "credentials", "artifacts": "artifacts", "tasks": "tasks",
            "snapshots": "snapshots",
        }.items()
    }  # fmt: skip
    cursors |= dict.fromkeys(("events", "transcript", "messages", "revisions"), cursor_of(2))
    cursors["notifications"] = cursor_of(await _middle(stage, "notifications", "latest_id"))
    cursors["usage"] = cursor_of(f"{RECENTLY:%Y-%m-%d}/{UUID(int=0)}")
    cursors["memory"] = cursor_of("seen-2")
    return cursors


async def _middle(stage: Stage, table: str, column: str = "id") -> UUID:
    """An id with about as many rows before it as after it."""
    query = f"SELECT {column} FROM {table} ORDER BY {column} OFFSET (SELECT count(*) / 2 FROM {table}) LIMIT 1"
    async with stage.db.connection() as conn:
        row = await (await conn.execute(query.encode())).fetchone()
    return UUID(str(row[0])) if row else UUID(int=2**127)


async def addresses(app: FastAPI, stage: Stage) -> dict[str, str]:
    """Every page and list by a name: as it is, with each of its filters, and from the middle on."""
    objects, cursors = await find_objects(stage), await find_cursors(stage)
    listed = [route for route in routes(app) if not route.path.startswith(tuple(EXEMPT))]
    found = {name: path for route in listed for name, path in _of_route(route, objects, cursors)}
    return found | _combinations(objects, cursors)


def routes(app: FastAPI) -> Iterator[APIRoute]:
    """The routes that read something of a workspace."""
    for route in app.routes:
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()) and route.path.startswith((API, PAGES)):
            yield route


def _of_route(route: APIRoute, objects: Mapping[str, Any], cursors: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    path = route.path.format(**{**_path_parameters(route, objects), "workspace": "default"})
    name = route.path.replace(PAGES, "").replace("/{workspace}", "") or "/"
    yield name, path
    for parameter, annotation in _query_parameters(route.dependant):
        for value in _values(route.path, parameter, annotation, objects, cursors):
            shown = "…" if parameter == "cursor" or len(value) > 20 else value
            yield f"{name}?{parameter}={shown}", f"{path}?{urlencode({parameter: value})}"


def _path_parameters(route: APIRoute, objects: Mapping[str, Any]) -> dict[str, Any]:
    given = {each: objects.get(each.removesuffix("_id")) for each in route.param_convertors}
    given["member"] = given["member_id"] = objects["user"]
    if "artifact" in given or "artifact_id" in given:
        given["session"] = given["session_id"] = objects["kept_in"]
    return given


def _query_parameters(dependant: Dependant) -> Iterator[tuple[str, Any]]:
    for parameter in dependant.query_params:
        yield parameter.alias, parameter.field_info.annotation
    for each in dependant.dependencies:
        yield from _query_parameters(each)


def _values(
    path: str, name: str, annotation: Any, objects: Mapping[str, Any], cursors: Mapping[str, str]
) -> Sequence[str]:
    """What a filter is asked for. A filter that nobody has put here raises an error."""
    noun = "runs" if path.endswith("/automations/{automation}") else path.rsplit("/", 1)[-1]
    if name in NO_QUERY or (name == "kind" and "/agents/" in path):
        return ()
    if name == "cursor":
        return (cursors[noun],)
    if choices := _choices(annotation):
        return choices
    known: dict[str, Sequence[str]] = {
        "user": (str(objects["user"]),),
        "automation": (str(objects["automation"]), objects["slug"]),
        "session": (str(objects["session"]), str(objects["standing"])),
        "action": ("automation.pause", "nothing.of.the.sort"),
        "object_kind": ("automation",),
        "object_id": (str(objects["automation"]),),
        "role": ("agent", "user"),
        "q": (SEARCHED, "nobodyiscalledso"),
        "day": (f"{RECENTLY:%Y-%m-%d}",),
        "at": (f"{RECENTLY:%Y-%m-%dT09:00}",),
        "after": ("1",),
        "before": ("50000",) if noun != "snapshots" else (LONG_AGO.isoformat(),),
        "since": (f"{RECENTLY:%Y-%m-%d}",) if "usage" in noun else (LONG_AGO.isoformat(),),
        "until": (f"{RECENTLY:%Y-%m-%d}",) if "usage" in noun else (LONG_AGO.isoformat(),),
        "status": _STATUSES.get(noun, _RUNS),
        "owner": ("me", str(objects["user"])),
    }
    return known[name]


_STATUSES: dict[str, Sequence[str]] = {
    "automations": ("active", "paused", "attention", "deleted"),
    "approvals": ("pending", "approved", "refused", "expired", "cancelled", "others"),
    "sessions": ("draft", "active", "paused", "done", "failed", "archived"),
}
_RUNS = ("queued", "running", "awaiting_approval", "succeeded", "failed", "skipped", "cancelled")


def _choices(annotation: Any) -> list[str]:
    """The values of an enumeration, or of True and False."""
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(each) for each in get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(each.value) for each in annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return [value for each in get_args(annotation) for value in _choices(each)]
    return []


def _combinations(objects: Mapping[str, Any], cursors: Mapping[str, str]) -> dict[str, str]:
    """Pages whose filters go together, and objects that are far larger than others."""
    root, api = "/w/default", "/api/v1/workspaces/default"
    long, busiest = f"/sessions/{objects['long']}", f"/automations/{objects['busiest']}"
    goals = ("draft", "active", "paused", "done", "failed", "archived")
    each_run = {
        f"/runs?status={status}, deep": f"{root}/runs?status={status}&cursor={cursors['runs']}" for status in _RUNS
    }
    return {
        "session, a conversation": f"{root}/sessions/{objects['chat']}",
        "session of 100,000 events": f"{root}{long}",
        "session of 100,000 events, an earlier part": f"{root}{long}?before=50000",
        "session of 100,000 events, its events": f"{api}{long}/events?after=50000",
        "session of 100,000 events, its messages": f"{api}{long}/messages?after=50000",
        "session of 100,000 events, its transcript": f"{api}{long}/transcript?after=50000",
        "session of 20,000 runs": f"{root}/sessions/{objects['standing']}",
        "session of 20,000 runs, its runs": f"{api}/runs?session={objects['standing']}&cursor={cursors['runs']}",
        "the busiest automation": f"{root}{busiest}",
        "the busiest automation, deep": f"{root}{busiest}?cursor={cursors['runs']}",
        "the busiest automation, calendar and usage": f"{root}{busiest}?view=calendar",
        "the busiest automation, its runs": f"{api}{busiest}/runs?cursor={cursors['runs']}",
        "the busiest automation, runs with status": f"{api}/runs?automation={objects['busiest']}&status=failed",
        **{f"goals, {status}": f"{root}/sessions?kind=background&status={status}" for status in goals},
        "goals, deep": f"{root}/sessions?kind=background&cursor={cursors['sessions']}",
        "sessions of automations, deep": f"{root}/sessions?kind=automation&cursor={cursors['sessions']}",
        **each_run,
        "approvals, approved, deep": f"{root}/approvals?status=approved&cursor={cursors['approvals']}",
        "approvals of a session": f"{api}/approvals?session={objects['kept_in']}&status=approved",
        "approvals, mine, deep": f"{api}/approvals?mine=true&cursor={cursors['approvals']}",
        "notifications, unread, deep": f"{root}/notifications?unread=true&cursor={cursors['notifications']}",
        "every grant, deep": f"{root}/settings/grants?shown=all&cursor={cursors['grants']}",
        "tokens, all": f"{root}/settings/tokens?shown=all",
        "audit, of one thing, deep": f"{root}/settings/audit?object_kind=automation&object_id={objects['automation']}&cursor={cursors['audit']}",
        "audit, of one action, deep": f"{root}/settings/audit?action=automation.pause&cursor={cursors['audit']}",
        "audit, refused, deep": f"{root}/settings/audit?refused=true&cursor={cursors['audit']}",
        "automations, deleted, deep": f"{root}/automations?status=deleted&cursor={cursors['automations']}",
        "automations, searched, deep": f"{root}/automations?q={SEARCHED.replace(' ', '+')}&cursor={cursors['automations']}",
        "sign in": "/sign-in",
    }  # fmt: skip
