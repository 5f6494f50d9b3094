"""Sign-in with an identity provider: a real one over HTTP with real signed tokens, and all that it may get wrong."""

import asyncio
import base64
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi import FastAPI
from httpx import AsyncClient, Response
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from rota.access import oidc, passwords, signing_in, throttling
from rota.db import people
from rota.errors import Forbidden
from rota.http.app import create_app
from rota.http.context import Web
from rota.model.ids import UserId, new_id
from rota.roster import members
from support.api_client import COOKIE
from support.waiting import until

from .conftest import visiting

KEY = RSAKey.generate_key(2048, {"kid": "k1"})
WAITING = "SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
OTHER = RSAKey.generate_key(2048, {"kid": "k1"})


class Provider:
    """Its endpoints, and what it will say next."""

    def __init__(self) -> None:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(provider.get(self.path))

            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(provider.token(parse_qs(sent)))

            def _answer(self, told: tuple[int, Any]) -> None:
                body = json.dumps(told[1]).encode()
                self.send_response(told[0])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        self.says: dict[str, Any] = {}
        self.signs: Any = KEY
        self.algorithm = "RS256"
        self.challenge = ""

    def get(self, path: str) -> tuple[int, Any]:
        if path == "/keys":
            return 200, {"keys": [KEY.as_dict(private=False)]}
        ends = {name: f"{self.issuer}/{name}" for name in ("authorize", "token", "keys")}
        return 200, {
            "issuer": self.issuer, "authorization_endpoint": ends["authorize"],
            "token_endpoint": ends["token"], "jwks_uri": ends["keys"],
        }  # fmt: skip

    def token(self, sent: dict[str, list[str]]) -> tuple[int, Any]:
        verifier = sent.get("code_verifier", [""])[0].encode()
        proved = base64.urlsafe_b64encode(hashlib.sha256(verifier).digest()).decode().rstrip("=")
        if sent.get("code") != ["good"] or proved != self.challenge:
            return 400, {"error": "invalid_grant"}
        signed = jwt.encode({"alg": self.algorithm, "kid": "k1"}, self.says, self.signs, algorithms=[self.algorithm])
        return 200, {"access_token": "a", "token_type": "Bearer", "id_token": signed}

    def will_say(self, sent: dict[str, list[str]], **claims: Any) -> None:
        self.challenge = sent["code_challenge"][0]
        now = int(time.time())
        self.says = {
            "iss": self.issuer, "aud": "rota", "sub": "s-1", "nonce": sent["nonce"][0], "iat": now, "exp": now + 300,
            "email": "ada@example.org", "email_verified": True, "name": "Ada", **claims,
        }  # fmt: skip
        self.says = {name: value for name, value in self.says.items() if value is not None}


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, args=(0.05,))
    thread.start()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()
    thread.join()


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.signs, running.algorithm = KEY, "RS256"
    return running


@pytest.fixture
def house_with(web: Web, provider: Provider) -> Any:
    def made(**settings: Any) -> FastAPI:
        given = {"oidc_issuer": provider.issuer, "oidc_client_id": "rota", "oidc_client_secret": "s", **settings}
        object.__setattr__(web, "settings", web.settings.with_options(**given))
        return create_app(web)

    return made


@pytest.fixture
async def browser(house_with: Any, house: Any) -> AsyncIterator[AsyncClient]:
    async with visiting(house_with(oidc_level="member")) as client:
        yield client


async def leave(client: AsyncClient, to: str = "/w/default/runs") -> dict[str, list[str]]:
    """To the provider: what the browser brings there."""
    sent = await client.get("/sign-in/oidc", params={"next": to})
    assert sent.status_code == 303
    return parse_qs(urlsplit(sent.headers["Location"]).query)


async def come_back(client: AsyncClient, sent: dict[str, list[str]], code: str = "good") -> Response:
    return await client.get("/sign-in/oidc/callback", params={"code": code, "state": sent["state"][0]})


