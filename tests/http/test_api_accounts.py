"""Accounts and usage over HTTP: budgets, what was spent by day and automation, the forecast, and the hard stop."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rota.db import tallies
from rota.model.ids import new_id
from rota.model.outcome import Cancelled
from rota.model.tally import quarter
from rota.roster.forecasting import fires_until
from support import api_client
from support.api_client import DAILY, Api, AtWork, Office, assert_ok, assert_refused, example, furnish
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
TEN = {"per_run": {"tokens": 10}, "per_month": {"tokens": 25}}


async def account_of(api: Api) -> dict[str, Any]:
    [found] = assert_ok(await api.get("/accounts"), 200)["items"]
    return dict(found)


async def start(api: Api, **values: Any) -> dict[str, Any]:
    automation = assert_ok(await api.post("/automations", example(**values)))
    return assert_ok(await api.post(f"/automations/{automation['id']}/run"))


async def test_an_account_shows_what_of_its_month_is_spent_and_set_aside(office: Office, api: Api) -> None:
    account = await account_of(api)
    assert (account["name"], account["currency"], account["budget"], account["spending"]) == (
        "Default",
        "USD",
        None,
        {},
    )
    path = f"/accounts/{account['id']}"
    changed = assert_ok(await api.patch(path, {"budget": TEN, "currency": "EUR"}), 200)
    assert (changed["budget"], changed["currency"]) == (TEN, "EUR")
    assert changed["spending"] == {"tokens": {"cap": 25, "spent": 0, "reserved": 0}}
    runs = [await start(api) for _ in range(3)]
    assert [run["skip_reason"] for run in runs] == [None, None, "budget"]
    work = await office.claim()
    await work.desk.usage("tokens", 4)
    await office.settle(work)
    assert assert_ok(await api.get(path), 200)["spending"] == {"tokens": {"cap": 25, "spent": 4, "reserved": 10}}
    assert assert_ok(await api.get(f"/runs/{work.id}"), 200)["usage"]["tokens"] == 4
    assert (await start(api))["skip_reason"] is None
    assert assert_ok(await api.patch(path, {"budget": None}), 200)["spending"] == {}
    assert (await start(api))["skip_reason"] is None


async def test_a_conversation_and_a_direct_run_charge_the_account_too(office: Office, api: Api) -> None:
    assert_ok(
        await api.patch(f"/accounts/{(await account_of(api))['id']}", {"budget": {**TEN, "per_month": {"tokens": 10}}}),
        200,
    )
    first = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    second = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    assert [run["status"] for run in (first, second)] == ["queued", "skipped"]
    session = assert_ok(await api.post("/sessions", {"agent": "worker-bee"}))
    turn = assert_ok(await api.post(f"/sessions/{session['id']}/messages", {"prompt": "Hello."}))
    found = assert_ok(await api.get("/runs"), 200)["items"][0]
    assert (found["source"], found["status"], found["skip_reason"]) == ("chat", "skipped", "budget"), turn
    assert found["session_id"] == session["id"]


async def over_http(api: Api, work: AtWork, amount: float, **options: Any) -> int:
    agent = Api(api.client, api.workspace, work.token)
    body = {"unit": "tokens", "amount": amount}
    return (await agent.post(f"/runs/{work.id}/desk/usage", body, **options)).status_code


async def test_an_agent_that_reports_over_http_is_stopped_once_it_has_spent_its_budget(
    office: Office, api: Api
) -> None:
    run = await start(api, budget=TEN)
    work = await office.claim()
    await work.desk.usage("tokens", 3)
    assert await over_http(api, work, 3) == 204
    path = f"/runs/{run['id']}"
    assert assert_ok(await api.get(path), 200)["cancel_requested_at"] is None
    assert await over_http(api, work, 5, key="once") == 204
    assert await over_http(api, work, 5, key="once") in {204, 401}
    assert assert_ok(await api.get(path), 200)["cancel_requested_at"]
    await office.settle(work, Cancelled())
    ended = assert_ok(await api.get(path), 200)
    assert (ended["status"], ended["error_class"], ended["usage"]["tokens"]) == ("failed", "budget_exceeded", 11)
    assert ended["error_detail"] == "Spent 11 tokens of its limit of 10 tokens."


async def test_of_sixteen_reports_at_once_those_after_the_cap_are_refused_and_do_not_count(
    office: Office, api: Api
) -> None:
    """Provoked: all sixteen wait for the run, which somebody holds."""
    run = await start(api, budget={"per_run": {"tokens": 100}})
    work = await office.claim()
    agent = Api(api.client, api.workspace, work.token)

    async def report(number: int) -> Any:
        return await agent.post(f"/runs/{work.id}/desk/usage", {"unit": "tokens", "amount": 60}, key=f"report-{number}")

    async with office.locked_runs(id=run["id"]):
        reports = [asyncio.create_task(report(number)) for number in range(16)]
        await until(lambda: office.value(f"SELECT ({WAITING}) >= 8"))
    answers = await asyncio.gather(*reports)
    assert sorted(answer.status_code for answer in answers) == [204] * 2 + [409] * 14
    for number, answer in enumerate(answers):
        if answer.status_code == 409:
            told = assert_refused(answer, 409, "budget_exceeded")
            assert re.findall(r"\d+", told["detail"]) == ["120", "100"]
            assert_refused(await report(number), 409, "budget_exceeded")  # a repeat has the same answer
    found = assert_ok(await api.get(f"/runs/{run['id']}"), 200)
    assert found["usage"]["tokens"] == 120
    assert found["cancel_requested_at"]
    await office.settle(work)  # the agent ended well in the same moment
    found = assert_ok(await api.get(f"/runs/{run['id']}"), 200)
    assert (found["status"], found["error_class"]) == ("failed", "budget_exceeded")


async def test_a_report_is_refused_over_http_once_another_run_has_used_up_the_months_budget_of_their_account(
    office: Office, api: Api
) -> None:
    budget = {"per_run": {"tokens": 50}, "per_month": {"tokens": 120}}
    assert_ok(await api.patch(f"/accounts/{(await account_of(api))['id']}", {"budget": budget}), 200)
    first, second = [await start(api, name=name) for name in ("First", "Second")]
    works = [await office.claim() for _ in (first, second)]
    await works[0].desk.usage("tokens", 45)
    assert await over_http(api, works[1], 45) == 204
    await works[0].desk.usage("tokens", 45)  # 135 of 120
    assert await over_http(api, works[1], 4) == 409
    found = assert_ok(await api.get(f"/runs/{second['id']}"), 200)
    assert (found["usage"]["tokens"], bool(found["cancel_requested_at"])) == (45, True)
    await office.settle(works[1])
    found = assert_ok(await api.get(f"/runs/{second['id']}"), 200)
    assert (found["status"], found["error_class"]) == ("failed", "budget_exceeded")
    assert found["error_detail"] == "Its account spent 135 tokens of its limit of 120 tokens for the month."


async def test_usage_is_told_by_day_and_automation_and_pages_on(office: Office, api: Api) -> None:
    automations = [assert_ok(await api.post("/automations", example(name=f"Errand {n}"))) for n in range(3)]
    for number, automation in enumerate(automations):
        assert_ok(await api.post(f"/automations/{automation['id']}/run"))
        work = await office.claim()
        await work.desk.usage("tokens", number + 1)
        await work.desk.usage("money", 0.1)
        await work.desk.usage("money", 0.2)
        await office.settle(work)
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    work = await office.claim()
    await work.desk.usage("tokens", 40)
    await office.settle(work)
    today = datetime.now(UTC).date()
    items = await api.pages("/usage", 3)
    by_name = {each["automation"]: each["usage"] for each in items}
    assert by_name == {
        None: {"tokens": 40}, **{a["slug"]: {"tokens": n + 1, "money": 0.3} for n, a in enumerate(automations)}
    }  # fmt: skip
    assert {each["day"] for each in items} == {str(today)}
    account = await account_of(api)
    assert await api.pages(f"/accounts/{account['id']}/usage", 3) == items
    other = assert_ok(await api.post("/accounts", {"name": "Other"}))
    assert assert_ok(await api.get(f"/accounts/{other['id']}/usage"), 200)["items"] == []
    before = {"since": str(today - timedelta(days=9)), "until": str(today - timedelta(days=1))}
    assert assert_ok(await api.get("/usage", **before), 200)["items"] == []
    told = assert_refused(
        await api.get("/usage", since=str(today), until=before["until"]), 422, "invalid_span", "since"
    )
    assert (before["until"] in told["detail"], "366" in told["detail"]) == (True, False)
    told = assert_refused(await api.get("/usage", since="1999-01-01"), 422, "invalid_span", "since")
    assert "366" in told["detail"]
    assert_refused(await api.get("/usage", cursor="bm9uZQ"), 422, "invalid_cursor", "cursor")


async def test_a_renewed_grant_may_charge_another_account_and_those_after_it_do_too(office: Office, api: Api) -> None:
    other = assert_ok(await api.post("/accounts", {"name": "Marketing", "currency": "EUR", "budget": TEN}))
    automation = assert_ok(await api.post("/automations", example()))
    path = f"/automations/{automation['id']}"
    renewed = assert_ok(await api.post(f"{path}/renew-grant", {"account": other["id"]}), 200)
    again = assert_ok(await api.post(f"{path}/renew-grant"), 200)
    charged = {
        (assert_ok(await api.get(f"/grants/{each['grant_id']}"), 200))["account_id"] for each in (renewed, again)
    }
    assert charged == {other["id"]}
    assert_ok(await api.post(f"{path}/run"))
    assert assert_ok(await api.get(f"/accounts/{other['id']}"), 200)["spending"]["tokens"]["reserved"] == 10
    assert_refused(await api.post(f"{path}/renew-grant", {"account": str(new_id())}), 422, "unknown_account", "account")
    theirs = await account_of(await (await furnish(office.site)).api())
    assert_refused(await api.post(f"{path}/renew-grant", {"account": theirs["id"]}), 422, "unknown_account", "account")


async def test_money_of_different_currencies_is_not_added_up(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    euros = assert_ok(await api.post("/accounts", {"name": "Berlin", "currency": "EUR"}))
    for account in (None, euros["id"]):
        if account:
            assert_ok(await api.post(f"/automations/{automation['id']}/renew-grant", {"account": account}), 200)
        assert_ok(await api.post(f"/automations/{automation['id']}/run"))
        work = await office.claim()
        await work.desk.usage("money", 2 if account else 1)
        await office.settle(work)
    spent = {"money": 1, "money EUR": 2}
    assert [each["usage"] for each in assert_ok(await api.get("/usage"), 200)["items"]] == [spent]
    assert assert_ok(await api.get(f"/accounts/{euros['id']}/usage"), 200)["items"][0]["usage"] == {"money": 2}
    found = assert_ok(await api.get("/usage/forecast"), 200)
    assert found["spent"] == spent
    assert all(each["per_run"] == {"money": 0.5, "money EUR": 1} for each in found["items"])
    async with office.db.transaction() as conn:
        mine = [each for each in await tallies.standings(conn) if each.workspace_id == office.caller.workspace_id]
        await tallies.sum_up(conn, [(each, quarter(each.now) + timedelta(minutes=15)) for each in mine])
    assert assert_ok(await api.get("/usage/forecast"), 200)["spent"] == spent, "also once it is summed up"


async def test_a_follow_up_charges_what_the_automation_of_its_session_charges(office: Office, api: Api) -> None:
    other = assert_ok(await api.post("/accounts", {"name": "Research", "budget": TEN}))
    path = f"/automations/{assert_ok(await api.post('/automations', example()))['id']}"
    assert_ok(await api.post(f"{path}/renew-grant", {"account": other["id"]}), 200)
    run = assert_ok(await api.post(f"{path}/run"))
    await office.settle(await office.claim())
    turn = assert_ok(await api.post(f"/sessions/{run['session_id']}/messages", {"prompt": "And why?"}))
    assert assert_ok(await api.get(f"/grants/{turn['grant_id']}"), 200)["account_id"] == other["id"]


async def test_a_member_keeps_to_the_account_that_their_automation_charges(office: Office, api: Api) -> None:
    member, first = await office.api("member"), await account_of(api)
    other = assert_ok(await api.post("/accounts", {"name": "The board", "budget": TEN}))
    path = f"/automations/{assert_ok(await member.post('/automations', example()))['id']}/renew-grant"
    told = assert_refused(await member.post(path, {"account": other["id"]}), 403, "forbidden", "account")
    assert told["needs"] == "admin"
    assert_ok(await member.post(path, {"account": first["id"]}), 200)
    assert_ok(await api.post(path, {"account": other["id"]}), 200)
    renewed = assert_ok(await member.post(path, {"account": other["id"]}), 200)
    assert assert_ok(await api.get(f"/grants/{renewed['grant_id']}"), 200)["account_id"] == other["id"]


async def test_the_forecast_counts_what_the_schedules_will_still_fire(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example(schedule={**DAILY, "max_fires": 3})))
    for amount in (10, 20):
        assert_ok(await api.post(f"/automations/{automation['id']}/run"))
        work = await office.claim()
        await work.desk.usage("tokens", amount)
        await office.settle(work)
    assert_ok(await api.post("/automations", example(name="Never ran", schedule=DAILY)))
    paused = assert_ok(await api.post("/automations", example(name="Paused", schedule=DAILY)))
    assert_ok(await api.post(f"/automations/{paused['id']}/pause"), 200)
    found = assert_ok(await api.get("/usage/forecast"), 200)
    end = datetime.fromisoformat(found["until"])
    next_fire = datetime.fromisoformat(automation["next_fire_at"])
    fires = min(3, max(0, -((next_fire - end) // timedelta(days=1))))
    expected = [each for each in found["items"] if each["automation"] == automation["slug"]]
    if fires:  # on a month's last evening there is none
        assert [(each["fires"], each["runs_considered"], each["per_run"]) for each in expected] == [
            (fires, 2, {"tokens": 15})
        ]
    assert len(found["items"]) == len(expected)
    assert found["spent"] == {"tokens": 30}
    assert found["estimate"] == {"tokens": 30 + 15 * fires}
    assert found["complete"]
    last_evening = not fires
    assert (found["without_runs"], found["at_least"]) == ((0, False) if last_evening else (1, True))


async def test_the_forecast_stays_within_the_budgets_of_automations_and_accounts(office: Office, api: Api) -> None:
    """A trigger that fires every second would cost far more than the budgets allow."""
    for name, cap in (("Capped", 60), ("Free", None), ("Also free", None)):
        budget = {"budget": {"per_run": {"tokens": 20}, "per_month": {"tokens": cap}}} if cap else {}
        automation = assert_ok(await api.post("/automations", example(name=name, **budget)))
        assert_ok(await api.post(f"/automations/{automation['id']}/run"))
        work = await office.claim()
        await work.desk.usage("tokens", 10)
        await work.desk.usage("pages", 1)
        await office.settle(work)
        assert_ok(await api.patch(f"/automations/{automation['id']}", {"triggers": [{"every": "1s"}]}), 200)

    async def forecast() -> tuple[dict[str, Any], dict[str, Any]]:
        found = assert_ok(await api.get("/usage/forecast"), 200)
        return found, {each["name"]: each for each in found["items"]}

    found, items = await forecast()
    if min(each["fires"] for each in items.values()) < 1000:
        return  # the month ends in a few minutes
    capped, free = items["Capped"], items["Free"]
    assert (capped["limited_by"], capped["estimate"]["tokens"], capped["estimate"]["pages"]) == ("automation", 50, 5)
    assert (free["limited_by"], free["estimate"]["tokens"]) == (None, 10 * free["fires"])
    budget = {"budget": {"per_run": {"tokens": 20}, "per_month": {"tokens": 530}}}
    assert_ok(await api.patch(f"/accounts/{(await account_of(api))['id']}", budget), 200)
    found, items = await forecast()
    assert {each["limited_by"] for each in items.values()} == {"account"}
    assert (found["spent"]["tokens"], found["estimate"]["tokens"]) == (30, pytest.approx(530))
    assert not found["at_least"]


@pytest.mark.parametrize(
    ("trigger", "fires"),
    [
        ({"kind": "cron", "cron": "0 9 * * *"}, 21),
        ({"kind": "cron", "cron": "0 9 * * *", "max_fires": 12, "fires": 7}, 5),
        ({"kind": "cron", "cron": "0 9 * * *", "ends_at": datetime(2026, 6, 12, 9, tzinfo=UTC)}, 3),
        ({"kind": "every", "every": timedelta(hours=6)}, 83),
        ({"kind": "at", "at": datetime(2026, 6, 10, 9, tzinfo=UTC)}, 1),
        ({"kind": "cron", "cron": "no longer readable"}, 0),
    ],
)
async def test_fires_are_counted_up_to_the_end_of_the_month(trigger: dict[str, Any], fires: int) -> None:
    next_fire = datetime(2026, 6, 10, 9, tzinfo=UTC)
    row = {
        **dict.fromkeys(("cron", "every", "time_of_day", "at", "starts_at", "ends_at", "max_fires")),
        "timezone": "UTC", "anchor_at": next_fire - timedelta(days=1), "fires": 0, "next_fire_at": next_fire, **trigger,
    }  # fmt: skip
    assert fires_until(row, datetime(2026, 7, 1, tzinfo=UTC)) == fires


async def test_accounts_are_refused_for_what_is_wrong_with_them(api: Api) -> None:
    assert_ok(await api.post("/accounts", {"name": "Travel"}))
    assert_refused(await api.post("/accounts", {"name": "Travel"}), 409, "name_taken", "name")
    other = assert_ok(await api.post("/accounts", {"name": "Food"}))
    assert_refused(await api.patch(f"/accounts/{other['id']}", {"name": "Travel"}), 409, "name_taken", "name")
    month = {"budget": {"per_month": {"money": "5"}}}
    assert_refused(
        await api.post("/accounts", {"name": "A", **month}), 422, "budget_needs_per_run", "budget.per_run.money"
    )
    assert_refused(
        await api.patch(f"/accounts/{other['id']}", month), 422, "budget_needs_per_run", "budget.per_run.money"
    )
    for field, value in (
        ("tokens", 0),
        ("tokens", 1.5),
        ("money", "-1"),
        ("money", "NaN"),
        ("money", "1e-9"),
        ("seconds", "x"),
    ):
        told = assert_refused(
            await api.post("/automations", example(budget={"per_run": {field: value}})),
            422,
            "invalid",
            f"budget.per_run.{field}",
        )
        assert told["errors"][0]["field"] == f"budget.per_run.{field}"
    assert_refused(
        await api.post("/automations", example(budget={"per_run": {"euros": 1}})),
        422,
        "invalid",
        "budget.per_run.euros",
    )
    told = assert_refused(await api.post("/accounts", {"name": "B", "currency": "euro"}), 422, "invalid", "currency")
    assert "three capital letters" in told["detail"]


async def test_a_budget_is_part_of_the_revision(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(budget={"per_run": {"money": 0.1}})))
    assert saved["budget"] == {"per_run": {"money": "0.1"}}
    path = f"/automations/{saved['id']}"
    assert assert_ok(await api.patch(path, {"name": "Other"}), 200)["budget"] == saved["budget"]
    assert assert_ok(await api.patch(path, {"budget": None}), 200)["budget"] is None
    specs = [each["spec"]["budget"] for each in assert_ok(await api.get(f"{path}/revisions"), 200)["items"]]
    assert specs == [None, {"per_run": {"money": "0.1"}}, {"per_run": {"money": "0.1"}}]


async def test_a_task_for_which_nothing_is_left_fails_and_is_retried_once_there_is(office: Office, api: Api) -> None:
    account = f"/accounts/{(await account_of(api))['id']}"
    assert_ok(await api.patch(account, {"budget": {"per_run": {"tokens": 10}, "per_month": {"tokens": 10}}}), 200)
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    tasks = [{"key": "a", "role": "worker", "prompt": "Do it."}]
    goal = {"kind": "background", "goal": "Clean.", "roles": [{"name": "worker", "agent": "worker-bee"}]}
    session = assert_ok(await api.post("/sessions", goal))
    assert_ok(await api.post(f"/sessions/{session['id']}/tasks", {"tasks": tasks}))

    async def failed() -> Any:
        [task] = assert_ok(await api.get(f"/sessions/{session['id']}/tasks"), 200)["items"]
        return task if task["status"] == "failed" else None

    task = await until(failed)
    assert task["reason"] == "budget"
    assert_refused(await api.post(f"/runs/{task['run_id']}/retry"), 409, "budget")
    assert_ok(await api.patch(account, {"budget": None}), 200)
    assert assert_ok(await api.post(f"/runs/{task['run_id']}/retry"))["status"] == "queued"
