"""How every page is made: one template environment, one set of headers, and words for what was refused."""

import gzip
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import orjson
from fastapi import Form, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from rota import __version__
from rota.access import signing_in
from rota.access.signing_in import csrf_of
from rota.db import glance, isolation, people
from rota.db.pool import PASSING
from rota.errors import RotaError, Unauthenticated
from rota.http.context import CSRF_FIELD, CSRF_HEADER, Unit, Web, refuse
from rota.http.cookies import login_of
from rota.http.errors import of_any
from rota.http.ui import words
from rota.http.ui.assets import address
from rota.http.ui.charts import spent
from rota.http.ui.controls import act, fold, icon, pill
from rota.http.ui.markdown import inline, markdown
from rota.http.ui.sections import sections
from rota.http.ui.strip import strip
from rota.model.artifact import preview_of
from rota.model.caller import Caller, Level
from rota.model.cron import zone_names

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
THEME = "rota_theme"
ZONE = "rota_zone"  # the reader's own, which rota.js keeps in a cookie
THEMES = ("auto", "light", "dark")
Next = Annotated[str, Form(alias="next", description="The page a form leads to")]
SMALLEST_ZIPPED = 1400  # what fits into one packet anyway

# No inline style or script of htmx's own, no history (pages are whole), and an open fold stays open when it is morphed.
HTMX = json.dumps(
    {
        "includeIndicatorCSS": False,
        "history": False,
        "morphIgnore": ["data-htmx-powered", "open"],
        "sse": {"reconnectMaxDelay": 5000},
    }
)


class Place(NamedTuple):
    """A page that the top leads to, and the letter that `g` takes there. On a phone, a `rare` one is in the menu."""

    path: str
    name: str
    key: str
    rare: bool = False


PLACES = (
    Place("automations", "Automations", "a"),
    Place("agents", "Agents", "w", rare=True),
    Place("runs", "Runs", "r"),
    Place("sessions", "Sessions", "c"),
    Place("approvals", "Approvals", "p"),
    Place("fleet", "Fleet", "f", rare=True),
    Place("settings", "Settings", "s", rare=True),
)
SHORTCUTS = (
    (("Ctrl", "K"), "Search and commands"),
    (("/",), "Search this list"),
    (("j", "k"), "Next and previous row"),
    (("Enter",), "Open the row"),
    (("n",), "New automation"),
    (("r",), "Run now"),
    (("p",), "Pause or resume"),
    (("e",), "Edit"),
    (("?",), "This help"),
    (("g", "b"), "Go to Notifications"),
)

NEXT_STEPS = {
    "csrf_token": "Load its page again and try once more.",
    "foreign_origin": "Open the page again at its own address and try once more from there.",
    "already_answered": "The agent has the first answer already. Nothing needs to be done.",
    "already_queued": "It starts as soon as the run before it has ended. Nothing needs to be done.",
    401: "Sign in, then come back to this page.",
    403: "Ask an admin of this workspace to do it, or to raise your level.",
    404: "The address may be mistyped, or it belongs to a workspace you are not a member of.",
    405: "Go back and use the buttons of the page.",
    409: "Go back and look at the page again: something changed in the meantime.",
    413: "Send less at once.",
    429: "Wait as long as it says, then try again.",
    422: "Go back, change the value and try again.",
    500: "Try again. If it stays, the server's log says what happened.",
    503: "Wait a moment, then try again.",
}


# Forms that may be kept on a page for another try: no secret is written in any of them.
KEPT = re.compile("/w/[^/]+/(automations|agents|sessions)(/|$)")
UNASKED = (429, 503)  # problems that are told without another look at the database

# What a form must carry, of whoever reads the page that is made in this context: their secret, and the field with it.
_csrf: ContextVar[tuple[str, Markup]] = ContextVar("csrf", default=("", Markup()))
_zone: ContextVar[str] = ContextVar("zone", default="UTC")  # whose clock is told by: macros have no facts of their own


class FormGuard(Extension):
    """Every form that posts carries the secret of its reader's sign-in: put in when a template is read, so that none
    can be forgotten."""

    POSTS = re.compile(r"<form\b[^>]*\bmethod=\"post\"(?:[^>{%]|{{.*?}}|{%.*?%})*>")

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:  # noqa: ARG002
        return self.POSTS.sub(lambda form: form[0] + "{{ csrf_field() }}", source)


def csrf_field() -> Markup:
    return _csrf.get()[1]


def csrf_headers() -> str:
    """For htmx, which sends them with whatever it sends."""
    return json.dumps({CSRF_HEADER: _csrf.get()[0]})


