"""Triggers over HTTP, each by itself and as a list: changing a part, keeping what stands, and refusing with the field."""

from typing import Any

import pytest

from support import api_client
from support.api_client import DAILY, UNKNOWN, Api, Office, assert_ok, assert_refused, example

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

LONG_AGO = "2020-01-01T00:00:00Z"


async def saved_with(api: Api, *triggers: dict[str, Any], **values: Any) -> tuple[str, list[dict[str, Any]]]:
    """The address of a new automation, and its triggers."""
    saved = assert_ok(await api.post("/automations", example(triggers=list(triggers), **values)))
    return f"/automations/{saved['id']}", saved["triggers"]


@pytest.mark.parametrize(
    ("stored", "change", "schedule"),
    [
        (DAILY, {"timezone": "Europe/Berlin"}, {"cron": "0 9 * * *", "timezone": "Europe/Berlin"}),
        ({"every": "2d", "time": "09:00"}, {"time": "10:30"}, {"every": "2d", "time": "10:30", "timezone": "UTC"}),
        ({"mode": "weekly", "weekdays": ["mon"], "time": "09:00"}, {"time": "08:00"},
         {"cron": "0 8 * * 1", "timezone": "UTC"}),
        (DAILY, {"every": "1h"}, {"every": "1h", "timezone": "UTC"}),
    ],
)  # fmt: skip
async def test_a_part_of_what_says_when_is_changed_and_the_rest_stays(
    api: Api, stored: dict[str, Any], change: dict[str, Any], schedule: dict[str, Any]
) -> None:
    path, [trigger] = await saved_with(api, stored)
    changed = assert_ok(await api.patch(f"{path}/triggers/{trigger['id']}", change), 200)
    assert (changed["schedule"], changed["editor_mode"]) == (
        schedule,
        trigger["editor_mode"] if "mode" in stored else None,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"cron": "0 10 * * *"},
        {"every": "2d", "time": "10:00"},
        {"mode": "weekly", "weekdays": ["mon"], "time": "10:00"},
        {"at": "2090-01-01T10:00"},
    ],
)
async def test_another_time_is_one_of_the_same_zone(api: Api, change: dict[str, Any]) -> None:
    path, [trigger] = await saved_with(api, {"cron": "0 9 * * *", "timezone": "Asia/Tokyo"})
    changed = assert_ok(await api.patch(f"{path}/triggers/{trigger['id']}", change), 200)
    assert changed["schedule"]["timezone"] == "Asia/Tokyo"
    assert changed["next_fire_at"].endswith("T01:00:00Z"), "ten o'clock there"


async def test_another_number_of_days_keeps_the_time_of_day(api: Api) -> None:
    path, [trigger] = await saved_with(api, {"every": "2d", "time": "09:00"})
    path = f"{path}/triggers/{trigger['id']}"
    assert assert_ok(await api.patch(path, {"every": "3d"}), 200)["text"] == "Every 3 days at 09:00, UTC"
    assert assert_ok(await api.patch(path, {"every": "90m"}), 200)["text"] == "Every 90 minutes"


async def test_to_run_after_another_one_keeps_how_it_has_to_end(api: Api) -> None:
    one, other = [assert_ok(await api.post("/automations", example())) for _ in range(2)]
    path, [trigger] = await saved_with(api, {"after": one["slug"], "on": ["failed"]})
    changed = assert_ok(await api.patch(f"{path}/triggers/{trigger['id']}", {"after": other["slug"]}), 200)
    assert (changed["after_automation_id"], changed["after_on"]) == (other["id"], ["failed"])


async def test_a_schedule_in_place_of_a_webhook_is_of_the_workspaces_zone_as_it_is_now(api: Api) -> None:
    path, [trigger] = await saved_with(api, {"webhook": {}})
    assert_ok(await api.patch("", {"timezone": "Asia/Tokyo"}), 200)
    try:
        changed = assert_ok(await api.patch(f"{path}/triggers/{trigger['id']}", {"cron": "0 10 * * *"}), 200)
    finally:
        assert_ok(await api.patch("", {"timezone": "UTC"}), 200)
    assert changed["schedule"]["timezone"] == "Asia/Tokyo"


