"""The pages of agents, asked for as a browser without scripts asks."""

import json
from html import unescape
from typing import Any
from urllib.parse import quote

from httpx import AsyncClient, Response

from rota.http.context import Web
from rota.model.agent_config import KINDS
from rota.roster import agents

from .test_pages import NASTY, Page, live, submit

HOME = "/w/default/agents"
FIELDS = {
    "name": "Poet", "executor": "command", "config": '{"argv": ["cat"]}', "instructions": "Rhyme.\r\nAlways.",
    "credentials": "", "pool": "", "max_concurrent": "",
}  # fmt: skip


def fields(**changed: str) -> dict[str, str]:
    return {**FIELDS, **changed}


def stands(page: Response, name: str, of: str = "new") -> str:
    """What is wrong with a field, as it stands beside it."""
    _, _, after = page.text.partition(f'id="{name}-{of}-error">')
    return unescape(after.partition("</p>")[0])


def hrefs(page: Response) -> list[str]:
    return [str(each.get("href")) for each in Page(page).all("a")]


async def level(house: Any, name: str) -> None:
    await house.execute("UPDATE members SET level = %s", name)


async def test_an_agent_is_made_shown_changed_paused_and_deleted(admin: AsyncClient, house: Any) -> None:
    made = await submit(admin, HOME, **fields(name=f"Poet {NASTY}", max_concurrent=" 3 ", pool="gpu"))
    assert made.status_code == 303
    home = made.headers["Location"]
    saved = await house.value("SELECT to_jsonb(a) FROM agents a WHERE executor = 'command' AND pool = 'gpu'")
    assert saved["config"] == {"argv": ["cat"]}
    assert (saved["instructions"], saved["max_concurrent"]) == ("Rhyme.\nAlways.", 3)
    for path in (HOME, home, f"{home}/edit"):
        page = await admin.get(path)
        assert NASTY not in page.text
        assert NASTY in Page(page).text + str(Page(page).tags)
    await house.execute("UPDATE agents SET slug = 'bard' WHERE id = %s", saved["id"])
    home = f"{HOME}/bard"
    changed = await submit(admin, f"{home}/change", **fields(name="Bard", max_concurrent=""), revision="1")
    assert (changed.status_code, changed.headers["Location"]) == (303, home)
    now = await house.value("SELECT to_jsonb(a) FROM agents a WHERE slug = 'bard'")
    assert (now["name"], now["max_concurrent"], now["pool"], now["revision"]) == ("Bard", None, "default", 2)
    await submit(admin, f"{home}/pause")
    await submit(admin, f"{home}/change", **fields(name="Bard"), revision="3")
    assert await house.value("SELECT status FROM agents WHERE slug = 'bard'") == "paused"  # not a field of the form
    assert "Paused" in (await admin.get(home)).text
    await submit(admin, f"{home}/resume", next=HOME)
    assert await house.value("SELECT status FROM agents WHERE slug = 'bard'") == "active"
    assert (await submit(admin, f"{home}/delete")).headers["Location"] == HOME
    assert (await admin.get(home)).status_code == 404
    told = (await admin.get("/w/default/settings/audit")).text
    for action in ("agent.create", "agent.change", "agent.pause", "agent.resume", "agent.delete"):
        assert action in told


async def test_the_example_of_each_kind_can_be_saved_as_it_stands(admin: AsyncClient, house: Any) -> None:
    for kind in KINDS:
        page = (await admin.get(f"{HOME}/new", params={"kind": kind})).text
        assert f'name="executor" value="{kind}"' in page
        example = page.partition('id="config-new"')[2].partition(">\n")[2].partition("</textarea>")[0]
        sent = fields(name=f"A {kind}", executor=kind, config=unescape(example))
        assert (await submit(admin, HOME, **sent)).status_code == 303
        assert await house.value("SELECT executor FROM agents WHERE name = %s", sent["name"]) == kind


