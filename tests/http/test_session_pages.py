"""The page of a session beyond its transcript: the graph of tasks, artifacts, the lifecycle; and what memory holds."""

import html
import re
from typing import Any
from uuid import uuid4

import pytest
from httpx import ASGITransport, AsyncClient

from rota.db import events
from rota.http.app import create_app
from rota.http.context import Web
from rota.http.shapes.fields import LONGEST_PROMPT
from rota.http.ui import sessions, speech, words
from rota.http.ui.controls import fold
from rota.http.ui.graph import DRAWN, graph
from rota.model.artifact import preview_of
from rota.model.ids import AutomationId
from rota.model.memory import Remembered
from rota.sessions import memory
from support import run_state
from support.run_state import from_now

from .test_pages import NASTY, Page, live, submit

UNKNOWN = "01a1e0db-2cd9-7826-809d-0931e0e98709"
ROOT = "/w/default"


def task(key: str, *needs: dict[str, Any], status: str = "pending") -> dict[str, Any]:
    return {"id": uuid4(), "key": key, "role": "worker", "status": status, "depends_on": [each["id"] for each in needs]}


# ── The graph ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_task_stands_to_the_right_of_what_it_waits_for_and_none_on_another() -> None:
    plan = task("plan", status="done")
    left, right = task("left", plan), task("right", plan)
    end = task("end", left, right, plan)
    drawn = graph([end, left, right, plan])
    assert drawn
    at = {node.key: (node.x, node.y) for node in drawn.nodes}
    assert at["plan"][0] < at["left"][0] == at["right"][0] < at["end"][0]
    assert len(set(at.values())) == 4
    assert [kind for _, kind in drawn.lines].count("met") == 3  # those that lead away from what is done
    assert "end: waiting, after left, right, plan" in drawn.told
    assert all(node.x + 156 <= drawn.width and node.y + 48 <= drawn.height for node in drawn.nodes)


def test_nothing_is_drawn_where_nothing_waits_or_nobody_could_see_it() -> None:
    assert graph([task("one"), task("two")]) is None
    first = task("first")
    assert graph([first, *(task(str(n), first) for n in range(DRAWN))]) is None


def test_a_long_key_is_cut_and_told_whole() -> None:
    first = task("x" * 60)
    drawn = graph([first, task("y", first)])
    assert drawn
    assert drawn.nodes[0].key == "x" * 15 + "…"
    assert "x" * 60 in drawn.nodes[0].told


# ── Artifacts ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("media_type", "size", "shown"),
    [
        ("image/png", 10, "image"),
        ("image/png", 20_000_000, None),
        ("image/svg+xml", 10, "text"),  # a picture that can run: only as its source
        ("text/html", 10, "text"),
        ("text/markdown", 10, "markdown"),
        ("application/json", 10, "text"),
        ("application/pdf", 10, None),
    ],
)
def test_as_what_an_artifact_may_be_shown(media_type: str, size: int, shown: str | None) -> None:
    assert preview_of({"media_type": media_type, "size": size, "uri": None}) == shown
    assert preview_of({"media_type": media_type, "size": None, "uri": "https://example.org"}) is None


async def test_what_an_agent_leaves_is_told_on_the_page_that_is_open(house: Any, web: Web) -> None:
    run = await house.running_run(await house.automation())
    feed = sessions.messages(web, house.caller, run["session_id"], 1, speech.Teller())
    left = str(uuid4())
    await house.write_event(run, "artifact", artifact_id=left, name=NASTY, media_type="text/html", size=2048)
    told = (await anext(feed)).decode()
    await feed.aclose()
    assert f"{ROOT}/sessions/{run['session_id']}/artifacts/{left}" in told
    assert "2.0 KB" in told
    assert NASTY not in told
    assert 'hx-target="#live"' not in told  # nothing of the head has changed


FLOOD = """
WITH more AS (UPDATE sessions SET last_seq = last_seq + 3000 WHERE id = %s RETURNING workspace_id, id, last_seq - 3000 AS shown)
INSERT INTO events (workspace_id, session_id, seq, kind, data)
SELECT workspace_id, id, shown + n, 'tool', jsonb_build_object('name', 'look') FROM more, generate_series(1, 3000) AS n
"""


