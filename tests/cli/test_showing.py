"""Tables and times as people read them."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import click
import pytest

from rota.cli.applying import telling
from rota.cli.applying.planning import Change
from rota.cli.applying.reading import Item
from rota.cli.showing import (
    Column,
    as_json,
    brief,
    clean,
    cut,
    distance,
    facts,
    figure,
    lasted,
    local,
    one_line,
    table,
    width_of,
)

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
COLUMNS = [Column("slug", "slug", whole=True), Column("name", "name"), Column("said", lambda item: item["said"])]


def at(**away: float) -> str:
    return (NOON + timedelta(**away)).isoformat()


@pytest.mark.parametrize(
    ("instant", "told"),
    [
        (at(hours=3, minutes=59), "in 3 h"),
        (at(days=2, hours=1), "in 2 d"),
        (at(seconds=-90), "1 min ago"),
        (at(seconds=-5.9), "5 s ago"),
        (at(milliseconds=-300), "now"),
        (at(seconds=1), "in 1 s"),
    ],
)
def test_how_far_a_time_is(instant: str, told: str) -> None:
    assert distance(instant, now=NOON) == told


def test_a_time_that_the_readers_clock_cannot_show_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        assert brief("9999-12-31T23:00:00+00:00", now=NOON) == "9999-12-31 23:00"
        assert local("9999-12-31T23:00:00+00:00", now=NOON).startswith("9999-12-31 23:00:00 +0000 (in ")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_time_is_told_on_the_readers_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert local(at(hours=3), now=NOON) == "2026-06-01 20:30:00 +0530 (in 3 h)"
        assert brief(at(days=3), now=NOON) == "2026-06-04 17:30"
        assert brief(at(minutes=3), now=NOON) == "in 3 min"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (local(None), brief(None), lasted(None, at())) == ("-", "-", "-")
    assert lasted(at(), at(seconds=75)) == "1 min 15 s"


def test_columns_are_aligned_by_what_a_terminal_shows() -> None:
    items: list[dict[str, str | None]] = [
        {"slug": "a", "name": "日本", "said": "x"},
        {"slug": "long-one", "name": "e\u0301", "said": None},
    ]
    lines = list(table(COLUMNS, items))
    assert [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines] == [
        "SLUG      NAME  SAID",
        "a         日本  x",
        "long-one  e\u0301     -",
    ]


@pytest.mark.parametrize("within", [12, 20, 30, 47, 80])
def test_no_line_is_wider_than_the_terminal(within: int) -> None:
    items = [{"slug": "evening-haiku", "name": "日本語 " * 20, "said": "word " * 30}]
    for line in table(COLUMNS, items, within=within):
        shown = line.replace("\x1b[1m", "").replace("\x1b[0m", "")
        assert width_of(shown) <= within
    assert any("evening-haiku" in line for line in table(COLUMNS, items, within=within)) or within < 13


def test_where_a_row_has_no_room_its_name_stands_above_it() -> None:
    items = [{"slug": "evening-haiku", "name": "An evening's haiku", "said": "a word and " * 3}]
    lines = [click.unstyle(line) for line in table(COLUMNS, items, within=30)]
    assert [line.split()[0] for line in lines] == ["SLUG", "NAME", "evening-haiku", "An"]
    assert len(list(table(COLUMNS, items, within=40))) == 2
    assert list(table(COLUMNS, [], within=30)) == list(table(COLUMNS, []))


@pytest.mark.parametrize(
    ("text", "room", "told"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("日本語です", 6, "日本…"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301…"),
        ("longer", 1, "…"),
        ("longer", 0, ""),
        ("x" * 200_000, 3, "xx…"),  # at once, however long it is
    ],
)
def test_a_text_is_cut_to_the_room_it_has(text: str, room: int, told: str) -> None:
    assert cut(text, room) == told


def test_an_amount_is_told_to_its_last_digit() -> None:
    amounts = (0.0, 12.0, 1_234_567.0, 0.1 + 0.2, 1_234.5678)
    assert [figure(each) for each in amounts] == ["0", "12", "1,234,567", "0.3", "1,234.5678"]


def test_nothing_of_a_text_is_obeyed() -> None:
    assert clean("\x1b]0;owned\x07\x1b[31mred\x9b2J\u202eevil\x08") == "redevil"
    assert one_line("two\nlines\r\n") == "two lines"
    assert as_json({"a": "\x9b2J\u202e"}, indent=None) == '{"a": "\\u009b2J\\u202e"}'
    [told] = facts([("name", "a\x1b[2Jb"), ("nothing", None)])
    assert told.endswith("ab")


def test_a_long_prompt_that_was_written_anew_is_compared_at_once() -> None:
    old = [f"Step {at}: look into folder {at}, and write down what you see there." for at in range(500)]
    new = [f"Step {at}: look into directory {3 * at}, and write down all that you see." for at in range(500)]
    text = "\n".join([*old, "The end."]), "\n".join([*new, "The end."])
    item = Item("automation", "digest", {}, "plan.yaml:1")
    shown = [click.unstyle(line) for line in telling.told([Change(item, {}, {}, differences={"prompt": text})])]
    lines = [line[6:] for line in shown[2:-1]]
    assert lines == [*(f"- {each}" for each in old), *(f"+ {each}" for each in new), "  The end."]


def test_what_agents_call_often_loads_nothing_that_it_does_not_use() -> None:
    loaded = "import sys, rota.cli.desk; print(sorted({'rich', 'pygments', 'psutil', 'psycopg', 'fastapi'} & {*sys.modules}))"
    told = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
