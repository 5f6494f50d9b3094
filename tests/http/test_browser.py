"""The pages in a real browser, in front of a real `rota up`. Nothing here waits for time to pass."""

import re
from datetime import datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Any

import psycopg
import pytest
from playwright.async_api import Page, Request, Route, expect

from rota.db.embedded import EmbeddedPostgres
from support.axe import grave

from .conftest import ROTA

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="session")]
expect.set_options(timeout=20_000)

LIST = "/w/default/automations"
CRUSHED = "all => all.filter(each => each.scrollWidth > each.clientWidth + 1 || each.offsetHeight > 24).length"
CLOSE_IS_HEARD = "document.addEventListener('htmx:sse:close', () => { window.closeWasHeard = true })"
# A program that says a line whenever a file with that line's number appears, and ends with the last one.
SPEAKS = r"""
for n in 1 2 3; do
  while [ ! -e "%(gate)s.$n" ]; do sleep 0.02; done
  printf '%(said)s' "$n"
done
"""


def speaker(gate: Path, said: str = "piece %s <b>&amp; ") -> str:
    return SPEAKS % {"gate": gate, "said": said}


def let_speak(gate: Path, number: int) -> None:
    gate.with_name(f"{gate.name}.{number}").touch()


async def remembers(page: Page) -> None:
    """Leaves a mark that a reload would wipe out."""
    await page.evaluate("window.rememberedByTest = true")


async def was_never_reloaded(page: Page) -> bool:
    return bool(await page.evaluate("window.rememberedByTest === true"))


async def arrives(page: Page, title: str) -> None:
    """The page of this title is there, and whole: its first line is seen before its scripts know the rest."""
    await expect(page.locator("h1")).to_have_text(title)
    await page.wait_for_load_state("load")


def start(rota: Any, automation: dict[str, Any]) -> str:
    """Run it now; where its session is."""
    run = rota.api("POST", f"/automations/{automation['slug']}/run")
    return f"/w/default/sessions/{run['session_id']}"


async def test_a_first_start_is_signed_into_by_its_link_and_shows_its_runs(
    running: Any, chromium: Any, tmp_path: Path
) -> None:
    rota = running(tmp_path / "home")
    try:
        context = await chromium.new_context()
        page = await context.new_page()
        await page.goto(rota.link)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page).to_have_url(f"{rota.url}{LIST}")
        await remembers(page)
        row = page.locator("tr", has_text="Disk and memory report")
        await expect(row.locator("td.last")).to_contain_text("Succeeded")  # appears by itself
        await expect(row.locator("td.last")).to_contain_text("All is well")
        assert await was_never_reloaded(page)
        await row.locator("td.last a").click()
        await expect(page.locator(".said.agent .words")).to_contain_text("All is well")
        await expect(page.locator(".banner")).to_contain_text("Started by automation Disk and memory report at")
        stranger = await (await chromium.new_context()).new_page()
        await stranger.goto(rota.link)
        await stranger.get_by_role("button", name="Sign in").click()
        await expect(stranger.locator("h1")).to_have_text("This link no longer works")
        await context.close()
        await stranger.context.close()
    finally:
        rota.stop()


