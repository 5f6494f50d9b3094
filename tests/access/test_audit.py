"""The audit log: one row for every change and every refused one, in the change's transaction, for good."""

import csv
import io
import json
import secrets
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from rota.db import isolation
from rota.errors import Conflict
from rota.http import context
from rota.http.api import audit as routes
from rota.http.auditing import CHANGING
from rota.http.routes import ROOTS
from rota.model.audit import action_of, difference
from rota.roster import automations
from rota.watch.prune import Prune
from support import api_client
from support.api_client import DAILY, UNKNOWN, Api, Office, Site, assert_ok, assert_refused, example
from support.api_routes import OF_ONES_OWN, READS, READS_OF_ADMINS, WRITES, create_one_of_each, send

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

# What changes nothing, and what is told in full elsewhere.
UNAUDITED = {
    ("POST", "/automations/preview"): "it saves nothing",
    ("POST", "/w/{workspace}/automations/preview"): "likewise",
    ("POST", "/sessions/{session_id}/messages"): "the session's log holds every message, written in groups",
    ("POST", "/notifications/read"): "what somebody has looked at changes nothing for anybody else",
    ("POST", "/notifications/{notification_id}/read"): "likewise",
    ("POST", "/w/{workspace}/notifications/read"): "likewise",
    ("POST", "/w/{workspace}/notifications/{notification}/read"): "likewise",
    ("POST", "/sessions/{session_id}/artifacts"): "so it does every artifact, whose content is taken in piece by piece",
}

# They open their unit themselves, once the password is judged: test_people_pages.py and the tests below find their rows.
LATER = {("PUT", "/me/password"), ("POST", "/w/{workspace}/settings/me/password")}


def unaudited(method: str, path: str) -> bool:
    return (method, path.partition("?")[0].replace("{session}", "{session_id}")) in UNAUDITED


async def rows(office: Office) -> list[dict[str, Any]]:
    """The log, newest first, read where it is kept."""
    query = "SELECT coalesce(json_agg(a ORDER BY a.id DESC), '[]') FROM audit a WHERE workspace_id = %s"
    found: list[dict[str, Any]] = await office.value(query, office.caller.workspace_id)
    return found


def changing(site: Site) -> list[tuple[str, str, Dependant]]:
    """Every route that changes something in a workspace, of the API and of the pages."""
    routes = [each for each in site.app.routes if isinstance(each, APIRoute)]
    return [
        (method, route.path, route.dependant)
        for route in routes
        if route.path.startswith(ROOTS)
        for method in (route.methods or set()) & CHANGING
    ]


def needs(dependant: Dependant, call: Any) -> bool:
    return any(each.call is call or needs(each, call) for each in dependant.dependencies)


async def test_no_route_can_change_something_without_the_log(site: Site) -> None:
    """Whoever takes a unit is told of; who doesn't must say here why."""
    found = changing(site)
    assert {path.startswith(ROOTS[1]) for _, path, _ in found} == {True, False}, "pages too"
    assert len(found) > len(WRITES)
    silent = {(method, path.removeprefix(ROOTS[0])) for method, path, given in found if not needs(given, context._unit)}
    told_in_the_session = {each for each in silent if each[1].startswith("/runs/{run_id}/desk/")}
    assert silent - told_in_the_session == set(UNAUDITED) | LATER


async def test_every_change_writes_one_row(office: Office, api: Api) -> None:
    names = await create_one_of_each(office, api)
    for method, path, body in WRITES:
        before = len(await rows(office))
        answer = await send(api, method, path.format(**names), body)
        template = path.replace("/memory/last", "/memory/{key}")
        turn = isinstance(body, dict) and "prompt" in body  # of a conversation: it starts a run
        silent = unaudited(method, path) and not turn
        told = (await rows(office))[: len(await rows(office)) - before]
        assert len(told) == (0 if silent else 1), (method, path, answer.status_code)
        if told:
            assert told[0]["action"] == str(action_of(method, template))
            assert told[0]["user_id"] == str(office.caller.user_id)
            assert (told[0]["code"] is None) == answer.is_success, told[0]
            assert told[0]["status"] == answer.status_code, (method, path)


