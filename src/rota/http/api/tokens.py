"""API tokens: what scripts sign in with."""

from uuid import UUID

from fastapi import APIRouter

from rota.access import tokens
from rota.db import tokens as rows
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.api.repeats import Once
from rota.http.context import InUnit
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.pages import Page, page_of, read_cursor
from rota.http.shapes.people import NewTokenOut, TokenIn, TokenOut
from rota.model.ids import TokenId

router = APIRouter(prefix=API + "/tokens", tags=["tokens"], route_class=Repeatable)


@router.get("")
async def list_tokens(unit: InUnit, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[TokenOut]:
    """Your tokens, newest first, never a secret; admins see everybody's."""
    found = await rows.page(
        unit.conn, unit.caller.workspace_id, before=read_cursor(cursor), limit=limit + 1,
        user_id=None if unit.caller.is_admin else unit.caller.user_id,
    )  # fmt: skip
    return page_of(found, limit, TokenOut)


@router.post("", status_code=201)
async def create_token(unit: InUnit, once: Once, body: TokenIn) -> NewTokenOut:
    """A token of your own; its `secret` is shown this once. It can do what its scopes say and your level allows. One
    that is made with a token has at most that one's scopes, and lasts no longer."""
    conn, caller = unit.conn, unit.caller
    secret = ""

    async def make() -> TokenId:
        nonlocal secret
        token_id, secret = await tokens.create_for_caller(conn, caller, body.name, scopes=body.scopes, lasts=body.lasts)
        return token_id

    made = await rows.find(conn, caller.workspace_id, await once.shown_once(body, make))
    return NewTokenOut.model_validate({**(made or {}), "secret": secret})


@router.delete("/{token_id}", status_code=204)
async def revoke_token(unit: InUnit, token_id: UUID) -> None:
    """End a token of yours, or anybody's as an admin. It stays in the list as revoked; a repeat changes nothing."""
    await tokens.revoke(unit.conn, unit.caller, token_id)
