"""What people do with automations, in a real browser in front of a real `rota up`. Nothing here waits for time to pass."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Response, expect

from .test_browser import LIST, SPEAKS, arrives, let_speak, remembers, start, was_never_reloaded
from .test_pages import NASTY

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="session")]


def row_of(page: Page, name: str) -> Locator:
    return page.locator("tr", has=page.get_by_role("link", name=name, exact=True))


async def choose(page: Page, kind: str, at: int = 0) -> None:
    await page.locator(f"#trigger-{at} .kinds label", has_text=kind).click()


async def write(page: Page, name: str, agent: str = "Counter") -> None:
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_label("Prompt").fill(f"Do {name}.")
    await page.locator("#agent").select_option(label=agent)


async def test_an_automation_is_made_in_each_mode_with_a_preview_that_follows(rota: Any, sit: Any) -> None:
    reader = await sit(timezone_id="Europe/Berlin", locale="en-GB")
    page = await reader.page(f"{LIST}/new")  # a first visit: the server does not know the browser's zone
    await expect(page.get_by_label("Time zone")).to_have_value("Europe/Berlin")
    await expect(page.locator("#preview .told")).to_have_text("Every weekday at 09:00, Berlin")
    for kind, name in (("Interval", "Made by interval"), ("Weekly", "Made weekly"), ("Cron", "Made by cron")):
        await page.goto(f"{rota.url}{LIST}")
        await page.get_by_role("link", name="New automation").click()
        await arrives(page, "New automation")
        await write(page, name)
        told = page.locator("#preview .told")
        await expect(told).to_have_text("Every weekday at 09:00, Berlin")
        await choose(page, kind)
        match kind:
            case "Interval":
                await expect(told).to_have_text("Every hour at :00")
                await page.get_by_label("Every", exact=True).fill("90")
                await page.get_by_label("Unit").select_option("minutes")
                await expect(told).to_have_text("Every 90 minutes")
            case "Weekly":
                await page.locator(".days label", has_text="Sun").click()
                await page.get_by_label("Time zone").fill("America/New_York")
                await expect(told).to_have_text(re.compile("Sunday.*New York"))
                await expect(page.locator("#preview .fires")).to_contain_text("-05:00")
            case _:
                await page.get_by_label("Cron expression").fill("61 * * * *")
                await expect(page.locator("#preview .error")).to_contain_text("minute")
                await page.get_by_label("Cron expression").fill("30 2 13 * 5")
                await expect(page.locator("#preview .warning").first).to_contain_text("either day field")
        await expect(page.locator("#preview .fires li")).to_have_count(5)
        await page.get_by_role("button", name="Create automation").click()
        await expect(page.locator("h1")).to_have_text(name)
    assert rota.api("GET", "/automations/made-by-interval")["triggers"][0]["schedule"]["every"] == "1h30m"
    assert rota.api("GET", "/automations/made-weekly")["triggers"][0]["editor_mode"] == "weekly"
    assert rota.api("GET", "/automations/made-by-cron")["triggers"][0]["schedule"]["cron"] == "30 2 13 * 5"
    assert reader.complaints == []


async def test_what_is_wrong_stands_beside_its_field_and_what_was_typed_stays(rota: Any, sit: Any) -> None:
    reader = await sit()
    page = await reader.page(f"{LIST}/new")
    await page.get_by_label("Prompt").fill("Something long\nthat must not be lost")
    await choose(page, "Cron")
    await page.get_by_label("Cron expression").fill("every day")
    await page.get_by_role("button", name="Create automation").click()
    await expect(page.locator("#name-error")).to_have_text("Give it a name.")
    await expect(page.locator("[id='triggers.0.cron-error']")).to_be_visible()
    await expect(page.get_by_label("Prompt")).to_have_value("Something long\nthat must not be lost")
    await expect(page.get_by_label("Cron expression")).to_have_value("every day")
    await expect(page.get_by_label("Cron expression")).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Name", exact=True)).to_be_focused()  # the first that is wrong


async def test_triggers_of_other_kinds_are_added_in_place_and_a_webhook_shows_its_secret_once(
    rota: Any, sit: Any
) -> None:
    reader = await sit()
    page = await reader.page(f"{LIST}/new")
    await remembers(page)
    await write(page, "Called")
    await page.get_by_role("button", name="Add another trigger").click()
    await expect(page.locator(".trigger")).to_have_count(2)
    await choose(page, "Webhook", 1)
    await page.get_by_role("button", name="Remove trigger 1").click()
    await expect(page.locator(".trigger")).to_have_count(1)
    await expect(page.get_by_label("Name", exact=True)).to_have_value("Called")
    assert await was_never_reloaded(page)
    await expect(page.locator("#preview .told")).to_have_text(["When its webhook is called"])
    await page.get_by_role("button", name="Create automation").click()
    await expect(page.locator(".secret")).to_contain_text("whsec_")
    await page.get_by_role("link", name="I have it").click()
    await expect(page.locator(".hook pre")).to_contain_text(f"{rota.url}/hooks/")
    await page.goto(f"{rota.url}{LIST}/called")
    await expect(page.get_by_text("whsec_")).to_have_count(0)
    assert reader.complaints == []


async def test_it_is_paused_run_while_paused_resumed_edited_deleted_and_taken_back(rota: Any, sit: Any) -> None:
    rota.automation("Looked after", "echo done as told", schedule={"cron": "0 9 * * *"})
    reader = await sit()
    page = await reader.page(f"{LIST}/looked-after")
    await remembers(page)
    switch = page.get_by_role("switch")
    await expect(switch).to_have_attribute("aria-checked", "true")
    await switch.click()
    await expect(switch).to_have_attribute("aria-checked", "false")
    await expect(switch).to_have_text("Paused")
    await expect(page.locator(".heading .pill")).to_have_count(0)  # the switch says it
    await page.get_by_role("button", name="Run now").click()
    await expect(page.locator(".ledger")).to_contain_text("done as told")
    await expect(switch).to_have_text("Paused")
    await switch.click()
    await expect(switch).to_have_text("Active")
    assert await was_never_reloaded(page)
    await page.get_by_role("link", name="Edit").click()
    await page.get_by_label("Name", exact=True).fill("Looked after well")
    await page.get_by_role("button", name="Save changes").click()
    await expect(page.locator("h1")).to_have_text("Looked after well")
    await page.goto(f"{rota.url}{LIST}")
    row = row_of(page, "Looked after well")
    await row.get_by_role("button", name="Delete").click()
    await expect(row).to_have_count(0)
    await page.locator("#notice").get_by_role("button", name="Undo").click()
    await expect(row.locator(".pill")).to_have_text("Active")
    assert reader.complaints == []


async def test_a_slot_that_was_skipped_says_why_and_the_ledger_answers(rota: Any, sit: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    saved = rota.automation(
        "Overlaps",
        SPEAKS % {"gate": gate, "said": "%s;"},
        triggers=[{"every": "1s", "max_fires": 1}, {"cron": "* * * * *"}],
    )
    reader = await sit(timezone_id="UTC")
    page = await reader.page(f"{LIST}/{saved['slug']}")
    await expect(page.locator(".ledger .pill").first).to_have_text("Running")
    rota.api("PATCH", f"/automations/{saved['slug']}", {"schedule": {"every": "1s"}})
    skipped = page.locator(".ledger tr", has_text="Skipped: the run before was still going")
    await expect(skipped.first).to_be_visible()
    rota.api("POST", f"/automations/{saved['slug']}/pause")
    for number in (1, 2, 3):
        let_speak(gate, number)
    slot = next(
        run["slot"] for run in rota.api("GET", f"/automations/{saved['slug']}/runs")["items"] if run["skip_reason"]
    )
    await page.goto(f"{rota.url}{LIST}/{saved['slug']}?at={slot[:16]}")
    await expect(page.locator(".answer")).to_be_visible()
    await page.get_by_label("At this minute").fill("2001-01-01T09:00")
    await page.get_by_role("button", name="Ask the ledger").click()
    await expect(page.locator(".answer")).to_contain_text("It was not saved yet.")
    await page.get_by_role("link", name="Calendar").click()
    await page.locator(".calendar a").last.click()
    await expect(page.locator("#history")).to_contain_text("Runs of")
    await expect(page.locator(".ledger .pill").first).to_be_visible()
    assert reader.complaints == []


async def test_a_starter_opens_the_editor_filled_in_and_a_search_finds_as_one_types(rota: Any, sit: Any) -> None:
    rota.automation("Needle in hay", "true")
    reader = await sit()
    page = await reader.page(f"{LIST}/new?starter=report")
    await expect(page.get_by_label("Name", exact=True)).to_have_value("Friday report")
    await expect(page.locator("#preview .told")).to_contain_text("Every Friday at 16:00")
    await page.goto(f"{rota.url}{LIST}")
    await remembers(page)
    await page.get_by_label("Search automations").press_sequentially("needle in h")
    await expect(page.locator(".roster tbody tr")).to_have_count(1)
    rota.api("POST", "/automations/needle-in-hay/pause")
    await expect(page.locator(".roster .pill")).to_have_text("Paused")  # what was found stays live
    await page.get_by_label("Search automations").fill("nobody is called so")
    await expect(page.locator(".blank")).to_contain_text("No automation is called")
    assert await was_never_reloaded(page)
    await page.get_by_label("Search automations").fill("needle in h")
    await page.wait_for_url(re.compile("q=needle"))
    paused = page.get_by_role("link", name="Paused", exact=True)
    await expect(paused).to_have_attribute("href", re.compile("status=paused&q=needle"))
    await page.get_by_role("link", name="Needle in hay", exact=True).click()
    await arrives(page, "Needle in hay")
    await page.go_back()  # to what was found
    await expect(page.get_by_label("Search automations")).to_have_value("needle in h")
    await expect(page.locator(".roster tbody tr")).to_have_count(1)
    await paused.click()
    await page.wait_for_url(re.compile("status=paused"))
    await expect(page.get_by_label("Search automations")).to_have_value("needle in h")
    await expect(row_of(page, "Needle in hay")).to_be_visible()
    assert reader.complaints == []


async def test_everything_about_a_row_can_be_done_by_keyboard(rota: Any, sit: Any) -> None:
    rota.automation("By keys", "echo by keys", schedule={"cron": "0 9 * * *"})
    reader = await sit()
    page = await reader.page(LIST)
    press = page.keyboard.press
    await press("j")  # the newest
    row = page.locator("tr.chosen")
    await expect(row).to_contain_text("By keys")
    await press("p")
    await expect(row_of(page, "By keys").locator(".pill")).to_have_text("Paused")
    await press("r")
    await expect(row_of(page, "By keys").locator("td.last")).to_contain_text("by keys")
    await press("j")
    await expect(row).not_to_contain_text("By keys")
    await press("k")
    await expect(row).to_contain_text("By keys")
    await row.evaluate("(row) => row.replaceWith(row.cloneNode(true))")  # drawn anew, as when its run has ended
    await press("Enter")
    await arrives(page, "By keys")
    await press("e")
    await arrives(page, "Edit automation")
    await page.locator("body").press("g")
    await press("f")
    await arrives(page, "Fleet")
    await press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    await press("Escape")
    await press("Control+k")
    await page.keyboard.type("by ke")
    await expect(page.locator("#found a")).to_contain_text(["By keys"])
    await press("Enter")
    await arrives(page, "By keys")
    await press("Control+k")
    await page.keyboard.type("New auto")
    await press("Escape")
    await page.goto(f"{rota.url}{LIST}")
    await press("/")
    await expect(page.get_by_label("Search automations")).to_be_focused()
    await page.keyboard.type("n")  # a letter, not a command
    await expect(page.get_by_label("Search automations")).to_have_value("n")
    assert reader.complaints == []


async def test_an_automation_is_made_edited_and_deleted_without_javascript(rota: Any, sit: Any) -> None:
    reader = await sit(java_script_enabled=False)
    page = await reader.page(f"{LIST}/new")
    await write(page, "Plainly made")
    await page.get_by_role("button", name="Add another trigger").click()
    await choose(page, "Event", 1)
    await page.get_by_label("Name of the event").nth(1).fill("ship.it")
    await page.get_by_role("button", name="Preview").click()
    await expect(page.locator("#preview .told").nth(1)).to_have_text("On the event “ship.it”")
    await page.get_by_role("button", name="Create automation").click()
    await expect(page.locator("h1")).to_have_text("Plainly made")
    await page.get_by_role("link", name="Edit").click()
    await page.get_by_label("Prompt").fill("Changed plainly.")
    await page.get_by_role("button", name="Save changes").click()
    await expect(page.locator(".prose")).to_have_text("Changed plainly.")
    await page.get_by_role("button", name="Delete").click()
    await expect(page.locator(".notice.standing")).to_contain_text("Plainly made is deleted.")
    await page.get_by_role("button", name="Undo").click()
    await expect(row_of(page, "Plainly made")).to_be_visible()
    await page.get_by_label("Search automations").fill("plainly")
    await page.get_by_label("Search automations").press("Enter")
    await expect(page.locator(".roster tbody tr")).to_have_count(1)


async def test_script_in_any_field_runs_nowhere(rota: Any, sit: Any) -> None:
    reader = await sit()
    page = await reader.page(f"{LIST}/new")
    ran: list[str] = []

    async def dismissed(dialog: Any) -> None:
        ran.append(dialog.message)
        await dialog.dismiss()

    page.on("dialog", dismissed)
    await choose(page, "Event")
    await page.locator("details.more-of").evaluate_all("all => all.forEach(each => each.open = true)")
    typed = page.locator("form.editor :is(input[type=text], textarea)")
    for at in range(await typed.count()):
        if await typed.nth(at).is_visible():
            await typed.nth(at).fill(NASTY)
    await page.get_by_role("button", name="Create automation").click()
    await expect(page.locator("#errors")).to_be_visible()
    await expect(page.get_by_label("Name", exact=True)).to_have_value(NASTY)
    saved = rota.automation(
        NASTY, f"cat <<'X'\n{NASTY}\nX", schedule={"cron": "0 9 * * *"}, prompt=NASTY, input={NASTY: NASTY}
    )
    session = start(rota, saved)
    await page.goto(rota.url + session)
    await expect(page.locator(".said.agent .words")).to_contain_text("<script>alert(1)</script>")
    one = f"{LIST}/{saved['slug']}"
    for path in (LIST, one, f"{one}/edit", f"{one}?view=calendar", "/w/default/runs", f"{LIST}?q={NASTY}"):
        await page.goto(rota.url + path)
        await page.wait_for_load_state("load")
        assert await page.locator("img").count() == 0
    await page.keyboard.press("Control+k")
    await expect(page.locator("#found")).to_contain_text("<script>alert(1)</script>")
    assert ran == []
    assert [each for each in reader.complaints if "422" not in each] == []


FORMS = (
    "settings/me", "settings/members", "settings/tokens", "settings/credentials", "settings/accounts", "notifications/choices",
    "sessions", "automations/remembers", "agents/machine-report", "agents/new?kind=command",
)  # fmt: skip
FILL = """(text) => {
    const forms = [...document.querySelectorAll("main form[method=post]")].map((form) => {
        const all = [...form.querySelectorAll("input[type=text], input[type=email], input[type=url], textarea")];
        return [form, all.filter((each) => !each.closest("[hidden]"))];
    });
    for (const [form, fields] of forms) {
        form.noValidate = true;
        for (const each of fields) each.value = each.type === "email" ? `"${text}"@example.com` : text;
    }
    return forms.map(([form, fields], at) => [at, fields.length, form.getAttribute("action")]).filter(([, length]) => length);
}"""


AWAITS = """(form) => {
    document.documentElement.dataset.answer = "awaited";
    document.addEventListener("htmx:finally:request", (event) => {
        if (event.detail.ctx.request.method === "POST") document.documentElement.dataset.answer = "shown";
    });
    form.requestSubmit();
}"""


async def submit(page: Page, form: Locator) -> Response:
    """Send a form, and wait until the page shows the answer, in place or as the page that it leads to."""
    async with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await form.evaluate(AWAITS)
    answer = await answered.value
    leads_on = answer.status == 303 or not {"hx-redirect", "hx-refresh"}.isdisjoint(answer.headers)
    await expect(page.locator("[data-answer]" if leads_on else "[data-answer=awaited]")).to_have_count(0)
    await page.wait_for_load_state("load")
    return answer


async def test_script_in_the_fields_of_every_other_form_runs_nowhere(rota: Any, sit: Any) -> None:
    saved = rota.automation("Remembers", "true")
    rota.api("PUT", f"/automations/{saved['slug']}/memory/last", {"value": 1})
    reader = await sit()
    page = await reader.page()
    ran: list[str] = []

    async def dismissed(dialog: Any) -> None:
        ran.append(dialog.message)
        await dialog.dismiss()

    page.on("dialog", dismissed)
    sent = 0
    for path in FORMS:
        await page.goto(f"{rota.url}/w/default/{path}")
        for at, _, action in await page.evaluate(FILL, NASTY):
            await page.goto(f"{rota.url}/w/default/{path}")
            await page.evaluate(FILL, NASTY)
            answer = await submit(page, page.locator("main form[method=post]").nth(at))
            assert answer.status < 500, action
            sent += 1
    assert sent >= len(FORMS)
    rota.api("PATCH", "/me", {"name": "Local admin"})
    for path in (*FORMS, "settings/audit", "settings/tokens?shown=all"):
        await page.goto(f"{rota.url}/w/default/{path}")
        assert await page.locator("img, main script, [onerror], a[href^=javascript]").count() == 0, path
    assert ran == []
    assert [each for each in reader.complaints if "CSP" in each] == []


async def test_a_first_visit_says_times_in_the_readers_zone_without_moving_anything(rota: Any, sit: Any) -> None:
    saved = rota.automation("Timely", "true", schedule={"cron": "0 9 * * *", "timezone": "UTC"})
    run = rota.api("POST", f"/automations/{saved['slug']}/run")
    rota.rest()  # what a run adds while it goes on may move what is below
    reader = await sit(timezone_id="Asia/Tokyo", locale="en-GB")
    page = await reader.page()
    await page.add_init_script(
        "window.moved = 0; new PerformanceObserver(list => list.getEntries().forEach(each => { moved += each.value; }))"
        ".observe({ type: 'layout-shift', buffered: true });"
    )
    texts = []
    for _ in range(2):  # by our script at first, by the server from then on
        await page.goto(f"{rota.url}/w/default/sessions/{run['session_id']}")
        texts.append(await page.locator(".banner time").inner_text())
        assert await page.evaluate("window.moved") < 0.02
    assert texts[0] == texts[1]
    assert await page.locator("html").get_attribute("data-zone") == "Asia/Tokyo"


async def test_a_failure_rings_the_bell_which_leads_to_the_session_and_its_retry(rota: Any, sit: Any) -> None:
    saved = rota.automation("Rings", "echo no water; exit 3")
    rota.rest()
    rota.api("POST", "/notifications/read")
    reader = await sit()
    page = await reader.page(LIST)
    earlier = rota.api("GET", "/runs?status=succeeded")["items"][0]["session_id"]
    others = [await reader.page(path) for path in (f"/w/default/sessions/{earlier}", f"{LIST}/new")]
    for each in (page, *others):
        await remembers(each)
        await expect(each.locator("#bell .count")).to_have_count(0)
    rota.api("POST", f"/automations/{saved['id']}/run")
    for each in (page, *others):  # whatever they show besides
        await expect(each.locator("#bell .count")).to_have_text("1 unread")
        assert await was_never_reloaded(each)
    for each in others:
        await each.close()
    await page.locator("#bell").click()
    await expect(page.locator("h1")).to_have_text("Notifications")
    news = page.locator(".news li", has_text="Rings failed")
    await expect(news).to_have_class(re.compile("fresh"))
    await news.get_by_role("link", name="Rings failed").click()
    await expect(page.locator("h1")).to_have_text("Rings")
    await expect(page.locator(".trouble")).to_contain_text("The agent failed")
    first = page.url
    await page.get_by_role("button", name="Retry").click()
    await page.wait_for_url(lambda url: url != first and "/sessions/" in url)
    await page.goto(f"{rota.url}/w/default/notifications")
    again = page.locator(".news li", has_text="Rings failed")
    await expect(again).to_have_count(2)  # the first was read by following it; the retry failed anew
    await expect(again.nth(1)).not_to_have_class(re.compile("fresh"))
    assert reader.complaints == []


async def test_a_grant_is_revoked_and_what_ran_on_it_stops_until_it_is_renewed(
    rota: Any, sit: Any, tmp_path: Path
) -> None:
    saved = rota.automation("On a grant", SPEAKS % {"gate": tmp_path / "never", "said": "%s"}, schedule={"every": "1s"})
    reader = await sit()
    session = await reader.page(start(rota, saved))
    await expect(session.locator(".heading .pill")).to_have_text("Running")
    page = await reader.page("/w/default/settings/grants")
    row = page.locator("tr", has_text="On a grant")
    await row.get_by_role("link", name="Revoke").click()
    await expect(page.locator("main")).to_contain_text("One run stops now")
    await page.get_by_role("button", name="Revoke grant").click()
    await expect(row.locator(".pill")).to_have_text("Revoked")
    await expect(session.locator(".heading .pill")).to_have_text("Failed")
    await expect(session.locator(".trouble")).to_contain_text("grant")
    ledger = await reader.page(f"{LIST}/{saved['slug']}")
    await expect(ledger.locator(".ledger tr", has_text="grant was revoked").first).to_be_visible()
    await row.get_by_role("button", name="Renew").click()
    await expect(row.locator(".pill")).to_have_text("Valid")
    await expect(ledger.locator(".ledger .pill").first).to_have_text("Running")
    rota.api("DELETE", f"/automations/{saved['slug']}")
    for run in rota.api("GET", f"/automations/{saved['id']}/runs")["items"]:
        if run["finished_at"] is None:
            rota.api("POST", f"/runs/{run['id']}/cancel")
    assert reader.complaints == []


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until the control of this name has the focus."""
    for _ in range(120):
        await page.keyboard.press("Tab")
        found = await page.evaluate(
            "(e => e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText)(document.activeElement)"
        )
        if (found or "").strip().split("\n")[0].startswith(name):
            return
    raise AssertionError(f"Tab never reached {name!r}")


