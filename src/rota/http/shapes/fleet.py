"""Workers and machines."""

from datetime import datetime
from uuid import UUID

from pydantic import Field

from rota.http.shapes.fields import Out
from rota.model.run import Status


class RunSince(Out):
    """What became of a run after its worker was lost: a higher attempt has another worker."""

    status: Status
    attempt: int
    worker_id: str | None
    session_id: UUID | None


class RunAtWork(Out):
    run_id: UUID
    attempt: int
    last_line: str = Field(description="Empty for a dead worker")
    since: RunSince | None = Field(
        default=None, description="What became of the run, for a dead worker; null once the run is deleted"
    )


class WorkerOut(Out):
    id: str
    host: str
    pid: int
    status: str = Field(description="`idle`, `alive`, `busy` or, after `ROTA_DEAD_AFTER` missed heartbeats, `dead`")
    places: int
    busy: int = Field(description="Places in use; 0 for a dead worker")
    kinds: list[str]
    pools: list[str]
    sandbox: str | None = Field(
        description="The sandbox that agents with a process there run in: `guard`, `user`, `none` or `off`"
    )
    runs: list[RunAtWork]
    started_at: datetime
    last_seen_at: datetime


class SnapshotOut(Out):
    taken_at: datetime
    host: str
    workers: int
    sessions: int
    running: int
    queued: int
    cpu_percent: float | None
    memory_mb: float | None