REFUSED = (
    ("name", " ", "Give it a name."),
    ("name", "x" * 201, "at most 200"),
    ("name", "a\u2028b", "Control characters"),
    ("config", "{", "This is not JSON"),
    ("config", "[]", "Give a JSON object"),
    ("config", '{"n": 99999999999999999999999}', "too large"),
    ("config", '{"argv": []}', "argv: "),
    ("config", '{"argvv": ["cat"]}', "argvv: "),
    ("credentials", "OPENAI_API_KEY", "VARIABLE=credential"),
    ("credentials", "A=a\nA=b", "A stands there twice"),
    ("credentials", "A_KEY=nowhere", "A_KEY: There is no such credential."),
    ("credentials", "ROTA_HTTP_SECRET=nowhere", "ROTA_HTTP_SECRET: Only agents of the kind http"),
    ("pool", "No Pool", "small letters"),
    ("max_concurrent", "many", "Give a whole number"),
    ("max_concurrent", "0", "Give 1 or more"),
    ("instructions", "x" * 200_001, "at most 200000"),
)


async def test_each_refusal_stands_at_its_field_and_what_was_typed_stays(admin: AsyncClient, house: Any) -> None:
    bee = await house.value("SELECT id FROM agents")
    for name, typed, told in REFUSED:
        sent = fields(**{"pool": "spare", name: typed})
        for action, of in (("", "new"), ("/worker-bee/change", str(bee))):
            refused = await submit(admin, HOME + action, **sent, revision="1")
            assert refused.status_code == 422
            assert told in stands(refused, name, of)
            assert refused.text.count('class="error"') == 1
            kept = unescape(refused.text)
            assert all(text.replace("\r\n", "\n") in kept for text in sent.values())
    assert await house.value("SELECT count(*) FROM agents WHERE revision = 1 AND name = 'Worker bee'") == 1
    assert await house.value("SELECT count(*) FROM agents") == 1


async def test_all_that_is_wrong_is_told_at_once_also_in_place(admin: AsyncClient) -> None:
    sent = fields(name="", config="{", credentials="?", pool="?", max_concurrent="?")
    assert (await submit(admin, HOME, **sent)).text.count('class="error"') == 5
    headers = {**live(), "Origin": "http://rota.test"}
    placed = await admin.post(HOME, data=sent, headers=headers)
    assert (placed.headers["HX-Retarget"], "<html" in placed.text) == ("#results", False)
    made = await admin.post(HOME, data=FIELDS, headers=headers)
    assert made.headers["HX-Redirect"] == f"{HOME}/poet"


async def test_the_newest_credentials_are_named_and_the_way_to_the_others(admin: AsyncClient) -> None:
    async def hint() -> str:
        page = (await admin.get(f"{HOME}/new?kind=command")).text
        told = page.partition('id="credentials-new-hint">')[2].partition("</p>")[0]
        return told.replace("<code>", "").replace("</code>", "")

    settings = "/w/default/settings/credentials"
    link = f'<a href="{settings}" target="_blank">settings</a>'
    assert f"None is saved yet: that is done in the {link}." in await hint()
    for number in range(1, 10):
        if number == 9:
            assert "Saved here: key-8, key-7, key-6, key-5, key-4, key-3, key-2, key-1." in await hint()
        await submit(admin, settings, name=f"key-{number}", value="not a real one")
    assert (
        f"Saved here: key-9, key-8, key-7, key-6, key-5, key-4, key-3, key-2, and more in the {link}." in await hint()
    )


async def test_nobodys_change_is_overwritten_unseen(admin: AsyncClient, house: Any) -> None:
    home = f"{HOME}/worker-bee"
    await submit(admin, f"{home}/change", **fields(name="First"), revision="1")
    late = await submit(admin, f"{home}/change", **fields(name="Second"), revision="1")
    assert late.status_code == 409
    assert "changed while you were writing" in late.text
    assert 'value="Second"' in late.text
    assert 'name="revision" value="2"' in late.text  # who has been told may save once more
    assert await house.value("SELECT name FROM agents") == "First"
    assert (await submit(admin, f"{home}/change", **fields(name="Second"), revision="2")).status_code == 303


