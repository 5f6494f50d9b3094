"""What a token is for: a closed list of scopes, and the one that each route needs. Pure."""

from collections.abc import Iterable
from enum import StrEnum

from rota.errors import Forbidden


class Scope(StrEnum):
    READ = "read"
    RUN = "run"
    WRITE = "write"
    ADMIN = "admin"


ALL = tuple(Scope)
READING = frozenset({"GET", "HEAD", "OPTIONS"})
PREVIEWS = frozenset({"/automations/preview"})  # they are sent a body, and save nothing
OF_RUNS = frozenset({"runs", "sessions", "approvals", "events"})
OF_PEOPLE = frozenset({"automations", "grants", "notifications"})


def needed(method: str, path: str) -> Scope:
    """The scope for a route, by its address within the workspace. What is not known here is for admins."""
    parts = [part for part in path.split("/") if part]
    noun = parts[0] if parts else ""
    if noun == "audit":
        return Scope.ADMIN
    if method in READING or path in PREVIEWS:
        return Scope.READ
    if noun in OF_RUNS or (method == "POST" and parts[2:] in (["run"], ["runs"])):
        return Scope.RUN
    return Scope.WRITE if noun in OF_PEOPLE else Scope.ADMIN


def check(scopes: Iterable[str] | None, scope: Scope, *, field: str | None = None) -> None:
    """None stands for a person, who needs no scopes. `field`: what asks for it, where the route alone does not."""
    if scopes is not None and scope not in scopes:
        raise Forbidden(
            f"This token has no scope `{scope}`. Make one that has: `rota tokens create NAME --scope {scope}`.",
            code="scope_missing", field=field, needs_scope=scope,
        )  # fmt: skip
