"""Who may, over HTTP: levels, other people's things, other workspaces, agents at work, and browsers."""

from typing import Any
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio
from fastapi.routing import APIRoute

from rota.access import signing_in
from rota.db import isolation, people
from rota.http.auditing import Record
from rota.http.context import CSRF_HEADER
from support import api_client
from support.api_client import COOKIE, DAILY, UNKNOWN, Api, Office, assert_ok, assert_refused, example, furnish
from support.api_routes import (
    AGENT,
    EVERYTHING,
    FOR_ADMINS,
    FOR_ANY_MEMBER,
    FORM,
    OF_ONES_OWN,
    OWN_READS,
    OWN_WRITES,
    READS,
    READS_OF_ADMINS,
    READS_OF_PEOPLE,
    WRITES,
    create_one_of_each,
    send,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api


async def test_the_lists_name_every_route(site: Any) -> None:
    """A new route must be put into one of them, and so be shown to know its callers."""
    prefix = "/api/v1/workspaces/{workspace}"
    routes = {
        (method.upper(), path.removeprefix(prefix))
        for path, methods in site.app.openapi()["paths"].items()
        if path.startswith(prefix)
        for method in methods
    }
    renamed = {
        "{key}": "last",
        "{grant_id}": "{grant}",
        "{notification_id}": "{notification}",
        "{account_id}": "{account}",
        "{target_id}": "{target}",
        "{artifact_id}": "{artifact}",
        "{message_id}": "{message}",
        "{session_id}": "{session}",
        "{run_id}": "{run}",
        "{approval_id}": "{approval}",
        "{trigger_id}": "{trigger}",
        "{member_id}": "{member}",
        "{token_id}": "{token}",
        "{login_id}": "{login}",
    }
    found = set()
    for method, path in routes:
        for name, shown in renamed.items():
            path = path.replace(name, shown)  # noqa: PLW2901
        found.add((method, path))
    listed = {("GET", path) for path in [*READS, *READS_OF_PEOPLE, *READS_OF_ADMINS, *OWN_READS]} | {
        (method, path.partition("?")[0]) for method, path, _ in [*WRITES, *OWN_WRITES]
    }
    found = {(method, path) for method, path in found if not path.startswith("/runs/{run}/desk/")}  # test_api_desk.py
    assert found - listed == {("GET", "/sessions/{session}/trace"), ("POST", "/automations/preview")}
    assert listed <= found


async def test_a_viewer_reads_everything_and_changes_nothing(office: Office) -> None:
    names = await create_one_of_each(office, await office.api())
    viewer = await office.api("viewer")
    for path in [*READS, *READS_OF_PEOPLE]:
        assert (await viewer.get(path.format(**names))).status_code == 200, path
    for path in READS_OF_ADMINS:
        assert assert_refused(await viewer.get(path.format(**names)), 403, "forbidden")["needs"] == "admin"
    before = await office.count(*EVERYTHING)
    for method, path, body in [each for each in WRITES if each[:2] not in OF_ONES_OWN]:
        told = assert_refused(await send(viewer, method, path.format(**names), body), 403, "forbidden")
        assert told["needs"] in {"member", "admin"}
    assert await office.count(*EVERYTHING) == before


@pytest.mark.parametrize("level", ["viewer", "member", "admin"])
async def test_everybody_looks_after_their_own_notifications_and_nobody_after_anothers(
    office: Office, level: str
) -> None:
    names = await create_one_of_each(office, await office.api())
    stranger = await office.api(level) if level != "admin" else await another_admin(office)
    for path in OWN_READS:
        assert_ok(await stranger.get(path), 200)
    assert assert_ok(await stranger.get("/notifications"), 200)["items"] == []
    for method, path, body in OWN_WRITES:
        answer = await send(stranger, method, path.format(**names), body)
        if "{" in path:
            assert_refused(answer, 404, "not_found")
        else:
            assert answer.is_success, path
    assert await office.value("SELECT read_at FROM notifications WHERE id = %s", names["notification"]) is None


async def another_admin(office: Office) -> Api:
    member = await office.api("member")
    await office.execute("UPDATE members SET level = 'admin' WHERE workspace_id = %s", office.caller.workspace_id)
    return member


async def test_a_viewer_who_knows_a_key_gets_no_run_by_it(office: Office, api: Api) -> None:
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}, key="known"))
    viewer = await office.api("viewer")
    assert_refused(await viewer.post("/agents/worker-bee/runs", {"prompt": "Sweep."}, key="known"), 403, "forbidden")


