"""Grants: narrow, held by one person, looked at whenever a run begins or goes on, and over when they say so."""

from datetime import timedelta
from typing import Any

import pytest

from rota.access import grants
from rota.db import attempts
from rota.model.ids import AgentId, new_id
from rota.model.outcome import Cancelled
from rota.scheduler.tick import Scheduler
from rota.watch.rescue import Rescue
from support import api_client
from support.api_client import DAILY, UNKNOWN, Api, AtWork, Office, assert_ok, assert_refused, example
from support.run_state import PRESENT, from_now
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

OVER = {"revoked": "revoked_at = now(), expires_at = now()", "expired": "expires_at = now()", "scope": "scopes = '{}'"}


async def end(office: Office, grant_id: str, how: str) -> None:
    await office.execute(f"UPDATE grants SET {OVER[how]} WHERE id = %s", grant_id)


async def outcome(api: Api, run_id: Any) -> tuple[Any, ...]:
    run = assert_ok(await api.get(f"/runs/{run_id}"), 200)
    return run["status"], run["skip_reason"], run["error_class"]


async def at_work(office: Office, api: Api, path: str) -> AtWork:
    assert_ok(await api.post(f"{path}/run"))
    return await office.claim()


async def test_a_grant_is_for_one_agent_and_lasts_as_long_as_was_said(office: Office) -> None:
    agent_id = AgentId(new_id())
    async with office.db.transaction() as conn:
        lasting = await grants.make(conn, office.caller, agent_id)
        short = await grants.make(conn, office.caller, agent_id, lasts=grants.SHORT)
    assert await office.value("SELECT scopes FROM grants WHERE id = %s", lasting) == [f"agent:run:{agent_id}"]
    assert await office.value("SELECT expires_at FROM grants WHERE id = %s", lasting) is None
    assert await office.value("SELECT expires_at - created_at FROM grants WHERE id = %s", short) == timedelta(hours=24)


# Looked at ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", OVER)
async def test_a_slot_without_a_grant_is_skipped_and_the_automation_lives_on_and_says_why(
    office: Office, api: Api, how: str
) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    await end(office, saved["grant_id"], how)
    await office.execute("UPDATE triggers SET next_fire_at = now() WHERE automation_id = %s", saved["id"])
    await Scheduler(office.db, office.site.web.wakes).once()
    [run] = assert_ok(await api.get(f"/automations/{saved['id']}/runs"), 200)["items"]
    assert (run["status"], run["skip_reason"]) == ("skipped", f"grant_{how}")
    after = assert_ok(await api.get(f"/automations/{saved['id']}"), 200)
    assert (after["status"], after["grant_problem"]) == ("active", f"grant_{how}")
    assert after["next_fire_at"]


@pytest.mark.parametrize("how", OVER)
async def test_a_run_that_waits_is_skipped_when_it_is_claimed(office: Office, api: Api, how: str) -> None:
    saved = assert_ok(await api.post("/automations", example(max_attempts=3)))
    run = assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    await end(office, saved["grant_id"], how)
    other = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    assert str((await office.claim()).id) == other["id"], "the refused one took no place"
    assert await outcome(api, run["id"]) == ("skipped", f"grant_{how}", None)


async def test_a_run_that_had_begun_fails_when_it_would_go_on(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(max_attempts=3)))
    begun = await at_work(office, api, f"/automations/{saved['id']}")
    await office.set_run(begun.id, status="queued", lease_until=None, worker_id=None, ready_at=from_now())
    await end(office, saved["grant_id"], "expired")
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    await office.claim()
    assert await outcome(api, begun.id) == ("failed", None, "grant_invalid")


async def test_a_heartbeat_finds_that_the_grant_has_ended_and_stops_the_agent(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(max_attempts=3)))
    begun = await at_work(office, api, f"/automations/{saved['id']}")
    key = (office.caller.workspace_id, begun.id, 1)
    async with office.db.connection() as conn:
        assert await attempts.renew(conn, [key], timedelta(hours=1)) == {begun.id: False}
        await end(office, saved["grant_id"], "expired")
        assert await attempts.renew(conn, [key], timedelta(hours=1)) == {begun.id: True}
    await office.settle(begun, Cancelled())
    assert await outcome(api, begun.id) == ("failed", None, "grant_invalid")


async def test_a_run_by_hand_has_a_short_grant_of_the_caller(office: Office, api: Api) -> None:
    run = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    told = assert_ok(await api.get(f"/grants/{run['grant_id']}"), 200)
    assert (told["user_id"], told["automation_id"], told["runs"]) == (str(office.caller.user_id), None, 1)
    assert told["scopes"] == [f"agent:run:{run['agent_id']}"]
    assert told["expires_at"]


# Revoked ------------------------------------------------------------------------------------------------------------


