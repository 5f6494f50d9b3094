"""Triggers, what they would do, and the events that fire them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import ConfigDict, Field

from rota.errors import Invalid
from rota.http.shapes.fields import Duration, In, Instant, Out, Overlap, Patch


class TriggerIn(In):
    """When to fire, in one of these forms: `cron` (five fields) with a `timezone` (IANA); `every`, such as `15m`; `at`,
    one instant; `mode` interval (`every`, `unit`, `time`) or weekly (`weekdays`, `time`); `webhook` {}; `event`, a
    name; `after`, an automation, with `on`, how it ended. And the trigger's own limits."""

    model_config = ConfigDict(extra="allow")

    enabled: bool = True
    starts_at: Instant | None = None
    ends_at: Instant | None = None
    max_fires: int | None = Field(default=None, ge=1, le=2_000_000_000)
    jitter: Duration | None = None
    overlap: Overlap | None = None

    def form(self, field: str) -> dict[str, Any]:
        return {
            **self._when(field),
            **{name: getattr(self, name) for name in type(self).model_fields},
            "field": field,
        }

    def _when(self, field: str) -> dict[str, Any]:
        given = self.model_extra or {}
        for name in ("id", "field"):
            if name in given:
                raise Invalid("There is no such field.", field=f"{field}.{name}".lstrip("."))
        return given


class TriggerPatch(Patch, TriggerIn):
    def changes(self) -> dict[str, Any]:
        """Only what the caller sent."""
        return {**self._when(""), **self.given()}


class PreviewIn(In):
    schedule: dict[str, Any] = Field(
        description="As of an automation: `cron` with a `timezone`, `every`, `at`, or a `mode`",
        examples=[{"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}],
    )
    after: Instant | None = None
    count: int = Field(default=5, ge=1, le=100)
    automation: str | None = Field(
        default=None, min_length=1, description="Id or slug: warn when it usually takes longer than the interval"
    )


class FireOut(Out):
    at: datetime
    local: str


class WarningOut(Out):
    code: str
    message: str


class PreviewOut(Out):
    text: str
    fires: list[FireOut]
    warnings: list[WarningOut]


class EventIn(In):
    event: str = Field(max_length=128, examples=["invoice.paid"])
    data: Any = None
    key: str | None = Field(
        default=None, min_length=1, max_length=200, description="A repeat with it starts nothing new"
    )


class FiredOut(Out):
    runs: list[UUID]


def trigger_forms(schedule: TriggerIn | None, triggers: Sequence[TriggerIn] | None) -> list[dict[str, Any]] | None:
    if schedule is not None and triggers is not None:
        raise Invalid("Give `schedule` or `triggers`, not both.", field="schedule")
    if schedule is not None:
        return [schedule.form("schedule")]
    return None if triggers is None else [each.form(f"triggers.{at}") for at, each in enumerate(triggers)]


class TriggerOut(Out):
    id: UUID
    kind: str
    schedule: dict[str, Any] | None
    text: str
    timezone: str
    editor_mode: str | None
    enabled: bool
    starts_at: datetime | None
    ends_at: datetime | None
    max_fires: int | None
    fires: int
    jitter: Duration | None
    overlap: str | None
    next_fire_at: datetime | None
    parked_error: str | None
    event: str | None
    after_automation_id: UUID | None
    after_on: list[str] | None
    hook_path: str | None
    secret: str | None = Field(default=None, description="Shown once, when a webhook is made or its secret renewed")
