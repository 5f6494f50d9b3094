"""Agents over HTTP: who works, and how a change of one reaches the automations that use it."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient

from rota.http.app import create_app
from rota.model.agent_config import EXTRAS, KINDS
from rota.roster import agents
from support import api_client
from support.api_client import UNKNOWN, Api, Office, Site, assert_ok, assert_refused, example

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

SHELL = {"name": "Shell", "executor": "command", "config": {"argv": ["sh", "-c", "true"]}}
FIELDS = {
    "id", "slug", "name", "executor", "config", "instructions", "credentials", "pool", "max_concurrent", "status",
    "revision", "created_at", "updated_at", "warnings",
}  # fmt: skip


async def test_an_agent_is_created_and_found_by_id_and_by_slug(api: Api) -> None:
    agent = assert_ok(await api.post("/agents", {**SHELL, "instructions": "Be brief.", "max_concurrent": 2}))
    assert set(agent) == FIELDS
    assert (agent["slug"], agent["status"], agent["revision"], agent["warnings"]) == ("shell", "active", 1, [])
    assert (agent["instructions"], agent["max_concurrent"], agent["pool"]) == ("Be brief.", 2, "default")
    assert (await api.get(f"/agents/{agent['id']}")).json() == agent
    assert (await api.get("/agents/shell")).json() == agent


async def test_each_kind_tells_what_it_needs_with_an_agent_that_can_be_saved_as_it_is(api: Api) -> None:
    found = {each["kind"]: each for each in (await api.get("/executors")).json()["items"]}
    assert set(found) == set(KINDS)
    alone = [kind for kind, each in found.items() if not each["needs"]]
    assert alone == ["command", "langgraph", "python"]  # those have a starter, as acp has one with an agent of ours
    for kind, each in found.items():
        assert each["extra"] == (f"rota[{kind}]" if kind in EXTRAS else None)
        for name in each["example"].get("credentials", {}).values():
            assert_ok(await api.post("/credentials", {"name": name, "value": "sk-example"}))
        saved = assert_ok(await api.post("/agents", each["example"]))
        assert (saved["executor"], saved["config"]) == (kind, each["example"]["config"])


SERVICE = {"name": "Service", "executor": "http", "config": {"url": "https://agents.example.com/"}}
PRIVATE = {"url": "http://127.0.0.1:8700/"}


async def test_a_url_that_no_run_would_call_is_refused_when_it_is_saved(api: Api) -> None:
    told = assert_refused(
        await api.post("/agents", {**SERVICE, "config": PRIVATE}), 422, "target_not_allowed", "config.url"
    )
    assert "8700" in told["detail"]
    assert "ROTA_HTTP_ALLOW" in told["detail"]
    for url in ("http://169.254.169.254/", "http://localhost/", "https://example.com:22/", "http://[::ffff:10.0.0.1]/"):
        wrong = {**SERVICE, "config": {"url": url}}
        assert_refused(await api.post("/agents", wrong), 422, "target_not_allowed", "config.url")
    for url in ("example.com", "https://a b/", "https://me:pw@a.example/", "http://127.1/", "https://a.example:/"):
        assert_refused(await api.post("/agents", {**SERVICE, "config": {"url": url}}), 422, "invalid", "config.url")
    assert_refused(await api.get("/agents/service"), 404, "not_found")


async def test_a_url_that_no_run_would_call_cannot_replace_one_that_works(api: Api) -> None:
    saved = assert_ok(await api.post("/agents", SERVICE))
    assert_refused(await api.patch("/agents/service", {"config": PRIVATE}), 422, "target_not_allowed", "config.url")
    assert (await api.get("/agents/service")).json() == saved


async def test_a_private_url_can_be_saved_where_the_operator_allows_it(site: Site, office: Office, api: Api) -> None:
    settings = site.web.settings.with_options(http_allow=("127.0.0.1:8700",))
    web = replace(site.web, settings=settings)
    async with AsyncClient(transport=ASGITransport(create_app(web)), base_url="http://rota.test") as client:
        allowed = Api(client, api.workspace, api.token)
        agent = assert_ok(await allowed.post("/agents", {**SERVICE, "config": PRIVATE}))
        assert (agent["config"], agent["warnings"]) == (PRIVATE, [])
        assert_ok(await allowed.patch("/agents/service", {"config": {**PRIVATE, "timeout": "5s"}}), 200)
        assert_refused(
            await allowed.patch("/agents/service", {"config": {"url": "http://127.0.0.1:8701/"}}),
            *(422, "target_not_allowed", "config.url"),
        )


async def test_an_agent_whose_url_is_no_longer_allowed_can_be_paused_renamed_and_mended(
    api: Api, office: Office
) -> None:
    assert_ok(await api.post("/agents", SERVICE))
    await office.execute(
        "UPDATE agents SET config = jsonb_build_object('url', 'http://127.0.0.1:8700/') WHERE slug = 'service'"
    )
    changed = assert_ok(await api.patch("/agents/service", {"status": "paused", "name": "Renamed"}), 200)
    [warning] = changed["warnings"]
    assert warning.startswith("config.url: 127.0.0.1:8700 may not be called: port 8700 is not open.")
    assert_refused(
        await api.patch("/agents/service", {"config": {**PRIVATE, "timeout": "5s"}}),
        *(422, "target_not_allowed", "config.url"),
    )
    assert assert_ok(await api.patch("/agents/service", {"config": SERVICE["config"]}), 200)["warnings"] == []


async def test_a_name_that_is_taken_gets_a_numbered_slug_and_a_slug_that_is_taken_is_refused(api: Api) -> None:
    slugs = [assert_ok(await api.post("/agents", SHELL))["slug"] for _ in range(3)]
    assert slugs == ["shell", "shell-2", "shell-3"]
    assert_refused(await api.post("/agents", {**SHELL, "slug": "shell-2"}), 409, "slug_taken", "slug")


@pytest.mark.parametrize("slug", ["", "Shell", "-shell", "a b", "ü", "a" * 64, UNKNOWN, UNKNOWN.replace("-", "")])
async def test_a_slug_that_is_none_or_looks_like_an_id_is_refused_when_made_and_when_changed(
    api: Api, slug: str
) -> None:
    if slug:
        assert_refused(await api.post("/agents", {**SHELL, "slug": slug}), 422, "invalid_slug", "slug")
    assert_refused(await api.patch("/agents/worker-bee", {"slug": slug}), 422, "invalid_slug", "slug")


async def test_agents_are_listed_newest_first_in_pages(api: Api) -> None:
    made_ids = [assert_ok(await api.post("/agents", SHELL))["id"] for _ in range(4)]
    seen = [each["id"] for each in await api.pages("/agents", 2)]
    assert seen[:4] == made_ids[::-1]
    assert len(seen) == len(set(seen)) == 5


async def test_a_change_is_a_new_revision_and_leaves_the_rest_as_it_was(api: Api) -> None:
    before = (await api.get("/agents/worker-bee")).json()
    after = assert_ok(await api.patch("/agents/worker-bee", {"instructions": "Hurry.", "slug": "bee"}), 200)
    changed = {name for name in FIELDS if before[name] != after[name]}
    assert changed == {"instructions", "slug", "revision", "updated_at"}
    assert after["revision"] == 2
    assert_refused(await api.get("/agents/worker-bee"), 404, "not_found")


async def test_a_program_that_does_not_exist_is_a_warning_when_saved(api: Api) -> None:
    config = {"argv": ["no-such-program-anywhere"]}
    agent = assert_ok(await api.post("/agents", {**SHELL, "config": config}))
    assert ["no-such-program-anywhere" in each for each in agent["warnings"]] == [True]
    changed = assert_ok(await api.patch(f"/agents/{agent['id']}", {"name": "Still none"}), 200)
    assert changed["warnings"] == agent["warnings"]


async def test_a_kind_whose_library_is_missing_says_what_to_install_when_saved(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "find_spec", lambda name: None)
    agent = {"name": "Model", "executor": "llm", "config": {"model": "openai:gpt-5-mini"}}
    [warning] = assert_ok(await api.post("/agents", agent))["warnings"]
    assert warning.endswith("pip install 'rota[llm]'")


async def test_an_unknown_executor_is_refused_with_what_was_meant(api: Api) -> None:
    told = assert_refused(
        await api.post("/agents", {**SHELL, "executor": "comand"}), 422, "unknown_executor", "executor"
    )
    assert "'command'" in told["detail"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"executr": "command"}, "executr"),
        ({"config": {"argv": ["sh"], "shell": True}}, "config.shell"),
        ({"config": {}}, "config.command"),
        ({"config": {"argv": "sh"}}, "config.argv"),
        ({"config": []}, "config"),
        ({"config": None}, "config"),
        ({"name": "  "}, "name"),
        ({"name": "n" * 201}, "name"),
        ({"name": None}, "name"),
        ({"pool": "A Pool"}, "pool"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"max_concurrent": "many"}, "max_concurrent"),
        ({"status": "asleep"}, "status"),
    ],
)
async def test_a_wrong_value_is_refused_naming_its_field_when_made_and_when_changed(
    office: Office, api: Api, change: dict[str, Any], field: str
) -> None:
    before = await office.count("agents", "revisions")
    assert_refused(await api.post("/agents", {**SHELL, **change}), 422, "invalid", field)
    assert_refused(await api.patch("/agents/worker-bee", change), 422, "invalid", field)
    assert await office.count("agents", "revisions") == before


async def test_a_field_that_is_required_is_told_when_it_is_missing(api: Api) -> None:
    told = assert_refused(await api.post("/agents", {}), 422, "invalid", "name")
    assert [each["field"] for each in told["errors"]] == ["name", "executor"]


async def test_an_agent_that_automations_use_cannot_be_deleted_and_one_that_none_uses_can(api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    session = assert_ok(await api.post("/sessions", {"agent": "worker-bee", "prompt": "Hello"}))
    assert_refused(await api.delete("/agents/worker-bee"), 409, "agent_in_use")
    await api.delete(f"/automations/{automation['id']}")
    assert (await api.delete("/agents/worker-bee")).status_code == 204
    assert_refused(await api.get("/agents/worker-bee"), 404, "not_found")
    assert_refused(
        await api.post(f"/sessions/{session['id']}/messages", {"prompt": "Still there?"}), 409, "agent_deleted"
    )
    assert (await api.get("/agents")).json()["items"] == []
    assert assert_ok(await api.post("/agents", {**SHELL, "slug": "worker-bee"}))["slug"] == "worker-bee"
    assert_refused(await api.post(f"/automations/{automation['id']}/restore"), 409, "agent_deleted")


# A change of an agent reaches its automations ---------------------------------------------------------------------


async def test_a_change_of_an_agent_is_a_new_revision_of_each_of_its_automations_but_not_of_others(
    office: Office, api: Api
) -> None:
    assert_ok(await api.post("/agents", SHELL))
    mine = [assert_ok(await api.post("/automations", example())) for _ in range(2)]
    other = assert_ok(await api.post("/automations", example(agent="shell")))
    await api.patch("/agents/worker-bee", {"instructions": "Hurry."})
    for each in mine:
        assert (await api.get(f"/automations/{each['id']}")).json()["revision"] == 2
        [new, _] = (await api.get(f"/automations/{each['id']}/revisions")).json()["items"]
        assert set(new["changed"]) == {"agent"}
        assert new["changed"]["agent"]["to"]["instructions"] == "Hurry."
    assert (await api.get(f"/automations/{other['id']}")).json()["revision"] == 1


async def test_pausing_resuming_and_capping_an_agent_or_saving_it_as_it_is_are_no_revisions(
    office: Office, api: Api
) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    before = (await api.get("/agents/worker-bee")).json()
    for change in ({"status": "paused"}, {"status": "active"}, {"max_concurrent": 2}, {"config": before["config"]}):
        after = assert_ok(await api.patch("/agents/worker-bee", change), 200)
        assert (after | change, after["revision"]) == (after, before["revision"])
    shown = (await api.get(f"/automations/{automation['id']}")).json()
    assert (shown["revision"], shown["updated_at"]) == (1, automation["updated_at"])
    for config in ({"argv": ["true"], "env": {"N": "1"}}, {"argv": ["true"], "env": {"N": "2"}}):
        assert_ok(await api.patch("/agents/worker-bee", {"config": config}), 200)
    assert len((await api.get(f"/automations/{automation['id']}/revisions")).json()["items"]) == 3


async def test_a_queued_run_keeps_the_agent_as_it_was_when_it_was_fired(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    queued = assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    await api.patch("/agents/worker-bee", {"config": {"argv": ["false"]}})
    at_work = await office.claim()
    assert str(at_work.id) == queued["id"]
    assert at_work.assignment.config == {"argv": ["true"]}
    await office.settle(at_work)
    assert assert_ok(await api.post(f"/automations/{automation['id']}/run"))["revision"] == 2
    assert (await office.claim()).assignment.config == {"argv": ["false"]}


async def test_a_change_of_an_agent_beside_a_change_of_its_automation_leaves_a_whole_revision(
    office: Office, api: Api
) -> None:
    """The agent's change waits for the automation's, and must then see the revision that it wrote."""
    automation = assert_ok(await api.post("/automations", example()))
    async with office.db.connection() as holder:
        async with holder.transaction():
            await holder.execute("SELECT FROM automations WHERE id = %s FOR UPDATE", [automation["id"]])
            first = asyncio.create_task(api.patch(f"/automations/{automation['id']}", {"prompt": "Another"}))
            await office.site.waiting_for_a_lock(1)
            second = asyncio.create_task(api.patch("/agents/worker-bee", {"instructions": "Hurry."}))
            await office.site.waiting_for_a_lock(2)
        assert {(await first).status_code, (await second).status_code} == {200}
    shown = (await api.get(f"/automations/{automation['id']}")).json()
    revisions = (await api.get(f"/automations/{automation['id']}/revisions")).json()["items"]
    assert [each["revision"] for each in revisions] == [3, 2, 1]
    assert shown["revision"] == 3
    assert (revisions[0]["spec"]["prompt"], revisions[0]["spec"]["agent"]["instructions"]) == ("Another", "Hurry.")


async def test_an_automation_made_beside_a_change_of_its_agent_gets_the_agent_as_changed(
    office: Office, api: Api
) -> None:
    async with office.db.connection() as holder:
        async with holder.transaction():
            await holder.execute("LOCK TABLE grants IN SHARE MODE")
            creation = asyncio.create_task(api.post("/automations", example()))
            await office.site.waiting_for_a_lock(1)  # it has read the agent
            change = asyncio.create_task(api.patch("/agents/worker-bee", {"instructions": "Hurry."}))
            await office.site.waiting_for_a_lock(2)
        automation = assert_ok(await creation)
        assert (await change).status_code == 200
    [newest, _] = (await api.get(f"/automations/{automation['id']}/revisions")).json()["items"]
    assert newest["spec"]["agent"]["instructions"] == "Hurry."


async def test_an_agent_is_not_deleted_from_under_an_automation_that_is_being_made(office: Office, api: Api) -> None:
    async with office.db.connection() as holder:
        async with holder.transaction():
            await holder.execute("LOCK TABLE automations IN SHARE MODE")
            creation = asyncio.create_task(api.post("/automations", example()))
            await office.site.waiting_for_a_lock(1)
            deletion = asyncio.create_task(api.delete("/agents/worker-bee"))
            await office.site.waiting_for_a_lock(2)
        assert_ok(await creation)
        assert_refused(await deletion, 409, "agent_in_use")


# Running an agent directly ------------------------------------------------------------------------------------------


async def test_the_grant_of_a_direct_run_lasts_as_long_as_that_may_take(office: Office, api: Api) -> None:
    run = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Wait.", "timeout": "3d"}))
    lasts = await office.value("SELECT expires_at - now() FROM grants WHERE id = %s", run["grant_id"])
    assert lasts.days == 3


async def test_an_agent_is_run_directly_in_a_session_of_its_own_on_a_short_grant_of_the_caller(
    office: Office, api: Api
) -> None:
    run = assert_ok(
        await api.post("/agents/worker-bee/runs", {"prompt": "Sweep.", "input": {"room": 4}, "timeout": "5m"})
    )
    assert (run["source"], run["automation_id"], run["status"]) == ("run_now", None, "queued")
    assert run["created_by"] == str(office.caller.user_id)
    lasts = await office.value("SELECT expires_at - now() FROM grants WHERE id = %s", run["grant_id"])
    assert 0 < lasts.total_seconds() <= 24 * 3600
    given = (await office.claim()).assignment
    assert (given.prompt, given.input, given.timeout.total_seconds()) == ("Sweep.", {"room": 4}, 300)
    assert [each["id"] for each in (await api.get("/agents/worker-bee/runs")).json()["items"]] == [run["id"]]
    session = (await api.get(f"/sessions/{run['session_id']}")).json()
    assert (session["kind"], session["origin"]) == ("interactive", "run_now")


async def test_two_direct_runs_of_one_agent_do_not_wait_for_each_other(office: Office, api: Api) -> None:
    for _ in range(2):
        assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    assert (await office.claim()).id != (await office.claim()).id


@pytest.mark.parametrize("body", [None, {}, {"prompt": None}, {"timeout": "5m"}])
async def test_only_an_agent_whose_configuration_says_what_to_do_runs_without_a_prompt(
    office: Office, api: Api, body: dict[str, Any] | None
) -> None:
    run = assert_ok(await api.post("/agents/worker-bee/runs", body))
    at_work = await office.claim()
    assert (str(at_work.id), at_work.assignment.prompt, at_work.assignment.input) == (run["id"], None, None)
    await office.fail(at_work)
    assert_ok(await api.post(f"/runs/{run['id']}/retry"))
    model = {"name": "Model", "executor": "llm", "config": {"model": "openai:gpt-5-mini"}}
    assert_ok(await api.post("/agents", model))
    assert_refused(await api.post("/agents/model/runs", body), 422, "nothing_to_do", "prompt")


async def test_the_sessions_of_an_agent_are_those_opened_with_it_and_those_of_its_runs(api: Api) -> None:
    assert_ok(await api.post("/agents", {"name": "Idle", "executor": "command", "config": {"argv": ["true"]}}))
    run = assert_ok(await api.post("/agents/worker-bee/runs"))
    chat = assert_ok(await api.post("/sessions", {"agent": "worker-bee"}))
    automation = assert_ok(await api.post("/automations", example(run_immediately=True)))
    [ledger] = (await api.get(f"/automations/{automation['id']}/runs")).json()["items"]
    wanted = [ledger["session_id"], chat["id"], run["session_id"]]
    assert [each["id"] for each in await api.pages("/agents/worker-bee/sessions", 2)] == wanted
    assert await api.pages("/agents/idle/sessions", 2) == []
    assert_refused(await api.get("/agents/nobody/sessions"), 404, "not_found")


async def test_a_paused_agent_is_not_run(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    await api.patch("/agents/worker-bee", {"status": "paused"})
    before = await office.count("runs", "sessions", "grants")
    assert_refused(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}), 409, "agent_paused")
    assert_refused(await api.post(f"/automations/{automation['id']}/run"), 409, "agent_paused")
    assert await office.count("runs", "sessions", "grants") == before


async def test_an_agent_of_a_kind_that_is_gone_is_still_paused_and_renamed(office: Office, api: Api) -> None:
    """Its package was uninstalled: nothing may keep an admin from stopping it."""
    async with office.db.connection() as conn:
        await conn.execute(
            "UPDATE agents SET executor = 'oracle' WHERE workspace_id = %s", [office.caller.workspace_id]
        )
    paused = assert_ok(await api.patch("/agents/worker-bee", {"status": "paused", "name": "Old bee"}), 200)
    assert (paused["status"], paused["name"]) == ("paused", "Old bee")
    assert "oracle" in paused["warnings"][0]
    assert_refused(
        await api.patch("/agents/worker-bee", {"config": {"argv": ["sh"]}}), 422, "unknown_executor", "executor"
    )


async def test_the_same_key_and_body_give_the_same_run_by_slug_and_by_id_also_after_it_failed(
    office: Office, api: Api
) -> None:
    agent = (await api.get("/agents/worker-bee")).json()
    body = {"prompt": "Sweep.", "input": {"a": 1, "b": [2, 3]}}
    first = assert_ok(await api.post("/agents/worker-bee/runs", body, key="k-1"))
    again = assert_ok(
        await api.post(f"/agents/{agent['id']}/runs", {"input": {"b": [2, 3], "a": 1}, **body}, key="k-1")
    )
    await office.fail(await office.claim())
    later = assert_ok(await api.post("/agents/worker-bee/runs", body, key="k-1"))
    assert first["id"] == again["id"] == later["id"]
    assert later["status"] == "failed"
    assert_refused(
        await api.post("/agents/worker-bee/runs", {"prompt": "Mop."}, key="k-1"), 422, "key_reused", "Idempotency-Key"
    )
    assert assert_ok(await api.post("/agents/worker-bee/runs", body, key="k-2"))["id"] != first["id"]
    assert len(await office.ledger()) == 2


@pytest.mark.parametrize("path", ["/agents/{}", "/agents/{}/runs"])
async def test_an_agent_that_is_not_there_is_not_found(api: Api, path: str) -> None:
    for ref in (UNKNOWN, "nobody", "worker bee", "Worker-bee"):
        assert_refused(await api.get(path.format(ref)), 404, "not_found")
