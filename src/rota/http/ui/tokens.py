"""The page of API tokens: what each is for, until when, when it was used last; and the form that makes one."""

from typing import Any, Literal
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.access import tokens
from rota.db import tokens as rows
from rota.errors import Invalid, NotFound
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Unit
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.shapes.people import TokenIn
from rota.http.ui import forms
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.rendering import Next, PageRoute, done
from rota.model.ids import as_uuid
from rota.model.scope import Scope

LISTED = 50
SCOPES = (
    (Scope.READ, "Read", "everything but the audit log"),
    (Scope.RUN, "Run", "agents and automations, chat, answer what they ask, post events"),
    (Scope.WRITE, "Write", "automations, grants and notifications"),
    (Scope.ADMIN, "Admin", "all else: agents, credentials, members, accounts, tokens, the audit log"),
)
LASTING = (("7d", "7 days"), ("30d", "30 days"), ("90d", "90 days"), ("365d", "A year"), ("", "Until it is revoked"))
USUAL = "90d"

Shown = Literal["valid", "all"]

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/settings/tokens", include_in_schema=False)


@router.get("")
async def list_page(unit: InUnit, request: Request, shown: Shown = "valid", cursor: Cursor = None) -> Response:
    """One's own tokens, and for an admin everybody's. Never a secret."""
    return await _list(unit, request, shown=shown, before=read_cursor(cursor))


async def _list(
    unit: Unit, request: Request, form: Form = UNTOUCHED, *, shown: Shown = "valid", before: UUID | None = None,
    **facts: Any,
) -> Response:  # fmt: skip
    caller = unit.caller
    found = await rows.page(
        unit.conn, caller.workspace_id, before=before, limit=LISTED + 1,
        user_id=None if caller.is_admin else caller.user_id, valid_only=shown == "valid",
    )  # fmt: skip
    older, found = len(found) > LISTED, found[:LISTED]
    facts = {
        "made": None, **facts,
        "tokens": found, "shown": shown,
        "scopes": SCOPES, "lasting": LASTING, "usual": USUAL,
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
    }  # fmt: skip
    return await forms.shown(unit, request, "settings/tokens.html", form, **facts)


@router.post("")
async def create(unit: InUnit, request: Request) -> Response:
    """A token of one's own; its secret stands in this answer only."""
    typed: dict[str, Any] = await forms.typed(request, "name", "lasts")
    typed["scopes"] = [each for each in (await request.form()).getlist("scopes") if isinstance(each, str)]
    try:
        async with unit.conn.transaction():
            if not typed["scopes"]:
                raise Invalid("Choose at least one.", field="scopes")
            body = TokenIn.model_validate({**typed, "lasts": typed["lasts"] or None})
            token_id, secret = await tokens.create_for_caller(
                unit.conn, unit.caller, body.name, scopes=body.scopes, lasts=body.lasts
            )
    except forms.WRONG as wrong:
        return await _list(unit, request, forms.rejected(request, wrong, "new", typed))
    unit.about(token_id)
    return await _list(unit, request, made={"name": body.name, "secret": secret})


@router.post("/{token}/delete")
async def delete(unit: InUnit, request: Request, token: str, to: Next = "") -> Response:
    """End it. It stays in the list of all as revoked."""
    token_id = as_uuid(token)
    if token_id is None:
        raise NotFound("There is no such token.")
    await tokens.revoke(unit.conn, unit.caller, token_id)
    return done(request, to or f"/w/{unit.caller.workspace_slug}/settings/tokens", "The token is revoked.")
