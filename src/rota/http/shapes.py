"""Requests and answers of the API, field by field. Unknown fields are refused."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    PlainSerializer,
    SecretStr,
    Tag,
)

from rota.errors import Invalid
from rota.model.duration import format_duration, parse_duration
from rota.model.memory import KEY
from rota.model.message import ALL, ROLE, USER
from rota.model.notification import Kind
from rota.model.scope import Scope
from rota.model.task import TaskForm

T = TypeVar("T")

LONGEST_NAME, LONGEST_PROMPT = 200, 200_000
MOST_TASKS = 10_000
LONGEST_LASTING = timedelta(days=3660)
LEAST_YEAR, LAST_YEAR = 1970, 9998


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    try:
        return parse_duration(value)
    except Invalid as refused:
        raise ValueError(refused.message) from None


def _instant(value: datetime) -> datetime:
    if not LEAST_YEAR <= value.year <= LAST_YEAR:  # elsewhere it may be another year, and none comes after 9999
        raise ValueError(f"Give a time of the years {LEAST_YEAR} to {LAST_YEAR}.")
    return value


def _named(value: str) -> str:
    if not (name := " ".join(value.split())):
        raise ValueError("Give it a name.")
    return name


def _said(value: str) -> str:
    if not value.strip():
        raise ValueError("The prompt is empty.")
    return value


_NUMBER = re.compile(r"[+-]?[0-9._]+(e[+-]?[0-9]+)?", re.IGNORECASE)


def _written(value: object) -> object:
    # pydantic would take a number as seconds or milliseconds since 1970, as it sees fit.
    if isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value)):
        raise ValueError("Give an instant with its offset, such as “2026-06-01T09:00:00Z”.")
    return value


def _lasting(value: timedelta) -> timedelta:
    if not timedelta() < value <= LONGEST_LASTING:
        raise ValueError("Give a duration of at most ten years, such as “90d”.")
    return value


def _email(value: str) -> str:
    local, at, domain = value.strip().lower().rpartition("@")
    if not (at and local and domain) or not value.isprintable() or " " in value.strip():
        raise ValueError("Give an e-mail address, such as “ada@example.org”.")
    return f"{local}@{domain}"


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration, json_schema_input_type=str),
    PlainSerializer(format_duration, return_type=str),
]
Instant = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_written), AfterValidator(_instant)]
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_named)]
Prompt = Annotated[str, Field(max_length=LONGEST_PROMPT), AfterValidator(_said)]
Pattern = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
RoleName = Annotated[str, Field(pattern=f"^{ROLE.pattern}$")]
Uses = Annotated[dict[str, str], Field(examples=[{"API_KEY": "openai"}], description="Variables: names of credentials")]
Email = Annotated[str, Field(max_length=254, examples=["ada@example.org"]), AfterValidator(_email)]
LevelName = Literal["viewer", "member", "admin"]
Overlap = Literal["skip", "queue_one", "queue_all", "allow", "replace"]


class In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)  # neither "5" nor true is a number

    def given(self) -> dict[str, Any]:
        """Only what the caller sent."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Out(BaseModel):
    model_config = ConfigDict(extra="ignore")


class AgentIn(In):
    name: Name
    slug: str | None = None
    executor: str = Field(max_length=64, examples=["command"])
    config: dict[str, Any] = Field(default_factory=dict)
    instructions: str = Field(default="", max_length=LONGEST_PROMPT)
    credentials: Uses = Field(default_factory=dict)
    pool: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    max_concurrent: int | None = Field(default=None, ge=1, le=100_000)
    status: Literal["active", "paused"] = "active"


class AgentPatch(In):
    name: Name = ""
    slug: str = ""
    executor: str = Field(default="", max_length=64)
    config: dict[str, Any] = Field(default_factory=dict)
    instructions: str = Field(default="", max_length=LONGEST_PROMPT)
    credentials: Uses = Field(default_factory=dict)
    pool: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    max_concurrent: int | None = Field(default=None, ge=1, le=100_000)
    status: Literal["active", "paused"] = "active"


