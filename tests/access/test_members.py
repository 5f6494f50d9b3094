"""Members: who comes in, with which level, what ends when they go, and what a workspace's admins may set."""

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from rota.access import signing_in
from rota.db import people
from rota.errors import Conflict, Unauthenticated
from rota.model.ids import UserId
from rota.roster import members
from support import api_client
from support.api_client import COOKIE, DAILY, UNKNOWN, Api, Office, Site, assert_ok, assert_refused, example, furnish

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

EMAILS = (f"ada{n}@example.org" for n in range(1000))


async def token_of(office: Office, user_id: str) -> Api:
    async with office.db.transaction() as conn:
        _, secret = await signing_in.add_token(conn, office.caller.workspace_id, UserId(UUID(user_id)), "test")
    return Api(office.site.client(), office.caller.workspace_slug, secret)


async def test_somebody_invited_signs_in_by_their_link_and_does_what_their_level_allows(
    office: Office, api: Api
) -> None:
    email = next(EMAILS)
    new = assert_ok(await api.post("/members", {"email": f" {email.upper()} ", "name": "Ada", "level": "member"}))
    assert (new["email"], new["name"], new["level"], new["disabled"]) == (email, "Ada", "member", False)
    secret = parse_qs(urlsplit(new["link"]).query)["token"][0]
    async with office.db.transaction() as conn:
        login = await signing_in.sign_in(conn, secret)
    client = office.site.client(cookies={COOKIE: login})
    assert (await client.get(api.url("/automations"))).status_code == 200
    assert (await client.get(api.url(""))).json()["level"] == "member"
    assert "link" not in assert_ok(await api.get(f"/members/{new['id']}"), 200)


async def test_a_member_cannot_be_invited_twice_but_somebody_removed_comes_back(office: Office, api: Api) -> None:
    body = {"email": next(EMAILS)}
    member = assert_ok(await api.post("/members", body))
    assert_refused(await api.post("/members", body), 409, "already_member", "email")
    assert (await api.delete(f"/members/{member['id']}")).status_code == 204
    assert_refused(await api.get(f"/members/{member['id']}"), 404, "not_found")
    back = assert_ok(await api.post("/members", {**body, "level": "viewer"}))
    assert (back["id"], back["level"], back["link"]) == (member["id"], "viewer", None)


@pytest.mark.parametrize("email", ["", "ada", "@example.org", "ada@", "a da@example.org", "ada@example.org\u0000", 7])
async def test_what_is_no_email_address_is_refused(api: Api, email: Any) -> None:
    answer = await api.post("/members", {"email": email})
    assert answer.status_code in {400, 422}, answer.text


async def test_an_admin_gets_no_way_to_be_somebody_who_belongs_elsewhere_too(office: Office, site: Site) -> None:
    """A link signs a person in everywhere, so only whoever runs the server may make one for them."""
    theirs = await furnish(site)
    body = {"email": next(EMAILS)}
    elsewhere = assert_ok(await (await theirs.api()).post("/members", body))
    await office.execute("UPDATE users SET admitted_by = NULL WHERE id = %s", elsewhere["id"])  # proved to be themself
    api = await office.api()
    here = assert_ok(await api.post("/members", {**body, "name": "Mallory's name"}))
    assert (here["id"], here["link"]) == (elsewhere["id"], None)
    assert here["name"] == elsewhere["name"]
    assert_refused(await api.post(f"/members/{here['id']}/link"), 409, "member_elsewhere")


async def test_a_new_link_ends_the_one_before(office: Office, api: Api) -> None:
    member = assert_ok(await api.post("/members", {"email": next(EMAILS)}))
    second = assert_ok(await api.post(f"/members/{member['id']}/link"))["link"]
    async with office.db.transaction() as conn:
        with pytest.raises(Unauthenticated):
            await signing_in.sign_in(conn, member["link"].partition("token=")[2])
        assert await signing_in.sign_in(conn, second.partition("token=")[2])


async def test_email_addresses_are_shown_to_admins_and_ones_own_to_everybody(office: Office, api: Api) -> None:
    new = assert_ok(await api.post("/members", {"email": next(EMAILS), "level": "viewer"}))
    other = assert_ok(await api.post("/members", {"email": next(EMAILS)}))
    viewer = await token_of(office, new["id"])
    seen = {each["id"]: each["email"] for each in assert_ok(await viewer.get("/members"), 200)["items"]}
    assert (seen[new["id"]], seen[other["id"]]) == (new["email"], None)
    assert assert_ok(await api.get(f"/members/{other['id']}"), 200)["email"] == other["email"]


async def test_members_come_in_pages(office: Office, api: Api) -> None:
    for _ in range(4):
        await office.member("viewer")
    assert len(await api.pages("/members", 2)) == 5


