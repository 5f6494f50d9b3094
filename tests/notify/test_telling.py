"""Who is told of what: in the transaction of what happened, once for each person, and not when all goes well."""

import asyncio
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest

from rota.model.ids import AutomationId
from rota.model.notification import WORDS, Kind
from rota.model.outcome import Parked
from rota.model.reasons import FAILED
from rota.notify import telling
from rota.runs import sweeping
from rota.watch.prune import Prune
from rota.watch.remind import Remind
from rota.watch.rescue import Rescue
from support import api_client
from support.api_client import UNKNOWN, Api, Office, assert_ok, assert_refused, example
from support.databases import roll_back
from support.run_state import from_now

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api


async def fail(office: Office, api: Api, automation: dict[str, Any]) -> dict[str, Any]:
    """One run of it that fails."""
    run = assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    await office.fail(await office.claim())
    return run


async def told(api: Api, **chosen: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = assert_ok(await api.get("/notifications", **chosen), 200)["items"]
    return found


async def unread(api: Api) -> int:
    return int(assert_ok(await api.get("/notifications"), 200)["unread"])


async def saved(api: Api, **values: Any) -> dict[str, Any]:
    return assert_ok(await api.post("/automations", example(**values)))


async def test_a_failure_rings_the_owners_bell_and_leads_to_its_session(office: Office, api: Api) -> None:
    member = await office.api("member")
    automation = await saved(member)
    run = await fail(office, member, automation)
    [one] = await told(member)
    assert (one["kind"], one["title"], one["detail"]) == ("run_failed", "Morning digest failed", FAILED["agent_error"])
    assert one["error"] == "The tap was closed."
    assert one["path"] == f"/w/{api.workspace}/sessions/{run['session_id']}"
    assert (one["automation_id"], one["run_id"], one["read_at"]) == (automation["id"], run["id"], None)
    assert await told(api) == [], "the admin does not own it"


async def test_a_failure_of_no_automation_is_told_with_its_agent(office: Office, api: Api) -> None:
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    await office.fail(await office.claim())
    assert [each["title"] for each in await told(api)] == ["Worker bee failed"]


async def test_failures_of_one_automation_are_one_until_they_are_read(office: Office, api: Api) -> None:
    automation, other = await saved(api), await saved(api, name="Other")
    await fail(office, api, automation)
    await fail(office, api, other)
    last = await fail(office, api, automation)
    one, two = await told(api)
    assert [(each["title"], each["count"]) for each in (one, two)] == [
        ("Morning digest failed 2 times", 2),
        ("Other failed", 1),
    ]
    assert one["run_id"] == last["id"], "the latest failure is the one to look at, and moves it up"
    assert await unread(api) == 2
    assert_ok(await api.post(f"/notifications/{one['id']}/read"), 200)
    await fail(office, api, automation)
    assert [(each["count"], each["read_at"] is None) for each in await told(api)] == [(1, True), (2, False), (1, True)]


async def test_many_failures_in_one_batch_are_told_in_one_statement(office: Office, api: Api) -> None:
    automation = await saved(api, overlap="allow")
    failures = [
        telling.Failure(office.caller.workspace_id, new, AutomationId(automation["id"]), None, "timeout")
        for new in map(_uuid, range(1000))
    ]
    async with office.db.transaction() as conn:
        before = await _statements(conn)
        await telling.of_failed(conn, failures)
        assert await _statements(conn) == before + 1
    [one] = await told(api)
    assert (one["count"], one["detail"], one["path"]) == (1000, FAILED["timeout"], None)


def _uuid(number: int) -> Any:
    return f"01900000-0000-7000-8000-{number:012}"


async def _statements(conn: Any) -> int:
    """How many statements this connection has sent: each begins a new command of its transaction."""
    conn.sent = getattr(conn, "sent", None) or AsyncMock(wraps=conn.execute)
    conn.execute = conn.sent
    return int(conn.sent.await_count)


async def test_who_succeeds_costs_nothing(office: Office, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("of_failed", "of_paused", "of_approval", "settled"):
        monkeypatch.setattr(telling, name, AsyncMock(side_effect=AssertionError("a statement for nothing")))
    run = assert_ok(await api.post(f"/automations/{(await saved(api))['id']}/run"))
    await office.settle(await office.claim())
    assert assert_ok(await api.get(f"/runs/{run['id']}"), 200)["status"] == "succeeded"
    assert await told(api) == []


async def test_what_was_rolled_back_was_not_told(office: Office, api: Api) -> None:
    automation = await saved(api, max_rescues=0)
    assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    at_work = await office.claim()
    await office.set_run(at_work.id, lease_until=from_now(seconds=-1))
    async with office.db.transaction() as conn:
        assert await sweeping.rescue(conn, 10) == 1
        roll_back()
    assert await told(api) == []
    async with office.db.transaction() as conn:
        await sweeping.rescue(conn, 10)
    assert [each["detail"] for each in await told(api)] == [FAILED["stalled"]]


async def test_an_automation_that_pauses_itself_says_so_once(office: Office, api: Api) -> None:
    automation = await saved(api, pause_after_failures=2)
    await fail(office, api, automation)
    await fail(office, api, automation)
    paused, failed = await told(api)
    if paused["kind"] != "paused":
        paused, failed = failed, paused
    stored = assert_ok(await api.get(f"/automations/{automation['id']}"), 200)
    assert (paused["title"], paused["detail"]) == ("Morning digest was paused", stored["paused_reason"])
    assert paused["path"] == f"/w/{api.workspace}/automations/{automation['id']}"
    assert failed["count"] == 2
    assert_ok(await api.post(f"/notifications/{paused['id']}/read"), 200)
    await fail(office, api, automation)
    assert [each["kind"] for each in await told(api, unread=True)] == ["run_failed"], "it was paused already"


async def test_a_question_is_told_to_its_owner_and_settled_by_the_answer(office: Office, api: Api) -> None:
    member = await office.api("member")
    run = assert_ok(await member.post(f"/automations/{(await saved(member))['id']}/run"))
    asked = await (await office.claim()).desk.park("May I water " + "the plants " * 40 + "?")
    assert isinstance(asked, Parked)
    [one] = await told(member)
    assert (one["kind"], one["title"]) == ("needs_approval", "Morning digest waits for an answer")
    assert one["path"] == f"/w/{api.workspace}/sessions/{run['session_id']}#a-{asked.approval_id}"
    assert one["detail"].startswith("May I water the plants")
    assert len(one["detail"]) == 200
    assert await told(api) == [], "the admin may answer too, but has enough of their own"
    assert_ok(await api.post(f"/approvals/{asked.approval_id}", {"answer": "approve"}), 200)
    assert await unread(member) == 0


async def test_where_no_owner_may_answer_the_admins_are_told(office: Office, api: Api) -> None:
    member = await office.api("member")
    assert_ok(await member.post(f"/automations/{(await saved(member))['id']}/run"))
    at_work = await office.claim()
    await office.execute(
        "UPDATE members SET level = 'viewer' WHERE workspace_id = %s AND level = 'member'", office.caller.workspace_id
    )
    await at_work.desk.park("May I?")
    assert [each["kind"] for each in await told(api)] == ["needs_approval"]
    assert await told(member) == []


async def test_a_question_that_nobody_answered_in_time_is_no_longer_unread(office: Office, api: Api) -> None:
    assert_ok(await api.post(f"/automations/{(await saved(api))['id']}/run"))
    at_work = await office.claim()
    asked = await at_work.desk.park("May I?")
    assert isinstance(asked, Parked)
    await office.settle(at_work, asked)
    await office.execute("UPDATE approvals SET expires_at = now() WHERE id = %s", asked.approval_id)
    await Rescue(office.db, office.site.web.wakes).once()
    assert {each["kind"]: each["read_at"] is None for each in await told(api)} == {
        "run_failed": True,
        "needs_approval": False,
    }


async def test_a_grant_that_ends_within_a_week_is_told_of_once(office: Office, api: Api) -> None:
    automation, later = await saved(api), await saved(api, name="Later")
    for each, days in ((automation, 6), (later, 8)):
        end = "UPDATE grants SET expires_at = now() + %s WHERE id = %s"
        await office.execute(end, timedelta(days=days), each["grant_id"])
    for _ in range(2):
        await Remind(office.db).once()
    [one] = await told(api)
    assert (one["kind"], one["title"]) == ("grant_expiring", "The grant of Morning digest is about to expire")
    assert (one["grant_id"], one["path"]) == (
        automation["grant_id"],
        f"/w/{api.workspace}/settings/grants/{automation['grant_id']}",
    )
    assert one["detail"].startswith("It ends on ")
    assert_ok(await api.post(f"/notifications/{one['id']}/read"), 200)
    await Remind(office.db).once()
    assert await unread(api) == 0


async def test_a_grant_that_was_replaced_ends_in_silence(office: Office, api: Api) -> None:
    automation = await saved(api)
    assert_ok(await api.post(f"/automations/{automation['id']}/renew-grant"), 200)
    await office.execute(
        "UPDATE grants SET expires_at = now() + interval '1 day' WHERE id = %s", automation["grant_id"]
    )
    await Remind(office.db).once()
    assert await told(api) == []


async def test_a_low_budget_is_told_to_the_admins_and_to_whose_automation_it_is(office: Office, api: Api) -> None:
    member, other = await office.api("member"), await office.api("member")
    automation = await saved(member, budget={"per_run": {"tokens": 100}, "per_month": {"tokens": 100}})
    assert_ok(await member.post(f"/automations/{automation['id']}/run"))
    at_work = await office.claim()
    await at_work.desk.usage("tokens", 90)
    await office.settle(at_work)
    for who in (api, member):
        [one] = await told(who)
        assert one["title"] == "The budget of Morning digest is nearly used up"
        assert one["detail"] == "90 of 100 tokens are spent this month."
        assert one["path"] == f"/w/{api.workspace}/automations/{automation['id']}"
    assert await told(other) == []


async def test_the_low_budget_of_an_account_is_told_to_the_admins(office: Office, api: Api) -> None:
    member, workspace_id = await office.api("member"), office.caller.workspace_id
    account = await office.value("SELECT id FROM accounts WHERE workspace_id = %s", workspace_id)
    async with office.db.transaction() as conn:
        await telling.of_low_budgets(conn, [(workspace_id, account, "80 of 100 money are spent this month.")])
    [one] = await told(api)
    assert one["account_id"] == str(account)
    assert one["path"] == f"/w/{api.workspace}/settings/accounts#a-{account}"
    assert await told(member) == []


async def test_who_does_not_want_to_hear_of_it_does_not(office: Office, api: Api) -> None:
    chosen = assert_ok(
        await api.send("PUT", "/notifications/choices", json={"run_failed": {"bell": False, "outward": False}}), 200
    )
    assert chosen["run_failed"] == {"bell": False, "outward": False}
    assert chosen["paused"] == {"bell": True, "outward": True}
    assert assert_ok(await api.get("/notifications/choices"), 200) == chosen
    await fail(office, api, await saved(api))
    assert await told(api) == []
    assert set(chosen) == {kind.value for kind in Kind} == {kind.value for kind in WORDS}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"odd": {"bell": True, "outward": True}}, "odd"),
        ({"paused": None}, "paused"),
        ({"paused": {"bell": True}}, "paused.outward"),
        ({"paused": {"bell": True, "outward": "sometimes"}}, "paused.outward"),
    ],
)
async def test_choices_that_make_no_sense_are_refused(api: Api, body: Any, field: str) -> None:
    assert_refused(await api.send("PUT", "/notifications/choices", json=body), 422, "invalid", field)


