"""Pausing a workspace over HTTP: what is shown, what is refused, and what the audit log keeps."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support import api_client
from support.api_client import DAILY, Api, assert_ok, assert_refused, example

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

REASON = {"reason": "The budget is spent"}


async def test_a_pause_is_shown_replaced_and_ended(api: Api) -> None:
    assert assert_ok(await api.get(""), 200)["pause"] is None
    first = assert_ok(await api.post("/pause", REASON), 200)["pause"]
    assert (first["reason"], first["until"], first["paused_by"]) == (REASON["reason"], None, "Local admin")
    assert assert_ok(await api.post("/pause", REASON), 200)["pause"] == first
    changed = assert_ok(await api.post("/pause", {"reason": "  Moving  house ", "lasts": "2h"}), 200)["pause"]
    assert (changed["reason"], changed["paused_at"]) == ("Moving house", first["paused_at"])
    left = datetime.fromisoformat(changed["until"]) - datetime.now(UTC)
    assert timedelta(hours=1, minutes=50) < left < timedelta(hours=2, minutes=10)
    assert assert_ok(await api.get(""), 200)["pause"] == changed
    for _ in range(2):
        assert assert_ok(await api.post("/resume"), 200)["pause"] is None


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid", "reason"),
        ({"reason": " "}, "invalid", "reason"),
        ({"reason": "x" * 501}, "invalid", "reason"),
        ({"reason": 7}, "invalid", "reason"),
        ({**REASON, "until": "2020-01-01T00:00:00Z"}, "until_passed", "until"),
        ({**REASON, "until": "2099-01-01T00:00:00"}, "invalid", "until"),
        ({**REASON, "until": 4070908800}, "invalid", "until"),
        ({**REASON, "lasts": "0s"}, "invalid", "lasts"),
        ({**REASON, "lasts": "100000d"}, "invalid", "lasts"),
        ({**REASON, "until": "2099-01-01T00:00:00Z", "lasts": "2h"}, "invalid", "lasts"),
        ({**REASON, "for": "2h"}, "invalid", "for"),
    ],
)
async def test_a_bad_pause_is_refused_and_pauses_nothing(api: Api, body: dict[str, Any], code: str, field: str) -> None:
    assert_refused(await api.post("/pause", body), 422, code, field)
    assert assert_ok(await api.get(""), 200)["pause"] is None


async def test_the_audit_log_keeps_who_paused_and_why(api: Api) -> None:
    assert_ok(await api.post("/pause", REASON), 200)
    assert_ok(await api.post("/resume"), 200)
    resumed, paused = assert_ok(await api.get("/audit?object_kind=workspace"), 200)["items"][:2]
    assert (paused["action"], resumed["action"]) == ("workspace.pause", "workspace.resume")
    assert paused["after"]["pause_reason"] == resumed["before"]["pause_reason"] == REASON["reason"]
    assert paused["object_id"] == resumed["object_id"] is not None


async def test_an_event_and_an_automation_saved_meanwhile_start_nothing(api: Api) -> None:
    assert_ok(await api.post("/automations", example(schedule={"event": "rain"})))
    assert_ok(await api.post("/pause", REASON), 200)
    assert_ok(await api.post("/events", {"event": "rain"}), 202)
    saved = assert_ok(await api.post("/automations", example(name="Meanwhile", schedule=DAILY)))
    assert saved["next_fire_at"] is None
    assert assert_ok(await api.post(f"/automations/{saved['id']}/run"))["status"] == "queued"
    assert_ok(await api.post("/resume"), 200)
    assert assert_ok(await api.get(f"/automations/{saved['id']}"), 200)["next_fire_at"]
    reasons = [run["skip_reason"] for run in assert_ok(await api.get("/runs"), 200)["items"]]
    assert sorted(reasons, key=str) == [None, "paused"]