def _read_by(request: Request) -> None:
    login = login_of(request)
    secret = csrf_of(login) if login else ""
    _csrf.set((secret, Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, secret)))


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    extensions=[FormGuard],
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    auto_reload=False,  # a look at each file for each use of it
)
templates.filters |= {
    "ago": lambda value: words.ago(value, _zone.get()),
    "away": words.away,
    "due": words.due,
    "at": words.at,
    "clock": lambda value: words.clock(words.instant(value), _zone.get()),
    "at_place": words.at_place,
    "hms": words.hms,
    "elapsed": words.elapsed,
    "bytes": words.size_of,
    "pretty": pretty,
}
templates.globals |= {
    "act": lambda *told, **more: act(csrf_field(), *told, **more),
    "fold": fold,
    "icon": icon,
    "pill": pill,
    "asset": address,
    "csrf_field": csrf_field,
    "csrf_headers": csrf_headers,
    "htmx_config": HTMX,
    "version": __version__,
    "status_words": words.STATUS,
    "places": PLACES,
    "shortcuts": SHORTCUTS,
    "kind_words": words.AGENT_KINDS,
    "sandbox_words": words.SANDBOXES,
    "sources": words.SOURCES,
    "session_words": words.SESSIONS,
    "task_words": words.TASK_WORDS,
    "task_pills": words.TASK_PILLS,
    "verb_words": words.VERBS,
    "hue": words.hue,
    "browser": words.browser,
    "inline": inline,
    "markdown": markdown,
    "preview_of": preview_of,
    "session_pills": words.SESSION_PILLS,
    "started_by": words.STARTED_BY,
    "note": words.note,
    "refused_tasks": words.refused_tasks,
    "lost_run": words.lost_run,
    "waits_for": words.waits_for,
    "tries_again_at": words.tries_again_at,
    "answered": words.answered,
    "made_up_for": words.made_up_for,
    "hindered": words.hindered,
    "offset": words.offset,
    "unit_named": words.unit_named,
    "utc_offset": words.utc_offset,
    "both_clocks": words.both_clocks,
    "spent": spent,
    "strip": strip,
}


class PageRoute(APIRoute):
    """Whatever a page route answers, refusals too, is a page and carries the headers of one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            _read_by(request)
            try:
                response = await handle(request)
            except (RotaError, RequestValidationError) as refused:
                told = of_any(refused)
                refuse(request, told)
                response = await problem_page(request, told)
            response.headers.update({name: value for name, value in HEADERS.items() if name not in response.headers})
            return response

        return handled


def choose(value: str | None, known: Collection[str]) -> tuple[str | None, str]:
    """A filter that an address names; one that is not known is left out, and named for the page to say so."""
    return (value, "") if value is None or value in known else (None, value[:LONGEST_FILTER])


def is_live(request: Request) -> bool:
    """htmx asks, for a part of a page that is shown already."""
    return "HX-Request" in request.headers


async def page(unit: Unit, request: Request, template: str, /, **facts: Any) -> Response:
    """A whole page of a workspace. One that `lives` has a stream of its own; any other gets one for its top alone."""
    async with unit.beyond_workspace():
        workspaces = await people.workspaces_of(unit.conn, unit.caller.user_id)
    frame = {
        "workspace": unit.caller.workspace_slug,
        "workspaces": workspaces,
        "name": unit.caller.name,
        "root": f"/w/{unit.caller.workspace_slug}",
        "sections": sections(request, unit.caller),
    }
    if "glance" not in facts:
        facts["glance"] = await glance.waiting(unit.conn, unit.caller)
    facts.setdefault("lives", False)
    return show(request, template, frame=frame, **told_to(request, unit.caller), **facts)


def part(unit: Unit, request: Request, template: str, /, **facts: Any) -> Response:
    """Something that is put into a page in place."""
    return show(request, template, **told_to(request, unit.caller), **facts)


def told_to(request: Request, caller: Caller) -> dict[str, Any]:
    """Who reads: where their links lead, by which clock they live, and what they may change."""
    return {
        "root": f"/w/{caller.workspace_slug}",
        "zone": zone_of(request, caller),
        "may_change": caller.level != Level.VIEWER,
        "is_admin": caller.is_admin,
        "owns": caller.owns,
    }


def zone_of(request: Request, caller: Caller | None) -> str:
    """The reader's zone, if it is one; until their browser told it, the workspace's."""
    told = request.cookies.get(ZONE, "")
    return told if told in zone_names() else caller.timezone if caller else "UTC"


def own_url(request: Request, shared: Web) -> str:
    """How others reach this server: as the operator says, else as this reader does."""
    return (shared.settings.url or str(request.base_url)).rstrip("/")


def show(request: Request, template: str, /, *, status: int = 200, **facts: Any) -> Response:
    facts = {"frame": None, "zone": zone_of(request, None), "here": here(request), "theme": theme(request), **facts}
    return html(request, render(template, **facts), status)


def html(request: Request, text: str, status: int = 200) -> Response:
    body = text.encode()
    headers = {**HEADERS, "Cache-Control": "no-store", "Vary": "Accept-Encoding, Cookie"}
    if len(body) >= SMALLEST_ZIPPED and "gzip" in request.headers.get("Accept-Encoding", ""):
        body, headers["Content-Encoding"] = gzip.compress(body, 5), "gzip"
    return Response(body, status, headers, media_type="text/html; charset=utf-8")


def render(template: str, **facts: Any) -> str:
    _zone.set(facts.get("zone", "UTC"))
    return templates.get_template(template).render(facts)


def fingerprint(*facts: Any) -> str:
    """What a reader has seen: the facts themselves, not the page, whose relative times always change."""
    told = orjson.dumps(facts, default=str, option=orjson.OPT_NON_STR_KEYS)
    return hashlib.blake2b(told, digest_size=9).hexdigest()


def theme(request: Request) -> str:
    chosen = request.cookies.get(THEME, "")
    return chosen if chosen in THEMES else "auto"


LONGEST_FILTER = 60  # of an unknown one that is repeated on its page
OF_A_VISIT = ("live", "seen", "gone")  # what an address says about one visit, not about the page


def here(request: Request) -> str:
    """The page that is shown, also when only a part of it is asked for."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in OF_A_VISIT]
    return request.url.path + (f"?{urlencode(kept)}" if kept else "")