async def test_the_list_is_in_pages_and_all_are_read_at_once(office: Office, api: Api) -> None:
    for name in ("One", "Two", "Three"):
        await fail(office, api, await saved(api, name=name))
    whole = [each["title"] for each in await told(api)]
    assert whole == ["Three failed", "Two failed", "One failed"]
    assert [each["title"] for each in await api.pages("/notifications", 2)] == whole
    assert (await api.post("/notifications/read")).status_code == 204
    assert await unread(api) == 0
    assert await told(api, unread=True) == []
    assert len(await told(api, unread=False)) == 3
    assert_refused(await api.post(f"/notifications/{UNKNOWN}/read"), 404, "not_found")


async def test_old_ones_are_pruned(office: Office, api: Api) -> None:
    await fail(office, api, await saved(api))
    await fail(office, api, await saved(api, name="New"))
    await office.execute(
        "UPDATE notifications SET updated_at = now() - interval '91 days' WHERE workspace_id = %s AND about <> 'New'",
        office.caller.workspace_id,
    )
    await Prune(office.db, keep_events=timedelta(days=90), keep_snapshots=timedelta(days=7)).once()
    assert [each["title"] for each in await told(api)] == ["New failed"]


async def test_what_fails_of_somebody_who_left_is_told_to_the_admins(office: Office, api: Api) -> None:
    """And only to them; who owns something is told of it alone."""
    member = await office.api("member")
    workspace_id = office.caller.workspace_id
    owned = await saved(member)
    gone = await saved(member, name="Of nobody")
    await office.execute(
        "INSERT INTO users (id, name) VALUES ('01900000-0000-7000-8000-00000000abcd', 'Gone') ON CONFLICT DO NOTHING"
    )
    await office.execute(
        "UPDATE automations SET owner_id = '01900000-0000-7000-8000-00000000abcd' WHERE id = %s", gone["id"]
    )
    async with office.db.transaction() as conn:
        await telling.of_failed(
            conn,
            [
                telling.Failure(workspace_id, _uuid(number), AutomationId(each["id"]), None, "stuck")
                for number, each in enumerate((owned, gone))
            ],
        )
        await telling.of_paused(conn, [(workspace_id, AutomationId(gone["id"]))])
    assert [(each["kind"], each["automation_id"]) for each in await told(member)] == [("run_failed", owned["id"])]
    found = {(each["kind"], each["automation_id"]) for each in await told(api)}
    assert found == {("run_failed", gone["id"]), ("paused", gone["id"])}
    assert await office.value("SELECT count(*) FROM notifications WHERE workspace_id = %s", workspace_id) == 3


async def test_two_batches_about_the_same_automations_never_wait_for_each_other_in_a_ring(
    office: Office, api: Api
) -> None:
    """The first holds one row and goes on to the other; the second, given in the other order, waits behind it."""
    one, two = await saved(api), await saved(api, name="Two")

    def batch(*automations: dict[str, Any]) -> list[telling.Failure]:
        return [
            telling.Failure(office.caller.workspace_id, _uuid(number), AutomationId(each["id"]), None, "stuck")
            for number, each in enumerate(automations)
        ]

    async def second() -> None:
        async with office.db.transaction() as conn:
            await telling.of_failed(conn, batch(two, one))

    async with office.db.transaction() as conn:
        await telling.of_failed(conn, batch(one, two))
        waiting = asyncio.create_task(second())
        await office.site.waiting_for_a_lock(1)
    await waiting
    assert [each["count"] for each in await told(api)] == [2, 2]
