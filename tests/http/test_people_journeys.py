"""Members, tokens and oneself in a real browser, with scripts and without."""

from typing import Any

import pytest
from playwright.async_api import Page, expect

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="session")]
expect.set_options(timeout=20_000)

MEMBERS, TOKENS, ME = (f"/w/default/settings/{each}" for each in ("members", "tokens", "me"))


async def invite(page: Page, email: str) -> str:
    """The link that is shown once."""
    if not await page.get_by_label("E-mail address").is_visible():
        await page.get_by_text("Invite somebody").click()
    await page.get_by_label("E-mail address").fill(email)
    await page.get_by_label("Name", exact=True).fill(email.partition("@")[0])
    await page.get_by_role("button", name="Invite", exact=True).click()
    await expect(page.locator(".once")).to_be_visible()
    return await page.locator(".once pre").inner_text()


@pytest.mark.parametrize("with_script", [True, False])
async def test_somebody_is_invited_raised_and_removed(rota: Any, sit: Any, with_script: bool) -> None:
    name = f"invited-{with_script}".lower()
    email = f"{name}@example.org"
    reader = await sit(java_script_enabled=with_script)
    page = await reader.page(MEMBERS)
    link = await invite(page, email)
    guest = await sit(signed_in=False)
    theirs = await guest.page()
    await theirs.goto(link)
    await theirs.get_by_role("button", name="Sign in").click()
    await expect(theirs).to_have_url(f"{rota.url}/w/default/automations")
    await page.get_by_text("Invite somebody").click()
    await page.get_by_label("E-mail address").fill(email)
    await page.get_by_role("button", name="Invite", exact=True).click()
    await expect(page.locator(".error")).to_contain_text("is a member already")  # beside its field,
    await expect(page.get_by_label("E-mail address")).to_have_value(email)  # and what was typed is there
    await page.get_by_role("link", name=name, exact=True).click()
    await page.get_by_role("radio", name="Viewer").check()
    await page.get_by_role("button", name="Save level").click()
    await expect(page.locator(".facts")).to_contain_text("Viewer")
    await page.get_by_role("button", name=f"Remove {name}").click()
    await expect(page).to_have_url(rota.url + MEMBERS)
    await expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    await theirs.reload()
    await expect(theirs.locator("h1")).to_have_text("Sign in")
    assert [each for each in reader.complaints if "409" not in each] == []


@pytest.mark.parametrize("with_script", [True, False])
async def test_a_token_is_made_shown_once_and_revoked(rota: Any, sit: Any, with_script: bool) -> None:
    name = f"Script {with_script}"
    reader = await sit(java_script_enabled=with_script)
    page = await reader.page(TOKENS)
    await page.get_by_text("New token").click()
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_role("checkbox", name="Read").uncheck()
    await page.get_by_role("button", name="Make token").click()
    await expect(page.locator(".error")).to_have_text("Choose at least one.")
    await expect(page.get_by_label("Name", exact=True)).to_have_value(name)
    await page.get_by_role("checkbox", name="Run").check()
    await page.get_by_label("Lasts").select_option("7 days")
    await page.get_by_role("button", name="Make token").click()
    await expect(page.locator(".once pre")).to_contain_text("rota_")
    row = page.locator("tr", has_text=name)
    await expect(row).to_contain_text("run")
    await expect(row).to_contain_text("in 6 d")
    await row.get_by_role("button", name="Revoke").click()
    await expect(row).to_have_count(0)
    assert [each for each in reader.complaints if "422" not in each] == []


async def test_somebody_looks_after_their_own_account(rota: Any, sit: Any) -> None:
    admin = await (await sit()).page(MEMBERS)
    link = await invite(admin, "themself@example.org")
    reader = await sit(signed_in=False)
    page = await reader.page()
    await page.goto(link)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_text("themself", exact=True).click()
    await page.get_by_role("link", name="You and your sign-ins").click()
    await page.get_by_label("New password").fill("twelve and more")
    await page.get_by_role("button", name="Set password").click()
    await expect(page.get_by_label("Present password")).to_be_visible()
    elsewhere = await (await sit(signed_in=False)).page("/sign-in")
    await elsewhere.get_by_label("E-mail address").fill("themself@example.org")
    await elsewhere.get_by_label("Password", exact=True).fill("twelve and more")
    await elsewhere.get_by_role("button", name="Sign in with password").click()
    await expect(elsewhere).to_have_url(f"{rota.url}/w/default/automations")
    await page.reload()
    await page.get_by_label("Present password").fill("not this one")
    await page.get_by_label("New password").fill("thirteen and more")
    await page.get_by_role("button", name="Change password").click()
    await expect(page.locator(".error")).to_have_text("This is not your present password.")
    await page.get_by_role("button", name="Sign out: ").click()
    await expect(page.get_by_role("button", name="Sign out: ")).to_have_count(0)
    await elsewhere.reload()
    await expect(elsewhere.locator("h1")).to_have_text("Sign in")
    await page.get_by_label("Name", exact=True).fill("Myself")
    await page.get_by_role("button", name="Save name").click()
    await expect(page.locator("#notice")).to_contain_text("Saved")
    await page.reload()
    await expect(page.locator(".who")).to_have_text("Myself")
    assert [each for each in reader.complaints if "403" not in each] == []


async def test_the_palette_leads_to_the_settings_from_anywhere(rota: Any, sit: Any) -> None:
    page = await (await sit()).page("/w/default/runs")
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox").fill("settings: tok")
    await expect(page.get_by_role("option", name="Settings: Tokens")).to_be_visible()
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(rota.url + TOKENS)
