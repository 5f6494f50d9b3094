"""The story of a run: every attempt with its worker, its times and how it ended, told from the log."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from rota.db.events import Event
from rota.model.agent_config import LOCAL_KINDS
from rota.model.run import Status


@dataclass(slots=True)
class AttemptStory:
    attempt: int
    worker_id: str
    started_at: datetime
    ended_at: datetime | None = None
    ended_as: str | None = None
    detail: str | None = None
    sandbox: str | None = None


def attempts(events: Iterable[Event], kind: str) -> list[AttemptStory]:
    """One entry for each claim. An attempt ends with the next status that the log gives its run, or as failed if the
    run is queued again because the attempt failed.

    Only kinds that run a process on the worker's machine have a sandbox."""
    stories: list[AttemptStory] = []
    for event in events:
        status = event.data.get("status")
        if status == "running" and event.attempt:
            sandbox = event.data.get("sandbox") if kind in LOCAL_KINDS else None
            worker_id = event.data.get("worker_id", "")
            stories.append(AttemptStory(event.attempt, worker_id, event.created_at, sandbox=sandbox))
        elif status and stories and stories[-1].ended_at is None:
            stories[-1].ended_at = event.created_at
            failed = status == Status.QUEUED and event.data.get("error_class")
            stories[-1].ended_as = Status.FAILED if failed else status
            stories[-1].detail = event.data.get("error_detail") or event.data.get("reason")
    return stories
