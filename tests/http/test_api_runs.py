"""Runs over HTTP: the ledger of the workspace, cancelling and retrying."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from rota.model.outcome import Cancelled, Succeeded
from rota.model.webhook import sign
from support import api_client, run_state
from support.api_client import UNKNOWN, Api, Office, assert_ok, assert_refused, example

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

SWEEP = {"prompt": "Sweep."}


async def started(api: Api, **values: Any) -> dict[str, Any]:
    """A run of a new automation."""
    automation = assert_ok(await api.post("/automations", example(**values)))
    return assert_ok(await api.post(f"/automations/{automation['id']}/run"))


async def failed(office: Office, api: Api, **values: Any) -> dict[str, Any]:
    run = await started(api, **values)
    await office.fail(await office.claim())
    return assert_ok(await api.get(f"/runs/{run['id']}"), 200)


# Reading ------------------------------------------------------------------------------------------------------------


async def test_a_run_tells_its_story_from_the_queue_to_its_end(office: Office, api: Api) -> None:
    queued = await started(api)
    assert (queued["started_at"], queued["worker_id"]) == (None, None)
    at_work = await office.claim()
    running = (await api.get(f"/runs/{queued['id']}")).json()
    assert (running["status"], running["attempt"], running["finished_at"]) == ("running", 1, None)
    assert running["worker_id"]
    assert running["started_at"] >= queued["queued_at"]
    await at_work.desk.usage("tokens", 120)
    await office.settle(at_work, Succeeded("Swept " + "and swept " * 30))
    ended = (await api.get(f"/runs/{queued['id']}")).json()
    assert (ended["status"], ended["tries"], ended["usage"]) == ("succeeded", 0, {"tokens": 120.0})
    assert len(ended["summary"]) <= 120
    assert ended["finished_at"] >= ended["started_at"]
    assert (ended["error_class"], ended["error_detail"], ended["skip_reason"]) == (None, None, None)
    [attempt] = ended["attempts"]
    assert (attempt["attempt"], attempt["worker_id"]) == (1, running["worker_id"])


async def test_a_failed_run_tells_why(office: Office, api: Api) -> None:
    run = await failed(office, api)
    assert (run["status"], run["error_class"], run["error_detail"]) == ("failed", "agent_error", "The tap was closed.")
    assert run["tries"] == 1


async def test_runs_are_listed_newest_first_and_by_status_automation_and_session(office: Office, api: Api) -> None:
    first = await failed(office, api)
    second = await started(api)
    third = assert_ok(await api.post("/agents/worker-bee/runs", SWEEP))
    everything = [first["id"], second["id"], third["id"]][::-1]

    async def listed(**filters: Any) -> list[str]:
        return [each["id"] for each in (await api.get("/runs", **filters)).json()["items"]]

    assert await listed() == everything
    assert await listed(status="failed") == [first["id"]]
    assert await listed(status="queued") == [third["id"], second["id"]]
    assert await listed(automation=second["automation_id"]) == [second["id"]]
    assert await listed(automation="morning-digest") == [first["id"]]
    assert await listed(session=third["session_id"]) == [third["id"]]
    assert await listed(session=third["session_id"], status="failed") == []
    assert await listed(session=UNKNOWN) == []


async def test_runs_of_a_deleted_automation_are_found_by_its_id(office: Office, api: Api) -> None:
    run = await failed(office, api)
    await api.delete(f"/automations/{run['automation_id']}")
    assert [each["id"] for each in (await api.get("/runs", automation=run["automation_id"])).json()["items"]] == [
        run["id"]
    ]


async def test_pages_of_runs_neither_repeat_nor_lose_what_was_queued_at_the_same_instant(
    office: Office, api: Api
) -> None:
    runs = [assert_ok(await api.post("/agents/worker-bee/runs", SWEEP))["id"] for _ in range(7)]
    await office.set_runs(queued_at=datetime(2026, 1, 1, tzinfo=UTC))
    for limit in (1, 3, 7):
        assert [each["id"] for each in await api.pages("/runs", limit)] == runs[::-1]


@pytest.mark.parametrize(
    ("given", "field"), [({"status": "pending"}, "status"), ({"session": "here"}, "session"), ({"limit": 0}, "limit")]
)
async def test_a_filter_that_makes_no_sense_is_refused(api: Api, given: dict[str, Any], field: str) -> None:
    assert_refused(await api.get("/runs", **given), 422, "invalid", field)


async def test_a_filter_by_an_automation_that_is_not_there_is_not_found(api: Api) -> None:
    assert_refused(await api.get("/runs", automation="nothing"), 404, "not_found")


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/cancel"), ("POST", "/retry")])
async def test_a_run_that_is_not_there_is_not_found_and_what_is_no_id_is_refused(
    api: Api, method: str, path: str
) -> None:
    assert_refused(await api.send(method, f"/runs/{UNKNOWN}{path}"), 404, "not_found")
    assert_refused(await api.send(method, f"/runs/latest{path}"), 422, "invalid", "run_id")


# Cancelling ---------------------------------------------------------------------------------------------------------


async def test_a_queued_run_is_cancelled_at_once_and_the_next_of_its_lane_becomes_ready(
    office: Office, api: Api
) -> None:
    first = await started(api)
    at_work = await office.claim()
    path = f"/automations/{first['automation_id']}/run"
    waiting = assert_ok(await api.post(path))
    cancelled = assert_ok(await api.post(f"/runs/{waiting['id']}/cancel"), 200)
    assert (cancelled["status"], cancelled["error_class"]) == ("cancelled", "cancelled_by_user")
    assert cancelled["finished_at"]
    behind = assert_ok(await api.post(path))
    assert behind["ready_at"] is None
    await office.settle(at_work)
    assert (await api.get(f"/runs/{behind['id']}")).json()["ready_at"]


async def test_a_running_run_is_asked_to_stop_and_ends_through_its_worker(office: Office, api: Api) -> None:
    run = await started(api)
    at_work = await office.claim()
    asked = assert_ok(await api.post(f"/runs/{run['id']}/cancel"), 202)
    assert asked["status"] == "running"
    again = assert_ok(await api.post(f"/runs/{run['id']}/cancel"), 202)
    assert again["cancel_requested_at"] == asked["cancel_requested_at"] is not None
    await office.settle(at_work, Cancelled())
    ended = (await api.get(f"/runs/{run['id']}")).json()
    assert (ended["status"], ended["error_class"]) == ("cancelled", "cancelled_by_user")


@asynccontextmanager
async def told_to_stop(office: Office, run: dict[str, Any]) -> AsyncIterator[None]:
    """Within, its worker must be told to stop the run, which is then on record."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with office.site.web.listener.subscribed("rota_cancels", heard.put_nowait):
        yield
        async with asyncio.timeout(10):
            while await heard.get() != run["id"]:
                pass
    assert (await office.run(run["id"]))["cancel_requested_at"]