async def test_what_is_used_stays_and_says_by_whom(admin: AsyncClient, house: Any) -> None:
    await house.automation(name=f"Watch {NASTY}")
    home = f"{HOME}/worker-bee"
    for each in (await admin.get(home), await submit(admin, f"{home}/delete")):
        assert NASTY not in each.text
        assert f"Watch {NASTY}" in Page(each).text
        assert "give them another agent first" in each.text
    refused = await submit(admin, f"{home}/delete")
    assert refused.status_code == 409
    assert "1 automation(s) use this agent" in refused.text
    assert await house.value("SELECT deleted_at FROM agents") is None


async def test_it_is_run_with_a_prompt_and_leads_to_the_session(admin: AsyncClient, house: Any) -> None:
    home = f"{HOME}/worker-bee"
    assert "None yet" in (await admin.get(HOME)).text
    ran = await submit(admin, f"{home}/run", prompt=f"Say {NASTY}")
    session = (await house.run())["session_id"]
    assert (ran.status_code, ran.headers["Location"]) == (303, f"/w/default/sessions/{session}")
    for path in (HOME, home):
        assert f"/w/default/sessions/{session}" in (await admin.get(path)).text
    agent_id = await house.value("SELECT id FROM agents")
    assert f'href="{HOME}/{agent_id}">Worker bee' in (await admin.get("/w/default/runs")).text
    empty = await submit(admin, f"{home}/run", prompt=" ")
    assert (empty.status_code, stands(empty, "prompt", "run")) == (422, "The prompt is empty.")
    assert (await submit(admin, f"{home}/run", prompt="")).status_code == 303
    assert await house.has_runs(2)
    await submit(admin, f"{home}/pause")
    for headers in ({}, live()):
        paused = await admin.post(
            f"{home}/run", data={"prompt": "As typed"}, headers={**headers, "Origin": "http://rota.test"}
        )
        assert paused.status_code == 409
        assert "This agent is paused." in paused.text
        assert "As typed" in paused.text
    assert await house.has_runs(2)


async def test_each_level_sees_what_it_may_do(admin: AsyncClient, house: Any) -> None:
    home = f"{HOME}/worker-bee"
    await submit(admin, HOME, **fields(config=json.dumps({"argv": ["no-such-program-anywhere"]})))
    assert "no-such-program-anywhere&#39; was not found" in (await admin.get(f"{HOME}/poet")).text
    for name, may_run in (("member", True), ("viewer", False)):
        await level(house, name)
        shown, listed = (await admin.get(home)).text, (await admin.get(HOME)).text
        assert ("Run it now" in shown, "automations/new?agent=worker-bee" in shown) == (may_run, may_run)
        assert "was not found" not in (await admin.get(f"{HOME}/poet")).text
        for each in (f"{home}/edit", f"{home}/pause", f"{home}/delete", f"{HOME}/new"):
            assert each not in shown + listed
        for path in (f"{HOME}/new", f"{home}/edit"):
            assert (await admin.get(path)).status_code == 403
        for action in ("", "/worker-bee/change", "/worker-bee/pause", "/worker-bee/resume", "/worker-bee/delete"):
            assert (await submit(admin, HOME + action, **FIELDS)).status_code == 403
        assert (await submit(admin, f"{home}/run", prompt="Go")).status_code == (303 if may_run else 403)
    lost = await admin.post(f"{home}/run", data={"prompt": "Go"}, headers={"X-Rota-CSRF": "none"})
    assert lost.status_code == 403
    assert await house.value("SELECT revision FROM agents WHERE slug = 'worker-bee'") == 1


async def test_a_workspace_without_an_agent_says_what_to_do(admin: AsyncClient, house: Any) -> None:
    await submit(admin, f"{HOME}/worker-bee/delete")
    assert f'href="{HOME}/new"' in (await admin.get(HOME)).text
    elsewhere = ("/w/default/sessions", "/w/default/automations/new")
    for path in elsewhere:
        assert f'<a href="{HOME}/new?next={quote(path)}">Make one</a>' in (await admin.get(path)).text
    await level(house, "member")
    for path in elsewhere:
        assert f'An admin makes one on the page <a href="{HOME}">Agents</a>' in (await admin.get(path)).text
    await level(house, "viewer")
    assert "An admin of this workspace can make one." in (await admin.get(HOME)).text