async def test_a_transcript_grows_while_the_agent_speaks(rota: Any, sit: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    address = start(rota, rota.automation("Speaks live", speaker(gate)))
    reader = await sit()
    page = await reader.page(address)
    await remembers(page)
    await expect(page.locator(".heading .pill")).to_have_text("Running")
    words = page.locator(".said.agent .words")
    for number in (1, 2, 3):
        let_speak(gate, number)
        await expect(words).to_have_text("".join(f"piece {n} <b>&amp; " for n in range(1, number + 1)))
        await expect(page.locator(".said.agent")).to_have_count(1)  # one block, however many pieces
    await expect(page.locator(".heading .pill")).to_have_text("Succeeded")
    await expect(page.locator(".said.rota")).to_have_text(re.compile("Done"))
    await expect(page.locator("#tail")).to_be_empty()
    assert await was_never_reloaded(page)
    assert reader.complaints == []
    grown = await page.locator("#transcript").inner_text()
    await page.reload()
    assert await page.locator("#transcript").inner_text() == grown  # the same page when it is loaded whole


LONG = "seq -f 'line %g' 400; "


async def test_what_goes_on_is_followed_and_its_end_is_one_click_away(rota: Any, sit: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    address = start(rota, rota.automation("Speaks at length", LONG + speaker(gate, "piece %s\\n\\n\\n")))
    reader = await sit()
    early = await reader.page(address)  # it may have followed what was said, and a reload stays at the end
    await expect(early.locator(".said.agent .words")).to_contain_text("line 400")
    page = await reader.page(address)
    words, tail = page.locator(".said.agent .words"), page.locator("#tail")
    jump = page.get_by_role("link", name="Jump to latest")
    await expect(tail).to_be_in_viewport()  # what is at work is followed from the start
    assert await page.evaluate("scrollY") > 0
    await page.evaluate("scrollTo(0, 0)")
    await expect(jump).to_be_in_viewport()
    await jump.click()
    await expect(tail).to_be_in_viewport()
    await expect(jump).to_be_hidden()
    for number in (1, 2):
        let_speak(gate, number)
        await expect(words).to_contain_text(f"piece {number}")
        await expect(tail).to_be_in_viewport()
    await page.evaluate("scrollTo(0, 0)")
    await expect(jump).to_be_in_viewport()
    let_speak(gate, 3)
    await expect(page.locator(".heading .pill")).to_have_text("Succeeded")
    await expect(jump).to_be_hidden()  # nothing more is to come


async def test_a_session_that_is_read_does_not_move_by_itself(rota: Any, sit: Any) -> None:
    address = start(rota, rota.automation("Spoke at length", LONG))
    reader = await sit()
    early = await reader.page(address)  # it may have followed what was said, and a reload stays at the end
    await expect(early.locator(".heading .pill")).to_have_text("Succeeded")
    height = await early.evaluate("document.body.scrollHeight")
    page = await reader.page()
    await page.set_viewport_size({"width": 1280, "height": height - 60})  # so little is out of sight that it is the end
    told = "addEventListener('htmx:after:sse:message', () => { document.documentElement.dataset.told = 'yes'; })"
    await page.add_init_script(told)
    await page.goto(rota.url + address)
    await expect(page.locator("html[data-told]")).to_have_count(1)
    assert await page.evaluate("document.body.scrollHeight > innerHeight")
    assert await page.evaluate("scrollY") == 0


async def test_a_line_that_breaks_is_mended_without_gap_or_repeat(
    rota: Any, sit: Any, proxy: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    address = start(rota, rota.automation("Speaks on", speaker(gate, "%s;")))
    reader = await sit()
    async with proxy(int(rota.port)) as line:
        page = await reader.page(address, origin=line.url)
        words = page.locator(".said.agent .words")
        let_speak(gate, 1)
        await expect(words).to_have_text("1;")
        line.cut()
        let_speak(gate, 2)
        await expect(words).to_have_text("1;2;")
        line.cut()
        let_speak(gate, 3)
        await expect(words).to_have_text("1;2;3;")
        await expect(page.locator(".said.rota")).to_have_count(1)
        await expect(page.locator(".said.agent")).to_have_count(1)
        await page.close()


async def test_a_page_goes_on_after_the_server_was_restarted(rota: Any, sit: Any) -> None:
    saved = rota.automation("Goes on", "printf 'again;'", session="same")
    address = start(rota, saved)
    reader = await sit()
    page = await reader.page(address)
    await remembers(page)
    await expect(page.locator(".said.agent .words")).to_have_text(["again;"])
    await expect(page.locator(".heading .pill")).to_have_text("Succeeded")
    rota.stop()
    rota.start()
    start(rota, saved)
    await expect(page.locator(".said.agent .words")).to_have_text(["again;", "again;"])
    await expect(page.locator(".said.rota")).to_have_count(2)
    assert await was_never_reloaded(page)


async def test_a_tab_in_the_background_lets_go_and_catches_up(rota: Any, sit: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    address = start(rota, rota.automation("Speaks unseen", speaker(gate, "%s;")))
    reader = await sit()
    page = await reader.page(address)
    words = page.locator(".said.agent .words")
    let_speak(gate, 1)
    await expect(words).to_have_text("1;")
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.evaluate(hide, True)
    let_speak(gate, 2)
    let_speak(gate, 3)
    await page.evaluate(hide, False)
    await expect(words).to_have_text("1;2;3;")
    await expect(page.locator(".heading .pill")).to_have_text("Succeeded")
    assert reader.complaints == []


async def test_a_run_is_cancelled_and_retried_from_its_page(rota: Any, sit: Any, tmp_path: Path) -> None:
    address = start(rota, rota.automation("Stops", speaker(tmp_path / "never")))
    reader = await sit()
    page = await reader.page(address)
    await expect(page.locator(".heading .pill")).to_have_text("Running")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator(".heading .pill")).to_have_text("Cancelled")
    await expect(page.locator("#notice")).to_contain_text("asked to stop")
    await page.get_by_role("button", name="Retry").click()
    await expect(page).not_to_have_url(re.compile(address))
    await expect(page.locator(".heading .pill")).to_have_text("Running")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator(".heading .pill")).to_have_text("Cancelled")
    assert reader.complaints == []


async def test_the_list_lives(rota: Any, sit: Any) -> None:
    reader = await sit()
    page = await reader.page(LIST)
    await remembers(page)
    rota.automation("Newcomer", "echo hello from the newcomer", schedule={"cron": "0 9 * * *"})
    row = page.locator("tr", has_text="Newcomer")
    await expect(row).to_contain_text("Every day at 09:00")
    await expect(row.locator(".pill")).to_have_text("Active")
    await row.get_by_role("button", name="Run now").click()
    await expect(page.locator("#notice")).to_contain_text("Newcomer is on its way.")
    await expect(row.locator("td.last")).to_contain_text("hello from the newcomer")
    await row.get_by_role("button", name="Pause").click()
    await expect(row.locator(".pill")).to_have_text("Paused")
    await row.get_by_role("button", name="Resume").click()
    await expect(row.locator(".pill")).to_have_text("Active")
    assert await was_never_reloaded(page)
    assert reader.complaints == []


ENDS_AT_ONCE = {"status": 200, "content_type": "text/event-stream", "body": ""}


MAY_BE_OLD, NOT_UPDATED = "what you see may be old", "Too many pages"


@pytest.mark.parametrize(
    ("refusal", "told", "after"),
    [
        ({"status": 503}, MAY_BE_OLD, 2),
        ({"status": 429}, NOT_UPDATED, 1),
        (None, MAY_BE_OLD, 2),
        (ENDS_AT_ONCE, MAY_BE_OLD, 2),
    ],
    ids=["refused", "too many", "no answer", "ends at once"],
)
async def test_a_stream_that_could_not_be_opened_at_first_is_asked_for_again(
    rota: Any, sit: Any, refusal: dict[str, Any] | None, told: str, after: int
) -> None:
    """Between a page and its stream its server may go: the next one takes it."""
    rota.automation(f"Late {refusal}", "true", schedule={"cron": "0 9 * * *"})
    page = await (await sit()).page()
    refused: list[str] = []

    async def refuse(route: Route) -> None:
        refused.append(route.request.url)
        await (route.fulfill(**refusal) if refusal else route.abort())

    await page.route("**/automations?live=*", refuse)
    await page.goto(rota.url + LIST)
    await remembers(page)
    line = page.locator("#line")
    await expect(line).to_have_text(re.compile(told))
    await page.unroute("**/automations?live=*")
    await expect(line).to_be_empty()
    row = page.locator("tr", has_text=f"Late {refusal}")
    rota.api("POST", f"/automations/{rota.api('GET', '/automations')['items'][0]['slug']}/pause")
    await expect(row.locator(".pill")).to_have_text("Paused")
    assert len(refused) >= after
    assert await was_never_reloaded(page)


async def test_an_automation_that_is_deleted_says_so_wherever_it_is_open_and_comes_back(rota: Any, sit: Any) -> None:
    saved = rota.automation("Doomed", "true")
    reader = await sit()
    page, elsewhere = [await reader.page(f"{LIST}/{saved['slug']}") for _ in range(2)]
    for each in (page, elsewhere):
        await remembers(each)
        await expect(each.locator(".heading .switch")).to_have_text("Active")
    await page.get_by_role("button", name="Delete").click()
    for each in (page, elsewhere):
        await expect(each.locator(".heading .pill")).to_have_text("Deleted")
        await expect(each.get_by_role("button", name="Run now")).to_have_count(0)
    await elsewhere.get_by_role("button", name="Restore").click()
    for each in (page, elsewhere):
        await expect(each.locator(".heading .switch")).to_have_text("Active")
        assert await was_never_reloaded(each)
    assert reader.complaints == []


async def test_an_automation_that_was_deleted_while_the_line_was_lost_says_so(rota: Any, sit: Any, proxy: Any) -> None:
    saved = rota.automation("Doomed unseen", "true")
    reader = await sit()
    async with proxy(int(rota.port)) as line:
        page = await reader.page(origin=line.url)
        async with page.expect_response(lambda each: "live=" in each.url):
            await page.goto(f"{line.url}{LIST}/{saved['slug']}")
        await page.route("**/automations/*?live=*", lambda route: route.abort())
        line.cut()
        await expect(page.locator("#line")).to_have_text(re.compile("what you see may be old"))
        rota.api("DELETE", f"/automations/{saved['slug']}")
        await page.unroute("**/automations/*?live=*")
        await expect(page.locator(".heading .pill")).to_have_text("Deleted")
        await expect(page.locator("#line")).to_be_empty()


async def test_an_agent_that_is_deleted_elsewhere_says_so_and_is_asked_for_no_more(rota: Any, sit: Any) -> None:
    config = {"argv": ["true"], "stdin": "none"}
    agent = rota.api("POST", "/agents", {"name": "Leaves", "executor": "command", "config": config})
    page = await (await sit()).page()
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url) if "live=" in each.url else None)
    async with page.expect_response(lambda each: "live=" in each.url):
        await page.goto(f"{rota.url}/w/default/agents/{agent['slug']}")
    await page.evaluate(CLOSE_IS_HEARD)
    rota.api("DELETE", f"/agents/{agent['slug']}")
    await expect(page.locator("#live")).to_have_text(re.compile("There is no such agent"))
    await expect(page.get_by_role("button", name="Run now")).to_be_hidden()
    await page.wait_for_function("() => window.closeWasHeard")
    await expect(page.locator("#line")).to_have_text("What this page shows is gone.")
    assert len(asked) == 2  # once more, which was refused