def local(path: str | None, otherwise: str = "/") -> str:
    """A path of this site, or `otherwise`: a link must never lead a person who signs in somewhere else."""
    plain = path is not None and path.isascii() and path.isprintable() and " " not in path and "\\" not in path
    if not plain or not path or not path.startswith("/") or path.startswith("//"):
        return otherwise
    return path


def back(request: Request) -> str:
    """The page of ours that a request came from."""
    came = parts(request.headers.get("Referer", ""))
    if came.netloc != request.headers.get("Host"):
        return "/"
    return local(came.path + (f"?{came.query}" if came.query else ""))


def parts(address: str) -> SplitResult:
    """An address that anybody may have written; of one that makes no sense, all is path."""
    try:
        return urlsplit(address)
    except ValueError:
        return SplitResult("", "", address, "", "")


def done(
    request: Request,
    to: str,
    notice: str = "",
    link: tuple[str, str] | None = None,
    undo: tuple[str, str] | None = None,
) -> Response:
    """After a change: a form goes on to a page; htmx is told in a notice, and a page without a stream looks again."""
    if not is_live(request):
        return RedirectResponse(local(to), 303)
    response = show(request, "_notice.html", notice=notice, link=link, undo=undo, bad=False)
    response.headers["HX-Trigger"] = json.dumps({"changed": {"target": "#results"}})
    return response


async def problem_page(request: Request, told: dict[str, Any]) -> Response:
    """A refusal as a page, or as a notice on the page that is shown. Who is not signed in is sent to do that."""
    _read_by(request)
    if told["status"] == 401:
        return _to_sign_in(request)
    if is_live(request):
        response = show(
            request, "_notice.html", status=told["status"], notice=told["detail"], link=None, undo=None, bad=True
        )
        response.headers.update({"HX-Retarget": "#notice", "HX-Reswap": "innerHTML"})
        if told["code"] == "csrf_token":
            response.headers["HX-Trigger"] = "outdated"
        return response
    step = NEXT_STEPS.get(told["code"]) or NEXT_STEPS.get(told["status"], "Go back and try again.")
    facts = {
        "status": told["status"],
        "problem": told,
        "step": step,
        "back": back(request),
        "kept": await _kept(request, told),
    }
    if told["status"] not in UNASKED:
        try:
            async with _reader_of(request) as unit:
                return await page(unit, request, "problem.html", **facts)
        except (RotaError, *PASSING):
            pass  # a stranger, or the database is away
    return show(request, "problem.html", **facts)


async def _kept(request: Request, told: dict[str, Any]) -> list[tuple[str, str]]:
    """What somebody sent from a page of ours that was loaded before they signed in anew, to be sent once more."""
    if told["code"] != "csrf_token" or "Origin" not in request.headers or not KEPT.match(request.url.path):
        return []
    sent = (await request.form()).multi_items()
    return [(name, value) for name, value in sent if name != CSRF_FIELD and isinstance(value, str)]


@asynccontextmanager
async def _reader_of(request: Request) -> AsyncIterator[Unit]:
    """Who is signed in, in the workspace that the address names; if they are in none of that name, in their first, so
    that nobody learns whether there is one."""
    shared: Web = request.app.state.web
    login = login_of(request)
    if not login:
        raise Unauthenticated("Nobody is signed in.")
    async with shared.db.transaction() as conn:
        user_id = await signing_in.user_by_login(conn, login)
        theirs = [each["slug"] for each in await people.workspaces_of(conn, user_id)]
        named = [each for each in theirs if request.url.path.startswith(f"/w/{each}/")]
        caller = await signing_in.caller_by_login(conn, (named or theirs or [""])[0], login)
        role = await isolation.confine(shared.db, conn, caller.workspace_id)
        yield Unit(conn, caller, role)


def _to_sign_in(request: Request) -> Response:
    if is_live(request):  # the page stays, with all that was typed, and its script says so
        return Response(status_code=401, headers={**HEADERS, "HX-Reswap": "none", "Cache-Control": "no-store"})
    to = here(request) if request.method == "GET" else back(request)
    target = "/sign-in" if to == "/" else f"/sign-in?next={quote(to, safe='')}"
    return RedirectResponse(target, 303, headers={**HEADERS, "Cache-Control": "no-store"})
