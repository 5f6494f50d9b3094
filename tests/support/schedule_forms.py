"""Hypothesis strategies for the forms of schedules: as the editor sends them, as people write them, and nonsense."""

from hypothesis import strategies as st

ZONES = ["UTC", "America/Los_Angeles", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata"]

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(["2d", "09:00"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
clocks = st.times().map("{:%H:%M}".format)
zones = st.sampled_from(ZONES)
weekdays = st.lists(st.sampled_from(["mon", "tue", "wed", "thu", "fri", "sat", "sun"]), min_size=1, max_size=7)
editor_forms = st.one_of(
    st.fixed_dictionaries(
        {
            "mode": st.just("interval"),
            "every": st.integers(1, 200),
            "unit": st.sampled_from(["minutes", "hours"]),
            "timezone": zones,
        }
    ),
    st.fixed_dictionaries(
        {
            "mode": st.just("interval"),
            "every": st.integers(1, 60),
            "unit": st.just("days"),
            "time": clocks,
            "timezone": zones,
        }
    ),
    st.fixed_dictionaries({"mode": st.just("weekly"), "weekdays": weekdays, "time": clocks, "timezone": zones}),
    st.fixed_dictionaries(
        {
            "mode": st.just("advanced"),
            "cron": st.sampled_from(["0 9 * * 1-5", "@daily", "@every 90s", "@every 15m", "0 0 L * *"]),
            "timezone": zones,
        }
    ),
)
shorthands = st.one_of(
    st.fixed_dictionaries({"every": st.sampled_from(["90s", "15m", "2h", "90m", "1d", "36h"]), "timezone": zones}),
    st.fixed_dictionaries({"every": st.sampled_from(["1d", "2d", "30d"]), "time": clocks, "timezone": zones}),
    st.fixed_dictionaries({"cron": st.sampled_from(["0 9 * * 1", "*/5 * * * *"]), "timezone": zones}),
    st.fixed_dictionaries({"at": st.just("2027-01-01T09:00:30.5Z")}),
)