async def test_an_automation_is_made_looked_after_and_deleted_by_keyboard_alone(rota: Any, sit: Any) -> None:
    """From page to page by the letters that the help tells, through forms by Tab; no pointer anywhere."""
    reader = await sit()
    page = await reader.page(LIST)
    press, write_down = page.keyboard.press, page.keyboard.type
    await press("n")
    await arrives(page, "New automation")
    await tab_to(page, "Name")
    await write_down("Made by keys")
    await tab_to(page, "Prompt")
    await write_down("Do it by keys.")
    await tab_to(page, "Weekly")  # the kinds are one group, through which the arrows lead
    await press("ArrowLeft")
    await expect(page.locator("#preview .told")).to_have_text("Every hour at :00")
    await tab_to(page, "Create automation")
    await press("Enter")
    await arrives(page, "Made by keys")
    await tab_to(page, "Active")
    await press("Enter")
    await expect(page.get_by_role("switch")).to_have_text("Paused")
    await expect(page.get_by_role("switch")).to_be_focused()  # one stays where one acts, whatever came anew
    for letter, title in (("r", "Runs"), ("c", "Sessions"), ("p", "Approvals"), ("f", "Fleet"), ("b", "Notifications")):
        await press("g")
        await press(letter)
        await arrives(page, title)
    await press("g")
    await press("s")
    await page.wait_for_url(re.compile("/settings/"))
    await press("g")
    await press("a")
    await arrives(page, "Automations")
    await tab_to(page, "Resume: Made by keys")
    await press("Enter")
    pause = page.get_by_role("button", name="Pause: Made by keys")
    await expect(pause).to_be_focused()
    await press("Enter")
    await expect(page.get_by_role("button", name="Resume: Made by keys")).to_be_focused()
    await page.get_by_role("button", name="Resume: Made by keys").evaluate("each => each.blur()")
    await press("j")
    await expect(page.locator("tr.chosen")).to_contain_text("Made by keys")
    await press("Enter")
    await arrives(page, "Made by keys")
    await tab_to(page, "Delete")
    await press("Enter")
    await expect(page.locator("#notice")).to_contain_text("Made by keys is deleted.")
    assert reader.complaints == []