async def test_a_page_whose_reader_was_signed_out_meanwhile_says_so(rota: Any, sit: Any, proxy: Any) -> None:
    reader = await sit()
    async with proxy(int(rota.port)) as line:
        page = await reader.page(origin=line.url)
        async with page.expect_response(lambda each: "live=" in each.url):
            await page.goto(line.url + LIST)
        await reader.context.clear_cookies()
        line.cut()
        await expect(page.locator("#line")).to_have_text("You are signed out. Sign in")
        await page.get_by_role("link", name="Sign in").click()
        await page.wait_for_url(re.compile("/sign-in[?]next="))


async def test_who_is_signed_out_while_writing_loses_nothing_and_goes_on_once_signed_in(rota: Any, sit: Any) -> None:
    rota.automation("Beside", "true")
    reader = await sit(login=rota.login_of("forgetful"))
    page = await reader.page(f"{LIST}/new")
    await page.get_by_label("Name", exact=True).fill("Written down")
    await reader.context.clear_cookies()
    await page.get_by_label("Prompt", exact=True).fill("Keep this.")  # the preview asks for what it will do
    await expect(page.locator("#line")).to_have_text("You are signed out. Sign in")
    async with page.expect_popup() as beside:
        await page.get_by_role("link", name="Sign in").click()
    await (await beside.value).wait_for_url(re.compile("/sign-in[?]next="))
    await page.get_by_role("button", name="Create automation").click()
    await expect(page.get_by_label("Prompt", exact=True)).to_have_value("Keep this.")
    again = {"name": rota.cookie, "value": rota.login_of("forgetful-again"), "url": rota.url}
    await reader.context.add_cookies([again])
    await page.get_by_role("button", name="Create automation").click()
    await page.wait_for_url(re.compile("/automations/written-down$"))
    assert rota.api("GET", "/automations/written-down")["prompt"] == "Keep this."
    await page.goto(f"{rota.url}{LIST}/written-down/edit")
    async with page.expect_response(re.compile("/preview")):
        await page.get_by_label("Prompt", exact=True).fill("And this.")
    await reader.context.clear_cookies()  # and nothing is asked for until it is saved
    await page.get_by_role("button", name="Save changes").click()
    await expect(page.locator("#line")).to_have_text("You are signed out. Sign in")
    await expect(page.get_by_label("Prompt", exact=True)).to_have_value("And this.")


