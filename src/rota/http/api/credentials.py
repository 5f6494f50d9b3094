"""Credentials: secrets for agents. Values come in and never go out."""

from typing import Any

from fastapi import APIRouter
from pydantic import SecretStr

from rota.access import credentials
from rota.db import credentials as rows
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.context import InUnit, Shared
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.credentials import CredentialIn, CredentialOut, CredentialPatch
from rota.http.shapes.pages import Page, page_of, read_cursor

router = APIRouter(prefix=API + "/credentials", tags=["credentials"], route_class=Repeatable)


@router.get("")
async def list_credentials(unit: InUnit, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[CredentialOut]:
    """Credentials, newest first, each with the agents and automations that name it. Never a value."""
    found = await rows.page(unit.conn, unit.caller.workspace_id, before=read_cursor(cursor), limit=limit + 1)
    return page_of(await credentials.with_uses(unit.conn, unit.caller, found), limit, CredentialOut)


@router.post("", status_code=201)
async def create_credential(unit: InUnit, shared: Shared, body: CredentialIn) -> CredentialOut:
    """Save a secret under a name. Its value is sealed and never shown again; admins only."""
    values = {name: getattr(body, name) for name in type(body).model_fields}
    saved = await credentials.create(unit.conn, shared.vault, unit.caller, _open(values))
    unit.about(saved["id"])
    return CredentialOut.model_validate(saved)


@router.get("/{credential}")
async def get_credential(unit: InUnit, credential: str) -> CredentialOut:
    """One credential, by id or name. Never its value."""
    return CredentialOut.model_validate(await credentials.find(unit.conn, unit.caller, credential))


@router.patch("/{credential}")
async def change_credential(unit: InUnit, shared: Shared, credential: str, body: CredentialPatch) -> CredentialOut:
    """Give it another value, which the next attempt gets, or say anew who may use it. Its name stays; admins only."""
    values = _open(body.given())
    return CredentialOut.model_validate(
        await credentials.change(unit.conn, shared.vault, unit.caller, credential, values)
    )


@router.delete("/{credential}", status_code=204)
async def delete_credential(unit: InUnit, credential: str) -> None:
    """Forget a credential for good. Answers 409 while an agent or automation names it; admins only."""
    await credentials.delete(unit.conn, unit.caller, credential)


def _open(values: dict[str, Any]) -> dict[str, Any]:
    """Kept from everything that prints a request, until it is sealed."""
    value = values.get("value")
    return {**values, "value": value.get_secret_value()} if isinstance(value, SecretStr) else values