# Going --------------------------------------------------------------------------------------------------------------


async def test_who_is_removed_loses_grants_tokens_and_logins_at_once(office: Office, api: Api) -> None:
    member = assert_ok(await api.post("/members", {"email": next(EMAILS)}))
    async with office.db.transaction() as conn:
        login = await signing_in.sign_in(conn, member["link"].partition("token=")[2])
    theirs = await token_of(office, member["id"])
    automation = assert_ok(await theirs.post("/automations", example(name="Theirs", schedule=DAILY)))
    assert_ok(await theirs.post(f"/automations/{automation['id']}/run"))
    at_work = await office.claim()
    assert (await api.delete(f"/members/{member['id']}")).status_code == 204
    assert_refused(await theirs.get("/agents"), 401, "unauthenticated")
    client = office.site.client(cookies={COOKIE: login})
    assert_refused(await client.get(api.url("/agents")), 401, "unauthenticated")
    assert_refused(await Api(api.client, api.workspace, at_work.token).get("/agents"), 401, "attempt_over")
    left = assert_ok(await api.get(f"/automations/{automation['id']}"), 200)
    assert left["grant_problem"] == "grant_revoked"
    await office.fail(at_work)


async def test_who_becomes_a_viewer_lends_no_agent_their_authority(office: Office, api: Api) -> None:
    member = assert_ok(await api.post("/members", {"email": next(EMAILS)}))
    theirs = await token_of(office, member["id"])
    automation = assert_ok(await theirs.post("/automations", example(name="Theirs", schedule=DAILY)))
    lowered = assert_ok(await api.patch(f"/members/{member['id']}", {"level": "viewer"}), 200)
    assert lowered["level"] == "viewer"
    assert assert_ok(await theirs.get(f"/automations/{automation['id']}"), 200)["grant_problem"] == "grant_revoked"
    assert_refused(await theirs.post("/automations", example()), 403, "forbidden")


async def test_a_grant_that_is_made_while_its_member_is_removed_does_not_outlive_them(
    office: Office, api: Api, site: Site
) -> None:
    member = assert_ok(await api.post("/members", {"email": next(EMAILS)}))
    theirs = await token_of(office, member["id"])
    async with office.db.transaction() as conn:
        await conn.execute("SELECT FROM members WHERE user_id = %s FOR UPDATE", [member["id"]])
        saving = asyncio.create_task(theirs.post("/automations", example()))
        await site.waiting_for_a_lock(1)
        await conn.execute("UPDATE members SET removed_at = now() WHERE user_id = %s", [member["id"]])
    assert_refused(await saving, 403, "forbidden")
    count = "SELECT count(*) FROM grants WHERE user_id = %s AND revoked_at IS NULL"
    assert await office.value(count, member["id"]) == 0


async def test_the_last_admin_is_neither_removed_nor_lowered(office: Office, api: Api) -> None:
    own = f"/members/{office.caller.user_id}"
    assert_refused(await api.delete(own), 409, "last_admin")
    assert_refused(await api.patch(own, {"level": "member"}), 409, "last_admin")
    assert_ok(await api.patch(own, {"level": "admin"}), 200)
    await office.member("admin")
    assert_ok(await api.patch(own, {"level": "member"}), 200)
    assert_refused(await api.patch(own, {"level": "admin"}), 403, "forbidden")


async def test_two_admins_who_remove_each_other_leave_one(office: Office, api: Api, site: Site) -> None:
    other_id = await office.member("admin")
    other = await token_of(office, str(other_id))
    async with office.db.transaction() as conn:
        await conn.execute("SELECT FROM members WHERE workspace_id = %s FOR UPDATE", [office.caller.workspace_id])
        tries = [
            asyncio.create_task(api.delete(f"/members/{other_id}")),
            asyncio.create_task(other.delete(f"/members/{office.caller.user_id}")),
        ]
        await site.waiting_for_a_lock(2)
    answers = await asyncio.gather(*tries)
    assert sorted(each.status_code for each in answers) == [204, 409], [each.text for each in answers]


async def test_what_is_no_member_is_not_there(api: Api) -> None:
    for answer in (
        await api.get(f"/members/{UNKNOWN}"),
        await api.patch(f"/members/{UNKNOWN}", {"level": "viewer"}),
        await api.delete(f"/members/{UNKNOWN}"),
        await api.post(f"/members/{UNKNOWN}/link"),
    ):
        assert_refused(answer, 404, "not_found")


# Switching off ------------------------------------------------------------------------------------------------------


