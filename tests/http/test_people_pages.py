"""The pages of members, tokens and oneself, asked for as a browser without scripts asks."""

import re
from collections.abc import Callable
from typing import Any

from httpx import AsyncClient

from rota.access import signing_in
from rota.db import people
from rota.model.ids import UserId, new_id
from support.api_client import COOKIE

from .test_pages import NASTY, UNKNOWN, Page, live, submit

ROOT = "/w/default/settings"
PASSWORD = "correct horse battery staple"


async def member(house: Any, level: str = "member", name: str = "Ada", email: str | None = "ada@example.org") -> UserId:
    user_id = UserId(new_id())
    async with house.db.transaction() as conn:
        await people.add_user(conn, user_id, name, email)
        await people.add_member(conn, house.caller.workspace_id, user_id, level)
    return user_id


async def sign_in(client: AsyncClient, house: Any, user_id: UserId) -> None:
    async with house.db.transaction() as conn:
        link = await signing_in.create_link(conn, user_id)
    assert (await client.post("/sign-in", data={"link": link})).status_code == 303


def secret_in(page: str) -> str:
    found = re.search(r'class="secret">([^<]+)<', page)
    assert found, "no secret is shown"
    return found.group(1)


# Members ------------------------------------------------------------------------------------------------------------


async def test_somebody_is_invited_and_their_link_is_shown_once(
    admin: AsyncClient, house: Any, visit: Callable[[], Any]
) -> None:
    home = f"{ROOT}/members"
    made = await submit(admin, home, email="grace@example.org", name=f"Grace {NASTY}", level="viewer")
    assert made.status_code == 200
    assert NASTY not in made.text
    link = secret_in(made.text)
    assert link not in (await admin.get(home)).text
    async with visit() as grace:
        assert (await grace.post("/sign-in", data={"link": link})).status_code == 303
        page = (await grace.get(home)).text
        assert "Invite somebody" not in page
        assert "grace@example.org" in page  # her own
    listed = await admin.get(home)
    assert "grace@example.org" in listed.text
    assert "Viewer" in listed.text
    assert NASTY in Page(listed).text
    assert "member.create" in (await admin.get(f"{ROOT}/audit")).text


async def test_an_invitation_that_is_refused_keeps_what_was_typed_beside_what_is_wrong(
    admin: AsyncClient, house: Any
) -> None:
    await member(house)
    home = f"{ROOT}/members"
    for email, status in (("no address", 422), ("ada@example.org", 409)):
        for headers in ({}, live()):
            refused = await admin.post(home, data={"email": email, "name": "Typed", "level": "admin"}, headers=headers)
            assert refused.status_code == status
            assert 'id="email-new-error"' in refused.text
            assert f'value="{email}"' in refused.text
            assert 'value="Typed"' in refused.text
            assert 'value="admin" checked' in refused.text
            assert ("<html" in refused.text) == (not headers)
            assert refused.headers.get("HX-Retarget") == ("#results" if headers else None)
    assert await house.value("SELECT count(*) FROM members") == 2
    codes = await house.value("SELECT array_agg(DISTINCT code) FROM audit WHERE action = 'member.create'")
    assert sorted(codes) == ["already_member", "invalid"]


async def test_a_member_is_raised_and_the_last_admin_stays(admin: AsyncClient, house: Any) -> None:
    ada = await member(house)
    one = f"{ROOT}/members/{ada}"
    assert (await submit(admin, f"{one}/change", level="admin")).status_code == 303
    assert await house.value("SELECT level FROM members WHERE user_id = %s", ada) == "admin"
    assert (await submit(admin, f"{one}/change", level="owner")).status_code == 422
    await submit(admin, f"{one}/change", level="viewer")
    own = f"{ROOT}/members/{house.caller.user_id}"
    for action in ("change", "delete"):
        refused = await submit(admin, f"{own}/{action}", level="viewer")
        assert refused.status_code == 409
        assert "last admin" in refused.text
    assert await house.value("SELECT level FROM members WHERE user_id = %s", house.caller.user_id) == "admin"


