"""The grant scope `workspace:read` on pages: chosen in the editor and for a direct run, shown on the grant's page."""

from typing import Any

import pytest
from httpx import AsyncClient

from .test_editor import NEW, errors, form, trigger
from .test_pages import LIST, Page, submit

GRANTS = "/w/default/settings/grants"
SCOPES = "SELECT scopes[2:] FROM grants ORDER BY id DESC LIMIT 1"


def is_ticked(page: Page) -> bool:
    [box] = [each for each in page.all("input") if each.get("name") == "scopes"]
    assert (box["type"], box["value"]) == ("checkbox", "workspace:read")
    return "checked" in box


async def test_the_editor_gives_and_takes_the_scope(admin: AsyncClient, house: Any) -> None:
    assert not is_ticked(Page(await admin.get(NEW)))
    assert (await submit(admin, NEW, **form(trigger(), scopes="workspace:read"))).status_code == 303
    assert await house.value(SCOPES) == ["workspace:read"]
    edit = f"{LIST}/errand/edit"
    assert is_ticked(Page(await admin.get(edit)))
    assert (await submit(admin, edit, **form(trigger()))).status_code == 303
    assert await house.value(SCOPES) == []
    assert await house.value("SELECT count(*) FROM grants") == 2


async def test_a_refused_form_keeps_the_choice_and_names_an_unknown_scope(admin: AsyncClient, house: Any) -> None:
    kept = await submit(admin, NEW, **form(trigger(), name="", scopes="workspace:read"))
    assert (kept.status_code, errors(kept), is_ticked(Page(kept))) == (422, ["name"], True)
    unknown = await submit(admin, NEW, **form(trigger(), scopes="workspace:raed"))
    assert (unknown.status_code, errors(unknown)) == (422, ["scopes"])
    assert "Did you mean `workspace:read`?" in unknown.text
    assert await house.value("SELECT count(*) FROM grants") == 0


@pytest.mark.parametrize("scopes", ["", "workspace:read"])
async def test_a_direct_run_is_started_with_the_scope_and_its_grant_says_so(
    admin: AsyncClient, house: Any, scopes: str
) -> None:
    page = "/w/default/agents/worker-bee"
    assert not is_ticked(Page(await admin.get(page)))
    assert (await submit(admin, f"{page}/run", prompt="Sweep.", scopes=scopes)).status_code == 303
    assert await house.value(SCOPES) == ([scopes] if scopes else [])
    shown = Page(await admin.get(f"{GRANTS}/{await house.value('SELECT id FROM grants')}")).text
    assert ("The whole workspace (workspace:read)" in shown) is bool(scopes)
    assert ("Only its own session" in shown) is not bool(scopes)
    assert "To run Worker bee" in shown
    listed = Page(await admin.get(f"{GRANTS}?shown=all")).text
    assert ("To run Worker bee, and read the whole workspace" in listed) is bool(scopes)


async def test_an_unknown_scope_for_a_direct_run_is_refused_beside_the_form(admin: AsyncClient, house: Any) -> None:
    answer = await submit(admin, "/w/default/agents/worker-bee/run", prompt="Sweep.", scopes="all")
    assert (answer.status_code, "A grant can have `workspace:read`." in answer.text) == (422, True)
    assert await house.runs() == []
