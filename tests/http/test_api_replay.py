"""A session as a file: exported as lines of JSON, and shown again elsewhere."""

import json
from typing import Any

import pytest

from rota.access import signing_in
from rota.db import events
from rota.db.events import NewEvent
from rota.model.ids import SessionId
from support import api_client
from support.api_client import COOKIE, Api, Office, assert_ok, assert_refused, furnish

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

GOAL = {"kind": "background", "goal": "Tidy", "roles": [{"name": "worker", "agent": "worker-bee"}]}


async def told(office: Office, api: Api, lines: int) -> str:
    """A session with tasks and a long log."""
    tasks = [
        {"key": "a", "role": "worker", "prompt": "Do a."},
        {"key": "b", "role": "worker", "input": 1, "depends_on": ["a"]},
    ]
    session = assert_ok(await api.post("/sessions", {**GOAL, "tasks": tasks}))["id"]
    at_work = await office.claim()
    await at_work.desk.say("Swept,\u2028 dusted.")
    await office.settle(at_work)
    where = (office.caller.workspace_id, SessionId(session))
    async with office.db.transaction() as conn:
        await events.append(conn, [NewEvent(*where, "output", {"text": f"line {each}"}) for each in range(lines)])
    return str(session)


async def exported(api: Api, session: str) -> list[dict[str, Any]]:
    answer = await api.get(f"/sessions/{session}/export")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.content.split(b"\n") if line]


async def log(api: Api, session: str) -> list[dict[str, Any]]:
    return await api.pages(f"/sessions/{session}/events", 100)


async def test_an_export_holds_the_whole_session_and_shows_it_again_elsewhere(
    office: Office, api: Api, site: Any
) -> None:
    session = await told(office, api, lines=700)
    lines = await exported(api, session)
    head, end = lines[0], lines[-1]
    assert (head["rota"], head["session"]["id"], head["session"]["goal"]) == ("session", session, "Tidy")
    assert [each["task"]["key"] for each in lines if "task" in each] == ["a", "b"]
    there = await furnish(site)
    elsewhere = await there.api()
    begun = assert_ok(await elsewhere.post("/sessions/import", {"lines": lines[:300]}))
    for first in range(300, len(lines), 300):
        path = f"/sessions/{begun['id']}/import"
        imported = assert_ok(await elsewhere.post(path, {"lines": lines[first : first + 300], "first": first + 1}), 200)
    assert (imported["status"], imported["origin"], imported["kind"]) == ("archived", "import", "background")
    assert (imported["imported"]["id"], imported["imported"]["complete"]) == (session, True)
    here = await log(api, session)
    assert await log(elsewhere, begun["id"]) == here
    assert end == {"end": {"events": len(here)}}
    assert [line["event"] for line in lines if "event" in line] == here
    assert (await elsewhere.get("/runs")).json()["items"] == []
    shown = await api.pages(f"/sessions/{session}/tasks", 100)
    assert [(each["key"], each["status"], each["summary"]) for each in shown] == [
        ("a", "done", "Done."),
        ("b", "ready", None),
    ]
    assert await elsewhere.pages(f"/sessions/{begun['id']}/tasks", 1) == shown
    [role] = (await elsewhere.get(f"/sessions/{begun['id']}/roles")).json()["items"]
    assert (role["name"], role["agent"], role["agent_id"]) == ("worker", "worker-bee", None)
    again = await exported(elsewhere, begun["id"])
    assert [line for line in again if "role" in line or "task" in line] == [
        line for line in lines if "role" in line or "task" in line
    ]


WRITTEN = [
    (1, "run", "00000000-0000-7000-8000-000000000001", 1, '{"status": "running"}', "2026-06-01 12:00:00+00"),
    (2, "output", None, None, '{"text": "Swept,\u2028 “dusted”.\\n"}', "2026-06-01 14:00:00.1001+02"),
    (5, "tool", None, None, '{"b": [1, 2.5, null, true], "a": {"deep": {}}}', "2026-06-01 12:00:00.000001+00"),
]
LINES = """\
{"event":{"seq":1,"kind":"run","run_id":"00000000-0000-7000-8000-000000000001","attempt":1,"data":{"status":"running"},"created_at":"2026-06-01T12:00:00Z"}}
{"event":{"seq":2,"kind":"output","run_id":null,"attempt":null,"data":{"text":"Swept,\u2028 “dusted”.\\n"},"created_at":"2026-06-01T12:00:00.100100Z"}}
{"event":{"seq":5,"kind":"tool","run_id":null,"attempt":null,"data":{"a":{"deep":{}},"b":[1,2.5,null,true]},"created_at":"2026-06-01T12:00:00.000001Z"}}
{"end":{"events":3}}
"""


