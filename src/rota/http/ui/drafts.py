"""What stands in the editor: every field as it was typed, so that nothing is lost, and what it means to the API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from starlette.datastructures import FormData

from rota.errors import Invalid, Refused
from rota.http import bodies
from rota.http.shapes.automations import Policies
from rota.http.ui import forms
from rota.http.ui.rendering import pretty
from rota.model.budget import UNITS
from rota.model.config_fields import env_name
from rota.model.credential import HTTP_SECRET, MOST_USES
from rota.model.cron import known_zone, load_zone
from rota.model.duration import format_duration
from rota.model.schedule import editor_form
from rota.roster.triggers import MOST_TRIGGERS, form_of, timing

PLAIN = ("name", "agent", "prompt", "input")
# What the form shows. A policy that is not here is left as it is.
POLICIES = (
    "session", "overlap", "catch_up", "catch_up_limit", "late_after", "max_attempts", "max_rescues",
    "max_task_depth", "max_tasks", "timeout", "start_within", "approval_expires", "pre_approvals",
    "pause_after_failures", "scopes",
)  # fmt: skip
BUDGET = tuple((span, unit) for span in ("per_run", "per_month") for unit in UNITS)
CAPS = tuple(f"budget.{span}.{unit}" for span, unit in BUDGET)
NUMBERS = ("catch_up_limit", "max_attempts", "max_rescues", "max_task_depth", "max_tasks", "pause_after_failures")
LISTS = ("weekdays", "on")
SECRET = ("variable", "credential")
KINDS = (
    ("interval", "Interval"),
    ("weekly", "Weekly"),
    ("advanced", "Cron"),
    ("at", "Once"),
    ("webhook", "Webhook"),
    ("event", "Event"),
    ("after", "After another"),
)
TIMED = ("interval", "weekly", "advanced", "at")
TRIGGER: Mapping[str, Any] = {
    "id": "", "kind": "weekly", "every": "1", "unit": "hours", "time": "09:00", "cron": "0 9 * * 1-5", "at": "",
    "weekdays": ["mon", "tue", "wed", "thu", "fri"], "event": "", "after": "", "on": ["succeeded"], "enabled": "on",
    "starts_at": "", "ends_at": "", "max_fires": "", "jitter": "", "overlap": "",
}  # fmt: skip
# What the form says of a field of the chosen kind that nobody filled in; the API would speak of its own names.
EMPTY = {
    "weekdays": "Choose at least one day.",
    "time": "Give a time of day.",
    "at": "Give a date and a time.",
    "event": "Give the name of the event, such as invoice.paid.",
    "after": "Choose an automation.",
    "on": "Choose at least one.",
}
ASKED = {"weekly": ("weekdays", "time"), "at": ("at",), "event": ("event",), "after": ("after", "on")}
LIMITS = ("starts_at", "ends_at", "max_fires", "jitter", "overlap")

Errors = dict[str, str]


@dataclass(slots=True)
class Draft:
    """The fields of the form by name. `errors` go by the same; what is wrong with no one of them goes by "". `revision`
    is what its writer began from, if it is known."""

    fields: dict[str, str]
    triggers: list[dict[str, Any]]
    errors: Errors = field(default_factory=dict)
    revision: str = ""
    secrets: list[dict[str, str]] | None = field(default_factory=list)  # None: the form has none, so they stay

    def values(self) -> dict[str, Any]:
        """Name, agent, prompt, input and policies, as the API takes them; what is wrong with them goes to `errors`."""
        given: dict[str, Any] = {name: self.fields[name] for name in ("name", "agent")}
        given["prompt"] = self.fields["prompt"] if self.fields["prompt"].strip() else None
        given["input"] = self._input()
        for name in POLICIES:
            given[name] = _policy(name, self.fields[name].strip())
        given["budget"] = budget(self.fields)
        if self.secrets is not None:
            given["credentials"] = self._credentials(self.secrets)
        for name, told in (("name", "Give it a name."), ("agent", "Choose an agent.")):
            if not given[name].strip():
                self.errors[name] = told
        if given["prompt"] is None and given["input"] is None:
            self.errors.setdefault("prompt", "Say what the agent shall do.")
        if given["catch_up"] == "all" and given["catch_up_limit"] is None:
            self.errors["catch_up_limit"] = "Say how many missed slots may run."
        return given

    def refuse(self, field: str, message: str) -> None:
        """Told beside the field that it is about; a part of one by its place."""
        for at, secret in enumerate(self.secrets or []):
            if field == f"credentials.{secret['variable']}":
                field = f"secrets.{at}.credential"
        if field.startswith("credentials"):
            field = "secrets"
        beside = forms.beside(field, self._names())
        within = field.removeprefix(beside).lstrip(".")
        line = f"Line {int(within) + 1}: " if beside and within.isdecimal() else ""
        self.errors.setdefault(beside, line + message)

    def _names(self) -> set[str]:
        of_triggers = {
            f"triggers.{at}.{name}" for at in range(len(self.triggers)) for name in (*TRIGGER, "timezone", "mode")
        }
        return (
            {*PLAIN, *POLICIES, *CAPS, "revision", "secrets"}
            | of_triggers
            | {f"secrets.{at}.{name}" for at in range(len(self.secrets or [])) for name in SECRET}
            | {f"triggers.{at}" for at in range(len(self.triggers))}
        )

    def _credentials(self, secrets: Sequence[Mapping[str, str]]) -> dict[str, str]:
        """Variables and the names of their credentials. A row that is left empty is none."""
        found: dict[str, str] = {}
        for at, (variable, credential) in enumerate((each["variable"], each["credential"]) for each in secrets):
            if not variable and not credential:
                continue
            if not credential:
                self.errors[f"secrets.{at}.credential"] = "Choose a credential."
            if variable in found:
                self.errors[f"secrets.{at}.variable"] = "This variable is already used above."
            elif variable != HTTP_SECRET:
                try:
                    env_name(variable, "variable")
                except Invalid as refused:
                    self.errors[f"secrets.{at}.variable"] = refused.message if variable else "Enter a variable."
            found[variable] = credential
        return found

    def _input(self) -> Any:
        text = self.fields["input"].strip()
        try:
            return bodies.check(text.encode()) if text else None
        except Refused as refused:
            self.errors["input"] = refused.message.replace("The body", "This")
            return None

    def forms(self) -> list[dict[str, Any]]:
        """Each trigger as the API takes it."""
        return [trigger_form(each) for each in self.triggers]


def budget(fields: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Caps as they were typed, as the API takes them."""
    given: dict[str, dict[str, Any]] = {}
    for span, unit in BUDGET:
        if typed := fields[f"budget.{span}.{unit}"].strip():
            given.setdefault(span, {})[unit] = typed if unit == "money" else _whole(typed)
    return given


