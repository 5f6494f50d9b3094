"""How what files say differs from what is there. The API is asked what it would make of each; nothing is written."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote

from rota.cli.applying import triggers
from rota.cli.applying.reading import Item
from rota.cli.noun import Rota, progress
from rota.errors import Invalid, NotFound, Refused, RotaError

TRIAL: dict[str, Any] = {"dry_run": True}
WHEN = ("schedule", "triggers")
STATUS_VERBS = {"active": "resume", "paused": "pause"}
TIMED = ("cron", "every", "at", "mode")
NOT_YET = "rota.apply.not-there-yet"  # an event that stands for the end of an automation which is not there yet
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """What applying an item means. `send` is the body of the request; a `verb` is a change of status."""

    item: Item
    there: Answer | None
    send: dict[str, Any]
    verb: str | None = None
    differences: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def action(self) -> str:
        if self.there is None:
            return "create"
        return "change" if self.differences else "unchanged"


class Planner:
    def __init__(self, rota: Rota, items: Sequence[Item], *, accept_grant: bool) -> None:
        self._rota, self._items, self._accept_grant = rota, items, accept_grant
        self._zone = rota.ask("GET", "")["timezone"]
        self._there: dict[tuple[str, str], Answer | None] = {}
        self._new: set[tuple[str, str]] = set()
        self._ids: dict[str, str] = {}

    def plan(self) -> list[Change]:
        """A change for each item, in the order in which they can be written. Every refusal is told at once."""
        changes, refusals = [], []
        with progress(2 * len(self._items), "Looking") as looked:
            for item in self._items:
                self._there[item.kind, item.slug] = self._find(item.path, item.slug)
                looked(1)
            self._new = {key for key, found in self._there.items() if found is None}
            for item in self._items:
                try:
                    changes.append(self._change(item))
                except Refused as refused:
                    refusals.append(located(item, refused))
                looked(1)
        if refusals:
            raise Invalid("\n".join(each.message for each in refusals) + "\nNothing was written.", field="-f")
        return list(self._ordered(changes))

    def _is_new(self, kind: str, ref: object) -> bool:
        return isinstance(ref, str) and (kind, ref) in self._new

    def _find(self, path: str, ref: str) -> Answer | None:
        if not ref.strip("."):  # no slug, but a way to somewhere else
            return None
        try:
            found: Answer = self._rota.ask("GET", f"{path}/{quote(ref, safe='')}")
        except NotFound:
            return None
        return found

    def _change(self, item: Item) -> Change:
        there = self._there[item.kind, item.slug]
        if there is None:
            return self._creation(item)
        return self._of_agent(item, there) if item.kind == "agent" else self._of_automation(item, there)

    # A new one ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _creation(self, item: Item) -> Change:
        send = {**item.body, "slug": item.slug}
        tried = self._trial("POST", item.path, self._triable(send))
        differences = {name: (None, value) for name, value in item.body.items() if name != "slug"}
        return Change(item, None, send, differences=differences, warnings=tried.get("warnings", ()))

    def _trial(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        """What the API would answer. An agent that the same files bring cannot be there yet: another one stands in for
        it, and where there is none, only the form of the body and its schedules can be judged."""
        try:
            tried: Answer = self._rota.ask(method, path, body, **TRIAL)
        except Invalid as refused:
            if refused.code != "unknown_agent" or not self._is_new("agent", body.get("agent")):
                raise
            if self._stand_in is None:
                self._preview(body)
                return {}
            tried = self._rota.ask(method, path, {**body, "agent": self._stand_in}, **TRIAL)
        return tried

    @cached_property
    def _stand_in(self) -> str | None:
        """Not of the kind that takes credentials in a way of its own."""
        found = (agent for agent in self._rota.all_of("/agents") if agent["executor"] != "http")
        return next((str(agent["id"]) for agent in found), None)

    def _preview(self, body: dict[str, Any]) -> None:
        for name, form in _forms(body):
            if not isinstance(form, dict) or form.keys().isdisjoint(TIMED):
                continue
            when = {key: value for key, value in form.items() if key not in triggers.LIMITS}
            try:
                self._rota.ask("POST", "/automations/preview", {"schedule": when, "count": 1})
            except Invalid as refused:
                inner = (refused.field or "").removeprefix("schedule")
                raise Invalid(refused.message, code=refused.code, field=name + inner) from None

    def _triable(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body with other triggers in place of those that wait for an automation which the same files bring."""
        if isinstance(listed := body.get("triggers"), list):
            body = {**body, "triggers": [self._stood_in_for(form) for form in listed]}
        return {**body, "schedule": self._stood_in_for(body["schedule"])} if "schedule" in body else body

    def _stood_in_for(self, form: Any) -> Any:
        if not self._unborn(form):
            return form
        return {name: form[name] for name in form if name not in {"after", "on"}} | {"event": NOT_YET}

    def _unborn(self, form: Any) -> bool:
        return self._is_new("automation", _after(form))

    # One that is there ───────────────────────────────────────────────────────────────────────────────────────────

    def _of_agent(self, item: Item, there: Answer) -> Change:
        wanted = _differing(item.body, there)
        if not wanted:
            return Change(item, there, {})
        tried = self._trial("PATCH", f"{item.path}/{there['id']}", wanted)
        changed = {name: (there[name], tried[name]) for name in wanted if there.get(name) != tried.get(name)}
        send = {name: wanted[name] for name in changed}
        return Change(item, there, send, differences=changed, warnings=tried["warnings"] if changed else ())

    def _of_automation(self, item: Item, there: Answer) -> Change:
        verb, differences = _status(item, there)
        if wanted := self._wanted(item, there):
            tried, unborn = self._tried(item, there, wanted)
            fields = [name for name in wanted if name not in WHEN and there.get(name) != tried.get(name)]
            differences |= {name: (there[name], tried[name]) for name in fields}
            if not wanted.keys().isdisjoint(WHEN) and (unborn or not _same(tried["triggers"], there["triggers"])):
                new = [triggers.told(each) for each in tried["triggers"] if each["event"] != NOT_YET]
                differences["triggers"] = ([triggers.told(each) for each in there["triggers"]], [*new, *unborn])
        send = {name: wanted[name] for name in wanted if ("triggers" if name in WHEN else name) in differences}
        if send and self._accept_grant:
            send["accept_grant"] = True
        return Change(item, there, send, verb, differences)

    def _wanted(self, item: Item, there: Answer) -> dict[str, Any]:
        """What a file spells otherwise than the API does; whether it is another, the API knows."""
        apart = {*WHEN, "status", "run_immediately"}
        wanted = _differing({name: value for name, value in item.body.items() if name not in apart}, there)
        if wanted.get("agent") == there["agent_id"]:
            del wanted["agent"]
        when = {name: item.body[name] for name in WHEN if item.body.get(name) is not None}
        if when:
            forms = [self._written(form) for _, form in _forms(when)]
            stored = [triggers.stored(each) for each in there["triggers"]]
            readable = len(when) == 1 and None not in forms and isinstance(when.get("triggers", []), list)
            if not readable or not triggers.same(forms, stored):
                wanted |= when
        return wanted

    def _written(self, form: Any) -> triggers.Form | None:
        if (after := _after(form)) and after not in self._ids:
            found = self._there.get(("automation", after)) or self._find("/automations", after)
            self._ids[after] = found["id"] if found else after
        return triggers.written(form, zone=self._zone, ids=self._ids)

    def _tried(self, item: Item, there: Answer, wanted: dict[str, Any]) -> tuple[Answer, list[str]]:
        """As it would be, and the triggers that cannot be tried: they wait for an automation of the same files."""
        trial = dict(self._triable(wanted))
        new_agent = trial.pop("agent") if self._is_new("agent", trial.get("agent")) else None
        if trial and self._accept_grant:
            trial["accept_grant"] = True
        tried: Answer = self._rota.ask("PATCH", f"{item.path}/{there['id']}", trial, **TRIAL) if trial else dict(there)
        if new_agent:
            tried["agent"] = new_agent
        return tried, [f"After {_after(form)!r}" for _, form in _forms(wanted) if self._unborn(form)]

    # All of them ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _ordered(self, changes: Sequence[Change]) -> Iterator[Change]:
        """Agents before automations, and an automation before those that run after it."""
        yield from (change for change in changes if change.item.kind == "agent")
        left = [change for change in changes if change.item.kind == "automation"]
        while left:
            unborn = {change.item.slug for change in left if change.action == "create"}
            free = [change for change in left if unborn.isdisjoint(_afters(change))]
            if not free:
                circle = ", ".join(change.item.slug for change in left)
                raise Invalid(
                    f"{left[0].item.place}: these would run after each other in a circle: {circle}.", field="-f"
                )
            yield from free
            left = [change for change in left if change not in free]


