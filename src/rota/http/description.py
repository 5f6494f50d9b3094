"""The OpenAPI document: what FastAPI knows of the routes, and what all of them share, signing in and refusals."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field

from rota import __version__

ABOUT = "A duty roster for AI agents. Every refusal is problem+json with a stable `code`."
SIGNED_IN_PREFIX = "/api/"
SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token of a person, or of an attempt at work."},
    "login": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-rota_login",
        "description": "A browser that is signed in. By http, the cookie is `rota_<port>_login`.",
    },
}
OF_FASTAPI = ("HTTPValidationError", "ValidationError")  # which is not how we refuse


class WrongField(BaseModel):
    field: str
    message: str


class Problem(BaseModel):
    """Why a request was refused. Some codes add facts of their own."""

    model_config = ConfigDict(extra="allow")

    title: str
    status: int = Field(ge=400, le=599)
    code: str
    detail: str
    field: str | None = None
    errors: list[WrongField] | None = None


REFUSALS = {
    "4XX": {
        "description": "Refused; nothing was changed",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def describe(app: FastAPI) -> None:
    """Have the application give this document, made once."""

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title="Rota", version=__version__, description=ABOUT, routes=app.routes)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            operation["responses"] |= REFUSALS
            if path.startswith(SIGNED_IN_PREFIX):
                operation["security"] = [{name: []} for name in SECURITY]
    components = document["components"]
    components["securitySchemes"] = SECURITY
    components["schemas"] |= _problem()
    for name in OF_FASTAPI:
        components["schemas"].pop(name, None)
    return document


def _problem() -> dict[str, Any]:
    told = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**told.pop("$defs"), "Problem": told}
