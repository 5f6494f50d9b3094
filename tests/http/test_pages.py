"""The pages, asked for as a browser without scripts asks."""

import asyncio
import gzip
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from httpx import AsyncClient, Response
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rota.access import signing_in
from rota.db import people
from rota.db.events import Event
from rota.http import ui
from rota.http.context import Web
from rota.http.ui import assets, sessions, speech, words
from rota.http.ui.rendering import local
from rota.http.ui.signing import secret_of
from rota.http.ui.strip import strip
from rota.model.ids import UserId, WorkspaceId, new_id
from rota.model.reasons import FAILED, SKIPPED
from rota.model.run import SkipReason, Status
from rota.model.task import TaskForm
from rota.model.text import plain
from rota.sessions import roles, tasks
from rota.sessions.transcript import lines, merged
from support.api_client import COOKIE
from support.run_state import from_now
from support.waiting import until

NASTY = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>{{ 7*1000003 }}"""
LIST = "/w/default/automations"
UNKNOWN = "01a1e0db-2cd9-7826-809d-0931e0e98709"


class Page(HTMLParser):
    """What a browser would make of a page: its tags with their attributes, and its text."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(response.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def form(self, action: str) -> dict[str, str | None]:
        return next(each for each in self.all("form") if (each.get("action") or "").endswith(action))


async def submit(client: AsyncClient, action: str, **fields: str) -> Response:
    return await client.post(
        action, data=fields, headers={"Origin": "http://rota.test", "Sec-Fetch-Site": "same-origin"}
    )


def live(**headers: str) -> dict[str, str]:
    return {"HX-Request": "true", **headers}


# ── Coming in ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [LIST, "/w/default/runs", f"/w/default/sessions/{UNKNOWN}", LIST + "/x?cursor=a"])
async def test_who_is_not_signed_in_is_sent_to_sign_in_and_comes_back(
    guest: AsyncClient, house: Any, path: str
) -> None:
    sent = await guest.get(path)
    assert (sent.status_code, sent.headers["Location"]) == (303, f"/sign-in?next={quote(path, safe='')}")
    signed = await use(guest, await house.link(), next=path)
    assert (signed.status_code, signed.headers["Location"]) == (303, path)


async def test_the_root_leads_to_the_first_workspace_or_to_sign_in(guest: AsyncClient, admin: AsyncClient) -> None:
    assert (await guest.get("/")).headers["Location"] == "/sign-in"
    assert (await admin.get("/")).headers["Location"] == LIST


async def use(client: AsyncClient, link: str, **params: str) -> Response:
    """Open a sign-in link and press its button."""
    return await submit(client, "/sign-in", **button_of(await client.get("/sign-in", params={"token": link, **params})))


def button_of(answer: Response) -> dict[str, str]:
    """What the form of a sign-in link sends."""
    page = Page(answer)
    assert (page.form("/sign-in")["method"], answer.status_code) == ("post", 200)
    hidden = [each for each in page.all("input") if each.get("type") == "hidden" and each["name"] in {"link", "next"}]
    return {str(each["name"]): each["value"] or "" for each in hidden}


async def test_a_link_works_once(house: Any, visit: Callable[[], Any]) -> None:
    link = await house.link()
    async with visit() as first, visit() as second:
        assert (await use(first, link)).status_code == 303
        assert (await first.get("/")).headers["Location"] == LIST
        refused = await use(second, link)
        assert refused.status_code == 401
        assert "only until a newer one is made" in refused.text
        assert COOKIE not in second.cookies
        again = await use(first, link)
        assert (again.status_code, again.headers["Location"]) == (303, "/")  # its own browser just goes on


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_program_that_opens_a_link_does_not_use_it_up(house: Any, guest: AsyncClient, method: str) -> None:
    """Chats fetch a link for its preview, mail servers look for malware, and browsers prefetch."""
    link = await house.link()
    for purpose in ({}, {"Purpose": "prefetch"}, {"Sec-Purpose": "prefetch;prerender"}):
        looked = await guest.request(method, "/sign-in", params={"token": link}, headers=purpose)
        assert (looked.status_code, "Set-Cookie" in looked.headers) == (200, False)
        assert looked.headers["Cache-Control"] == "no-store"
    assert (await use(guest, link)).status_code == 303


async def test_another_site_cannot_press_the_button_of_a_link(house: Any, guest: AsyncClient) -> None:
    """Else it could sign somebody in as somebody else."""
    link = await house.link()
    answer = await guest.post("/sign-in", data={"link": link}, headers={"Origin": "http://evil.test"})
    assert (answer.status_code, "Set-Cookie" in answer.headers) == (403, False)
    assert (await use(guest, link)).status_code == 303


async def test_a_token_in_a_link_is_only_text_on_its_page(guest: AsyncClient) -> None:
    answer = await guest.get("/sign-in", params={"token": NASTY, "next": "//evil.test"})
    assert button_of(answer) == {"link": NASTY, "next": "/"}


async def test_two_that_use_a_link_at_once_are_let_in_once(house: Any, visit: Callable[[], Any]) -> None:
    link = await house.link()
    async with visit() as first, visit() as second:
        answers = await asyncio.gather(*(use(each, link) for each in (first, second)))
    assert sorted(each.status_code for each in answers) == [303, 401]


async def test_a_link_can_be_pasted_into_the_form(guest: AsyncClient, house: Any) -> None:
    page = await guest.get("/sign-in", params={"next": "/w/default/runs"})
    assert "rota up" in page.text
    pasted = f"  http://127.0.0.1:7682/sign-in?token={await house.link()}\n"
    answer = await submit(guest, "/sign-in", link=pasted, next="/w/default/runs")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/w/default/runs")
    assert (await guest.get("/w/default/runs")).status_code == 200


@pytest.mark.parametrize(
    ("pasted", "secret"),
    [
        ("abc", "abc"),
        ("http://x/sign-in?token=abc", "abc"),
        ("Sign in once: http://x/sign-in?token=abc&next=/", "abc"),
        ("", ""),
        ("http://[", "http://["),
    ],
)
def test_what_people_paste(pasted: str, secret: str) -> None:
    assert secret_of(pasted) == secret


async def test_the_cookie_is_for_the_server_alone(guest: AsyncClient, house: Any, visit: Callable[[], Any]) -> None:
    answer = await use(guest, await house.link())
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= {each.strip() for each in cookie.split(";")}
    assert "Secure" not in cookie
    async with visit() as other:
        safe = await other.post("https://rota.test/sign-in", data={"link": await house.link()})
        assert (await other.get("https://rota.test/")).headers["Location"] == LIST
        assert (await other.get("/")).headers["Location"] == "/sign-in"  # nor does it go by http
    cookie = safe.headers["Set-Cookie"]
    assert cookie.startswith("__Host-rota_login=")
    assert {"HttpOnly", "Path=/", "SameSite=lax", "Secure"} <= {each.strip() for each in cookie.split(";")}
    assert "domain=" not in cookie.lower()  # as browsers ask of such a name