async def test_a_form_that_is_sent_twice_is_saved_once(rota: Any, sit: Any) -> None:
    rota.automation("Beside", "true")
    page = await (await sit()).page(f"{LIST}/new")
    saved: list[str] = []
    page.on("request", lambda each: saved.append(each.url) if each.method == "POST" and "/new" in each.url else None)
    await page.get_by_label("Name", exact=True).fill("Only one")
    await page.get_by_label("Prompt", exact=True).fill("Be.")
    await page.locator(".editor").evaluate(
        "form => { form.requestSubmit(); setTimeout(() => form.requestSubmit(), 10); }"
    )
    await page.wait_for_url(re.compile("/automations/only-one$"))
    assert len(saved) == 1


async def test_what_is_refused_is_said_in_a_notice(rota: Any, sit: Any, tmp_path: Path) -> None:
    saved = rota.automation("Busy", speaker(tmp_path / "never"))
    start(rota, saved)
    reader = await sit()
    page = await reader.page(f"{LIST}/busy")
    await expect(page.locator(".ledger .pill")).to_have_text(["Running"])
    await page.get_by_role("button", name="Run now").click()
    await expect(page.locator("#notice")).to_contain_text("on its way")
    await page.get_by_role("button", name="Run now").click()
    await expect(page.locator("#notice .bad")).to_contain_text("already queued")
    await expect(page.locator(".ledger .pill")).to_have_text(["Queued", "Running"])
    for run in rota.api("GET", "/automations/busy/runs")["items"]:
        rota.api("POST", f"/runs/{run['id']}/cancel")


