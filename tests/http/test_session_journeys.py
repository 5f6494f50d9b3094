"""What people do in sessions, in a real browser in front of a real `rota up`. Nothing here waits for time to pass."""

import json
import re
import struct
import sys
import zlib
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from playwright.async_api import Dialog, Page, expect

from .test_browser import let_speak, remembers, start, was_never_reloaded
from .test_pages import NASTY

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="session")]

SESSIONS = "/w/default/sessions"
DESK = f"{quote(str(Path(sys.executable).with_name('rota')))} desk"
# What a pointer finds where the last question has just come to stand.
WHAT_IS_LEFT = """document.addEventListener("htmx:after:swap", () => setTimeout(() => {
  const left = document.querySelectorAll("#tail .question");
  if (left.length === 1) window.left ??= getComputedStyle(left[0].querySelector("button")).pointerEvents;
}))"""
EVIL = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>"


def agent(rota: Any, name: str, script: str) -> str:
    config = {"argv": ["sh", "-c", script], "stdin": "none"}
    return str(rota.api("POST", "/agents", {"name": name, "executor": "command", "config": config})["slug"])


def when(gate: Path, number: int | str, then: str) -> str:
    """A piece of a script that waits for a file."""
    return f'while [ ! -e "{gate}.{number}" ]; do sleep 0.02; done; {then}\n'


