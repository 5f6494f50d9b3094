"""Durations: what people write is read exactly, or refused."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import Invalid
from rota.model.duration import LONGEST, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", timedelta(seconds=30)),
        ("15m", timedelta(minutes=15)),
        ("1.5h", timedelta(minutes=90)),
        ("1d", timedelta(days=1)),
        ("1h30m", timedelta(minutes=90)),
        ("1h 30m", timedelta(minutes=90)),
        ("2d3h4m5.5s", timedelta(days=2, hours=3, minutes=4, seconds=5.5)),
        ("@every 15m", timedelta(minutes=15)),
        (" 15m ", timedelta(minutes=15)),
        ("007m", timedelta(minutes=7)),
        ("0.000001s", timedelta(microseconds=1)),
        ("3653d", LONGEST),
    ],
)
def test_a_duration_is_read_exactly(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "15", "m", "-5m", "+5m", "0s", "0d0h", "15M", "15 m", "5min", "30m1h", "1m1m", "1e3s", "nan", "infs",
        ".5h", "1.h", "1,5h", "1_0m", "0.0000001s", "3653d1s", "9" * 63 + "d", "1" * 64 + "s", "@every", "@every15m",
        "PT15M", "١٥m", "15m\0", "15m\n15m", "\ud800", None, 15, True, 1.5, ["15m"],
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: Any) -> None:
    with pytest.raises(Invalid) as refused:
        parse_duration(text, field="timeout")
    assert (refused.value.code, refused.value.field) == ("invalid_duration", "timeout")
    assert "such as" in refused.value.message
    assert refused.value.message.encode()


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (timedelta(minutes=90), "1h30m"),
        (timedelta(hours=24), "1d"),
        (timedelta(days=1, seconds=1), "1d1s"),
        (timedelta(milliseconds=500), "0.5s"),
        (timedelta(seconds=61.25), "1m1.25s"),
        (timedelta(seconds=10), "10s"),
    ],
)
def test_a_duration_is_written_in_its_largest_units(duration: timedelta, expected: str) -> None:
    assert format_duration(duration) == expected


@given(st.timedeltas(timedelta(microseconds=1), LONGEST))
def test_what_is_written_is_read_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.text(max_size=70))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(Invalid):
        assert timedelta(0) < parse_duration(text) <= LONGEST


@pytest.mark.parametrize("duration", [timedelta(0), timedelta(seconds=-1)])
def test_no_time_at_all_cannot_be_written(duration: timedelta) -> None:
    with pytest.raises(Invalid):
        format_duration(duration)
