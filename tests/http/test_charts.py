"""Pictures drawn on the server, by their numbers."""

from datetime import UTC, date, datetime, timedelta

import pytest

from rota.http.ui import charts
from rota.model.run import Status

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def test_a_line_spans_its_time_and_stays_within_its_axis() -> None:
    points = [(NOON + timedelta(hours=at), float(at)) for at in (0, 12, 24)]
    drawn = charts.lines({"line": points}, NOON, NOON + timedelta(hours=24), unit="", zone="UTC", told="x")
    [(_, path)] = drawn.lines
    places = [tuple(float(part) for part in each.split()) for each in path.removeprefix("M").split("L")]
    assert [x for x, _ in places] == [charts.LEFT, (charts.LEFT + charts.WIDTH) / 2, charts.WIDTH]
    assert all(charts.TOP <= y <= charts.HEIGHT - charts.BOTTOM for _, y in places)
    assert [word for _, word in drawn.ticks] == ["18:00", "00:00", "06:00"]
    assert [word for _, word in drawn.grid] == ["0", "10", "20", "30"]


def test_an_axis_counts_as_people_do() -> None:
    def words(most: float, unit: str) -> list[str]:
        return [word for _, word in charts.bars([(NOON.date(), most)], unit=unit, told="x").grid]

    assert words(4_000, "s") == ["0", "30 min", "1 h", "1.5 h"]
    assert words(41, "s") == ["0", "15 s", "30 s", "45 s"]
    assert words(41, "%") == ["0%", "20%", "40%", "60%"]
    assert words(0.98, "") == ["0", "0.5", "1"]
    alone = charts.lines({"line": [(NOON, 1.0)]}, NOON, NOON + timedelta(hours=1), unit="", zone="UTC", told="x")
    assert [word for _, word in alone.grid] == ["0", "1"]  # there is no half a worker


def test_nothing_to_draw_draws_nothing() -> None:
    empty = charts.lines({"line": []}, NOON, NOON + timedelta(hours=1), unit="s", zone="UTC", told="x")
    assert (empty.area, empty.lines) == ("", [("line", "")])
    assert charts.bars([], unit="", told="x").bars == []


def test_a_day_is_coloured_by_most_of_it_and_marks_its_failures() -> None:
    today = date(2026, 6, 3)
    counts = [
        {"day": date(2026, 6, 1), "status": "succeeded", "count": 9},
        {"day": date(2026, 6, 1), "status": "failed", "count": 1},
        {"day": date(2026, 6, 2), "status": "failed", "count": 1},
        {"day": date(2026, 6, 3), "status": "skipped", "count": 1},
    ]
    drawn = charts.calendar(counts, today)
    monday, tuesday, wednesday = drawn.days[-3:]
    assert (monday.tone, monday.failed, monday.much) == ("succeeded", True, 4)
    assert (tuesday.tone, tuesday.failed) == ("failed", True)
    assert (wednesday.tone, wednesday.failed) == ("skipped", False)
    assert monday.told == "Mon 1 Jun: 9 succeeded, 1 failed"
    assert monday.x == tuesday.x < drawn.width
    assert drawn.days[0].day.weekday() == 0
    assert drawn.days[0].told.endswith("no runs")


@pytest.mark.parametrize("status", list(Status))
def test_a_day_has_a_colour_whatever_its_runs_are_at(status: Status) -> None:
    today = date(2026, 6, 3)
    drawn = charts.calendar([{"day": today, "status": status, "count": 1}], today)
    assert drawn.days[-1].tone == status


def test_figures_are_short() -> None:
    told = [
        charts.figure(value, unit) for value, unit in ((0, ""), (1500, ""), (2_500_000, ""), (90, "s"), (0.034, "s"))
    ]
    assert told == ["0", "1.5k", "2.5M", "1.5 min", "34 ms"]


def test_money_has_its_cents_and_less_than_a_cent_is_not_nothing() -> None:
    told = [charts.spent(amount, "money") for amount in (0, "14.4", 14, 1234.5, 0.00025)]
    assert told == ["0.00", "14.40", "14.00", "1,234.50", "0.00025"]
    assert [charts.spent(amount, "tokens") for amount in (999, 12345)] == ["999", "12.3k"]
    drawn = charts.bars([(NOON.date(), 14.4)], unit="money", told="x")
    assert drawn.bars[0][4].endswith(": 14.40")
    assert drawn.grid[0][1] == "0"  # an axis stays short


def test_bars_begin_with_the_first_day_that_has_a_value_but_show_a_week() -> None:
    days = [(NOON.date() + timedelta(days=at), float(at == 27)) for at in range(30)]
    assert len(charts.bars(days, unit="", told="x").ticks) == 7
    early = [(day, float(at >= 10)) for at, (day, _) in enumerate(days)]
    first, *_ = charts.bars(early, unit="", told="x").bars
    assert first[-1].startswith(f"{early[10][0]:%-d %b}")
    assert len(charts.bars(early, unit="", told="x").bars) == 20


def test_a_short_stretch_has_marks_closer_together() -> None:
    drawn = charts.lines({"line": []}, NOON, NOON + timedelta(hours=1), unit="", zone="UTC", told="x")
    assert [word for _, word in drawn.ticks] == ["12:15", "12:30", "12:45"]