async def test_who_is_switched_off_is_let_in_nowhere_until_they_are_switched_on(office: Office, api: Api) -> None:
    member = assert_ok(await api.post("/members", {"email": next(EMAILS)}))
    async with office.db.transaction() as conn:
        login = await signing_in.sign_in(conn, member["link"].partition("token=")[2])
    theirs, path = await token_of(office, member["id"]), f"/members/{member['id']}"
    automation = assert_ok(await theirs.post("/automations", example(name="Theirs", schedule=DAILY)))
    assert_ok(await theirs.post(f"/automations/{automation['id']}/run"))
    at_work = await office.claim()
    assert assert_ok(await api.patch(path, {"disabled": True}), 200)["disabled"] is True
    assert_refused(await theirs.get("/agents"), 401, "account_disabled")
    assert_refused(await Api(api.client, api.workspace, at_work.token).get("/agents"), 401, "attempt_over")
    client = office.site.client(cookies={COOKIE: login})
    assert_refused(await client.get(api.url("/agents")), 401, "unauthenticated")
    assert assert_ok(await api.get(f"/automations/{automation['id']}"), 200)["grant_problem"] == "grant_revoked"
    assert assert_ok(await api.get(path), 200)["disabled"] is True
    assert assert_ok(await api.patch(path, {"disabled": False}), 200)["disabled"] is False
    assert_ok(await theirs.get("/agents"), 200)
    assert_refused(await client.get(api.url("/agents")), 401, "unauthenticated")  # they sign in anew
    audited = assert_ok(await api.get("/audit", action="member.change"), 200)["items"]
    assert [(each["before"], each["after"]) for each in audited] == [
        ({"disabled": True}, {"disabled": False}), ({"disabled": False}, {"disabled": True}),
    ]  # fmt: skip
    await office.fail(at_work)


async def test_who_is_just_removed_makes_no_token_that_is_good_when_they_come_back(office: Office) -> None:
    ada = await office.member("member")
    theirs = await token_of(office, str(ada))
    async with office.db.transaction() as conn:
        await members.remove(conn, office.caller, ada)
        asked = asyncio.create_task(theirs.post("/tokens", {"name": "Spare"}))
        await office.site.waiting_for_a_lock(1)
    assert_refused(await asked, 403, "forbidden")
    assert await office.value("SELECT count(*) FROM tokens WHERE user_id = %s AND revoked_at IS NULL", ada) == 0


async def test_of_two_admins_who_switch_each_other_off_at_the_same_time_one_stays(office: Office) -> None:
    other = await office.member("admin")
    theirs = await token_of(office, str(other))
    async with office.db.transaction() as conn:
        await members.switch_off(conn, office.caller, other)
        await members.switch(conn, office.caller, other, off=True)
        second = asyncio.create_task(theirs.patch(f"/members/{office.caller.user_id}", {"disabled": True}))
        await office.site.waiting_for_a_lock(1)
    assert_refused(await second, 409, "last_admin")


async def test_an_admin_switches_off_neither_the_last_admin_nor_who_belongs_elsewhere_too(
    office: Office, api: Api, site: Site
) -> None:
    assert_refused(await api.patch(f"/members/{office.caller.user_id}", {"disabled": True}), 409, "last_admin")
    theirs = await furnish(site)
    both = await office.member("viewer")
    async with office.db.transaction() as conn:
        await people.add_member(conn, theirs.caller.workspace_id, both, "viewer")
    for off in (True, False):
        assert_refused(await api.patch(f"/members/{both}", {"disabled": off}), 409, "member_elsewhere")
    assert assert_ok(await api.get(f"/members/{both}"), 200)["disabled"] is False


async def test_the_operator_switches_anybody_off_everywhere_and_every_workspace_is_told(
    office: Office, api: Api, site: Site
) -> None:
    other = await furnish(site)
    email = next(EMAILS)
    member = assert_ok(await api.post("/members", {"email": email}))
    async with office.db.transaction() as conn:
        await people.add_member(conn, other.caller.workspace_id, member["id"], "admin")
    theirs = await token_of(office, member["id"])
    automation = assert_ok(await theirs.post("/automations", example(name="Theirs", schedule=DAILY)))
    for off, changed in ((True, True), (True, False), (False, True)):
        async with office.db.transaction() as conn:
            assert await members.switch_as_operator(conn, f" {email.upper()}", off=off) is changed
        if off:
            assert_refused(await theirs.get("/agents"), 401, "account_disabled")
    assert assert_ok(await theirs.get(f"/automations/{automation['id']}"), 200)["grant_problem"] == "grant_revoked"
    for each in (api, await other.api()):
        last = assert_ok(await each.get("/audit", action="member.change"), 200)["items"][0]
        assert (last["user"], last["object_id"], last["after"]) == (None, member["id"], {"disabled": False})
    await office.execute("UPDATE users SET email = %s WHERE id = %s", last_admin := next(EMAILS), other.caller.user_id)
    await office.execute("UPDATE members SET level = 'viewer' WHERE user_id = %s", member["id"])
    async with office.db.transaction() as conn:
        with pytest.raises(Conflict) as told:
            await members.switch_as_operator(conn, last_admin, off=True)
    assert told.value.code == "last_admin"