async def test_revoking_ends_what_waits_and_what_is_parked_and_asks_what_runs_to_stop(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    directly = "/agents/worker-bee/runs"
    for _ in range(3):
        assert_ok(await api.post(directly, {"prompt": "Sweep."}))
    parked, again, running = [await office.claim() for _ in range(3)]
    waiting = assert_ok(await api.post(directly, {"prompt": "Sweep."}))
    await office.set_runs({"workspace_id": office.caller.workspace_id}, grant_id=saved["grant_id"])
    await office.set_run(parked.id, status="awaiting_approval", lease_until=None, worker_id=None)
    await office.set_run(again.id, status="queued", lease_until=None, worker_id=None)
    stranger = assert_ok(await api.post(directly, {"prompt": "Sweep."}))
    told = assert_ok(await api.post(f"/grants/{saved['grant_id']}/revoke"), 200)
    assert (told["status"], told["revoked_by"]) == ("revoked", str(office.caller.user_id))
    assert await outcome(api, waiting["id"]) == ("skipped", "grant_revoked", None)
    assert await outcome(api, parked.id) == ("failed", None, "grant_invalid")
    assert await outcome(api, again.id) == ("failed", None, "grant_invalid")
    assert (await office.run(running.id))["cancel_requested_at"]
    await office.settle(running, Cancelled())
    assert await outcome(api, running.id) == ("failed", None, "grant_invalid")
    assert (await outcome(api, stranger["id"]))[0] == "queued", "another grant's"
    assert assert_ok(await api.post(f"/grants/{saved['grant_id']}/revoke"), 200)["revoked_at"] == told["revoked_at"]


async def test_an_agent_at_work_is_stopped_as_soon_as_its_grant_is_revoked(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(max_attempts=3)))
    begun = await at_work(office, api, f"/automations/{saved['id']}")
    office.hear_cancels()
    assert_ok(await api.post(f"/grants/{saved['grant_id']}/revoke"), 200)
    await until(lambda: office.has_runs(1, id=begun.id, finished_at=PRESENT))
    assert await outcome(api, begun.id) == ("failed", None, "grant_invalid")
    assert begun.outcome.cancelled(), "it was stopped, it did not end by itself"


async def test_a_run_whose_worker_is_lost_after_its_grant_was_revoked_is_not_queued_again(
    office: Office, api: Api
) -> None:
    saved = assert_ok(await api.post("/automations", example(max_attempts=3)))
    begun = await at_work(office, api, f"/automations/{saved['id']}")
    assert_ok(await api.post(f"/grants/{saved['grant_id']}/revoke"), 200)
    await office.set_run(begun.id, lease_until=from_now())
    await Rescue(office.db, office.site.web.wakes).once()
    assert await outcome(api, begun.id) == ("failed", None, "grant_invalid")


async def test_a_member_revokes_their_own_and_an_admin_anybodys(office: Office, api: Api) -> None:
    member, other = await office.api("member"), await office.api("member")
    mine = [assert_ok(await member.post("/automations", example()))["grant_id"] for _ in range(2)]
    assert_refused(await other.post(f"/grants/{mine[0]}/revoke"), 403, "forbidden")
    assert assert_ok(await member.post(f"/grants/{mine[0]}/revoke"), 200)["status"] == "revoked"
    assert assert_ok(await api.post(f"/grants/{mine[1]}/revoke"), 200)["status"] == "revoked"
    assert_refused(await api.post(f"/grants/{UNKNOWN}/revoke"), 404, "not_found")


async def test_all_that_somebody_allowed_ends_with_their_membership(office: Office, api: Api) -> None:
    member = await office.api("member")
    saved = assert_ok(await member.post("/automations", example()))
    run = assert_ok(await member.post(f"/automations/{saved['id']}/run"))
    user_id = await office.value("SELECT user_id FROM grants WHERE id = %s", saved["grant_id"])
    assert (await api.delete(f"/members/{user_id}")).status_code == 204
    assert await outcome(api, run["id"]) == ("skipped", "grant_revoked", None)
    assert_refused(await member.get("/agents"), 401, "unauthenticated")
    assert assert_ok(await api.get("/grants", user=user_id, status="valid"), 200)["items"] == []


# Renewed ------------------------------------------------------------------------------------------------------------


async def test_renewing_gives_a_new_grant_and_keeps_the_history(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    assert_ok(await api.post(f"/grants/{saved['grant_id']}/revoke"), 200)
    assert_refused(await api.post(f"/automations/{saved['id']}/run"), 409, "grant_revoked")
    renewed = assert_ok(await api.post(f"/automations/{saved['id']}/renew-grant", {"lasts": "90d"}), 200)
    assert renewed["grant_problem"] is None
    run = assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    history = assert_ok(await api.get("/grants", automation=saved["slug"]), 200)["items"]
    assert [(each["id"], each["status"], each["replaces"]) for each in history] == [
        (renewed["grant_id"], "valid", saved["grant_id"]),
        (saved["grant_id"], "revoked", None),
    ]
    told = assert_ok(await api.get(f"/grants/{renewed['grant_id']}"), 200)
    assert (told["runs"], told["last_run_at"]) == (1, run["queued_at"])
    assert [each["slug"] for each in told["automations"]] == [saved["slug"]]
    assert told["expires_at"]


async def test_a_grant_that_was_replaced_holds_a_day_longer_for_what_was_fired_under_it(
    office: Office, api: Api
) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    assert_ok(await api.post(f"/automations/{saved['id']}/renew-grant"), 200)
    begun = await office.claim()
    await office.settle(begun)
    assert (await outcome(api, begun.id))[0] == "succeeded"
    left = "SELECT expires_at - now() BETWEEN interval '23 hours' AND interval '24 hours' FROM grants WHERE id = %s"
    assert await office.value(left, saved["grant_id"])
    for patient in ({"timeout": "2d", "max_attempts": 2}, {"approval_expires": "4d"}):
        saved = assert_ok(await api.post("/automations", example(**patient)))
        assert_ok(await api.post(f"/automations/{saved['id']}/renew-grant"), 200)
        lasts = await office.value("SELECT expires_at - now() FROM grants WHERE id = %s", saved["grant_id"])
        assert lasts > timedelta(days=3), patient
