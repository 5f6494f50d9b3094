"""Pages for people: plain forms and links, which htmx makes live where it can."""

from fastapi import FastAPI

from rota.http.ui import automations, files, runs, sessions, signing
from rota.http.ui.rendering import problem_page

__all__ = ["install", "problem_page"]


def install(app: FastAPI) -> None:
    for each in (files, signing, automations, runs, sessions):
        app.include_router(each.router)
