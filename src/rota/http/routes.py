"""Where a route stands within a workspace: by this the audit log names what it does, and a token's scope is chosen."""

from fastapi import Request

ROOTS = ("/api/v1/workspaces/{workspace}", "/w/{workspace}")


def within_workspace(request: Request) -> str:
    """`/automations/{automation}/pause`, of the API and of the pages alike, those of the settings too."""
    path = str(request.scope["route"].path)
    for root in ROOTS:
        path = path.removeprefix(root)
    return path.removeprefix("/settings")
