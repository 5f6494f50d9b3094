"""What the token of an attempt reads by default, and what the grant's scope `workspace:read` adds."""

import re
from typing import Any

import pytest
from fastapi.routing import APIRoute
from httpx import Response

from rota.http.attempt_access import OWN
from rota.http.routes import API, PAGES
from support import api_client
from support.api_client import DAILY, UNKNOWN, Api, AtWork, Office, assert_ok, assert_refused, example
from support.api_routes import AGENT, EVERYTHING, OWN_WRITES, READS, WRITES, create_one_of_each, send

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

WIDE = {"scopes": ["workspace:read"]}
OF_PEOPLE = re.compile(r"/(me|notifications|audit)(/.*)?")
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
# How routes call what `things` makes. Pages leave out `_id`.
CALLED = {"key": "last", "verb": "pause", "name": "app.css", "version": "1"}


def as_agent(api: Api, at_work: AtWork) -> Api:
    return Api(api.client, api.workspace, at_work.token)


async def at_work(office: Office, api: Api, **values: Any) -> tuple[Api, dict[str, str]]:
    """The token of an attempt, and one object of each kind that it may read."""
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY, **values)))
    path = f"/automations/{saved['id']}"
    assert_ok(await api.send("PUT", f"{path}/memory/last", json={"value": 1}), 200)
    run = assert_ok(await api.post(f"{path}/run"))
    session = f"/sessions/{run['session_id']}"
    artifact = assert_ok(await api.send("POST", f"{session}/artifacts?name=a.txt", content=b"A."))
    agent = as_agent(api, await office.claim())
    asked = assert_ok(await agent.post(f"/runs/{run['id']}/desk/ask", {"question": "May I?"}))
    grant = assert_ok(await api.get(f"/grants/{saved['grant_id']}"), 200)
    return agent, {
        "automation": saved["id"], "run": run["id"], "session": run["session_id"], "artifact": artifact["id"],
        "approval": asked["approval_id"], "agent": saved["agent_id"], "grant": grant["id"],
        "account": grant["account_id"],
    }  # fmt: skip


async def elsewhere(office: Office, api: Api) -> dict[str, str]:
    """One object of each kind in the same workspace that belongs to no attempt."""
    names = await create_one_of_each(office, api)
    agent = assert_ok(await api.post("/agents", AGENT))
    account = assert_ok(await api.post("/accounts", {"name": "Another"}))
    return {**names, "agent": agent["id"], "account": account["id"]}


def routes(site: Any, *roots: str) -> list[tuple[str, str]]:
    """Every method and path of the application within a workspace."""
    found = [each for each in site.app.routes if isinstance(each, APIRoute)]
    return sorted((method, each.path) for each in found for method in each.methods or () if each.path.startswith(roots))


def address(path: str, workspace: str, names: dict[str, str]) -> str:
    given = {**CALLED, **names, "workspace": workspace}
    return re.sub(r"{(\w+?)(_id)?(:\w+)?}", lambda found: given[found[1]], path)


async def ask(agent: Api, method: str, path: str, names: dict[str, str], **options: Any) -> Response:
    headers = {"Authorization": f"Bearer {agent.token}"} | (FORM if path.startswith(PAGES) else JSON)
    content: dict[str, Any] = {} if method == "GET" else {"content": "x=1" if path.startswith(PAGES) else "{}"}
    where = address(path, agent.workspace, names)
    return await agent.client.request("HEAD" if method == "GET" else method, where, headers=headers, **content)


async def test_every_route_that_is_not_listed_is_closed(office: Office, api: Api, site: Any) -> None:
    """Walks the application: a new route is in here without anybody's doing."""
    others = await elsewhere(office, api)
    agent, _ = await at_work(office, api)
    reads = [path for method, path in routes(site, API, PAGES) if method == "GET" and "/desk/" not in path]
    assert len(reads) > 80
    for path in reads:
        inside = path.removeprefix(API)
        told = await ask(agent, "GET", path, others)
        listed = path.startswith(API) and any(f"{{{name}}}" in inside for name in OWN.get(inside, {}))
        assert told.status_code == (404 if listed else 403), path