async def test_everything_can_be_done_without_javascript(rota: Any, sit: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    rota.automation("Plain", speaker(gate, "%s;"))
    reader = await sit(java_script_enabled=False, login=rota.login_of("plain"))
    page = await reader.page(LIST)
    row = page.locator("tr", has=page.get_by_role("link", name="Plain", exact=True))
    await row.get_by_role("button", name="Pause").click()
    await expect(row.locator(".pill")).to_have_text("Paused")
    await row.get_by_role("button", name="Resume").click()
    await expect(row.locator(".pill")).to_have_text("Active")
    await row.get_by_role("button", name="Run now").click()
    await row.locator("td.last a").click()
    await expect(page.locator("noscript, .banner").first).to_be_visible()
    for number in (1, 2, 3):
        let_speak(gate, number)
    refresh = page.get_by_role("link", name="Refresh")
    for _ in range(200):
        if "Done" in await page.locator("#transcript").inner_text():
            break
        await refresh.click()
    await expect(page.locator(".said.agent .words")).to_have_text("1;2;3;")
    await page.locator(".you summary").click()
    await page.get_by_role("button", name="Dark").click()
    assert await page.locator("html").get_attribute("data-theme") == "dark"
    await page.locator(".you summary").click()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.locator("h1")).to_have_text("Sign in")