async def test_a_page_that_cannot_keep_up_shows_the_newest_and_the_way_back(house: Any, web: Web) -> None:
    run = await house.running_run(await house.automation())
    shown = await house.value("SELECT last_seq FROM sessions WHERE id = %s", run["session_id"])
    feed = sessions.messages(web, house.caller, run["session_id"], shown, speech.Teller())
    await house.execute(FLOOD, run["session_id"])
    told = (await anext(feed)).decode()
    newest = range(shown + 3001 - speech.SHOWN_EVENTS, shown + 3001)
    assert re.findall(r'<article .*?data-seq="(\d+)"', told) == [str(seq) for seq in newest]
    assert f'sessions/{run["session_id"]}?before={newest[0]}">2,800 events came too fast to be shown<' in told
    assert told.startswith(f"id: {newest[-1]}\n")
    assert 'hx-target="#live"' in told  # whatever happened to the run meanwhile
    await house.write_event(run, "tool", name="look")
    told = (await anext(feed)).decode()
    await feed.aclose()
    assert re.findall(r'data-seq="(\d+)"', told) == [str(newest[-1] + 1)]
    assert "too fast" not in told


async def test_a_long_story_is_read_from_its_beginning_to_its_end_without_a_script(
    admin: AsyncClient, house: Any
) -> None:
    run = await house.running_run(await house.automation())
    told = await house.value("SELECT last_seq FROM sessions WHERE id = %s", run["session_id"])
    await house.execute(FLOOD.replace("3000", "450"), run["session_id"])
    seen: list[str] = []
    address = f"{ROOT}/sessions/{run['session_id']}?after={told}"
    while address:
        page = Page(await admin.get(address))
        seen += [str(each["data-seq"]) for each in page.all("article")]
        address = next((str(each["href"]) for each in page.all("a") if "after=" in str(each.get("href"))), "")
    assert seen == [str(seq) for seq in range(told + 1, told + 451)]
    earlier = Page(await admin.get(f"{ROOT}/sessions/{run['session_id']}?before={told + 300}"))
    assert f"{ROOT}/sessions/{run['session_id']}?after={told + 299}" in [each.get("href") for each in earlier.all("a")]


DOG = "The quick brown fox jumps over the lazy dog.\n"


async def test_no_line_is_torn_where_a_long_transcript_is_parted(
    admin: AsyncClient, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way it is read, every line stands there once and whole, though no piece of it ends with one."""
    monkeypatch.setattr(speech, "SHOWN_EVENTS", 7)
    run = await house.running_run(await house.automation())
    said, size = "".join(f"{number} {DOG}" for number in range(60)), len(DOG) * 2 - 7
    for at in range(0, len(said), size):
        await house.write_event(run, text=said[at : at + size])
    home = f"{ROOT}/sessions/{run['session_id']}"

    async def read(address: str, way: str) -> list[list[str]]:
        parts: list[list[str]] = []
        while address:
            text = (await admin.get(address)).text
            words = re.findall(r'<div class="words md"><p>(.*?)</p>', text, re.DOTALL)
            words += re.findall(r'<div class="words">(\d.*?)</div>', text, re.DOTALL)
            parts.append([each.removesuffix("<br>") for each in "\n".join(words).split("\n") if each])
            found = re.search(rf'href="({home}\?{way}=(\d+))"', text)
            address = found[1] if found and found[2] != "1" else ""
        return parts

    lines = said.splitlines()
    back, on = await read(home, "before"), await read(f"{home}?after=1", "after")
    assert len(back) > 3
    assert [line for part in reversed(back) for line in part] == lines
    assert [line for part in on for line in part] == lines


@pytest.mark.parametrize("way", ["before", "after"])
async def test_a_page_of_large_events_reads_few_of_them_and_leads_to_the_others(
    admin: AsyncClient, house: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A hundred tool calls of a megabyte each would be read for the one that fits."""
    monkeypatch.setattr(events, "PAGE_BYTES", 50_000)
    run = await house.running_run(await house.automation())
    for number in range(6):
        await house.write_event(run, "tool", name=f"tool-{number}", given="x" * 60_000)
    async with house.db.connection() as conn:
        found = await events.tail(conn, house.caller.workspace_id, run["session_id"], limit=100)
    assert (len(found.events), found.more) == (1, True)
    home, seen = f"{ROOT}/sessions/{run['session_id']}", []
    address = home if way == "before" else f"{home}?after=0"
    while address:
        text = (await admin.get(address)).text
        seen += re.findall(r"tool-\d", text)
        link = re.search(rf'href="({home}\?{way}=(\d+))"', text)
        address = link[1] if link and (way, link[2]) != ("before", "1") else ""
    names = [f"tool-{number}" for number in range(6)]
    assert list(dict.fromkeys(seen)) == (names if way == "after" else names[::-1])


async def test_an_artifact_elsewhere_is_opened_only_where_a_link_can_lead(admin: AsyncClient, house: Any) -> None:
    run = await house.queue_run(await house.automation())
    for uri in ("https://example.org/pull/7", "ssh://host/x"):
        await house.execute(
            "INSERT INTO artifacts (workspace_id, id, session_id, name, media_type, uri) "
            "SELECT workspace_id, gen_random_uuid(), id, 'there', 'text/uri-list', %s FROM sessions",
            uri,
        )
    page = Page(await admin.get(f"{ROOT}/sessions/{run['session_id']}"))
    links = [each.get("href") or "" for each in page.all("a")]
    assert "https://example.org/pull/7" in links
    assert not [each for each in links if each.startswith("ssh:")]
    for uri in ("https://example.org/pull/7", "ssh://host/x"):  # where it leads is read before it is opened
        assert uri in page.text


@pytest.mark.parametrize("path", ["artifacts/none", f"artifacts/{UNKNOWN}", f"artifacts/{UNKNOWN}/image"])
async def test_an_artifact_that_is_not_there_is_a_page_too(admin: AsyncClient, house: Any, path: str) -> None:
    run = await house.queue_run(await house.automation())
    answer = await admin.get(f"{ROOT}/sessions/{run['session_id']}/{path}")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 KB"), (25_000, "25 KB"), (3_200_000_000, "3.2 GB")],
)
def test_sizes_as_people_tell_them(count: int, told: str) -> None:
    assert words.size_of(count) == told