def _policy(name: str, typed: str) -> Any:
    if not typed:
        return Policies.model_fields[name].default
    if name in {"pre_approvals", "scopes"}:
        return [line.strip() for line in typed.splitlines() if line.strip()]
    return int(typed) if name in NUMBERS and typed.isdecimal() and len(typed) < 10 else typed


def trigger_form(given: Mapping[str, Any]) -> dict[str, Any]:
    """The form of the kind that is chosen; what was typed for another kind stays on the page only. `clock` is the zone
    of the limits, if it is another than what was typed for kinds that go by one."""
    limits: dict[str, Any] = {"enabled": bool(given["enabled"])}
    for name in LIMITS:
        if given[name].strip():
            limits[name] = _limit(name, given[name].strip(), given.get("clock", given["timezone"]))
    return when(given) | limits


def left_empty(given: Mapping[str, Any]) -> Errors:
    """What the chosen kind needs and nobody filled in, each with the words of the form."""
    in_days = given["kind"] == "interval" and given["unit"] == "days"
    asked = ("time",) if in_days else ASKED.get(given["kind"], ())
    return {name: EMPTY[name] for name in asked if not (given[name] if name in LISTS else given[name].strip())}


def when(given: Mapping[str, Any]) -> dict[str, Any]:
    zone = {"timezone": given["timezone"]}
    match given["kind"]:
        case "interval":
            every = _whole(given["every"])
            time = {"time": given["time"]} if given["unit"] == "days" else {}
            return {"mode": "interval", "every": every, "unit": given["unit"], **time, **zone}
        case "weekly":
            return {"mode": "weekly", "weekdays": given["weekdays"], "time": given["time"], **zone}
        case "at":
            return {"at": given["at"], **zone}
        case "webhook" | "event" | "after":
            return _inbound(given)
        case _:
            return {"mode": "advanced", "cron": given["cron"], **zone}


def _inbound(given: Mapping[str, Any]) -> dict[str, Any]:
    forms = {"event": {"event": given["event"].strip()}, "after": {"after": given["after"].strip(), "on": given["on"]}}
    return forms.get(given["kind"], {"webhook": {}})


def _whole(typed: str) -> Any:
    return int(typed) if typed.strip().isdecimal() and len(typed) < 10 else typed


def _limit(name: str, typed: str, zone: str) -> Any:
    if name == "max_fires":
        return _whole(typed)
    if name in {"starts_at", "ends_at"}:
        try:
            moment = datetime.fromisoformat(typed)
            return moment if moment.tzinfo else moment.replace(tzinfo=load_zone(zone))
        except (ValueError, Invalid):
            return typed
    return typed


# ── Where a draft comes from ─────────────────────────────────────────────────────────────────────────────────────


def read(form: FormData, zone: str) -> Draft:
    """What somebody sent, field by field. A character that cannot be stored is named at its field."""
    errors: Errors = {}
    fields = {name: _text(form, name, errors) for name in (*PLAIN, *POLICIES, *CAPS, "run_immediately")}
    count = _whole(str(form.get("triggers", "0")))
    triggers = [
        _trigger(form, at, zone, errors) for at in range(min(count, MOST_TRIGGERS) if isinstance(count, int) else 0)
    ]
    return Draft(fields, triggers, errors, _text(form, "revision", {}), _secrets(form, errors))