def every_page(rota: Any) -> list[str]:
    run = rota.api("GET", "/automations/disk-and-memory-report/runs")["items"][-1]
    session = f"/w/default/sessions/{run['session_id']}"
    one = f"{LIST}/disk-and-memory-report"
    pages = [LIST, one, f"{one}?view=calendar&at=2026-11-15T09:00", f"{one}/edit", f"{LIST}/new", "/w/default/fleet"]
    kinds = [f"/w/default/sessions?kind={kind}" for kind in ("interactive", "background", "automation")]
    kinds += [f"/w/default/sessions/new{each}" for each in ("", "?kind=background")]
    settings = [
        f"/w/default/settings/{each}"
        for each in (
            "me",
            "members",
            "tokens",
            "tokens?shown=all",
            "credentials",
            "grants",
            "grants?shown=all",
            "accounts",
            "workspace",
            "audit",
        )
    ]
    who = [f"/w/default/agents{each}" for each in ("", "/machine-report", "/machine-report/edit")]
    admin = rota.api("GET", "/me")["id"]
    settings += [f"/w/default/settings/grants/{run['grant_id']}", f"/w/default/settings/members/{admin}"]
    told = ["/w/default/notifications", "/w/default/notifications/choices", "/w/default/approvals"]
    around = [*who, *kinds, *settings, *told]
    return [*pages, "/w/default/runs", session, *around, "/sign-in", f"{LIST}/none"]


# How much of what is shown moved without anybody's doing, once the page stands.
MOVED = """
let moved = 0;
new PerformanceObserver((list) => list.getEntries().forEach((each) => { moved += each.value; }))
    .observe({ type: "layout-shift", buffered: true });
const frame = () => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
window.settled = async () => { await frame(); await frame(); return moved; };
"""


def telling(rota: Any) -> list[str]:
    """Sessions with everything in them: tasks as a graph, messages, markup, an artifact, a question."""
    desk = f"{quote(str(ROTA))} desk"
    said = "printf '# Title\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n```\\ncode\\n```\\n'"
    asks = f"{said}; {desk} message --to judge hello; echo text | {desk} artifact - --name a.txt; {desk} ask 'May I?' --key k"
    config = {"argv": ["sh", "-c", asks], "stdin": "none"}
    agent = rota.api("POST", "/agents", {"name": "Does everything", "executor": "command", "config": config})
    tasks = [
        {"key": "one", "role": "planner", "prompt": "Plan."},
        {"key": "two", "role": "judge", "prompt": "Judge.", "depends_on": ["one"]},
    ]
    roles = [{"name": name, "agent": agent["slug"]} for name in ("planner", "judge")]
    session = rota.api(
        "POST", "/sessions", {"kind": "background", "goal": "Everything", "roles": roles, "tasks": tasks}
    )
    while session["id"] not in [each["session_id"] for each in rota.api("GET", "/approvals?status=pending")["items"]]:
        pass  # each look is a request of its own
    left = rota.api("GET", f"/sessions/{session['id']}/artifacts")["items"][0]
    address = f"/w/default/sessions/{session['id']}"
    return [address, f"{address}/artifacts/{left['id']}", "/w/default/approvals"]