async def test_a_member_looks_after_their_own_and_not_after_anothers(office: Office) -> None:
    names = await create_one_of_each(office, await office.api("member"))
    stranger = await office.api("member")
    before = await office.count("agents", "automations", "triggers", "revisions")
    for method, path, body in WRITES:
        if (method, path) not in FOR_ANY_MEMBER | OF_ONES_OWN:
            told = assert_refused(await send(stranger, method, path.format(**names), body), 403, "forbidden")
            assert told["needs"] == "admin"
    assert await office.count("agents", "automations", "triggers", "revisions") == before


async def test_a_member_does_with_their_own_what_an_admin_may_do_with_everybodys(office: Office) -> None:
    member, admin = await office.api("member"), await office.api()
    for who in (member, admin):
        automation = assert_ok(await member.post("/automations", example(schedule=DAILY)))
        path = f"/automations/{automation['id']}"
        assert_ok(await who.patch(path, {"name": "Renamed"}), 200)
        assert_ok(await who.post(f"{path}/run"))
        assert_ok(await who.post(f"{path}/pause"), 200)
        assert_ok(await who.post(f"{path}/resume"), 200)
        assert (await who.delete(path)).status_code == 204
        assert assert_ok(await who.post(f"{path}/restore"), 200)["owner"] == (
            "A member" if who is member else "Local admin"
        )


@pytest.mark.parametrize("level", ["member", "viewer"])
async def test_only_admins_change_agents_and_credentials(office: Office, api: Api, level: str) -> None:
    other = await office.api(level)
    bodies = {(method, path): body for method, path, body in WRITES}
    for method, path in FOR_ADMINS:
        target = path.format(agent="worker-bee", credential="mine", member=UNKNOWN, account=UNKNOWN)
        told = assert_refused(await send(other, method, target, bodies[method, path]), 403, "forbidden")
        assert told["needs"] == "admin"


# Other workspaces ---------------------------------------------------------------------------------------------------


async def test_another_workspaces_things_answer_exactly_as_missing_ones(office: Office, api: Api, site: Any) -> None:
    theirs = await furnish(site)
    names = await create_one_of_each(theirs, await theirs.api())
    await theirs.leave()
    before = await theirs.count(*EVERYTHING)
    asked = [("GET", path, None) for path in [*READS, "/sessions/{session}/trace"]] + WRITES + OWN_WRITES
    for method, path, body in asked:
        if "{" not in path:
            continue
        theirs_answer = await send(api, method, path.format(**names), body)
        unknown = {**dict.fromkeys(names, UNKNOWN), "message": names["message"]}
        missing = await send(api, method, path.format(**unknown), body)
        assert theirs_answer.status_code == 404, path
        assert (theirs_answer.content, dict(theirs_answer.headers)) == (missing.content, dict(missing.headers)), path
    assert await theirs.count(*EVERYTHING) == before


async def test_pages_of_another_workspaces_things_are_those_of_missing_ones(
    office: Office, api: Api, site: Any
) -> None:
    """Every page and form of the application, streams too; the list is the application's own."""
    theirs = await furnish(site)
    names = await create_one_of_each(theirs, await theirs.api())
    await theirs.leave()
    names |= {"trigger_id": names["trigger"], "key": "last"}
    before = await theirs.count(*EVERYTHING)
    headers = {"Authorization": f"Bearer {api.token}", "Accept": "text/html"}
    routes = [each for each in site.app.routes if isinstance(each, APIRoute)]
    asked = [(method, r.path) for r in routes if r.path.startswith("/w/{workspace}/") for method in r.methods or ()]
    asked = [(method, path) for method, path in asked if path.count("{") > 1]
    assert len(asked) > 10
    for method, path in asked:
        told = []
        for given in (names, dict.fromkeys(names, UNKNOWN)):
            address = path.format(workspace=api.workspace, verb="pause", **given)
            body = (
                {"content": "prompt=Hi&answer=yes", "headers": headers | FORM}
                if method == "POST"
                else {"headers": headers}
            )
            answer = await api.client.request(method, address, **body)
            assert answer.status_code == 404, (method, path)
            told.append(answer.text.replace(address, ""))
        assert told[0] == told[1], path
    assert await theirs.count(*EVERYTHING) == before


FLEET = {"/workers", "/executors", "/snapshots"}  # of the house, not of a workspace


