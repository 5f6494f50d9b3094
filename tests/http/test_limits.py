"""What one workspace may take of a shared server: how many schedules, and how often one fires."""

import asyncio

import pytest

from support import api_client
from support.api_client import DAILY, Api, Office, assert_ok, assert_refused, example

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api


async def limit(office: Office, what: str) -> None:
    await office.execute(f"UPDATE workspaces SET {what} WHERE id = %s", office.caller.workspace_id)


async def test_a_schedule_that_fires_too_often_is_refused_and_one_on_the_line_is_not(office: Office, api: Api) -> None:
    await limit(office, "minimum_interval = '10 minutes'")
    for often in ({"every": "9m"}, {"cron": "*/5 * * * *"}, {"cron": "0,9 * * * *"}):
        told = assert_refused(await api.post("/automations", example(schedule=often)), 422, "too_often", "schedule")
        assert "10m" in told["detail"]
    for seldom in ({"every": "10m"}, {"cron": "*/10 * * * *"}, {"at": "2999-01-01T00:00:00Z"}):
        assert_ok(await api.post("/automations", example(schedule=seldom)))
    saved = assert_ok(await api.post("/automations", example()))
    assert_refused(await api.post(f"/automations/{saved['id']}/triggers", {"every": "1m"}), 422, "too_often")


async def test_a_workspace_has_no_more_schedules_than_it_may(office: Office, api: Api) -> None:
    await limit(office, "max_schedules = 2")
    first = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    assert_ok(await api.post("/automations", example(schedule=DAILY)))
    assert (
        assert_refused(await api.post("/automations", example(schedule=DAILY)), 409, "too_many_schedules")["limit"] == 2
    )
    assert_refused(await api.post(f"/automations/{first['id']}/triggers", DAILY), 409, "too_many_schedules")
    hooked = assert_ok(await api.post("/automations", example(triggers=[{"webhook": {}}])))
    path = f"/automations/{hooked['id']}/triggers/{hooked['triggers'][0]['id']}"
    assert_refused(await api.patch(path, DAILY), 409, "too_many_schedules")
    assert_ok(await api.patch(f"/automations/{first['id']}", {"schedule": {"every": "1d"}}), 200)
    assert (await api.delete(f"/automations/{first['id']}")).status_code == 204
    assert_ok(await api.post("/automations", example(name="Another", schedule=DAILY)))
    assert_refused(await api.post(f"/automations/{first['id']}/restore"), 409, "too_many_schedules")


async def test_nor_when_two_are_saved_at_once(office: Office, api: Api) -> None:
    await limit(office, "max_schedules = 1")
    answers = await asyncio.gather(
        *(api.post("/automations", example(name=f"N{at}", schedule=DAILY)) for at in range(4))
    )
    assert sorted(each.status_code for each in answers) == [201, 409, 409, 409]