async def test_what_ends_with_a_membership_is_said_before_and_ends(
    admin: AsyncClient, house: Any, visit: Callable[[], Any]
) -> None:
    ada = await member(house)
    automation = await house.automation({"cron": "* * * * *"})
    await house.execute("UPDATE grants SET user_id = %s", ada)
    await house.queue_run(automation)
    await house.execute("UPDATE grants SET user_id = %s", ada)
    async with house.db.transaction() as conn:
        await signing_in.add_token(conn, house.caller.workspace_id, ada, "hers")
    one = f"{ROOT}/members/{ada}"
    async with visit() as theirs:
        await sign_in(theirs, house, ada)
        assert (await theirs.get(one)).status_code == 200
        told = " ".join(Page(await admin.get(one)).text.split())
        for words in ("The grant of 1 automation.", "1 run that is at work or waiting.", "1 token of theirs."):
            assert words in told
        gone = await submit(admin, f"{one}/delete")
        assert (gone.status_code, gone.headers["Location"]) == (303, f"{ROOT}/members")
        assert (await admin.get(one)).status_code == 404
        assert (await theirs.get(one)).status_code == 303  # to sign in
    ended = "SELECT (SELECT bool_and(revoked_at IS NOT NULL) FROM grants) AND (SELECT bool_and(revoked_at IS NOT NULL) FROM tokens)"
    assert await house.value(ended)


async def test_a_new_link_is_shown_once_and_not_for_who_belongs_elsewhere(admin: AsyncClient, house: Any) -> None:
    ada = await member(house)
    one = f"{ROOT}/members/{ada}"
    made = await submit(admin, f"{one}/link")
    link = secret_in(made.text)
    assert link not in (await admin.get(one)).text
    await house.execute("INSERT INTO workspaces (id, slug, name) VALUES (%s, 'other', 'Other')", UNKNOWN)
    await house.execute("INSERT INTO members (workspace_id, user_id, level) VALUES (%s, %s, 'viewer')", UNKNOWN, ada)
    refused = await submit(admin, f"{one}/link")
    assert refused.status_code == 409
    assert 'role="alert"' in refused.text
    assert "belongs to another workspace too" in refused.text


async def test_an_account_is_switched_off_and_on(admin: AsyncClient, house: Any, visit: Callable[[], Any]) -> None:
    ada = await member(house)
    one = f"{ROOT}/members/{ada}"
    async with visit() as theirs:
        await sign_in(theirs, house, ada)
        assert (await submit(admin, f"{one}/change", disabled="true")).status_code == 303
        assert (await theirs.get(one)).status_code == 303
    assert "Switched off" in (await admin.get(f"{ROOT}/members")).text
    assert (await submit(admin, f"{one}/change", disabled="maybe")).status_code == 422
    assert (await submit(admin, f"{one}/change", disabled="false")).status_code == 303
    assert "Switched off" not in (await admin.get(one)).text
    await house.execute("INSERT INTO workspaces (id, slug, name) VALUES (%s, 'other', 'Other')", UNKNOWN)
    await house.execute("INSERT INTO members (workspace_id, user_id, level) VALUES (%s, %s, 'viewer')", UNKNOWN, ada)
    refused = await submit(admin, f"{one}/change", disabled="true")
    assert refused.status_code == 409
    assert "whoever runs the server can switch them off or on" in refused.text


async def test_who_is_no_admin_sees_members_and_changes_nothing(
    guest: AsyncClient, house: Any, admin: AsyncClient
) -> None:
    ada, bob = await member(house), await member(house, name="Bob", email="bob@example.org")
    await sign_in(guest, house, ada)
    page = (await guest.get(f"{ROOT}/members")).text
    assert "ada@example.org" in page
    assert "bob@example.org" not in page
    one = (await guest.get(f"{ROOT}/members/{bob}")).text
    assert 'class="panel deed"' not in one
    assert "bob@example.org" not in one
    for action in ("change", "link", "delete"):
        assert (await submit(guest, f"{ROOT}/members/{bob}/{action}", level="viewer")).status_code == 403
    assert (await submit(guest, f"{ROOT}/members", email="x@example.org", level="admin")).status_code == 403


