"""Signing in by password, logins that end, and what keeps other sites and guessers out."""

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from argon2 import PasswordHasher
from httpx import AsyncClient, Response

from rota.access import passwords, signing_in, throttling
from rota.db import people, throttles
from rota.errors import TooMany
from rota.http.context import CSRF_HEADER, Web
from rota.http.ui.rendering import FormGuard, templates
from rota.model.ids import UserId, new_id
from rota.watch.prune import Prune
from support.api_client import COOKIE
from support.waiting import until

from .test_pages import Page

PASSWORD = "correct horse battery staple"
WRONG = "incorrect horse battery"
REAL = passwords._hasher
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HASHED = CHEAP.hash(PASSWORD)
SECOND = timedelta(seconds=1)
WAITING = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
API = "/api/v1/workspaces/default"


def test_guessing_a_stolen_hash_costs_time_and_memory() -> None:
    real = REAL()
    assert (real.type.name, real.memory_cost >= 19 * 1024, real.time_cost >= 2) == ("ID", True, True)


async def test_a_password_is_hashed_and_checked_with_the_real_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_hasher", REAL)
    hashed = await passwords.hashed(PASSWORD)
    assert f"m={REAL().memory_cost},t={REAL().time_cost}," in hashed
    assert await passwords.is_right(hashed, PASSWORD)
    assert not await passwords.is_right(hashed, WRONG)


@pytest.fixture
async def ada(house: Any) -> UserId:
    user_id = UserId(new_id())
    async with house.db.transaction() as conn:
        await people.add_user(conn, user_id, "Ada", "ada@example.org")
        await people.add_member(conn, house.caller.workspace_id, user_id, "member")
        await people.set_password(conn, user_id, HASHED)
    return user_id


async def sign_in(
    client: AsyncClient, email: str = "ada@example.org", password: str = PASSWORD, **more: str
) -> Response:
    return await client.post("/sign-in/password", data={"email": email, "password": password, **more})


async def test_a_password_signs_in_and_leads_on(guest: AsyncClient, ada: UserId) -> None:
    answer = await sign_in(guest, " ADA@example.org", next="/w/default/runs")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/w/default/runs")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie
    assert (await guest.get(f"{API}/me")).json()["name"] == "Ada"


async def test_behind_https_the_cookie_is_for_https_only(
    guest: AsyncClient, ada: UserId, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    object.__setattr__(web, "settings", web.settings.with_options(url="https://rota.example.org"))
    assert "Secure" in (await sign_in(guest)).headers["Set-Cookie"]


async def test_every_sign_in_is_a_login_of_its_own(guest: AsyncClient, ada: UserId) -> None:
    first = (await sign_in(guest)).cookies[COOKIE]
    second = (await sign_in(guest)).cookies[COOKIE]
    assert first != second


@pytest.mark.parametrize(
    ("email", "password"),
    [
        ("ada@example.org", WRONG),
        ("nobody@example.org", PASSWORD),
        ("ada@example.org", ""),
        ("", ""),
        ("x" * 5000, "y"),
    ],
)
async def test_what_was_wrong_is_told_to_nobody(guest: AsyncClient, ada: UserId, email: str, password: str) -> None:
    answer = await sign_in(guest, email, password)
    assert answer.status_code == 401
    assert "The e-mail address or the password is wrong." in answer.text
    assert COOKIE not in answer.cookies


async def test_an_account_that_is_not_there_is_checked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(passwords, "_hasher", lambda: Slow(checked))
    assert not await passwords.is_right(None, PASSWORD)
    assert len(checked) == 1


class Slow:
    def __init__(self, checked: list[Any]) -> None:
        self.checked = checked

    def hash(self, password: str) -> str:
        return "decoy"

    def verify(self, stored: str, given: bytes) -> bool:
        self.checked.append(stored)
        return True


async def test_a_disabled_account_is_not_let_in(guest: AsyncClient, ada: UserId, house: Any) -> None:
    await house.execute("UPDATE users SET disabled_at = now() WHERE id = %s", ada)
    assert (await sign_in(guest)).status_code == 401
    assert (await sign_in(guest, password=WRONG)).status_code == 401


# Throttling ---------------------------------------------------------------------------------------------------------


async def test_guesses_come_slower_and_slower_and_the_right_password_too(
    guest: AsyncClient, ada: UserId, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttling, "FIRST", timedelta(minutes=10))
    for email in ("ada@example.org", "nobody@example.org"):
        for _ in range(throttling.FREE + 1):
            await house.execute("UPDATE throttles SET open_at = now()")
            assert (await sign_in(guest, email, WRONG)).status_code == 401
        answer = await sign_in(guest, email)
        assert answer.status_code == 429
        assert 500 < int(answer.headers["Retry-After"]) <= 600
        assert "Wait" in answer.text
        await house.execute("DELETE FROM throttles")


async def test_each_try_doubles_the_wait_up_to_a_quarter_of_an_hour(house: Any) -> None:
    given: dict[str, Any] = {"free": 2, "first": SECOND, "forget": timedelta(hours=1), "longest": timedelta(minutes=15)}
    waits = []
    for _ in range(14):
        async with house.db.transaction() as conn:
            assert await throttles.attempt(conn, b"k", **given) is None
        waits.append(await house.value("SELECT round(extract(epoch FROM open_at - last_at)) FROM throttles"))
        await house.execute("UPDATE throttles SET open_at = now()")
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]
    await house.execute("UPDATE throttles SET last_at = now() - interval '61 minutes'")
    async with house.db.transaction() as conn:
        await throttles.attempt(conn, b"k", **given)
    assert await house.value("SELECT tries FROM throttles") == 1