async def test_somebody_new_is_let_in_with_the_level_that_is_set_and_found_again(
    browser: AsyncClient, provider: Provider, house: Any
) -> None:
    sent = await leave(browser)
    assert sent["code_challenge_method"] == ["S256"]
    assert sent["redirect_uri"] == ["http://rota.test/sign-in/oidc/callback"]
    provider.will_say(sent)
    answer = await come_back(browser, sent)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/w/default/runs")
    me = (await browser.get("/api/v1/workspaces/default/me")).json()
    assert (me["name"], me["email"], me["level"]) == ("Ada", "ada@example.org", "member")
    again = await leave(browser)
    provider.will_say(again, email="ada.new@example.org")
    assert (await come_back(browser, again)).status_code == 303
    assert (await browser.get("/api/v1/workspaces/default/me")).json()["id"] == me["id"]


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"nonce": "another"}, 401),
        ({"nonce": None}, 401),
        ({"aud": "somebody-else"}, 401),
        ({"aud": ["rota", "somebody-else"]}, 401),
        ({"aud": ["rota", "somebody-else"], "azp": "somebody-else"}, 401),
        ({"aud": ["rota", "rota"]}, 401),
        ({"azp": "somebody-else"}, 401),
        ({"aud": ["rota"], "azp": "somebody-else"}, 401),
        ({"azp": ["rota"]}, 401),
        ({"azp": ""}, 401),
        ({"iss": "https://evil.example"}, 401),
        ({"exp": 1}, 401),
        ({"exp": None}, 401),
        ({"sub": None}, 401),
        ({"email_verified": False}, 403),
        ({"email_verified": None}, 403),
        ({"email_verified": "true"}, 403),
        ({"email": None}, 403),
    ],
)
async def test_what_does_not_fit_lets_nobody_in(
    browser: AsyncClient, provider: Provider, house: Any, claims: dict[str, Any], status: int
) -> None:
    sent = await leave(browser)
    provider.will_say(sent, **claims)
    answer = await come_back(browser, sent)
    assert answer.status_code == status
    assert COOKIE not in answer.cookies
    assert await house.value("SELECT count(*) FROM logins") == 0
    assert await house.value("SELECT count(*) FROM users WHERE email IS NOT NULL") == 0


@pytest.mark.parametrize(
    "claims",
    [{"aud": ["rota"]}, {"azp": "rota"}, {"aud": ["rota"], "azp": "rota"}, {"aud": ["else", "rota"], "azp": "rota"}],
)
async def test_a_token_that_was_made_for_this_server_signs_in(
    browser: AsyncClient, provider: Provider, house: Any, claims: dict[str, Any]
) -> None:
    sent = await leave(browser)
    provider.will_say(sent, **claims)
    assert (await come_back(browser, sent)).status_code == 303
    assert await house.value("SELECT count(*) FROM logins") == 1


async def test_a_token_that_another_signed_or_that_is_signed_with_the_shared_secret_is_worth_nothing(
    browser: AsyncClient, provider: Provider
) -> None:
    for key, algorithm in ((OTHER, "RS256"), (OctKey.import_key("s" * 32), "HS256")):
        provider.signs, provider.algorithm = key, algorithm
        sent = await leave(browser)
        provider.will_say(sent)
        assert (await come_back(browser, sent)).status_code == 401


async def test_a_sign_in_ends_where_it_began_and_once(browser: AsyncClient, provider: Provider, house: Any) -> None:
    sent = await leave(browser)
    provider.will_say(sent)
    async with visiting(browser._transport.app) as other:  # type: ignore[attr-defined]
        assert (await come_back(other, sent)).status_code == 401, "another browser: somebody was sent this address"
    assert (await come_back(browser, {"state": ["forged"]})).status_code == 401
    assert (await come_back(browser, sent)).status_code == 303
    assert (await come_back(browser, sent)).status_code == 401
    sent = await leave(browser)
    await house.execute("UPDATE oidc_sign_ins SET expires_at = now()")
    assert (await come_back(browser, sent)).status_code == 401


async def test_a_code_that_the_provider_does_not_know_and_an_error_lead_back_to_sign_in(
    browser: AsyncClient, provider: Provider
) -> None:
    sent = await leave(browser)
    provider.will_say(sent)
    answer = await come_back(browser, sent, code="bad")
    assert answer.status_code == 401
    assert "did not confirm" in answer.text
    assert (await browser.get("/sign-in/oidc/callback", params={"error": "access_denied"})).status_code == 401