def located(item: Item, refused: RotaError) -> RotaError:
    """A refusal with the place of what was refused, and every field that is wrong."""
    wrong = refused.facts.get("errors") or []
    fields = [f"{each['field']}: {each['message']}" for each in wrong]
    if not fields and refused.field and not refused.message.startswith(f"{refused.field}:"):
        fields = [f"{refused.field}: {refused.message}"]
    *others, last = fields or [refused.message]
    told = "; ".join([*(each.removesuffix(".") for each in others), last])
    return type(refused)(f"{item.place}: {item}: {told}", code=refused.code, field=refused.field)


def _differing(body: dict[str, Any], there: Answer) -> dict[str, Any]:
    """A field that the API does not show is for it to refuse."""
    return {
        name: value for name, value in body.items() if name != "slug" and (name not in there or there[name] != value)
    }


def _status(item: Item, there: Answer) -> tuple[str | None, dict[str, tuple[Any, Any]]]:
    """The verb that brings an automation to the status it is said to have; it is no field of a change."""
    wanted = item.body.get("status", there["status"])
    if wanted == there["status"]:
        return None, {}
    if wanted not in STATUS_VERBS:
        raise Invalid("Use active or paused.", field="status")
    return STATUS_VERBS[wanted], {"status": (there["status"], wanted)}


def _same(one: Iterable[Answer], other: Iterable[Answer]) -> bool:
    return triggers.same(map(triggers.stored, one), [triggers.stored(each) for each in other])


def _forms(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every trigger of a body, and the field it stands in."""
    if body.get("schedule") is not None:
        yield "schedule", body["schedule"]
    listed = body.get("triggers")
    if isinstance(listed, list):
        yield from ((f"triggers.{at}", form) for at, form in enumerate(listed))


def _after(form: Any) -> str | None:
    return str(form["after"]) if isinstance(form, dict) and "after" in form else None


def _afters(change: Change) -> set[str | None]:
    return {_after(form) for _, form in _forms(change.send)}