async def test_how_the_other_one_has_to_end_is_changed_by_itself(api: Api) -> None:
    other = assert_ok(await api.post("/automations", example()))
    path, [trigger] = await saved_with(api, {"after": other["slug"]})
    changed = assert_ok(await api.patch(f"{path}/triggers/{trigger['id']}", {"on": ["failed"]}), 200)
    assert (changed["after_automation_id"], changed["after_on"]) == (other["id"], ["failed"])


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"id": UNKNOWN}, "invalid", "id"),
        ({**DAILY, "field": "x"}, "invalid", "field"),
        ({"crom": "0 9 * * *"}, "invalid_schedule", "crom"),
        ({"on": ["failed"]}, "invalid_schedule", "on"),
        ({"cron": None}, "invalid_cron", "cron"),
        ({"ends_at": LONG_AGO}, "never_fires", "ends_at"),
        ({"enabled": None}, "invalid", "enabled"),
    ],
)
async def test_a_wrong_change_of_a_trigger_is_refused_with_its_field_and_changes_nothing(
    api: Api, change: dict[str, Any], code: str, field: str
) -> None:
    path, [trigger] = await saved_with(api, DAILY)
    assert_refused(await api.patch(f"{path}/triggers/{trigger['id']}", change), 422, code, field)
    assert assert_ok(await api.get(path), 200)["triggers"] == [trigger]


@pytest.mark.parametrize(
    ("form", "code", "field"),
    [
        ({}, "invalid_schedule", None),
        ({"every": "0s"}, "invalid_duration", "every"),
        ({**DAILY, "timezone": "Berlin"}, "unknown_timezone", "timezone"),
        ({"after": "nobody"}, "unknown_automation", "after"),
        ({"event": "a b"}, "invalid_event", "event"),
        (
            {**DAILY, "starts_at": "2091-01-01T00:00:00Z", "ends_at": "2090-01-01T00:00:00Z"},
            "invalid_schedule",
            "ends_at",
        ),
        ({"evnt": "paid"}, "invalid_schedule", None),
        ({"webhook": {}, "ends_at": LONG_AGO}, "never_fires", "ends_at"),
        ({"at": "2090-01-01T00:00:00Z", "starts_at": "2091-01-01T00:00:00Z"}, "never_fires", "starts_at"),
    ],
)
async def test_a_trigger_that_says_nothing_or_never_fires_is_refused(
    api: Api, form: dict[str, Any], code: str, field: str | None
) -> None:
    path, _ = await saved_with(api)
    told = assert_refused(await api.post(f"{path}/triggers", form), 422, code, field)
    if field is None:
        assert all(name in told["detail"] for name in ("webhook", "event", "after"))


async def test_a_circle_is_told_with_the_trigger_that_would_close_it(api: Api) -> None:
    path, _ = await saved_with(api, slug="first")
    await saved_with(api, {"after": "first"}, slug="second")
    back = {"after": "second"}
    assert_refused(await api.post(f"{path}/triggers", back), 422, "after_cycle", "after")
    assert_refused(await api.patch(path, {"triggers": [DAILY, back]}), 422, "after_cycle", "triggers.1.after")
    assert_refused(await api.patch(path, {"schedule": back}), 422, "after_cycle", "schedule.after")
    assert assert_ok(await api.get(path), 200)["triggers"] == []


async def test_a_trigger_that_becomes_a_webhook_gets_a_secret_shown_once(api: Api) -> None:
    path, [trigger] = await saved_with(api, DAILY)
    path = f"{path}/triggers/{trigger['id']}"
    assert assert_ok(await api.patch(path, {"webhook": {}}), 200)["secret"].startswith("whsec_")
    assert assert_ok(await api.patch(path, {"webhook": {}}), 200)["secret"] is None


