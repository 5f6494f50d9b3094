"""What was spent is summed up once nobody adds to it, and read as if it had not been."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from rota.db import tallies, usage
from rota.db.pool import Database
from rota.model.ids import id_at
from rota.model.tally import closed_until, made_at, quarter
from rota.roster.forecasting import at_pace, left_of, pace_span
from rota.watch.tally import Tally
from support.house import House
from support.run_state import from_now

NOON = datetime(2026, 11, 15, 12, 7, tzinfo=UTC)
SESSION = """
INSERT INTO sessions (workspace_id, id, kind, origin, agent_id, owner_id)
SELECT workspace_id, id, 'interactive', 'user', agent_id, owner_id FROM automations
"""
SPEND = """
INSERT INTO usage (workspace_id, run_id, attempt, unit, amount, account_id)
SELECT workspace_id, %s, 1, 'tokens', %s, account_id FROM grants WHERE id = %s
"""


@pytest.mark.parametrize(
    ("oldest", "end"),
    [
        (None, NOON.replace(minute=45, hour=11)),  # the quarter that is going on, and the one before, are left alone
        (NOON - timedelta(hours=2), NOON.replace(hour=10, minute=0)),
        (NOON - timedelta(days=9), NOON - timedelta(hours=12, minutes=7)),  # never back
    ],
)
def test_spans_are_closed_behind_the_oldest_run_that_lives(oldest: datetime | None, end: datetime) -> None:
    start = NOON - timedelta(hours=12, minutes=7)
    assert closed_until(start, NOON, id_at(oldest) if oldest else None) == end
    assert closed_until(start - timedelta(days=7), NOON, None) == start - timedelta(days=6)  # a day at once


def test_an_id_tells_when_it_was_made() -> None:
    assert made_at(id_at(NOON)) == NOON
    assert quarter(NOON) == NOON.replace(minute=0)


def test_the_pace_of_a_week_goes_on() -> None:
    days = {(NOON.date() - timedelta(days=ago), "tokens"): Decimal(70 if 1 <= ago <= 7 else 9000) for ago in range(20)}
    assert at_pace({"tokens": Decimal(50)}, days, NOON, NOON + timedelta(days=3)) == {"tokens": Decimal(260)}


def test_the_pace_of_the_first_week_is_that_of_the_hours_since_the_first_run() -> None:
    days = {(NOON.date(), "tokens"): Decimal(40), (NOON.date() - timedelta(days=1), "tokens"): Decimal(80)}
    assert pace_span(NOON, NOON - timedelta(hours=30)) == timedelta(hours=30)
    assert pace_span(NOON, NOON - timedelta(seconds=1)) == timedelta(hours=1)
    assert pace_span(NOON, NOON - timedelta(days=40)) == pace_span(NOON, None) == timedelta(days=7)
    end, spent = NOON + timedelta(hours=60), {"tokens": Decimal(120)}
    assert at_pace(spent, days, NOON, end, timedelta(hours=30)) == {"tokens": Decimal(360)}
    left = {"tokens": Decimal(100)}
    assert at_pace(spent, days, NOON, end, timedelta(hours=30), left) == {"tokens": Decimal(220)}


def test_what_is_left_of_accounts_counts_where_each_of_them_has_a_limit() -> None:
    ten, over = ({"cap": Decimal(10), "spent": Decimal(each), "reserved": Decimal()} for each in (4, 12))
    accounts = [
        {"currency": "USD", "spending": {"money": ten, "tokens": ten}},
        {"currency": "USD", "spending": {"money": over}},
        {"currency": "EUR", "spending": {"money": ten}},
    ]
    assert left_of(accounts) == {"money": 6, "money EUR": 6}


async def spent(house: House, at: datetime, amount: int, status: str = "succeeded") -> None:
    run_id = UUID(int=id_at(at).int + amount)
    session_id = await house.value("SELECT id FROM sessions")
    finished_at = from_now() if status == "succeeded" else None
    run = await house.add_run(
        id=run_id, session_id=session_id, status=status, source="chat", queued_at=at, finished_at=finished_at
    )
    await house.execute(SPEND, run_id, amount, run["grant_id"])


async def by_day(house: House, now: datetime, zone: str) -> dict[str, int]:
    async with house.db.connection() as conn:
        found = await usage.days(
            conn, house.caller.workspace_id, now - timedelta(days=9), now + timedelta(days=1), zone
        )  # fmt: skip
    return {str(day): int(amount) for (day, _), amount in sorted(found.items())}


async def test_days_are_the_same_however_much_is_summed_up(house: House, db: Database) -> None:
    await house.automation()
    await house.execute(SESSION)
    now = await house.value("SELECT now()")
    for number, hours in enumerate((200, 120, 119, 60, 26, 3)):
        await spent(house, now - timedelta(hours=hours), 10**number)
    await spent(house, now - timedelta(hours=30), 5_000_000, status="queued")  # it may still spend
    zones = ("UTC", "Asia/Kathmandu", "America/Los_Angeles")
    before = [await by_day(house, now, zone) for zone in zones]
    keepers = [Tally(db), Tally(db)]
    while not all([await each.once() for each in keepers]):  # as two processes would, in turn
        assert [await by_day(house, now, zone) for zone in zones] == before
    assert [await by_day(house, now, zone) for zone in zones] == before
    assert await house.value("SELECT sum(amount) FROM usage_spans") == 1111  # up to the run that lives
    assert await house.value("SELECT until < %s FROM usage_tallies", now - timedelta(hours=30))
    await house.set_runs({"status": "queued"}, status="succeeded", finished_at=from_now())
    while not await keepers[0].once():
        pass
    assert await house.value("SELECT sum(amount) FROM usage_spans") == 5_111_111
    assert [await by_day(house, now, zone) for zone in zones] == before


async def test_two_that_look_at_once_write_a_span_once(house: House, db: Database) -> None:
    await house.automation()
    await house.execute(SESSION)
    now = await house.value("SELECT now()")
    await spent(house, now - timedelta(hours=3), 7)
    async with db.connection() as conn:
        [standing] = await tallies.standings(conn)
        for _ in range(2):  # the second as another process that read the same
            await tallies.sum_up(conn, [(standing, quarter(now - timedelta(hours=2)))])
        assert await house.value("SELECT sum(amount) FROM usage_spans") == 7
        await spent(house, now - timedelta(hours=1), 70)
        [standing] = await tallies.standings(conn)
        assert standing.until == quarter(now - timedelta(hours=2))
        for _ in range(2):  # the same from where it stood
            await tallies.sum_up(conn, [(standing, quarter(now - timedelta(minutes=30)))])
    assert await house.value("SELECT sum(amount) FROM usage_spans") == 77


async def test_who_spends_nothing_costs_nothing(house: House, db: Database) -> None:
    """Neither a row that is written again each quarter of an hour, nor a day after the other to catch up with."""
    await house.automation()
    await house.execute(SESSION)
    now = await house.value("SELECT now()")
    keeper = Tally(db)
    assert await keeper.once()
    assert await house.value("SELECT count(*) FROM usage_tallies") == 0
    await spent(house, now - timedelta(days=400), 1)
    assert not await keeper.once()
    assert await keeper.once()
    await spent(house, now - timedelta(days=2), 20)
    assert not await keeper.once()
    assert await keeper.once()
    assert await house.value("SELECT sum(amount) FROM usage_spans") == 21


async def test_pages_of_days_go_back_to_the_first_and_lose_none(house: House) -> None:
    """Also where days are empty, and where a day of the zone begins at another hour than one of UTC."""
    await house.automation()
    await house.execute(SESSION)
    midnight = datetime(2026, 11, 15, tzinfo=ZoneInfo("America/Los_Angeles"))
    spends = {0: 1, 1: 20, 2: 300, 6: 4000, 20: 50_000, 29: 600_000}
    for ago, amount in spends.items():
        began = (midnight - timedelta(days=ago)).astimezone(UTC)
        await spent(house, began, amount)
        await spent(house, began - timedelta(milliseconds=1), 2 * amount)  # late on the day before
    days = usage.Days(date(2026, 10, 17), date(2026, 11, 15), "America/Los_Angeles")
    seen, after = [], None
    async with house.db.connection() as conn:
        while page := await usage.by_day(conn, house.caller.workspace_id, days, after=after, limit=2):
            seen += [(days.last - row["day"]).days for row in page]
            after = (page[-1]["day"], page[-1]["subject"])
        whole = await usage.by_day(conn, house.caller.workspace_id, days, after=None, limit=100)
    assert seen == [0, 1, 2, 3, 6, 7, 20, 21, 29]
    assert [row["usage"]["tokens"] for row in whole] == [1, 22, 340, 600, 4000, 8000, 50_000, 100_000, 600_000]
