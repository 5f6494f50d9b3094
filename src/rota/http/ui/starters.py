"""Three automations to begin with, where there is none yet: each opens the editor filled in."""

from collections.abc import Mapping, Sequence
from typing import Any

STARTERS: Sequence[Mapping[str, Any]] = (
    {
        "key": "digest",
        "name": "Morning digest",
        "prompt": "Summarise what changed since yesterday and what needs me today.",
        "trigger": {"kind": "weekly", "weekdays": ["mon", "tue", "wed", "thu", "fri"], "time": "09:00"},
        "words": "Weekdays at 09:00",
    },
    {
        "key": "inbox",
        "name": "Inbox sorter",
        "prompt": "Label new issues by area, and ask for steps where they are missing.",
        "trigger": {"kind": "interval", "every": "15", "unit": "minutes"},
        "words": "Every 15 minutes",
    },
    {
        "key": "report",
        "name": "Friday report",
        "prompt": "Write this week’s report from the runs and commits since Monday.",
        "trigger": {"kind": "weekly", "weekdays": ["fri"], "time": "16:00"},
        "words": "Fridays at 16:00",
    },
)
