"""What may be saved as a budget, and which runs fit into what is left."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from rota.errors import Invalid
from rota.model.budget import Concern, Exceeded, Month, Purse, Report, Spender, admit, checked, exceeded, judge
from rota.model.ids import AccountId, AutomationId, RunId, WorkspaceId, new_id

WORKSPACE, ACCOUNT = WorkspaceId(new_id()), AccountId(new_id())
MONTH = date(2026, 6, 1)


def concern(account: Any = None, automation: Any = None) -> Concern:
    start = datetime(2026, 6, 1, tzinfo=UTC)
    return Concern(
        WORKSPACE, RunId(new_id()), MONTH, start, ACCOUNT, account, AutomationId(new_id()), automation
    )  # fmt: skip


def test_a_run_is_held_to_the_tighter_of_two_caps() -> None:
    account = {"per_run": {"tokens": 10, "money": "0.50"}}
    assert concern(account, {"per_run": {"tokens": 4, "seconds": 60}}).caps == {
        "tokens": Decimal(4), "money": Decimal("0.50"), "seconds": Decimal(60),
    }  # fmt: skip


def test_those_that_fit_start_in_their_order_and_a_smaller_one_may_pass_a_larger() -> None:
    account = {"per_run": {"tokens": 10}, "per_month": {"tokens": 25}}
    large, small = {"per_run": {"tokens": 10}}, {"per_run": {"tokens": 5}}
    runs = [concern(account, each) for each in (large, large, large, small, small)]
    admitted = admit(runs, {Purse(WORKSPACE, ACCOUNT, MONTH, "tokens"): Decimal()})
    assert [each.run_id in admitted for each in runs] == [True, True, False, True, False]


@pytest.mark.parametrize(
    ("budget", "code", "field"),
    [
        ({"per_month": {"money": "5"}}, "budget_needs_per_run", "budget.per_run.money"),
        (
            {"per_run": {"tokens": 5}, "per_month": {"seconds": 5}},
            "budget_needs_per_run",
            "budget.per_run.seconds",
        ),
        ({"per_run": {"money": "6"}, "per_month": {"money": "5.99"}}, "budget_too_small", "budget.per_month.money"),
    ],
)
def test_a_month_without_a_share_for_each_run_is_refused(budget: Any, code: str, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        checked(budget)
    assert (refused.value.code, refused.value.field) == (code, field)


def test_an_empty_budget_is_none() -> None:
    assert checked({"per_run": {}, "per_month": {}}) is None
    assert checked(None) is None


def test_money_stays_decimal() -> None:
    assert checked({"per_run": {"money": Decimal("0.50"), "tokens": 7}}) == {"per_run": {"money": "0.50", "tokens": 7}}
    spent = sum([Decimal("0.1")] * 3, Decimal())
    assert exceeded({"money": Decimal("0.3")}, {"money": spent})
    assert not exceeded({"money": Decimal("0.30000001")}, {"money": spent})


def test_each_cap_is_exceeded_by_one_report_and_the_run_is_then_refused_in_every_unit() -> None:
    run = RunId(new_id())
    spender = Spender({"tokens": Decimal(100), "seconds": Decimal(5)}, {"tokens": Decimal(40)}, [])
    given = [("tokens", 59), ("money", 1), ("tokens", 60), ("tokens", 1), ("money", 1), ("seconds", 9)]
    reports = [Report(run, unit, Decimal(amount)) for unit, amount in given]
    accepted, over = judge(reports, {run: spender}, [])
    assert accepted == [True, True, True, False, False, True]
    assert over == {run: Exceeded("tokens", Decimal(159), Decimal(100))}


def test_what_one_run_spends_counts_for_those_it_shares_a_month_with() -> None:
    shared = Purse(WORKSPACE, ACCOUNT, MONTH, "tokens")
    first, second, third = (RunId(new_id()) for _ in range(3))
    caps = {"tokens": Decimal(50)}
    spenders = {first: Spender(caps, {}, [shared]), second: Spender(caps, {}, [shared]), third: Spender(caps, {}, [])}
    reports = [Report(run, "tokens", Decimal(45)) for run in (first, second, third, second)]
    accepted, over = judge(reports, spenders, [Month(shared, "account", Decimal(20), Decimal(100))])
    assert accepted == [True, True, True, False]
    assert over == dict.fromkeys((first, second), Exceeded("tokens", Decimal(110), Decimal(100), "account"))


def test_running_time_always_counts_and_stops_no_run() -> None:
    run = RunId(new_id())
    spender = Spender({"seconds": Decimal(5)}, {"seconds": Decimal(5)}, [])
    assert judge([Report(run, "seconds", Decimal(1))], {run: spender}, []) == ([True], {})
