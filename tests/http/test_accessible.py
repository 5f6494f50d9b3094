"""Every page as axe-core judges it, in both lights. The package that brings axe-core is for tests alone."""

from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from .test_browser import LIST, every_page, start

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="session")]


async def grave(page: Page) -> list[str]:
    """What axe finds serious or worse, each with the first elements it is about."""
    found = (await Axe().run(page)).response["violations"]
    return [
        f"{each['id']}: {each['help']} {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize("light", ["light", "dark"])
async def test_axe_finds_nothing_serious_on_any_page(rota: Any, sit: Any, light: str) -> None:
    saved = rota.automation(f"Fails {light}", "echo oops; exit 1", triggers=[{"cron": "0 9 * * *"}, {"webhook": {}}])
    failed = start(rota, saved)
    reader = await sit(color_scheme=light)
    page = await reader.page()
    wrong: dict[str, list[str]] = {}
    for path in (
        *every_page(rota),
        failed,
        f"{LIST}?q=nothing-has-this-name",
        f"{LIST}?status=paused",
        "/w/default/approvals",
    ):
        await page.goto(rota.url + path)
        if found := await grave(page):
            wrong[path] = found
    await page.goto(f"{rota.url}{LIST}/new")
    await page.get_by_role("button", name="Create automation").click()
    await page.locator("#errors").wait_for()
    await page.locator("details.more-of").evaluate_all("all => all.forEach(each => each.open = true)")
    for kind in (
        ("interval", "weekly", "advanced", "at", "webhook", "event", "after") if light == "light" else ("weekly",)
    ):
        await page.locator(f"#trigger-0 input[value={kind}]").check()
        if found := await grave(page):
            wrong[f"editor: {kind}"] = found
    await page.keyboard.press("Escape")
    for keys, name in (("Control+k", "palette"), ("?", "keys")):
        await page.goto(rota.url + LIST)
        await page.keyboard.press(keys)
        await page.locator(f"#{name}[open]").wait_for()
        if found := await grave(page):
            wrong[name] = found
    assert wrong == {}
