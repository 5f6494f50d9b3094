"""The scopes of a grant: the agents it lets run, and whether their attempts may read the whole workspace. Pure."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from uuid import UUID

from rota.errors import Invalid
from rota.model.ids import as_uuid

AGENT_RUN = "agent:run:"
ANY_AGENT = f"{AGENT_RUN}*"
WORKSPACE_READ = "workspace:read"
OPTIONAL = (WORKSPACE_READ,)  # `agent:run:<id>` is in every grant and never chosen


def check_optional(scopes: Sequence[str]) -> list[str]:
    """The scopes that somebody chose for a grant, each once, in a fixed order."""
    for at, scope in enumerate(scopes):
        if scope not in OPTIONAL:
            near = get_close_matches(scope[:64], OPTIONAL, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else f"A grant can have {_listed(OPTIONAL)}."
            raise Invalid(f"Unknown grant scope {scope[:64]!r}. {hint}", code="unknown_scope", field=f"scopes.{at}")
    return optional_of(scopes)


def optional_of(scopes: Iterable[str]) -> list[str]:
    """The chosen scopes among those of a grant."""
    chosen = set(scopes)
    return [scope for scope in OPTIONAL if scope in chosen]


def agent_of(scope: str) -> UUID | None:
    """The agent that a scope `agent:run:<id>` names; None for any other scope."""
    return as_uuid(scope.removeprefix(AGENT_RUN)) if scope.startswith(AGENT_RUN) else None


def _listed(scopes: Sequence[str]) -> str:
    return ", ".join(f"`{scope}`" for scope in scopes)