async def test_an_object_elsewhere_in_the_workspace_answers_as_a_missing_one(office: Office, api: Api) -> None:
    others = await elsewhere(office, api)
    agent, own = await at_work(office, api)
    for path in [each for each in OWN if "{" in each]:
        answers = [await agent.get(address(path, "", names)) for names in (others, dict.fromkeys(others, UNKNOWN))]
        told = [(each.status_code, each.content, dict(each.headers)) for each in answers]
        assert told[0] == told[1], path
        assert_refused(answers[0], 404, "not_found")
    for list_, given in (("/runs", "session"), ("/runs", "automation"), ("/approvals", "session")):
        assert_refused(await agent.get(list_, **{given: others[given]}), 404, "not_found")
        assert_refused(await agent.get(list_, **{given: UNKNOWN}), 404, "not_found")
    assert_refused(await agent.get("/runs", session=own["session"], automation=others["automation"]), 404, "not_found")
    for first, last in ((own, others), (others, own)):
        twice = f"/runs?session={first['session']}&session={last['session']}"
        assert_refused(await agent.send("GET", twice), 404, "not_found")


async def test_an_attempt_reads_what_is_its_own(office: Office, api: Api, site: Any) -> None:
    agent, own = await at_work(office, api)
    known = {path.removeprefix(API) for method, path in routes(site, API) if method == "GET"}
    assert known >= OWN.keys()
    for path in [each for each in OWN if "{" in each]:
        assert (await ask(agent, "GET", API + path, own)).status_code == 200, path
    slug = assert_ok(await agent.get(f"/automations/{own['automation']}"), 200)["slug"]
    assert assert_ok(await agent.get(f"/automations/{slug}"), 200)["id"] == own["automation"]
    assert assert_ok(await agent.get("/agents/worker-bee"), 200)["id"] == own["agent"]
    for given in ({"session": own["session"]}, {"automation": own["automation"]}, {"automation": slug}):
        assert [each["id"] for each in assert_ok(await agent.get("/runs", **given), 200)["items"]] == [own["run"]]
    [asked] = assert_ok(await agent.get("/approvals", session=own["session"]), 200)["items"]
    assert asked["id"] == own["approval"]


async def test_a_list_that_spans_the_workspace_names_the_scope_that_it_needs(office: Office, api: Api) -> None:
    agent, own = await at_work(office, api)
    for path in ("/runs", "/sessions", "/automations", "/approvals", "/agents", f"/agents/{own['agent']}/runs"):
        told = assert_refused(await agent.get(path), 403, "scope_missing")
        assert (told["needs_scope"], "`workspace:read`" in told["detail"]) == ("workspace:read", True)
    assert_refused(await agent.get("/runs", status="failed"), 403, "scope_missing")


async def test_earlier_runs_of_the_automation_are_its_own_and_their_sessions_are_not(office: Office, api: Api) -> None:
    earlier = await create_one_of_each(office, api)
    assert_ok(await api.post(f"/automations/{earlier['automation']}/run"))
    agent = as_agent(api, await office.claim())
    assert_ok(await agent.get(f"/runs/{earlier['run']}"), 200)
    assert len(assert_ok(await agent.get(f"/automations/{earlier['automation']}/runs"), 200)["items"]) == 2
    assert_refused(await agent.get(f"/sessions/{earlier['session']}/transcript"), 404, "not_found")
    assert_refused(await agent.get(f"/approvals/{earlier['approval']}"), 404, "not_found")


async def test_a_turn_in_the_session_of_an_automation_reads_the_automation(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(session="same", **WIDE)))
    assert_ok(await api.post(f"/sessions/{saved['session_id']}/messages", {"prompt": "How was it?"}))
    agent = as_agent(api, await office.claim())
    assert_ok(await agent.get(f"/automations/{saved['id']}"), 200)
    assert_refused(await agent.get("/automations"), 403, "scope_missing")  # a conversation has a grant of its own


async def test_a_direct_run_has_no_automation(office: Office, api: Api) -> None:
    other = assert_ok(await api.post("/automations", example()))
    run = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    agent = as_agent(api, await office.claim())
    assert_ok(await agent.get(f"/runs/{run['id']}"), 200)
    for ref in (other["id"], other["slug"], "nothing"):
        assert_refused(await agent.get(f"/automations/{ref}"), 404, "not_found")