class AgentOut(Out):
    id: UUID
    slug: str
    name: str
    executor: str
    config: dict[str, Any]
    instructions: str
    credentials: dict[str, str]
    pool: str
    max_concurrent: int | None
    status: str
    revision: int
    created_at: datetime
    updated_at: datetime
    warnings: list[str] = []


class TriggerIn(In):
    """The keys of a schedule, and the trigger's own limits."""

    model_config = ConfigDict(extra="allow")

    enabled: bool = True
    starts_at: Instant | None = None
    ends_at: Instant | None = None
    max_fires: int | None = Field(default=None, ge=1, le=2_000_000_000)
    jitter: Duration | None = None
    overlap: Overlap | None = None

    def form(self, field: str) -> dict[str, Any]:
        given = self.model_extra or {}
        for name in ("id", "field"):
            if name in given:
                raise Invalid("There is no such field.", field=f"{field}.{name}")
        return {
            **given,
            **{name: getattr(self, name) for name in type(self).model_fields},
            "field": field,
        }


class TriggerPatch(TriggerIn):
    def changes(self) -> dict[str, Any]:
        """Only what the caller sent."""
        return {**(self.model_extra or {}), **self.given()}


class PreviewIn(In):
    schedule: dict[str, Any]
    after: Instant | None = None
    count: int = Field(default=5, ge=1, le=100)
    automation: str | None = Field(
        default=None, description="Id or slug: warn when it usually takes longer than the interval"
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


class RenewGrantIn(In):
    lasts: Duration | None = Field(default=None, description="For good unless told", examples=["90d"])
    account: Annotated[UUID, Field(strict=False)] | None = Field(
        default=None, description="Which to charge; the one before unless told"
    )


class GrantOut(Out):
    id: UUID
    user_id: UUID
    user: str
    account_id: UUID
    scopes: list[str] = Field(examples=[["agent:run:01a1e0db-2cd9-7826-809d-0931e0e98709"]])
    status: str = Field(description="valid, revoked or expired")
    automation_id: UUID | None
    replaces: UUID | None = Field(description="The grant that this one took the place of")
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: UUID | None


class GrantUse(Out):
    id: UUID
    slug: str
    name: str


class GrantStory(GrantOut):
    automations: list[GrantUse] = Field(description="That run on it now")
    runs: int
    last_run_at: datetime | None


class AuditOut(Out):
    id: UUID
    created_at: datetime
    user_id: UUID | None = Field(description="Null: whoever runs the server")
    user: str | None
    token_id: UUID | None
    run_id: UUID | None = Field(description="Set if an agent at work asked")
    ip: str | None
    action: str = Field(examples=["automation.pause"])
    object_kind: str
    object_id: str | None
    status: int = Field(description="200, or that of the refusal")
    code: str | None = Field(description="Of the refusal; null if it was done")
    before: dict[str, Any] | None = Field(description="The fields that changed, as they were")
    after: dict[str, Any] | None = Field(description="The fields that changed, as they are")


class FiredOut(Out):
    runs: list[UUID]


def _money(value: Any) -> Any:
    """A number is taken as it is written, not as the binary fraction nearest to it."""
    return str(value) if isinstance(value, float) else value


Tokens = Annotated[int, Field(gt=0, le=10**15)]
Seconds = Annotated[int, Field(gt=0, le=10**9)]
Money = Annotated[
    Decimal,
    Field(gt=0, max_digits=15, decimal_places=6, examples=["0.50"], strict=False),
    BeforeValidator(_money, json_schema_input_type=str | float),
]


class Caps(In):
    """At most so much; what is left out has no limit. Money in the account's currency."""

    tokens: Tokens | None = None
    money: Money | None = None
    seconds: Seconds | None = None

    def told(self) -> dict[str, Any]:
        return {unit: cap for unit in type(self).model_fields if (cap := getattr(self, unit)) is not None}


class Budget(In):
    """What one run, and all runs of a month, may spend. A month's cap needs one for each run: that is set aside."""

    per_run: Caps | None = None
    per_month: Caps | None = None

    def told(self) -> dict[str, Any]:
        spans = {"per_run": self.per_run, "per_month": self.per_month}
        return {span: caps.told() for span, caps in spans.items() if caps}


def _told(budget: Budget | None) -> Any:
    return budget.told() if budget else None


BudgetIn = Annotated[
    Budget | None,
    Field(examples=[{"per_run": {"money": "0.50"}, "per_month": {"money": "10"}}]),
    AfterValidator(_told),
]
BudgetOut = Annotated[
    dict[str, dict[str, int | str]], Field(examples=[{"per_run": {"money": "0.50"}, "per_month": {"money": "10"}}])
]


Currency = Annotated[str, Field(pattern="^[A-Z]{3}$", description="ISO 4217")]


class AccountIn(In):
    name: Name
    currency: Currency = "USD"
    budget: BudgetIn = None


class AccountPatch(In):
    name: Name = ""
    currency: Currency = "USD"
    budget: BudgetIn = None


class Standing(Out):
    cap: float
    spent: float
    reserved: float = Field(description="Set aside for runs that have not ended")


class AccountOut(Out):
    id: UUID
    name: str
    currency: str
    budget: BudgetOut | None
    month: str = Field(examples=["2027-01"])
    spending: dict[str, Standing] = Field(description="By unit that the month has a cap for")
    created_at: datetime
    updated_at: datetime


class UsageOut(Out):
    day: date
    automation_id: UUID | None = Field(description="Null for runs of no automation, together")
    automation: str | None
    name: str | None
    usage: dict[str, float] = Field(examples=[{"tokens": 1200, "money": 0.5}])


class ExpectedOut(Out):
    automation_id: UUID
    automation: str
    name: str
    fires: int = Field(description="How often its schedules will still fire this month")
    runs_considered: int
    per_run: dict[str, float] = Field(description="Mean of its newest runs, 20 at most")
    estimate: dict[str, float]


class ForecastOut(Out):
    month: str
    until: datetime
    spent: dict[str, float]
    items: list[ExpectedOut]
    next_cursor: None = None
    estimate: dict[str, float] = Field(
        description="An estimate of the whole month: what is spent, and what is expected"
    )
    complete: bool = Field(description="False if there are more schedules than were looked at")


class Policies(In):
    session: Literal["new", "same"] = "new"
    overlap: Overlap | None = None
    catch_up: Literal["one", "skip", "all"] = "one"
    catch_up_limit: int | None = Field(default=None, ge=1, le=10_000)
    late_after: Duration = timedelta(seconds=60)
    max_attempts: int = Field(default=1, ge=1, le=100)
    max_rescues: int = Field(default=2, ge=0, le=100)
    timeout: Duration = timedelta(hours=1)
    start_within: Duration = timedelta(minutes=15)
    approval_expires: Duration = timedelta(hours=24)
    pre_approvals: list[Pattern] = Field(
        default=[], max_length=100, description="Questions that need nobody: names or patterns of keys and tools"
    )
    pause_after_failures: int | None = Field(default=None, ge=1, le=1000)
    budget: BudgetIn = None


class AutomationIn(Policies):
    """`prompt` or `input` is required. `schedule` is shorthand for one trigger; `triggers` is the full list."""

    name: Name
    slug: str | None = None
    agent: str = Field(description="Id or slug of an agent")
    prompt: Prompt | None = None
    input: Any = None
    credentials: Uses = Field(default_factory=dict)
    schedule: TriggerIn | None = Field(default=None, examples=[{"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}])
    triggers: list[TriggerIn] | None = Field(default=None, max_length=50)
    status: Literal["active", "paused"] = "active"
    run_immediately: bool = False

    def forms(self) -> list[dict[str, Any]]:
        return trigger_forms(self.schedule, self.triggers) or []


class AutomationPatch(Policies):
    name: Name = ""
    slug: str = ""
    agent: str = ""
    prompt: Prompt | None = None
    input: Any = None
    credentials: Uses = Field(default_factory=dict)
    schedule: TriggerIn | None = None
    triggers: list[TriggerIn] | None = Field(default=None, max_length=50)
    accept_grant: bool = Field(
        default=False, description="Needed to change what somebody else's automation does: it runs on your grant then"
    )

    def forms(self) -> list[dict[str, Any]] | None:
        return trigger_forms(self.schedule, self.triggers)


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
    status: str
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
    timeout: Duration
    start_within: Duration
    approval_expires: Duration
    pre_approvals: list[str]
    pause_after_failures: int | None
    budget: BudgetOut | None
    created_at: datetime
    updated_at: datetime


class Missed(Out):
    count: int
    since: datetime


class RunOut(Out):
    id: UUID
    automation_id: UUID | None
    trigger_id: UUID | None
    session_id: UUID | None
    agent_id: UUID
    grant_id: UUID
    revision: int
    status: str
    source: str
    slot: datetime | None
    missed: Missed | None
    payload: Any
    retry_of: UUID | None
    created_by: UUID | None
    ready_at: datetime | None
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    tries: int
    rescues: int
    max_attempts: int
    worker_id: str | None
    skip_reason: str | None
    error_class: str | None
    error_detail: str | None
    summary: str | None
    usage: dict[str, float]
    trace_id: str
    cancel_requested_at: datetime | None


class AttemptOut(Out):
    model_config = ConfigDict(from_attributes=True, extra="ignore")

    attempt: int
    worker_id: str
    started_at: datetime
    ended_at: datetime | None
    ended_as: str | None = Field(description="The status it led to; `queued` if another attempt follows")
    detail: str | None


class RunStory(RunOut):
    attempts: list[AttemptOut]


class CredentialIn(In):
    name: str = Field(max_length=63, examples=["openai"])
    value: SecretStr = Field(description="Never shown again")
    description: str = Field(default="", max_length=LONGEST_NAME)
    usable_by: Literal["admin", "member"] = Field(default="admin", description="Who may name it in automations")


class CredentialPatch(In):
    value: SecretStr | None = Field(default=None, description="The next attempt gets it; null keeps the one there is")
    description: str = Field(default="", max_length=LONGEST_NAME)
    usable_by: Literal["admin", "member"] = "admin"


class UseOut(Out):
    kind: Literal["agent", "automation"]
    id: UUID
    slug: str


class CredentialOut(Out):
    """Never the value."""

    id: UUID
    name: str
    description: str
    usable_by: str
    key_id: str
    used_by: list[UseOut]
    created_by: str
    created_at: datetime
    updated_at: datetime
    last_used_at: datetime | None


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


class OptionOut(Out):
    id: str
    label: str
    approves: bool


class ApprovalOut(Out):
    id: UUID
    run_id: UUID
    session_id: UUID
    automation_id: UUID | None
    agent_id: UUID
    attempt: int
    key: str | None
    question: str
    detail: dict[str, Any] | None
    options: list[OptionOut]
    status: str
    option_id: str | None
    text: str | None
    answered_by: UUID | None
    answered_by_name: str | None
    created_at: datetime
    expires_at: datetime
    answered_at: datetime | None
    run_status: str


class AnswerIn(In):
    answer: str = Field(
        min_length=1, max_length=LONGEST_NAME, description="`approve`, `refuse` or an option's id", examples=["approve"]
    )
    text: str | None = Field(default=None, max_length=10_000, description="A note to the agent")


class RunNowIn(In):
    payload: Any = None


class RunAgentIn(In):
    prompt: Prompt | None = None
    input: Any = None
    timeout: Duration | None = None


class RoleIn(In):
    name: str = Field(max_length=63, examples=["planner"])
    agent: str = Field(description="Id or slug of an agent")


class RoleOut(Out):
    name: str
    agent_id: UUID | None = Field(description="Null in an imported session, whose agents are elsewhere")
    agent: str
    created_at: datetime


class TaskIn(In):
    """`prompt` or `input` is required. `depends_on` names tasks of this request by key, earlier ones by key or id."""

    key: str | None = Field(default=None, max_length=100, examples=["collect"])
    role: str = Field(max_length=63, examples=["worker"])
    prompt: Prompt | None = None
    input: Any = None
    depends_on: list[str] = Field(default_factory=list, max_length=MOST_TASKS)
    timeout: Duration | None = None
    max_attempts: int = Field(default=1, ge=1, le=100)

    def form(self) -> TaskForm:
        return TaskForm(
            self.role, self.key, self.prompt, self.input, tuple(self.depends_on), self.timeout, self.max_attempts
        )


class TasksIn(In):
    tasks: list[TaskIn] = Field(min_length=1, max_length=MOST_TASKS)


class TaskOut(Out):
    id: UUID
    key: str
    role: str
    status: str
    prompt: str | None
    input: Any
    depends_on: list[UUID]
    run_id: UUID | None
    reason: str | None
    summary: str | None
    error_class: str | None
    error_detail: str | None
    timeout: Duration
    max_attempts: int
    added_by_run: UUID | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class SessionIn(In):
    """Interactive: an `agent` and perhaps a first `prompt`. Background: a `goal`, `roles` and `tasks`."""

    kind: Literal["interactive", "background"] = "interactive"
    title: Name | None = None
    agent: str | None = Field(default=None, description="Id or slug of an agent")
    prompt: Prompt | None = None
    input: Any = None
    goal: Prompt | None = None
    roles: list[RoleIn] = Field(default_factory=list, max_length=100)
    tasks: list[TaskIn] = Field(default_factory=list, max_length=MOST_TASKS)
    draft: bool = Field(default=False, description="Start nothing until it is enabled")


class ImportIn(In):
    """The first lines of an export, each as JSON."""

    lines: list[Any] = Field(min_length=1, max_length=1000)


class ImportMoreIn(ImportIn):
    """The next lines of an export."""

    first: int = Field(ge=2, le=2_000_000_000, description="The number of the first of these lines in the export")


class TurnIn(In):
    """A message to the session's agent: `prompt` or `input` is required."""

    prompt: Prompt | None = None
    input: Any = None


class SessionOut(Out):
    id: UUID
    kind: str
    status: str
    origin: str
    title: str
    goal: str | None
    automation_id: UUID | None
    agent_id: UUID | None
    imported: dict[str, Any] | None
    last_seq: int
    created_at: datetime
    updated_at: datetime


class OriginOut(Out):
    automation_id: UUID
    automation_name: str
    run_id: UUID
    source: str
    slot: datetime | None
    started_at: datetime | None


class EventOut(Out):
    model_config = ConfigDict(from_attributes=True, extra="ignore")

    seq: int
    kind: str
    run_id: UUID | None
    attempt: int | None
    data: dict[str, Any]
    created_at: datetime


class LineOut(Out):
    model_config = ConfigDict(from_attributes=True, extra="ignore")

    seq: int = Field(description="The event it begins with")
    speaker: str = Field(description="`user`, `agent`, a role, `tool`, or `rota` itself")
    text: str = Field(description="What was said; of a tool, its name")
    run_id: UUID | None
    attempt: int | None
    data: dict[str, Any] = Field(description="The event, for who wants to know more of a tool, a message or a question")
    created_at: datetime = Field(validation_alias="at")


class MessageIn(In):
    body: JsonValue = Field(description="Text, or any JSON, of at most 524,288 bytes")
    to: RoleName = Field(default=ALL, description="A role of the session, `user`, or `all` others")
    sender: RoleName = Field(default=USER, alias="from", description="Who it comes from: `user`, who may leave it out")


def _which(given: Any) -> str:
    turn = isinstance(given, TurnIn) or (isinstance(given, dict) and not given.keys().isdisjoint({"prompt", "input"}))
    return "one-of-turn" if turn else "one-of-message"


MessageOrTurn = Annotated[
    Annotated[MessageIn, Tag("one-of-message")] | Annotated[TurnIn, Tag("one-of-turn")], Discriminator(_which)
]


class DeliveryOut(Out):
    role: str
    acked_at: datetime | None


class MessageOut(Out):
    """`id` is its number in the session's sequence. `deliveries` says who got it, and who acknowledged it when."""

    id: int
    sender: str = Field(alias="from")
    to: str
    body: Any
    run_id: UUID | None
    attempt: int | None
    created_at: datetime
    deliveries: list[DeliveryOut]


class AckIn(In):
    role: RoleName = Field(default=USER, description="Whose inbox it is taken from")


class SayIn(In):
    text: str = Field(min_length=1)


class ToolIn(In):
    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    data: dict[str, JsonValue] = Field(default_factory=dict)


class UsageIn(In):
    unit: str = Field(min_length=1, max_length=LONGEST_NAME, examples=["tokens"])
    amount: float = Field(ge=0, lt=1e15, allow_inf_nan=False)


class DeskMessageIn(In):
    body: JsonValue = Field(description="Text, or any JSON, of at most 524,288 bytes")
    to: RoleName = Field(default=ALL, description="A role of the session, `user`, or `all` others")


class AckAllIn(In):
    ids: list[Annotated[int, Field(ge=1, lt=2**63)]] = Field(min_length=1, max_length=1000)


class OptionIn(In):
    id: str = Field(min_length=1, max_length=LONGEST_NAME)
    label: str = Field(min_length=1, max_length=LONGEST_NAME)
    approves: bool


class AskIn(In):
    question: str = Field(min_length=1, max_length=10_000)
    options: list[OptionIn] | None = Field(default=None, description="Else approve and refuse")
    detail: dict[str, JsonValue] | None = None
    key: str | None = Field(default=None, max_length=LONGEST_NAME, description="Asked again with it, it is the same")


class AskOut(Out):
    approval_id: UUID
    status: str
    approved: bool | None
    option_id: str | None
    text: str | None


class ArtifactIn(In):
    """Something outside."""

    uri: str = Field(examples=["https://example.org/pull/7"])
    name: str | None = None
    media_type: str | None = None


class ArtifactOut(Out):
    id: UUID
    session_id: UUID
    run_id: UUID | None
    attempt: int | None
    name: str
    media_type: str
    uri: str | None
    sha256: str | None
    size: int | None
    created_at: datetime


class MemoryIn(In):
    value: JsonValue = Field(description="Any JSON of at most 65,536 bytes")
    ttl: Duration | None = Field(default=None, description="How long it is remembered; else for good")
    confidence: float | None = Field(default=None, ge=0, le=1)


class MemoryOut(Out):
    key: str
    value: Any
    confidence: float | None
    expires_at: datetime | None
    run_id: UUID | None
    created_at: datetime
    updated_at: datetime


class RevisionOut(Out):
    revision: int
    created_at: datetime
    created_by: str
    spec: dict[str, Any]
    changed: dict[str, Any]


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


class MemberIn(In):
    email: Email
    name: str = Field(
        default="", max_length=LONGEST_NAME, description="For a new account; else the e-mail's first part"
    )
    level: LevelName = "member"
    password: SecretStr | None = Field(
        default=None, max_length=1000, description="For a new account, instead of a link"
    )


class MemberPatch(In):
    level: LevelName = "viewer"
    disabled: bool = Field(default=False, description="True: they are let in no more, until it is false again")


class MemberOut(Out):
    id: UUID = Field(description="Of the person, the same in every workspace")
    name: str
    email: str | None = Field(description="For admins, and one's own; else null")
    level: LevelName
    disabled: bool = Field(description="Their account is switched off: they are let in nowhere")
    created_at: datetime


class NewMemberOut(MemberOut):
    link: str | None = Field(description="Signs them in, once; null for who has an account already")


class LinkOut(Out):
    link: str


class TokenIn(In):
    name: Name
    scopes: list[Annotated[Scope, Field(strict=False)]] = Field(
        default_factory=lambda: list(Scope), min_length=1, max_length=len(Scope)
    )
    lasts: Annotated[Duration, AfterValidator(_lasting)] | None = Field(default=None, description="Null: until revoked")


class TokenOut(Out):
    id: UUID
    name: str
    user_id: UUID
    user: str
    scopes: list[Scope]
    status: Literal["valid", "revoked", "expired"]
    created_at: datetime
    last_used_at: datetime | None = Field(description="Noted once a minute")
    expires_at: datetime | None
    revoked_at: datetime | None


class NewTokenOut(TokenOut):
    secret: str = Field(description="Shown in this answer only")


class IdentityOut(Out):
    issuer: str = Field(description="The identity provider that knows you")
    created_at: datetime = Field(description="When you first signed in with it")


class MeOut(Out):
    id: UUID
    name: str
    email: str | None
    level: LevelName
    has_password: bool
    identities: list[IdentityOut]


class MePatch(In):
    name: Name


class PasswordIn(In):
    new: SecretStr = Field(max_length=1000)
    current: SecretStr = Field(default=SecretStr(""), max_length=1000, description="The one you have, if you have one")


class LoginOut(Out):
    id: UUID
    created_at: datetime
    last_used_at: datetime = Field(description="Noted once a minute")
    expires_at: datetime = Field(description="If it is not used until then")
    ip: str | None
    user_agent: str | None
    own: bool = Field(description="The one that asks")


class EndedOut(Out):
    ended: int


class WorkspaceOut(Out):
    id: UUID
    slug: str
    name: str
    timezone: str
    minimum_interval: Duration | None
    max_concurrent: int | None
    max_schedules: int | None
    created_at: datetime
    level: LevelName = Field(description="Your own")


class WorkspacePatch(In):
    name: Name = ""
    timezone: str = Field(default="UTC", max_length=64)
    minimum_interval: Annotated[Duration, AfterValidator(_lasting)] | None = None
    max_concurrent: int | None = Field(default=None, ge=1, le=100_000)
    max_schedules: int | None = Field(default=None, ge=1, le=1_000_000)


class Page(BaseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None = None


class NotificationPage(Page[NotificationOut]):
    unread: int


def cursor_of(value: object) -> str:
    return base64.urlsafe_b64encode(str(value).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> UUID | None:
    """Where a page goes on: the id of the last row shown, which no two rows share."""
    return None if cursor is None else _read_cursor(cursor, UUID)


def read_number_cursor(cursor: str | None, *, largest: int) -> int | None:
    """The same for rows that are numbered: the number of the last one shown."""

    def read(text: str) -> int:
        if not (text.isdigit() and len(text) <= 19 and int(text) <= largest):
            raise ValueError
        return int(text)

    return None if cursor is None else _read_cursor(cursor, read)


def read_text_cursor(cursor: str | None) -> str | None:
    """The same for rows that are told apart by a key."""

    def read(text: str) -> str:
        if not KEY.fullmatch(text):
            raise ValueError
        return text

    return None if cursor is None else _read_cursor(cursor, read)


def read_day_cursor(cursor: str | None) -> tuple[date, UUID] | None:
    """The same for what is counted by day: the last day and automation shown."""

    def read(text: str) -> tuple[date, UUID]:
        day, _, subject = text.partition("/")
        return date.fromisoformat(day), UUID(subject)

    return None if cursor is None else _read_cursor(cursor, read)


def _read_cursor(cursor: str, read: Callable[[str], T]) -> T:
    try:
        return read(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii"))
    except (ValueError, binascii.Error, UnicodeDecodeError):
        raise Invalid(
            "This cursor is none of ours; start again without it.", code="invalid_cursor", field="cursor"
        ) from None


def page_of(rows: Sequence[dict[str, Any]], limit: int, shape: type[T]) -> "Page[T]":
    """`rows` holds one more than `limit` if there is a next page."""
    items = [shape.model_validate(row) for row in rows[:limit]]  # type: ignore[attr-defined]
    return Page(items=items, next_cursor=cursor_of(rows[limit - 1]["id"]) if len(rows) > limit else None)