async def test_a_provider_that_speaks_nonsense_lets_nobody_in(
    browser: AsyncClient, provider: Provider, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, token = provider.get, provider.token
    _, described = get("/")
    nonsense: list[Any] = [None, [], "sign in", {}, {**described, "jwks_uri": None}, {**described, "token_endpoint": 7}]
    for told in nonsense:
        monkeypatch.setattr(provider, "get", lambda _, told=told: (200, told))
        left = await browser.get("/sign-in/oidc")
        assert (left.status_code, "The identity provider" in left.text) == (401, True)
    for keys in (None, {}, {"keys": ["k1"]}, {"keys": [{"kty": "RSA"}]}):
        monkeypatch.setattr(provider, "get", lambda path, keys=keys: (200, keys) if path == "/keys" else get(path))
        provider.will_say(sent := await leave(browser))
        assert (await come_back(browser, sent)).status_code == 401
    monkeypatch.setattr(provider, "get", get)
    no_tokens: list[Any] = [None, [], {"id_token": 5}]
    for said in no_tokens:
        monkeypatch.setattr(provider, "token", lambda _, said=said: (200, said))
        provider.will_say(sent := await leave(browser))
        assert (await come_back(browser, sent)).status_code == 401
    monkeypatch.setattr(provider, "token", token)
    assert await house.value("SELECT count(*) FROM logins") == 0


async def test_a_key_that_the_provider_took_up_since_is_known_at_once(
    browser: AsyncClient, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.will_say(sent := await leave(browser))
    assert (await come_back(browser, sent)).status_code == 303
    real, provider.signs = provider.get, OTHER
    published = {"keys": [OTHER.as_dict(private=False), {"kty": "of a later day"}]}
    monkeypatch.setattr(provider, "get", lambda path: (200, published) if path == "/keys" else real(path))
    provider.will_say(sent := await leave(browser))
    assert (await come_back(browser, sent)).status_code == 303


async def test_without_a_level_only_who_was_invited_comes_in(house_with: Any, provider: Provider, house: Any) -> None:
    async with visiting(house_with()) as client:
        sent = await leave(client)
        provider.will_say(sent)
        refused = await come_back(client, sent)
        assert refused.status_code == 403
        assert "invited" in refused.text
        async with house.db.transaction() as conn:
            user_id = UserId(new_id())
            await people.add_user(conn, user_id, "Ada", "ada@example.org")
            await people.add_member(conn, house.caller.workspace_id, user_id, "viewer")
        sent = await leave(client)
        provider.will_say(sent)
        assert (await come_back(client, sent)).status_code == 303
        assert (await client.get("/api/v1/workspaces/default/me")).json()["id"] == str(user_id)
        await house.execute("UPDATE users SET disabled_at = now() WHERE id = %s", user_id)
        sent = await leave(client)
        provider.will_say(sent)
        assert (await come_back(client, sent)).status_code == 401


async def test_somebody_else_with_the_address_of_an_account_is_not_its_person(
    browser: AsyncClient, provider: Provider, house: Any
) -> None:
    provider.will_say(sent := await leave(browser))
    assert (await come_back(browser, sent)).status_code == 303
    me = (await browser.get("/api/v1/workspaces/default/me")).json()["id"]
    async with visiting(browser._transport.app) as other:  # type: ignore[attr-defined]
        provider.will_say(sent := await leave(other), sub="s-2")
        refused = await come_back(other, sent)
        assert (refused.status_code, COOKIE in refused.cookies) == (403, False)
        assert "an account that your identity provider knows as somebody else" in refused.text
        assert await house.value("SELECT string_agg(subject, ' ') FROM identities") == "s-1"
        async with house.db.transaction() as conn:
            assert await members.unlink_as_operator(conn, " Ada@example.org")
        provider.will_say(sent := await leave(other), sub="s-2")
        assert (await come_back(other, sent)).status_code == 303
        assert (await other.get("/api/v1/workspaces/default/me")).json()["id"] == me


async def test_of_two_who_come_first_at_the_same_time_one_is_the_person(house: Any, db: Any) -> None:
    async with db.transaction() as conn:
        await people.add_user(conn, UserId(new_id()), "Ada", "ada@example.org")
    elsewhere = oidc.Provider("https://id.example", "rota", "s")

    async def come(subject: str) -> UserId:
        async with db.transaction() as conn:
            return await elsewhere._person(conn, {"sub": subject, "email": "ada@example.org", "email_verified": True})

    async def both_wait() -> bool:
        return bool(await house.value(WAITING))

    for subjects, let_in in ((("s-1", "s-1"), 2), (("s-2", "s-3"), 1)):
        async with asyncio.timeout(20):
            async with db.transaction() as conn:
                await people.find_user(conn, "ada@example.org", lock=True)
                coming = [asyncio.create_task(come(each)) for each in subjects]
                await until(both_wait)
            came = await asyncio.gather(*coming, return_exceptions=True)
        assert len([each for each in came if not isinstance(each, Forbidden)]) == let_in, came
        assert await house.value("SELECT count(*) FROM identities") == 1
        await house.execute("DELETE FROM identities")


async def test_who_made_an_account_for_somebody_cannot_use_it_once_its_person_came(
    browser: AsyncClient, provider: Provider, house: Any, visit: Any
) -> None:
    """Else whoever invites an address first, with a password, shares the account of its owner."""
    async with house.db.transaction() as conn:
        user_id = UserId(new_id())
        await people.add_user(conn, user_id, "Ada", "ada@example.org", admitted_by=house.caller.workspace_id)
        await people.add_member(conn, house.caller.workspace_id, user_id, "viewer")
        await people.set_password(conn, user_id, await passwords.hashed("known to its maker"))
        login = await signing_in.sign_in(conn, await signing_in.create_link(conn, user_id))
        link = await signing_in.create_link(conn, user_id)
    sent = await leave(browser)
    provider.will_say(sent)
    assert (await come_back(browser, sent)).status_code == 303
    assert (await browser.get("/api/v1/workspaces/default/me")).json()["id"] == str(user_id)
    async with visit() as maker:
        typed = {"email": "ada@example.org", "password": "known to its maker"}
        assert (await maker.post("/sign-in/password", data=typed)).status_code == 401
        assert (await maker.post("/sign-in", data={"link": link})).status_code == 401
        maker.cookies.set(COOKIE, login)
        assert (await maker.get("/api/v1/workspaces/default/me")).status_code == 401


async def test_other_domains_are_not_let_in(house_with: Any, provider: Provider, house: Any) -> None:
    async with visiting(house_with(oidc_level="member", oidc_domains=("example.com",))) as client:
        for email, status in (("ada@example.org", 403), ("ada@example.com.evil.org", 403), ("ada@example.com", 303)):
            sent = await leave(client)
            provider.will_say(sent, email=email, sub=email)
            assert (await come_back(client, sent)).status_code == status


async def test_who_begins_one_sign_in_after_the_other_waits_and_nobody_is_asked_meanwhile(
    browser: AsyncClient, provider: Provider, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttling, "FREE_ELSEWHERE", 2)
    monkeypatch.setattr(throttling, "FIRST", timedelta(minutes=10))
    monkeypatch.setattr(throttling, "LONGEST_ELSEWHERE", timedelta(minutes=10))
    for _ in range(throttling.FREE_ELSEWHERE + 1):
        sent = await leave(browser)
    asked: list[str] = []
    get = provider.get

    def record(path: str) -> Any:
        asked.append(path)
        return get(path)

    monkeypatch.setattr(provider, "get", record)
    refused = await browser.get("/sign-in/oidc", params={"next": "/w/default/runs"})
    assert (refused.status_code, asked) == (429, [])
    assert 500 < int(refused.headers["Retry-After"]) <= 600
    assert "Too many sign-ins were begun from your network and not ended. Wait " in refused.text
    assert "/sign-in/oidc?next=/w/default/runs" in refused.text
    assert await house.value("SELECT count(*) FROM oidc_sign_ins") == throttling.FREE_ELSEWHERE + 1
    async with visiting(browser._transport.app, "203.0.113.9") as elsewhere:  # type: ignore[attr-defined]
        await leave(elsewhere)
    provider.will_say(sent)
    assert (await come_back(browser, sent)).status_code == 303, "who is on the way arrives"
    await leave(browser)


async def test_any_number_of_people_sign_in_from_one_address(
    browser: AsyncClient, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttling, "FREE_ELSEWHERE", 1)
    monkeypatch.setattr(throttling, "FIRST", timedelta(minutes=10))
    for number in range(4):
        provider.will_say(sent := await leave(browser), sub=f"s-{number}", email=f"{number}@example.org")
        assert (await come_back(browser, sent)).status_code == 303


async def test_without_a_provider_there_is_no_such_way(guest: AsyncClient) -> None:
    assert (await guest.get("/sign-in/oidc")).status_code == 404
    assert "organisation" not in (await guest.get("/sign-in")).text
