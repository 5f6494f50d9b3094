"""Workers and machines."""

from datetime import datetime
from uuid import UUID

from pydantic import Field

from rota.http.shapes.fields import Out


class RunAtWork(Out):
    run_id: UUID
    attempt: int
    last_line: str


class WorkerOut(Out):
    id: str
    host: str
    pid: int
    status: str
    places: int
    busy: int
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
