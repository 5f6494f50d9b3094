"""Approvals over HTTP: who sees a question, who answers it, and what the run then does."""

from typing import Any

import pytest

from rota.model.approval import Option
from rota.model.outcome import Parked, Succeeded
from rota.watch.rescue import Rescue
from support import api_client
from support.api_client import UNKNOWN, Api, AtWork, Office, assert_ok, assert_refused, example

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

FIELDS = {
    "id", "run_id", "session_id", "automation_id", "agent_id", "attempt", "key", "question", "detail", "options", "status",
    "option_id", "text", "answered_by", "answered_by_name", "created_at", "expires_at", "answered_at", "run_status",
}  # fmt: skip
COLOURS = [Option("red", "Red", approves=True), Option("none", "None at all", approves=False)]


async def park(office: Office, owner: Api, automation: dict[str, Any] | None = None, **about: Any) -> dict[str, Any]:
    """A run that was parked with a question."""
    automation = automation or assert_ok(await owner.post("/automations", example()))
    assert_ok(await owner.post(f"/automations/{automation['id']}/run"))
    at_work = await office.claim()
    asked = await at_work.desk.park("Send it?", **about)
    assert isinstance(asked, Parked)
    await office.settle(at_work, asked)
    return assert_ok(await owner.get(f"/approvals/{asked.approval_id}"), 200)


async def resumed(office: Office) -> AtWork:
    at_work = await office.claim()
    await office.settle(at_work, Succeeded("Sent."))
    return at_work


async def test_a_question_is_listed_and_answered_and_its_run_goes_on(office: Office, api: Api) -> None:
    asked = await park(office, api, key="send", detail={"to": "everybody"})
    assert set(asked) == FIELDS
    assert (asked["status"], asked["run_status"], asked["key"]) == ("pending", "awaiting_approval", "send")
    assert asked["options"] == [
        {"id": "approve", "label": "Approve", "approves": True},
        {"id": "refuse", "label": "Refuse", "approves": False},
    ]
    assert [each["id"] for each in (await api.get("/approvals", status="pending")).json()["items"]] == [asked["id"]]
    answered = assert_ok(await api.post(f"/approvals/{asked['id']}", {"answer": "approve", "text": "Go."}), 200)
    assert (answered["status"], answered["option_id"], answered["text"]) == ("approved", "approve", "Go.")
    assert (answered["answered_by_name"], answered["run_status"]) == ("Local admin", "queued")
    at_work = await resumed(office)
    assert at_work.assignment.answer
    assert at_work.assignment.answer.text == "Go."
    run = (await api.get(f"/runs/{asked['run_id']}")).json()
    assert [each["ended_as"] for each in run["attempts"]] == ["awaiting_approval", "succeeded"]
    assert (run["status"], run["attempt"], run["tries"]) == ("succeeded", 2, 0)
    assert (await api.get("/approvals", status="pending")).json()["items"] == []


async def test_the_log_tells_of_the_question_and_of_the_answer(office: Office, api: Api) -> None:
    asked = await park(office, api)
    assert_ok(await api.post(f"/approvals/{asked['id']}", {"answer": "refuse", "text": "No."}), 200)
    await resumed(office)
    told = (await api.get(f"/sessions/{asked['session_id']}/events")).json()["items"]
    story = [(each["kind"], each["data"]["status"]) for each in told]
    assert story == [
        ("run", "queued"), ("run", "running"), ("approval", "pending"), ("run", "awaiting_approval"),
        ("approval", "refused"), ("run", "queued"), ("run", "running"), ("run", "succeeded"),
    ]  # fmt: skip
    assert told[2]["data"]["question"] == "Send it?"
    assert (told[4]["data"]["by"], told[4]["data"]["text"]) == ("Local admin", "No.")


async def test_the_first_answer_holds_and_the_second_is_told_who_was_first(office: Office, api: Api) -> None:
    asked = await park(office, api)
    assert_ok(await api.post(f"/approvals/{asked['id']}", {"answer": "approve"}), 200)
    told = assert_refused(await api.post(f"/approvals/{asked['id']}", {"answer": "refuse"}), 409, "already_answered")
    assert (told["answered_by"], told["answered_by_name"]) == (str(office.caller.user_id), "Local admin")
    assert told["approval_status"] == "approved"
    await resumed(office)


async def test_options_are_answered_by_id_or_by_what_they_mean(office: Office, api: Api) -> None:
    asked = await park(office, api, options=COLOURS)
    told = assert_refused(
        await api.post(f"/approvals/{asked['id']}", {"answer": "blue"}), 422, "unknown_option", "answer"
    )
    assert all(option in told["detail"] for option in ("“red”", "“none”"))
    answered = assert_ok(await api.post(f"/approvals/{asked['id']}", {"answer": "refuse"}), 200)
    assert (answered["status"], answered["option_id"]) == ("refused", "none")
    await resumed(office)