# One account, several workspaces ------------------------------------------------------------------------------------


async def test_who_makes_an_account_cannot_be_that_person_in_another_workspace(office: Office, site: Site) -> None:
    """An admin knows the password or link they gave, so the account stays theirs until its person has proved itself."""
    theirs = await furnish(site)
    mallory, victim = await theirs.api(), await office.api()
    for body in ({}, {"password": "known to its maker"}):
        email = next(EMAILS)
        assert_ok(await mallory.post("/members", {"email": email, **body}))
        told = assert_refused(await victim.post("/members", {"email": email}), 409, "account_unproven", "email")
        assert "rota sign-in --user" in told["detail"]
        async with office.db.transaction() as conn:
            link = await members.link_as_operator(conn, email)
        here = assert_ok(await victim.post("/members", {"email": email}))
        assert here["link"] is None
        async with office.db.transaction() as conn:
            assert await signing_in.sign_in(conn, link)
        kept = "SELECT password_hash FROM users WHERE id = %s"
        assert await office.value(kept, here["id"]) is None  # what the maker knows is worth nothing


async def test_a_link_makes_an_account_its_workspaces_again(office: Office, api: Api, site: Site) -> None:
    theirs = await furnish(site)
    email = next(EMAILS)
    member = assert_ok(await api.post("/members", {"email": email}))
    async with office.db.transaction() as conn:
        await members.link_as_operator(conn, email)
    link = assert_ok(await api.post(f"/members/{member['id']}/link"))["link"].partition("token=")[2]
    assert_refused(await (await theirs.api()).post("/members", {"email": email}), 409, "account_unproven", "email")
    async with office.db.transaction() as conn:
        login = await signing_in.sign_in(conn, link)
    await office.execute("INSERT INTO identities VALUES ('https://id.example.org', %s, %s)", email, member["id"])
    assert_ok(
        await (await theirs.api()).post("/members", {"email": email})
    )  # whom an identity provider knows may come in
    client = office.site.client(cookies={COOKIE: login})
    assert_refused(await client.get(api.url("/agents")), 401, "unauthenticated")  # but not who holds the link's login


async def test_a_link_and_an_invitation_elsewhere_never_miss_each_other(office: Office, api: Api, site: Site) -> None:
    theirs = await furnish(site)
    elsewhere = await theirs.api()
    email = next(EMAILS)
    member = assert_ok(await api.post("/members", {"email": email}))
    await office.execute("UPDATE users SET admitted_by = NULL WHERE id = %s", member["id"])
    async with office.db.transaction() as conn:
        await conn.execute("SELECT FROM users WHERE id = %s FOR UPDATE", [member["id"]])
        tries = [
            asyncio.create_task(api.post(f"/members/{member['id']}/link")),
            asyncio.create_task(elsewhere.post("/members", {"email": email})),
        ]
        await site.waiting_for_a_lock(2)
    answers = await asyncio.gather(*tries)
    assert sorted(each.status_code for each in answers) == [201, 409], [each.text for each in answers]


# The workspace ------------------------------------------------------------------------------------------------------


async def test_admins_name_and_limit_their_workspace(office: Office, api: Api) -> None:
    limits = {"minimum_interval": "5m", "max_concurrent": 3, "max_schedules": 7}
    changed = assert_ok(await api.patch("", {"name": "The press room", "timezone": "Europe/Berlin", **limits}), 200)
    assert {name: changed[name] for name in limits} == limits
    assert_refused(await api.post("/automations", example(schedule={"every": "1m"})), 422, "too_often", "schedule")
    changed = assert_ok(await api.patch("", {"max_concurrent": None}), 200)
    assert (changed["max_concurrent"], changed["max_schedules"], changed["name"]) == (None, 7, "The press room")
    viewer = await office.api("viewer")
    assert assert_ok(await viewer.get(""), 200)["level"] == "viewer"
    audited = assert_ok(await api.get("/audit", action="workspace.change"), 200)["items"]
    assert audited[0]["before"] == {"max_concurrent": 3}


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"timezone": "Mars/Olympus"}, "unknown_timezone", "timezone"),
        ({"name": " "}, "invalid", "name"),
        ({"minimum_interval": "-5m"}, "invalid", "minimum_interval"),
        ({"max_concurrent": 0}, "invalid", "max_concurrent"),
        ({"slug": "other"}, "invalid", "slug"),
    ],
)
async def test_what_makes_no_sense_for_a_workspace_is_refused(api: Api, body: Any, code: str, field: str) -> None:
    assert_refused(await api.patch("", body), 422, code, field)
