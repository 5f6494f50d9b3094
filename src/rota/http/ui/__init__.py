"""Pages for people: plain forms and links, which htmx makes live where it can."""

from rota.http.ui import (
    accounts,
    adding,
    agent_editor,
    agents,
    approvals,
    artifacts,
    audit,
    automations,
    choosing,
    credentials,
    detail,
    editor,
    files,
    fleet,
    grants,
    live,
    members,
    memory,
    new_session,
    notifications,
    oneself,
    pausing,
    runs,
    sections,
    session_list,
    sessions,
    settings,
    signing,
    tokens,
    workspace,
)
from rota.http.ui.rendering import problem_page

__all__ = ["PAGES", "SECTIONS", "problem_page"]

_WORK = (
    files.router,
    signing.router,
    editor.editing,
    automations.router,
    automations.finding,
    choosing.router,
    detail.router,
)
_WHO = (agent_editor.editing, agents.router)
_SESSIONS = (session_list.router, new_session.router, artifacts.router, adding.router, sessions.router)
_TALK = (*_SESSIONS, approvals.router, notifications.router)
_TOLD = (runs.router, *_TALK, fleet.router, live.router)
_PEOPLE = (oneself.router, members.router, tokens.router, pausing.router)
_MONEY = (grants.router, accounts.router)
_LOOKED_AFTER = (memory.router, settings.router, credentials.router, *_MONEY, workspace.router, audit.router)

PAGES = (*_WORK, *_WHO, *_TOLD, *_PEOPLE, *_LOOKED_AFTER)
SECTIONS = sections.existing(PAGES)