async def test_the_worker_of_a_running_run_is_told_once_the_asking_is_committed(office: Office, api: Api) -> None:
    run = await started(api)
    await office.claim()
    async with told_to_stop(office, run):
        await api.post(f"/runs/{run['id']}/cancel")


async def test_the_worker_is_told_when_an_event_or_a_webhook_replaces_its_run(office: Office, api: Api) -> None:
    triggers = [{"event": "rain"}, {"webhook": {}}]
    automation = assert_ok(await api.post("/automations", example(triggers=triggers, overlap="replace")))
    [hook] = [each for each in automation["triggers"] if each["secret"]]
    first = assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    at_work = await office.claim()
    async with told_to_stop(office, first):
        [second] = assert_ok(await api.post("/events", {"event": "rain"}), 202)["runs"]
    await office.settle(at_work, Cancelled())
    await office.claim()
    now = str(int(time.time()))
    signed = {"webhook-id": "m", "webhook-timestamp": now, "webhook-signature": sign(hook["secret"], "m", now, b"")}
    async with told_to_stop(office, {"id": second}):
        assert_ok(await api.client.post(hook["hook_path"], headers=signed), 202)


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
async def test_a_run_that_has_ended_cannot_be_cancelled(office: Office, api: Api, outcome: str) -> None:
    run = await started(api)
    if outcome == "cancelled":
        await api.post(f"/runs/{run['id']}/cancel")
    else:
        at_work = await office.claim()
        await (office.settle(at_work) if outcome == "succeeded" else office.fail(at_work))
    before = (await api.get(f"/runs/{run['id']}")).json()
    told = assert_refused(await api.post(f"/runs/{run['id']}/cancel"), 409, "run_ended")
    assert told["run_status"] == outcome
    assert (await api.get(f"/runs/{run['id']}")).json() == before