# ── The lifecycle ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_verbs_that_apply_are_offered_to_who_may(admin: AsyncClient, house: Any) -> None:
    await submit(admin, f"{ROOT}/sessions", agent="worker-bee", prompt="Hello")
    session = f"{ROOT}/sessions/{await house.value('SELECT id FROM sessions')}"
    assert "Complete" in (await admin.get(session)).text
    assert (await submit(admin, f"{session}/archive")).status_code == 409
    assert (await submit(admin, f"{session}/complete")).headers["Location"] == session
    assert await house.value("SELECT status FROM sessions") == "done"
    assert "Archive" in (await admin.get(session)).text
    assert (await submit(admin, f"{session}/explode")).status_code == 422
    await house.execute("UPDATE members SET level = 'viewer'")
    page = (await admin.get(session)).text
    assert "Archive" not in page
    assert "/cancel" not in page
    assert "follow-up" not in page
    assert (await submit(admin, f"{session}/archive")).status_code == 403


async def test_a_session_says_what_its_run_waits_for(admin: AsyncClient, house: Any, web: Web) -> None:
    automation_id = await house.automation()
    run = await house.queue_run(automation_id)

    async def told() -> str:
        page = (await admin.get(f"{ROOT}/sessions/{run['session_id']}")).text
        tail = page.split('<div id="tail">')[1].split("</p>")[0]
        return " ".join(re.sub("<[^>]+>", "", tail).split())

    assert await told() == "Waiting: no worker is running Fleet: workers"
    feed = sessions.messages(web, house.caller, run["session_id"], 0, speech.Teller())
    assert "Waiting: no worker is running" in (await anext(feed)).decode()
    await feed.aclose()
    await house.add_worker(kinds="{oracle}")
    assert await told() == "Waiting: no worker runs agents of the kind “command” Fleet: workers"
    await house.execute("UPDATE workers SET kinds = '{command}', pools = '{gpu}'")
    lacks_pool = "Waiting: no worker of the pool “default” runs agents of the kind “command”"
    assert await told() == f"{lacks_pool} Fleet: workers"
    for path in ("runs", f"automations/{automation_id}", "agents/worker-bee", "sessions?kind=automation"):
        page = Page(await admin.get(f"{ROOT}/{path}"))
        assert lacks_pool in page.text, path
    banner = Page(await admin.get(f"{ROOT}/automations/{automation_id}")).text
    assert "No worker of the pool “default” runs agents of the kind “command”. Runs wait until you start one" in banner
    await house.execute("UPDATE workers SET pools = '{gpu,default}'")
    assert await told() == "Waiting for a worker"
    assert "No worker" not in Page(await admin.get(f"{ROOT}/automations/{automation_id}")).text
    await house.set_run(tries=1, ready_at=from_now(hours=1, minutes=1))
    assert await told() == "Retrying in 1 h"
    await house.set_run(ready_at=from_now())
    assert await told() == "Waiting to retry"
    await house.set_run(tries=0, ready_at=None)
    assert await told() == "Waiting for the previous run"
    assert "Waiting for the previous run" in Page(await admin.get(f"{ROOT}/runs")).text