async def test_two_rotas_on_one_host_keep_their_logins_apart(house: Any, visit: Callable[[], Any]) -> None:
    """A browser sends cookies to every port of a host."""
    async with visit() as browser:
        for address in ("http://127.0.0.1:7682", "http://127.0.0.1:7683"):
            sent = await browser.post(f"{address}/sign-in", data={"link": await house.link()})
            assert sent.headers["Set-Cookie"].startswith(f"rota_{address[-4:]}_login=")
        assert len(set(browser.cookies.values())) == 2
        for port in (7682, 7683):
            assert (await browser.get(f"http://127.0.0.1:{port}/")).headers["Location"] == LIST
        await browser.post("http://127.0.0.1:7682/sign-out")
        assert (await browser.get("http://127.0.0.1:7682/")).headers["Location"] == "/sign-in"
        assert (await browser.get("http://127.0.0.1:7683/")).headers["Location"] == LIST


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.test/", "//evil.test", "///evil.test", "/\\evil.test", "\\\\evil.test", "javascript:alert(1)",
        "/\t/evil.test", "/\n/evil.test", "evil.test", " /w", "", "http:evil.test", "/w/\u2028", "/ /evil.test",
    ],
)  # fmt: skip
async def test_next_leads_only_to_this_site(guest: AsyncClient, house: Any, elsewhere: str) -> None:
    assert local(elsewhere) == "/"
    signed = await submit(guest, "/sign-in", link=await house.link(), next=elsewhere)
    assert signed.headers["Location"] == "/"
    themed = await submit(guest, "/theme", theme="dark", next=elsewhere)
    assert themed.headers["Location"] == "/"


async def test_signing_out_ends_the_login_everywhere(admin: AsyncClient, visit: Callable[[], Any]) -> None:
    kept = admin.cookies[COOKIE]
    answer = await submit(admin, "/sign-out")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/sign-in")
    assert COOKIE not in admin.cookies
    async with visit() as thief:
        thief.cookies.set(COOKIE, kept)
        assert (await thief.get(LIST)).status_code == 303


async def test_somebody_in_no_workspace_is_told_so(house: Any, guest: AsyncClient) -> None:
    async with house.db.transaction() as conn:
        user_id = UserId(new_id())
        await people.add_user(conn, user_id, "Newcomer")
        link = await signing_in.create_link(conn, user_id)
    await use(guest, link)
    page = await guest.get("/")
    assert page.status_code == 403
    assert "no workspace" in page.text


# ── Guards ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def every_page(house: Any) -> list[str]:
    automation_id = await house.automation({"cron": "0 9 * * *"})
    run = await house.ended_run(automation_id)
    session = f"/w/default/sessions/{run['session_id']}"
    style = assets.address("rota.css")
    assert style
    return [
        "/sign-in",
        LIST,
        f"{LIST}/errand",
        f"{LIST}/errand?view=calendar&at=2026-11-15T09:00",
        f"{LIST}/errand/edit",
        f"{LIST}/new",
        "/w/default/fleet",
        "/w/default/runs",
        session,
        f"{session}?before=2",
        f"{LIST}/none",
        "/nowhere",
        style,
    ]


@pytest.mark.parametrize("at", ["zz", "0001-01-01T00:00", "9999-12-31T23:59", "1969-12-31T23:59Z"])
async def test_a_minute_that_no_ledger_can_have_is_refused_in_words(admin: AsyncClient, house: Any, at: str) -> None:
    await house.automation({"cron": "0 9 * * *"})
    answer = await admin.get(f"{LIST}/errand", params={"at": at})
    assert answer.status_code == 422
    assert "Give a " in answer.text


async def test_every_page_forbids_what_it_does_not_need(admin: AsyncClient, house: Any) -> None:
    for path in await every_page(house):
        answer = await admin.get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"


async def test_head_tells_what_get_would_and_sends_no_page(admin: AsyncClient, house: Any) -> None:
    for path in await every_page(house):

        async def between_equal_pages(path: str = path) -> tuple[Response, Response] | None:
            """Pages say how long ago things happened, so that one may differ from the next."""
            first, asked, second = await admin.get(path), await admin.head(path), await admin.get(path)
            return (asked, second) if first.content == second.content else None

        asked, answer = await until(between_equal_pages)
        assert (asked.status_code, asked.headers, asked.content) == (answer.status_code, answer.headers, b""), path
        assert answer.content


async def test_no_page_needs_inline_code_or_a_foreign_file(admin: AsyncClient, house: Any) -> None:
    for path in await every_page(house):
        answer = await admin.get(path)
        if "html" not in answer.headers["Content-Type"]:
            continue
        page = Page(answer)
        assert all(each.get("src") for each in page.all("script")), path
        assert not page.all("style"), path
        for tag, attributes in page.tags:
            assert not {name for name in attributes if name == "style" or name.startswith("on")}, (path, tag)
            for name in ("src", "href", "action", "hx-get", "hx-post"):
                assert (attributes.get(name) or "/").startswith(("/", "#")), (path, tag, attributes)


