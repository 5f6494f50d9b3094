"""The Python agents of the starters: small, real, and an example of how to write one."""

import json
import os
import re
import urllib.request
from collections import Counter
from typing import Any

from rota.agent import Context, agent


@agent
def count(context: Context) -> str:
    """Goes on from the number it said last: the session is its memory."""
    said = [
        int(number)
        for turn in context.transcript
        if turn.speaker == "agent"
        for number in re.findall(r"\d+", turn.text)
    ]
    return f"I have counted to {max(said, default=0) + 1}."


@agent
def digest(context: Context) -> str:
    """Reads the latest runs from Rota's own API with the token of this attempt, and sums them up."""
    latest = _get("/runs?limit=100")
    runs = [run for run in latest["items"] if run["id"] != str(context.run_id)]
    names = {each["id"]: each["name"] for each in _get("/automations?limit=100&deleted=true")["items"]}
    if not runs:
        return "Nothing has run yet."
    for name, counted in sorted(_outcomes(runs, names).items()):
        context.say(f"- {name}: " + ", ".join(f"{amount} {status}" for status, amount in counted.most_common()) + "\n")
    failed = [run for run in runs if run["status"] == "failed"]
    for run in failed[:5]:
        context.say(f"- Look at {_of(run, names)}: {run['error_class']}, {run['error_detail']}\n")
    if latest["next_cursor"]:
        return f"{len(failed)} of the latest {len(runs)} runs failed."
    return f"{len(runs)} run{'s' * (len(runs) != 1)} since the start, {len(failed)} failed."


def _outcomes(runs: list[dict[str, Any]], names: dict[str, str]) -> dict[str, "Counter[str]"]:
    outcomes: dict[str, Counter[str]] = {}
    for run in runs:
        outcomes.setdefault(_of(run, names), Counter())[run["status"]] += 1
    return outcomes


def _of(run: dict[str, Any], names: dict[str, str]) -> str:
    """The automation's name, or why there is none."""
    if run["automation_id"] is None:
        return {"task": "Tasks", "chat": "Conversations"}.get(run["source"], "Direct runs")
    return names.get(run["automation_id"], "Other automations")


def _get(path: str) -> Any:
    url = f"{os.environ['ROTA_URL']}/api/v1/workspaces/{os.environ['ROTA_WORKSPACE']}{path}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {os.environ['ROTA_TOKEN']}"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # nosec B310 # noqa: S310 — the URL is Rota's own
        return json.load(answer)