async def test_a_session_says_how_many_tasks_of_its_run_were_refused(admin: AsyncClient, house: Any) -> None:
    run = await house.running_run(await house.automation())
    assert "refused" not in Page(await admin.get(f"{ROOT}/sessions/{run['session_id']}")).text
    await house.set_run(run["id"], refused_tasks={"task_depth": 3, "too_many_tasks_of_run": 1200})
    shown = Page(await admin.get(f"{ROOT}/sessions/{run['session_id']}")).text
    told = "1,203 tasks were refused: 3 too deep below the first task and 1,200 more than one run may add."
    assert told in shown
    assert words.refused_tasks({"refused_tasks": {"task_depth": 1}}).startswith("1 task was refused: 1 too deep")


async def test_a_session_is_about_the_run_at_work_whatever_came_after_it(admin: AsyncClient, house: Any) -> None:
    run = await house.running_run(await house.automation())
    session = f"{ROOT}/sessions/{run['session_id']}"
    await submit(admin, f"{session}/messages", prompt="And then?")
    waiting = (await house.run(source="chat"))["id"]

    async def head() -> str:
        return (await admin.get(session)).text.split('<div id="live">')[1].split('<div id="tasks">')[0]

    def at_work(told: str) -> bool:
        return "Running" in told and f"/runs/{run['id']}/cancel" in told and "/retry" not in told

    assert at_work(await head())
    await submit(admin, f"{ROOT}/runs/{waiting}/cancel")
    assert at_work(await head())
    assert (await house.run(waiting))["status"] == "cancelled"
    await house.set_run(run["id"], **run_state.ended())
    assert f"/runs/{waiting}/retry" in await head()  # with nobody at work, it is about the newest


async def test_of_those_that_wait_the_first_in_line_is_shown(admin: AsyncClient, house: Any) -> None:
    await submit(admin, f"{ROOT}/sessions", agent="worker-bee", prompt="One")
    session = f"{ROOT}/sessions/{await house.value('SELECT id FROM sessions')}"
    await submit(admin, f"{session}/messages", prompt="Two")
    page = (await admin.get(session)).text
    assert "Waiting: no worker is running" in page
    first, _ = await house.runs()
    assert f"/runs/{first['id']}/cancel" in page
    await house.set_run(first["id"], **run_state.running())
    assert Page(await admin.get(f"{ROOT}/sessions")).text.count("Running") == 1  # so it stands in the list


async def test_sessions_are_listed_as_they_were_started_and_say_so(admin: AsyncClient, house: Any) -> None:
    for prompt in ("First", "Second"):
        await submit(admin, f"{ROOT}/sessions", agent="worker-bee", prompt=prompt)
    await house.execute("UPDATE sessions SET created_at = now() - interval '3 hours' WHERE title = 'First'")
    page = await admin.get(f"{ROOT}/sessions")
    second, first = re.findall(r'<tr id="s-.*?</tr>', page.text, re.DOTALL)
    for row, title, started in ((second, "Second", ">now<"), (first, "First", ">3 h ago<")):
        assert title in row
        assert started in re.findall(r'data-label="Started".*?</td>', row)[0]
    assert ">now<" in first  # what happened last
    assert second.count("<time") == 1


async def test_a_session_that_is_archived_is_only_read(admin: AsyncClient, house: Any) -> None:
    run = await house.ended_run(await house.automation(), "failed")
    await house.execute("UPDATE sessions SET status = 'archived'")
    page = (await admin.get(f"{ROOT}/sessions/{run['session_id']}")).text
    assert "Archived" in page
    assert "Retry" not in page
    assert "<textarea" not in page


# ── A goal ───────────────────────────────────────────────────────────────────────────────────────────────────────

GOAL = {
    "kind": "background", "goal": "Know what changed", "title": "", "roles.0.name": "reader",
    "roles.0.agent": "worker-bee", "roles.1.name": "judge", "roles.1.agent": "worker-bee", "tasks.0.key": "look",
    "tasks.0.role": "", "tasks.0.prompt": "Look at it.", "tasks.0.depends_on": "", "tasks.1.key": "",
    "tasks.1.role": "judge", "tasks.1.prompt": "Judge it.", "tasks.1.depends_on": "look",
}  # fmt: skip