async def test_when_every_query_asks_for_another_workspace_the_database_gives_nothing_of_it(
    office: Office, api: Api, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line is gone on purpose: the queries name the one workspace, row-level security holds the other."""
    theirs = await furnish(site)
    asking = await theirs.api()
    names = await create_one_of_each(theirs, asking)
    await theirs.leave()
    before = await theirs.count(*EVERYTHING)
    other = office.caller.workspace_id
    for name in ("confine", "confinement"):
        kept = getattr(isolation, name)
        monkeypatch.setattr(isolation, name, lambda db, conn, _, kept=kept: kept(db, conn, other))
    told, elsewhere = isolation.told_workspace, f"SELECT set_config('rota.workspace', '{other}', true)"
    monkeypatch.setattr(isolation, "told_workspace", lambda role: [*told(role), elsewhere])
    monkeypatch.setattr(Record, "write_refusal", AsyncMock())  # it could not be told in their log either
    reads = [*READS, "/audit", "/notifications", "/notifications/targets", "/sessions/{session}/trace"]
    asked = [("GET", path, None) for path in reads] + WRITES + OWN_WRITES
    for method, path, body in [each for each in asked if not each[1].startswith("/me")]:  # of the person, wherever
        answer = await send(asking, method, path.format(**names), body)
        if "{" in path or path == "":
            assert_refused(answer, 404, "not_found")
        elif method == "GET":
            assert path in FLEET or assert_ok(answer, 200)["items"] == [], path
        else:
            nothing = path == "/notifications/read" and answer.status_code == 204
            assert nothing or answer.status_code >= 400 or answer.json() == {"runs": []}, path
    assert await theirs.count(*EVERYTHING) == before


async def test_another_workspaces_things_cannot_be_named_in_a_body_or_a_filter(
    office: Office, api: Api, site: Any
) -> None:
    theirs = await furnish(site)
    names = await create_one_of_each(theirs, await theirs.api())
    await theirs.leave()
    assert_refused(await api.post("/automations", example(agent=names["agent"])), 422, "unknown_agent", "agent")
    assert_refused(
        await api.post("/automations", example(triggers=[{"after": names["automation"]}])),
        422, "unknown_automation", "triggers.0.after",
    )  # fmt: skip
    assert_refused(await api.get("/runs", automation=names["automation"]), 404, "not_found")
    assert (await api.get("/runs", session=names["session"])).json()["items"] == []


async def test_a_token_finds_another_workspace_as_little_as_one_that_is_not_there(
    office: Office, api: Api, site: Any
) -> None:
    theirs = await furnish(site)
    for path in ("/agents", "/automations", "/runs", "/sessions", "/workers"):
        answers = []
        for workspace in (theirs.caller.workspace_slug, str(theirs.caller.workspace_id), "nowhere", UNKNOWN):
            answer = await Api(api.client, workspace, api.token).get(path)
            assert_refused(answer, 404, "not_found")
            answers.append((answer.content, dict(answer.headers)))
        assert all(each == answers[0] for each in answers)


async def test_lists_hold_nothing_of_other_workspaces(office: Office, api: Api, site: Any) -> None:
    theirs = await furnish(site)
    await create_one_of_each(theirs, await theirs.api())
    await theirs.leave()
    for path in ("/automations", "/runs", "/sessions"):
        assert (await api.get(path)).json() == {"items": [], "next_cursor": None}
    assert len((await api.get("/agents")).json()["items"]) == 1


async def test_a_cursor_of_another_workspace_opens_nothing(office: Office, api: Api, site: Any) -> None:
    theirs = await furnish(site)
    their_api = await theirs.api()
    for _ in range(2):
        assert_ok(await their_api.post("/automations", example()))
    cursor = (await their_api.get("/automations", limit=1)).json()["next_cursor"]
    assert (await api.get("/automations", cursor=cursor)).json()["items"] == []


# Tokens -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic cm90YTpyb3Rh", "rota_x", "Bearer rota_nobody", "Bearer \xfc", "bearer x y"],
)
async def test_without_a_token_that_holds_nothing_is_told(office: Office, header: str | None) -> None:
    client = office.site.client()
    headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
    for path in ("/agents", f"/runs/{UNKNOWN}", "/sessions/nonsense"):
        answer = await client.get(f"/api/v1/workspaces/{office.caller.workspace_slug}{path}", headers=headers)
        if path == "/sessions/nonsense" and answer.status_code == 422:
            continue  # that it is no id can be told to anybody
        assert_refused(answer, 401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_token_that_ends_while_it_is_used_is_refused_from_then_on(office: Office, api: Api) -> None:
    assert_ok(await api.get("/agents"), 200)
    await office.execute("UPDATE tokens SET expires_at = now() WHERE secret_hash = %s", signing_in.hashed(api.token))
    assert_refused(await api.get("/agents"), 401, "unauthenticated")
    assert_refused(await api.post("/agents", AGENT), 401, "unauthenticated")


# Agents at work: what their tokens reach is in test_attempt_access.py --------------------------------------------------


async def test_the_token_of_an_attempt_dies_with_it(office: Office, api: Api) -> None:
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    at_work = await office.claim()
    agent = Api(api.client, api.workspace, at_work.token)
    assert at_work.token.startswith("rota_run_")
    assert_ok(await agent.get("/agents/worker-bee"), 200)
    await office.settle(at_work)
    assert_refused(await agent.get("/agents/worker-bee"), 401, "attempt_over")


@pytest.mark.parametrize("loss", ["lease", "attempt", "grant", "time of grant"])
async def test_an_agent_that_lost_its_lease_or_its_grant_reads_nothing_more(
    office: Office, api: Api, loss: str
) -> None:
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    at_work = await office.claim()
    await office.take_away(loss, at_work)
    assert_refused(await Api(api.client, api.workspace, at_work.token).get("/agents"), 401, "attempt_over")


async def test_an_attempts_token_is_for_that_attempt_of_that_run_in_that_workspace(
    office: Office, api: Api, site: Any
) -> None:
    for _ in range(2):
        assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    one, two = await office.claim(), await office.claim()
    parts, other = one.token.split("_"), two.token.split("_")
    forged = [
        "_".join([*parts[:3], other[3], *parts[4:]]),
        "_".join([*parts[:4], "2", *parts[5:]]),
        one.token + "x",
        one.token[:-1],
    ]
    for token in forged:
        assert (await Api(api.client, api.workspace, token).get("/agents")).status_code == 401
    elsewhere = (await furnish(site)).caller
    async with office.db.transaction() as conn:  # also where its person belongs to both
        await people.add_member(conn, elsewhere.workspace_id, office.caller.user_id, "admin")
    assert_refused(await Api(api.client, elsewhere.workspace_slug, one.token).get("/agents"), 404, "not_found")


# Browsers -----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module")
async def login(office: Office) -> str:
    async with office.db.transaction() as conn:
        link = await signing_in.create_link(conn, office.caller.user_id)
        return await signing_in.sign_in(conn, link)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Origin": "http://rota.test", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "http://evil.test"}, False),
        ({"Origin": "http://rota.test.evil.test"}, False),
        ({"Origin": "http://rota.test:8080"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Origin": "http://["}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "http://rota.test", "Sec-Fetch-Site": "cross-site"}, False),
    ],
)
async def test_a_cookie_changes_nothing_for_another_site(
    office: Office, login: str, headers: dict[str, str], allowed: bool
) -> None:
    client = office.site.client(cookies={COOKIE: login}, headers=headers)
    path = f"/api/v1/workspaces/{office.caller.workspace_slug}/automations"
    answer = await client.post(path, json=example(), headers={CSRF_HEADER: signing_in.csrf_of(login)})
    if allowed:
        assert_ok(answer)
    else:
        assert_refused(answer, 403, "foreign_origin")
    assert (await client.get(path)).status_code == 200
    assert await office.value(
        "SELECT count(*) FROM automations WHERE workspace_id = %s", office.caller.workspace_id
    ) == int(allowed)


async def test_a_token_that_is_wrong_is_not_saved_by_a_cookie_that_is_right(office: Office, login: str) -> None:
    client = office.site.client(cookies={COOKIE: login}, headers={"Authorization": "Bearer rota_nobody"})
    assert_refused(
        await client.get(f"/api/v1/workspaces/{office.caller.workspace_slug}/agents"), 401, "unauthenticated"
    )  # fmt: skip


async def test_a_cookie_that_is_no_login_is_refused(office: Office) -> None:
    for cookie in ("nonsense", "x" * 4000):
        client = office.site.client(cookies={COOKIE: cookie})
        path = f"/api/v1/workspaces/{office.caller.workspace_slug}/agents"
        assert_refused(await client.get(path), 401, "unauthenticated")
