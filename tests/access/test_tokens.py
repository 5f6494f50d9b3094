"""API tokens: shown once, for what their scopes say, never more than their person, and no longer than was said."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rota.model.scope import ALL, READING, Scope, needed
from support import api_client
from support.api_client import Api, Office, Site, assert_ok, assert_refused, example
from support.api_routes import (
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


async def token(api: Api, *scopes: str, **given: Any) -> Api:
    new = assert_ok(await api.post("/tokens", {"name": "A script's", "scopes": list(scopes), **given}))
    return Api(api.client, api.workspace, new["secret"])


async def test_every_route_is_open_to_tokens_with_its_scope_and_to_no_other(office: Office, api: Api) -> None:
    """The one list of all routes is that of the levels."""
    names = await create_one_of_each(office, api)
    reads = [("GET", path, None) for path in [*READS, *READS_OF_PEOPLE, *READS_OF_ADMINS, *OWN_READS]]
    reads.append(("GET", "/sessions/{session}/trace", None))
    preview = ("POST", "/automations/preview", {"schedule": {"every": "1h"}})
    without = {scope: await token(api, *(other for other in ALL if other != scope)) for scope in ALL}
    with_it = {scope: await token(api, scope) for scope in ALL}
    for method, path, body in [*reads, preview, *WRITES, *OWN_WRITES]:
        scope = needed(method, path.partition("?")[0])
        told = assert_refused(await send(without[scope], method, path.format(**names), body), 403, "scope_missing")
        assert told["needs_scope"] == scope
        if path.endswith(("/trace", "/export")):
            continue  # it would stream
        unknown = path.format(**dict.fromkeys(names, "01a1e0db-2cd9-7826-809d-0931e0e98709"))
        answer = await send(with_it[scope], method, unknown, body)
        assert "scope_missing" not in answer.text or (method, path) == ("POST", "/tokens"), (method, path)
        assert answer.status_code != 401, (method, path)


async def test_the_scopes_of_routes_are_these() -> None:
    listed = {(method, path.partition("?")[0]): None for method, path, _ in WRITES}
    by_scope = {scope: {f"{m} {p}" for m, p in listed if needed(m, p) == scope} for scope in ALL}
    assert by_scope[Scope.READ] == set()
    assert all(path.split("/")[1] in {"automations", "grants", "notifications"} for path in by_scope[Scope.WRITE])
    assert {path.split(" ")[1].split("/")[1:2][0] if "/" in path else "" for path in by_scope[Scope.ADMIN]} == {
        "", "accounts", "agents", "credentials", "me", "members", "pause", "resume", "tokens",
    }  # fmt: skip
    assert {
        "POST /agents/{agent}/runs",
        "POST /automations/{automation}/run",
        "POST /approvals/{approval}",
    } <= by_scope[Scope.RUN]
    assert needed("POST", "/something/new") == Scope.ADMIN
    assert needed("GET", "/audit") == Scope.ADMIN
    assert needed("DELETE", "/agents/run") == needed("PATCH", "/credentials/runs") == Scope.ADMIN, "things of that name"
    assert needed("DELETE", "/automations/run") == needed("PUT", "/automations/a/memory/run") == Scope.WRITE
    assert all(needed(method, "/agents") == Scope.READ for method in READING)


async def test_a_refused_scope_is_told_in_the_audit_log(office: Office, api: Api) -> None:
    reader = await token(api, "read")
    assert_refused(await reader.post("/automations", example()), 403, "scope_missing")
    [row] = assert_ok(await api.get("/audit", refused="true"), 200)["items"]
    assert (row["action"], row["code"]) == ("automation.create", "scope_missing")


async def test_saving_starts_nothing_with_a_token_that_may_not_run(office: Office, api: Api) -> None:
    writer, both = await token(api, "write"), await token(api, "write", "run")
    told = assert_refused(
        await writer.post("/automations", example(run_immediately=True)), 403, "scope_missing", "run_immediately"
    )
    assert told["needs_scope"] == "run"
    assert await office.ledger() == []
    assert_ok(await writer.post("/automations", example(run_immediately=False)))
    assert_ok(await both.post("/automations", example(run_immediately=True)))
    assert len(await office.ledger()) == 1


async def test_a_page_needs_its_scope_too(office: Office, api: Api, site: Site) -> None:
    reader = await token(api, "read")
    headers = {"Authorization": f"Bearer {reader.token}"}
    path = f"/w/{api.workspace}/automations"
    assert (await site.client().get(path, headers=headers)).status_code == 200
    automation = assert_ok(await api.post("/automations", example()))
    answer = await site.client().post(f"{path}/{automation['id']}/pause", headers=headers)
    assert answer.status_code == 403
    answer = await site.client().get(f"/w/{api.workspace}/settings/audit", headers=headers)
    assert answer.status_code == 403
    assert "no scope" in answer.text


async def test_a_token_never_has_more_than_its_persons_level(office: Office, api: Api) -> None:
    viewer = await office.api("viewer")
    mighty = await token(viewer, *ALL)
    assert_refused(await mighty.post("/automations", example()), 403, "forbidden")
    assert_ok(await mighty.get("/automations"), 200)


async def test_a_token_made_with_a_token_is_no_mightier_and_lasts_no_longer(office: Office, api: Api) -> None:
    some = await token(api, "admin", "read", lasts="1h")
    told = assert_refused(
        await some.post("/tokens", {"name": "More", "scopes": ["read", "run"]}), 403, "scope_missing", "scopes"
    )
    assert told["needs_scope"] == "run"
    for lasts in ({}, {"lasts": "30d"}):
        child = assert_ok(await some.post("/tokens", {"name": "Child", "scopes": ["read"], **lasts}))
        assert datetime.fromisoformat(child["expires_at"]) <= datetime.now(UTC) + timedelta(hours=1)
    short = assert_ok(await some.post("/tokens", {"name": "Short", "scopes": ["read"], "lasts": "1m"}))
    assert datetime.fromisoformat(short["expires_at"]) <= datetime.now(UTC) + timedelta(minutes=1)


async def test_the_secret_is_in_the_first_answer_only(office: Office, api: Api) -> None:
    new = assert_ok(await api.post("/tokens", {"name": "Once"}))
    assert new["secret"].startswith("rota_")
    assert new["scopes"] == list(ALL)
    listed = assert_ok(await api.get("/tokens"), 200)
    assert new["secret"] not in str(listed)
    assert {each["id"] for each in listed["items"]} >= {new["id"]}
    assert new["secret"] not in str(assert_ok(await api.get("/audit"), 200))


async def test_tokens_are_seen_and_ended_by_their_person_and_by_admins(office: Office, api: Api) -> None:
    member, other = await office.api("member"), await office.api("member")
    theirs = assert_ok(await member.post("/tokens", {"name": "Theirs"}))
    path = f"/tokens/{theirs['id']}"
    assert theirs["id"] not in {each["id"] for each in assert_ok(await other.get("/tokens"), 200)["items"]}
    assert_refused(await other.delete(path), 404, "not_found")
    assert theirs["id"] in {each["id"] for each in assert_ok(await api.get("/tokens"), 200)["items"]}
    assert (await api.delete(path)).status_code == 204
    assert_refused(await Api(api.client, api.workspace, theirs["secret"]).get("/agents"), 401, "unauthenticated")
    assert (await member.delete(path)).status_code == 204
    found = {each["id"]: each for each in assert_ok(await member.get("/tokens"), 200)["items"]}
    assert found[theirs["id"]]["status"] == "revoked"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["everything"]}, "scopes.0"),
        ({"name": ""}, "name"),
        ({"name": "x", "lasts": "0s"}, "lasts"),
        ({"name": "x", "lasts": "9000d"}, "lasts"),
        ({"name": "x", "user": "somebody"}, "user"),
    ],
)
async def test_what_makes_no_sense_for_a_token_is_refused(api: Api, body: Any, field: str) -> None:
    assert_refused(await api.post("/tokens", body), 422, "invalid", field)