# With the scope -------------------------------------------------------------------------------------------------------


async def test_with_workspace_read_an_attempt_reads_what_a_viewer_reads(office: Office, api: Api) -> None:
    others = await elsewhere(office, api)
    agent, _ = await at_work(office, api, **WIDE)
    viewer = await office.api("viewer")
    for path in READS:
        told, wanted = await agent.get(path.format(**others)), await viewer.get(path.format(**others))
        assert told.status_code == 200, path
        if path not in {"/sessions/{session}/export", "/tokens"}:  # says when it was made, is of whoever asks
            assert told.content == wanted.content, path
    assert (await ask(agent, "GET", f"{API}/sessions/{{session_id}}/trace", others)).status_code == 200
    for path in ("/sessions/{session}", "/automations", "/runs"):
        assert (await ask(agent, "GET", PAGES + path, others)).status_code == 200, path


@pytest.mark.parametrize("values", [{}, WIDE])
async def test_what_is_for_people_is_closed_whatever_the_grant_allows(
    office: Office, api: Api, site: Any, values: dict[str, Any]
) -> None:
    agent, _ = await at_work(office, api, **values)
    reads = [path for method, path in routes(site, API) if method == "GET"]
    of_people = [path for path in reads if OF_PEOPLE.fullmatch(path.removeprefix(API))]
    assert len(of_people) == 7
    for path in of_people:
        assert_refused(await agent.get(path.removeprefix(API)), 403, "forbidden")


@pytest.mark.parametrize("values", [{}, WIDE])
async def test_an_attempt_changes_nothing_but_at_its_desk(
    office: Office, api: Api, site: Any, values: dict[str, Any]
) -> None:
    others = await elsewhere(office, api)
    agent, own = await at_work(office, api, **values)
    before = await office.count(*EVERYTHING)
    for names in (others, {**others, **own}, dict.fromkeys(others, UNKNOWN) | {"message": "1"}):
        for method, path, body in WRITES + OWN_WRITES:
            assert_refused(await send(agent, method, path.format(**names), body), 403, "forbidden")
    writes = [each for each in routes(site, API, PAGES) if each[0] != "GET" and "/desk/" not in each[1]]
    assert len(writes) > 100
    for method, path in writes:
        if not path.endswith(("/automations/preview", "/me/password")):  # the first reads, the second is above
            assert (await ask(agent, method, path, {**others, **own})).status_code == 403, (method, path)
    preview = await agent.post("/automations/preview", {"schedule": DAILY})
    assert preview.status_code == (200 if values else 403)
    assert await office.count(*EVERYTHING) == before


async def test_a_refused_write_of_an_attempt_is_in_the_audit_log(office: Office, api: Api) -> None:
    agent, own = await at_work(office, api)
    assert_refused(await agent.post(f"/runs/{own['run']}/cancel"), 403, "forbidden")
    [told] = assert_ok(await api.get("/audit", action="run.cancel"), 200)["items"]
    assert (told["run_id"], told["status"]) == (own["run"], 403)


# Giving the scope -----------------------------------------------------------------------------------------------------


async def scopes_of(api: Api, grant_id: str) -> list[str]:
    found: list[str] = assert_ok(await api.get(f"/grants/{grant_id}"), 200)["scopes"]
    return found


