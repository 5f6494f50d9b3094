"""Choosing an agent or an automation by name in a form: of a few from a list, of many by a search, with no script by writing it."""

from typing import Any

import pytest
from httpx import AsyncClient

from rota.http.ui import choosing
from rota.roster import agents

from .test_editor import NEW, errors, form, trigger
from .test_pages import LIST, Page, submit

ROOT = "/w/default"
SESSIONS = f"{ROOT}/sessions"


async def agent(house: Any, name: str) -> None:
    async with house.db.transaction() as conn:
        given = {"name": name, "executor": "command", "config": {"argv": ["true"]}}
        await agents.create(conn, house.caller, given)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "FEW", 1)


def field(page: Page, name: str) -> dict[str, str | None]:
    return next(each for tag, each in page.tags if tag in {"input", "select"} and each.get("name") == name)


def options(page: Page) -> list[str | None]:
    return [each.get("value") for each in page.all("option")]


PAGES = [
    ("sessions", "agent"),
    ("sessions/new", "agent"),
    ("sessions/new?kind=background", "roles.0.agent"),
    ("automations/new", "agent"),
]


@pytest.mark.usefixtures("many")
async def test_where_there_are_more_agents_than_a_list_holds_each_is_found_by_a_part_of_its_name(
    admin: AsyncClient, house: Any
) -> None:
    await agent(house, "Night watch")
    for path, name in PAGES:
        page = Page(await admin.get(f"{ROOT}/{path}"))
        asks = field(page, name)
        assert asks["type"] == "text", path
        assert asks["list"] in {each.get("id") for each in page.all("datalist")}, path
        found = Page(await admin.get(str(asks["hx-get"]), params={name: "BEE"}))
        assert options(found) == ["worker-bee"], path
    assert options(Page(await admin.get(f"{ROOT}/find/agents", params={"agent": "t-wat"}))) == ["night-watch"]
    assert options(Page(await admin.get(f"{ROOT}/find/agents"))) == ["night-watch", "worker-bee"]


async def test_a_few_agents_are_a_list_and_only_those_that_may_work_are_in_that_of_a_session(
    admin: AsyncClient, house: Any
) -> None:
    await agent(house, "Night watch")
    await house.execute("UPDATE agents SET status = 'paused' WHERE slug = 'worker-bee'")
    assert options(Page(await admin.get(f"{SESSIONS}/new"))) == ["night-watch"]
    assert options(Page(await admin.get(f"{ROOT}/find/agents?active=true&agent="))) == ["night-watch"]
    assert {"night-watch", "worker-bee"} <= {*options(Page(await admin.get(NEW)))}
    await house.execute("UPDATE agents SET status = 'paused'")
    assert "Every agent is paused" in (await admin.get(f"{SESSIONS}/new")).text
    await house.execute("UPDATE agents SET deleted_at = now()")
    assert "There is no agent yet" in (await admin.get(f"{SESSIONS}/new")).text


async def test_what_is_written_by_name_is_understood_and_what_is_not_leads_to_what_is(
    admin: AsyncClient, house: Any
) -> None:
    await agent(house, "Night watch")
    assert (await submit(admin, SESSIONS, agent=" night WATCH ", prompt="Look.")).status_code == 303
    goal = {"kind": "background", "goal": "Peace", "roles.0.name": "guard", "roles.0.agent": "Night watch"}
    begun = await submit(admin, SESSIONS, **goal)
    assert begun.status_code == 303
    seated = await submit(admin, f"{begun.headers['Location']}/roles", name="helper", agent="Worker bee")
    assert seated.status_code == 303
    assert (await submit(admin, NEW, **form(agent="Worker Bee"))).status_code == 303
    await agent(house, "Night watch")
    for typed, told in (
        ("night watch", "Several agents are called so: Night watch (night-watch-2), Night watch (night-watch)."),
        ("watch", "There is no agent &#39;watch&#39;, but there is: Night watch (night-watch-2)"),
        ("", "Choose an agent."),
        ("x" * 300, "There is no agent &#39;xxx"),
    ):
        refused = await submit(admin, SESSIONS, agent=typed, prompt="Look.")
        assert (refused.status_code, told in refused.text) == (422, True), typed
        refused = await submit(admin, SESSIONS, **{**goal, "roles.0.agent": typed})
        assert (refused.status_code, told in refused.text) == (422, True), typed
        refused = await submit(admin, NEW, **form(agent=typed))
        assert (errors(refused), told in refused.text) == (["agent"], True), typed


async def test_the_automation_that_another_runs_after_is_chosen_from_those_there_are(
    admin: AsyncClient, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.automation(name="Before")
    await house.automation(name="Errand")
    name = "triggers.0.after"
    new = Page(await admin.get(NEW))
    assert {"", "before", "errand"} <= {*options(new)}
    assert "Choose an automation" in new.text
    assert "errand" not in options(Page(await admin.get(f"{LIST}/errand/edit")))  # it does not run after itself
    given = form(trigger(kind="after", after="Before", on=["succeeded"]))
    assert "After “Before” succeeded" in (await submit(admin, f"{LIST}/preview", **given)).text
    assert (await submit(admin, f"{LIST}/errand/edit", **given)).status_code == 303
    monkeypatch.setattr(choosing, "FEW", 1)
    asks = field(Page(await admin.get(f"{LIST}/errand/edit")), name)
    assert (asks["type"], asks["value"]) == ("text", "before")
    assert options(Page(await admin.get(str(asks["hx-get"]), params={name: "bef"}))) == ["before"]


async def test_a_trigger_after_an_automation_that_is_deleted_says_so_and_may_stay_as_it_is(
    admin: AsyncClient, house: Any
) -> None:
    await house.automation(name="Before")
    await submit(admin, NEW, **form(trigger(kind="after", after="before", on=["succeeded"])))
    assert (await submit(admin, f"{LIST}/before/delete")).status_code == 303
    await house.automation(name="Before")  # another, at the same address
    page = Page(await admin.get(f"{LIST}/errand/edit"))
    assert "Before (deleted)" in page.text
    gone = str(await house.value("SELECT after_automation_id FROM triggers WHERE kind = 'after'"))
    assert gone in [each["value"] for each in page.all("option") if "selected" in each]
    kept: dict[str, Any] = {"id": str(field(page, "triggers.0.id")["value"]), "kind": "after", "after": gone}
    saved = await submit(admin, f"{LIST}/errand/edit", **form(trigger(**kept, on=["succeeded"]), prompt="Do more."))
    assert (errors(saved), saved.status_code) == ([], 303)
    changed = await submit(admin, f"{LIST}/errand/edit", **form(trigger(**kept, on=["failed"])))
    assert (errors(changed), "&#39;Before&#39; is deleted" in changed.text) == (["triggers.0.after"], True)