@pytest.mark.timeout(600)
async def test_every_page_is_light_fits_a_phone_stands_still_is_dark_for_who_wants_it_and_accessible(
    rota: Any, sit: Any
) -> None:
    """One visit of each page checks all of it."""
    failing = rota.automation("Fails", "echo oops; exit 1", triggers=[{"cron": "0 9 * * *"}, {"webhook": {}}])
    failed = start(rota, failing)
    name = "A name that nobody would ever write but somebody will: " + "Donaudampfschifffahrtsgesellschaft" * 3
    saved = rota.automation(
        name[:200], f"echo {'x' * 600}; exit 3", schedule={"cron": "1,2,3,4,5,6 0-7 1,15 * *"}
    )  # fmt: skip
    run = start(rota, saved)
    reader = await sit(viewport={"width": 360, "height": 740})
    page = await reader.page()
    await (await reader.context.new_cdp_session(page)).send("Network.setCacheDisabled", {"cacheDisabled": True})
    asked: list[Request] = []
    await page.add_init_script(MOVED)
    page.on("requestfinished", lambda request: asked.append(request))  # noqa: PLW0108 — it marks what it is given
    long = (run, f"{LIST}/{saved['slug']}", f"/w/default/agents/{saved['agent_id']}")
    empty = (f"{LIST}?q=nothing-has-this-name", f"{LIST}?status=paused")
    wrong: dict[str, list[str]] = {}
    for path in dict.fromkeys((*telling(rota), *every_page(rota), *long, failed, *empty)):
        await page.set_viewport_size({"width": 360, "height": 740})
        await page.emulate_media(color_scheme="light", reduced_motion="no-preference")
        asked.clear()
        await page.goto(rota.url + path)
        sizes = [await each.sizes() for each in asked]
        assert 4 <= len(sizes) <= 8, path  # the page, its style and its scripts at least: nothing came from a cache
        assert sum(each["responseBodySize"] + each["responseHeadersSize"] for each in sizes) <= 120_000, path
        assert await page.evaluate("settled()") < 0.1, path
        assert await page.evaluate("scrollY") == 0, path
        for width in (360, 720, 1081, 1280):
            await page.set_viewport_size({"width": width, "height": 740})
            wide = await page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, (path, wide)
            assert not await page.locator(".top :is(.workspace, kbd)").evaluate_all(CRUSHED), (path, width)
        for light in ("light", "dark"):
            await page.emulate_media(color_scheme=light)
            ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(int(each) for each in re.findall(r"\d+", ground)) < 200) == (light == "dark"), path
        await page.emulate_media(reduced_motion="reduce")  # axe sees no colour on its way to another
        wrong[path] = await grave(page)
    assert {where: found for where, found in wrong.items() if found} == {}
    assert [each for each in reader.complaints if "404" not in each] == []


async def test_the_next_run_counts_down_by_itself(rota: Any, sit: Any) -> None:
    """By the browser's clock, which this test moves."""
    saved = rota.automation("Counts down", "true", schedule={"cron": "0 9 * * *"})
    due = datetime.fromisoformat(saved["next_fire_at"])
    page = await (await sit()).page()
    await page.clock.install(time=due - timedelta(hours=2))
    await page.goto(rota.url + LIST)
    await remembers(page)
    left = page.locator("tr", has_text="Counts down").locator("td.next time")
    await expect(left).to_have_text("in 1 h")
    await page.clock.pause_at(due - timedelta(seconds=125))
    await expect(left).to_have_text("in 2 min")
    for seconds, told in ((66, "in 59 s"), (30, "in 29 s"), (28, "now"), (61, "1 min ago")):
        await page.clock.run_for(seconds * 1000)
        await expect(left).to_have_text(told)
    assert await was_never_reloaded(page)


