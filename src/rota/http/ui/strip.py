"""The last outcomes of an automation as a strip of bars, one path for each status: small, and drawn on the server."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.http.ui.words import STATUS

BARS, STEP, HEIGHT = 20, 6, 20
WIDTH = BARS * STEP - 2
# Not by colour alone: what did not run is lower.
FULL = 16
LOWER = {"queued": 8, "cancelled": 8, "skipped": 4}


@dataclass(frozen=True, slots=True)
class Strip:
    paths: Sequence[tuple[str, str]]
    told: str


def strip(outcomes: Sequence[Mapping[str, Any]]) -> Strip:
    """`outcomes` are newest first; the newest stands at the right."""
    shown = outcomes[:BARS]
    paths: dict[str, list[str]] = {}
    for place, outcome in enumerate(shown):
        paths.setdefault(outcome["status"], []).append(_bar(place, LOWER.get(outcome["status"], FULL)))
    for place in range(len(shown), BARS):
        paths.setdefault("none", []).append(_bar(place, 4))
    return Strip([(status, "".join(bars)) for status, bars in paths.items()], _told(shown))


def _bar(place: int, tall: int) -> str:
    """From the foot up; its round caps add 2 at both ends."""
    return f"M{WIDTH - 2 - place * STEP} {HEIGHT - 2}v-{tall - 4}"


def _told(shown: Sequence[Mapping[str, Any]]) -> str:
    if not shown:
        return "No runs yet"
    counted = Counter(outcome["status"] for outcome in shown)
    parts = ", ".join(f"{amount} {STATUS[status].lower()}" for status, amount in counted.most_common())
    return f"Last {len(shown)} runs: {parts}" if len(shown) > 1 else f"One run: {parts}"