async def test_an_export_is_written_so_and_not_otherwise(office: Office, api: Api) -> None:
    session = assert_ok(await api.post("/sessions", {**GOAL, "draft": True}))["id"]
    async with office.db.transaction() as conn:
        await conn.execute("DELETE FROM events WHERE session_id = %s", [session])
        for event in WRITTEN:
            await conn.execute(
                """INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data, created_at)
                   VALUES (%s, %s, %s, %s, %s, %s, %s, %s)""",
                [office.caller.workspace_id, session, *event],
            )
        await conn.execute("UPDATE sessions SET last_seq = 5 WHERE id = %s", [session])
    answer = await api.get(f"/sessions/{session}/export")
    head, role, *events = answer.content.decode().split("\n")
    assert "\n".join(events) == LINES
    assert role == '{"role":{"name":"worker","agent":"worker-bee"}}'
    assert head.startswith('{"rota":"session","version":1,"exported_at":"')
    assert f'"session":{{"id":"{session}","kind":"background","status":"draft","origin":"user","title":' in head


async def test_an_imported_session_lists_what_was_left_in_it_with_content_where_that_is_known(
    office: Office, api: Api, site: Any
) -> None:
    session = await told(office, api, lines=1)
    path = f"/sessions/{session}/artifacts"
    assert_ok(await api.send("POST", path, params={"name": "report.md"}, content=b"# All is well"))
    assert_ok(await api.post(path, {"uri": "https://example.org/pull/7", "name": "The pull request"}))
    lines = await exported(api, session)
    here = assert_ok(await api.post("/sessions/import", {"lines": lines}))["id"]
    elsewhere = await (await furnish(site)).api()
    there = assert_ok(await elsewhere.post("/sessions/import", {"lines": lines}))["id"]
    left = [{**each, "session_id": None, "created_at": None} for each in await api.pages(path, 1)]
    for client, imported in ((api, here), (elsewhere, there)):
        shown = await client.pages(f"/sessions/{imported}/artifacts", 1)
        assert [{**each, "session_id": None, "created_at": None} for each in shown] == left
    report = next(each["id"] for each in left if each["name"] == "report.md")
    assert (await api.get(f"/sessions/{here}/artifacts/{report}/content")).content == b"# All is well"
    assert_refused(await elsewhere.get(f"/sessions/{there}/artifacts/{report}/content"), 404, "content_missing")


async def test_an_imported_session_lists_the_messages_of_its_log(office: Office, api: Api) -> None:
    session = assert_ok(await api.post("/sessions", GOAL))["id"]
    for body in ({"body": {"plan": 1}}, {"body": "Only for you.", "to": "worker"}, {"body": "For me.", "to": "user"}):
        assert_ok(await api.post(f"/sessions/{session}/messages", body))
    lines = await exported(api, session)
    odd = {"seq": 99, "kind": "message", "run_id": None, "attempt": None, "data": {"from": 1}}
    lines[-1:] = [
        {"event": {**odd, "created_at": "2026-06-01T09:00:00Z"}},
        {"end": {"events": len(await log(api, session)) + 1}},
    ]
    imported = assert_ok(await api.post("/sessions/import", {"lines": lines}))["id"]
    sent = [{**each, "deliveries": []} for each in await api.pages(f"/sessions/{session}/messages", 100)]
    assert len(sent) == 3
    path = f"/sessions/{imported}/messages"
    assert await api.pages(path, 1) == sent
    assert assert_ok(await api.get(path, after=sent[0]["id"], limit=1, wait="30s"), 200)["items"] == sent[1:2]
    assert assert_ok(await api.get(path, role="worker"), 200)["items"] == sent[:2]
    assert assert_ok(await api.get(path, role="user"), 200)["items"] == sent[2:]
    assert assert_ok(await api.get(path, unacked="true", wait="30s"), 200)["items"] == []
    assert_refused(await api.get(path, role="judge"), 422, "unknown_role", "role")