async def test_many_guesses_at_once_are_counted_like_one_after_the_other(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttling, "FIRST", timedelta(minutes=10))
    tries = (throttling.begin(db, "ada@example.org", "203.0.113.7") for _ in range(12))
    told = await asyncio.gather(*tries, return_exceptions=True)
    assert len([each for each in told if each]) == 12 - throttling.FREE - 1
    assert all(isinstance(each, TooMany) for each in told if each)


async def test_who_signs_in_starts_anew(guest: AsyncClient, ada: UserId, house: Any) -> None:
    for _ in range(3):
        await sign_in(guest, password=WRONG)
    assert (await sign_in(guest)).status_code == 303
    account, address = throttling.keys("ada@example.org", "127.0.0.1")
    assert await house.value("SELECT count(*) FROM throttles WHERE key = %s", account) == 0
    assert await house.value("SELECT tries FROM throttles WHERE key = %s", address) == 3


# Passwords ----------------------------------------------------------------------------------------------------------


async def put_password(client: AsyncClient, **body: str) -> Response:
    token = signing_in.csrf_of(client.cookies.get(COOKIE) or "")
    return await client.put(f"{API}/me/password", json=body, headers={CSRF_HEADER: token})


async def test_a_password_is_changed_by_who_knows_it_and_ends_the_other_logins(
    guest: AsyncClient, visit: Callable[[], Any], ada: UserId
) -> None:
    await sign_in(guest)
    async with visit() as elsewhere:
        await sign_in(elsewhere)
        refused = await put_password(guest, current=WRONG, new="another long password")
        assert (refused.status_code, refused.json()["code"]) == (403, "wrong_password")
        assert (await put_password(guest, current=PASSWORD, new="another long password")).status_code == 204
        assert (await guest.get(f"{API}/me")).status_code == 200
        assert (await elsewhere.get(f"{API}/me")).status_code == 401
        assert (await sign_in(elsewhere)).status_code == 401
        assert (await sign_in(elsewhere, password="another long password")).status_code == 303


