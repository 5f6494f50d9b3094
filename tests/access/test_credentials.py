"""Credentials: values go in and never come out, but into the attempt they were granted to."""

import asyncio
import json
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient
from starlette.responses import Response

from rota.access import credentials
from rota.errors import Broken, Forbidden, Lost
from rota.http.redacting import Redacting
from rota.model.approval import Option, Question, without
from rota.model.outcome import ErrorClass, Failed, Succeeded
from rota.model.redaction import Redactor
from support import api_client
from support.api_client import Api, Office, assert_ok, assert_refused, example
from support.run_state import PRESENT, from_now
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

VALUE = "canary-5f0e1d7c-value"
KEY = {"name": "openai", "value": VALUE}
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
FIELDS = {
    "id", "name", "description", "usable_by", "key_id", "used_by", "created_by", "created_at", "updated_at", "last_used_at",
}  # fmt: skip


async def save(api: Api, name: str = "openai", **values: Any) -> dict[str, Any]:
    return assert_ok(await api.post("/credentials", {"name": name, "value": VALUE, **values}))


# Saving -------------------------------------------------------------------------------------------------------------


async def test_a_credential_is_saved_and_found_by_id_and_name_without_its_value(office: Office, api: Api) -> None:
    answer = await api.post("/credentials", {**KEY, "description": "For the digest"})
    saved = assert_ok(answer)
    assert set(saved) == FIELDS
    assert (saved["name"], saved["description"], saved["usable_by"]) == ("openai", "For the digest", "admin")
    assert (saved["used_by"], saved["last_used_at"]) == ([], None)
    for ref in (saved["id"], "openai"):
        assert (await api.get(f"/credentials/{ref}")).json() == saved
    assert (await api.get("/credentials")).json()["items"] == [saved]
    assert VALUE not in answer.text
    sealed = bytes(await office.value("SELECT sealed FROM credentials WHERE id = %s", saved["id"]))
    assert VALUE.encode() not in sealed
    assert saved["key_id"].encode() == sealed[1 : 1 + sealed[0]] == b"k1"


async def test_a_name_is_taken_once_in_a_workspace_and_free_again_when_deleted(api: Api) -> None:
    await save(api)
    assert_refused(await api.post("/credentials", KEY), 409, "name_taken", "name")
    assert (await api.delete("/credentials/openai")).status_code == 204
    assert_refused(await api.get("/credentials/openai"), 404, "not_found")
    await save(api)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "value": "short"}, "value"),
        ({"name": "x", "value": "        short        "}, "value"),
        ({"name": "x", "value": "x" * 40_000 + VALUE}, "value"),
        ({"name": "x", "value": "redacted"}, "value"),
        ({"name": "x", "value": [VALUE]}, "value"),
        ({"name": "x", "value": {VALUE: VALUE}}, "value"),
        ({"name": "x", "value": None, "description": VALUE * 20}, "value"),
        ({"name": VALUE.upper(), "value": VALUE}, "name"),
        ({"name": f"-{VALUE}", "value": VALUE}, "name"),
        ({"name": "01a1e0db-2cd9-7826-809d-0931e0e98709", "value": VALUE}, "name"),
        ({"name": VALUE * 20, "value": VALUE}, "name"),
        ({"name": "x", "value": VALUE, "usable_by": VALUE}, "usable_by"),
        ({"name": "x", "value": VALUE, "description": VALUE * 20}, "description"),
        ({"name": "x", "value": VALUE, "surprise": VALUE}, "surprise"),
        ({"value": VALUE}, "name"),
    ],
)
async def test_what_is_refused_is_never_repeated_in_the_refusal(
    office: Office, api: Api, body: dict[str, Any], field: str
) -> None:
    before = await office.count("credentials")
    answer = await api.post("/credentials", body)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert VALUE.lower() not in answer.text.lower()
    assert "short" not in answer.text.replace("a shorter one", "")
    assert await office.count("credentials") == before