async def test_an_automation_says_why_all_its_slots_are_skipped(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation()
    grant = await house.value("SELECT grant_id FROM automations WHERE id = %s", automation_id)
    assert "Every slot is skipped" not in (await admin.get(f"{LIST}/errand")).text
    await submit(admin, "/w/default/agents/worker-bee/pause")
    assert "Every slot is skipped: its agent is paused." in (await admin.get(f"{LIST}/errand")).text
    await submit(admin, "/w/default/agents/worker-bee/resume")
    assert "Nothing needs attention." in (await admin.get(f"{LIST}?status=attention")).text
    await submit(admin, f"/w/default/settings/grants/{grant}/revoke")
    page = (await admin.get(f"{LIST}/errand")).text
    assert "Every slot is skipped: its grant was revoked." in page
    assert f"/settings/grants/{grant}" in page
    attention = (await admin.get(f"{LIST}?status=attention")).text
    assert f"{LIST}/errand" in attention
    assert "Every slot is skipped: its grant was revoked." in attention
    await submit(admin, f"{LIST}/errand/delete")
    assert "Every slot is skipped" not in (await admin.get(f"{LIST}/{automation_id}")).text


async def test_nothing_that_people_or_agents_write_becomes_markup(admin: AsyncClient, house: Any) -> None:
    values = {"name": f"N {NASTY}", "prompt": f"P {NASTY}", "input": {f"K {NASTY}": f"V {NASTY}"}, "slug": "nasty"}
    automation_id = await house.automation({"cron": "0 9 * * *"}, **values)
    await house.execute("UPDATE automations SET paused_reason = %s, status = 'paused'", NASTY)
    await house.execute("UPDATE triggers SET parked_error = %s", NASTY)
    await house.execute("UPDATE agents SET name = %s", NASTY)
    await house.execute("UPDATE users SET name = %s", NASTY)
    run = await house.ended_run(automation_id, "failed", summary=NASTY, error_detail=NASTY)
    await house.write_event(run, text=NASTY)
    await house.write_event(run, "tool", name=NASTY, **{NASTY: NASTY})
    await house.write_event(run, "message", **{"from": NASTY, "text": NASTY})
    await house.write_event(run, "run", status="failed", error_class=NASTY, error_detail=NASTY)
    session = f"/w/default/sessions/{run['session_id']}"
    for path in (
        LIST,
        f"{LIST}/nasty",
        f"{LIST}/nasty?view=calendar",
        f"{LIST}/nasty/edit",
        "/w/default/runs",
        session,
    ):
        answer = await admin.get(path)
        assert answer.status_code == 200, path
        page = Page(answer)
        assert not page.all("img"), path
        assert all(each.get("src") for each in page.all("script")), path
        assert not [tag for tag, given in page.tags if any(name.startswith("on") for name in given)], path
        assert "<script>alert" in page.text  # shown as it was written
        assert "7000021" not in page.text


async def test_the_stream_is_escaped_like_the_page(house: Any, web: Web) -> None:
    run = await house.running_run(await house.automation(name=NASTY))
    feed = sessions.messages(web, house.caller, run["session_id"], 1, speech.Teller())
    await house.write_event(run, text="A</hx-partial><hx-partial hx-target='body'>" + NASTY)
    await house.write_event(run, "tool", name=NASTY, query=NASTY)
    await house.write_event(run, "run", status="running")
    told = (await anext(feed)).decode()
    await feed.aclose()
    assert "<script" not in told
    assert "<img" not in told
    assert told.count("<hx-partial") == told.count("</hx-partial") == 2  # those of the head and the tail


async def test_another_workspace_looks_like_none(admin: AsyncClient, house: Any) -> None:
    async with house.db.transaction() as conn:
        await people.add_workspace(conn, WorkspaceId(new_id()), "other", "Other")
    foreign, missing = await admin.get("/w/other/automations"), await admin.get("/w/nowhere/automations")
    assert foreign.status_code == missing.status_code == 404
    assert foreign.text.replace("/w/other/", "/w/nowhere/") == missing.text


async def test_an_id_of_another_workspace_is_missing_in_mine(admin: AsyncClient, house: Any) -> None:
    theirs = await house.ended_run(await house.automation(name="Theirs", slug="theirs"))
    async with house.db.transaction() as conn:
        mine, user_id = WorkspaceId(new_id()), house.caller.user_id
        await people.add_workspace(conn, mine, "mine", "Mine")
        await people.add_member(conn, mine, user_id, "admin")
    for kind, reference in (("sessions", theirs["session_id"]), ("automations", theirs["automation_id"])):
        foreign, missing = await admin.get(f"/w/mine/{kind}/{reference}"), await admin.get(f"/w/mine/{kind}/{uuid4()}")
        assert foreign.status_code == missing.status_code == 404
        assert Page(foreign).text == Page(missing).text
    for act in ("cancel", "retry"):
        assert (await submit(admin, f"/w/mine/runs/{theirs['id']}/{act}")).status_code == 404
    stream = await admin.get(f"/w/mine/sessions/{theirs['session_id']}/stream")
    assert stream.status_code == 404


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.test"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}], ids=str
)
async def test_what_another_site_asks_for_is_refused(admin: AsyncClient, house: Any, headers: dict[str, str]) -> None:
    run = await house.queue_run(await house.automation())
    paths = [f"{LIST}/errand/{act}" for act in ("run", "pause", "resume", "restore")]
    for path in (*paths, f"/w/default/runs/{run['id']}/cancel", "/sign-in", "/sign-out", "/theme"):
        answer = await admin.post(path, headers=headers)
        assert answer.status_code == 403, path
        assert "another site" in answer.text
    assert (await house.run(run["id"]))["status"] == "queued"
    assert (await admin.get(LIST)).status_code == 200


@pytest.mark.parametrize("reference", [UNKNOWN, "nonsense", "..", "'"])
async def test_an_unknown_session_is_a_page_that_says_so(admin: AsyncClient, reference: str) -> None:
    answer = await admin.get(f"/w/default/sessions/{reference}")
    assert answer.status_code in {404, 422}
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "All automations" in answer.text


async def test_a_problem_of_who_is_signed_in_stands_in_the_usual_frame(
    admin: AsyncClient, guest: AsyncClient, house: Any
) -> None:
    problems = {
        await admin.get(f"/w/default/sessions/{UNKNOWN}"): 404, await admin.get("/w/default/nothing"): 404,
        await admin.get("/nothing"): 404, await admin.get("/w/nowhere/runs"): 404,
        await admin.get("/w/default/runs?cursor=x"): 422, await admin.get(f"{LIST}/errand/pause"): 405,
        await admin.post(f"{LIST}/errand/pause", headers={"Origin": "https://evil.test"}): 403,
    }  # fmt: skip
    for answer, status in problems.items():
        assert answer.status_code == status
        links = [each.get("href") for each in Page(answer).all("a")]
        assert {"/w/default/automations", "/w/default/settings/me"} <= {*links}, answer.url
        assert Page(answer).form("/sign-out")
    for stranger in (await guest.get("/nothing"), await guest.get("/nothing", headers={"Cookie": f"{COOKIE}=ended"})):
        assert stranger.status_code == 404
        assert 'aria-label="Pages"' not in stranger.text
    await house.execute("DELETE FROM members")
    homeless = await admin.get("/nothing")
    assert (homeless.status_code, 'aria-label="Pages"' in homeless.text) == (404, False)


CHARGED = """
INSERT INTO usage (workspace_id, run_id, attempt, unit, amount, account_id)
SELECT workspace_id, %s, 1, unit, amount, id FROM accounts, (VALUES ('money', 0.5), ('tokens', %s)) AS spent(unit, amount)
 WHERE currency = %s
"""


async def test_money_is_told_with_its_currency(admin: AsyncClient, house: Any) -> None:
    run = await house.ended_run(await house.automation())
    await house.execute("UPDATE accounts SET currency = 'SEK'")
    await house.execute(CHARGED, run["id"], 1_080_000, "SEK")
    for path in (f"{LIST}/errand?view=calendar", f"/w/default/sessions/{run['session_id']}"):
        page = await admin.get(path)
        assert "Money, SEK<" in page.text, path
        for told in (">0.50<", ">1.08M<"):
            assert told in page.text, path


SECOND_ACCOUNT = """
INSERT INTO accounts (workspace_id, id, name, currency) SELECT workspace_id, gen_random_uuid(), 'Berlin', 'EUR' FROM accounts
"""