async def goal(admin: AsyncClient, house: Any, **fields: str) -> str:
    """The address of a goal that was begun by its form."""
    begun = await submit(admin, f"{ROOT}/sessions", **{**GOAL, **fields})
    address = f"{ROOT}/sessions/{await house.value('SELECT id FROM sessions')}"
    assert (begun.status_code, begun.headers["Location"]) == (303, address)
    return address


def shown(page: Page, name: str) -> str | None:
    return next(each["value"] for each in page.all("input") if each.get("name") == name)


async def test_a_goal_is_begun_with_its_roles_and_first_tasks(admin: AsyncClient, house: Any) -> None:
    form = await admin.get(f"{ROOT}/sessions/new?kind=background")
    assert Page(form).form("/sessions")["method"] == "post"
    address = await goal(admin, house, **{"roles.2.name": " ", "tasks.2.key": ""})  # rows that nobody wrote in
    assert await house.value("SELECT kind || ' ' || status FROM sessions") == "background active"
    told = "SELECT string_agg(name, ' ' ORDER BY name) FROM session_roles"
    assert await house.value(told) == "judge reader"
    told = "SELECT string_agg(role || ' ' || status, ', ' ORDER BY id) FROM tasks"
    assert await house.value(told) == "reader ready, judge pending"
    page = (await admin.get(address)).text
    assert "<strong>judge</strong>" in page
    assert "Add a task" in page


async def test_a_draft_starts_nothing(admin: AsyncClient, house: Any) -> None:
    page = await admin.get(await goal(admin, house, draft="on"))
    assert "Draft" in page.text
    assert await house.runs() == []


WRONG = [
    ({"goal": " "}, "goal", "Say what is to be achieved"),
    ({"roles.0.name": "", "roles.1.name": ""}, "roles.0.name", "A role has 1 to 63 small letters"),
    ({"roles.1.name": "reader"}, "roles.1.name", "has a role &#39;reader&#39; already"),
    ({"roles.1.agent": "nobody"}, "roles.1.agent", "There is no agent &#39;nobody&#39;"),
    ({"tasks.1.role": "cook"}, "tasks.1.role", "it has judge, reader"),
    ({"tasks.1.depends_on": "lock"}, "tasks.1.depends_on", "There is no task &#39;lock&#39;"),
    ({"tasks.0.prompt": ""}, "tasks.0.prompt", "Give a prompt: what is to be done."),
    ({"tasks.0.key": "look!"}, "tasks.0.key", "A key has 1 to 100 letters"),
]


async def test_a_goal_that_is_refused_comes_back_with_what_was_typed(admin: AsyncClient, house: Any) -> None:
    for changed, field, told in WRONG:
        answer = await submit(admin, f"{ROOT}/sessions", **{**GOAL, "title": NASTY, **changed})
        assert answer.status_code in {409, 422}, field
        assert re.search(rf'id="{re.escape(field)}-new-error">[^<]*{re.escape(told)}', answer.text), field
        assert f'aria-describedby="{field}-new-error" autofocus' in answer.text
        assert shown(Page(answer), "title") == NASTY
        assert NASTY not in answer.text
        assert "Judge it." in answer.text
    for table in ("sessions", "grants", "session_roles", "runs"):
        assert await house.value(f"SELECT count(*) FROM {table}") == 0, table
    told = "SELECT count(*) FROM audit WHERE action = 'session.create' AND status >= 400"
    assert await house.value(told) == len(WRONG)


async def test_rows_come_and_go_without_a_script_and_save_nothing(admin: AsyncClient, house: Any) -> None:
    more = Page(await submit(admin, f"{ROOT}/sessions", **GOAL, do="add-roles"))
    assert [shown(more, f"roles.{at}.name") for at in range(3)] == ["reader", "judge", ""]
    assert "autofocus" in next(each for each in more.all("input") if each.get("name") == "roles.2.name")
    less = Page(await submit(admin, f"{ROOT}/sessions", **GOAL, do="remove-tasks.0"))
    assert shown(less, "tasks.0.role") == "judge"
    for strange in ("add-cooks", "remove-roles.99", "remove-x", "add-"):
        assert (await submit(admin, f"{ROOT}/sessions", **GOAL, do=strange)).status_code == 200
    assert await house.value("SELECT count(*) FROM sessions") + await house.value("SELECT count(*) FROM audit") == 0