async def test_members_cancel_their_own_runs_and_those_of_their_automations_but_no_others(office: Office) -> None:
    admin, member, other = await office.api(), await office.api("member"), await office.api("member")
    theirs = await started(member)
    direct = assert_ok(await member.post("/agents/worker-bee/runs", SWEEP))
    for run in (theirs, direct):
        assert_refused(await other.post(f"/runs/{run['id']}/cancel"), 403, "forbidden")
        assert (await admin.get(f"/runs/{run['id']}")).json()["status"] == "queued"
    assert_ok(await member.post(f"/runs/{theirs['id']}/cancel"), 200)
    assert_ok(await admin.post(f"/runs/{direct['id']}/cancel"), 200)


# Retrying -----------------------------------------------------------------------------------------------------------


async def test_a_retry_is_a_new_run_that_names_the_old_one_and_leaves_it_alone(office: Office, api: Api) -> None:
    old = await failed(office, api)
    new = assert_ok(await api.post(f"/runs/{old['id']}/retry"))
    assert (new["source"], new["retry_of"], new["status"]) == ("retry", old["id"], "queued")
    assert (new["automation_id"], new["revision"]) == (old["automation_id"], old["revision"])
    assert new["session_id"] != old["session_id"]
    assert new["trace_id"] != old["trace_id"]
    assert (await api.get(f"/runs/{old['id']}")).json() == old


async def test_a_retry_does_what_the_old_run_was_told_whatever_was_changed_since(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example(prompt="Old", session="same", timeout="5m")))
    path = f"/automations/{automation['id']}"
    old = assert_ok(await api.post(f"{path}/run", {"payload": {"n": 1}}))
    await office.fail(await office.claim())
    other = {"name": "Other", "executor": "python", "config": {"function": "a:b"}, "pool": "elsewhere"}
    assert_ok(await api.post("/agents", other))
    assert_ok(await api.patch(path, {"prompt": "New", "agent": "other", "timeout": "10m"}), 200)
    new = assert_ok(await api.post(f"/runs/{old['id']}/retry"))
    assert (new["revision"], new["agent_id"], new["payload"]) == (1, old["agent_id"], {"n": 1})
    assert new["grant_id"] != old["grant_id"]
    given = (await office.claim()).assignment
    assert (str(given.run_id), given.prompt, given.config) == (new["id"], "Old", {"argv": ["true"]})
    assert given.timeout.total_seconds() == 300


async def test_a_retry_never_has_old_words_done_on_the_authority_of_who_has_changed_them(office: Office) -> None:
    """Who took the automation over has agreed to what it does now, not to what its owner had it do before."""
    admin, owner = await office.api(), await office.api("member")
    old = await failed(office, owner)
    account = assert_ok(await admin.post("/accounts", {"name": "Research"}))["id"]
    path = f"/automations/{old['automation_id']}"
    assert_ok(await admin.post(f"{path}/renew-grant", {"account": account}), 200)
    assert_ok(await owner.post(f"{path}/renew-grant"), 200)
    assert_ok(await admin.patch(path, {"prompt": "As the admin", "accept_grant": True}), 200)
    new = assert_ok(await owner.post(f"/runs/{old['id']}/retry"))
    acts_as = "SELECT user_id FROM grants WHERE id = %s"
    assert await office.value(acts_as, new["grant_id"]) == await office.value(acts_as, old["grant_id"])
    assert await office.value(acts_as, new["grant_id"]) != office.caller.user_id
    charges = "SELECT account_id::text FROM grants WHERE id = %s"
    assert await office.value(charges, new["grant_id"]) == account, "the one that the automation charges"


async def test_a_retry_of_a_direct_run_runs_the_agent_as_it_stood_then(office: Office, api: Api) -> None:
    old = assert_ok(await api.post("/agents/worker-bee/runs", {**SWEEP, "input": {"room": 4}, "timeout": "5m"}))
    await office.fail(await office.claim())
    await api.patch("/agents/worker-bee", {"config": {"argv": ["false"]}})
    new = assert_ok(await api.post(f"/runs/{old['id']}/retry"))
    assert (new["source"], new["retry_of"], new["revision"]) == ("retry", old["id"], old["revision"])
    given = (await office.claim()).assignment
    assert (given.prompt, given.input, given.config) == ("Sweep.", {"room": 4}, {"argv": ["true"]})
    assert given.timeout.total_seconds() == 300