@pytest.mark.parametrize("broken", [f'{{"value": "{VALUE}"', f'{{"value": "{VALUE}\\u0000"}}', f'["{VALUE}"]'])
async def test_a_body_that_cannot_be_read_is_not_repeated_either(api: Api, broken: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await api.send("POST", "/credentials", content=broken, headers=headers)
    assert answer.status_code in {400, 422}
    assert VALUE not in answer.text


async def test_a_new_value_takes_the_place_of_the_old_and_the_rest_changes_by_itself(office: Office, api: Api) -> None:
    saved = await save(api)
    changed = assert_ok(await api.patch("/credentials/openai", {"value": "another long value"}), 200)
    assert changed["updated_at"] > saved["updated_at"]
    sealed = await office.value("SELECT sealed FROM credentials WHERE id = %s", saved["id"])
    assert office.site.web.vault.unseal(sealed, _place(office, saved)) == "another long value"
    opened = assert_ok(await api.patch("/credentials/openai", {"usable_by": "member"}), 200)
    assert (opened["usable_by"], opened["description"]) == ("member", "")
    assert await office.value("SELECT sealed FROM credentials WHERE id = %s", saved["id"]) == sealed
    assert_refused(await api.patch("/credentials/openai", {"name": "other"}), 422, "invalid", "name")
    assert_refused(await api.patch("/credentials/openai", {"value": "short"}), 422, "invalid_value", "value")
    assert_refused(await api.patch("/credentials/openai", {"value": None}), 422, "invalid", "value")


def _place(office: Office, saved: dict[str, Any]) -> str:
    return f"credential/{office.caller.workspace_id}/{saved['id']}"


async def test_a_value_opens_in_its_own_row_only(office: Office, api: Api) -> None:
    one, other = await save(api, "one"), await save(api, "other", value="quite another value")
    swap = """UPDATE credentials c SET sealed = o.sealed FROM credentials o
               WHERE c.id = ANY(%s) AND o.id = ANY(%s) AND c.id <> o.id"""
    await office.execute(swap, [one["id"], other["id"]], [one["id"], other["id"]])
    for each in (one, other):
        sealed = await office.value("SELECT sealed FROM credentials WHERE id = %s", each["id"])
        with pytest.raises(Broken, match="changed or moved"):
            office.site.web.vault.unseal(sealed, _place(office, each))


# Naming -------------------------------------------------------------------------------------------------------------


async def test_agents_and_automations_name_credentials_and_it_cannot_be_deleted_while_they_do(api: Api) -> None:
    await save(api)
    agent = assert_ok(await api.patch("/agents/worker-bee", {"credentials": {"API_KEY": "openai"}}), 200)
    automation = assert_ok(await api.post("/automations", example(credentials={"OTHER_KEY": "openai"})))
    assert (agent["credentials"], automation["credentials"]) == ({"API_KEY": "openai"}, {"OTHER_KEY": "openai"})
    used = (await api.get("/credentials/openai")).json()["used_by"]
    assert [(each["kind"], each["slug"]) for each in used] == [
        ("agent", "worker-bee"),
        ("automation", "morning-digest"),
    ]
    told = assert_refused(await api.delete("/credentials/openai"), 409, "credential_in_use")
    assert all(name in told["detail"] for name in ("worker-bee", "morning-digest"))
    spec = (await api.get(f"/automations/{automation['id']}/revisions")).json()["items"][0]["spec"]
    assert (spec["credentials"], spec["agent"]["credentials"]) == ({"OTHER_KEY": "openai"}, {"API_KEY": "openai"})
    assert_ok(await api.patch("/agents/worker-bee", {"credentials": {}}), 200)
    assert (await api.delete(f"/automations/{automation['id']}")).status_code == 204
    assert (await api.delete("/credentials/openai")).status_code == 204


async def test_a_credential_that_is_just_being_given_to_an_agent_is_not_deleted(office: Office, api: Api) -> None:
    """Provoked: who gives it has seen that it is there, and has not committed."""
    await save(api)
    async with office.db.transaction() as conn:
        await credentials.check_uses(conn, office.caller, {"API_KEY": "openai"})
        deleting = asyncio.create_task(api.delete("/credentials/openai"))
        await until(lambda: office.value(WAITS))
        given = """UPDATE agents SET credentials = '{"API_KEY": "openai"}' WHERE workspace_id = %s"""
        await conn.execute(given, [office.caller.workspace_id])
    assert_refused(await deleting, 409, "credential_in_use")


@pytest.mark.parametrize(
    ("uses", "code", "field"),
    [
        ({"API_KEY": "nobody-knows"}, "unknown_credential", "credentials.API_KEY"),
        ({"API_KEY": VALUE.upper()}, "invalid_name", "credentials.API_KEY"),
        ({"not a name": "openai"}, "invalid", "credentials"),
        ({"ROTA_TOKEN": "openai"}, "invalid", "credentials.ROTA_TOKEN"),
        ({"ROTA_HTTP_SECRET": "openai"}, "invalid", "credentials.ROTA_HTTP_SECRET"),
        ({f"K{number}": "openai" for number in range(51)}, "invalid", "credentials"),
        ({"API_KEY": 5}, "invalid", "credentials.API_KEY"),
        ("openai", "invalid", "credentials"),
    ],
)
async def test_a_wrong_use_names_the_variable(api: Api, uses: Any, code: str, field: str) -> None:
    await save(api)
    for answer in (
        await api.post("/automations", example(credentials=uses)),
        await api.patch("/agents/worker-bee", {"credentials": uses}),
    ):
        assert_refused(answer, 422, code, field)
        assert VALUE.upper() not in answer.text


async def test_members_name_what_was_opened_to_them_and_nothing_else(office: Office, api: Api) -> None:
    await save(api, "for-admins")
    await save(api, "for-all", usable_by="member")
    member = await office.api("member")
    mine = assert_ok(await member.post("/automations", example(credentials={"KEY": "for-all"})))
    answer = await member.post("/automations", example(credentials={"KEY": "for-admins"}))
    assert assert_refused(answer, 403, "credential_refused", "credentials.KEY")["needs"] == "admin"
    change = {"credentials": {"KEY": "for-admins"}, "accept_grant": True}
    assert_ok(await api.patch(f"/automations/{mine['id']}", change), 200)
    assert_refused(
        await member.patch(f"/automations/{mine['id']}", {"prompt": "Send me the key."}),
        *(403, "credential_refused", "credentials.KEY"),
    )
    assert_ok(await member.patch(f"/automations/{mine['id']}", {"name": "Only another name"}), 200)


async def test_a_change_of_credentials_by_somebody_else_replaces_the_grant(office: Office, api: Api) -> None:
    await save(api, "for-all", usable_by="member")
    mine = assert_ok(await (await office.api("member")).post("/automations", example()))
    change = {"credentials": {"KEY": "for-all"}, "accept_grant": True}
    changed = assert_ok(await api.patch(f"/automations/{mine['id']}", change), 200)
    assert changed["grant_id"] != mine["grant_id"]


# Giving -------------------------------------------------------------------------------------------------------------


async def at_work(office: Office, api: Api, **automation: Any) -> Any:
    """An attempt at work on an automation that names a credential."""
    saved = assert_ok(await api.post("/automations", example(**{"credentials": {"API_KEY": "openai"}, **automation})))
    assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    return await office.claim()


async def resolved(office: Office, work: Any, attempt: int = 1) -> dict[str, str]:
    async with office.db.transaction() as conn:
        vault = office.site.web.vault
        return await credentials.resolve(conn, vault, office.caller.workspace_id, work.id, attempt)


async def test_an_attempt_finds_its_credentials_in_its_environment_and_the_automations_win(
    office: Office, api: Api
) -> None:
    await save(api)
    await save(api, "other", value="the automation's value")
    assert_ok(await api.patch("/agents/worker-bee", {"credentials": {"API_KEY": "openai", "SHARED": "openai"}}), 200)
    work = await at_work(office, api, credentials={"SHARED": "other"})
    environment = work.assignment.environment
    assert (environment["API_KEY"], environment["SHARED"]) == (VALUE, "the automation's value")
    assert await resolved(office, work) == {"API_KEY": VALUE, "SHARED": "the automation's value"}
    assert (await api.get("/credentials/openai")).json()["last_used_at"]
    await office.fail(work)


async def test_a_lost_lease_an_earlier_attempt_and_an_ended_run_get_nothing(office: Office, api: Api) -> None:
    await save(api)
    work = await at_work(office, api)
    assert await resolved(office, work) == {"API_KEY": VALUE}
    with pytest.raises(Lost):
        await resolved(office, work, attempt=2)
    await office.set_run(work.id, lease_until=from_now())
    with pytest.raises(Lost):
        await resolved(office, work)
    await office.set_run(work.id, lease_until=from_now(hours=1))
    await office.fail(work)
    with pytest.raises(Lost):
        await resolved(office, work)


@pytest.mark.parametrize(
    "loss",
    [
        "grants SET revoked_at = now()",
        "grants SET expires_at = now() - interval '1 second'",
        "grants SET scopes = '{agent:run:another}'",
        "members SET removed_at = now()",
    ],
)
async def test_without_a_grant_that_holds_there_is_no_credential(office: Office, api: Api, loss: str) -> None:
    await save(api)
    work = await at_work(office, api)
    await office.execute(f"UPDATE {loss} WHERE workspace_id = %s", office.caller.workspace_id)
    with pytest.raises(Forbidden) as refusal:
        await resolved(office, work)
    assert refusal.value.code == "grant_invalid"
    await office.fail(work)


async def test_an_attempt_gets_what_its_own_revision_names(office: Office, api: Api) -> None:
    await save(api)
    await save(api, "github", value=VALUE[::-1])
    work = await at_work(office, api)
    automation = (await office.run(work.id))["automation_id"]
    assert_ok(await api.patch(f"/automations/{automation}", {"credentials": {"GITHUB": "github"}}), 200)
    assert await resolved(office, work) == {"API_KEY": VALUE}
    await office.fail(work)


async def test_a_credential_that_is_missing_fails_the_run_once_and_says_which(office: Office, api: Api) -> None:
    await save(api)
    saved = assert_ok(await api.post("/automations", example(credentials={"API_KEY": "openai"}, max_attempts=5)))
    await office.execute("DELETE FROM credentials WHERE workspace_id = %s", office.caller.workspace_id)
    ended = await run_to_its_end(office, api, saved)
    assert (ended["status"], ended["error_class"], ended["tries"]) == ("failed", "executor_error", 1)
    assert all(name in ended["error_detail"] for name in ("'openai'", "API_KEY"))


async def test_a_credential_closed_to_the_grants_holder_fails_the_run(office: Office, api: Api) -> None:
    await save(api, usable_by="member")
    member = await office.api("member")
    saved = assert_ok(await member.post("/automations", example(credentials={"API_KEY": "openai"})))
    assert_ok(await api.patch("/credentials/openai", {"usable_by": "admin"}), 200)
    ended = await run_to_its_end(office, member, saved)
    assert (ended["status"], ended["error_class"]) == ("failed", "executor_error")
    assert "not open to the one whose grant this run has" in ended["error_detail"]


async def test_a_value_that_does_not_open_fails_the_run_in_words(office: Office, api: Api) -> None:
    await save(api)
    saved = assert_ok(await api.post("/automations", example(credentials={"API_KEY": "openai"})))
    await office.execute("UPDATE credentials SET sealed = sealed || '\\x00'")
    ended = await run_to_its_end(office, api, saved)
    assert (ended["status"], ended["error_class"]) == ("failed", "executor_error")
    assert "does not open" in ended["error_detail"]


async def run_to_its_end(office: Office, api: Api, automation: dict[str, Any]) -> dict[str, Any]:
    run = assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    await office.work()
    await until(lambda: office.has_runs(1, id=run["id"], finished_at=PRESENT))
    ended: dict[str, Any] = (await api.get(f"/runs/{run['id']}")).json()
    return ended


# Hiding -------------------------------------------------------------------------------------------------------------


async def test_nothing_that_an_attempt_writes_shows_its_credentials_or_its_token(office: Office, api: Api) -> None:
    await save(api)
    work = await at_work(office, api)
    for piece in ("The key is canary-5f0e", "1d7c-value, the token ", work.token[:50], f"{work.token[50:]}.\n"):
        await work.desk.say(piece)
    await work.desk.tool("post", {"headers": {"Authorization": f"Bearer {VALUE}"}, VALUE: [json.dumps(VALUE)]})
    await office.settle(work, Failed(ErrorClass.AGENT_ERROR, f"401 for {VALUE}", retryable=False))
    run = (await api.get(f"/runs/{work.id}")).json()
    assert run["error_detail"] == "401 for [redacted]"
    events = (await api.get(f"/sessions/{run['session_id']}/events")).json()["items"]
    said = "".join(each["data"]["text"] for each in events if each["kind"] == "output")
    assert said == "The key is [redacted], the token [redacted].\n"
    [tool] = [each["data"] for each in events if each["kind"] == "tool"]
    assert tool == {"name": "post", "headers": {"Authorization": "Bearer [redacted]"}, "[redacted]": ['"[redacted]"']}


async def test_a_summary_is_made_of_what_may_be_shown(office: Office, api: Api) -> None:
    await save(api)
    work = await at_work(office, api)
    await work.desk.say(f"First.\nDone with {VALUE}")
    await office.settle(work, Succeeded())
    assert (await api.get(f"/runs/{work.id}")).json()["summary"] == "Done with [redacted]"
    other = await at_work(office, api, name="Another")
    await office.settle(other, Succeeded(f"All of {VALUE}."))
    assert (await api.get(f"/runs/{other.id}")).json()["summary"] == "All of [redacted]."


async def test_what_an_attempt_sends_by_its_token_is_redacted_before_any_route_reads_it(
    office: Office, api: Api
) -> None:
    await save(api)
    work = await at_work(office, api)
    heard: list[Any] = []

    async def route(scope: Any, receive: Any, send: Any) -> None:
        heard.append((scope["path"], scope["query_string"], (await receive())["body"]))
        await Response(status_code=204)(scope, receive, send)

    app = Redacting(route, web=office.site.web)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://rota.test") as client:
        for token in (work.token, api.token):
            headers = {"Authorization": f"Bearer {token}"}
            body = {"body": f"{VALUE} and {work.token}", VALUE: [5, f"x{VALUE}y"]}
            await client.put(f"/memory/{VALUE}", params={"name": VALUE}, json=body, headers=headers)
    [(path, query, body), as_it_was] = heard
    assert (path, query) == ("/memory/[redacted]", b"name=[redacted]")
    assert json.loads(body) == {"body": "[redacted] and [redacted]", "[redacted]": [5, "x[redacted]y"]}
    assert VALUE in as_it_was[0], "people say what they like"
    await office.fail(work)


async def test_an_attempt_that_cannot_be_redacted_any_more_is_refused(office: Office, api: Api) -> None:
    await save(api)
    work = await at_work(office, api)
    await office.execute("DELETE FROM credentials WHERE workspace_id = %s", office.caller.workspace_id)
    agent = Api(api.client, api.workspace, work.token)
    assert_refused(await agent.post("/events", {"event": "rain"}), 422, "unknown_credential")
    await office.fail(work)


async def test_a_question_shows_no_secret(office: Office, api: Api) -> None:
    await save(api)
    work = await at_work(office, api)
    question = Question(f"Send {VALUE}?", [Option("yes", f"Send {VALUE}", approves=True)], {"body": VALUE}, VALUE)
    shown = without(question, Redactor([VALUE]))
    assert VALUE not in str(shown)
    parked = await work.desk.park(question.text, options=question.options, detail=question.detail, key=question.key)
    stored = await office.value("SELECT to_jsonb(a)::text FROM approvals a WHERE id = %s", parked.approval_id)
    assert "Send [redacted]?" in stored
    assert VALUE not in stored
    await office.fail(work)


async def test_what_is_said_at_the_desk_over_http_shows_no_secret(office: Office, api: Api) -> None:
    await save(api)
    work = await at_work(office, api)
    agent = Api(api.client, api.workspace, work.token)
    said = await agent.post(f"/runs/{work.id}/desk/say", {"text": f"The key is {VALUE}."})
    assert said.status_code == 204, said.text
    events = (await api.get(f"/sessions/{work.assignment.session_id}/events")).json()["items"]
    assert [each["data"]["text"] for each in events if each["kind"] == "output"] == ["The key is [redacted]."]
    await office.fail(work)
