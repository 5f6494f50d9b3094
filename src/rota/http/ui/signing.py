"""Coming and going: the way in by a one-time link, the way out, and the light a page is read in."""

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import RedirectResponse, Response

from rota.access import signing_in
from rota.access.oidc import ON_THE_WAY, Provider
from rota.access.signing_in import LONGEST_EMAIL, Visit
from rota.db import people
from rota.errors import Forbidden, NotFound, RotaError, TooMany, Unauthenticated
from rota.http.context import Shared, Web, refuse_foreign_origin, refuse_forged
from rota.http.cookies import LOGIN, OIDC, cookie_name, is_https, login_of
from rota.http.errors import headers_of, of_error
from rota.http.shapes.fields import LONGEST_NAME
from rota.http.ui.rendering import THEME, THEMES, Next, PageRoute, local, parts, show

A_YEAR = 365 * 86400
LONGEST_LINK = 2000

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
async def home(request: Request, shared: Shared) -> Response:
    """The first workspace of whoever is signed in."""
    async with shared.db.connection() as conn:
        user_id = await signing_in.user_by_login(conn, login_of(request))
        workspaces = await people.workspaces_of(conn, user_id)
    if not workspaces:
        return show(request, "homeless.html", status=403)
    return RedirectResponse(f"/w/{workspaces[0]['slug']}/automations", 303)


@router.get("/sign-in")
async def sign_in_page(request: Request, token: str = "", to: Annotated[str, Query(alias="next")] = "/") -> Response:
    """The ways to sign in. With the token of a sign-in link, a button that uses it: programs open links too, to show a
    preview of them or to look for malware, and must not use them up."""
    if token:
        return show(request, "sign_in_link.html", next=local(to), link=token[:LONGEST_LINK])
    return _page(request, local(to))


def _page(
    request: Request, to: str, *, status: int = 200, used: bool = False, told: str = "", email: str = ""
) -> Response:
    shared: Web = request.app.state.web
    offered = bool(shared.settings.oidc_issuer)
    return show(request, "sign_in.html", status=status, next=to, used=used, told=told, email=email, oidc=offered)


def _refused(request: Request, refused: RotaError, to: str, email: str = "") -> Response:
    told = of_error(refused)
    shown = _page(request, to, status=told["status"], told=refused.message, email=email)
    shown.headers.update(headers_of(told))
    return shown


@router.post("/sign-in")
async def sign_in(request: Request, shared: Shared, link: Annotated[str, Form()] = "", to: Next = "/") -> Response:
    """With a link that was pasted, or the token of one that was opened."""
    refuse_foreign_origin(request)
    return await _sign_in(request, shared, secret_of(link), local(to))


@router.post("/sign-in/password")
async def sign_in_by_password(
    request: Request,
    shared: Shared,
    email: Annotated[str, Form()] = "",
    password: Annotated[str, Form()] = "",
    to: Next = "/",
) -> Response:
    """With an e-mail address and a password. What was wrong, nobody is told; who tries too often has to wait."""
    refuse_foreign_origin(request)
    try:
        login = await signing_in.sign_in_by_password(shared.db, email, password, visit_of(request, shared))
    except (Unauthenticated, TooMany) as refused:
        return _refused(request, refused, local(to), email[:LONGEST_EMAIL])
    return let_in(request, shared, login, local(to))


@router.get("/sign-in/oidc")
async def sign_in_elsewhere(
    request: Request, shared: Shared, to: Annotated[str, Query(alias="next")] = "/"
) -> Response:
    """To the identity provider, and from there to the next route."""
    try:
        sent = await _provider(shared).send(
            shared.db, _back_here(request, shared), local(to), visit_of(request, shared)
        )
    except (Unauthenticated, TooMany) as refused:  # the first of the provider, not of whoever signs in
        return _refused(request, refused, local(to))
    response = RedirectResponse(sent.url, 303, headers={"Cache-Control": "no-store"})
    _keep(request, response, cookie_name(request, OIDC), sent.browser, int(ON_THE_WAY.total_seconds()))
    return response


@router.get("/sign-in/oidc/callback")
async def come_back(request: Request, shared: Shared, code: str = "", state: str = "") -> Response:
    """With a code that the identity provider trades for who somebody is."""
    browser = request.cookies.get(cookie_name(request, OIDC), "")
    back_here, visit = _back_here(request, shared), visit_of(request, shared)
    try:
        login, to = await _provider(shared).receive(shared.db, back_here, code, state, browser, visit)
    except (Unauthenticated, Forbidden) as refused:
        return _refused(request, refused, "/")
    return let_in(request, shared, login, local(to))


def _provider(shared: Web) -> Provider:
    settings = shared.settings
    if not settings.oidc_issuer:
        raise NotFound("This server knows no identity provider.")
    return Provider(
        settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret, settings.oidc_domains,
        settings.oidc_level, settings.workspace,
    )  # fmt: skip


def _back_here(request: Request, shared: Web) -> str:
    return f"{shared.url or str(request.base_url).rstrip('/')}/sign-in/oidc/callback"


def visit_of(request: Request, shared: Web) -> Visit:
    settings = shared.settings
    return Visit(
        settings.login_days,
        settings.login_idle_days,
        request.client.host if request.client else None,
        request.headers.get("User-Agent", "")[:LONGEST_NAME].replace("\x00", ""),
    )


def let_in(request: Request, shared: Web, login: str, to: str) -> Response:
    response = RedirectResponse(to, 303, headers={"Cache-Control": "no-store"})
    _keep(request, response, cookie_name(request, LOGIN), login, int(shared.settings.login_days.total_seconds()))
    return response


async def _sign_in(request: Request, shared: Web, secret: str, to: str) -> Response:
    try:
        async with shared.db.transaction() as conn:
            login = await signing_in.sign_in(conn, secret, visit_of(request, shared))
    except Unauthenticated:
        # Opening the link a second time in the browser that used it is no mistake.
        if await _is_signed_in(request, shared):
            return RedirectResponse(to, 303)
        return _page(request, to, status=401, used=True)
    return let_in(request, shared, login, to)


async def _is_signed_in(request: Request, shared: Web) -> bool:
    async with shared.db.connection() as conn:
        return bool(await people.find_login(conn, signing_in.hashed(login_of(request))))


def secret_of(pasted: str) -> str:
    """People paste the whole address, with what stood around it, or only its secret."""
    words = pasted[:LONGEST_LINK].split()
    address = next((word for word in words if "token=" in word), words[0] if words else "")
    return parse_qs(parts(address).query).get("token", [address])[0]


@router.post("/sign-out")
async def sign_out(request: Request, shared: Shared) -> Response:
    refuse_foreign_origin(request)
    if secret := login_of(request):
        await refuse_forged(request, secret)
        async with shared.db.transaction() as conn:
            await people.end_login(conn, signing_in.hashed(secret))
    response = RedirectResponse("/sign-in", 303)
    name = cookie_name(request, LOGIN)
    response.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=is_https(request))
    return response


@router.post("/theme")
async def choose_theme(request: Request, theme: Annotated[str, Form()] = "auto", to: Next = "/") -> Response:
    refuse_foreign_origin(request)
    response = RedirectResponse(local(to), 303)
    _keep(request, response, THEME, theme if theme in THEMES else "auto", A_YEAR)
    return response


def _keep(request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    response.set_cookie(name, value, max_age=seconds, path="/", httponly=True, samesite="lax", secure=is_https(request))
