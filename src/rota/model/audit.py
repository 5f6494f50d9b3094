"""What the audit log calls a change, and what it keeps of it. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

VERBS = {"POST": "create", "PUT": "set", "PATCH": "change", "DELETE": "delete"}
# What goes on by itself while a thing is used, and what is long or may hold what people should not have written there.
RESTLESS = frozenset({"updated_at", "last_used_at", "last_seq", "lease_until", "ready_at"})
UNTOLD = frozenset(
    {"config", "instructions", "prompt", "input", "payload", "editor", "value", "error_detail", "summary"}
)
OF_WORKSPACE = frozenset({"pause", "resume"})  # verbs that stand right behind the workspace's own address
SECRET = ("secret", "hash", "password", "sealed", "token")


class Action(NamedTuple):
    """`automation.pause`: which kind of thing, and what was done to it."""

    kind: str
    verb: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.verb}"


def action_of(method: str, path: str) -> Action:
    """The action of a route by its address within the workspace, such as `/automations/{automation}/pause`."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        return Action("workspace", VERBS[method])
    if len(parts) == 1 and parts[0] in OF_WORKSPACE:
        return Action("workspace", parts[0])
    collections = [at for at, part in enumerate(parts) if not part.startswith("{") and _is_collection(parts, at)]
    kind = _singular(parts[collections[-1]])
    last = parts[-1]
    if last.startswith("{"):
        return Action(kind, "answer" if method == "POST" else VERBS[method])
    return Action(kind, VERBS[method] if len(parts) - 1 == collections[-1] else last)


def _is_collection(parts: list[str], at: int) -> bool:
    """The first word, and a later one that is a plural; other last words are verbs."""
    return at == 0 or parts[at].endswith("s") or (at + 1 < len(parts) and parts[at + 1].startswith("{"))


def _singular(plural: str) -> str:
    if plural.endswith("ies"):
        return plural[:-3] + "y"
    return plural.removesuffix("s")


def difference(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The fields that changed, as they were and as they are. Secrets are left out; what is long is named only."""
    old, new = _telling(before), _telling(after)
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    return _told(old, changed) if before else None, _told(new, changed) if after else None


def _telling(row: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        name: value
        for name, value in (row or {}).items()
        if name not in RESTLESS and not any(word in name for word in SECRET) and value is not None
    }


def _told(row: Mapping[str, Any], changed: set[str]) -> dict[str, Any]:
    return {name: "…" if name in UNTOLD else value for name, value in row.items() if name in changed}
