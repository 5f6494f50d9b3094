"""`python -m bench [scheduler|worker|…] [--quick]`: measure, print a table, and keep the figures as JSON."""

import argparse
import asyncio
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from bench.goals import Goal

PARTS = ("scheduler", "worker", "sessions", "pages", "api")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; everything if left out")
    parser.add_argument("--quick", action="store_true", help="smaller numbers, for a first look")
    given = parser.parse_args()
    for part in given.parts or PARTS:
        print(f"\n{part}\n{'─' * len(part)}")
        # Only now: some parts compare with packages that others do not need.
        figures, goals = asyncio.run(import_module(f"bench.{part}").measure(quick=given.quick))
        for name, told in figures.items():
            print(f"  {name:<58} {_told(told)}")
        for goal in goals:
            print(f"  {goal}")
        _keep(part, figures, goals)


def _told(value: object) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _keep(part: str, figures: dict[str, object], goals: Sequence[Goal]) -> None:
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{part}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    kept = [{**asdict(goal), "met": goal.met} for goal in goals]
    about = {"machine": platform.platform(), "python": sys.version.split()[0]}
    file.write_text(json.dumps({**about, **figures, "goals": kept}, indent=2, ensure_ascii=False))


main()
