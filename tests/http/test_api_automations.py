"""Automations over HTTP: saving and changing, pausing and deleting, running now, and who may."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from rota.db.pool import PatientConnection
from rota.http.shapes.pages import cursor_of
from rota.scheduler.tick import Scheduler
from rota.watch.rescue import Rescue
from support import api_client, run_state
from support.api_client import DAILY, UNKNOWN, Api, Office, assert_ok, assert_refused, example

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

FIELDS = {
    "id", "slug", "name", "status", "paused_reason", "deleted_at", "agent_id", "agent", "prompt", "input",
    "credentials", "schedule_text",
    "triggers", "next_fire_at", "next_fires", "last_run", "grant_id", "grant_problem", "owner", "revision", "session", "session_id",
    "overlap", "catch_up", "catch_up_limit", "late_after", "max_attempts", "max_rescues", "max_task_depth", "max_tasks",
    "timeout", "start_within", "approval_expires", "pre_approvals", "pause_after_failures", "budget", "scopes",
    "created_at", "updated_at",
}  # fmt: skip
RUN_FIELDS = {
    "id", "automation_id", "trigger_id", "session_id", "agent_id", "grant_id", "revision", "status", "source", "slot",
    "missed", "payload", "retry_of", "created_by", "ready_at", "queued_at", "started_at", "finished_at", "attempt", "tries",
    "rescues", "max_attempts", "worker_id", "skip_reason", "error_class", "error_detail", "summary", "usage", "trace_id",
    "cancel_requested_at", "refused_tasks",
}  # fmt: skip
WRITTEN = ("automations", "triggers", "grants", "revisions", "sessions", "runs", "events")


async def fire(office: Office, automation_id: str, slot: datetime | None = None) -> None:
    """Let its triggers be due since that slot, or just now, and the scheduler make a pass."""
    due = slot or datetime.now(UTC) - timedelta(seconds=1)
    await office.execute("UPDATE triggers SET next_fire_at = %s WHERE automation_id = %s", due, automation_id)
    await Scheduler(office.db, office.site.web.wakes).once()


# Saving -------------------------------------------------------------------------------------------------------------


async def test_the_example_of_the_design_is_saved_and_answered_with_what_follows_from_it(
    office: Office, api: Api
) -> None:
    written = {
        "name": "Morning digest", "agent": "worker-bee", "prompt": "Summarise my inbox", "input": {"folder": "work"},
        "schedule": {"cron": "0 9 * * 1-5", "timezone": "America/Los_Angeles"}, "run_immediately": False,
        "overlap": "skip", "catch_up": "one", "timeout": "30m", "max_attempts": 2,
    }  # fmt: skip
    saved = assert_ok(await api.post("/automations", written))
    assert set(saved) == FIELDS
    agent = (await api.get("/agents/worker-bee")).json()
    assert (saved["agent"], saved["agent_id"], saved["owner"]) == ("worker-bee", agent["id"], "Local admin")
    assert (saved["slug"], saved["status"], saved["revision"]) == ("morning-digest", "active", 1)
    assert (saved["prompt"], saved["input"], saved["timeout"]) == ("Summarise my inbox", {"folder": "work"}, "30m")
    assert (saved["max_attempts"], saved["overlap"], saved["catch_up"]) == (2, "skip", "one")
    assert (saved["late_after"], saved["start_within"], saved["approval_expires"]) == ("1m", "15m", "1d")
    assert (saved["last_run"], saved["session_id"], saved["deleted_at"]) == (None, None, None)
    [trigger] = saved["triggers"]
    assert trigger["schedule"] == {"cron": "0 9 * * 1-5", "timezone": "America/Los_Angeles"}
    assert saved["schedule_text"] == trigger["text"]
    assert "09:00" in saved["schedule_text"]
    assert len(saved["next_fires"]) == 3
    assert saved["next_fires"] == sorted(saved["next_fires"])
    assert saved["next_fires"][0] == saved["next_fire_at"] == trigger["next_fire_at"]
    assert await office.value("SELECT user_id FROM grants WHERE id = %s", saved["grant_id"]) == office.caller.user_id


async def test_an_automation_is_found_by_id_and_by_slug(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    assert (await api.get(f"/automations/{saved['id']}")).json() == saved
    assert (await api.get("/automations/morning-digest")).json() == saved


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        ({"cron": "@daily"}, "cron"),
        ({"every": "15m"}, "every"),
        ({"at": "2127-01-01T09:00:00Z"}, "at"),
        ({"mode": "interval", "every": 2, "unit": "days", "time": "09:00", "timezone": "Europe/Berlin"}, "every"),
        ({"mode": "weekly", "weekdays": ["mon", "fri"], "time": "09:00", "timezone": "Asia/Tokyo"}, "cron"),
        ({"mode": "advanced", "cron": "*/5 * * * *", "timezone": "UTC"}, "cron"),
    ],
)
async def test_every_way_to_write_a_schedule_is_taken_and_can_be_saved_again(
    api: Api, schedule: dict[str, Any], kind: str
) -> None:
    [trigger] = assert_ok(await api.post("/automations", example(schedule=schedule)))["triggers"]
    assert (trigger["kind"], trigger["editor_mode"]) == (kind, schedule.get("mode"))
    [again] = assert_ok(await api.post("/automations", example(schedule=trigger["schedule"])))["triggers"]
    assert again["schedule"] == trigger["schedule"]


async def test_triggers_take_limits_of_their_own(api: Api) -> None:
    limits = {
        "enabled": False, "starts_at": "2127-01-01T00:00:00Z", "ends_at": "2128-01-01T00:00:00Z", "max_fires": 7,
        "jitter": "5m", "overlap": "allow",
    }  # fmt: skip
    saved = assert_ok(await api.post("/automations", example(triggers=[{**DAILY, **limits}, {"every": "1h"}])))
    [limited, plain] = saved["triggers"]
    told = "Every day at 09:00, UTC, from 1 January 2127, until 1 January 2128, 7 times (switched off)"
    assert limited["text"] == told
    assert {name: limited[name] for name in limits} == limits
    assert limited["next_fire_at"] is None
    assert saved["next_fire_at"] == plain["next_fire_at"]
    assert saved["schedule_text"] == f"{limited['text']}; {plain['text'][0].lower()}{plain['text'][1:]}"


async def test_next_fires_stop_where_the_trigger_stops(api: Api) -> None:
    ends = datetime.now(UTC) + timedelta(hours=2, minutes=5)
    ending = assert_ok(await api.post("/automations", example(triggers=[{"every": "1h", "ends_at": ends.isoformat()}])))
    counted = assert_ok(await api.post("/automations", example(triggers=[{"every": "1h", "max_fires": 1}])))
    assert (len(ending["next_fires"]), len(counted["next_fires"])) == (2, 1)


async def test_next_fires_are_to_come_also_while_nobody_fires(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule={"every": "5m"})))
    late = "UPDATE triggers SET anchor_at = now() - '1 hour'::interval, next_fire_at = now() - '55 min'::interval"
    await office.execute(f"{late} WHERE automation_id = %s", saved["id"])
    shown = assert_ok(await api.get(f"/automations/{saved['id']}"), 200)
    fires = [datetime.fromisoformat(each) for each in shown["next_fires"]]
    assert len(fires) == 3
    assert all(at > datetime.now(UTC) - timedelta(minutes=1) for at in fires)


async def test_a_trigger_that_cannot_be_read_does_not_hide_its_automation_or_the_others(
    office: Office, api: Api
) -> None:
    broken = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    assert_ok(await api.post("/automations", example(schedule=DAILY)))
    await office.execute("UPDATE triggers SET cron = 'bogus' WHERE automation_id = %s", broken["id"])
    [whole, shown] = (await api.get("/automations")).json()["items"]
    assert (shown["schedule_text"], shown["next_fires"]) == ("Cannot be read", [])
    assert len(whole["next_fires"]) == 3


async def test_a_schedule_takes_the_same_limits_as_a_trigger(api: Api) -> None:
    [trigger] = assert_ok(await api.post("/automations", example(schedule={**DAILY, "max_fires": 3})))["triggers"]
    assert trigger["max_fires"] == 3


async def test_without_a_schedule_it_only_runs_by_hand(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    assert (saved["schedule_text"], saved["triggers"], saved["next_fires"]) == ("Only when run by hand", [], [])


async def test_run_immediately_starts_a_run_with_the_saving(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(run_immediately=True)))
    assert (saved["last_run"]["source"], saved["last_run"]["status"]) == ("run_now", "queued")
    assert saved["last_run"]["session_id"]


async def test_it_can_be_saved_paused(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(status="paused", schedule=DAILY)))
    assert (saved["status"], saved["next_fire_at"], saved["next_fires"]) == ("paused", None, [])


async def test_session_same_gives_it_its_one_session(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(session="same")))
    run = assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    assert run["session_id"] == saved["session_id"] is not None


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"schedul": DAILY}, "invalid", "schedul"),
        ({"schedule": {"cron": "0 0 31 2 *"}}, "invalid_cron", "schedule.cron"),
        ({"schedule": {"cron": "* * * * * *"}}, "invalid_cron", "schedule.cron"),
        ({"schedule": {"cron": "0 9 * * *", "timezone": "Europe/Berlni"}}, "unknown_timezone", "schedule.timezone"),
        ({"schedule": {"cron": "0 9 * * *", "tz": "UTC"}}, "invalid_schedule", "schedule.tz"),
        ({"schedule": {"at": "2020-01-01T00:00:00Z"}}, "invalid_schedule", "schedule.at"),
        ({"schedule": {"every": "0s"}}, "invalid_duration", "schedule.every"),
        ({"schedule": {}}, "invalid_schedule", "schedule"),
        ({"schedule": []}, "invalid", "schedule"),
        ({"schedule": {**DAILY, "max_fires": "many"}}, "invalid", "schedule.max_fires"),
        ({"schedule": {**DAILY, "starts_at": "soon"}}, "invalid", "schedule.starts_at"),
        ({"schedule": {**DAILY, "overlap": "maybe"}}, "invalid", "schedule.overlap"),
        ({"schedule": {**DAILY, "field": "x"}}, "invalid", "schedule.field"),
        ({"schedule": {**DAILY, "ends_at": "2020-01-01T00:00:00Z"}}, "never_fires", "schedule.ends_at"),
        ({"triggers": [DAILY, {"cron": "0 0 31 2 *"}]}, "invalid_cron", "triggers.1.cron"),
        ({"triggers": [{**DAILY, "max_fires": 0}]}, "invalid", "triggers.0.max_fires"),
        ({"triggers": [{**DAILY, "id": UNKNOWN}]}, "invalid", "triggers.0.id"),
        ({"triggers": [DAILY] * 51}, "invalid", "triggers"),
        ({"triggers": DAILY}, "invalid", "triggers"),
        ({"triggers": [DAILY], "schedule": DAILY}, "invalid", "schedule"),
        ({"agent": "nobody"}, "unknown_agent", "agent"),
        ({"agent": ""}, "unknown_agent", "agent"),
        ({"agent": UNKNOWN}, "unknown_agent", "agent"),
        ({"prompt": None}, "nothing_to_do", "prompt"),
        ({"prompt": " \n"}, "invalid", "prompt"),
        ({"prompt": 5}, "invalid", "prompt"),
        ({"name": ""}, "invalid", "name"),
        ({"name": "\u200b \u200d"}, "invalid", "name"),
        ({"slug": "Not a slug"}, "invalid_slug", "slug"),
        ({"slug": ""}, "invalid_slug", "slug"),
        ({"slug": UNKNOWN}, "invalid_slug", "slug"),
        ({"timeout": "soon"}, "invalid", "timeout"),
        ({"timeout": 30}, "invalid", "timeout"),
        ({"timeout": None}, "invalid", "timeout"),
        ({"max_attempts": 0}, "invalid", "max_attempts"),
        ({"max_attempts": 2.5}, "invalid", "max_attempts"),
        ({"max_task_depth": 0}, "invalid", "max_task_depth"),
        ({"max_tasks": 10_001}, "invalid", "max_tasks"),
        ({"catch_up": "all"}, "invalid", "catch_up_limit"),
        ({"catch_up": "some"}, "invalid", "catch_up"),
        ({"overlap": "maybe"}, "invalid", "overlap"),
    ],
)
async def test_what_is_wrong_is_refused_when_saved_and_when_changed_and_nothing_is_half_written(
    office: Office, api: Api, change: dict[str, Any], code: str, field: str
) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    before = await office.count(*WRITTEN)
    assert_refused(await api.post("/automations", example(**change)), 422, code, field)
    assert_refused(await api.patch(f"/automations/{saved['id']}", change), 422, code, field)
    assert await office.count(*WRITTEN) == before
    assert (await api.get(f"/automations/{saved['id']}")).json() == saved


async def test_a_dry_run_is_answered_as_if_it_were_saved_and_keeps_nothing(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    before = await office.count(*WRITTEN, "agents", "audit", "webhook_secrets")
    trial = {"params": {"dry_run": True}}
    tried = assert_ok(
        await api.post("/automations", example(triggers=[{"webhook": {}}], run_immediately=True), **trial), 200
    )
    assert (tried["triggers"][0]["secret"], tried["last_run"]["status"], tried["revision"]) == (None, "queued", 1)
    assert_refused(await api.get(f"/automations/{tried['id']}"), 404, "not_found")
    changed = assert_ok(await api.patch(f"/automations/{saved['id']}", {"timeout": "90m"}, **trial), 200)
    assert (changed["timeout"], changed["revision"]) == ("1h30m", 2)
    agent = {"name": "Tried", "executor": "command", "config": {"argv": ["true"]}}
    assert assert_ok(await api.post("/agents", agent, **trial), 200)["slug"] == "tried"
    assert assert_ok(await api.patch("/agents/worker-bee", {"status": "paused"}, **trial), 200)["status"] == "paused"
    assert await office.count(*WRITTEN, "agents", "audit", "webhook_secrets") == before
    assert (await api.get(f"/automations/{saved['id']}")).json() == saved
    assert_refused(await api.post("/automations", example(timeout="soon"), **trial), 422, "invalid", "timeout")


async def test_a_mistake_in_a_name_is_told_with_what_was_meant(api: Api) -> None:
    schedule = {"cron": "0 9 * * *", "timezone": "Europe/Berlni"}
    answer = await api.post("/automations", example(schedule=schedule))
    assert "Europe/Berlin" in assert_refused(answer, 422, "unknown_timezone", "schedule.timezone")["detail"]


async def test_a_slug_that_another_one_has_is_refused_and_a_name_gets_a_number(api: Api) -> None:
    slugs = [assert_ok(await api.post("/automations", example()))["slug"] for _ in range(2)]
    assert slugs == ["morning-digest", "morning-digest-2"]
    assert_refused(await api.post("/automations", example(slug="morning-digest")), 409, "slug_taken", "slug")
    assert_refused(
        await api.patch("/automations/morning-digest-2", {"slug": "morning-digest"}), 409, "slug_taken", "slug"
    )


async def test_no_name_makes_a_slug_that_is_taken_for_somebody_elses_id(api: Api) -> None:
    first = assert_ok(await api.post("/automations", example()))
    second = assert_ok(await api.post("/automations", example(name=first["id"])))
    assert second["slug"] == "untitled"
    assert assert_ok(await api.get(f"/automations/{first['id']}"), 200)["id"] == first["id"]


async def test_two_who_save_the_same_slug_at_the_same_moment_do_not_both_get_it(office: Office, api: Api) -> None:
    async with office.db.connection() as holder:
        async with holder.transaction():
            await holder.execute("LOCK TABLE automations IN SHARE MODE")
            both = [asyncio.create_task(api.post("/automations", example(slug="digest"))) for _ in range(2)]
            await office.site.waiting_for_a_lock(2)
        answers = sorted([await each for each in both], key=lambda answer: answer.status_code)
    assert_ok(answers[0])
    assert_refused(answers[1], 409, "slug_taken", "slug")


async def test_two_who_save_the_same_name_at_the_same_moment_each_get_a_slug(office: Office, api: Api) -> None:
    async with office.db.connection() as holder:
        async with holder.transaction():
            await holder.execute("LOCK TABLE automations IN SHARE MODE")
            both = [asyncio.create_task(api.post("/automations", example())) for _ in range(2)]
            await office.site.waiting_for_a_lock(2)
        slugs = {assert_ok(await each)["slug"] for each in both}
    assert slugs == {"morning-digest", "morning-digest-2"}
    assert {each["status"] for each in assert_ok(await api.get("/audit"), 200)["items"]} == {201}


# Changing -----------------------------------------------------------------------------------------------------------


async def test_a_change_of_nothing_is_no_revision(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    path, trigger = f"/automations/{saved['id']}", saved["triggers"][0]["id"]
    for asked in ({}, {"accept_grant": True}):
        assert (await api.patch(path, asked)).json() == saved
    assert (await api.patch(f"{path}/triggers/{trigger}", {})).status_code == 200
    agent = (await api.get("/agents/worker-bee")).json()
    assert (await api.patch("/agents/worker-bee", {})).json() == agent
    assert [each["revision"] for each in (await api.get(f"{path}/revisions")).json()["items"]] == [1]


async def test_a_change_is_a_new_revision_and_the_list_of_revisions_shows_what_changed(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    path = f"/automations/{saved['id']}"
    changed = assert_ok(await api.patch(path, {"prompt": "Only what is urgent", "timeout": "5m"}), 200)
    assert (changed["revision"], changed["prompt"], changed["timeout"]) == (2, "Only what is urgent", "5m")
    assert changed["triggers"] == saved["triggers"]
    assert_ok(await api.patch(path, {"schedule": {"every": "1h"}}), 200)
    page = (await api.get(f"{path}/revisions")).json()
    assert page["next_cursor"] is None
    [third, second, first] = page["items"]
    assert [each["revision"] for each in page["items"]] == [3, 2, 1]
    assert first["changed"] == {}
    assert second["changed"] == {
        "prompt": {"from": "Summarise my inbox", "to": "Only what is urgent"}, "timeout": {"from": "1h", "to": "5m"},
    }  # fmt: skip
    assert third["changed"]["triggers"]["from"] == [DAILY]
    assert (first["created_by"], first["spec"]["prompt"]) == ("Local admin", "Summarise my inbox")


async def test_a_revision_shows_that_a_limit_of_a_trigger_changed(api: Api) -> None:
    until = {"ends_at": "2099-01-01T00:00:00Z", "max_fires": 3, "jitter": "30s", "overlap": "allow"}
    saved = assert_ok(await api.post("/automations", example(triggers=[{**DAILY, **until}])))
    path = f"/automations/{saved['id']}"
    assert_ok(await api.patch(f"{path}/triggers/{saved['triggers'][0]['id']}", {"enabled": False, "jitter": None}), 200)
    [second, _] = assert_ok(await api.get(f"{path}/revisions"), 200)["items"]
    told = {**DAILY, **until, "ends_at": "2099-01-01T00:00:00+00:00"}
    off = {name: value for name, value in told.items() if name != "jitter"} | {"enabled": False}
    assert second["changed"] == {"triggers": {"from": [told], "to": [off]}}


async def test_revisions_are_paged_and_each_still_shows_what_changed(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    for number in range(2, 6):
        await api.patch(f"/automations/{saved['id']}", {"prompt": f"Prompt {number}"})
    seen = await api.pages(f"/automations/{saved['id']}/revisions", 2)
    assert [each["revision"] for each in seen] == [5, 4, 3, 2, 1]
    assert [each["changed"].get("prompt", {}).get("to") for each in seen] == [
        "Prompt 5", "Prompt 4", "Prompt 3", "Prompt 2", None,
    ]  # fmt: skip


async def test_a_page_of_revisions_may_be_empty(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    before_the_first = cursor_of(1)
    page = assert_ok(await api.get(f"/automations/{saved['id']}/revisions", cursor=before_the_first), 200)
    assert page == {"items": [], "next_cursor": None}


async def test_a_change_of_the_schedule_counts_from_now_and_one_of_the_prompt_leaves_it_alone(
    office: Office, api: Api
) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule={"every": "1h"})))
    await office.execute("UPDATE triggers SET fires = 5 WHERE automation_id = %s", saved["id"])
    kept = assert_ok(
        await api.patch(f"/automations/{saved['id']}", {"prompt": "Other", "schedule": {"every": "1h"}}), 200
    )
    [before], [after] = saved["triggers"], kept["triggers"]
    assert (after["id"], after["next_fire_at"], after["fires"]) == (before["id"], before["next_fire_at"], 5)
    moved = assert_ok(await api.patch(f"/automations/{saved['id']}", {"schedule": {"every": "2h"}}), 200)
    assert moved["next_fire_at"] > kept["next_fire_at"]
    assert moved["triggers"][0]["fires"] == 0
    emptied = assert_ok(await api.patch(f"/automations/{saved['id']}", {"triggers": []}), 200)
    assert (emptied["triggers"], emptied["next_fire_at"]) == ([], None)


async def test_a_queued_run_keeps_the_prompt_it_was_fired_with(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(prompt="Old")))
    queued = assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    await api.patch(f"/automations/{saved['id']}", {"prompt": "New"})
    assert (queued["revision"], (await office.claim()).assignment.prompt) == (1, "Old")


async def test_an_unset_field_can_be_set_and_unset_again(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(input={"a": 1}, pause_after_failures=3)))
    path = f"/automations/{saved['id']}"
    unset = assert_ok(await api.patch(path, {"prompt": None, "pause_after_failures": None, "overlap": "allow"}), 200)
    assert (unset["prompt"], unset["input"], unset["pause_after_failures"]) == (None, {"a": 1}, None)
    assert unset["overlap"] == "allow"
    assert_refused(await api.patch(path, {"input": None}), 422, "nothing_to_do", "prompt")


async def test_a_change_of_what_it_does_by_somebody_else_makes_it_act_on_their_grant_and_back_again(
    office: Office,
) -> None:
    """Otherwise its owner could write a prompt and have it done with the authority of whoever touched it last."""
    admin, owner = await office.api(), await office.api("member")
    saved = assert_ok(await owner.post("/automations", example()))
    path = f"/automations/{saved['id']}"
    renamed = assert_ok(await admin.patch(path, {"name": "Renamed"}), 200)
    assert renamed["grant_id"] == saved["grant_id"]
    change = {"prompt": "As the admin"}
    told = assert_refused(await admin.patch(path, change), 409, "grant_would_change", "accept_grant")
    assert told["holder"] == "A member"
    assert assert_ok(await admin.get(path), 200)["revision"] == renamed["revision"], "nothing was saved"
    taken = assert_ok(await admin.patch(path, {**change, "accept_grant": True}), 200)
    assert taken["grant_id"] != saved["grant_id"]
    acts_as = "SELECT user_id FROM grants WHERE id = %s"
    assert await office.value(acts_as, taken["grant_id"]) == office.caller.user_id
    assert_refused(await owner.patch(path, {"prompt": "As its owner"}), 409, "grant_would_change", "accept_grant")
    back = assert_ok(await owner.patch(path, {"prompt": "As its owner", "accept_grant": True}), 200)
    assert await office.value(acts_as, back["grant_id"]) == await office.value(acts_as, saved["grant_id"])
    assert back["owner"] == saved["owner"] == "A member"


async def test_saving_again_gives_a_new_grant_to_one_whose_grant_no_longer_holds(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    path = f"/automations/{saved['id']}"
    await office.execute("UPDATE grants SET revoked_at = now() WHERE id = %s", saved["grant_id"])
    told = assert_refused(await api.post(f"{path}/run"), 409, "grant_revoked")
    assert "renew-grant" in told["detail"]
    assert assert_ok(await api.get(path), 200)["grant_problem"] == "grant_revoked"
    assert assert_ok(await api.patch(path, {"name": "Again"}), 200)["grant_problem"] is None
    assert_ok(await api.post(f"{path}/run"))


async def test_another_agent_comes_with_another_grant(office: Office, api: Api) -> None:
    other = {"name": "Other", "executor": "command", "config": {"argv": ["true"]}, "pool": office.pool}
    agent = assert_ok(await api.post("/agents", other))
    saved = assert_ok(await api.post("/automations", example()))
    moved = assert_ok(await api.patch(f"/automations/{saved['id']}", {"agent": "other"}), 200)
    assert (moved["agent"], moved["agent_id"]) == ("other", agent["id"])
    assert await office.value("SELECT scopes FROM grants WHERE id = %s", moved["grant_id"]) == [
        f"agent:run:{agent['id']}"
    ]
    assert assert_ok(await api.post(f"/automations/{saved['id']}/run"))["agent_id"] == agent["id"]


async def test_one_that_somebody_just_gives_another_agent_is_found_by_who_changes_it_next(
    office: Office, api: Api
) -> None:
    assert_ok(await api.post("/agents", {"name": "Other", "executor": "command", "config": {"argv": ["true"]}}))
    path = f"/automations/{assert_ok(await api.post('/automations', example()))['id']}"
    async with office.db.connection() as holder:
        async with holder.transaction():
            await holder.execute(
                "SELECT FROM automations WHERE workspace_id = %s FOR UPDATE", [office.caller.workspace_id]
            )
            moving = asyncio.create_task(api.patch(path, {"agent": "other"}))
            await office.site.waiting_for_a_lock(1)
            renaming = asyncio.create_task(api.patch(path, {"name": "Evening digest"}))
            await office.site.waiting_for_a_lock(2)
        assert assert_ok(await moving, 200)["agent"] == "other"
        renamed = assert_ok(await renaming, 200)
    assert (renamed["agent"], renamed["name"], renamed["revision"]) == ("other", "Evening digest", 3)


# Lists --------------------------------------------------------------------------------------------------------------


async def test_automations_are_listed_newest_first_without_the_deleted_unless_asked(api: Api) -> None:
    saved = [assert_ok(await api.post("/automations", example()))["id"] for _ in range(3)]
    await api.delete(f"/automations/{saved[1]}")
    listed = (await api.get("/automations")).json()["items"]
    everything = (await api.get("/automations", deleted=True)).json()["items"]
    assert [each["id"] for each in listed] == [saved[2], saved[0]]
    assert [each["id"] for each in everything] == saved[::-1]
    assert everything[1]["deleted_at"]
    assert everything[1]["status"] == "deleted"


async def test_pages_neither_repeat_nor_lose_what_was_made_at_the_same_instant(office: Office, api: Api) -> None:
    saved = [assert_ok(await api.post("/automations", example()))["id"] for _ in range(5)]
    await office.execute("UPDATE automations SET created_at = '2026-01-01', updated_at = '2026-01-01'")
    for limit in (1, 2, 5, 100):
        assert [each["id"] for each in await api.pages("/automations", limit)] == saved[::-1]


async def test_a_page_goes_on_where_it_stopped_when_something_new_was_made_meanwhile(api: Api) -> None:
    saved = [assert_ok(await api.post("/automations", example()))["id"] for _ in range(3)]
    page = (await api.get("/automations", limit=2)).json()
    assert_ok(await api.post("/automations", example()))
    rest = (await api.get("/automations", limit=2, cursor=page["next_cursor"])).json()
    assert [each["id"] for each in page["items"] + rest["items"]] == saved[::-1]


@pytest.mark.parametrize("limit", ["0", "101", "-1", "many", "", "1.5", "9" * 5000])
async def test_a_limit_is_a_number_from_1_to_100(api: Api, limit: str) -> None:
    assert_refused(await api.get("/automations", limit=limit), 422, "invalid", "limit")


async def test_the_limit_is_50_unless_told(office: Office, api: Api) -> None:
    automation_id = assert_ok(await api.post("/automations", example()))["id"]
    for _ in range(51):
        assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    page = (await api.get("/runs")).json()
    assert len(page["items"]) == 50
    assert page["next_cursor"]
    assert len((await api.get("/runs", limit=100)).json()["items"]) == 51
    assert (await api.get(f"/automations/{automation_id}/runs")).json() == {"items": [], "next_cursor": None}


async def test_the_last_run_is_the_newest_whatever_became_of_it(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    path = f"/automations/{saved['id']}"
    first = assert_ok(await api.post(f"{path}/run"))
    await office.fail(await office.claim())
    shown = (await api.get(path)).json()["last_run"]
    assert (shown["id"], shown["status"], shown["error_class"]) == (first["id"], "failed", "agent_error")
    second = assert_ok(await api.post(f"{path}/run"))
    assert (await api.get(path)).json()["last_run"]["id"] == second["id"]


# Run now ------------------------------------------------------------------------------------------------------------


async def test_run_now_answers_a_run_with_all_its_fields(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(max_attempts=3)))
    run = assert_ok(await api.post(f"/automations/{saved['slug']}/run", {"payload": {"why": "because"}}))
    assert set(run) == RUN_FIELDS
    assert (run["automation_id"], run["agent_id"], run["grant_id"]) == (
        saved["id"],
        saved["agent_id"],
        saved["grant_id"],
    )
    assert (run["status"], run["source"], run["payload"]) == ("queued", "run_now", {"why": "because"})
    assert (run["attempt"], run["tries"], run["rescues"], run["max_attempts"]) == (0, 0, 0, 3)
    assert (run["slot"], run["trigger_id"], run["missed"], run["usage"]) == (None, None, None, {})
    assert len(run["trace_id"]) == 32
    assert run["created_by"] == str(office.caller.user_id)
    assert (await api.get(f"/runs/{run['id']}")).json() == {**run, "attempts": []}
    assert (await office.claim()).assignment.payload == {"why": "because"}


@pytest.mark.parametrize(("headers", "most"), [({}, 6), ({"Idempotency-Key": "k"}, 7)])
async def test_run_now_asks_the_database_few_times(
    api: Api, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], most: int
) -> None:
    """Each way there and back costs more than what is asked: signing in, the automation, the run, and their end."""
    path = f"/automations/{assert_ok(await api.post('/automations', example()))['id']}"
    await api.get(path)  # the connection is known, and the token's use is noted
    ways, wait = [], PatientConnection.wait

    async def counted(self: PatientConnection, *args: Any, **options: Any) -> Any:
        ways.append(self)
        return await wait(self, *args, **options)

    monkeypatch.setattr(PatientConnection, "wait", counted)
    assert_ok(await api.post(f"{path}/run", headers=headers))
    assert len(ways) == most


async def test_run_now_leaves_the_schedule_alone(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    shown = (await api.get(f"/automations/{saved['id']}")).json()
    assert (shown["next_fire_at"], shown["triggers"]) == (saved["next_fire_at"], saved["triggers"])


async def test_a_second_run_now_while_one_is_queued_answers_its_id_and_while_one_runs_it_waits(
    office: Office, api: Api
) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    path = f"/automations/{saved['id']}/run"
    first = assert_ok(await api.post(path))
    told = assert_refused(await api.post(path), 409, "already_queued")
    assert told["run_id"] == first["id"]
    await office.claim()
    second = assert_ok(await api.post(path))
    assert second["ready_at"] is None
    assert assert_refused(await api.post(path), 409, "already_queued")["run_id"] == second["id"]


@pytest.mark.parametrize(("before", "after"), [("same", "new"), ("new", "same")])
async def test_a_run_waits_for_the_one_before_also_when_the_session_was_changed_between_them(
    office: Office, api: Api, before: str, after: str
) -> None:
    saved = assert_ok(await api.post("/automations", example(session=before)))
    path = f"/automations/{saved['id']}"
    assert_ok(await api.post(f"{path}/run"))
    first = await office.claim()
    assert_ok(await api.patch(path, {"session": after}), 200)
    second = assert_ok(await api.post(f"{path}/run"))
    rescue = Rescue(office.db, office.site.web.wakes)
    await rescue.once()
    assert assert_ok(await api.get(f"/runs/{second['id']}"), 200)["ready_at"] is None
    await office.settle(first)
    await rescue.once()
    assert (await office.claim()).id == UUID(second["id"])


async def test_two_run_nows_at_the_same_moment_make_one_run(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    async with office.db.connection() as holder:
        async with holder.transaction():
            await holder.execute("SELECT FROM automations WHERE id = %s FOR UPDATE", [saved["id"]])
            both = [asyncio.create_task(api.post(f"/automations/{saved['id']}/run")) for _ in range(2)]
            await office.site.waiting_for_a_lock(2)
        answers = sorted([await each for each in both], key=lambda answer: answer.status_code)
    run = assert_ok(answers[0])
    assert assert_refused(answers[1], 409, "already_queued")["run_id"] == run["id"]
    assert len(await office.ledger()) == 1


async def test_the_same_key_and_body_give_the_same_run_also_after_it_failed_and_another_body_is_refused(
    office: Office, api: Api
) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    path = f"/automations/{saved['id']}/run"
    first = assert_ok(await api.post(path, {"payload": 1}, key="once"))
    again = assert_ok(await api.post(f"/automations/{saved['slug']}/run", {"payload": 1}, key="once"))
    assert again == first
    await office.fail(await office.claim())
    later = assert_ok(await api.post(path, {"payload": 1}, key="once"))
    assert (later["id"], later["status"]) == (first["id"], "failed")
    assert_refused(await api.post(path, {"payload": 2}, key="once"), 422, "key_reused", "Idempotency-Key")
    assert_refused(await api.post(path, key="once"), 422, "key_reused", "Idempotency-Key")
    other = assert_ok(await api.post("/automations", example()))
    assert_refused(
        await api.post(f"/automations/{other['id']}/run", {"payload": 1}, key="once"),
        422,
        "key_reused",
        "Idempotency-Key",
    )
    assert len(await office.ledger()) == 1


async def test_the_same_key_saves_an_automation_and_starts_its_first_run_once(api: Api) -> None:
    form = example(run_immediately=True)
    first, again = [(await api.post("/automations", form, key="save")).json() for _ in range(2)]
    assert first["id"] == again["id"]
    assert len((await api.get("/automations")).json()["items"]) == len((await api.get("/runs")).json()["items"]) == 1
    assert_refused(
        await api.post("/automations", {**form, "prompt": "Stay."}, key="save"), 422, "key_reused", "Idempotency-Key"
    )


async def test_the_same_key_posts_an_event_once(api: Api) -> None:
    form = {"name": "Errand", "agent": "worker-bee", "prompt": "Go.", "triggers": [{"event": "paid"}]}
    await api.post("/automations", form)
    event = {"event": "paid", "data": {"invoice": 1}}
    first = (await api.post("/events", event, key="post")).json()
    await api.post("/automations", form)  # who comes later was not told
    assert (await api.post("/events", event, key="post")).json() == first
    assert len(first["runs"]) == len((await api.get("/runs")).json()["items"]) == 1
    assert_refused(await api.post("/events", {**event, "data": 2}, key="post"), 422, "key_reused", "Idempotency-Key")
    assert_refused(await api.post("/events", event, key="x" * 201), 422, "invalid_key", "Idempotency-Key")


async def test_a_body_that_says_nothing_is_the_same_as_none(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    answers = [
        await api.post(f"/automations/{saved['id']}/run", body, key="k")
        for body in (None, {}, {"payload": None})
    ]  # fmt: skip
    assert len({assert_ok(each)["id"] for each in answers}) == 1


async def test_two_requests_with_one_key_at_the_same_moment_make_one_run_and_get_the_same_answer(
    office: Office, api: Api
) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    async with office.db.connection() as holder:
        async with holder.transaction():
            await holder.execute("SELECT FROM automations WHERE id = %s FOR UPDATE", [saved["id"]])
            both = [asyncio.create_task(api.post(f"/automations/{saved['id']}/run", key="both")) for _ in range(2)]
            await office.site.waiting_for_a_lock(2)
        first, second = [assert_ok(await each) for each in both]
    assert first == second
    assert len(await office.ledger()) == 1


async def test_a_key_whose_run_was_refused_is_free_for_another_try(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    await api.patch("/agents/worker-bee", {"status": "paused"})
    assert_refused(await api.post(f"/automations/{saved['id']}/run", key="later"), 409, "agent_paused")
    await api.patch("/agents/worker-bee", {"status": "active"})
    assert_ok(await api.post(f"/automations/{saved['id']}/run", key="later"))


async def test_one_workspaces_key_is_not_anothers(api: Api, office: Office, site: Any) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    run = assert_ok(await api.post(f"/automations/{automation['id']}/run", key="shared"))
    elsewhere = await api_client.furnish(site)
    other = await elsewhere.api()
    automation = assert_ok(await other.post("/automations", example()))
    assert assert_ok(await other.post(f"/automations/{automation['id']}/run", key="shared"))["id"] != run["id"]


# Pausing, resuming, deleting, restoring -----------------------------------------------------------------------------


async def test_pausing_stops_the_schedule_and_skips_what_a_trigger_queued_but_not_a_run_now(
    office: Office, api: Api
) -> None:
    fired = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    await fire(office, fired["id"])
    by_hand = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    assert_ok(await api.post(f"/automations/{by_hand['id']}/run"))
    for each in (fired, by_hand):
        paused = assert_ok(await api.post(f"/automations/{each['id']}/pause"), 200)
        assert (paused["status"], paused["next_fire_at"], paused["next_fires"]) == ("paused", None, [])
        assert paused["triggers"][0]["next_fire_at"] is None
    [skipped] = (await api.get(f"/automations/{fired['id']}/runs")).json()["items"]
    assert (skipped["status"], skipped["skip_reason"], skipped["source"]) == ("skipped", "paused", "schedule")
    [waiting] = (await api.get(f"/automations/{by_hand['id']}/runs")).json()["items"]
    assert waiting["status"] == "queued"


async def test_a_change_that_postgresql_ends_for_anothers_sake_is_made_again(office: Office, api: Api) -> None:
    """Provoked: the request has the automation and waits for a run; who has that run then waits for the automation."""
    saved = assert_ok(await api.post("/automations", example(schedule={"event": "paid"})))
    assert_ok(await api.post("/events", {"event": "paid"}), 202)
    async with office.db.connection() as other, other.transaction():
        await other.execute("SET LOCAL deadlock_timeout = '1min'")  # so that it is the request that finds out
        assert await run_state.find_runs(other, "FOR UPDATE", automation_id=saved["id"])
        pausing = asyncio.create_task(api.post(f"/automations/{saved['id']}/pause"))
        await office.site.waiting_for_a_lock(1)
        await other.execute("SELECT FROM automations WHERE id = %s FOR UPDATE", [saved["id"]])
    assert assert_ok(await pausing, 200)["status"] == "paused"
    [run] = assert_ok(await api.get(f"/automations/{saved['id']}/runs"), 200)["items"]
    assert run["skip_reason"] == "paused"
    actions = [(each["action"], each["status"]) for each in assert_ok(await api.get("/audit"), 200)["items"]]
    assert actions[0] == ("automation.pause", 200)
    assert actions[1] == ("event.create", 202)


async def test_a_failure_is_written_in_the_order_of_locks_in_which_others_fire(office: Office, api: Api) -> None:
    """Who fires has the automation and then looks at its runs. A settler that had the run by then, and waited for the
    automation, would close a circle, which PostgreSQL finds after a second."""
    saved = assert_ok(await api.post("/automations", example()))
    assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    claimed = await office.claim()
    async with office.db.connection() as other, other.transaction():
        await other.execute("SELECT FROM automations WHERE id = %s FOR NO KEY UPDATE", [saved["id"]])
        failing = asyncio.create_task(office.fail(claimed))
        await office.site.waiting_for_a_lock(1)
        await run_state.find_run(other, "FOR SHARE NOWAIT", id=claimed.id)
    await failing
    assert assert_ok(await api.get(f"/runs/{claimed.id}"), 200)["status"] == "failed"


@pytest.mark.parametrize("again", ["automations/{automation}/run", "runs/{run}/retry"])
async def test_a_success_that_ends_a_row_of_failures_is_written_in_that_order_too(
    office: Office, api: Api, again: str
) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    first = assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    await office.fail(await office.claim())
    assert_ok(await api.post("/" + again.format(automation=saved["id"], run=first["id"])))
    claimed = await office.claim()
    async with office.db.connection() as other, other.transaction():
        await other.execute("SELECT FROM automations WHERE id = %s FOR NO KEY UPDATE", [saved["id"]])
        succeeding = asyncio.create_task(office.settle(claimed))
        await office.site.waiting_for_a_lock(1)
        await run_state.find_run(other, "FOR SHARE NOWAIT", id=claimed.id)
    await succeeding
    assert await office.value("SELECT failures FROM automations WHERE id = %s", saved["id"]) == 0


async def test_what_runs_goes_on_when_it_is_paused(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    await fire(office, saved["id"])
    claimed = await office.claim()
    await api.post(f"/automations/{saved['id']}/pause")
    await office.settle(claimed)
    assert (await api.get(f"/runs/{claimed.id}")).json()["status"] == "succeeded"


async def test_a_change_of_its_status_pauses_and_resumes_as_the_verbs_do(office: Office, api: Api) -> None:
    for pausing, resuming in (({"status": "paused"}, {"status": "active"}), ({"enabled": False}, {"enabled": True})):
        saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
        where = f"/automations/{saved['id']}"
        await fire(office, saved["id"])
        [waiting] = (await api.get(f"{where}/runs")).json()["items"]
        paused = assert_ok(await api.patch(where, pausing), 200)
        assert (paused["status"], paused["next_fire_at"], paused["revision"]) == ("paused", None, 1)
        skipped = (await api.get(f"/runs/{waiting['id']}")).json()
        assert (skipped["status"], skipped["skip_reason"]) == ("skipped", "paused")
        resumed = assert_ok(await api.patch(where, resuming), 200)
        assert (resumed["status"], resumed["revision"]) == ("active", 1)
        assert resumed["next_fire_at"] == saved["next_fire_at"]
        entries = (await api.get("/audit", object_id=saved["id"])).json()["items"]
        assert [each["action"] for each in entries[:2]] == ["automation.resume", "automation.pause"]
        assert entries[1]["before"]["status"] == "active"
        assert entries[1]["after"]["status"] == "paused"


async def test_a_change_of_more_than_its_status_does_both_or_nothing(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    where = f"/automations/{saved['id']}"
    assert_refused(await api.patch(where, {"status": "paused", "agent": "nobody"}), 422, "unknown_agent", "agent")
    assert_refused(await api.patch(where, {"status": "paused", "enabled": True}), 422, "invalid", "enabled")
    assert_refused(await api.patch(where, {"status": "asleep"}), 422, "invalid", "status")
    assert_refused(await api.patch(where, {"enabled": None}), 422, "invalid", "enabled")
    assert (await api.get(where)).json()["status"] == "active"
    tried = assert_ok(await api.patch(where + "?dry_run=true", {"status": "paused"}), 200)
    assert (tried["status"], (await api.get(where)).json()["status"]) == ("paused", "active")
    paused = assert_ok(await api.patch(where, {"status": "paused", "schedule": {"every": "2h"}}), 200)
    assert (paused["status"], paused["next_fire_at"], paused["revision"]) == ("paused", None, 2)
    [entry] = (await api.get("/audit", object_id=saved["id"], action="automation.change", refused=False)).json()[
        "items"
    ]
    assert entry["after"]["status"] == "paused"
    resumed = assert_ok(await api.patch(where, {"enabled": True, "schedule": {"every": "3h"}}), 200)
    assert resumed["status"] == "active"
    assert resumed["next_fire_at"] is not None
    member = await office.api("member")
    refusal = await member.patch(where, {"status": "paused"})
    assert refusal.status_code == 403


async def test_run_now_works_while_it_is_paused(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    await api.post(f"/automations/{saved['id']}/pause")
    run = assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    assert str((await office.claim()).id) == run["id"]
    assert (await api.get(f"/automations/{saved['id']}")).json()["next_fire_at"] is None


async def test_resuming_counts_from_now_and_makes_up_for_nothing(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule={"every": "1h"})))
    await office.execute(
        "UPDATE triggers SET anchor_at = anchor_at - interval '90 minutes' WHERE automation_id = %s", saved["id"]
    )
    await api.post(f"/automations/{saved['id']}/pause")
    resumed = assert_ok(await api.post(f"/automations/{saved['id']}/resume"), 200)
    wait = datetime.fromisoformat(resumed["next_fire_at"]) - datetime.now(UTC)
    assert resumed["status"] == "active"
    assert timedelta(minutes=29) < wait <= timedelta(minutes=30), "its anchor stays"
    assert await office.ledger() == []


async def test_pausing_and_resuming_twice_change_nothing_more(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    for verb in ("pause", "pause", "resume", "resume"):
        last = assert_ok(await api.post(f"/automations/{saved['id']}/{verb}"), 200)
    assert (last["status"], last["next_fire_at"]) == ("active", saved["next_fire_at"])
    assert last["revision"] == 1


async def test_deleting_stops_it_skips_what_waits_keeps_its_history_and_revokes_its_grant(
    office: Office, api: Api
) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    await fire(office, saved["id"])
    answer = await api.delete(f"/automations/{saved['slug']}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert_refused(await api.get(f"/automations/{saved['slug']}"), 404, "not_found")
    kept = (await api.get(f"/automations/{saved['id']}")).json()
    assert (kept["status"], bool(kept["deleted_at"]), kept["next_fire_at"]) == ("deleted", True, None)
    [run] = (await api.get(f"/automations/{saved['id']}/runs")).json()["items"]
    assert (run["status"], run["skip_reason"]) == ("skipped", "deleted")
    assert (await api.get(f"/automations/{saved['id']}/revisions")).json()["items"]
    assert await office.value("SELECT revoked_at IS NOT NULL FROM grants WHERE id = %s", saved["grant_id"])
    for verb in ("run", "pause", "resume"):
        assert_refused(await api.post(f"/automations/{saved['id']}/{verb}"), 404, "not_found")
    assert_refused(await api.patch(f"/automations/{saved['id']}", {"name": "x"}), 404, "not_found")
    assert_refused(await api.delete(f"/automations/{saved['id']}"), 404, "not_found")


async def test_the_grant_of_one_that_never_ran_is_revoked_with_its_deletion(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    await api.delete(f"/automations/{saved['id']}")
    assert await office.value("SELECT revoked_at IS NOT NULL FROM grants WHERE id = %s", saved["grant_id"])


async def test_the_grant_of_a_deleted_one_holds_until_its_last_run_has_ended(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    claimed = await office.claim()
    await api.delete(f"/automations/{saved['id']}")
    revoked = "SELECT revoked_at IS NOT NULL FROM grants WHERE id = %s"
    assert not await office.value(revoked, saved["grant_id"])
    await office.settle(claimed)
    assert await office.value(revoked, saved["grant_id"])
    assert (await api.get(f"/runs/{claimed.id}")).json()["status"] == "succeeded"


async def test_restoring_takes_it_back_with_a_new_grant_and_counts_from_now(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    path = f"/automations/{saved['id']}"
    assert_refused(await api.post(f"{path}/restore"), 409, "not_deleted")
    await api.delete(path)
    restored = assert_ok(await api.post(f"{path}/restore"), 200)
    assert (restored["deleted_at"], restored["slug"], restored["status"]) == (None, "morning-digest", "active")
    assert restored["next_fire_at"] == saved["next_fire_at"]
    assert restored["grant_id"] != saved["grant_id"]
    assert_ok(await api.post(f"{path}/run"))


async def test_one_that_was_paused_is_paused_when_restored(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule=DAILY, status="paused")))
    await api.delete(f"/automations/{saved['id']}")
    restored = assert_ok(await api.post(f"/automations/{saved['id']}/restore"), 200)
    assert (restored["status"], restored["next_fire_at"]) == ("paused", None)


async def test_a_deleted_ones_slug_is_free_and_then_in_the_way_of_its_restoring(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example()))
    await api.delete(f"/automations/{saved['id']}")
    assert assert_ok(await api.post("/automations", example()))["slug"] == saved["slug"]
    assert_refused(await api.post(f"/automations/{saved['id']}/restore"), 409, "slug_taken", "slug")


async def test_the_ledger_tells_of_every_slot(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule={"cron": "0 * * * *", "timezone": "UTC"})))
    assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    await fire(office, saved["id"], this_hour - timedelta(hours=3))
    [skipped, by_hand] = (await api.get(f"/automations/{saved['slug']}/runs")).json()["items"]
    assert set(skipped) == set(by_hand) == RUN_FIELDS
    assert (skipped["status"], skipped["skip_reason"]) == ("skipped", "prior_in_flight")
    assert skipped["missed"]["count"] == 3
    assert datetime.fromisoformat(skipped["missed"]["since"]) == this_hour - timedelta(hours=3)
    assert datetime.fromisoformat(skipped["slot"]) == this_hour
    assert (skipped["session_id"], skipped["finished_at"] is not None) == (None, True)


@pytest.mark.parametrize("path", ["", "/runs", "/revisions"])
async def test_an_automation_that_is_not_there_is_not_found(api: Api, path: str) -> None:
    for ref in (UNKNOWN, "nothing", "a b"):
        assert_refused(await api.get(f"/automations/{ref}{path}"), 404, "not_found")


@pytest.mark.parametrize("verb", ["run", "pause", "resume", "restore"])
async def test_nothing_can_be_done_with_one_that_is_not_there(api: Api, verb: str) -> None:
    assert_refused(await api.post(f"/automations/{UNKNOWN}/{verb}"), 404, "not_found")