@pytest.mark.parametrize("name", ["schedule", "triggers"])
async def test_null_takes_no_trigger_away_in_silence(api: Api, name: str) -> None:
    path, triggers = await saved_with(api, DAILY)
    told = assert_refused(await api.patch(path, {name: None}), 422, "invalid", name)
    assert "triggers: []" in told["detail"]
    assert assert_ok(await api.get(path), 200)["triggers"] == triggers
    assert assert_ok(await api.patch(path, {"triggers": []}), 200)["triggers"] == []


async def test_a_list_keeps_the_trigger_whose_instant_has_passed(office: Office, api: Api) -> None:
    once = {"at": "2090-01-01T09:00:00+01:00"}
    path, [trigger] = await saved_with(api, once)
    await office.execute("UPDATE triggers SET at = %s, next_fire_at = NULL WHERE id = %s", LONG_AGO, trigger["id"])
    passed = {"at": "2020-01-01T01:00:00+01:00"}
    kept, added = assert_ok(await api.patch(path, {"triggers": [passed, DAILY]}), 200)["triggers"]
    assert (kept["id"], kept["schedule"]["at"], added["kind"]) == (trigger["id"], LONG_AGO, "cron")
    another = {"at": "2020-01-01T02:00:00+01:00"}
    assert_refused(await api.patch(path, {"triggers": [another]}), 422, "invalid_schedule", "triggers.0.at")


async def test_a_list_keeps_the_trigger_whose_time_is_over_or_whose_other_automation_is_deleted(
    office: Office, api: Api
) -> None:
    other = assert_ok(await api.post("/automations", example()))
    after = {"after": other["id"], "on": ["succeeded"]}
    path, triggers = await saved_with(api, {**DAILY, "ends_at": "2090-01-01T00:00:00Z"}, after)
    await office.execute("UPDATE triggers SET ends_at = %s WHERE ends_at IS NOT NULL", LONG_AGO)
    await api.delete(f"/automations/{other['id']}")
    lists = [{**DAILY, "ends_at": LONG_AGO}, after, {"event": "paid"}]
    kept = assert_ok(await api.patch(path, {"triggers": lists}), 200)["triggers"]
    assert [each["id"] for each in kept[:2]] == [each["id"] for each in triggers]


async def test_limits_of_one_that_is_over_are_changed_and_it_is_not_enabled_again(office: Office, api: Api) -> None:
    path, [trigger] = await saved_with(api, {"at": "2090-01-01T00:00:00Z", "enabled": False})
    passed = "UPDATE triggers SET at = %s, anchor_at = '2019-01-01Z' WHERE id = %s"
    await office.execute(passed, LONG_AGO, trigger["id"])
    path = f"{path}/triggers/{trigger['id']}"
    assert assert_ok(await api.patch(path, {"overlap": "allow"}), 200)["overlap"] == "allow"
    assert_refused(await api.patch(path, {"enabled": True}), 422, "never_fires")


async def test_a_trigger_that_is_given_what_it_has_keeps_its_anchor(office: Office, api: Api) -> None:
    path, [trigger] = await saved_with(api, {"every": "1h"})
    await office.execute("UPDATE triggers SET anchor_at = anchor_at - interval '10 minutes'")
    anchor = "SELECT anchor_at FROM triggers WHERE id = %s"
    before = await office.value(anchor, trigger["id"])
    path = f"{path}/triggers/{trigger['id']}"
    same = assert_ok(await api.patch(path, {"every": "60m", "jitter": "5s"}), 200)
    assert (await office.value(anchor, trigger["id"]), same["jitter"]) == (before, "5s")
    assert_ok(await api.patch(path, {"every": "2h"}), 200)
    assert await office.value(anchor, trigger["id"]) > before


