"""Every page as axe-core judges it, in both lights. The package that brings axe-core is for tests alone."""

from shlex import quote
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from .conftest import ROTA
from .test_browser import LIST, every_page, start

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="session")]


BRIEF = {"resultTypes": ["violations"], "selectors": False, "iframes": False}
CONTRAST = {**BRIEF, "runOnly": ["color-contrast"]}


async def grave(page: Page, part: str | None = None) -> list[str]:
    """What axe finds serious or worse, each with the first elements it is about. The dark is the same page in other
    colours, so only they are looked at again. A `part` of a page that was looked at has axe's script already."""
    await page.emulate_media(color_scheme="light")
    again = Axe(axe_script="0")
    found = (await (again if part else Axe()).run(page, context=part, options=BRIEF)).response["violations"]
    await page.emulate_media(color_scheme="dark")
    found += (await again.run(page, context=part, options=CONTRAST)).response["violations"]
    return [
        f"{each['id']}: {each['help']} {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]


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


async def test_axe_finds_nothing_serious_on_any_page(rota: Any, sit: Any) -> None:
    saved = rota.automation("Fails", "echo oops; exit 1", triggers=[{"cron": "0 9 * * *"}, {"webhook": {}}])
    failed = start(rota, saved)
    page = await (await sit(reduced_motion="reduce")).page()  # no colour is caught on its way to another
    wrong: dict[str, list[str]] = {}
    empty = (f"{LIST}?q=nothing-has-this-name", f"{LIST}?status=paused")
    for path in dict.fromkeys((*telling(rota), *every_page(rota), failed, *empty)):
        await page.goto(rota.url + path)
        wrong[path] = await grave(page)
    await page.goto(f"{rota.url}{LIST}/new")
    await page.get_by_role("button", name="Create automation").click()
    await page.locator("#errors").wait_for()
    await page.locator("details.more-of").evaluate_all("all => all.forEach(each => each.open = true)")
    wrong["editor"] = await grave(page)
    for kind in ("interval", "weekly", "advanced", "at", "webhook", "event", "after"):
        await page.locator(f"#trigger-0 input[value={kind}]").check()
        wrong[f"editor: {kind}"] = await grave(page, "#trigger-0")
    await page.keyboard.press("Escape")
    for keys, name in (("Control+k", "palette"), ("?", "keys")):
        await page.goto(rota.url + LIST)
        await page.keyboard.press(keys)
        await page.locator(f"#{name}[open]").wait_for()
        wrong[name] = await grave(page)
    assert {where: found for where, found in wrong.items() if found} == {}
