"""Coming and going: the way in by a one-time link, the way out, and the light a page is read in."""

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import RedirectResponse, Response

from rota.access import signing_in
from rota.db import people
from rota.errors import Unauthenticated
from rota.http.context import COOKIE, Shared, Web, refuse_foreign_origin
from rota.http.ui.rendering import THEME, THEMES, Next, PageRoute, local, parts, show

A_YEAR = 365 * 86400
LONGEST_LINK = 2000

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
async def home(request: Request, shared: Shared) -> Response:
    """The first workspace of whoever is signed in."""
    async with shared.db.connection() as conn:
        user_id = await signing_in.user_by_login(conn, request.cookies.get(COOKIE, ""))
        workspaces = await people.workspaces_of(conn, user_id)
    if not workspaces:
        return show(request, "homeless.html", status=403)
    return RedirectResponse(f"/w/{workspaces[0]['slug']}/automations", 303)


@router.get("/sign-in")
async def sign_in_page(
    request: Request, shared: Shared, token: str = "", to: Annotated[str, Query(alias="next")] = "/"
) -> Response:
    """By the link that `rota up` prints; without one, a page that says how to get it."""
    if token:
        return await _sign_in(request, shared, token, local(to))
    return show(request, "sign_in.html", next=local(to), used=False)


@router.post("/sign-in")
async def sign_in(request: Request, shared: Shared, link: Annotated[str, Form()] = "", to: Next = "/") -> Response:
    """The same with a link that was pasted."""
    refuse_foreign_origin(request)
    return await _sign_in(request, shared, secret_of(link), local(to))


async def _sign_in(request: Request, shared: Web, secret: str, to: str) -> Response:
    try:
        async with shared.db.transaction() as conn:
            login = await signing_in.sign_in(conn, secret)
    except Unauthenticated:
        # Opening the link a second time in the browser that used it is no mistake.
        if await _is_signed_in(request, shared):
            return RedirectResponse(to, 303)
        return show(request, "sign_in.html", status=401, next=to, used=True)
    response = RedirectResponse(to, 303, headers={"Cache-Control": "no-store"})
    _keep(request, response, COOKIE, login, int(signing_in.LOGIN_LASTS.total_seconds()))
    return response


async def _is_signed_in(request: Request, shared: Web) -> bool:
    async with shared.db.connection() as conn:
        return bool(await people.find_login(conn, signing_in.hashed(request.cookies.get(COOKIE, ""))))


def secret_of(pasted: str) -> str:
    """People paste the whole address, with what stood around it, or only its secret."""
    words = pasted[:LONGEST_LINK].split()
    address = next((word for word in words if "token=" in word), words[0] if words else "")
    return parse_qs(parts(address).query).get("token", [address])[0]


@router.post("/sign-out")
async def sign_out(request: Request, shared: Shared) -> Response:
    refuse_foreign_origin(request)
    if secret := request.cookies.get(COOKIE):
        async with shared.db.transaction() as conn:
            await people.end_login(conn, signing_in.hashed(secret))
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax", secure=_is_safe(request))
    return response


@router.post("/theme")
async def choose_theme(request: Request, theme: Annotated[str, Form()] = "auto", to: Next = "/") -> Response:
    refuse_foreign_origin(request)
    response = RedirectResponse(local(to), 303)
    _keep(request, response, THEME, theme if theme in THEMES else "auto", A_YEAR)
    return response


def _keep(request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    response.set_cookie(name, value, max_age=seconds, path="/", httponly=True, samesite="lax", secure=_is_safe(request))


def _is_safe(request: Request) -> bool:
    return request.url.scheme == "https"