async def test_a_direct_run_that_its_budget_kept_from_starting_is_retried_as_often_as_one_likes(api: Api) -> None:
    [account] = assert_ok(await api.get("/accounts"), 200)["items"]
    ten = {"per_run": {"tokens": 10}, "per_month": {"tokens": 10}}
    assert_ok(await api.patch(f"/accounts/{account['id']}", {"budget": ten}), 200)
    assert_ok(await api.post("/agents/worker-bee/runs", SWEEP))
    run = assert_ok(await api.post("/agents/worker-bee/runs", SWEEP))
    for _ in range(2):
        assert (run["skip_reason"], run["session_id"]) == ("budget", None)
        run = assert_ok(await api.post(f"/runs/{run['id']}/retry"))


async def test_what_failed_was_cancelled_or_skipped_can_be_retried_and_nothing_else(office: Office, api: Api) -> None:
    queued = await started(api)
    assert_refused(await api.post(f"/runs/{queued['id']}/retry"), 409, "not_retryable")
    at_work = await office.claim()
    assert_refused(await api.post(f"/runs/{queued['id']}/retry"), 409, "not_retryable")
    await office.settle(at_work)
    assert_refused(await api.post(f"/runs/{queued['id']}/retry"), 409, "not_retryable")
    cancelled = await started(api)
    await api.post(f"/runs/{cancelled['id']}/cancel")
    assert_ok(await api.post(f"/runs/{cancelled['id']}/retry"))
    skipped = await started(api)
    await office.set_run(skipped["id"], trigger_id=skipped["id"])
    await api.post(f"/automations/{skipped['automation_id']}/pause")
    assert_ok(await api.post(f"/runs/{skipped['id']}/retry"))


async def test_a_retry_while_a_run_of_the_automation_is_queued_answers_its_id(office: Office, api: Api) -> None:
    old = await failed(office, api)
    queued = assert_ok(await api.post(f"/automations/{old['automation_id']}/run"))
    assert assert_refused(await api.post(f"/runs/{old['id']}/retry"), 409, "already_queued")["run_id"] == queued["id"]


async def test_a_run_of_a_deleted_automation_or_paused_agent_is_not_retried(office: Office, api: Api) -> None:
    old = await failed(office, api)
    direct = assert_ok(await api.post("/agents/worker-bee/runs", SWEEP))
    await api.post(f"/runs/{direct['id']}/cancel")
    await api.patch("/agents/worker-bee", {"status": "paused"})
    assert_refused(await api.post(f"/runs/{old['id']}/retry"), 409, "agent_paused")
    assert_refused(await api.post(f"/runs/{direct['id']}/retry"), 409, "agent_paused")
    await api.patch("/agents/worker-bee", {"status": "active"})
    await api.delete(f"/automations/{old['automation_id']}")
    assert_refused(await api.post(f"/runs/{old['id']}/retry"), 409, "automation_deleted")


async def test_the_same_key_gives_the_same_retry_also_after_it_failed_and_not_the_retry_of_another_run(
    office: Office, api: Api
) -> None:
    old, other = await failed(office, api), await failed(office, api)
    first = assert_ok(await api.post(f"/runs/{old['id']}/retry", key="again"))
    assert assert_ok(await api.post(f"/runs/{old['id']}/retry", key="again")) == first
    await office.fail(await office.claim())
    assert assert_ok(await api.post(f"/runs/{old['id']}/retry", key="again"))["id"] == first["id"]
    assert_refused(await api.post(f"/runs/{other['id']}/retry", key="again"), 422, "key_reused", "Idempotency-Key")
    assert len(await office.ledger()) == 3


async def test_two_retries_with_one_key_at_the_same_moment_make_one_run(office: Office, api: Api) -> None:
    old = await failed(office, api)
    async with office.db.connection() as holder:
        async with holder.transaction():
            await holder.execute("SELECT FROM automations WHERE id = %s FOR UPDATE", [old["automation_id"]])
            both = [asyncio.create_task(api.post(f"/runs/{old['id']}/retry", key="both")) for _ in range(2)]
            await office.site.waiting_for_a_lock(2)
        first, second = [assert_ok(await each) for each in both]
    assert first == second
    assert len(await office.ledger()) == 2