async def test_a_member_answers_for_their_own_and_an_admin_for_everybody(office: Office, api: Api) -> None:
    owner, stranger, viewer = [await office.api(level) for level in ("member", "member", "viewer")]
    asked = await park(office, owner)
    for other in (stranger, viewer):
        assert_refused(await other.post(f"/approvals/{asked['id']}", {"answer": "approve"}), 403, "forbidden")
        assert (await other.get("/approvals", mine=True)).json()["items"] == []
    assert [each["id"] for each in (await owner.get("/approvals", mine=True)).json()["items"]] == [asked["id"]]
    assert_ok(await owner.post(f"/approvals/{asked['id']}", {"answer": "approve"}), 200)
    await resumed(office)
    again = await park(office, owner)
    assert_ok(await api.post(f"/approvals/{again['id']}", {"answer": "approve"}), 200)
    await resumed(office)


async def test_an_agent_never_answers_its_own_question(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    at_work = await office.claim()
    asked = await at_work.desk.park("May I?")
    assert isinstance(asked, Parked)
    agent = Api(office.site.client(), office.caller.workspace_slug, at_work.token)
    assert_refused(await agent.post(f"/approvals/{asked.approval_id}", {"answer": "approve"}), 403, "forbidden")
    await office.settle(at_work)


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "answer"), ({"answer": ""}, "answer"), ({"answer": 1}, "answer"), ({"answer": "approve", "to": 1}, "to"),
     ({"answer": "approve", "text": "x" * 10_001}, "text")],
)  # fmt: skip
async def test_an_answer_that_makes_no_sense_is_refused_with_its_field(
    office: Office, api: Api, body: dict[str, Any], field: str
) -> None:
    assert_refused(await api.post(f"/approvals/{UNKNOWN}", body), 422, "invalid", field)


async def test_what_nobody_can_answer_any_more_is_not_pending(office: Office, api: Api) -> None:
    """Before any sweep has been there."""
    gone, late = await park(office, api), await park(office, api)
    assert_ok(await api.post(f"/runs/{gone['run_id']}/cancel"), 200)
    await office.execute("UPDATE approvals SET expires_at = now() WHERE id = %s", late["id"])
    assert (await api.get("/approvals", status="pending")).json()["items"] == []
    assert_refused(await api.post(f"/approvals/{gone['id']}", {"answer": "approve"}), 409, "approval_cancelled")
    assert_refused(await api.post(f"/approvals/{late['id']}", {"answer": "approve"}), 409, "approval_expired")
    assert (await api.get(f"/runs/{gone['run_id']}")).json()["status"] == "cancelled"
    await Rescue(office.db, office.site.web.wakes).once()
    run = (await api.get(f"/runs/{late['run_id']}")).json()
    assert (run["status"], run["error_class"]) == ("failed", "approval_expired")
    stored = [await office.value("SELECT status FROM approvals WHERE id = %s", each["id"]) for each in (gone, late)]
    assert stored == ["cancelled", "expired"]


@pytest.mark.parametrize(
    ("patterns", "about", "covered"),
    [
        (["send"], {"key": "send"}, True),
        (["se*"], {"key": "send"}, True),
        (["web-*"], {"detail": {"tool": "web-search"}}, True),
        (["SEND"], {"key": "send"}, False),
        (["sen"], {"key": "send"}, False),
        (["*"], {}, False),
        (["send"], {"key": "send", "options": [COLOURS[1]]}, False),
    ],
)
async def test_a_pre_approval_answers_at_once_what_its_pattern_names(
    office: Office, api: Api, patterns: list[str], about: dict[str, Any], covered: bool
) -> None:
    automation = assert_ok(await api.post("/automations", example(pre_approvals=patterns)))
    assert automation["pre_approvals"] == patterns
    assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    at_work = await office.claim()
    asked = await at_work.desk.park("Send it?", **about)
    assert isinstance(asked, Parked) is not covered
    [shown] = (await api.get("/approvals", session=str(at_work.assignment.session_id))).json()["items"]
    assert (shown["status"], shown["answered_by"]) == ("approved" if covered else "pending", None)
    await office.settle(at_work)


async def test_a_run_keeps_the_pre_approvals_of_the_revision_it_was_fired_with(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example(pre_approvals=["send"])))
    assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    assert_ok(await api.patch(f"/automations/{automation['id']}", {"pre_approvals": []}), 200)
    at_work = await office.claim()
    assert not isinstance(await at_work.desk.park("Send it?", key="send"), Parked)
    await office.settle(at_work)


async def test_a_grant_that_was_revoked_while_it_waited_fails_the_run(office: Office, api: Api) -> None:
    asked = await park(office, api)
    await office.execute("UPDATE grants SET revoked_at = now() WHERE workspace_id = %s", office.caller.workspace_id)
    assert_ok(await api.post(f"/approvals/{asked['id']}", {"answer": "approve"}), 200)
    await office.work()
    run = (await api.get(f"/runs/{asked['run_id']}")).json()
    assert (run["status"], run["error_class"]) == ("failed", "grant_invalid")


async def test_pausing_the_automation_leaves_a_run_alone_that_has_its_answer(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example(triggers=[{"event": "rain"}])))
    assert_ok(await api.post("/events", {"event": "rain"}), 202)
    at_work = await office.claim()
    asked = await at_work.desk.park("Send it?")
    assert isinstance(asked, Parked)
    await office.settle(at_work, asked)
    assert_ok(await api.post(f"/approvals/{asked.approval_id}", {"answer": "approve"}), 200)
    assert_ok(await api.post(f"/automations/{automation['id']}/pause"), 200)
    await resumed(office)
    assert (await api.get(f"/runs/{at_work.id}")).json()["status"] == "succeeded"
