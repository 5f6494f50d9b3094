"""The pages of the settings, as their navigation lists them."""

from collections.abc import Iterable
from typing import NamedTuple

from fastapi import APIRouter, Request

from rota.model.caller import Caller, Level


class Section(NamedTuple):
    """A page of the settings."""

    path: str
    name: str
    for_admins: bool = False


SECTIONS = (
    Section("me", "You"),
    Section("members", "Members"),
    Section("tokens", "Tokens"),
    Section("credentials", "Credentials"),
    Section("grants", "Grants"),
    Section("accounts", "Accounts and usage"),
    Section("workspace", "Workspace", for_admins=True),
    Section("audit", "Audit log", for_admins=True),
)
HOME = "/w/{workspace}/settings"


def existing(routers: Iterable[APIRouter]) -> list[Section]:
    """Those of which there is a page."""
    known = {getattr(route, "path", "") for router in routers for route in router.routes}
    return [each for each in SECTIONS if f"{HOME}/{each.path}" in known]


def sections(request: Request, caller: Caller) -> list[Section]:
    """Those that this reader may open."""
    found: list[Section] = request.app.state.sections
    return [each for each in found if caller.level == Level.ADMIN or not each.for_admins]
