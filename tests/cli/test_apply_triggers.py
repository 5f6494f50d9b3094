"""A trigger as a file writes it equals the one that the API shows of it, however it is written."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from rota.cli.applying.triggers import LIMITS, same, stored, written
from rota.http.shapes.triggers import TriggerIn, TriggerOut
from rota.model.schedule import read_schedule
from rota.roster import triggers, views
from support.schedule_forms import editor_forms, junk, shorthands

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
ZONE = "Europe/Berlin"
instants = st.integers(0, 10**9).map(lambda seconds: datetime.fromtimestamp(1_800_000_000 + seconds, UTC).isoformat())
limits = st.fixed_dictionaries(
    {},
    optional={
        "enabled": st.booleans(),
        "starts_at": st.none() | instants,
        "ends_at": st.none() | instants.map(lambda text: text.replace("+00:00", "Z")),
        "max_fires": st.none() | st.integers(1, 100),
        "jitter": st.none() | st.sampled_from(["90s", "1.5m", "2m30s", "@every 10s", "0.25h"]),
        "overlap": st.none() | st.sampled_from(["skip", "allow"]),
    },
)


def shown(form: dict[str, Any]) -> dict[str, Any]:
    """The answer of the API to a trigger that was saved in this form."""
    given = TriggerIn.model_validate(form).form("schedule")
    when = {name: value for name, value in form.items() if name not in LIMITS}
    columns = triggers._columns(read_schedule(when, default_timezone=ZONE, now=NOW), ZONE)
    kept = {name: given[name] for name in triggers.LIMITS if given[name] is not None}
    row = {**triggers.DEFAULTS, **columns, **kept, "anchor_at": NOW, "id": uuid4(), "next_fire_at": None}
    return TriggerOut.model_validate(views._trigger({**row, "parked_error": None})).model_dump(mode="json")


@given(editor_forms | shorthands, limits, st.booleans())
def test_what_is_saved_is_recognised(form: dict[str, Any], more: dict[str, Any], zoned: bool) -> None:
    written_down = (
        {**form, **more} if zoned else {name: each for name, each in {**form, **more}.items() if name != "timezone"}
    )
    assert written(written_down, zone=ZONE, ids={}) == stored(shown(written_down))


@given(editor_forms | shorthands, editor_forms | shorthands)
def test_another_schedule_is_another(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two forms are the same only if they compile to the same."""
    compiled = [read_schedule(form, default_timezone=ZONE, now=NOW) for form in (one, other)]
    equal = compiled[0].schedule == compiled[1].schedule and compiled[0].editor_mode == compiled[1].editor_mode
    assert same([written(one, zone=ZONE, ids={})], [stored(shown(other))]) == equal


@given(junk | st.dictionaries(st.sampled_from([*LIMITS, "cron", "after", "on", "event", "webhook"]), junk, max_size=4))
def test_what_cannot_be_read_is_left_to_the_api(form: Any) -> None:
    found = written(form, zone=ZONE, ids={})
    assert found is None or not same([found], [stored(shown({"every": "7h", "jitter": "11s"}))])


def test_order_does_not_matter_but_number_does() -> None:
    one, other = {"every": "1h"}, {"event": "x"}
    assert same([one, other], [other, one])
    assert not same([one, one], [one])
    assert not same([None], [])
    assert stored({**shown({"every": "1h"}), "schedule": None}) != stored(shown({"every": "1h"}))
