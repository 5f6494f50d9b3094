"""Pages for people: plain forms and links, which htmx makes live where it can."""

from fastapi import FastAPI

from rota.http.ui import (
    accounts,
    agent_editor,
    agents,
    approvals,
    artifacts,
    audit,
    automations,
    credentials,
    detail,
    editor,
    files,
    fleet,
    grants,
    live,
    members,
    memory,
    notifications,
    oneself,
    runs,
    sections,
    session_list,
    sessions,
    settings,
    signing,
    tokens,
)
from rota.http.ui.rendering import problem_page

__all__ = ["install", "problem_page"]


def install(app: FastAPI) -> None:
    work = (files.router, signing.router, editor.editing, automations.router, automations.finding, detail.router)
    talk = (session_list.router, artifacts.router, sessions.router, approvals.router, notifications.router)
    who = (agent_editor.editing, agents.router)
    told = (runs.router, *talk, fleet.router, live.router)
    people = (oneself.router, members.router, tokens.router)
    looked_after = (memory.router, settings.router, credentials.router, grants.router, accounts.router, audit.router)
    pages = (*work, *who, *told, *people, *looked_after)
    app.state.sections = sections.existing(pages)
    for each in pages:
        app.include_router(each)