async def test_triggers_are_no_more_one_by_one_than_in_a_list(api: Api) -> None:
    path, _ = await saved_with(api, *({"event": f"e{number}"} for number in range(50)))
    assert (
        assert_refused(await api.post(f"{path}/triggers", {"event": "more"}), 409, "too_many_triggers")["limit"] == 50
    )


@pytest.mark.parametrize(("stop", "go_on"), [("pause", "resume"), ("delete", "restore")])
async def test_a_trigger_that_cannot_be_read_is_parked_and_its_automation_goes_on(
    office: Office, api: Api, stop: str, go_on: str
) -> None:
    path, [broken, _] = await saved_with(api, DAILY, {"every": "1h"})
    await office.execute("UPDATE triggers SET timezone = 'Mars/Olympus' WHERE id = %s", broken["id"])
    await (api.delete(path) if stop == "delete" else api.post(f"{path}/pause"))
    first, second = assert_ok(await api.post(f"{path}/{go_on}"), 200)["triggers"]
    assert "Mars/Olympus" in first["parked_error"]
    assert (first["next_fire_at"], second["parked_error"]) == (None, None)
    assert second["next_fire_at"]


async def test_a_webhook_in_a_list_keeps_its_address_when_the_workspace_takes_another_zone(api: Api) -> None:
    path, [hook] = await saved_with(api, {"webhook": {}})
    assert_ok(await api.patch("", {"timezone": "Asia/Tokyo"}), 200)
    try:
        [same] = assert_ok(await api.patch(path, {"name": "Renamed", "triggers": [{"webhook": {}}]}), 200)["triggers"]
    finally:
        assert_ok(await api.patch("", {"timezone": "UTC"}), 200)
    assert (same["id"], same["secret"]) == (hook["id"], None), "whoever calls it knows no other"


async def test_a_webhook_in_a_list_keeps_its_address_when_its_limits_change(api: Api) -> None:
    path, [hook] = await saved_with(api, {"webhook": {}, "enabled": False})
    changed = {"webhook": {}, "overlap": "allow", "max_fires": 7}
    [same] = assert_ok(await api.patch(path, {"triggers": [changed]}), 200)["triggers"]
    assert (same["id"], same["secret"]) == (hook["id"], None)
    assert (same["overlap"], same["max_fires"], same["enabled"]) == ("allow", 7, True)


async def test_a_schedule_in_a_list_goes_on_from_its_anchor_and_its_count_when_its_limits_or_its_form_change(
    office: Office, api: Api
) -> None:
    path, [trigger] = await saved_with(api, {"mode": "interval", "every": 90, "unit": "minutes"})
    await office.execute(
        "UPDATE triggers SET fires = 3, anchor_at = anchor_at - interval '80 minutes' WHERE id = %s", trigger["id"]
    )
    kept = "SELECT to_jsonb(t) FROM (SELECT id, anchor_at, fires FROM triggers WHERE id = %s) t"
    before = await office.value(kept, trigger["id"])
    for form in ({"every": "90m"}, {"every": "90m", "max_fires": 5}, {"mode": "advanced", "cron": "@every 1.5h"}):
        [same] = assert_ok(await api.patch(path, {"triggers": [form]}), 200)["triggers"]
        assert await office.value(kept, same["id"]) == before
        due_in = "SELECT extract(epoch FROM next_fire_at - now()) < 600 FROM triggers WHERE id = %s"
        assert await office.value(due_in, same["id"]), "in ten minutes, as before"
    assert (same["max_fires"], same["editor_mode"]) == (None, "advanced")


async def test_of_two_equal_schedules_in_a_list_each_that_stands_stays(api: Api) -> None:
    path, [one, other] = await saved_with(api, {"event": "paid"}, {"event": "paid", "overlap": "skip"})
    changed = [{"event": "paid", "overlap": "allow"}, {"event": "paid", "overlap": "skip"}]
    kept = assert_ok(await api.patch(path, {"triggers": changed}), 200)["triggers"]
    assert [(each["id"], each["overlap"]) for each in kept] == [(one["id"], "allow"), (other["id"], "skip")]
