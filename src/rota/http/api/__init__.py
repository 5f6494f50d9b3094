"""The JSON API: a file for each noun. A route parses, calls one function and returns a value."""

from fastapi import APIRouter

from rota.http.api import (
    accounts,
    agents,
    approvals,
    artifacts,
    audit,
    automations,
    credentials,
    desk,
    events,
    fleet,
    grants,
    me,
    members,
    memory,
    messages,
    notifications,
    preview,
    runs,
    sessions,
    tokens,
    triggers,
    usage,
    workspace,
)
from rota.http.repeating import Repeatable

router = APIRouter(prefix="/api/v1/workspaces/{workspace}", route_class=Repeatable)
for noun in (
    agents,
    audit,
    preview,
    automations,
    memory,
    triggers,
    runs,
    sessions,
    messages,
    artifacts,
    desk,
    approvals,
    events,
    credentials,
    fleet,
    grants,
    members,
    tokens,
    notifications,
    accounts,
    usage,
    me,
):
    router.include_router(noun.router)
router.add_api_route("", workspace.get_workspace, methods=["GET"], tags=["workspace"])
router.add_api_route("", workspace.change_workspace, methods=["PATCH"], tags=["workspace"])