async def test_every_refused_change_writes_one_row_too(office: Office, api: Api) -> None:
    names = await create_one_of_each(office, api)
    viewer = await office.api("viewer")
    listed = [each for each in WRITES if not unaudited(*each[:2]) and each[:2] not in OF_ONES_OWN]
    before = len(await rows(office))
    for method, path, body in listed:
        assert_refused(await send(viewer, method, path.format(**names), body), 403, "forbidden")
    told = await rows(office)
    assert len(told) == before + len(listed)
    assert {(each["status"], each["code"]) for each in told[: len(listed)]} == {(403, "forbidden")}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/automations", {"name": "x", "agent": "worker-bee", "prompt": "y", "mood": 1}, 422, "invalid"),
        ("POST", "/automations", {"name": "x", "agent": "nobody", "prompt": "y"}, 422, "unknown_agent"),
        ("PATCH", f"/automations/{UNKNOWN}", {"name": "x"}, 404, "not_found"),
        ("DELETE", "/runs/nonsense/cancel", None, 405, None),
        ("POST", "/runs/nonsense/cancel", None, 422, "invalid"),
    ],
)
async def test_whatever_the_reason(
    office: Office, api: Api, method: str, path: str, body: Any, status: int, code: str | None
) -> None:
    assert (await send(api, method, path, body)).status_code == status
    assert [(each["status"], each["code"]) for each in await rows(office)] == ([(status, code)] if code else [])


async def test_no_name_is_too_long_to_be_told_of(office: Office, api: Api) -> None:
    name = secrets.token_hex(4000)  # which no index can hold, nor compress
    assert_refused(await api.delete(f"/agents/{name}"), 404, "not_found")
    assert [(each["action"], each["object_id"]) for each in await rows(office)] == [("agent.delete", f"{name[:199]}…")]


async def test_who_reads_leaves_nothing(office: Office, api: Api) -> None:
    names = await create_one_of_each(office, api)
    before = await rows(office)
    for path in [*READS, *READS_OF_ADMINS]:
        assert (await api.get(path.format(**names))).status_code == 200, path
    assert_ok(await api.post("/automations/preview", {"schedule": DAILY}), 200)
    assert_refused(
        await api.post("/automations/preview", {"schedule": {"cron": "never"}}), 422, "invalid_cron", "schedule.cron"
    )
    assert_refused(await Api(api.client, api.workspace, "rota_nobody").post("/agents"), 401, "unauthenticated")
    assert await rows(office) == before


