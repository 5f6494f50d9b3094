"""Automations and their policies."""

from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from rota.errors import Invalid
from rota.http.shapes.fields import Duration, GrantScopes, In, Name, Out, Overlap, Patch, Pattern, Prompt, Uses
from rota.http.shapes.money import BudgetIn, BudgetOut
from rota.http.shapes.triggers import TriggerIn, TriggerOut, trigger_forms
from rota.model.task import MAX_TASK_DEPTH, MAX_TASKS
from rota.roster.triggers import MOST_TRIGGERS


class Policies(In):
    session: Literal["new", "same"] = Field(
        default="new", description="Each run in a session of its own, or all in one"
    )
    overlap: Overlap | None = Field(
        default=None,
        description="What a fire does while an earlier run goes on; by default a schedule skips, others queue",
    )
    catch_up: Literal["one", "skip", "all"] = Field(
        default="one", description="Of the fires missed in an outage: run the latest, none that is late, or all"
    )
    catch_up_limit: int | None = Field(default=None, ge=1, le=10_000)
    late_after: Duration = timedelta(seconds=60)
    max_attempts: int = Field(default=1, ge=1, le=100)
    max_rescues: int = Field(default=2, ge=0, le=100)
    max_task_depth: int = Field(
        default=MAX_TASK_DEPTH, ge=1, le=100, description="How deep tasks may go that add tasks of their own"
    )
    max_tasks: int = Field(default=MAX_TASKS, ge=0, le=10_000, description="How many tasks one run may add")
    timeout: Duration = timedelta(hours=1)
    start_within: Duration = timedelta(minutes=15)
    approval_expires: Duration = timedelta(hours=24)
    pre_approvals: list[Pattern] = Field(
        default=[], max_length=100, description="Questions that need nobody: names or patterns of keys and tools"
    )
    pause_after_failures: int | None = Field(default=None, ge=1, le=1000)
    budget: BudgetIn = None
    scopes: GrantScopes = Field(default=[])


class AutomationIn(Policies):
    """`prompt` or `input` is required. `schedule` is shorthand for one trigger; `triggers` is the full list."""

    name: Name
    slug: str | None = None
    agent: str = Field(description="Id or slug of an agent")
    prompt: Prompt | None = None
    input: Any = None
    credentials: Uses = Field(default_factory=dict)
    schedule: TriggerIn | None = Field(default=None, examples=[{"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}])
    triggers: list[TriggerIn] | None = Field(default=None, max_length=MOST_TRIGGERS)
    status: Literal["active", "paused"] = "active"
    run_immediately: bool = Field(
        default=False, description="Also start a run now; a token needs the scope `run` for it too"
    )

    def forms(self) -> list[dict[str, Any]]:
        return trigger_forms(self.schedule, self.triggers) or []


class AutomationPatch(Patch, Policies):
    name: Name = ""
    slug: str = ""
    agent: str = ""
    prompt: Prompt | None = None
    input: Any = None
    credentials: Uses = Field(default_factory=dict)
    schedule: TriggerIn | None = None
    triggers: list[TriggerIn] | None = Field(default=None, max_length=MOST_TRIGGERS)
    status: Literal["active", "paused"] = Field(
        default="active", description="`paused` does what `…/pause` does, and `active` what `…/resume` does"
    )
    enabled: bool = Field(default=True, description="Another way to write `status`: true for active, false for paused")
    accept_grant: bool = Field(
        default=False, description="Needed to change what somebody else's automation does: it runs on your grant then"
    )

    def changes(self) -> dict[str, Any]:
        """The fields to save, without `status`, `enabled` and `accept_grant`, which are no part of a revision."""
        apart = {"status", "enabled", "accept_grant"}
        return {name: value for name, value in self.given().items() if name not in apart}

    def wanted_status(self) -> str | None:
        if "enabled" not in self.model_fields_set:
            return self.status if "status" in self.model_fields_set else None
        enabled = "active" if self.enabled else "paused"
        if "status" in self.model_fields_set and self.status != enabled:
            raise Invalid("`enabled` and `status` contradict each other; send one of them.", field="enabled")
        return enabled

    def forms(self) -> list[dict[str, Any]] | None:
        for name in ("schedule", "triggers"):
            if name in self.model_fields_set and getattr(self, name) is None:
                told = "Leave it out to keep the triggers; send `triggers: []` to take them all away."
                raise Invalid(told, field=name)
        return trigger_forms(self.schedule, self.triggers)


class LastRun(Out):
    id: UUID
    status: str
    source: str
    slot: datetime | None
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    session_id: UUID | None
    skip_reason: str | None
    error_class: str | None
    summary: str | None


class AutomationOut(Out):
    id: UUID
    slug: str
    name: str
    status: str = Field(description="`active`, `paused` or `deleted`")
    paused_reason: str | None
    deleted_at: datetime | None
    agent_id: UUID
    agent: str
    prompt: str | None
    input: Any
    credentials: dict[str, str]
    schedule_text: str
    triggers: list[TriggerOut]
    next_fire_at: datetime | None
    next_fires: list[datetime]
    last_run: LastRun | None
    grant_id: UUID
    grant_problem: str | None = Field(description="Why its slots are skipped, if its grant is")
    owner: str
    revision: int
    session: str
    session_id: UUID | None
    overlap: str | None
    catch_up: str
    catch_up_limit: int | None
    late_after: Duration
    max_attempts: int
    max_rescues: int
    max_task_depth: int
    max_tasks: int
    timeout: Duration
    start_within: Duration
    approval_expires: Duration
    pre_approvals: list[str]
    pause_after_failures: int | None
    budget: BudgetOut | None
    scopes: list[str] = Field(description="What its grant allows beyond running the agent")
    created_at: datetime
    updated_at: datetime


class RunNowIn(In):
    payload: Any = None