async def test_a_conversation_that_is_refused_comes_back_with_what_was_typed(admin: AsyncClient, house: Any) -> None:
    answer = await submit(admin, f"{ROOT}/sessions", agent="nobody", prompt="Hello there")
    assert answer.status_code == 422
    assert "Hello there</textarea>" in answer.text
    assert 'id="agent-new-error"' in answer.text
    assert 'id="prompt-new-error"' in (await submit(admin, f"{ROOT}/sessions", agent="worker-bee", prompt=" ")).text
    for typed, told in ((" ", "Write what should be done."), ("x" * (LONGEST_PROMPT + 1), "Give at most 200000")):
        given = {"agent": "worker-bee", "prompt": typed}
        in_place = await admin.post(f"{ROOT}/sessions", data=given, headers=live())
        assert (in_place.status_code, f"<span>{told}" in in_place.text) == (422, True)


async def test_a_message_that_is_refused_comes_back_with_what_was_typed(admin: AsyncClient, house: Any) -> None:
    await submit(admin, f"{ROOT}/sessions", agent="worker-bee", prompt="Hello")
    address = f"{ROOT}/sessions/{await house.value('SELECT id FROM sessions')}"
    for typed in (" \n ", "\nlong " + "x" * LONGEST_PROMPT):
        answer = await submit(admin, f"{address}/messages", prompt=typed)
        assert answer.status_code == 422
        assert re.search('id="prompt-message-error">Write something, of at most 200,000 characters', answer.text)
        assert 'aria-describedby="prompt-message-error" autofocus' in answer.text
        assert f">\n{typed}</textarea>" in answer.text.replace("\r\n", "\n")
    for closes, told in (
        ("UPDATE agents SET status = 'paused'", "The agent of this session is paused."),
        ("UPDATE sessions SET status = 'archived'", "archived"),
    ):
        await house.execute(closes)
        answer = await submit(admin, f"{address}/messages", prompt=NASTY)
        assert answer.status_code == 409
        assert re.search(f'role="alert">[^<]*{told}', answer.text)
        assert NASTY in Page(answer).text
        assert NASTY not in answer.text
    assert await house.has_runs(1)
    told = "SELECT count(*) FROM audit WHERE action = 'message.create' AND status >= 400"
    assert await house.value(told) == 4
    in_place = await admin.post(f"{address}/messages", data={"prompt": " "}, headers=live())
    assert (in_place.status_code, in_place.headers["HX-Retarget"]) == (422, "#notice")
    assert (await submit(admin, f"{ROOT}/sessions/{UNKNOWN}/messages", prompt="Hello")).status_code == 404


async def test_a_role_and_a_task_are_added_on_the_page_of_a_goal(admin: AsyncClient, house: Any) -> None:
    address = await goal(admin, house)
    added = await submit(admin, f"{address}/roles", name="cook", agent="worker-bee")
    assert (added.status_code, added.headers["Location"]) == (303, address)
    task = {"tasks.0.key": "serve", "tasks.0.role": "cook", "tasks.0.prompt": "Serve.", "tasks.0.depends_on": "look"}
    assert (await submit(admin, f"{address}/tasks", **task)).headers["Location"] == address
    assert "serve: waiting, after look" in (await admin.get(address)).text
    wrong = await submit(admin, f"{address}/tasks", **{**task, "tasks.0.depends_on": "cook, look"})
    assert wrong.status_code == 409
    assert re.search('id="tasks.0.key-task-error">[^<]*a task &#39;serve&#39; already', wrong.text)
    assert shown(Page(wrong), "tasks.0.depends_on") == "cook, look"
    wrong = await submit(admin, f"{address}/roles", name="All", agent="worker-bee")
    assert re.search('id="name-role-error">A role has', wrong.text)
    place = await admin.post(f"{address}/roles", data={"name": "All", "agent": "worker-bee"}, headers=live())
    assert (place.status_code, place.headers["HX-Retarget"]) == (422, "#adding")
    assert "<html" not in place.text


