"""Pages for people: plain forms and links, which htmx makes live where it can."""

from fastapi import FastAPI

from rota.http.ui import approvals, automations, detail, editor, files, fleet, runs, sessions, signing
from rota.http.ui.rendering import problem_page

__all__ = ["install", "problem_page"]


def install(app: FastAPI) -> None:
    pages = (files.router, signing.router, editor.editing, automations.router, automations.finding, detail.router)
    for each in (*pages, runs.router, sessions.router, approvals.router, fleet.router):
        app.include_router(each)