async def test_a_row_says_who_did_what_and_what_changed(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    assert_ok(await api.post(f"/automations/{automation['slug']}/pause"), 200)
    paused, created = await rows(office)
    token = await office.value("SELECT id FROM tokens WHERE workspace_id = %s", office.caller.workspace_id)
    told = {"user_id": str(office.caller.user_id), "token_id": str(token), "ip": "127.0.0.1", "run_id": None}
    assert paused.items() >= {**told, "action": "automation.pause", "object_id": automation["id"]}.items()
    assert (paused["before"], paused["after"]) == ({"status": "active"}, {"status": "paused"})
    assert created.items() >= {**told, "action": "automation.create", "object_id": automation["id"]}.items()
    assert created["before"] is None
    assert created["after"]["name"] == "Morning digest"
    session = assert_ok(await api.post("/sessions", {"agent": "worker-bee", "title": "A talk"}))
    assert (await rows(office))[0].items() >= {**told, "action": "session.create", "object_id": session["id"]}.items()


async def test_no_secret_and_no_long_text_is_kept(office: Office, api: Api) -> None:
    canary = "canary-7d1f"
    agent = assert_ok(
        await api.post("/agents", {"name": "A", "executor": "command", "config": {"argv": ["x", canary]}})
    )
    assert_ok(await api.patch(f"/agents/{agent['id']}", {"instructions": canary}), 200)
    automation = assert_ok(await api.post("/automations", example(prompt=canary, triggers=[{"webhook": {}}])))
    path = f"/automations/{automation['id']}/triggers/{automation['triggers'][0]['id']}/secret"
    secret = assert_ok(await api.post(path))["secret"]
    kept = json.dumps(await rows(office))
    assert canary not in kept
    assert secret not in kept
    assert automation["triggers"][0]["secret"] not in kept
    assert next(each for each in await rows(office) if each["action"] == "agent.change")["after"].keys() >= {
        "instructions"
    }


async def test_an_agent_at_work_is_told_of_with_its_run(office: Office, api: Api) -> None:
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    at_work = await office.claim()
    assert_refused(
        await Api(api.client, api.workspace, at_work.token).post("/agents/worker-bee/runs", {}), 403, "forbidden"
    )
    assert (await rows(office))[0]["run_id"] == str(at_work.id)


async def test_a_page_that_refuses_leaves_nothing_but_its_row(
    office: Office, api: Api, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    pause = automations.pause

    async def half(*given: Any) -> Any:
        await pause(*given)
        raise Conflict("Too late.", code="conflict")

    monkeypatch.setattr(automations, "pause", half)
    page = f"/w/{api.workspace}/automations/{automation['slug']}/pause"
    answer = await site.client().post(page, headers={"Authorization": f"Bearer {api.token}"})
    assert answer.status_code == 409
    assert assert_ok(await api.get(f"/automations/{automation['id']}"), 200)["status"] == "active"
    told = (await rows(office))[0]
    assert (told["action"], told["status"], told["code"]) == ("automation.pause", 409, "conflict")


# For good -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["UPDATE audit SET action = 'x'", "DELETE FROM audit", "TRUNCATE audit"])
async def test_the_api_cannot_touch_what_was_written(office: Office, api: Api, change: str) -> None:
    assert_ok(await api.post("/automations", example()))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        async with isolation.in_workspace(office.db, office.caller.workspace_id) as conn:
            await conn.execute(change)


@pytest.mark.parametrize("change", ["UPDATE audit SET action = 'x'", "TRUNCATE audit"])
async def test_nor_can_anybody_else_change_it(office: Office, api: Api, change: str) -> None:
    assert_ok(await api.post("/automations", example()))
    with pytest.raises(psycopg.DatabaseError, match="only ever added to"):
        await office.execute(change)


async def test_what_is_older_than_it_is_kept_is_pruned(office: Office, api: Api) -> None:
    assert_ok(await api.post("/automations", example()))
    prune = Prune(office.db, keep_events=timedelta(days=9), keep_snapshots=timedelta(days=9))
    await prune.once()
    assert len(await rows(office)) == 1
    prune = Prune(office.db, keep_events=timedelta(days=9), keep_snapshots=timedelta(days=9), keep_audit=timedelta(0))
    await prune.once()
    assert await rows(office) == []


# Reading it ---------------------------------------------------------------------------------------------------------


async def test_admins_page_through_it_and_choose(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    for verb in ("pause", "resume", "pause"):
        assert_ok(await api.post(f"/automations/{automation['id']}/{verb}"), 200)
    assert_refused(await api.post("/agents", {}), 422, "invalid", "name")
    assert [each["action"] for each in await api.pages("/audit", 2)] == [
        "agent.create", "automation.pause", "automation.resume", "automation.pause", "automation.create",
    ]  # fmt: skip

    async def chosen(**given: Any) -> list[str]:
        return [each["action"] for each in assert_ok(await api.get("/audit", **given), 200)["items"]]

    assert await chosen(action="automation.resume") == ["automation.resume"]
    assert await chosen(refused=True) == ["agent.create"]
    assert len(await chosen(object_kind="automation", object_id=automation["id"])) == 4
    assert await chosen(user=UNKNOWN) == []
    assert await chosen(since="2999-01-01T00:00:00Z") == []
    assert len(await chosen(until="2999-01-01T00:00:00Z")) == 5


async def test_it_is_exported_whole_in_pages(office: Office, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BATCH", 2)
    for name in ("=1+1", "Two", "Three", "Four", "Five"):
        assert_ok(await api.post("/automations", example(name=name)))
    listed = assert_ok(await api.get("/audit"), 200)["items"]
    lines = (await api.get("/audit/export")).text.splitlines()
    assert [json.loads(line) for line in lines] == listed
    table = list(csv.DictReader(io.StringIO((await api.get("/audit/export", format="csv")).text)))
    assert [row["id"] for row in table] == [each["id"] for each in listed]
    assert not any(cell.startswith("=") for row in table for cell in row.values())


async def test_a_member_does_not_read_it(office: Office) -> None:
    member = await office.api("member")
    for path in READS_OF_ADMINS:
        assert_refused(await member.get(path), 403, "forbidden")


# Words --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "action"),
    [
        ("POST", "/automations", "automation.create"),
        ("PATCH", "/automations/{automation}/triggers/{trigger_id}", "trigger.change"),
        ("POST", "/automations/{automation}/pause", "automation.pause"),
        ("PUT", "/automations/{automation}/memory/{key}", "memory.set"),
        ("POST", "/agents/{agent}/runs", "run.create"),
        ("POST", "/sessions/{session_id}/messages/{message_id}/ack", "message.ack"),
        ("POST", "/approvals/{approval}", "approval.answer"),
    ],
)
async def test_an_action_is_named_by_its_route(method: str, path: str, action: str) -> None:
    assert str(action_of(method, path)) == action


async def test_a_difference_holds_what_changed_only() -> None:
    before = {"name": "a", "prompt": "long", "secret_hash": "x", "updated_at": 1, "pool": "p"}
    after = {"name": "b", "prompt": "longer", "secret_hash": "y", "updated_at": 2, "pool": "p"}
    assert difference(before, after) == ({"name": "a", "prompt": "…"}, {"name": "b", "prompt": "…"})
    assert difference(before, None) == ({"name": "a", "prompt": "…", "pool": "p"}, None)