def _secrets(form: FormData, errors: Errors) -> list[dict[str, str]] | None:
    count = _whole(str(form.get("secrets", "")))
    if not isinstance(count, int):
        return None
    return [
        {name: _text(form, f"secrets.{at}.{name}", errors).strip() for name in SECRET}
        for at in range(min(count, MOST_USES))
    ]


def _trigger(form: FormData, at: int, zone: str, errors: Errors) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, default in {**TRIGGER, "timezone": zone}.items():
        key = f"triggers.{at}.{name}"
        if name in LISTS:
            found[name] = [str(each) for each in form.getlist(key)]
        else:
            found[name] = _text(form, key, errors, "" if name == "enabled" else default)
    return found


def _text(form: FormData, name: str, errors: Errors, default: str = "") -> str:
    value = form.get(name, default)
    if not isinstance(value, str):
        return default
    value = value.replace("\r\n", "\n")
    try:
        return bodies.clean_text(value, name)
    except Invalid as refused:
        errors[name] = refused.message
        return value.replace("\x00", "")


def blank(zone: str, agent: str = "", **fields: Any) -> Draft:
    """A new automation, with what a starter fills in."""
    trigger = {**TRIGGER, "timezone": zone, **fields.pop("trigger", {})}
    given = dict.fromkeys((*PLAIN, *CAPS, "run_immediately"), "") | _shown(Policies())
    return Draft({**given, "agent": agent, **fields}, [trigger])


def of(automation: Mapping[str, Any]) -> Draft:
    """An automation that is saved, with the triggers it has."""
    fields = {
        "name": automation["name"],
        "agent": automation["agent_slug"],
        "prompt": automation["prompt"] or "",
        "input": pretty(automation["input"]) if automation["input"] is not None else "",
        "run_immediately": "",
    }
    saved = automation["budget"] or {}
    caps = {f"budget.{span}.{unit}": _typed(saved.get(span, {}).get(unit)) for span, unit in BUDGET}
    policies = Policies.model_validate({name: automation[name] for name in POLICIES})
    triggers = [trigger_of(each) for each in automation["triggers"]]
    secrets = [{"variable": variable, "credential": name} for variable, name in automation["credentials"].items()]
    return Draft(fields | caps | _shown(policies), triggers, revision=str(automation["revision"]), secrets=secrets)


def _shown(policies: Policies) -> dict[str, str]:
    return {name: _typed(getattr(policies, name)) for name in POLICIES}


def _typed(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(value)
    return "" if value is None else format_duration(value) if isinstance(value, timedelta) else str(value)


def trigger_of(row: Mapping[str, Any]) -> dict[str, Any]:
    zone = row["timezone"]
    limits = {
        "enabled": "on" if row["enabled"] else "",
        "starts_at": _local(row["starts_at"], zone),
        "ends_at": _local(row["ends_at"], zone),
        "max_fires": _typed(row["max_fires"]),
        "jitter": _typed(row["jitter"]),
        "overlap": row["overlap"] or "",
    }
    return {**TRIGGER, "id": str(row["id"]), "timezone": zone, **_kind(row), **limits}


def _kind(row: Mapping[str, Any]) -> dict[str, Any]:
    match row["kind"]:
        case "webhook" | "event":
            return {"kind": row["kind"], "event": row["event"] or ""}
        case "after":
            # What is deleted is known by its id alone.
            after = str(row["after_automation_id"]) if row["after_deleted_at"] else row["after_slug"]
            return {"kind": "after", "after": after, "on": list(row["after_on"])}
        case "at":
            return {"kind": "at", "at": _local(row["at"], row["timezone"])}
    form = editor_form(timing(row).schedule(), row["editor_mode"], row["editor"])
    shown = {name: value if name in LISTS else str(value) for name, value in form.items() if name != "mode"}
    if "mode" in form:
        return {"kind": form["mode"], **shown}
    if "time" in form:  # each day: an interval of the editor, which saves it as cron that fires at the same times
        return {"kind": "interval", "every": str(row["every"].days), "unit": "days", "time": form["time"]}
    return {"kind": "advanced", "cron": f"@every {form['every']}"}


def _local(moment: datetime | None, zone: str) -> str:
    if moment is None:
        return ""
    wall = moment.astimezone(known_zone(zone)).replace(tzinfo=None)
    return wall.isoformat(timespec="seconds" if wall.second else "minutes")


def untouched(given: Mapping[str, Any], stored: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The trigger that these fields are of, if nobody changed them."""
    row = next((each for each in stored if str(each["id"]) == given["id"]), None)
    return row if row and trigger_form(given) == trigger_form(trigger_of(row)) else None


def kept(given: Mapping[str, Any], stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A trigger's form; for one that nobody touched, the very form it was saved with, so that it keeps its anchor."""
    row = untouched(given, stored)
    if row is None:
        return trigger_form(given)
    limits = {name: row[name] for name in (*LIMITS, "enabled")}
    return {**(row["editor"] or form_of(row)), **limits}