async def test_the_page_of_an_imported_session_shows_its_tasks(office: Office, api: Api, site: Any) -> None:
    lines = await exported(api, await told(office, api, lines=1))
    session = assert_ok(await api.post("/sessions/import", {"lines": lines}))["id"]
    async with office.db.transaction() as conn:
        login = await signing_in.sign_in(conn, await signing_in.create_link(conn, office.caller.user_id))
    async with site.client() as browser:
        page = await browser.get(
            f"/w/{office.caller.workspace_slug}/sessions/{session}", headers={"Cookie": f"{COOKIE}={login}"}
        )
    assert page.status_code == 200
    assert page.text.count('<g class="node ') == 2  # the graph
    assert "Do a." in page.text


async def test_an_imported_session_is_only_read(office: Office, api: Api) -> None:
    lines = await exported(api, await told(office, api, lines=1))
    session = assert_ok(await api.post("/sessions/import", {"lines": lines}))["id"]
    for verb in ("enable", "pause", "resume", "complete", "fail", "archive"):
        assert_refused(await api.post(f"/sessions/{session}/{verb}"), 409, "wrong_state")
    assert_refused(await api.post(f"/sessions/{session}/messages", {"prompt": "Hello?"}), 409, "wrong_state")
    assert_refused(
        await api.post(f"/sessions/{session}/roles", {"name": "judge", "agent": "worker-bee"}), 409, "wrong_state"
    )
    assert_refused(
        await api.post(f"/sessions/{session}/tasks", {"tasks": [{"role": "worker", "prompt": "x"}]}), 409, "wrong_state"
    )
    more = {"lines": [{"end": {"events": 0}}], "first": len(lines) + 1}
    assert_refused(await api.post(f"/sessions/{session}/import", more), 409, "not_importing")


HEAD = {"rota": "session", "version": 1, "session": {"id": api_client.UNKNOWN, "kind": "interactive", "title": "T"}}
EVENT = {
    "seq": 1,
    "kind": "output",
    "run_id": None,
    "attempt": None,
    "data": {"text": "x"},
    "created_at": "2026-01-01T00:00:00+00:00",
}