async def test_two_direct_runs_with_one_key_at_the_same_moment_make_one_run(office: Office, api: Api) -> None:
    """Nothing but the key's own lock keeps these apart."""
    async with office.db.connection() as holder:
        async with holder.transaction():
            await run_state.lock_table(holder, "SHARE")
            both = [asyncio.create_task(api.post("/agents/worker-bee/runs", SWEEP, key="both")) for _ in range(2)]
            await office.site.waiting_for_a_lock(2)
        first, second = [assert_ok(await each) for each in both]
    assert first == second
    assert len(await office.ledger()) == 1


@pytest.mark.parametrize("key", ["", "k" * 201, "tab\there", "\x7f"])
async def test_a_key_is_1_to_200_printable_characters(office: Office, api: Api, key: str) -> None:
    assert_refused(await api.post("/agents/worker-bee/runs", SWEEP, key=key), 422, "invalid_key", "Idempotency-Key")
    assert await office.ledger() == []


# Whose ---------------------------------------------------------------------------------------------------------------


async def ids(api: Api, path: str, **filters: Any) -> list[str]:
    """The ids of a list, read two at a time."""
    found, cursor = [], None
    while True:
        given = {name: value for name, value in {**filters, "cursor": cursor}.items() if value is not None}
        page = assert_ok(await api.get(path, limit=2, **given), 200)
        found += [each["id"] for each in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


async def test_lists_are_limited_to_what_one_person_owns(office: Office, api: Api) -> None:
    ada = await office.api("member")
    me = (await ada.get("/me")).json()["id"]
    await office.execute("UPDATE users SET email = 'ada.owns@example.org' WHERE id = %s", me)
    theirs = await started(api, name="Of the admin")
    by_hand = assert_ok(await ada.post("/agents/worker-bee/runs", SWEEP))
    automation = assert_ok(await ada.post("/automations", example(name="Of Ada")))
    by_ada = assert_ok(await ada.post(f"/automations/{automation['id']}/run"))
    await office.fail(await office.claim())
    await office.settle(await office.claim())
    await office.settle(await office.claim())
    by_admin = assert_ok(await api.post(f"/automations/{automation['id']}/run"))  # Ada owns the automation
    mine = [by_admin, by_ada, by_hand]
    for owner, caller in (("me", ada), (me, ada), ("ada.owns@example.org", ada), ("Ada.Owns@example.org", api)):
        assert await ids(caller, "/automations", owner=owner) == [automation["id"]]
        assert await ids(caller, "/runs", owner=owner) == [each["id"] for each in mine]
        assert await ids(caller, "/sessions", owner=owner) == [each["session_id"] for each in mine]
    assert await ids(ada, "/sessions", owner="me", kind="interactive") == [by_hand["session_id"]]
    assert await ids(ada, "/runs", owner="me", automation=automation["id"]) == [by_admin["id"], by_ada["id"]]
    assert await ids(ada, "/runs", owner="me", session=by_hand["session_id"]) == [by_hand["id"]]
    ended = {}
    for status in ("queued", "running", "failed", "skipped", "cancelled", "succeeded"):
        everybody = set(await ids(api, "/runs", status=status))
        ended[status] = await ids(ada, "/runs", owner="me", status=status)
        assert set(ended[status]) == everybody & {each["id"] for each in mine}
    assert sum(map(len, ended.values())) == 3
    assert theirs["id"] in await ids(api, "/runs", owner="me")


async def test_what_somebody_owned_is_listed_after_they_were_removed(office: Office, api: Api) -> None:
    bob = await office.api("member")
    me = (await bob.get("/me")).json()["id"]
    automation = assert_ok(await bob.post("/automations", example(name="Of Bob")))
    assert (await api.delete(f"/members/{me}")).status_code == 204
    assert await ids(api, "/automations", owner=me) == [automation["id"]]


async def test_an_owner_that_nobody_here_is_is_refused(office: Office, api: Api) -> None:
    await office.execute("UPDATE users SET email = 'admin.owns@example.org' WHERE id = %s", office.caller.user_id)
    member = await office.api("member")
    for path in ("/automations", "/runs", "/sessions"):
        for owner in (UNKNOWN, "nobody@example.org", "Me"):
            assert_refused(await api.get(path, owner=owner), 422, "unknown_owner", "owner")
        # E-mail addresses are shown to admins only, so nobody else may try them out.
        assert_refused(await member.get(path, owner="admin.owns@example.org"), 422, "unknown_owner", "owner")
        assert_refused(await api.get(path, owner=""), 422, "invalid", "owner")
