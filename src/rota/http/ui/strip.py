"""The last outcomes of an automation as a strip of bars, one path for each status: small, and drawn on the server."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.http.ui.words import STATUS

BARS, STEP, HEIGHT = 20, 6, 20
WIDTH = BARS * STEP - 2
# Not by colour alone: what did not run is lower.
TALL = {"succeeded": 16, "failed": 16, "running": 16, "awaiting_approval": 16, "queued": 8, "cancelled": 8, "skipped": 4}


@dataclass(frozen=True, slots=True)
class Strip:
    paths: Sequence[tuple[str, str]]
    told: str


def strip(outcomes: Sequence[Mapping[str, Any]]) -> Strip:
    """`outcomes` are newest first; the newest stands at the right."""
    shown = outcomes[:BARS]
    paths: dict[str, list[str]] = {}
    for place, outcome in enumerate(shown):
        paths.setdefault(outcome["status"], []).append(_bar(place, TALL[outcome["status"]]))
    for place in range(len(shown), BARS):
        paths.setdefault("none", []).append(_bar(place, 1))
    return Strip([(status, "".join(bars)) for status, bars in paths.items()], _told(shown))


def _bar(place: int, tall: int) -> str:
    """From the foot up; half a pixel at both ends is left for the round caps."""
    return f"M{WIDTH - 2 - place * STEP} {HEIGHT - 2}v-{tall - 1}" if tall > 1 else f"M{WIDTH - 2 - place * STEP} {HEIGHT - 2}h0"


def _told(shown: Sequence[Mapping[str, Any]]) -> str:
    if not shown:
        return "No runs yet"
    counted = Counter(outcome["status"] for outcome in shown)
    parts = ", ".join(f"{amount} {STATUS[status].lower()}" for status, amount in counted.most_common())
    return f"Last {len(shown)} runs: {parts}" if len(shown) > 1 else f"One run: {parts}"