async def test_nothing_that_was_typed_is_lost_by_making_an_agent_first(admin: AsyncClient, house: Any) -> None:
    begun = "/w/default/automations/new?starter=digest"
    await submit(admin, f"{HOME}/worker-bee/delete")
    blank = await admin.get(begun)
    assert 'name="prompt"' not in blank.text  # nothing to type in yet
    assert f'<a href="{HOME}/new?next={quote(begun)}">' in blank.text
    made = await submit(admin, HOME, **fields(), next=begun)
    assert made.headers["location"] == begun
    assert "Summarise what changed since yesterday" in (await admin.get(begun)).text
    await submit(admin, f"{HOME}/poet/delete")  # meanwhile, by somebody else
    sent = await submit(admin, "/w/default/automations/new", name="Rain", prompt="Write of rain", agent="poet")
    assert (sent.status_code, "Write of rain</textarea>" in sent.text) == (422, True)
    assert f'<a href="{HOME}/new" target="_blank">Make one</a>' in sent.text


async def test_another_kind_begins_with_its_example_and_no_strange_address_breaks(
    admin: AsyncClient, house: Any
) -> None:
    shown = await admin.get(f"{HOME}/worker-bee/edit", params={"kind": "http"})
    assert 'name="executor" value="http"' in shown.text
    assert "https://agents.example.com/" in shown.text
    assert 'value="Worker bee"' in shown.text
    assert await house.value("SELECT executor FROM agents") == "command"
    unknown = await submit(admin, HOME, **fields(executor="commnad"))
    assert unknown.status_code == 422
    assert "did you mean" in unknown.text
    for path in ("/none", "/none/edit", "/new?kind=odd", "/worker-bee/edit?kind=odd", "?cursor=odd"):
        answer = await admin.get(HOME + path)
        assert answer.status_code in {404, 422}
        assert answer.headers["content-type"].startswith("text/html")


async def test_the_form_says_which_urls_may_be_called_and_the_operator_can_allow_more(
    admin: AsyncClient, house: Any, web: Web
) -> None:
    private = fields(name="Service", executor="http", config='{"url": "http://10.0.0.7/"}')
    sent = await submit(admin, HOME, **private)
    assert (sent.status_code, "10.0.0.7 may not be called" in sent.text) == (422, True)
    assert "http://10.0.0.7/" in sent.text
    object.__setattr__(web.settings, "http_allow", ("10.0.0.0/8",))
    assert (await submit(admin, HOME, **private)).status_code == 303
    assert "may not be called" not in (await admin.get(f"{HOME}/service")).text
    object.__setattr__(web.settings, "http_allow", ())
    assert "10.0.0.7 may not be called" in (await admin.get(f"{HOME}/service")).text
    other = fields(name="Service", executor="http", config='{"url": "http://10.0.0.8/"}')
    changed = await submit(admin, f"{HOME}/service/change", **other, revision="1")
    assert (changed.status_code, "10.0.0.8 may not be called" in changed.text) == (422, True)


async def test_kinds_that_cannot_be_used_here_say_why(admin: AsyncClient, house: Any, web: Web) -> None:
    kinds = (await admin.get(f"{HOME}/new")).text
    assert kinds.count("No worker serves it now") == len(KINDS)
    assert "pip install 'rota[llm]'" in kinds
    assert "No worker</span>" in (await admin.get(HOME)).text
    assert "No worker is running" in (await admin.get(f"{HOME}/worker-bee")).text
    await house.add_worker(kinds="{oracle}")
    assert "No worker for this kind" in (await admin.get(HOME)).text
    assert "No worker runs agents of the kind" in (await admin.get(f"{HOME}/worker-bee")).text
    await house.execute("UPDATE workers SET kinds = '{command,oracle}'")
    assert "No worker" not in (await admin.get(f"{HOME}/worker-bee")).text
    await house.execute("UPDATE agents SET pool = 'gpu'")
    assert "No worker for this pool" in (await admin.get(HOME)).text
    assert "ROTA_POOLS=gpu" in (await admin.get(f"{HOME}/worker-bee")).text
    await house.execute("UPDATE workers SET pools = '{default,gpu}'")
    assert "No worker" not in (await admin.get(HOME)).text
    assert 'new?kind=oracle"' in (await admin.get(f"{HOME}/new")).text
    assert (await submit(admin, HOME, **fields(executor="oracle", config=""))).status_code == 303
    object.__setattr__(web.settings, "local_agents", False)
    kinds = (await admin.get(f"{HOME}/new")).text
    assert 'new?kind=http"' in kinds
    assert 'new?kind=command"' not in kinds
    assert "ROTA_LOCAL_AGENTS" in kinds
    barred = await submit(admin, HOME, **FIELDS)
    assert (barred.status_code, "ROTA_LOCAL_AGENTS" in barred.text, 'value="Poet"' in barred.text) == (403, True, True)
    assert (await submit(admin, f"{HOME}/worker-bee/change", **FIELDS, revision="1")).status_code == 303


