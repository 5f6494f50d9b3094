"""What every route that changes something does with an `Idempotency-Key`: the write is done once, and a repeat has the
answer of the first."""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.responses import Response

from rota.access.vault import Vault
from rota.db import write_keys
from rota.db.pool import Connection
from rota.http.auditing import CHANGING
from rota.http.routes import WRITING
from rota.model.caller import Caller
from rota.sessions import repeats

KEY = "Idempotency-Key"
DESCRIBED = {
    "name": KEY,
    "in": "header",
    "required": False,
    "schema": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": KEY},
}


class Repeated(Exception):
    """Leads past the route, to the answer of the first."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(status)
        self.answer = Response(body, status, media_type="application/json" if body else None)


@dataclass(slots=True)
class Taken:
    """The key of a request, taken in the transaction of its write: who comes with it too waits for the end of that."""

    _conn: Connection
    _where: write_keys.Key
    _secrets: list[str] = field(default_factory=list)
    _kept: bool = False

    def hide(self, secret: str) -> None:
        self._secrets.append(secret)

    async def keep(self, answer: Response) -> None:
        """With the write, or not at all. A secret is shown to the first only: in what is kept, null stands for it."""
        if self._kept:
            return
        body = bytes(answer.body)
        for secret in self._secrets:
            body = body.replace(orjson.dumps(secret), b"null")
        await write_keys.finish(self._conn, self._where, {"status": answer.status_code, "body": body.decode()})
        self._kept = True


class Repeatable(APIRoute):
    """Keeps what it answers to a change under the request's key, unless the route asks for the key and sees to repeats
    itself."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.keeps_answers = bool((self.methods or set()) & CHANGING) and KEY not in _headers(self.dependant)
        if self.keeps_answers:
            self.openapi_extra = {**(self.openapi_extra or {}), "parameters": [DESCRIBED]}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            request.state.taken = None
            try:
                answered = await handle(request)
            except Repeated as repeated:
                return repeated.answer
            if taken := request.state.taken:
                await taken.keep(answered)  # before FastAPI leaves the dependencies, and so before the commit
            return answered

        return answer


async def take(request: Request, conn: Connection, caller: Caller, vault: Vault) -> Taken | None:
    """For a change with a key, unless its route sees to repeats itself. `Repeated` if it was done already."""
    key = request.headers.get(KEY)
    if key is None or not getattr(request.scope["route"], "keeps_answers", False):
        return None
    repeats.check_key(key)
    where = (caller.workspace_id, caller.run_id or caller.user_id, key)
    marks = vault.marks(await _asked(request))
    if await write_keys.begin(conn, where, marks[0]):
        request.state.taken = taken = Taken(conn, where)
        return taken
    first, answer = (await write_keys.earlier(conn, [where]))[where]
    if first not in marks:
        raise repeats.reused()
    raise Repeated(**answer)


async def _asked(request: Request) -> bytes:
    body = await request.body() if request.method in WRITING else b""  # as others, which nobody reads
    given = orjson.loads(body) if body else None
    asked = [request.method, request.url.path, request.url.query, given]
    return orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)


def _headers(dependant: Dependant) -> Iterator[str]:
    yield from (each.alias for each in dependant.header_params)
    for inner in dependant.dependencies:
        yield from _headers(inner)