# Tokens -------------------------------------------------------------------------------------------------------------


async def test_a_token_is_made_for_some_scopes_and_time_shown_once_and_revoked(
    admin: AsyncClient, guest: AsyncClient, house: Any
) -> None:
    home = f"{ROOT}/tokens"
    fields = {"name": f"Import {NASTY}", "lasts": "30d", "scopes": ["read", "run"]}
    made = await admin.post(home, data=fields)
    assert made.status_code == 200
    secret = secret_in(made.text)
    for path in (home, f"{home}?shown=all", f"{ROOT}/audit"):
        shown = await admin.get(path)
        assert secret not in shown.text
        assert NASTY not in shown.text
    listed = " ".join(Page(await admin.get(home)).text.split())
    assert "read, run" in listed
    assert "Never" in listed
    bearer = {"Authorization": f"Bearer {secret}"}
    api = "/api/v1/workspaces/default"
    assert (await guest.get(f"{api}/agents", headers=bearer)).status_code == 200
    assert (await guest.post(f"{api}/credentials", json={}, headers=bearer)).status_code == 403
    assert await house.value("SELECT expires_at - created_at = interval '30 days' FROM tokens")
    token = await house.value("SELECT id FROM tokens")
    assert (await submit(admin, f"{home}/{token}/delete", next=home)).headers["Location"] == home
    assert (await guest.get(f"{api}/agents", headers=bearer)).status_code == 401
    assert "No token is valid." in (await admin.get(home)).text
    assert "Revoked" in (await admin.get(f"{home}?shown=all")).text


async def test_a_token_for_nothing_or_with_a_strange_span_is_refused_and_what_was_typed_stays(
    admin: AsyncClient, house: Any
) -> None:
    for wrong, beside in (({"scopes": []}, "scopes"), ({"lasts": "soon"}, "lasts"), ({"scopes": ["all"]}, "scopes")):
        fields = {"name": "Kept", "lasts": "7d", "scopes": ["run"], **wrong}
        refused = await admin.post(f"{ROOT}/tokens", data=fields)
        assert refused.status_code == 422
        assert f'id="{beside}-new-error"' in refused.text
        assert 'value="Kept"' in refused.text
    assert await house.value("SELECT count(*) FROM tokens") == 0


async def test_everybody_sees_their_own_tokens_and_admins_all(
    admin: AsyncClient, guest: AsyncClient, house: Any
) -> None:
    ada = await member(house, "viewer")
    await sign_in(guest, house, ada)
    await admin.post(f"{ROOT}/tokens", data={"name": "The house’s", "scopes": ["read"]})
    await guest.post(f"{ROOT}/tokens", data={"name": "Ada’s own", "scopes": ["read"]})
    assert {"The house’s", "Ada’s own"} <= _names(await admin.get(f"{ROOT}/tokens"))
    assert _names(await guest.get(f"{ROOT}/tokens")) & {"The house’s", "Ada’s own"} == {"Ada’s own"}
    token = await house.value("SELECT id FROM tokens WHERE name = 'The house’s'")
    assert (await submit(guest, f"{ROOT}/tokens/{token}/delete")).status_code == 404


def _names(page: Any) -> set[str]:
    return set(re.findall(r'<td class="name">([^<]+)</td>', page.text))


# Oneself ------------------------------------------------------------------------------------------------------------


async def test_everybody_names_themself(admin: AsyncClient, guest: AsyncClient, house: Any) -> None:
    ada = await member(house, "viewer")
    await sign_in(guest, house, ada)
    assert (await submit(guest, f"{ROOT}/me/change", name=f" Countess {NASTY} ")).status_code == 303
    page = await guest.get(f"{ROOT}/me")
    assert NASTY in Page(page).text
    assert NASTY not in page.text
    refused = await submit(guest, f"{ROOT}/me/change", name=" ")
    assert refused.status_code == 422
    assert 'id="name-name-error"' in refused.text
    assert (await house.value("SELECT name FROM users WHERE id = %s", ada)).startswith("Countess")


