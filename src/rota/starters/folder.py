"""The fourth starter: what changed in a folder, found by several who work together.

One agent in four seats. The planner (the automation's own run) splits the work into tasks; two workers look, and tell
the judge by message what they found; the judge merges it, asks before it writes, leaves the report as an artifact and
remembers when it looked, so that the next run goes on from there.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rota.agent import Context, agent
from rota.client import Desk

DAY = 86_400.0
MOST_FILES = 5_000
MOST_NAMES = 1_000  # in one message
WORKERS = ("worker-a", "worker-b")


@agent
def watch(context: Context) -> str:
    """Takes the seat that its task names, or the planner's."""
    task = (context.payload or {}).get("task") if isinstance(context.payload, dict) else None
    with Desk.here() as desk:
        if task is None:
            return _plan(context, desk)
        return merge_findings(context, desk) if task["role"] == "judge" else look_for_changes(context, desk)


def _plan(context: Context, desk: Any) -> str:
    folder = Path((context.input or {}).get("folder", ".")).expanduser()
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    last = desk.recall("last-look", {})
    since = last.get("at", time.time() - DAY)
    names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    shares = [names[at :: len(WORKERS)] for at in range(len(WORKERS))]
    asked = {"folder": str(folder), "since": since, "looked_at": time.time()}
    desk.task(
        *(
            {"key": f"look-{role}", "role": role, "prompt": f"What changed in {len(share)} of the entries?",
             "input": {**asked, "names": share}}
            for role, share in zip(WORKERS, shares, strict=True)
        ),
        {"key": "merge", "role": "judge", "prompt": "Merge what the workers found into a report.", "input": asked,
         "depends_on": [f"look-{role}" for role in WORKERS]},
    )  # fmt: skip
    when = "the last look" if last else "yesterday"
    return f"Two workers look at what changed in {folder} since {when}; a judge will merge it."


def look_for_changes(context: Context, desk: Any) -> str:
    given = context.input
    found = sorted(_changed(Path(given["folder"]), given["names"], given["since"]))
    told = {"changed": found[:MOST_NAMES], "more": len(found[MOST_NAMES:])}
    desk.message(told, to="judge", key=f"found-{context.run_id}")
    for name in found[:20]:
        context.say(f"- {name}\n")
    return f"{len(found)} changed."


def _changed(folder: Path, names: list[str], since: float) -> Iterator[str]:
    looked_at = 0
    for name in names:
        for place, folders, files in os.walk(folder / name):
            folders[:] = [each for each in folders if not each.startswith(".")]
            for each in files:
                looked_at += 1
                if looked_at > MOST_FILES:
                    return
                if _touched(Path(place) / each) > since:
                    yield str((Path(place) / each).relative_to(folder))
        if (folder / name).is_file() and _touched(folder / name) > since:
            yield name


def _touched(file: Path) -> float:
    try:
        return file.lstat().st_mtime
    except OSError:
        return 0.0  # it is gone again


def merge_findings(context: Context, desk: Any) -> str:
    given = context.input
    letters = desk.inbox()
    changed = sorted({name for letter in letters for name in letter["body"]["changed"]})
    more = sum(letter["body"]["more"] for letter in letters)
    files = f"{len(changed) + more} file{'s' * (len(changed) + more != 1)}"
    seen = {"at": given["looked_at"], "changed": len(changed) + more}
    if not changed:  # nothing to ask anybody about
        desk.remember("last-look", seen)
        desk.ack(*(letter["id"] for letter in letters))
        return "Nothing has changed."
    report = _report(given["folder"], given["since"], changed, more)
    answer = desk.ask(f"Write a report of {files} that changed?", detail={"report": report[:4000]}, key="write-report")
    if answer["approved"]:
        desk.artifact("report.md", report, media_type="text/markdown")
        desk.remember("last-look", seen)
    desk.ack(*(letter["id"] for letter in letters))
    return f"{files} changed; the report is {'written' if answer['approved'] else 'not written'}."


def _report(folder: str, since: float, changed: list[str], more: int) -> str:
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(since))
    lines = [f"- `{name}`" for name in changed] + [f"- and {more} more"] * bool(more)
    return "\n".join([f"# What changed in {folder}", "", f"Since {when}:", "", *lines, ""])
