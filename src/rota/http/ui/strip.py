"""The last outcomes of an automation as a strip of bars, one path for each status: small, and drawn on the server."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from markupsafe import Markup

from rota.http.ui.words import STATUS

BARS, STEP, HEIGHT = 20, 6, 20
WIDTH = BARS * STEP - 2
# Not by colour alone: what did not run is lower.
FULL = 16
LOWER = {"queued": 8, "cancelled": 8, "skipped": 4, "none": 4}

SVG = Markup(
    '<svg class="strip" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img" aria-label="{told}">'
    "<title>{told}</title>{paths}</svg>"
)
PATH = Markup('<path class="{}" d="{}"/>')


def strip(outcomes: Sequence[str]) -> Markup:
    """Statuses, newest first; the newest stands at the right."""
    return _drawn(tuple(outcomes[:BARS]))


@lru_cache(maxsize=4096)  # most automations have fared like many others
def _drawn(shown: tuple[str, ...]) -> Markup:
    paths: dict[str, list[str]] = {}
    for place, status in enumerate(shown + ("none",) * (BARS - len(shown))):
        paths.setdefault(status, []).append(_bar(place, LOWER.get(status, FULL)))
    drawn = Markup().join(PATH.format(status, "".join(bars)) for status, bars in paths.items())
    return SVG.format(wide=WIDTH, high=HEIGHT, told=_told(shown), paths=drawn)


def _bar(place: int, tall: int) -> str:
    """From the foot up; its round caps add 2 at both ends."""
    return f"M{WIDTH - 2 - place * STEP} {HEIGHT - 2}v-{tall - 4}"


def _told(shown: Sequence[str]) -> str:
    if not shown:
        return "No runs yet"
    parts = ", ".join(f"{amount} {STATUS[status].lower()}" for status, amount in Counter(shown).most_common())
    return f"Last {len(shown)} runs: {parts}" if len(shown) > 1 else f"One run: {parts}"