async def test_what_an_automation_spent_in_two_currencies_has_no_sum(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation()
    await house.execute(SECOND_ACCOUNT)
    for currency in ("USD", "EUR", "EUR"):  # it was given another account in between
        run = await house.ended_run(automation_id)
        await house.execute(CHARGED, run["id"], 1000, currency)
    page = await admin.get(f"{LIST}/errand?view=calendar")
    told = re.findall(r"(Money[^<]*) by day, ([\d.]+) in 30 days", page.text)
    assert sorted(set(told)) == [("Money, EUR", "1.00"), ("Money, USD", "0.50")]
    assert "Tokens by day, 3k in 30 days" in page.text


async def test_pages_are_pages_whatever_is_accepted(admin: AsyncClient, guest: AsyncClient) -> None:
    plain = {"Accept": "*/*"}
    assert (await guest.get(LIST, headers=plain)).status_code == 303
    missing = await admin.get(f"{LIST}/none", headers=plain)
    assert (missing.status_code, missing.headers["Content-Type"]) == (404, "text/html; charset=utf-8")


@pytest.mark.parametrize("query", ["cursor=x", "cursor=%C3%A9", "cursor=" + "a" * 300])
async def test_a_wrong_cursor_is_told(admin: AsyncClient, query: str) -> None:
    for path in (LIST, "/w/default/runs"):
        answer = await admin.get(f"{path}?{query}")
        assert answer.status_code == 422
        assert "All automations" in answer.text


async def test_a_viewer_may_look_but_not_touch(admin: AsyncClient, house: Any) -> None:
    await house.automation()
    await house.execute("UPDATE members SET level = 'viewer'")
    assert (await admin.get(f"{LIST}/errand")).status_code == 200
    refused = await submit(admin, f"{LIST}/errand/run")
    assert refused.status_code == 403
    assert "Ask an admin" in refused.text


# ── Forms, without a script ──────────────────────────────────────────────────────────────────────────────────────


async def test_run_now_pause_and_resume_are_plain_forms(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation({"cron": "0 9 * * *"})
    for path in (LIST, f"{LIST}/errand"):
        page = Page(await admin.get(path))
        action = page.form("/pause")["action"]
        assert action
        paused = await submit(admin, action, next=path)
        assert (paused.status_code, paused.headers["Location"]) == (303, path)
        assert await house.value("SELECT status FROM automations") == "paused"
        resumed = await submit(admin, str(Page(await admin.get(path)).form("/resume")["action"]), next=path)
        assert resumed.headers["Location"] == path
        assert await house.value("SELECT status FROM automations") == "active"
    ran = await submit(admin, str(Page(await admin.get(LIST)).form("/run")["action"]), next=LIST)
    assert ran.headers["Location"] == LIST
    assert [each["source"] for each in await house.ledger(automation_id)] == ["run_now"]


async def test_a_second_run_now_is_refused_in_words(admin: AsyncClient, house: Any) -> None:
    await house.queue_run(await house.automation())
    refused = await submit(admin, f"{LIST}/errand/run")
    assert refused.status_code == 409
    assert "already queued" in refused.text
    notice = await admin.post(f"{LIST}/errand/run", headers=live(Origin="http://rota.test"))
    assert (notice.status_code, notice.headers["HX-Retarget"]) == (409, "#notice")
    assert "<html" not in notice.text


async def test_a_run_is_cancelled_and_retried_by_plain_forms(admin: AsyncClient, house: Any) -> None:
    run = await house.queue_run(await house.automation())
    session = f"/w/default/sessions/{run['session_id']}"
    cancelled = await submit(admin, str(Page(await admin.get(session)).form("/cancel")["action"]), next=session)
    assert (cancelled.status_code, cancelled.headers["Location"]) == (303, session)
    assert (await house.run(run["id"]))["status"] == "cancelled"
    retried = await submit(admin, str(Page(await admin.get(session)).form("/retry")["action"]))
    new = (await house.ledger())[-1]
    assert new["retry_of"] == run["id"]
    assert retried.headers["Location"] == f"/w/default/sessions/{new['session_id']}"


async def test_a_deleted_automation_is_found_by_its_id_and_restored(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation({"cron": "0 9 * * *"})
    run = await house.ended_run(automation_id)
    await house.execute("UPDATE automations SET deleted_at = now()")
    assert (await admin.get(f"{LIST}/errand")).status_code == 404
    back = next(each["href"] for each in Page(await admin.get(f"/w/default/sessions/{run['session_id']}")).all("a")
                if str(automation_id) in (each.get("href") or ""))  # fmt: skip
    page = Page(await admin.get(str(back)))
    assert "Deleted" in page.text
    restored = await submit(admin, str(page.form("/restore")["action"]))
    assert restored.headers["Location"] == f"{LIST}/errand"
    assert (await admin.get(f"{LIST}/errand")).status_code == 200


async def test_a_chosen_theme_stays(guest: AsyncClient) -> None:
    assert "data-theme" not in (await guest.get("/sign-in")).text
    await submit(guest, "/theme", theme="dark", next="/sign-in")
    assert 'data-theme="dark"' in (await guest.get("/sign-in")).text
    await submit(guest, "/theme", theme='"><script>', next="/sign-in")
    assert "data-theme" not in (await guest.get("/sign-in")).text


# ── What a page says ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_empty_list_shows_how_to_begin(admin: AsyncClient) -> None:
    page = Page(await admin.get(LIST))
    starters = [str(each["href"]) for each in page.all("a") if "starter=" in (each.get("href") or "")]
    assert len(starters) == 3
    for address in starters:
        editor = Page(await admin.get(address))
        [name] = [each["value"] for each in editor.all("input") if each.get("name") == "name"]
        assert name
        assert name in page.text


async def test_the_list_tells_how_everything_stands(admin: AsyncClient, house: Any) -> None:
    busy = await house.automation({"cron": "0 9 * * *"}, name="Busy")
    for status in ("succeeded", "failed", "succeeded"):
        await house.ended_run(busy, status)
    await house.automation({"every": "15m"}, name="Broken")
    await house.execute("UPDATE triggers SET parked_error = 'no such zone' WHERE kind = 'every'")
    page = Page(await admin.get(LIST))
    assert "Every day at 09:00" in page.text
    assert "Needs attention" in page.text
    assert "no such zone" in page.text
    assert [each["aria-label"] for each in page.all("svg") if "aria-label" in each] == [
        "No runs yet",
        "Last 3 runs: 2 succeeded, 1 failed",
    ]
    moment = await house.value("SELECT next_fire_at FROM triggers WHERE kind = 'cron'")
    assert [each for each in page.all("time") if each["datetime"] == words.stamp(moment.astimezone(UTC))]


async def test_the_list_is_read_in_few_statements(
    admin: AsyncClient, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        await house.ended_run(await house.automation({"every": "1h"}, name=f"Errand {number}"))
    asked = []
    real = __import__("psycopg").AsyncCursor.execute

    async def counted(self: Any, query: Any, *given: Any, **options: Any) -> Any:
        asked.append(query)
        return await real(self, query, *given, **options)

    monkeypatch.setattr("psycopg.AsyncCursor.execute", counted)
    assert (await admin.get(LIST)).text.count("<tr id=") == 12
    assert len(asked) <= 13  # two of them for the numbers in the frame


async def test_an_automation_that_is_called_like_a_page_is_reached_from_everywhere(
    admin: AsyncClient, house: Any
) -> None:
    uses = {"credentials": {"KEY": "openai"}}
    await submit(admin, "/w/default/settings/credentials", name="openai", value="a-secret-value", usable_by="member")
    for name in ("New", "Preview"):
        automation_id = await house.automation({"cron": "0 9 * * *"}, name=name, **uses)
        run = await house.ended_run(automation_id)
        await house.execute(CHARGED, run["id"], 1_080_000, "USD")
        address = f"{LIST}/{automation_id}"
        [found] = (await admin.get("/w/default/find", params={"q": name})).json()
        assert found["href"] == address
        for path in ("runs", "settings/credentials", "settings/accounts"):
            assert address in [each.get("href") for each in Page(await admin.get(f"/w/default/{path}")).all("a")], path


async def test_the_list_says_why_the_last_run_failed(admin: AsyncClient, house: Any) -> None:
    await house.ended_run(await house.automation(), "failed", error_detail=f"No water. {NASTY}")
    page = Page(await admin.get(LIST))
    assert f"The agent failed: No water. {NASTY}" in page.text
    assert f"The agent failed: No water. {NASTY}" in [each.get("title") for each in page.all("span")]


async def test_history_tells_skips_and_misses_in_words(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation({"cron": "0 9 * * *"})
    now = datetime.now(UTC)
    await house.skip_slot(automation_id, SkipReason.PRIOR_IN_FLIGHT, slot=now - timedelta(minutes=1))
    missed = {"missed_count": 2, "missed_since": now - timedelta(days=3)}
    await house.skip_slot(automation_id, SkipReason.MISSED, slot=now - timedelta(minutes=2), **missed)
    run = await house.ended_run(automation_id, missed_count=1, missed_since=datetime.now(UTC) - timedelta(hours=5))
    page = await admin.get(f"{LIST}/errand")
    said = re.sub(r"\s+", " ", Page(page).text)
    assert "Skipped: the run before was still going" in said
    assert "Missed: 3 slots since 3 d ago" in said
    assert "Makes up for 1 missed slot since 5 h ago" in said
    assert f"/w/default/sessions/{run['session_id']}" in page.text


async def test_detail_gives_the_next_fires_on_the_triggers_own_clock(admin: AsyncClient, house: Any) -> None:
    await house.automation(triggers=[{"cron": "0 9 * * *", "timezone": "Asia/Kolkata"}])
    page = Page(await admin.get(f"{LIST}/errand"))
    assert page.text.count("+05:30 Asia/Kolkata") == 3
    assert page.text.count(", 09:00") == 3


async def test_older_runs_are_a_link_away(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation()
    for _ in range(51):
        await house.ended_run(automation_id)
    for path in (f"{LIST}/errand", "/w/default/runs", "/w/default/runs?status=succeeded"):
        first = await admin.get(path)
        older = next(each["href"] for each in Page(first).all("a") if "cursor=" in (each.get("href") or ""))
        second = await admin.get(str(older))
        assert (first.text.count("<tr id="), second.text.count("<tr id=")) == (50, 1)
        assert "live=top-" not in first.text
        assert "live=top-" in second.text  # history does not change, only what the top tells


async def test_links_of_the_same_words_are_told_apart_and_a_far_fire_is_in_days(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation({"cron": "0 9 1 1 *"})
    await house.ended_run(automation_id)
    for path in ("/w/default/automations", "/w/default/agents"):
        page = Page(await admin.get(path))
        assert re.search(r"(Errand|Worker bee): Succeeded", page.text), path
    detail = (await admin.get("/w/default/automations/errand")).text
    assert re.search(r">Open the session<span class=\"unseen\"> – Errand, \w+", detail)
    assert re.search(r">in \d+ days</time>", detail)


async def test_runs_can_be_chosen_by_status(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation()
    await house.ended_run(automation_id, "failed", error_detail="out of paper")
    await house.ended_run(automation_id, summary="all printed")
    failed = (await admin.get("/w/default/runs?status=failed")).text
    assert "out of paper" in failed
    assert "all printed" not in failed
    offered = (await admin.get("/w/default/runs")).text
    assert all(f"/w/default/runs?status={each}" in offered for each in Status)


@pytest.mark.parametrize(
    "path", ["runs?status=%3Codd", "automations?status=%3Codd", "sessions?status=%3Codd", "approvals?status=%3Codd"]
)
async def test_an_unknown_status_in_the_address_is_left_out_and_named(
    admin: AsyncClient, house: Any, path: str
) -> None:
    await house.queue_run(await house.automation())
    answer = await admin.get(f"/w/default/{path}")
    assert answer.status_code == 200
    assert "Unknown status “&lt;odd”. Showing all" in answer.text
    assert "Unknown status" not in (await admin.get(f"/w/default/{path.partition('?')[0]}")).text


@pytest.mark.parametrize(("ready_at", "told"), [(from_now(), "a worker"), (None, "the previous run")])
async def test_a_run_that_has_said_nothing_yet_says_what_it_waits_for(
    admin: AsyncClient, house: Any, ready_at: Any, told: str
) -> None:
    await house.add_worker()
    run = await house.queue_run(await house.automation())
    await house.set_run(ready_at=ready_at)
    session = f"/w/default/sessions/{run['session_id']}"
    link = f'<a class="told" href="{session}">Waiting for {told}<span class="unseen"> – Errand, '
    for path in ("/w/default/runs", f"{LIST}/errand", "/w/default/sessions?kind=automation"):
        assert link in (await admin.get(path)).text
    assert f"Waiting for {told}" in Page(await admin.get(session)).text


async def test_a_session_says_where_it_came_from(admin: AsyncClient, house: Any) -> None:
    run = await house.ended_run(await house.automation(name="Morning digest"))
    page = await admin.get(f"/w/default/sessions/{run['session_id']}")
    assert "Started by automation Morning digest at" in re.sub(r"\s+", " ", Page(page).text)
    assert "by “Run now”" in page.text


async def test_a_session_that_waits_for_its_first_run_says_so(admin: AsyncClient, house: Any) -> None:
    await house.automation(session="same")
    page = await admin.get(f"/w/default/sessions/{await house.value('SELECT id FROM sessions')}")
    assert "has not run yet" in page.text


async def test_a_session_takes_a_follow_up_as_a_plain_form_and_shows_its_tasks(admin: AsyncClient, house: Any) -> None:
    run = await house.ended_run(await house.automation(prompt="Water."))
    address = f"/w/default/sessions/{run['session_id']}"
    action = Page(await admin.get(address)).form("/messages")["action"]
    assert (await submit(admin, str(action), prompt=" ")).status_code == 422
    assert (await submit(admin, str(action), prompt="All of them?")).status_code == 303
    assert (await house.run(source="chat"))["prompt"] == "All of them?"
    async with house.db.transaction() as conn:
        await roles.add(conn, house.caller, run["session_id"], [("judge", "worker-bee")])
        forms = [TaskForm("judge", "weigh", "Weigh it."), TaskForm("judge", "tell", "Tell.", depends_on=("weigh",))]
        await tasks.add(conn, house.caller.workspace_id, run["session_id"], forms)
    said = re.sub(r"\s+", " ", Page(await admin.get(address)).text)
    assert "Tasks 1 ready, 1 waiting" in said
    assert re.search(r"weigh ?judge ?Ready", said)
    assert "Task weigh was added for the judge." in said
    assert "All of them?" in said


async def test_what_is_somebody_elses_is_shown_to_a_member_without_what_they_may_not_do(
    admin: AsyncClient, house: Any
) -> None:
    run = await house.running_run(await house.automation(schedule={"cron": "0 9 * * *"}))
    pages = (LIST, f"{LIST}/errand", f"/w/default/sessions/{run['session_id']}")
    offered = [str(each.get("action")) for path in pages for each in Page(await admin.get(path)).all("form")]
    assert {each.rsplit("/", 1)[-1] for each in offered} >= {"run", "pause", "delete", "cancel"}
    await house.execute("INSERT INTO users (id, name) VALUES (gen_random_uuid(), 'Somebody else')")
    for table in ("automations", "sessions"):
        await house.execute(f"UPDATE {table} SET owner_id = (SELECT id FROM users WHERE name = 'Somebody else')")
    await house.execute("UPDATE members SET level = 'member'")
    for path in pages:
        page = Page(await admin.get(path))
        actions = [str(each.get("action")) for each in page.all("form")]
        assert not [each for each in actions if "/errand/" in each or "/runs/" in each]
        assert not [each for each in page.all("a") if str(each.get("href")).endswith("/errand/edit")]


# ── Looking again ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_page_whose_login_ended_stays_with_all_that_was_typed(guest: AsyncClient) -> None:
    answer = await guest.get(LIST, headers=live(**{"HX-Current-URL": f"http://rota.test{LIST}?x=1"}))
    assert (answer.status_code, answer.text, answer.headers["HX-Reswap"]) == (401, "", "none")
    assert "HX-Redirect" not in answer.headers


async def test_a_change_by_htmx_is_told_in_place(admin: AsyncClient, house: Any) -> None:
    await house.automation()
    answer = await admin.post(f"{LIST}/errand/run", headers=live(Origin="http://rota.test"))
    assert answer.status_code == 200
    assert "#results" in answer.headers["HX-Trigger"]
    assert "Watch it" in answer.text


# ── The transcript ───────────────────────────────────────────────────────────────────────────────────────────────

PIECES = st.sampled_from(
    ["ab", "c\n", "\x1b[31", "m", "\x1b[0m", "\r", "\n", "\x1b]0;t", "\x07", "\x1b", "\\", "<b>", "\x1b(B", "é", "\x00"]
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("output"), st.lists(PIECES, min_size=1, max_size=4).map("".join), st.just(1)),
        st.tuples(st.just("output"), st.lists(PIECES, min_size=1, max_size=4).map("".join), st.integers(1, 2)),
        st.tuples(st.sampled_from(["tool", "message", "artifact"]), st.just("x"), st.integers(1, 2)),
        st.tuples(st.just("run"), st.sampled_from(["running", "succeeded", "queued"]), st.integers(1, 2)),
        st.tuples(st.just("task"), st.sampled_from(["1 of 12", "2 of 12", "1 of 11", "2 of 11"]), st.just(1)),
    ),
    max_size=24,
)  # fmt: skip
RUN = new_id()


def logged(made: Sequence[tuple[str, str, int]]) -> list[Event]:
    def data(kind: str, text: str) -> dict[str, Any]:
        return {"output": {"text": text}, "tool": {"name": text}, "message": {"from": "planner", "text": text},
                "run": {"status": text}, "task": _of_many(text) if kind == "task" else {}}.get(kind, {})  # fmt: skip

    now = datetime.now(UTC)
    return [Event(seq, kind, RUN, attempt, data(kind, text), now) for seq, (kind, text, attempt) in enumerate(made, 1)]  # type: ignore[arg-type]


def _of_many(place: str) -> dict[str, Any]:
    at, _, count = place.partition(" of ")
    return {"task": "sweep", "role": "worker", "status": "pending", "place": int(at), "of": int(count)}


def test_what_was_said_in_many_pieces_is_joined_at_once() -> None:
    """Piece by piece, ten megabytes took seconds, in which their process did nothing else."""

    class Piece(str):
        __slots__ = ()

        def __add__(self, other: str) -> str:
            raise AssertionError("it copies what is before")

    said = [replace(line, text=Piece(line.text)) for line in lines(logged([("output", each, 1) for each in "abc"]))]
    assert [line.text for line in merged(said)] == ["abc"]


def unfinished(log: Sequence[Event]) -> str:
    told = merged(lines(log))
    return plain(told[-1].text)[1] if told else ""


@settings(max_examples=400)
@given(EVENTS, st.lists(st.integers(0, 1000), min_size=1, max_size=5), st.sampled_from([4, speech.SHOWN_EVENTS]))
@example([("output", "a\x1b[31", 1), ("output", "mb", 1)], [1], 4)
@example([("output", "a\r\x1b[K", 1), ("output", "\nb", 1)], [1], 4)
@example([("output", "a", 1), ("output", "b", 1), ("tool", "x", 1)], [1, 2], speech.SHOWN_EVENTS)
def test_a_page_that_grew_is_the_page_that_is_loaded(
    made: Sequence[tuple[str, str, int]], breaks: list[int], recalled: int
) -> None:
    """Wherever the page was loaded, and wherever the line broke since then; unless what is recalled begins within
    something that only a terminal would obey."""
    log = logged(made)
    loaded, *broken = sorted({each % (len(log) + 1) for each in breaks})
    assume(not any(unfinished(log[: max(0, start - recalled)]) for start in (loaded, *broken)))
    page = [(each.kind, each.text, each.grows) for each in speech.blocks(log[:loaded], live=True)]
    for start, end in pairwise([loaded, *broken, len(log)]):
        told = speech.Teller(log[max(0, start - recalled) : start]).tell(log[start:end])
        if told.continued:
            page[-1] = (page[-1][0], page[-1][1] + told.continued, True)
        if told.finished is not None:
            assert told.finished == page[-1][1]  # what is replaced by its markup is the whole of it
            page[-1] = (*page[-1][:2], False)
        page += [(each.kind, each.text, each.grows) for each in told.blocks]
    whole = [(each.kind, each.text, each.grows) for each in speech.blocks(log, live=True)]
    assert [each[:2] for each in page] == [each[:2] for each in whole]
    if recalled == speech.SHOWN_EVENTS:
        assert page == whole


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("a\x08b\x00c\x7f", "abc"),
        ("  keeps\tits  space\n\n", "  keeps\tits  space\n\n"),
        ("ends in \x1b[3", "ends in "),
    ],
)
def test_what_is_meant_for_a_terminal_is_not_shown(said: str, shown: str) -> None:
    assert plain(said)[0] == shown


async def test_pieces_of_one_attempt_are_one_block(admin: AsyncClient, house: Any) -> None:
    run = await house.running_run(await house.automation())
    for text in ("One ", "two ", "three"):
        await house.write_event(run, text=text)
    await house.write_event(run, "tool", name="search", query="x")
    await house.write_event(run, text="Four")
    page = await admin.get(f"/w/default/sessions/{run['session_id']}")
    assert page.text.count('class="said agent"') == 2
    assert "One two three" in page.text
    assert page.text.count('<details class="words-of-tool">') == 1


class Transcript(Page):
    """What a page says in each of its blocks, by the number of the event it begins with."""

    def __init__(self, response: Response) -> None:
        self.said: dict[int, str] = {}
        self._seq, self._within = 0, ""
        super().__init__(response)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "article":
            self._seq = int(given.get("data-seq") or 0)
            self.said[self._seq] = ""
        if not self._within and {"words", "tool-name"} & set((given.get("class") or "").split()):
            self._within = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._within:
            self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within:
            self.said[self._seq] += data


async def test_the_api_tells_a_session_in_the_words_of_its_page(admin: AsyncClient, house: Any) -> None:
    run = await house.running_run(await house.automation(prompt="Look, then tell."))
    for text in ("\x1b[1mOne\x1b[0m ", "two\r\n", "three"):
        await house.write_event(run, text=text)
    await house.write_event(run, "tool", name="search", query="x")
    await house.write_event(run, text="Four")
    await house.write_event(run, "message", **{"from": "agent", "to": "user", "body": "A whole message."})
    await house.write_event(run, "message", **{"from": "judge", "to": "all", "body": "Another."})
    for status in ("pending", "ready", "done", "failed", "skipped"):
        await house.write_event(run, "task", status=status, task="one", role="judge", reason="timeout", retried=True)
    for status in ("ready", "running"):  # the graph of the tasks shows these
        await house.write_event(run, "task", status=status, task="two", role="judge")
    await house.write_event(run, "approval", status="pending", question="May I?")
    await house.write_event(run, "approval", status="refused", by="Ann", label="Refuse", text="No.")
    await house.write_event(run, "artifact", name="report.md")
    await house.write_event(run, "session", status="done", by="Ann")
    for change in ({"status": "queued", "reason": "lost"}, {"status": "failed", "error_class": "timeout"}):
        await house.write_event(run, "run", **change)
    page = Transcript(await admin.get(f"/w/default/sessions/{run['session_id']}"))
    answer = (await admin.get(f"/api/v1/workspaces/default/sessions/{run['session_id']}/transcript")).json()
    told = {each["seq"]: " ".join(each["text"].split()) for each in answer["items"]}
    assert told == {seq: " ".join(text.split()) for seq, text in page.said.items()}
    assert list(told.values())[:5] == ["Look, then tell.", "One two three", "search", "Four", "A whole message."]
    assert len(told) == 17
    assert "\x1b" not in str(answer)


async def test_a_transcript_is_paged_by_its_events(admin: AsyncClient, house: Any) -> None:
    run = await house.running_run(await house.automation(prompt="Count."))
    for text in ("One ", "two ", "three"):
        await house.write_event(run, text=text)
    path = f"/api/v1/workspaces/default/sessions/{run['session_id']}/transcript"
    first = (await admin.get(path, params={"limit": 2})).json()
    rest = (await admin.get(path, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    told = [(each["seq"], each["speaker"], each["text"]) for each in first["items"] + rest["items"]]
    assert told == [(1, "user", "Count."), (2, "agent", "One "), (3, "agent", "two three")]
    assert rest["next_cursor"] is None
    assert (await admin.get(path, params={"after": 2})).json() == rest


async def test_many_tasks_that_are_added_together_are_one_line(admin: AsyncClient, house: Any) -> None:
    tasks = [{"key": f"sweep-{at}", "role": "worker", "prompt": "Go"} for at in range(230)]
    goal = {"kind": "background", "goal": "A clean house", "roles": [{"name": "worker", "agent": "worker-bee"}]}
    api = "/api/v1/workspaces/default/sessions"
    session = (await admin.post(api, json={**goal, "draft": True})).json()["id"]
    for added in (tasks[:3], tasks[3:]):
        await admin.post(f"{api}/{session}/tasks", json={"tasks": added})
    newest = await admin.get(f"/w/default/sessions/{session}")
    assert Transcript(newest).said == {4: "227 tasks were added."}
    links = [str(each["href"]) for each in Page(newest).all("a") if "before=" in str(each.get("href"))]
    assert links == [f"/w/default/sessions/{session}?before=4"]  # which tells the rest, and not of them again
    earlier = Transcript(await admin.get(links[0])).said
    assert earlier == {seq: f"Task sweep-{seq - 1} was added for the worker." for seq in (1, 2, 3)}
    first = (await admin.get(f"{api}/{session}/transcript", params={"limit": 5})).json()
    assert {each["seq"]: each["text"] for each in first["items"]} == earlier | {4: "227 tasks were added."}
    rest = {"limit": 5, "cursor": first["next_cursor"]}
    assert (await admin.get(f"{api}/{session}/transcript", params=rest)).json() == {"items": [], "next_cursor": None}
    assert await house.value("SELECT count(*) FROM events WHERE kind = 'task'") == 230


@pytest.mark.parametrize("said", [{"place": "1", "of": "x"}, {"of": 3}, {"place": 1, "of": 10**18}])
async def test_a_task_that_was_imported_may_say_anything(admin: AsyncClient, house: Any, said: dict[str, Any]) -> None:
    run = await house.running_run(await house.automation())
    for _ in range(2):
        await house.write_event(run, "task", task="odd", role="judge", status="pending", **said)
    page = await admin.get(f"/w/default/sessions/{run['session_id']}")
    assert page.text.count("Task odd was added for the judge.") == 2


async def test_a_long_transcript_comes_in_parts(admin: AsyncClient, house: Any) -> None:
    run = await house.running_run(await house.automation())
    for number in range(230):
        await house.write_event(run, "tool", name=f"tool-{number}")
    session = f"/w/default/sessions/{run['session_id']}"
    newest = await admin.get(session)
    assert "tool-229" in newest.text
    assert "tool-29<" not in newest.text
    assert 'stream?after=231"' in newest.text
    earlier = next(each["href"] for each in Page(newest).all("a") if "before=" in (each.get("href") or ""))
    before = await admin.get(str(earlier))
    assert "tool-29<" in before.text
    assert "tool-30<" not in before.text
    assert "/stream?after=" not in before.text  # what is past does not grow


async def test_a_page_stays_small_however_much_was_said(admin: AsyncClient, house: Any) -> None:
    run = await house.running_run(await house.automation())
    for number in range(12):
        await house.write_event(run, text=f"[{number}]" + "<a & b> " * 4000)
    newest = await admin.get(f"/w/default/sessions/{run['session_id']}")
    assert "[11]" in newest.text
    assert "Show earlier" in newest.text
    assert len(gzip.compress(newest.content)) < 60_000


async def test_the_stream_resumes_after_the_last_message_it_gave(house: Any, web: Web) -> None:
    run = await house.running_run(await house.automation())
    for text in ("a", "b", "c"):
        await house.write_event(run, text=text)

    async def first(after: int, shown: Sequence[Event] = ()) -> str:
        feed = sessions.messages(web, house.caller, run["session_id"], after, speech.Teller(shown))
        try:
            return (await anext(feed)).decode()
        finally:
            await feed.aclose()

    whole = await first(1)
    assert whole.startswith("id: 4\n")
    assert ">abc<" in whole
    log = logged([("run", "queued", 1), ("output", "a", 1), ("output", "b", 1)])
    said = [Event(each.seq, each.kind, run["id"], each.attempt, each.data, each.created_at) for each in log]
    resumed = await first(3, said)
    assert "said agent" not in resumed  # joined to the block that is open
    assert ">c</hx-partial>" in resumed


async def test_the_stream_goes_on_where_the_browser_says(admin: AsyncClient, house: Any, web: Web) -> None:
    run = await house.ended_run(await house.automation())
    web.closing.set()
    path = f"/w/default/sessions/{run['session_id']}/stream"
    answer = await admin.get(path, params={"after": 0}, headers={"Last-Event-ID": "1"})
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.headers["Cache-Control"] == "no-store"
    assert (await admin.get(path, headers={"Last-Event-ID": "x"})).status_code == 422
    assert (await admin.get(path, params={"after": -1})).status_code == 422


async def test_the_head_follows_the_run(house: Any, web: Web) -> None:
    run = await house.ended_run(await house.automation(), "failed", error_detail="line one\rline two")
    await house.write_event(run, "run", status="failed", error_class="agent_error", error_detail="line one\rline two")
    feed = sessions.messages(web, house.caller, run["session_id"], 1, speech.Teller())
    told = (await anext(feed)).decode()
    await feed.aclose()
    assert 'hx-target="#live"' in told
    assert "Failed" in told
    assert "Retry" in told
    assert all(
        line.startswith(("id: ", "data: ")) for line in told.removesuffix("\n\n").split("\n")
    )  # no line is lost to the parser


# ── Files, words, colours ────────────────────────────────────────────────────────────────────────────────────────


async def test_files_are_kept_forever_under_their_own_version(guest: AsyncClient) -> None:
    for name, media_type in (("rota.css", "text/css"), ("rota.js", "text/javascript"), ("favicon.svg", "image/svg+xml"),
                             ("vendor/htmx.js", "text/javascript")):  # fmt: skip
        address = assets.address(name)
        assert address
        answer = await guest.get(address)
        assert answer.headers["Content-Type"].startswith(media_type)
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.content == assets.assets()[name].body
        assert (await guest.get(address.split("?")[0])).headers["Cache-Control"] == "no-cache"
        assert (await guest.get(address + "0")).headers["Cache-Control"] == "no-cache"
        plain = await guest.get(address, headers={"Accept-Encoding": "identity"})
        assert plain.content == answer.content


@pytest.mark.parametrize("name", ["none.css", "../words.py", "..%2fwords.py", "vendor", "", "%2e%2e/%2e%2e/app.py"])
async def test_nothing_else_is_served(guest: AsyncClient, name: str) -> None:
    assert (await guest.get(f"/static/{name}")).status_code == 404


def test_our_script_is_small() -> None:
    """What every page has, and what the page of a session has beside it."""
    ours, *of_sessions = (len(assets.assets()[name].zipped) for name in ("rota.js", "transcript.js", "answers.js"))
    assert ours < 4600
    assert ours + sum(of_sessions) < 6400


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "now"), (-1, "now"), (5, "in 5 s"), (-59, "59 s ago"), (60, "in 1 min"),
     (-7199, "1 h ago"), (90_000, "in 1 d"), (-8 * 86400, "Sun 8 Nov, 05:00"), (47 * 86400, "Sat 2 Jan 2027, 05:00")],
)  # fmt: skip
def test_times_as_people_tell_them(seconds: int, told: str) -> None:
    now = datetime(2026, 11, 15, 20, tzinfo=UTC)
    assert words.relative(now + timedelta(seconds=seconds), now, "Asia/Tokyo") == told


@pytest.mark.parametrize(
    ("now", "told"),
    [("2026-12-31T14:59", "Fri 1 Jan 2027, 00:30"), ("2026-12-31T15:00", "Fri 1 Jan, 00:30")],
)
def test_a_clock_says_the_year_unless_it_is_this_one_where_it_hangs(now: str, told: str) -> None:
    moment = datetime(2026, 12, 31, 15, 30, tzinfo=UTC)
    assert words.clock(moment, "Asia/Tokyo", datetime.fromisoformat(now).replace(tzinfo=UTC)) == told


async def test_what_is_long_past_is_told_on_the_readers_clock(admin: AsyncClient, house: Any) -> None:
    automation_id = await house.automation({"cron": "0 9 * * *"})
    await house.ended_run(automation_id, started_at=datetime(2020, 3, 1, 22, 5, tzinfo=UTC))
    await house.skip_slot(
        automation_id, SkipReason.MISSED, slot=datetime(2020, 5, 1, tzinfo=UTC),
        missed_count=2, missed_since=datetime(2020, 4, 30, 21, tzinfo=UTC),
    )  # fmt: skip
    admin.cookies.set("rota_zone", "Asia/Tokyo")
    said = re.sub(r"\s+", " ", Page(await admin.get("/w/default/runs")).text)
    assert "Mon 2 Mar 2020, 07:05" in said
    assert "Missed: 3 slots since Fri 1 May 2020, 06:00" in said


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.04, "40 ms"),
        (1.26, "1.3 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (3660, "1 h 1 min"),
        (90_000, "1 d 1 h"),
        (-1, "0 ms"),
    ],
)
def test_lengths_of_time(seconds: float, told: str) -> None:
    assert words.span(timedelta(seconds=seconds)) == told


def test_every_reason_has_words() -> None:
    migration = next(Path(ui.__file__).parents[2].glob("db/migrations/0001*.sql")).read_text()
    for column, known in (("skip_reason", {*SKIPPED, "missed"}), ("error_class", set(FAILED))):
        allowed = re.search(rf"{column}\s+text CHECK \({column} IN \((.*?)\)\)", migration, re.DOTALL)
        assert allowed
        assert set(re.findall(r"'(\w+)'", allowed.group(1))) == known
    for column, known in (("source", set(words.SOURCES)), ("status", set(words.STATUS))):
        allowed = re.search(rf"{column}\s+text NOT NULL CHECK \({column} IN\s+\((.*?)\)\)", migration, re.DOTALL)
        assert allowed
        assert set(re.findall(r"'(\w+)'", allowed.group(1))) <= known


def test_a_strip_tells_outcomes_by_height_too() -> None:
    drawn = dict(re.findall(r'<path class="(\w+)" d="([^"]+)"/>', strip(["skipped", "succeeded"])))
    assert drawn.keys() == {"skipped", "succeeded", "none"}
    assert drawn["skipped"].endswith("v-0")
    assert drawn["succeeded"].endswith("v-12")
    assert 'aria-label="Last 2 runs: 1 skipped, 1 succeeded"' in strip(["skipped", "succeeded"])


def tokens() -> dict[str, tuple[str, str]]:
    style = assets.assets()["rota.css"].body.decode()
    return {
        name: (light, dark) for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)
    }


