"""Parts of pages that open when somebody uses them, as axe-core judges them. Whole pages are judged in
test_browser.py, which visits each of them once."""

from typing import Any

import pytest

from support.axe import grave

from .test_browser import LIST

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]


async def test_axe_finds_nothing_serious_in_the_editor_the_palette_and_the_keys(rota: Any, sit: Any) -> None:
    page = await (await sit(reduced_motion="reduce")).page()  # no colour is caught on its way to another
    wrong: dict[str, list[str]] = {}
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
