"""Sessions that people open over HTTP: conversations, goals with roles and tasks, and their lifecycle."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from rota.db.listener import RUNS
from rota.model.ids import RunId, SessionId
from rota.model.outcome import Succeeded
from rota.sessions import chat
from support import api_client
from support.api_client import Api, Office, assert_ok, assert_refused, example
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
GOAL: dict[str, Any] = {
    "kind": "background",
    "goal": "Tidy the house",
    "roles": [{"name": "worker", "agent": "worker-bee"}],
}


def task(key: str, *depends_on: str) -> dict[str, Any]:
    return {"key": key, "role": "worker", "prompt": f"Do {key}.", "depends_on": list(depends_on)}


async def pursue(api: Api, *tasks: dict[str, Any], **values: Any) -> str:
    return str(assert_ok(await api.post("/sessions", {**GOAL, "tasks": list(tasks), **values}))["id"])


async def statuses(api: Api, session: str) -> dict[str, str]:
    return {each["key"]: each["status"] for each in await api.pages(f"/sessions/{session}/tasks", 100)}


# Conversations ------------------------------------------------------------------------------------------------------


async def test_a_conversation_is_opened_with_its_first_turn_and_each_turn_sees_what_was_said(
    office: Office, api: Api
) -> None:
    session = assert_ok(await api.post("/sessions", {"agent": "worker-bee", "prompt": "Who are you?"}))
    assert (session["kind"], session["origin"], session["status"]) == ("interactive", "user", "active")
    assert session["title"] == "Who are you?"
    first = await office.claim()
    assert (first.assignment.source, first.assignment.prompt, first.assignment.transcript) == (
        "chat",
        "Who are you?",
        [],
    )
    path = f"/sessions/{session['id']}/messages"
    second, third = (
        assert_ok(await api.post(path, {"prompt": "And then?"})),
        assert_ok(await api.post(path, {"prompt": "Later."})),
    )
    assert (second["status"], second["source"], second["ready_at"]) == ("queued", "chat", None)
    await first.desk.say("A bee.")
    await office.settle(first)
    turn = await office.claim()
    assert str(turn.id) == second["id"]
    assert [(each.speaker, each.text) for each in turn.assignment.transcript] == [
        ("user", "Who are you?"), ("agent", "A bee."),
    ]  # fmt: skip
    await turn.desk.say("Honey.")
    await office.settle(turn)
    last = await office.claim()
    assert str(last.id) == third["id"]
    assert [each.text for each in last.assignment.transcript] == ["Who are you?", "A bee.", "And then?", "Honey."]
    await office.settle(last)
    assert (await api.get(f"/sessions/{session['id']}")).json()["status"] == "active"
    assert [each["id"] for each in (await api.get("/sessions", kind="interactive", origin="user")).json()["items"]] == [
        session["id"]
    ]


async def test_a_turn_has_priority_and_a_short_grant_of_the_caller(office: Office, api: Api) -> None:
    session = assert_ok(await api.post("/sessions", {"agent": "worker-bee"}))["id"]
    run = assert_ok(await api.post(f"/sessions/{session}/messages", {"prompt": "Hello."}))
    assert (await office.run(run["id"]))["priority"] == 0
    lasts = (
        "SELECT expires_at BETWEEN now() + '23 hours' AND now() + '25 hours' FROM grants WHERE id = %s AND user_id = %s"
    )
    assert await office.value(lasts, run["grant_id"], office.caller.user_id)


async def test_a_session_of_an_automation_takes_follow_ups_which_make_it_active_and_end_it_again(
    office: Office, api: Api
) -> None:
    automation = assert_ok(await api.post("/automations", example(prompt="Water the plants.")))
    session = assert_ok(await api.post(f"/automations/{automation['id']}/run"))["session_id"]
    path = f"/sessions/{session}/messages"
    at_work = await office.claim()
    await at_work.desk.say("Watered.")
    await office.settle(at_work)
    assert_ok(await api.post(path, {"prompt": "All of them?"}))
    assert (await api.get(f"/sessions/{session}")).json()["status"] == "active"
    follow_up = await office.claim()
    assert [each.text for each in follow_up.assignment.transcript] == ["Water the plants.", "Watered."]
    assert follow_up.assignment.prompt == "All of them?"
    await office.fail(follow_up)
    assert (await api.get(f"/sessions/{session}")).json()["status"] == "failed"
    retried = assert_ok(await api.post(f"/runs/{follow_up.id}/retry"))
    assert (retried["session_id"], retried["source"]) == (session, "retry")
    again = await office.claim()
    assert again.assignment.prompt == "All of them?"
    await office.settle(again)
    assert (await api.get(f"/sessions/{session}")).json()["status"] == "done"
    assert len((await api.get(f"/automations/{automation['id']}/runs")).json()["items"]) == 1


@pytest.mark.parametrize("overlap", ["skip", "allow"])
async def test_what_is_said_while_an_automation_is_at_work_waits_for_it_and_the_session_goes_on(
    office: Office, api: Api, overlap: str
) -> None:
    automation = assert_ok(await api.post("/automations", example(prompt="Water the plants.", overlap=overlap)))
    session = assert_ok(await api.post(f"/automations/{automation['id']}/run"))["session_id"]
    turns = [
        assert_ok(await api.post(f"/sessions/{session}/messages", {"prompt": prompt}))
        for prompt in ("Also the cactus.", "Done?")
    ]
    assert [(each["status"], each["ready_at"]) for each in turns] == [("queued", None)] * 2
    at_work = await office.claim()
    assert [each["ready_at"] for each in await office.runs(session_id=session, status="queued")] == [None, None]
    await at_work.desk.say("Watered.")
    await office.settle(at_work)
    assert (await api.get(f"/sessions/{session}")).json()["status"] == "active"
    follow_up = await office.claim()
    assert str(follow_up.id) == turns[0]["id"]
    assert [each.text for each in follow_up.assignment.transcript] == ["Water the plants.", "Watered."]
    await office.settle(follow_up)
    await office.settle(await office.claim())
    assert (await api.get(f"/sessions/{session}")).json()["status"] == "done"


@pytest.mark.parametrize("first", ["turn", "end"])
async def test_what_is_said_just_as_an_automation_ends_is_not_left_waiting(
    office: Office, api: Api, first: str
) -> None:
    """Both wait for the session, which the test holds, one before the other."""
    automation = assert_ok(await api.post("/automations", example(prompt="Water the plants.")))
    session = assert_ok(await api.post(f"/automations/{automation['id']}/run"))["session_id"]
    at_work = await office.claim()

    async def turn() -> RunId:
        async with office.db.transaction() as conn:
            return await chat.turn(conn, office.caller, SessionId(UUID(session)), prompt="Also the cactus.")

    async def end() -> None:
        await office.settle(at_work)

    async with office.db.transaction() as conn:
        await conn.execute("SELECT FROM sessions WHERE id = %s FOR UPDATE", [session])
        acts: dict[str, asyncio.Task[Any]] = {}
        for act in (turn, end) if first == "turn" else (end, turn):
            acts[act.__name__] = asyncio.create_task(act())
            await until(lambda: office.value(f"SELECT ({WAITING}) = {len(acts)}"))
    await asyncio.gather(*acts.values())
    assert (await office.claim()).id == acts["turn"].result()
    assert (await api.get(f"/sessions/{session}")).json()["status"] == "active"


@pytest.mark.parametrize("paused_by", ["a person", "failures"])
async def test_what_is_said_behind_a_run_that_a_pause_skips_goes_on_at_once(
    office: Office, api: Api, paused_by: str
) -> None:
    values = {
        "prompt": "Water the plants.",
        "schedule": None,
        "triggers": [{"event": "rain"}],
        "pause_after_failures": 1,
    }
    automation = assert_ok(await api.post("/automations", example(**values)))
    for _ in range(2):
        await api.post("/events", {"event": "rain"})
    at_work = await office.claim()
    waiting, _ = (await api.get(f"/automations/{automation['id']}/runs")).json()["items"]
    turn = assert_ok(await api.post(f"/sessions/{waiting['session_id']}/messages", {"prompt": "Also the cactus."}))
    woken = asyncio.Event()
    async with office.site.web.listener.subscribed(RUNS, lambda _: woken.set()):
        if paused_by == "failures":
            await office.fail(at_work)
        else:
            assert_ok(await api.post(f"/automations/{automation['id']}/pause"), 200)
            assert woken.is_set()
    assert (await api.get(f"/runs/{waiting['id']}")).json()["skip_reason"] == "paused"
    assert str((await office.claim()).id) == turn["id"]


async def test_a_turn_with_a_key_is_taken_once_and_a_body_is_a_message_instead(office: Office, api: Api) -> None:
    session = assert_ok(await api.post("/sessions", {"agent": "worker-bee"}, key="open"))["id"]
    assert assert_ok(await api.post("/sessions", {"agent": "worker-bee"}, key="open"))["id"] == session
    path = f"/sessions/{session}/messages"
    first = assert_ok(await api.post(path, {"prompt": "Hello."}, key="k"))
    assert assert_ok(await api.post(path, {"prompt": "Hello."}, key="k"))["id"] == first["id"]
    assert_refused(await api.post(path, {"prompt": "Other."}, key="k"), 422, "key_reused", "Idempotency-Key")
    assert assert_ok(await api.post(path, {"body": "Hello."}))["body"] == "Hello."
    assert_refused(await api.post(path, {"prompt": "Hello.", "body": "x"}), 422, "invalid", "body")
    assert_refused(await api.post(path, {}), 422, "invalid", "body")
    assert_refused(await api.post(path, {"prompt": "  "}), 422, "invalid", "prompt")


async def test_a_task_that_is_retried_goes_on_from_its_own_checkpoint(office: Office, api: Api) -> None:
    await pursue(api, task("a"), task("b"))
    a, b = await office.claim(), await office.claim()
    for each in (a, b):
        await each.desk.checkpoint(each.assignment.prompt.encode())  # type: ignore[union-attr]
        await office.fail(each)
    for _ in range(2):
        run = assert_ok(await api.post(f"/runs/{b.id}/retry"))
        b = await office.claim()
        assert (str(b.id), b.assignment.attempt, b.assignment.checkpoint) == (run["id"], 1, b"Do b.")
        await office.fail(b)


async def test_a_retry_in_the_one_session_of_an_automation_shows_its_prompt(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example(session="same", prompt="Count.")))
    run = assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    await office.fail(await office.claim())
    retried = assert_ok(await api.post(f"/runs/{run['id']}/retry"))
    events = (await api.get(f"/sessions/{run['session_id']}/events")).json()["items"]
    [queued] = [each["data"] for each in events if each["run_id"] == retried["id"]]
    assert (queued["prompt"], queued["source"]) == ("Count.", "retry")


# Goals --------------------------------------------------------------------------------------------------------------


async def test_a_goal_is_pursued_by_roles_through_tasks(office: Office, api: Api) -> None:
    session = await pursue(api, task("a"), task("b", "a"))
    told = (await api.get(f"/sessions/{session}")).json()
    assert (told["kind"], told["goal"], told["title"]) == ("background", "Tidy the house", "Tidy the house")
    [role] = (await api.get(f"/sessions/{session}/roles")).json()["items"]
    assert (role["name"], role["agent"]) == ("worker", "worker-bee")
    assert_ok(await api.post(f"/sessions/{session}/roles", {"name": "judge", "agent": "worker-bee"}))
    assert_refused(
        await api.post(f"/sessions/{session}/roles", {"name": "judge", "agent": "worker-bee"}),
        409,
        "role_exists",
        "name",
    )
    first, second = (await api.get(f"/sessions/{session}/tasks")).json()["items"]
    assert (first["status"], second["status"], second["depends_on"]) == ("ready", "pending", [first["id"]])
    at_work = await office.claim()
    assert await statuses(api, session) == {"a": "running", "b": "pending"}
    await office.settle(at_work, Succeeded("Swept."))
    at_work = await office.claim()
    assert at_work.assignment.payload["dependencies"][0]["summary"] == "Swept."
    added = assert_ok(await api.post(f"/sessions/{session}/tasks", {"tasks": [task("c", "b", first["id"])]}, key="t"))
    again = assert_ok(await api.post(f"/sessions/{session}/tasks", {"tasks": [task("c", "b", first["id"])]}, key="t"))
    assert [each["id"] for each in again["items"]] == [each["id"] for each in added["items"]]
    await office.settle(at_work)
    await office.settle(await office.claim())
    assert set((await statuses(api, session)).values()) == {"done"}
    assert (await api.get(f"/sessions/{session}")).json()["status"] == "done"
    assert [each["id"] for each in (await api.get("/sessions", kind="background", status="done")).json()["items"]] == [
        session
    ]


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"agent": "nobody"}, 422, "unknown_agent", "agent"),
        ({}, 422, "unknown_agent", "agent"),
        ({"agent": "worker-bee", "goal": "x"}, 422, "invalid", "goal"),
        ({"kind": "automation"}, 422, "invalid", "kind"),
        ({"kind": "background"}, 422, "nothing_to_do", "goal"),
        ({"kind": "background", "goal": "x"}, 422, "no_roles", "roles"),
        ({**GOAL, "roles": [{"name": "Judge!", "agent": "worker-bee"}]}, 422, "invalid_role", "roles.0.name"),
        ({**GOAL, "roles": [{"name": "all", "agent": "worker-bee"}]}, 422, "invalid_role", "roles.0.name"),
        ({**GOAL, "roles": [{"name": "a", "agent": "nobody"}]}, 422, "unknown_agent", "roles.0.agent"),
        ({**GOAL, "roles": GOAL["roles"] * 2}, 409, "role_exists", "roles.1.name"),
        ({**GOAL, "tasks": [task("a", "b"), task("b", "a")]}, 422, "task_cycle", "tasks"),
        ({**GOAL, "tasks": [task("a", "b")]}, 422, "unknown_task", "tasks.0.depends_on"),
        ({**GOAL, "tasks": [{"role": "worker"}]}, 422, "nothing_to_do", "tasks.0.prompt"),
        ({**GOAL, "tasks": [{**task("a"), "color": "red"}]}, 422, "invalid", "tasks.0.color"),
    ],
)
async def test_what_cannot_be_opened_is_refused_and_leaves_nothing(
    office: Office, api: Api, body: dict[str, Any], status: int, code: str, field: str
) -> None:
    before = await office.count("sessions", "tasks", "session_roles", "runs", "grants")
    assert_refused(await api.post("/sessions", body), status, code, field)
    assert await office.count("sessions", "tasks", "session_roles", "runs", "grants") == before


# Lifecycle ----------------------------------------------------------------------------------------------------------

ALLOWED = {
    "enable": {"draft"}, "pause": {"active"}, "resume": {"paused"}, "complete": {"active", "paused"},
    "fail": {"active", "paused"}, "archive": {"done", "failed"},
}  # fmt: skip
LEADS_TO = {
    "enable": "active", "pause": "paused", "resume": "active", "complete": "done", "fail": "failed", "archive": "archived",
}  # fmt: skip
WAYS = {
    "draft": [], "active": ["enable"], "paused": ["enable", "pause"], "done": ["enable", "complete"],
    "failed": ["enable", "fail"], "archived": ["enable", "complete", "archive"],
}  # fmt: skip


@pytest.mark.parametrize("status", WAYS)
async def test_each_verb_works_from_its_states_and_from_no_other(api: Api, status: str) -> None:
    for verb, allowed in ALLOWED.items():
        session = await pursue(api, draft=True)
        for step in WAYS[status]:
            assert_ok(await api.post(f"/sessions/{session}/{step}"), 200)
        answer = await api.post(f"/sessions/{session}/{verb}")
        if status in allowed:
            assert assert_ok(answer, 200)["status"] == LEADS_TO[verb]
            last = (await api.get(f"/sessions/{session}/events")).json()["items"][-1]
            assert (last["kind"], last["data"]["status"], last["data"]["verb"]) == ("session", LEADS_TO[verb], verb)
        else:
            told = assert_refused(answer, 409, "wrong_state")
            assert (told["session_status"], set(told["allowed_from"])) == (status, allowed)


@pytest.mark.parametrize("status", ["draft", "paused", "archived"])
async def test_a_session_takes_messages_only_while_it_is_active_or_has_ended(api: Api, status: str) -> None:
    session = await pursue(api, draft=True)
    for step in WAYS[status]:
        assert_ok(await api.post(f"/sessions/{session}/{step}"), 200)
    assert_refused(await api.post(f"/sessions/{session}/messages", {"prompt": "Hello?"}), 409, "wrong_state")


async def test_two_verbs_at_once_pass_one_after_the_other(api: Api) -> None:
    session = await pursue(api)
    answers = await asyncio.gather(*(api.post(f"/sessions/{session}/pause") for _ in range(4)))
    assert sorted(each.status_code for each in answers) == [200, 409, 409, 409]