def luminance(colour: Sequence[float]) -> float:
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def rgb(colour: str) -> list[float]:
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("light", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "ink-soft", "ink-faint", "accent", "good", "bad", "warn", "busy", "idle"])
def test_text_can_be_read_in_both_lights(name: str, light: int) -> None:
    known = tokens()
    colour = rgb(known[name][light])
    for ground in ("paper", "sheet", "sunk"):
        assert contrast(colour, rgb(known[ground][light])) >= 4.5, ground
    washed = [0.1 * tone + 0.9 * sheet for tone, sheet in zip(colour, rgb(known["sheet"][light]), strict=True)]
    assert contrast(colour, washed) >= 4.5


async def test_lists_show_everybodys_or_ones_own(admin: AsyncClient, house: Any) -> None:
    await house.automation(name="Of the admin")
    await house.automation(name="Of another")
    await house.execute("INSERT INTO users (id, name) VALUES (%s, 'Somebody else')", UserId(new_id()))
    await house.execute(
        "UPDATE automations SET owner_id = (SELECT id FROM users WHERE name = 'Somebody else') WHERE name = 'Of another'"
    )
    for place in ("automations", "runs", "sessions"):
        mine = await admin.get(f"/w/default/{place}?owner=me")
        assert mine.status_code == 200
        links = [attrs for tag, attrs in Page(mine).tags if tag == "a" and "owner=me" in (attrs.get("href") or "")]
        assert any(attrs.get("aria-current") for attrs in links)
        assert "Of another" not in mine.text
        assert (await admin.get(f"/w/default/{place}?owner=nobody")).status_code == 422
    assert "Of the admin" in (await admin.get(f"{LIST}?owner=me")).text
    assert "Of another" in (await admin.get(LIST)).text


async def test_the_history_of_a_schedule_of_seconds_shows_its_slots_to_the_second(
    admin: AsyncClient, house: Any
) -> None:
    automation_id = await house.automation({"every": "10s"})
    minute = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=5)
    await house.skip_slot(automation_id, SkipReason.PAUSED, slot=minute)
    shown = re.compile(r'<td data-label="Slot".*?<time[^>]*>([^<]*)</time>')
    assert [told[-6:] for told in shown.findall((await admin.get(f"{LIST}/errand")).text)] == [f" {minute:%H:%M}"]
    await house.skip_slot(automation_id, SkipReason.PAUSED, slot=minute + timedelta(seconds=10))
    for path in (f"{LIST}/errand", "/w/default/runs"):
        times = [told[-8:] for told in shown.findall((await admin.get(path)).text)]
        assert sorted(times) == [f"{minute:%H:%M}:00", f"{minute:%H:%M}:10"]
