"""Every refusal as problem+json: a stable code, the field, and words that help. Pages get the same facts as a page."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import Scope

from rota.db.pool import OVERTAKEN
from rota.errors import STATUS, RotaError
from rota.mcp.protocol import of_problem

log = logging.getLogger(__name__)

TITLES = {
    400: "Bad request", 401: "Sign in first", 403: "Not allowed", 404: "Not found", 405: "Method not allowed",
    408: "Too slow", 409: "Conflict", 413: "Too large", 421: "Unknown host", 422: "Invalid", 429: "Too often",
    500: "Something broke", 503: "Busy",
}  # fmt: skip
# Where the status alone would say something else: who sends these has no need to sign in.
TITLES_OF_CODES = {
    "missing_signature": "Not signed", "invalid_signature": "Wrong signature", "stale_webhook": "Too old or too new",
    "attempt_over": "The attempt is over",
}  # fmt: skip
BROKEN = "Something broke on our side; the log has the details."
DATABASE_FULL = "The disk of the database is full, so nothing can be saved. Free space on it; Rota goes on by itself."
DATABASE_READ_ONLY = (
    "The database takes no writes: it is a standby or read-only. Let ROTA_DATABASE_URL lead to the primary server."
)
DATABASE_LOCKED = (
    "Another transaction keeps what this request changes locked. Try again in a moment; if it lasts, pg_stat_activity "
    "shows the oldest transaction."
)
CODES = {404: "not_found", 405: "method_not_allowed"}

ENDED = "rota.ended"  # in the scope of a try after which there may be another: set once it was ended for that

MOST_ERRORS = 20
# By how the kinds of pydantic's errors begin.
_OBJECT = "Give a JSON object: names and values in braces."
_INSTANT = "Give an instant with its offset, such as “2026-06-01T09:00:00Z”."
_AMOUNT = "Give an amount, such as “0.50”."
IN_OUR_WORDS = {
    "extra_forbidden": "There is no such field.",
    "model_attributes_type": _OBJECT, "model_type": _OBJECT, "dict_type": _OBJECT,
    "list_type": "Give a JSON list: values in brackets.",
    "uuid_parsing": "Give an id such as 01a1e0db-2cd9-7826-809d-0931e0e98709.",
    "uuid_type": "Give an id such as 01a1e0db-2cd9-7826-809d-0931e0e98709.",
    "datetime_": _INSTANT, "timezone_": _INSTANT,
    "date_": "Give a day, such as “2026-06-01”.",
    "string_type": "Give text, in quotes.",
    "string_too_short": "Give at least {min_length} character{s}.",
    "string_too_long": "Give at most {max_length} characters.",
    "string_pattern_mismatch": "Give text that fits {pattern}",
    "too_short": "Give at least {min_length}.", "too_long": "Give at most {max_length}.",
    "int_": "Give a whole number.", "float_": "Give a number.", "finite_number": "Give a number.",
    "decimal_type": _AMOUNT, "decimal_parsing": _AMOUNT, "decimal_max_digits": "Give at most {max_digits} digits.",
    "decimal_max_places": "Give at most {decimal_places} digits behind the point.",
    "decimal_whole_digits": "Give at most {whole_digits} digits before the point.",
    "bool_": "Give true or false.",
    "literal_error": "Give {expected}.", "enum": "Give {expected}.",
    "greater_than_equal": "Give {ge} or more.", "less_than_equal": "Give {le} or less.",
    "greater_than": "Give more than {gt}.", "less_than": "Give less than {lt}.",
}  # fmt: skip
# What a field takes that is held to a pattern; nobody has to read one.
PATTERNS_IN_WORDS = {
    "^[0-9a-fA-F]{64}$": "Give a SHA-256 hash: 64 hexadecimal digits.",
    "^[A-Z]{3}$": "Give a currency by its three capital letters, such as “EUR”.",
    "^[a-z0-9][a-z0-9-]{0,62}$": "Give up to 63 lower-case letters, digits and hyphens; the first is no hyphen.",
    "^[a-z0-9][a-z0-9_-]{0,62}$": (
        "Give up to 63 lower-case letters, digits, hyphens and underscores; the first is a letter or digit."
    ),
}
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
MCP_PATH = "/mcp"

Problem = Callable[[Request, dict[str, Any]], Awaitable[Response] | Response]


def problem(status: int, code: str, detail: str, *, field: str | None = None, **facts: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "title": TITLES_OF_CODES.get(code) or TITLES.get(status, "Error"),
        "status": status,
        "code": code,
        "detail": detail,
    }
    return told | ({"field": field} if field else {}) | facts


def answer(told: dict[str, Any], path: str = "") -> Response:
    if path == MCP_PATH:  # its clients read nothing but their protocol
        return JSONResponse(of_problem(told), told["status"], headers_of(told))
    return JSONResponse(told, told["status"], headers_of(told), media_type="application/problem+json")


def headers_of(told: dict[str, Any]) -> dict[str, str]:
    match told["status"]:
        case 401:
            return {"WWW-Authenticate": "Bearer"}
        case 429:
            return {"Retry-After": str(told["retry_after"])}
        case 503:
            return {"Retry-After": "1"}
        case _:
            return {}


def of_error(error: RotaError) -> dict[str, Any]:
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    return problem(status, error.code, error.message, field=error.field, **error.facts)


def of_validation(errors: Sequence[Any]) -> dict[str, Any]:
    """The first wrong field in the open, and with the others in `errors`, as many as a person would read."""
    found = [{"field": _field(each["loc"]), "message": _message(each)} for each in errors[:MOST_ERRORS]]
    detail = f"{found[0]['field']}: {found[0]['message']}" if found[0]["field"] else found[0]["message"]
    return problem(422, "invalid", detail, field=found[0]["field"] or None, errors=found)


def _field(location: Sequence[Any]) -> str:
    # pydantic names the member of a union it tried; people know only the field.
    within = location[1:] if location[:1] and location[0] in {"body", "query", "path", "header"} else location
    parts = [str(part) for part in within]
    return ".".join(part for part in parts if not part.startswith(("function-", "constrained-", "one-of-")))


def _message(error: dict[str, Any]) -> str:
    kind = error["type"]
    if told := PATTERNS_IN_WORDS.get(error.get("ctx", {}).get("pattern")):
        return told
    known = next((told for beginning, told in IN_OUR_WORDS.items() if kind.startswith(beginning)), None)
    if known:
        facts = error.get("ctx", {})
        return known.format(**facts, s="" if facts.get("min_length") == 1 else "s").replace("'", "")
    if kind == "missing":
        return "Send a body: a JSON object." if tuple(error["loc"]) == ("body",) else "This field is required."
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "?", "!")) else ".")


def of_database(error: psycopg.Error) -> dict[str, Any]:
    match error:
        case psycopg.errors.UniqueViolation():
            return problem(409, "conflict", "Somebody saved the same at this very moment. Look again, then try again.")
        case psycopg.errors.DataError() | psycopg.errors.ProgramLimitExceeded():
            return problem(422, "invalid", "A value cannot be stored: it is out of range or not valid text.")
        case psycopg.errors.DeadlockDetected() | psycopg.errors.IdleInTransactionSessionTimeout():
            return problem(503, "busy", "Others change the same at this moment. Try again in a moment.")
        case psycopg.errors.ReadOnlySqlTransaction() | psycopg.OperationalError():
            return _of_outage(error)
        case _:
            log.error("http.broken", exc_info=error)
            return problem(500, "broken", BROKEN)


def _of_outage(error: psycopg.Error) -> dict[str, Any]:
    match error:
        case psycopg.errors.DiskFull():
            return problem(503, "database_full", DATABASE_FULL)
        case psycopg.errors.ReadOnlySqlTransaction():
            return problem(503, "database_read_only", DATABASE_READ_ONLY)
        case psycopg.errors.LockNotAvailable():
            return problem(503, "database_locked", DATABASE_LOCKED)
        case psycopg.errors.QueryCanceled():
            return problem(503, "database_slow", "The database took too long over this. Try again in a moment.")
        case _:
            return problem(503, "database_unavailable", "The database does not answer. Try again in a moment.")


def of_any(error: BaseException) -> dict[str, Any]:
    """The problem that an exception is told as."""
    match error:
        case RotaError():
            return of_error(error)
        case RequestValidationError():
            return of_validation(error.errors())
        case psycopg.Error():
            return of_database(error)
        case HTTPException(status_code=404):
            return problem(404, CODES[404], "There is nothing at this address.")
        case HTTPException():
            return problem(error.status_code, CODES.get(error.status_code, "refused"), str(error.detail))
        case _:
            return problem(500, "broken", BROKEN)


def is_tried_again(request: Request, error: BaseException) -> bool:
    """Whether nothing of this try is kept, and another may succeed."""
    uncommitted = isinstance(error, OVERTAKEN) or getattr(request.state, "lost_before_commit", False)
    return uncommitted and ENDED in request.scope


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """All that can be done with this address, where one route knows only its own."""
    asked = [(method, {**scope, "method": "GET" if method == "HEAD" else method}) for method in METHODS]
    return [method for method, as_if in asked if any(route.matches(as_if)[0] is Match.FULL for route in app.routes)]


def install(app: FastAPI, show: Problem) -> None:
    """Turn every exception into the same kind of answer, whoever raised it."""

    async def give(request: Request, told: dict[str, Any]) -> Response:
        shown = show(request, told)
        return await shown if isinstance(shown, Awaitable) else shown

    @app.exception_handler(RotaError)
    @app.exception_handler(RequestValidationError)
    @app.exception_handler(psycopg.Error)
    async def told(request: Request, error: Exception) -> Response:
        if is_tried_again(request, error):
            request.scope[ENDED].set()
        return await give(request, of_any(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        told, methods = of_any(error), ""
        if error.status_code == 405:
            methods = ", ".join(_methods(app, request.scope))
            told["detail"] = f"{request.method} does nothing here; this address takes {methods}."
        shown = await give(request, told)
        shown.headers.update(error.headers or {})
        if methods:
            shown.headers["Allow"] = methods
        return shown

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        log.error("http.broken", exc_info=error)
        return await give(request, of_any(error))
