"""Pages as axe-core judges them, in both lights. The package that brings axe-core is for tests alone."""

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

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
