"""Credentials: saved by admins, never shown again, and given only to an attempt that is entitled to them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rota.access import signing_in
from rota.access.vault import Vault
from rota.db import credentials as rows
from rota.db.credentials import Found
from rota.db.pool import Connection
from rota.errors import Conflict, Forbidden, Invalid, Lost, NotFound
from rota.model.caller import Caller, Level
from rota.model.credential import checked_name, checked_uses, checked_value
from rota.model.ids import CredentialId, RunId, WorkspaceId, new_id
from rota.model.redaction import Redactor

DEFAULTS: Mapping[str, Any] = {"description": "", "usable_by": "admin"}


def place(workspace_id: WorkspaceId, credential_id: CredentialId) -> str:
    """What a credential's value is bound to: in another row it doesn't open."""
    return f"credential/{workspace_id}/{credential_id}"


async def create(conn: Connection, vault: Vault, caller: Caller, values: Mapping[str, Any]) -> dict[str, Any]:
    caller.must_be(Level.ADMIN, "save a credential")
    credential_id = CredentialId(new_id())
    credential = {
        **DEFAULTS, **values, "id": credential_id, "workspace_id": caller.workspace_id, "created_by": caller.user_id,
        "name": checked_name(values["name"]),
    }  # fmt: skip
    credential["sealed"] = _sealed(vault, caller, credential_id, credential.pop("value"))
    if not await rows.insert(conn, credential):
        raise Conflict("Another credential has this name.", code="name_taken", field="name")
    return await find(conn, caller, str(credential_id))


async def change(conn: Connection, vault: Vault, caller: Caller, ref: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Give it another value, which the next attempt gets, or say anew what it is for. Its name stays."""
    caller.must_be(Level.ADMIN, "change a credential")
    found = await _found(conn, caller, ref, lock=True)
    sealed = _sealed(vault, caller, found["id"], values["value"]) if "value" in values else None
    await rows.update(conn, {**found, **values, "workspace_id": caller.workspace_id, "sealed": sealed})
    return await find(conn, caller, str(found["id"]))


async def delete(conn: Connection, caller: Caller, ref: str) -> None:
    """Forget it for good, once no agent and no automation names it."""
    caller.must_be(Level.ADMIN, "delete a credential")
    found = await _found(conn, caller, ref, lock=True)
    if used := await rows.uses(conn, caller.workspace_id, [found["name"]]):
        who = ", ".join(f"{each['kind']} {each['slug']}" for each in used[:5])
        raise Conflict(
            f"It is used by {who}{' and others' if len(used) > 5 else ''}; take it away from there first.",
            code="credential_in_use",
        )
    await rows.delete(conn, caller.workspace_id, found["id"])


async def find(conn: Connection, caller: Caller, ref: str) -> dict[str, Any]:
    [shown] = await with_uses(conn, caller, [await _found(conn, caller, ref)])
    return shown


async def with_uses(conn: Connection, caller: Caller, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each with the agents and automations that name it."""
    used = await rows.uses(conn, caller.workspace_id, [each["name"] for each in found])
    return [{**each, "used_by": [use for use in used if use["name"] == each["name"]]} for each in found]


async def _found(conn: Connection, caller: Caller, ref: str, *, lock: bool = False) -> dict[str, Any]:
    found = await rows.find(conn, caller.workspace_id, ref, lock=lock)
    if not found:
        raise NotFound("There is no such credential.")
    return found


def _sealed(vault: Vault, caller: Caller, credential_id: CredentialId, value: str) -> bytes:
    return vault.seal(checked_value(value), place(caller.workspace_id, credential_id))


async def check_uses(conn: Connection, caller: Caller, uses: Mapping[str, Any]) -> dict[str, str]:
    """The credentials that the caller wants to give to an agent or automation, each known and open to the caller."""
    checked = checked_uses(uses)
    known = await rows.known(conn, caller.workspace_id, list(checked.values())) if checked else {}
    for variable, name in checked.items():
        if name not in known:
            raise Invalid(
                "There is no such credential. An admin saves it first, with its value.",
                code="unknown_credential",
                field=f"credentials.{variable}",
            )
        if known[name] == "admin" and caller.level != Level.ADMIN:
            raise Forbidden(
                f"Only admins may use the credential {name!r}; an admin may open it to members.",
                code="credential_refused",
                field=f"credentials.{variable}",
                needs=Level.ADMIN,
            )
    return checked


async def resolve(
    conn: Connection, vault: Vault, workspace_id: WorkspaceId, run_id: RunId, attempt: int
) -> dict[str, str]:
    """The variables that this attempt is given, with their values. `Lost` without the lease; refused without a grant
    that holds, or when a credential is missing or not for the grant's holder."""
    found = await rows.resolve(conn, workspace_id, run_id, attempt)
    if not found or not found[0].leased:
        raise Lost("This attempt has ended or lost its lease; it gets no credentials.")
    if not found[0].granted:
        raise Forbidden("The run's grant was revoked or has expired; it gets no credentials.", code="grant_invalid")
    return {str(each.variable): _value(vault, workspace_id, each) for each in found if each.variable}


def _value(vault: Vault, workspace_id: WorkspaceId, each: Found) -> str:
    if each.id is None or each.sealed is None:
        raise Invalid(f"There is no credential {each.name!r} for {each.variable}.", code="unknown_credential")
    if not each.allowed:
        message = f"The credential {each.name!r} for {each.variable} is not open to the one whose grant this run has."
        raise Forbidden(message, code="credential_refused")
    return vault.unseal(bytes(each.sealed), place(workspace_id, each.id))


async def redactor_by_token(conn: Connection, vault: Vault, token: str) -> Redactor:
    """Takes out of what an attempt writes by its token what it was given. A token that is worth nothing has nothing.
    Without a value that it was given, nothing that it writes can be taken."""
    attempt = await signing_in.find_attempt(conn, token)
    if attempt is None:
        return Redactor()
    workspace_id, values = attempt["workspace_id"], set[str]()
    for name, credential_id, sealed in await rows.given(conn, workspace_id, attempt["run_id"]):
        if credential_id is None or sealed is None:
            raise Invalid(f"There is no credential {name!r} any more.", code="unknown_credential")
        values.add(vault.unseal(bytes(sealed), place(workspace_id, credential_id)))
    return Redactor(sorted(values), exactly=[token])  # in one order in every process: held_words counts on it