async def test_a_password_is_set_and_changed_and_no_page_repeats_it(
    guest: AsyncClient, house: Any, visit: Callable[[], Any]
) -> None:
    ada = await member(house, "viewer")
    await sign_in(guest, house, ada)
    path = f"{ROOT}/me/password"
    assert "Present password" not in (await guest.get(f"{ROOT}/me")).text
    assert (await submit(guest, path, new=PASSWORD)).status_code == 303
    async with visit() as elsewhere:
        signed = await elsewhere.post("/sign-in/password", data={"email": "ada@example.org", "password": PASSWORD})
        assert signed.status_code == 303
        for given, beside in (
            ({"current": "not this one at all", "new": "another long password"}, "current"),
            ({"current": PASSWORD, "new": "short"}, "new"),
        ):
            refused = await submit(guest, path, **given)
            assert refused.status_code in {403, 422}
            assert f'id="{beside}-password-error"' in refused.text
            assert not any(word in refused.text for word in given.values() if word != "short")
        assert (await elsewhere.get(f"{ROOT}/me")).status_code == 200
        assert (await submit(guest, path, current=PASSWORD, new="another long password")).status_code == 303
        assert (await elsewhere.get(f"{ROOT}/me")).status_code == 303
    assert (await guest.get(f"{ROOT}/me")).status_code == 200
    told = await house.value("SELECT array_agg(code ORDER BY id) FROM audit WHERE action = 'me.password'")
    assert told == [None, "wrong_password", "weak_password", None]


async def test_browsers_are_listed_and_signed_out_one_by_one_and_all_at_once(
    guest: AsyncClient, house: Any, visit: Callable[[], Any]
) -> None:
    ada = await member(house, "viewer")
    await sign_in(guest, house, ada)
    async with visit() as second, visit() as third:
        second.headers["User-Agent"] = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
        for each in (second, third):
            await sign_in(each, house, ada)
        page = await guest.get(f"{ROOT}/me")
        assert "Firefox on Linux" in page.text
        hashed = signing_in.hashed(second.cookies[COOKIE])
        login = await house.value("SELECT id FROM logins WHERE secret_hash = %s", hashed)
        assert (await submit(guest, f"{ROOT}/me/logins/{login}/delete")).status_code == 303
        assert (await second.get(f"{ROOT}/me")).status_code == 303
        assert (await third.get(f"{ROOT}/me")).status_code == 200
        assert (await submit(guest, f"{ROOT}/me/logins/delete")).status_code == 303
        assert (await third.get(f"{ROOT}/me")).status_code == 303
    assert "Sign out everywhere else" not in (await guest.get(f"{ROOT}/me")).text


async def test_an_identity_provider_that_knows_somebody_is_named(admin: AsyncClient, house: Any) -> None:
    await house.execute(
        "INSERT INTO identities (issuer, subject, user_id) VALUES ('https://id.example.org', 'x', %s)",
        house.caller.user_id,
    )
    assert "https://id.example.org" in (await admin.get(f"{ROOT}/me")).text
    told = (await admin.get("/api/v1/workspaces/default/me")).json()["identities"]
    assert [each["issuer"] for each in told] == ["https://id.example.org"]


async def test_the_palette_finds_the_pages_of_the_settings(admin: AsyncClient, house: Any) -> None:
    found = (await admin.get("/w/default/find", params={"q": "token"})).json()
    assert {"name": "Settings: Tokens", "href": f"{ROOT}/tokens", "kind": "Page"} in found
    await house.execute("UPDATE members SET level = 'viewer'")
    assert (await admin.get("/w/default/find", params={"q": "audit"})).json() == []