def png(side: int = 2) -> bytes:
    """A small picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\x30\x50\xc0" * side) * side
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


async def watched(page: Page) -> list[str]:
    """Dialogs that a page opens."""
    opened: list[str] = []

    async def close(dialog: Dialog) -> None:
        opened.append(dialog.message)
        await dialog.dismiss()

    page.on("dialog", close)
    return opened


async def test_a_conversation_is_begun_gone_on_with_ended_and_put_away(rota: Any, sit: Any) -> None:
    agent(rota, "Parrot", "printf '**Bold** words and `code`\\n\\n- one\\n- two\\n'")
    reader = await sit()
    page = await reader.page(SESSIONS)
    await page.locator("#agent").select_option(label="Parrot")
    await page.get_by_label("Prompt").fill("Say something bold")
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator("h1")).to_have_text("Say something bold")
    await remembers(page)
    await expect(page.locator(".said.agent .md strong")).to_have_text("Bold")  # markup once it is finished
    await expect(page.locator(".said.agent .md li")).to_have_text(["one", "two"])
    box = page.get_by_label("Message")
    opened = await watched(page)
    await box.fill(f"And again? {EVIL}")
    await box.press("Control+Enter")
    await expect(page.locator(".said.user .words")).to_have_text(["Say something bold", f"And again? {EVIL}"])
    await expect(page.locator(".said.agent .md strong")).to_have_text(["Bold", "Bold"])
    await expect(box).to_have_value("")
    assert opened == []
    assert not await page.evaluate("window.pwned")
    assert await was_never_reloaded(page)
    async with page.expect_navigation():  # what can be done with it has changed, so the page is loaded anew
        await page.get_by_role("button", name="Complete").click()
    await expect(page.get_by_role("button", name="Complete")).to_have_count(0)
    async with page.expect_navigation():
        await page.get_by_role("button", name="Archive").click()
    await expect(page.locator(".heading .pill")).to_have_text("Archived")
    await expect(page.get_by_label("Message")).to_have_count(0)
    await page.goto(f"{rota.url}{SESSIONS}?status=archived")
    await expect(page.get_by_role("link", name="Say something bold", exact=True)).to_be_visible()
    assert reader.complaints == []


async def test_a_graph_of_tasks_changes_while_they_are_done(rota: Any, sit: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    for role in ("planner", "builder", "judge"):
        agent(
            rota, f"Graph {role}", when(gate, role, f"{DESK} message --to judge 'ready for you'; echo {role} was here")
        )
    body = {
        "kind": "background",
        "goal": f"Ship it {EVIL}",
        "roles": [{"name": role, "agent": f"graph-{role}"} for role in ("planner", "builder", "judge")],
        "tasks": [
            {"key": "plan", "role": "planner", "prompt": "Plan."},
            {"key": "build", "role": "builder", "prompt": EVIL, "depends_on": ["plan"]},
            {"key": "check", "role": "judge", "prompt": "Judge.", "depends_on": ["plan", "build"]},
        ],
    }
    session = rota.api("POST", "/sessions", body)
    reader = await sit()
    page = await reader.page(f"{SESSIONS}/{session['id']}")
    await remembers(page)
    node = page.locator(".graph .node")
    await expect(node).to_have_count(3)
    await expect(page.locator(".graph path")).to_have_count(3)
    for role, key in (("planner", "plan"), ("builder", "build"), ("judge", "check")):
        this = page.locator(".graph .node", has_text=key).first
        await expect(this).to_have_class("node running")
        await expect(page.locator("#tail .at-work")).to_have_text(f"{role} is at work")
        gate.with_name(f"{gate.name}.{role}").touch()
        await expect(this).to_have_class("node succeeded")
    await expect(page.locator(".heading .pill")).to_have_text("Done")
    await expect(page.locator(".said.message h2").first).to_contain_text("planner")
    await expect(page.locator(".said.message .to").first).to_have_text("to judge")
    await expect(page.locator(".said.agent:not(.message) h2").first).to_contain_text("planner")  # not “Agent”
    assert await was_never_reloaded(page)
    assert reader.complaints == []
    grown = await page.locator("#tasks").inner_text()
    await page.reload()
    assert await page.locator("#tasks").inner_text() == grown


async def test_a_goal_is_given_and_more_is_added_to_it(rota: Any, sit: Any) -> None:
    slug = agent(rota, "Asks before it helps", f"{DESK} ask 'May I?' --key may")
    reader = await sit()
    page = await reader.page(f"{SESSIONS}?kind=background")
    await page.get_by_role("link", name="New session").click()
    await page.get_by_label("Goal").fill("\n".join(f"Line {at}" for at in range(40)))
    await page.locator("[name='roles.0.agent']").select_option(slug)
    await page.get_by_role("button", name="Add another role").click()
    second = page.locator("[name='roles.1.name']")
    await expect(second).to_be_focused()
    await second.fill("worker")
    await page.locator("[name='roles.1.agent']").select_option(slug)
    await page.locator("[name='tasks.0.prompt']").fill("Begin.")
    await page.locator("[name='tasks.0.key']").fill("begin")
    await page.get_by_role("button", name="Start", exact=True).click()
    await expect(page.locator("[id='roles.1.name-new-error']")).to_contain_text("has a role 'worker' already")
    await expect(second).to_be_focused()
    await second.fill("judge")
    await page.get_by_role("button", name="Start", exact=True).click()
    await expect(page.locator("h1")).to_contain_text("Line 0")
    assert [each for each in reader.complaints if "409" not in each] == []
    goal = page.locator(".goal-of")
    folded = (await goal.bounding_box() or {})["height"]
    await page.locator(".goal-box summary").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator(".goal-box summary")).to_have_text(re.compile("Show less"))
    assert (await goal.bounding_box() or {})["height"] > 3 * folded
    await page.get_by_text("Add a task").click()
    await page.locator("[name='tasks.0.role']").select_option("judge")
    await page.get_by_label("After").fill("begun")
    await page.locator("#adding [name='tasks.0.prompt']").fill("Judge.")
    await page.get_by_role("button", name="Add task").click()
    await expect(page.locator("[id='tasks.0.depends_on-task-error']")).to_contain_text("There is no task 'begun'")
    await page.get_by_label("After").fill("begin")
    await page.get_by_role("button", name="Add task").click()
    await expect(page.locator(".graph .node")).to_have_count(2)
    while not await page.locator(".graph .awaiting_approval").count():
        await page.reload()
    await page.get_by_role("link", name="Answer begin").click()
    await expect(page.locator("#tail .question")).to_be_in_viewport()
    rota.rest()


async def test_a_goal_is_paused_and_goes_on(rota: Any, sit: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    agent(rota, "Slow step", when(gate, 1, "echo stepped"))
    tasks = [
        {"key": "first", "role": "worker", "prompt": "Go."},
        {"key": "second", "role": "worker", "prompt": "Go.", "depends_on": ["first"]},
    ]
    body = {
        "kind": "background",
        "goal": "Step by step",
        "roles": [{"name": "worker", "agent": "slow-step"}],
        "tasks": tasks,
    }
    session = rota.api("POST", "/sessions", body)
    reader = await sit()
    page = await reader.page(f"{SESSIONS}/{session['id']}")
    await expect(page.locator(".graph .running")).to_have_count(1)
    async with page.expect_navigation():
        await page.get_by_role("button", name="Pause").click()
    await expect(page.locator(".heading .pill")).to_have_text("Paused")
    let_speak(gate, 1)
    await expect(page.locator(".graph .succeeded")).to_have_count(1)
    async with page.expect_navigation():
        await page.get_by_role("button", name="Resume").click()
    await expect(page.locator(".heading .pill")).to_have_text("Done")


async def test_a_question_is_answered_in_place_and_a_note_survives_what_comes_meanwhile(rota: Any, sit: Any) -> None:
    ask = f"""{DESK} ask {quote("Send it? " + EVIL)} --detail {quote('{"to": "everybody"}')} --key send \
        --option send=Send --option keep=!Keep > answer; cat answer"""
    saved = rota.automation("Asks first", ask)
    rota.rest()
    reader = await sit()
    address = start(rota, saved)
    page = await reader.page(address)
    opened = await watched(page)
    await remembers(page)
    question, waiting = page.locator("#tail .question"), page.locator("#asked .count")
    await expect(question.locator(".words")).to_have_text("Send it? " + EVIL)
    await expect(page.locator(".heading .pill")).to_have_text("Needs approval")
    await expect(waiting).to_have_text("1 waiting")
    await question.get_by_text("What it is about").click()
    await expect(question.locator("pre")).to_contain_text("everybody")
    await question.get_by_label("Note to the agent").fill(f"Only the short one {EVIL}")
    session = address.rsplit("/", 1)[1]
    rota.api("POST", f"/sessions/{session}/roles", {"name": "helper", "agent": saved["agent_id"]})
    task = {"key": "help", "role": "helper", "prompt": "Help.", "depends_on": []}
    rota.api("POST", f"/sessions/{session}/tasks", {"tasks": [task]})
    await expect(page.locator("#tasks")).to_contain_text("help")  # the page has moved on,
    await expect(question).to_have_count(2)  # and asks once more
    await expect(waiting).to_have_text("2 waiting")
    await expect(question.first.get_by_label("Note to the agent")).to_have_value(f"Only the short one {EVIL}")
    await page.evaluate(WHAT_IS_LEFT)
    await question.first.get_by_role("button", name="Send").click()
    told = page.locator(".said.rota")
    await expect(told.filter(has_text="Approved by Local admin: Send")).to_contain_text(f"“Only the short one {EVIL}”")
    await expect(waiting).to_have_text("1 waiting")
    await expect(question).to_have_count(1)
    assert await page.evaluate("window.left") == "none", "the second click of two would answer what moved under it"
    await expect(question.get_by_label("Note to the agent")).to_have_value("")  # the note went with its question
    await question.get_by_label("Note to the agent").fill("Better not")
    await question.get_by_role("button", name="Keep").click()
    await expect(told.filter(has_text="Refused by Local admin: Keep")).to_contain_text("“Better not”")
    await expect(waiting).to_have_count(0)
    await expect(question).to_have_count(0)
    assert await was_never_reloaded(page)
    assert opened == []
    assert not await page.evaluate("window.pwned")
    assert reader.complaints == []


async def test_a_question_is_answered_by_keyboard_alone_and_without_a_script(rota: Any, sit: Any) -> None:
    saved = rota.automation("Asks by keys", f"{DESK} ask 'May I?' --key may")
    reader = await sit()
    page = await reader.page(start(rota, saved))
    await page.locator("#tail .question").wait_for()
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate(
            "document.activeElement.closest('.question') && document.activeElement.name === 'answer'"
        ):
            break
    await page.keyboard.press("Enter")
    await expect(page.locator(".said.rota", has_text="Approved by")).to_have_count(1)
    plain = await sit(java_script_enabled=False)
    page = await plain.page(start(rota, saved))
    for _ in range(400):
        if await page.locator("#tail .question").count():
            break
        await page.get_by_role("link", name="Refresh").click()
    await page.get_by_label("Note to the agent").fill("No, thanks")
    await page.locator("#tail .question button.ghost").click()
    await expect(page.locator(".said.rota", has_text="Refused by")).to_contain_text("No, thanks")


async def test_artifacts_appear_are_looked_at_in_place_and_saved(rota: Any, sit: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    (tmp_path / "chart.png").write_bytes(png())
    (tmp_path / "report.md").write_text(f"# Report\n\n{EVIL}\n\n- **good**\n")
    (tmp_path / "evil.html").write_text(f"<!doctype html>{EVIL}")
    (tmp_path / "evil.svg").write_text(f"<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned=1'>{EVIL}</svg>")
    leave = " && ".join(
        f"{DESK} artifact {quote(str(tmp_path / name))}" for name in ("chart.png", "report.md", "evil.html", "evil.svg")
    )
    named = f"echo data | {DESK} artifact - --name {quote('<b>&amp; x' + 'y' * 120 + '.txt')}"
    address = start(rota, rota.automation("Leaves things", when(gate, 1, f"{leave} && {named}")))
    reader = await sit(viewport={"width": 360, "height": 740})
    page = await reader.page(address)
    opened = await watched(page)
    await remembers(page)
    await expect(page.locator("#artifacts")).to_be_hidden()
    let_speak(gate, 1)
    await expect(page.locator("#artifacts li")).to_have_count(5)
    await page.get_by_role("link", name="Preview: chart.png").click()
    picture = page.locator("#artifacts img")
    await expect(picture).to_have_js_property("naturalWidth", 2)
    await page.get_by_role("link", name="Preview: report.md").click()
    await expect(page.locator("#artifacts .md strong")).to_have_text("good")
    await expect(page.locator("#artifacts .md")).to_contain_text(EVIL)
    for name in ("evil.html", "evil.svg"):
        await page.get_by_role("link", name=f"Preview: {name}").click()
        await expect(page.locator("#artifacts li", has_text=name).locator("pre")).to_contain_text(EVIL)
    async with page.expect_download() as saving:
        await page.get_by_role("link", name="Download: report.md").click()
    assert (await (await saving.value).path()).read_text().startswith("# Report")
    assert await was_never_reloaded(page)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    assert opened == []
    assert not await page.evaluate("window.pwned")
    assert reader.complaints == []
    source = await picture.get_attribute("src")
    shown = await page.request.get(rota.url + str(source))
    assert shown.headers["content-type"] == "image/png"
    assert "sandbox" in shown.headers["content-security-policy"]
    assert shown.headers["x-content-type-options"] == "nosniff"
    for name in ("evil.html", "evil.svg", "report.md"):
        href = await page.get_by_role("link", name=f"Preview: {name}").get_attribute("href")
        assert (await page.request.get(f"{rota.url}{href}/image")).status == 404


async def test_nothing_that_is_written_anywhere_runs(rota: Any, sit: Any) -> None:
    said = EVIL.replace('"', "'") + "[x](javascript:window.pwned=1)"
    script = f"""
    echo '{{"type": "say", "text": {_json(said)}}}'
    echo '{{"type": "tool", "name": {_json(EVIL)}, "query": {_json(NASTY)}}}'
    {DESK} message {quote(said)}
    echo '{{"type": "error", "detail": {_json(EVIL)}}}'
    """
    config = {"argv": ["sh", "-c", script], "stdin": "none"}
    rota.api("POST", "/agents", {"name": f"Evil {EVIL}", "slug": "evil", "executor": "command", "config": config})
    saved = rota.api(
        "POST", "/automations", {"name": f"Evil {EVIL}", "agent": "evil", "prompt": EVIL, "slug": "evil-one"}
    )
    rota.api("PUT", "/automations/evil-one/memory/last", {"value": EVIL})
    rota.api("POST", "/credentials", {"name": "evil", "value": "never-shown-at-all", "description": EVIL})
    evil = rota.api("POST", "/members", {"email": "evil@example.org", "name": EVIL, "level": "viewer"})
    rota.api("POST", "/tokens", {"name": EVIL, "scopes": ["read"]})
    address = start(rota, saved)
    session = rota.api("POST", "/sessions", {"agent": "evil", "prompt": EVIL, "title": EVIL})
    reader = await sit()
    page = await reader.page(address)
    opened = await watched(page)
    await expect(page.locator(".heading .pill")).to_have_text("Failed")
    for path in (
        address, f"{SESSIONS}/{session['id']}", SESSIONS, f"{SESSIONS}?kind=automation", "/w/default/runs",
        "/w/default/automations", "/w/default/automations/evil-one", "/w/default/settings/credentials",
        "/w/default/settings/grants", "/w/default/settings/grants?shown=all", "/w/default/settings/audit",
        f"/w/default/settings/grants/{saved['grant_id']}", "/w/default/settings/members",
        f"/w/default/settings/members/{evil['id']}", "/w/default/settings/tokens", "/w/default/settings/me",
    ):  # fmt: skip
        await page.goto(rota.url + path)
        await page.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")
        assert await page.locator("img, main script, [onerror], a[href^=javascript]").count() == 0, path
        assert not await page.evaluate("window.pwned"), path
    assert opened == []
    assert [each for each in reader.complaints if "CSP" in each] == []


def _json(text: str) -> str:
    return json.dumps(text).replace("'", "'\\''")


async def test_a_page_stays_light_however_much_is_said_and_goes_back_as_one_scrolls(
    rota: Any, sit: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    flood = """i=0; while [ $i -lt 1500 ]; do echo '{"type": "tool", "name": "look", "at": '$i'}'; i=$((i+1)); done"""
    address = start(rota, rota.automation("Floods", when(gate, 1, flood)))
    reader = await sit()
    page = await reader.page(address)
    await remembers(page)
    lines, earlier = page.locator("#transcript > *"), page.locator("#earlier")
    await expect(earlier).to_be_hidden()
    let_speak(gate, 1)
    await expect(lines.last).to_contain_text("Done")
    assert await lines.count() <= 400
    shown = await page.evaluate(SHOWN)
    while await earlier.is_visible():
        first = page.locator(f"#transcript > [data-seq='{shown[0]}']")
        # Up, and near the beginning of what is there: once, and looked at before what that asks for can come.
        where = await first.evaluate("each => { scrollTo(0, 300); return each.getBoundingClientRect().top }")
        await expect(lines.first).not_to_have_attribute("data-seq", str(shown[0]))
        assert abs(await first.evaluate("each => each.getBoundingClientRect().top") - where) < 2  # what is read stays
        shown = await page.evaluate(SHOWN)
        assert len(shown) <= 1000
    assert shown[0] == 3
    await fills_what_is_left_out(page)
    assert await was_never_reloaded(page)
    assert reader.complaints == []


async def fills_what_is_left_out(page: Page) -> None:
    """Until there is nothing between what is read and the end. None is left out besides, none comes twice."""
    while (told := await page.evaluate(LEFT_OUT))["href"]:
        shown = told["shown"]
        assert len(shown) <= 1000
        left_out = range(told["first"] + 1, told["next"])  # the gap itself stands for the first of them
        assert shown == [each for each in range(shown[0], shown[-1] + 1) if each not in left_out]
        await page.evaluate(READ_ON)
        await page.wait_for_function(
            "was => document.querySelector('#between a')?.getAttribute('href') !== was", arg=told["href"]
        )
    assert told["shown"] == list(range(told["shown"][0], told["shown"][-1] + 1))
    assert len(told["shown"]) <= 1000


async def test_a_page_that_is_read_further_up_stays_light_too_and_what_is_read_stays(
    rota: Any, sit: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    look = """echo '{"type": "tool", "name": "look", "at": '$i'}'; i=$((i+1))"""
    flood = f"i=0; while [ $i -lt 60 ]; do {look}; done; {when(gate, 1, '')} while [ $i -lt 1200 ]; do {look}; done"
    address = start(rota, rota.automation("Floods below", flood))
    reader = await sit()
    page = await reader.page(address)
    await remembers(page)
    lines = page.locator("#transcript > *")
    await expect(page.locator("#transcript > .tool")).to_have_count(60)
    read = page.locator("#transcript > .tool").nth(20)
    await read.evaluate("each => scrollTo(0, scrollY + each.getBoundingClientRect().top - 200)")
    where = await read.evaluate("each => each.getBoundingClientRect().top")
    assert where == pytest.approx(200, abs=2)
    let_speak(gate, 1)
    await expect(lines.last).to_contain_text("Done")
    assert await lines.count() <= 1000
    assert abs(await read.evaluate("each => each.getBoundingClientRect().top") - where) < 2
    await expect(page.locator("#between")).to_contain_text("events are left out here")
    await fills_what_is_left_out(page)
    assert await was_never_reloaded(page)
    assert reader.complaints == []


# The first two events of a run are its prompt, and that it began, of which the page says nothing.
SHOWN = (
    "[...document.getElementById('transcript').children].map(each => Number(each.dataset.seq)).filter(each => each > 2)"
)
LEFT_OUT = f"""(() => {{
    const gap = document.getElementById("between");
    return {{
        shown: {SHOWN}, href: gap?.querySelector("a").getAttribute("href"),
        first: Number(gap?.dataset.seq), next: Number(gap?.nextElementSibling.dataset.seq),
    }};
}})()"""
READ_ON = """(() => {
    const gap = document.querySelector("#between a");
    gap?.scrollIntoView();
    gap?.click();
})()"""


async def test_a_grant_is_revoked_after_a_question_and_renewed_where_it_is_listed(
    rota: Any, sit: Any, tmp_path: Path
) -> None:
    saved = rota.automation("Trusted once", when(tmp_path / "never", 1, "echo no"))
    address = start(rota, saved)
    reader = await sit()
    page = await reader.page(address)
    await expect(page.locator(".heading .pill")).to_have_text("Running")
    await page.goto(f"{rota.url}/w/default/settings/grants")
    row = page.locator("tr", has_text="Trusted once")
    await row.get_by_role("link", name="Revoke").click()
    await page.get_by_role("button", name="Revoke grant").click()
    await expect(row.locator(".pill")).to_have_text("Revoked")
    await row.get_by_role("button", name="Renew").click()
    await expect(row.locator(".pill")).to_have_text("Valid")
    await page.goto(rota.url + address)
    await expect(page.locator(".heading .pill")).to_have_text("Failed")
    await expect(page.locator(".trouble")).to_contain_text(re.compile("grant", re.IGNORECASE))
    assert reader.complaints == []


async def test_a_credential_is_saved_in_place_and_without_a_script(rota: Any, sit: Any) -> None:
    for name, with_script in (("by-script", True), ("by-form", False)):
        reader = await sit(java_script_enabled=with_script)
        page = await reader.page("/w/default/settings/credentials")
        if not await page.locator("#name-new").is_visible():
            await page.get_by_text("New credential").click()
        await page.get_by_label("Name", exact=True).fill(name)
        await page.get_by_label("Value", exact=True).fill("a secret of some length")
        await page.get_by_role("button", name="Save credential").click()
        await expect(page.get_by_role("heading", name=name)).to_be_visible()
        assert "a secret of some length" not in await page.content()
        assert reader.complaints == []


async def test_an_agent_is_made_mended_run_paused_and_deleted(rota: Any, sit: Any) -> None:
    name, slug = "Echoes", "echoes"
    reader = await sit()
    page = await reader.page("/w/default/automations")
    await page.get_by_role("link", name="Agents", exact=True).click()
    await page.get_by_role("link", name="New agent").click()
    await page.get_by_role("link", name="Program", exact=True).click()
    await expect(page.get_by_label("Configuration")).to_have_value(re.compile('"df"'))
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_label("Configuration").fill('{"argv": "cat"}')
    await page.get_by_role("button", name="Create agent").click()
    await expect(page.locator("#config-new-error")).to_contain_text("argv: ")
    await expect(page.get_by_label("Name", exact=True)).to_have_value(name)
    await page.get_by_label("Configuration").fill('{"argv": ["cat"]}')
    await page.get_by_role("button", name="Create agent").click()
    await expect(page.locator("h1")).to_have_text(name)
    await page.get_by_role("link", name="Run it").click()
    await page.get_by_label("Prompt").fill("Said back to me")
    await page.get_by_role("button", name="Run now").click()
    await page.wait_for_url(re.compile("/sessions/"))
    while rota.api("GET", f"/agents/{slug}/runs")["items"][0]["status"] != "succeeded":
        pass  # each look is a request of its own
    await page.goto(f"{rota.url}/w/default/agents")
    row = page.locator("tr", has_text=name)
    await expect(row.locator(".last")).to_contain_text("Succeeded")
    await row.get_by_role("link", name=name, exact=True).click()
    await expect(page.locator(".ledger")).to_contain_text("Said back to me")
    await page.get_by_role("switch").click()
    await expect(page.get_by_role("switch")).to_have_text("Paused")
    await page.get_by_text("Delete this agent").click()
    await page.get_by_role("button", name=f"Delete {name}").click()
    await expect(page.locator("h1")).to_have_text("Agents")
    await expect(page.locator("tr", has_text=name)).to_have_count(0)
    assert [each for each in reader.complaints if "422" not in each] == []