async def test_a_change_of_scopes_replaces_the_grant_and_is_in_the_history(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    path, only_run = f"/automations/{saved['id']}", [f"agent:run:{saved['agent_id']}"]
    assert (saved["scopes"], await scopes_of(api, saved["grant_id"])) == ([], only_run)
    wider = assert_ok(await api.patch(path, {"scopes": ["workspace:read", "workspace:read"]}), 200)
    assert (wider["scopes"], await scopes_of(api, wider["grant_id"])) == (WIDE["scopes"], [*only_run, *WIDE["scopes"]])
    assert assert_ok(await api.get(f"/grants/{wider['grant_id']}"), 200)["replaces"] == saved["grant_id"]
    [newest, _] = assert_ok(await api.get(f"{path}/revisions"), 200)["items"]
    assert newest["changed"] == {"scopes": {"from": None, "to": WIDE["scopes"]}}
    renamed = assert_ok(await api.patch(path, {"name": "Other"}), 200)
    assert (renamed["grant_id"], renamed["scopes"]) == (wider["grant_id"], WIDE["scopes"])
    narrow = assert_ok(await api.patch(path, {"scopes": []}), 200)
    assert (narrow["scopes"], await scopes_of(api, narrow["grant_id"])) == ([], only_run)


async def test_a_new_grant_in_place_of_another_keeps_the_scopes(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(**WIDE)))
    path = f"/automations/{saved['id']}"
    assert_ok(await api.post(f"/grants/{saved['grant_id']}/revoke"), 200)
    renewed = assert_ok(await api.post(f"{path}/renew-grant"), 200)
    assert (renewed["grant_id"] != saved["grant_id"], renewed["scopes"]) == (True, WIDE["scopes"])
    assert (await api.delete(path)).status_code == 204
    assert assert_ok(await api.post(f"{path}/restore"), 200)["scopes"] == WIDE["scopes"]


async def test_whoever_changes_the_scopes_of_anothers_automation_answers_for_it(office: Office, api: Api) -> None:
    member = await office.api("member")
    saved = assert_ok(await member.post("/automations", example()))
    path = f"/automations/{saved['id']}"
    assert_refused(await api.patch(path, WIDE), 409, "grant_would_change", "accept_grant")
    taken = assert_ok(await api.patch(path, {**WIDE, "accept_grant": True}), 200)
    assert assert_ok(await api.get(f"/grants/{taken['grant_id']}"), 200)["user"] == "Local admin"


async def test_a_running_attempt_loses_the_scope_with_its_grant(office: Office, api: Api) -> None:
    agent, own = await at_work(office, api, **WIDE)
    assert_ok(await agent.get("/automations"), 200)
    assert_ok(await api.post(f"/grants/{own['grant']}/revoke"), 200)
    assert_refused(await agent.get("/automations"), 401, "attempt_over")


async def test_a_direct_run_and_its_retry_have_the_scopes_it_was_started_with(office: Office, api: Api) -> None:
    run = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep.", **WIDE}))
    begun = await office.claim()
    assert_ok(await as_agent(api, begun).get("/automations"), 200)
    await office.fail(begun)
    again = assert_ok(await api.post(f"/runs/{run['id']}/retry"))
    assert again["grant_id"] != run["grant_id"]
    assert_ok(await as_agent(api, await office.claim()).get("/automations"), 200)


@pytest.mark.parametrize(
    ("scopes", "field", "told"),
    [
        (["workspace:raed"], "scopes.0", "Unknown grant scope 'workspace:raed'. Did you mean `workspace:read`?"),
        (["workspace:read", "all"], "scopes.1", "Unknown grant scope 'all'. A grant can have `workspace:read`."),
        ([f"agent:run:{UNKNOWN}"], "scopes.0", None),
        (["x" * 300], "scopes.0", None),
    ],
)
async def test_an_unknown_scope_is_refused_with_the_right_one(
    office: Office, api: Api, scopes: list[str], field: str, told: str | None
) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    before = await office.count("automations", "grants", "runs")
    for answer in (
        await api.post("/automations", example(scopes=scopes)),
        await api.patch(f"/automations/{saved['id']}", {"scopes": scopes}),
        await api.post("/agents/worker-bee/runs", {"prompt": "Sweep.", "scopes": scopes}),
    ):
        detail = assert_refused(answer, 422, "unknown_scope", field)["detail"]
        assert told in {None, detail}
    assert await office.count("automations", "grants", "runs") == before


async def test_a_token_that_cannot_read_lets_no_agent_read(office: Office, api: Api) -> None:
    secret = assert_ok(await api.post("/tokens", {"name": "Writer", "scopes": ["write", "run"]}))["secret"]
    writer = Api(api.client, api.workspace, secret)
    assert_ok(await writer.post("/automations", example()))
    for path, body in (("/automations", example(**WIDE)), ("/agents/worker-bee/runs", {"prompt": "Sweep.", **WIDE})):
        told = assert_refused(await writer.post(path, body), 403, "scope_missing", "scopes")
        assert told["needs_scope"] == "read"