async def test_only_who_may_is_offered_to_add_anything(admin: AsyncClient, house: Any) -> None:
    address = await goal(admin, house)
    await house.execute("UPDATE sessions SET status = 'archived'")
    assert "Add a task" not in (await admin.get(address)).text
    assert (await submit(admin, f"{address}/roles", name="cook", agent="worker-bee")).status_code == 409
    await house.execute("UPDATE sessions SET status = 'active'")
    await house.execute("UPDATE members SET level = 'viewer'")
    page = (await admin.get(address)).text
    assert "<strong>judge</strong>" in page
    assert "Add a task" not in page
    assert "New session" not in (await admin.get(f"{ROOT}/sessions")).text
    refused = [
        await admin.get(f"{ROOT}/sessions/new"), await submit(admin, f"{ROOT}/sessions", **GOAL),
        await submit(admin, f"{address}/tasks"), await submit(admin, f"{address}/roles"),
    ]  # fmt: skip
    assert [each.status_code for each in refused] == [403] * 4


async def test_a_task_that_waits_for_an_answer_says_so_and_leads_to_it(admin: AsyncClient, house: Any) -> None:
    address = await goal(admin, house)
    run = await house.set_run(status="awaiting_approval", started_at=from_now(), attempt=1)
    asked = await house.add_question(run)
    text = (await admin.get(address)).text
    page = Page(await admin.get(address))
    assert "1 waiting for approval, 1 waiting" in text
    assert 'class="node awaiting_approval"' in text
    assert "look: waiting for approval" in text  # for who cannot see the picture
    assert f"{address}#a-{asked}" in [each.get("href") for each in page.all("a")]
    assert f"a-{asked}" in [each.get("id") for each in page.all("section")]
    assert 'class="node running"' not in text
    await house.set_run(**run_state.running())
    text = (await admin.get(address)).text
    assert 'class="node running"' in text
    assert "1 running, 1 waiting" in text


# ── What is long ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_long_words_of_people_are_folded_and_all_of_them_are_there(admin: AsyncClient, house: Any) -> None:
    long = "\n".join(f"line {at} <b>" for at in range(60))
    address = await goal(admin, house, **{"goal": long, "tasks.0.prompt": long})
    page = await admin.get(address)
    assert page.text.count("Show all 60 lines") == 2  # the goal and the prompt
    assert page.text.count("line 59 &lt;b&gt;") == 2
    assert page.text.count('<details class="fold">') == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [("a\n" * 11 + "a", ""), ("a\n" * 12 + "a", "Show all 13 lines"), ("a" * 1000, ""), ("a" * 1001, ">Show all<")],
)
def test_what_is_folded(text: str, told: str) -> None:
    assert told in fold(text)
    assert bool(fold(text)) == bool(told)


# ── Memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_an_automation_remembers_is_changed_and_forgotten(admin: AsyncClient, house: Any) -> None:
    automation_id = AutomationId(await house.automation())
    async with house.db.transaction() as conn:
        given = Remembered("last:seen", {"at": NASTY}, None, 0.5)
        await memory.remember(conn, house.caller.workspace_id, automation_id, given)
    home = f"{ROOT}/automations/errand"
    page = await admin.get(home)
    assert NASTY not in page.text
    action = next(str(each["action"]) for each in Page(page).all("form") if str(each.get("action")).endswith("/set"))
    assert (await submit(admin, action, value='{"at": 7}')).headers["Location"] == home
    assert await house.value("SELECT value FROM memory") == {"at": 7}
    assert await house.value("SELECT confidence FROM memory") == 0.5
    for wrong in ("", "seven", '{"at": '):
        refused = await submit(admin, action, value=wrong)
        assert refused.status_code == 422
        assert f">{wrong}</textarea>" in html.unescape(refused.text)  # what was typed stays, and why beside it
        assert 'id="v-last%3Aseen-error">Write it as JSON' in refused.text
        assert (await admin.post(action, data={"value": wrong}, headers=live())).headers["HX-Retarget"] == "#notice"
    assert await house.value("SELECT value FROM memory") == {"at": 7}
    forget = action.removesuffix("/set") + "/delete"
    await submit(admin, forget)
    assert await house.value("SELECT count(*) FROM memory") == 0
    assert (await submit(admin, action, value="1")).status_code == 404
    assert (await submit(admin, forget)).status_code == 404


async def test_what_is_typed_for_a_key_stays_with_it_when_another_comes_before_it(
    admin: AsyncClient, house: Any
) -> None:
    automation_id = AutomationId(await house.automation())

    async def fields(key: str) -> list[Any]:
        """What the page knows its fields by, once this is remembered: what is drawn anew goes by it."""
        async with house.db.transaction() as conn:
            await memory.remember(conn, house.caller.workspace_id, automation_id, Remembered(key, 1, None, None))
        return [each["id"] for each in Page(await admin.get(f"{ROOT}/automations/errand")).all("textarea")]

    alone, together = await fields("seen"), await fields("last:one")
    assert len(together) == 2
    assert together[1:] == alone