async def test_times_are_the_readers_own(rota: Any, sit: Any) -> None:
    reader = await sit(timezone_id="Asia/Tokyo", locale="en-GB")
    page = await reader.page(LIST)
    moment = page.locator("tr", has_text="Weekday digest").locator("td.next time")
    await expect(moment).to_have_attribute("title", re.compile(r"18:00:00 (GMT\+9|JST)"))  # 09:00 UTC


async def test_days_that_are_far_away_are_the_readers_own(rota: Any, sit: Any) -> None:
    rota.automation("Far away", "true", schedule={"at": "2089-12-31T20:00:00Z"})
    page = await (await sit(timezone_id="Asia/Tokyo", locale="en-GB")).page()
    for _ in range(2):  # by our script at first, by the server from then on
        await page.goto(f"{rota.url}{LIST}?q=Far+away")
        await expect(page.locator("td.next time")).to_have_text("Sun 1 Jan 2090, 05:00")
    await page.clock.install(time=datetime.fromisoformat("2090-03-01T00:00:00Z"))
    await page.reload()
    await expect(page.locator("td.next time")).to_have_text("Sun 1 Jan, 05:00")


async def test_the_keyboard_reaches_everything(rota: Any, sit: Any) -> None:
    reader = await sit()
    page = await reader.page(LIST)
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await expect(page.locator(".skip")).to_be_in_viewport()
    await page.locator(".you summary").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Sign out")).not_to_be_visible()
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert await page.evaluate(ring) == "solid"


async def test_who_acts_while_nobody_answers_is_told(rota: Any, sit: Any) -> None:
    rota.automation("Unreachable", "true")
    page = await (await sit()).page(f"{LIST}?q=Unreachable")
    await page.route("**/run", lambda route: route.abort("connectionrefused"))
    row = page.locator("tr", has_text="Unreachable")
    await row.get_by_role("button", name="Run now").click()
    await expect(page.locator("#notice .bad")).to_have_text("Rota does not answer. Try again when it is back.")
    await page.unroute("**/run")
    await row.get_by_role("button", name="Run now").click()
    await expect(page.locator("#notice .good")).to_be_visible()


SNAPSHOTS = """
INSERT INTO snapshots (id, taken_at, host, workers, sessions, running, queued, cpu_percent, memory_mb)
SELECT gen_random_uuid(), now() - interval '1 hour' * ago, 'north', ago, 0, ago, ago, 10 * ago, 800 FROM generate_series(1, 3) AS ago
"""


async def test_charts_show_their_lines(rota: Any, sit: Any) -> None:
    with EmbeddedPostgres(rota.home) as postgres, psycopg.connect(postgres.start(), autocommit=True) as conn:
        conn.execute(SNAPSHOTS)
    page = await (await sit()).page("/w/default/fleet")
    for title, lines in (("Queue depth", 2), ("CPU", 1)):
        drawn = page.locator(".chart", has=page.get_by_role("heading", name=title)).locator("path.line")
        await expect(drawn).to_have_count(lines)
        for each in await drawn.all():
            await expect(each).to_be_visible()


async def test_on_a_phone_the_approvals_are_always_in_sight_and_the_rest_is_in_the_menu(rota: Any, sit: Any) -> None:
    rota.automation("Carried along", "true")
    reader = await sit()
    page = await reader.page(LIST)
    await page.set_viewport_size({"width": 390, "height": 844})
    approvals = page.locator(".places a", has_text="Approvals")
    await expect(approvals).to_be_in_viewport(ratio=1)
    await page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await expect(approvals).to_be_in_viewport(ratio=1)
    await page.locator(".you summary").click()
    await page.locator(".on-phones a", has_text="Fleet").click()
    await expect(page.locator("h1")).to_have_text("Fleet")
    await expect(approvals).to_be_in_viewport(ratio=1)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    assert reader.complaints == []