TASK: dict[str, Any] = {
    "id": "01a1e0db-2cd9-7826-809d-0931e0e98701", "key": "a", "role": "worker", "status": "done", "prompt": "Do a.",
    "created_at": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


LEFT = {"artifact_id": api_client.UNKNOWN, "name": "a.md", "media_type": "text/markdown", "uri": "https://example.org/"}


def left(**changes: Any) -> dict[str, Any]:
    return {"event": {**EVENT, "kind": "artifact", "data": {**LEFT, **changes}}}


@pytest.mark.parametrize(
    ("lines", "line", "about"),
    [
        ([HEAD, left(artifact_id="x")], 2, "event.data.artifact_id"),
        ([HEAD, left(name="../x")], 2, "event.data.name"),
        ([HEAD, left(name=7)], 2, "event.data.name"),
        ([HEAD, left(media_type="text")], 2, "event.data.media_type"),
        ([HEAD, left(uri="javascript:alert(1)")], 2, "event.data.uri"),
        ([HEAD, left(uri=None)], 2, "sha256"),
        ([HEAD, left(uri=None, sha256="x", size=1)], 2, "event.data.sha256"),
        ([HEAD, left(uri=None, sha256="0" * 64, size="1")], 2, "event.data.size"),
        (["nonsense"], 1, "begins with"),
        ([{**HEAD, "version": 2}], 1, "version 2"),
        ([{**HEAD, "session": {**HEAD["session"], "kind": "odd"}}], 1, "session.kind"),  # type: ignore[dict-item]
        ([{**HEAD, "session": {**HEAD["session"], "id": 7}}], 1, "session.id"),  # type: ignore[dict-item]
        ([HEAD, 7], 2, "a line is"),
        ([HEAD, {"event": EVENT}, {"event": {**EVENT, "seq": 1}}], 3, "numbers only grow"),
        ([HEAD, {"event": {**EVENT, "seq": True}}], 2, "event.seq"),
        ([HEAD, {"event": {**EVENT, "kind": "odd"}}], 2, "event.kind"),
        ([HEAD, {"event": {**EVENT, "data": []}}], 2, "event.data"),
        ([HEAD, {"event": {**EVENT, "run_id": "x"}}], 2, "event.run_id"),
        ([HEAD, {"event": {**EVENT, "created_at": "2026-01-01"}}], 2, "event.created_at"),
        ([HEAD, {"event": EVENT}, {"end": {"events": 2}}], 3, "lines are missing"),
        ([HEAD, {"end": {"events": 0}}, {"event": EVENT}], 3, "after the end"),
        ([HEAD, {"surprise": {}}], 2, "no `surprise`"),
        ([HEAD, {"role": {"name": "All of them", "agent": "a"}}], 2, "role.name"),
        ([HEAD, {"role": {"name": "judge", "agent": 7}}], 2, "role.agent"),
        (
            [HEAD, {"role": {"name": "judge", "agent": "a"}}, {"role": {"name": "judge", "agent": "b"}}],
            3,
            "earlier line",
        ),
        ([HEAD, {"task": {**TASK, "id": "x"}}], 2, "task.id"),
        ([HEAD, {"task": {**TASK, "status": "odd"}}], 2, "task.status"),
        ([HEAD, {"task": {**TASK, "key": None}}], 2, "task.key"),
        ([HEAD, {"task": {**TASK, "depends_on": "a"}}], 2, "task.depends_on"),
        ([HEAD, {"task": {**TASK, "depends_on": ["a"]}}], 2, "task.depends_on"),
        ([HEAD, {"task": {**TASK, "started_at": "soon"}}], 2, "task.started_at"),
        ([HEAD, {"task": {**TASK, "timeout": -1}}], 2, "task.timeout"),
        ([HEAD, {"task": {**TASK, "depends_on": [TASK["id"]]}}], 2, "circle"),
    ],
)
async def test_a_line_that_is_wrong_is_named_and_nothing_is_kept(
    office: Office, api: Api, lines: list[Any], line: int, about: str
) -> None:
    before = await office.count("sessions", "events", "imported_parts")
    told = assert_refused(await api.post("/sessions/import", {"lines": lines}), 422, "invalid_export", "lines")
    assert told["detail"].startswith(f"Line {line}: ")
    assert about in told["detail"]
    assert await office.count("sessions", "events", "imported_parts") == before


async def test_an_import_that_broke_off_goes_on_with_its_next_line(api: Api) -> None:
    session = assert_ok(await api.post("/sessions/import", {"lines": [HEAD, {"event": EVENT}]}))["id"]
    path = f"/sessions/{session}/import"
    told = assert_refused(await api.post(path, {"lines": [{"event": EVENT}], "first": 2}), 409, "not_importing")
    assert told["next_line"] == 3
    done = assert_ok(await api.post(path, {"lines": [{"end": {"events": 1}}], "first": 3}), 200)
    assert done["imported"]["complete"]


async def test_an_export_is_imported_as_it_came_out(office: Office, api: Api) -> None:
    session = await told(office, api, lines=1200)
    export = await api.get(f"/sessions/{session}/export")
    headers = {"Content-Type": export.headers["content-type"]}
    imported = assert_ok(await api.send("POST", "/sessions/import", content=export.content, headers=headers))
    assert imported["imported"]["complete"]
    before, after = [
        [line["event"] for line in await exported(api, each) if "event" in line] for each in (session, imported["id"])
    ]
    assert len(before) > 1200
    assert after == before
    again = {"headers": headers, "key": "once"}
    first = assert_ok(await api.send("POST", "/sessions/import", content=export.content, **again))
    assert assert_ok(await api.send("POST", "/sessions/import", content=export.content, **again))["id"] == first["id"]


async def test_lines_that_are_no_export_are_refused(api: Api) -> None:
    headers = {"Content-Type": "application/x-ndjson"}

    async def send(content: bytes, path: str = "/sessions/import") -> Any:
        return await api.send("POST", path, content=content, headers=headers)

    head = json.dumps(HEAD).encode()
    assert_refused(await send(b"\n"), 422, "invalid", "lines")
    told = assert_refused(await send(head + b"\n\n{\n"), 400, "not_json")
    assert told["line"] == 3
    assert_refused(await send(head + b'\n"\\u0000"\n'), 400, "nul_character")
    assert_refused(await send(head + b"\n1],2\n"), 400, "not_json")
    assert_refused(await send(head + b"\n{}\n"), 422, "invalid_export", "lines")
    assert_refused(await send(head + b"\n" + b" " * 2_000_000), 413, "body_too_large")
    assert_refused(await send(head, "/automations"), 400, "not_json", "Content-Type")
