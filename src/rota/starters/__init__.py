"""Automations that do something real without any key or network, so that there is something to look at.

Each kind that can work so has one; those whose library is not installed are left out.
"""

import sys
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.db.pool import Connection
    from rota.model.caller import Caller

MINUTES = 10


def _agents() -> list[dict[str, Any]]:
    report = (files("rota.starters") / "machine_report.sh").read_text("utf-8")
    return [
        {
            "name": "Machine report",
            "executor": "command",
            "config": {"argv": ["sh", "-c", report], "stdin": "none"},
        },
        {"name": "Counter", "executor": "python", "config": {"function": "rota.starters.agents:count"}},
        {"name": "Digest", "executor": "python", "config": {"function": "rota.starters.agents:digest"}},
        {"name": "Folder watch", "executor": "python", "config": {"function": "rota.starters.folder:watch"}},
        {
            "name": "Diary",
            "executor": "acp",
            "config": {"argv": [sys.executable, str(files("rota.starters") / "diary.py")]},
        },
        {
            "name": "Disk trend",
            "executor": "langgraph",
            "config": {"graph": "rota.starters.trend:graph", "result_key": "report"},
        },
    ]


def _has_its_library(agent: dict[str, Any]) -> bool:
    from rota.model.agent_config import EXTRAS  # noqa: PLC0415 - as below

    kind = agent["executor"]
    return kind not in EXTRAS or find_spec(EXTRAS[kind]) is not None


def _automations(now: datetime) -> list[dict[str, Any]]:
    hourly = {"cron": "0 * * * *", "starts_at": now + timedelta(minutes=MINUTES + 1)}
    return [
        {
            "name": "Weekday digest", "agent": "digest", "prompt": "Tell me how my automations have been doing.",
            "scopes": ["workspace:read"],
            "triggers": [{"mode": "weekly", "weekdays": ["mon", "tue", "wed", "thu", "fri"], "time": "09:00"}],
        },
        {
            "name": "What changed here", "agent": "folder-watch", "input": {"folder": str(Path.cwd())},
            "triggers": [{"mode": "weekly", "weekdays": ["mon", "tue", "wed", "thu", "fri"], "time": "08:30"}],
        },
        {
            "name": "Diary of this machine", "agent": "diary", "prompt": "Write into the diary how the machine is.",
            "triggers": [{"mode": "weekly", "weekdays": ["mon", "tue", "wed", "thu", "fri"], "time": "17:00"}],
            "session": "same", "approval_expires": "12h",
        },
        {
            "name": "Disk over time", "agent": "disk-trend", "input": {"folder": str(Path.cwd())}, "session": "same",
            "triggers": [{"mode": "interval", "every": 6, "unit": "hours"}],
        },
        {
            "name": "Counting on", "agent": "counter", "prompt": "Count one further.", "session": "same",
            "triggers": [{"mode": "interval", "every": 5, "unit": "minutes"}], "run_immediately": True,
        },
        {
            "name": "Disk and memory report", "agent": "machine-report", "prompt": "Report on disk and memory.",
            "triggers": [{"every": "1m", "max_fires": MINUTES}, hourly], "run_immediately": True,
        },
    ]  # fmt: skip


async def install(conn: "Connection", caller: "Caller") -> None:
    """Save the starters, in the transaction that made the workspace: all of them or none."""
    from rota.roster import agents, automations  # noqa: PLC0415 - the agents beside this import neither them nor more

    usable = [agent for agent in _agents() if _has_its_library(agent)]
    slugs = {(await agents.create(conn, caller, agent))[0]["slug"] for agent in usable}
    for automation in _automations(datetime.now(UTC)):
        if automation["agent"] in slugs:
            forms = automation.pop("triggers")
            await automations.create(conn, caller, automation, forms)
