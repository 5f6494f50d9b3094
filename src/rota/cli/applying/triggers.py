"""Triggers as files write them and as the API shows them, in one form that can be compared. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rota.errors import Invalid
from rota.model import cron
from rota.model.duration import format_duration, parse_duration
from rota.model.schedule import read_schedule, short_form

LIMITS = ("enabled", "starts_at", "ends_at", "max_fires", "jitter", "overlap")
Form = dict[str, Any]


def written(form: Any, *, zone: str, ids: Mapping[str, str]) -> Form | None:
    """A trigger of a file; None if it cannot be read, which is for the API to refuse. `ids` are those of automations
    by slug."""
    if not isinstance(form, dict):
        return None
    limits = {name: form[name] for name in LIMITS if name in form}
    when = {name: value for name, value in form.items() if name not in LIMITS}
    try:
        return _when(when, zone, ids) | _limits(limits)
    except (Invalid, ValueError, TypeError):
        return None


def _when(form: Form, zone: str, ids: Mapping[str, str]) -> Form:
    if "webhook" in form:
        return {**form, "webhook": {}}
    if "event" in form:
        return form
    if "after" in form:
        on = sorted(set(form.get("on", ["succeeded"])))
        return {**form, "after": ids.get(str(form["after"]), form["after"]), "on": on}
    # As if at the beginning of time: an instant that has passed since it was saved is still the same trigger.
    compiled = read_schedule(form, default_timezone=zone, now=cron.EPOCH)
    mode = {"mode": compiled.editor_mode} if compiled.editor_mode else {}
    return short_form(compiled.schedule) | mode


def _limits(given: Form) -> Form:
    told = {name: value for name, value in given.items() if value is not None and (name, value) != ("enabled", True)}
    for name in ("starts_at", "ends_at"):
        if name in told:
            told[name] = datetime.fromisoformat(told[name]).timestamp()
    if "jitter" in told:
        told["jitter"] = format_duration(parse_duration(told["jitter"]))
    return told


def stored(trigger: Mapping[str, Any]) -> Form:
    """A trigger as the API shows it. One that cannot be read is like no other."""
    when = trigger["schedule"] or {"unreadable": trigger["id"]}
    mode = {"mode": trigger["editor_mode"]} if trigger["editor_mode"] else {}
    return when | mode | _limits({name: trigger[name] for name in LIMITS})


def same(wanted: Iterable[Form | None], there: Sequence[Form]) -> bool:
    """Whether these are the same triggers, in whatever order."""
    return _keys(wanted) == _keys(there)


def _keys(forms: Iterable[Form | None]) -> list[str]:
    return sorted(json.dumps(form, sort_keys=True) for form in forms)


def told(trigger: Mapping[str, Any]) -> str:
    """A trigger of an answer in one line: in words, with its mode and its limits."""
    more = {name: trigger[name] for name in LIMITS if name != "enabled"}
    more |= {"mode": trigger["editor_mode"], "enabled": None if trigger["enabled"] else "false"}
    return str(trigger["text"]) + "".join(f", {name} {value}" for name, value in more.items() if value is not None)
