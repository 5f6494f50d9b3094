"""One of many, by name: a list where they are few; where they are more, a field that is searched as somebody types."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from rota.db import agents, automations
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.http.context import InUnit
from rota.http.ui.rendering import PageRoute, part
from rota.model.caller import Caller
from rota.model.ids import WorkspaceId

FEW, FOUND, ALIKE = 200, 50, 5  # in a list; by a search; in the words that refuse what nothing is called
LONGEST = 200

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/find", include_in_schema=False)


class Offer(NamedTuple):
    """What there is to choose from, by slug and name. Where that is not all, `more` is where the rest is found."""

    options: Sequence[tuple[str, str]]
    more: str = ""

    def finds(self, listed: str) -> dict[str, str]:
        """What a field needs so that the page's list of this id is filled with what fits the words in it."""
        asks = {"hx-get": self.more, "hx-trigger": "input changed delay:150ms"}
        shows = {"hx-target": f"#{listed}", "hx-swap": "innerHTML", "hx-status:4xx": "swap:none"}
        plain = {"list": listed, "autocomplete": "off", "spellcheck": "false"}
        return {**plain, **asks, **shows, "hx-status:5xx": "swap:none", "placeholder": "Part of its name"}

    def without(self, slug: str) -> "Offer":
        return self._replace(options=[each for each in self.options if each[0] != slug])


async def agents_offered(conn: Connection, caller: Caller, *, active: bool = False) -> Offer:
    found = await agents.names(conn, caller.workspace_id, "", limit=FEW + 1, active=active)
    return _offer(found, f"/w/{caller.workspace_slug}/find/agents?active={active:d}")


async def automations_offered(conn: Connection, caller: Caller) -> Offer:
    found = await automations.names(conn, caller.workspace_id, "", limit=FEW + 1)
    return _offer(found, f"/w/{caller.workspace_slug}/find/automations")


def _offer(found: Sequence[Mapping[str, Any]], more: str) -> Offer:
    return Offer(_options(found[:FEW]), more if len(found) > FEW else "")


def _options(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return sorted(((each["slug"], each["name"]) for each in found), key=lambda each: each[1].lower())


# ── As somebody types ────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/agents")
async def find_agents(unit: InUnit, request: Request, active: Annotated[bool, Query()] = False) -> Response:
    found = await agents.names(unit.conn, unit.caller.workspace_id, _typed(request), limit=FOUND, active=active)
    return part(unit, request, "_options.html", options=_options(found))


@router.get("/automations")
async def find_automations(unit: InUnit, request: Request) -> Response:
    found = await automations.names(unit.conn, unit.caller.workspace_id, _typed(request), limit=FOUND)
    return part(unit, request, "_options.html", options=_options(found))


def _typed(request: Request) -> str:
    """What stands in the field that asks, whatever its form calls it."""
    told = [text for name, text in request.query_params.multi_items() if name != "active"]
    return told[-1].replace("\x00", "").strip()[:LONGEST] if told else ""


# ── Once it is sent ──────────────────────────────────────────────────────────────────────────────────────────────


class _Finding(Protocol):
    def __call__(
        self, conn: Connection, workspace_id: WorkspaceId, words: str, /, *, limit: int
    ) -> Awaitable[list[dict[str, Any]]]: ...


class Kind(NamedTuple):
    """What a field is filled in with."""

    word: str
    find: Callable[[Connection, WorkspaceId, str], Awaitable[dict[str, Any] | None]]
    called: _Finding
    names: _Finding


AGENT = Kind("agent", agents.find, agents.called, agents.names)
AUTOMATION = Kind("automation", automations.find, automations.called, automations.names)


async def meant(conn: Connection, caller: Caller, kind: Kind, typed: str, field: str) -> str:
    """What the API knows it by: people may write its name as well. What nothing is called stays as it is, to be
    refused where it is used, unless there are some that it may be a part of the name of."""
    typed = typed.strip()
    if not typed:
        raise Invalid(f"Choose an {kind.word}.", code=f"unknown_{kind.word}", field=field)
    if len(typed) > LONGEST or await kind.find(conn, caller.workspace_id, typed):
        return typed
    called = await kind.called(conn, caller.workspace_id, typed, limit=ALIKE)
    if len(called) == 1:
        return str(called[0]["slug"])
    alike = called or await kind.names(conn, caller.workspace_id, typed, limit=ALIKE)
    if not alike:
        return typed
    listed = ", ".join(f"{each['name']} ({each['slug']})" for each in alike)
    told = f"Several {kind.word}s are called so" if called else f"There is no {kind.word} {typed!r}, but there is"
    raise Invalid(f"{told}: {listed}. Write what is in brackets.", code=f"unknown_{kind.word}", field=field)