async def test_the_first_visitor_does_not_wait_for_the_routes_to_be_put_together(
    house: Any, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(web)

    def late(**_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("fastapi.dependencies.utils.analyze_param", late)
    async with AsyncClient(transport=ASGITransport(app=app), base_url="http://rota.test") as visitor:
        assert (await visitor.get(f"/w/{house.caller.workspace_slug}/sessions")).status_code == 303
        assert (await visitor.get("/api/v1/workspaces/default/sessions")).status_code == 401


async def test_the_list_of_conversations_shows_how_a_direct_run_ended(admin: AsyncClient, house: Any) -> None:
    sent = await submit(admin, "/w/default/agents/worker-bee/run", prompt="Sweep.")
    assert sent.status_code == 303
    pill = re.compile(r'<td data-label="Status">(.*?)</td>', re.DOTALL)

    async def status() -> str:
        [cell] = pill.findall((await admin.get("/w/default/sessions")).text)
        return re.sub(r"<[^>]+>", "", cell).strip()

    assert await status() == words.STATUS["queued"]
    await house.set_run(**run_state.ended("failed", error_class="agent_error"))
    assert await status() == words.STATUS["failed"]


# ── The ways from a run to others ────────────────────────────────────────────────────────────────────────────────


async def test_a_run_leads_to_what_it_retries_its_neighbours_its_agent_and_its_automation(
    admin: AsyncClient, house: Any
) -> None:
    automation_id = await house.automation()
    first = await house.ended_run(automation_id, "failed")
    await submit(admin, f"{ROOT}/runs/{first['id']}/retry")
    second = await house.run(retry_of=first["id"])
    await house.set_run(second["id"], **run_state.running())
    second = await house.set_run(second["id"], **run_state.ended())
    third = await house.ended_run(automation_id)

    async def links(run: Any) -> dict[str, str]:
        page = Page(await admin.get(f"{ROOT}/sessions/{run['session_id']}"))
        return {str(each.get("rel")): str(each["href"]) for each in page.all("a") if each.get("rel")}

    assert await links(first) == {"next": f"{ROOT}/sessions/{second['session_id']}"}
    assert await links(second) == {
        "prev": f"{ROOT}/sessions/{first['session_id']}", "next": f"{ROOT}/sessions/{third['session_id']}"
    }  # fmt: skip
    retried = Page(await admin.get(f"{ROOT}/sessions/{second['session_id']}"))
    assert "retry of the run of" in " ".join(retried.text.split())
    hrefs = [each.get("href") for each in retried.all("a")]
    assert hrefs.count(f"{ROOT}/sessions/{first['session_id']}") == 2
    assert f"{ROOT}/automations/{automation_id}/edit" in hrefs
    assert f"{ROOT}/agents/{first['agent_id']}" in hrefs
    again = f"{ROOT}/automations/{automation_id}/run"
    assert again in [
        each.get("action") for each in Page(await admin.get(f"{ROOT}/sessions/{third['session_id']}")).all("form")
    ]
    failed = Page(await admin.get(f"{ROOT}/sessions/{first['session_id']}"))
    assert again not in [each.get("action") for each in failed.all("form")]


async def test_the_head_of_a_goal_sums_up_all_of_its_runs(admin: AsyncClient, house: Any) -> None:
    address = await goal(admin, house)
    [run] = await house.runs()
    await house.set_run(run["id"], **run_state.ended(started_at=from_now(seconds=-9), finished_at=from_now(seconds=-8)))
    await house.automation()
    later = await house.add_run(
        session_id=run["session_id"], source="task", status="succeeded", attempt=1, ready_at=None,
        started_at=from_now(seconds=-2), finished_at=from_now(),
    )  # fmt: skip
    for run_id, amount in ((run["id"], 700), (later["id"], 50)):
        await house.execute(
            "INSERT INTO usage (workspace_id, run_id, attempt, unit, amount, account_id) "
            "SELECT g.workspace_id, %s, 1, 'tokens', %s, g.account_id FROM grants g LIMIT 1", run_id, amount,
        )  # fmt: skip
    page = Page(await admin.get(address))
    head = " ".join(page.text.split())
    assert "Runs2 Started" in head
    assert "Duration9.0 s" in head
    assert "Tokens750" in head
    assert "700 tokens" in head  # in the table of tasks, what one took
