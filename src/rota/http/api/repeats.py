"""`Idempotency-Key`: what a request with it makes is made once, and a repeat is answered with the same thing."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Depends, Header, Request
from pydantic import BaseModel

from rota.errors import Conflict
from rota.http.context import InUnit, Unit
from rota.sessions import repeats

IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]

Made = TypeVar("Made", bound=UUID)


@dataclass(frozen=True, slots=True)
class Making:
    _unit: Unit
    _key: str | None
    _path: str

    async def __call__(self, body: BaseModel | None, make: Callable[[], Awaitable[Made]]) -> Made:
        """The id of what is made, or of what was made before by the same person with the same key and request."""
        made, _ = await self._make(body, make)
        return made

    async def shown_once(self, body: BaseModel | None, make: Callable[[], Awaitable[Made]]) -> Made:
        """For what is answered with a secret: nobody knows it any more, so a repeat is refused."""
        made, now = await self._make(body, make)
        if not now:
            told = (
                "This was done by an earlier request with the same Idempotency-Key, whose answer alone held the secret."
            )
            raise Conflict(
                f"{told} Ask again with another key.", code="shown_once", field="Idempotency-Key", id=str(made)
            )
        return made

    async def _make(self, body: BaseModel | None, make: Callable[[], Awaitable[Made]]) -> tuple[Made, bool]:
        unit, asked = self._unit, body and dict(body)  # told as text, in which a secret is hidden
        request = {"by": unit.caller.user_id, "path": self._path, "body": asked}
        made, now = await repeats.made_once(unit.conn, unit.caller.workspace_id, self._key, request, make)
        unit.about(made)
        return made, now


async def _making(request: Request, unit: InUnit, idempotency_key: IdempotencyKey = None) -> Making:
    return Making(unit, idempotency_key, request.url.path)


Once = Annotated[Making, Depends(_making)]