async def test_who_needs_an_agent_first_makes_one_and_is_led_back(admin: AsyncClient, house: Any) -> None:
    await house.execute("UPDATE agents SET deleted_at = now()")
    for path in ("automations", "automations/new?starter=inbox", "sessions/new?kind=background"):
        wants = f"/w/default/{path}"
        way = f"{HOME}/new?next={quote(wants)}"
        assert way in hrefs(await admin.get(wants))
        assert f"{way}&kind=command" in hrefs(await admin.get(way))
        form = await admin.get(f"{way}&kind=command")
        assert f"{way}&kind=http" in hrefs(form)  # another kind leads back too
        refused = await submit(admin, HOME, **fields(next=wants, config="{"))
        for each in (form, refused):
            assert f'name="next" value="{wants}"' in each.text
        made = await submit(admin, HOME, **fields(next=wants))
        assert (made.status_code, made.headers["Location"]) == (303, wants)
        page = await admin.get(wants)
        assert "There is no agent" not in page.text
        await house.execute("UPDATE agents SET deleted_at = now()")
    await level(house, "member")
    told = await admin.get("/w/default/automations/new")
    assert "An admin makes one" in told.text
    assert f"{HOME}/new" not in told.text


async def test_an_agent_leads_nowhere_else(admin: AsyncClient) -> None:
    for number, elsewhere in enumerate(("https://evil.test/", "//evil.test", "/\\evil.test", "javascript:alert(1)")):
        for path in (f"{HOME}/new", f"{HOME}/new?kind=command"):
            page = await admin.get(path, params={"next": elsewhere})
            assert [each for each in hrefs(page) if "next=" in each] == []
            assert f'value="{elsewhere}"' not in page.text
        made = await submit(admin, HOME, **fields(name=f"Poet {number}", next=elsewhere))
        assert made.headers["Location"] == f"{HOME}/poet-{number}"


async def test_the_list_goes_on_and_the_palette_and_the_editor_know_them(admin: AsyncClient, house: Any) -> None:
    async with house.db.transaction() as conn:
        for number in range(50):
            values = {"name": f"Ant {number}", "executor": "command", "config": {"argv": ["true"]}}
            await agents.create(conn, house.caller, values)
        new, _ = await agents.create(conn, house.caller, {**values, "name": "New"})
    first = Page(await admin.get(HOME))
    assert f"{HOME}/{new['id']}" in [each.get("href") for each in first.all("a")]  # not the page for a new one
    older = next(str(each["href"]) for each in first.all("a") if "cursor=" in (each.get("href") or ""))
    assert "Worker bee" in (await admin.get(older)).text
    assert "Worker bee" not in first.text
    found = (await admin.get("/w/default/find", params={"q": "worker"})).json()
    bee = await house.value("SELECT id FROM agents WHERE slug = 'worker-bee'")
    assert found == [{"name": "Worker bee", "href": f"{HOME}/{bee}", "kind": "Agent"}]
    editor = (await admin.get("/w/default/automations/new", params={"agent": "worker-bee"})).text
    assert '<option value="worker-bee" selected>' in editor
    assert "selected>New" in (await admin.get("/w/default/automations/new", params={"agent": "nobody"})).text