async def test_a_sign_in_that_is_overtaken_by_a_change_of_the_password_is_none(
    guest: AsyncClient, ada: UserId, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change ends all other logins: one with the old password must not begin behind it."""
    judge = passwords.is_right

    async def overtaken(*given: Any) -> bool:
        right = await judge(*given)
        await house.execute("UPDATE users SET password_hash = %s WHERE id = %s", CHEAP.hash("a new password"), ada)
        return right

    monkeypatch.setattr(passwords, "is_right", overtaken)
    assert (await sign_in(guest)).status_code == 401
    assert await house.value("SELECT count(*) FROM logins WHERE user_id = %s", ada) == 0


async def test_a_change_of_the_password_ends_also_a_login_that_just_begins(ada: UserId, house: Any) -> None:
    async with house.db.transaction() as conn:
        assert await people.still_has_password(conn, ada, HASHED)
        changing = asyncio.create_task(change(house, ada))
        await until(lambda: house.value(WAITING))
        await signing_in.open_login(conn, ada, signing_in.Visit())
    await changing
    assert await house.value("SELECT count(*) FROM logins WHERE user_id = %s", ada) == 0


async def change(house: Any, user_id: UserId) -> None:
    async with house.db.transaction() as conn:
        assert await people.change_password(conn, user_id, HASHED, CHEAP.hash("a new password"))
        await people.end_other_logins(conn, user_id, None)


async def test_nobody_waits_for_a_connection_while_a_password_is_judged(
    guest: AsyncClient, ada: UserId, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(guest)
    held: list[int] = []

    def watched(judge: Callable[..., Any]) -> Callable[..., Any]:
        async def judged(*given: Any) -> Any:
            stats = db._pool.get_stats()
            held.append(stats["pool_size"] - stats["pool_available"])
            return await judge(*given)

        return judged

    for name in ("is_right", "hashed"):
        monkeypatch.setattr(passwords, name, watched(getattr(passwords, name)))
    assert (await put_password(guest, current=PASSWORD, new="another long password")).status_code == 204
    assert held == [0, 0]


async def test_of_two_changes_of_a_password_at_once_one_is_taken(
    guest: AsyncClient, ada: UserId, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(guest)
    hashed = passwords.hashed

    async def overtaken(password: str) -> str:
        await house.execute("UPDATE users SET password_hash = %s WHERE id = %s", CHEAP.hash("somebody else's"), ada)
        return await hashed(password)

    monkeypatch.setattr(passwords, "hashed", overtaken)
    told = await put_password(guest, current=PASSWORD, new="another long password")
    assert (told.status_code, told.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize("new", ["", "short", "aaaaaaaaaaaaaaaa", "x" * 257])
async def test_a_weak_password_is_refused(guest: AsyncClient, ada: UserId, new: str) -> None:
    await sign_in(guest)
    told = (await put_password(guest, current=PASSWORD, new=new)).json()
    assert (told["code"], told["field"]) == ("weak_password", "new")


async def test_a_token_alone_sets_no_first_password(guest: AsyncClient, ada: UserId, house: Any) -> None:
    await house.execute("UPDATE users SET password_hash = NULL WHERE id = %s", ada)
    async with house.db.transaction() as conn:
        _, token = await signing_in.add_token(conn, house.caller.workspace_id, ada, "test")
    told = await guest.put(f"{API}/me/password", json={"new": PASSWORD}, headers={"Authorization": f"Bearer {token}"})
    assert (told.status_code, told.json()["code"]) == (403, "login_needed")


async def test_a_new_account_can_be_given_a_password(admin: AsyncClient, guest: AsyncClient) -> None:
    body = {"email": "grace@example.org", "password": PASSWORD}
    token = signing_in.csrf_of(admin.cookies[COOKIE])
    made = await admin.post(f"{API}/members", json=body, headers={CSRF_HEADER: token})
    assert (made.status_code, made.json()["link"]) == (201, None)
    assert (await sign_in(guest, "grace@example.org")).status_code == 303


async def test_no_password_is_kept(guest: AsyncClient, ada: UserId, house: Any) -> None:
    kept = await house.value("SELECT password_hash FROM users WHERE id = %s", ada)
    assert kept.startswith("$argon2id$")
    assert PASSWORD not in await house.value("SELECT string_agg(u::text, ' ') FROM users u")


# Logins -------------------------------------------------------------------------------------------------------------


async def test_a_login_ends_when_it_is_idle_and_when_it_is_old(guest: AsyncClient, ada: UserId, house: Any) -> None:
    for end in ("last_used_at = now() - interval '7 days'", "expires_at = now()"):
        await sign_in(guest)
        assert (await guest.get(f"{API}/me")).status_code == 200
        await house.execute(f"UPDATE logins SET {end}")
        assert (await guest.get(f"{API}/me")).status_code == 401


async def test_a_login_that_is_used_is_not_idle(guest: AsyncClient, ada: UserId, house: Any) -> None:
    await sign_in(guest)
    await house.execute("UPDATE logins SET last_used_at = now() - interval '6 days'")
    assert (await guest.get(f"{API}/me")).status_code == 200
    assert await house.value("SELECT now() - last_used_at < interval '1 minute' FROM logins")


async def test_logins_are_listed_and_ended_one_by_one_and_all_at_once(
    guest: AsyncClient, visit: Callable[[], Any], ada: UserId
) -> None:
    await sign_in(guest)
    headers = {CSRF_HEADER: signing_in.csrf_of(guest.cookies[COOKIE])}
    async with visit() as second, visit() as third:
        for each in (second, third):
            each.headers["User-Agent"] = "A browser"
            await sign_in(each)
        listed = (await guest.get(f"{API}/me/logins")).json()["items"]
        assert sorted((each["own"], each["user_agent"] == "A browser") for each in listed) == [
            (False, True), (False, True), (True, False),
        ]  # fmt: skip
        other = (await second.get(f"{API}/me/logins")).json()["items"]
        gone = next(each["id"] for each in other if each["own"])
        assert (await guest.delete(f"{API}/me/logins/{gone}", headers=headers)).status_code == 204
        assert (await guest.delete(f"{API}/me/logins/{gone}", headers=headers)).status_code == 404
        assert (await second.get(f"{API}/me")).status_code == 401
        assert (await third.get(f"{API}/me")).status_code == 200
        assert (await guest.delete(f"{API}/me/logins", headers=headers)).json() == {"ended": 1}
        assert (await third.get(f"{API}/me")).status_code == 401
        assert (await guest.get(f"{API}/me")).status_code == 200


async def test_a_token_lists_logins_of_which_none_is_its_own(
    guest: AsyncClient, visit: Callable[[], Any], ada: UserId, house: Any
) -> None:
    await sign_in(guest)
    async with house.db.transaction() as conn:
        _, token = await signing_in.add_token(conn, house.caller.workspace_id, ada, "script")
    async with visit() as script:
        answer = await script.get(f"{API}/me/logins", headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, [each["own"] for each in answer.json()["items"]]) == (200, [False])


async def test_somebody_elses_login_is_not_there(admin: AsyncClient, guest: AsyncClient, ada: UserId) -> None:
    await sign_in(guest)
    [theirs] = (await guest.get(f"{API}/me/logins")).json()["items"]
    headers = {CSRF_HEADER: signing_in.csrf_of(admin.cookies[COOKIE])}
    assert (await admin.delete(f"{API}/me/logins/{theirs['id']}", headers=headers)).status_code == 404


async def test_what_has_ended_is_pruned(guest: AsyncClient, ada: UserId, house: Any) -> None:
    await sign_in(guest)
    await house.execute("UPDATE logins SET last_used_at = now() - interval '8 days'")
    await house.execute("UPDATE throttles SET last_at = now() - interval '2 days', open_at = now() - interval '2 days'")
    await Prune(house.db, keep_events=timedelta(days=90), keep_snapshots=timedelta(days=7)).once()
    assert await house.value("SELECT (SELECT count(*) FROM logins) + (SELECT count(*) FROM throttles)") == 0


# Other sites --------------------------------------------------------------------------------------------------------


async def test_a_form_without_the_secret_of_its_sign_in_changes_nothing(admin: AsyncClient, house: Any) -> None:
    path = f"/w/default/automations/{await house.automation()}/pause"
    for sent in ("none", "", signing_in.csrf_of("another login")):
        answer = await admin.post(path, data={"csrf": "none"}, headers={CSRF_HEADER: sent})
        assert answer.status_code == 403
        assert "not of your present sign-in" in answer.text
    assert await house.value("SELECT status FROM automations") == "active"
    good = signing_in.csrf_of(admin.cookies[COOKIE])
    assert (await admin.post(path, data={"csrf": good}, headers={CSRF_HEADER: ""})).status_code == 303
    assert await house.value("SELECT status FROM automations") == "paused"


async def test_what_was_written_before_one_signed_in_anew_is_sent_once_more(admin: AsyncClient, house: Any) -> None:
    path = f"/w/default/automations/{await house.automation()}/edit"
    written = {"name": "A <new> name", "agent": "worker-bee", "prompt": 'Say\n"this".', "triggers": "0", "do": "save"}
    ours = {CSRF_HEADER: "of an earlier one", "Origin": "http://rota.test"}
    page = Page(await admin.post(path, data=written | {"csrf": "of an earlier one"}, headers=ours))
    assert "is sent once more as" in page.text
    assert page.form(path)["method"] == "post"
    hidden = {str(each["name"]): str(each["value"]) for each in page.all("input") if each.get("type") == "hidden"}
    assert {name: hidden[name] for name in written} == written
    assert hidden["csrf"] == signing_in.csrf_of(admin.cookies[COOKIE])
    assert (await admin.post(path, data=hidden, headers={CSRF_HEADER: ""})).status_code == 303
    assert await house.value("SELECT name || ': ' || prompt FROM automations") == 'A <new> name: Say\n"this".'
    secret = {"name": "openai", "value": "not to be written back", "csrf": "of an earlier one"}
    for where, headers in (("/w/default/settings/credentials", ours), (path, {CSRF_HEADER: "of an earlier one"})):
        told = await admin.post(where, data=secret, headers=headers)
        assert (told.status_code, "not to be written back" in told.text) == (403, False)
    in_place = await admin.post(path, data=written, headers=ours | {"HX-Request": "true"})
    assert (in_place.status_code, in_place.headers["HX-Trigger"]) == (403, "outdated")


async def test_signing_out_needs_it_too(admin: AsyncClient) -> None:
    assert (await admin.post("/sign-out", headers={CSRF_HEADER: "none"})).status_code == 403
    assert (await admin.post("/sign-out")).status_code == 303


async def test_every_form_that_posts_carries_it(admin: AsyncClient, house: Any) -> None:
    """In the templates, and in what becomes of them."""
    for name in templates.list_templates():
        source = templates.loader.get_source(templates, name)[0]  # type: ignore[union-attr]
        assert len(re.findall(r'method="post"', source)) == len(FormGuard.POSTS.findall(source)), name
    await house.automation()
    page = (await admin.get("/w/default/automations")).text
    token = signing_in.csrf_of(admin.cookies[COOKIE])
    assert page.count('method="post"') == page.count(f'name="csrf" value="{token}"') > 2
    assert "X-Rota-CSRF" in page
