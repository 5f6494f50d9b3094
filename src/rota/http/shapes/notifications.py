"""The bell, and where else it rings."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field, SecretStr

from rota.http.shapes.fields import In, Name, Out
from rota.http.shapes.pages import Page
from rota.model.notification import Kind


class ChoiceIn(In):
    bell: bool
    outward: bool


def _choice() -> Any:
    return Field(default=ChoiceIn(bell=True, outward=True))


class ChoicesIn(In):
    run_failed: ChoiceIn = _choice()
    needs_approval: ChoiceIn = _choice()
    paused: ChoiceIn = _choice()
    budget_low: ChoiceIn = _choice()
    grant_expiring: ChoiceIn = _choice()


class ChoiceOut(Out):
    bell: bool
    outward: bool


class ChoicesOut(Out):
    run_failed: ChoiceOut
    needs_approval: ChoiceOut
    paused: ChoiceOut
    budget_low: ChoiceOut
    grant_expiring: ChoiceOut


class NotificationOut(Out):
    id: UUID
    kind: Kind
    title: str
    detail: str | None
    error: str | None = Field(description="The beginning of what went wrong, if a run failed")
    count: int = Field(description="How often it happened since it was last read")
    path: str | None = Field(description="The page it leads to, after /w/{workspace}")
    automation_id: UUID | None
    run_id: UUID | None
    session_id: UUID | None
    approval_id: UUID | None
    grant_id: UUID | None
    account_id: UUID | None
    created_at: datetime
    updated_at: datetime
    read_at: datetime | None


class TargetIn(In):
    name: Name
    url: SecretStr = Field(description="An Apprise URL; never shown again")


class TargetOut(Out):
    """Never the URL."""

    id: UUID
    name: str
    scheme: str
    created_at: datetime
    waiting: int = Field(description="Notifications that are not sent yet")
    sent_at: datetime | None
    failed_at: datetime | None
    error: str | None = Field(description="Why the last message could not be sent")
    tries: int = Field(description="How often the message that waits was tried")
    given_up: int = Field(description="Messages that could not be sent for good")


class TargetList(Out):
    items: list[TargetOut]
    next_cursor: None = None


class NotificationPage(Page[NotificationOut]):
    unread: int
