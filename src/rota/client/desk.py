"""The desk of an agent at work, over HTTP with the token of its attempt."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rota.client.rota import LONGEST_WAIT, first_page, waiting
from rota.client.wire import AsyncWire, Call, Line, NoDesk, Wire, bearer, opened
from rota.errors import NotFound

GIVEN = ("ROTA_URL", "ROTA_WORKSPACE", "ROTA_RUN_ID", "ROTA_TOKEN")


def given_here(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Where the desk is, as a worker tells its agents."""
    found = os.environ if environment is None else environment
    file = found.get("ROTA_TOKEN_FILE")
    missing = [name for name in GIVEN if not found.get(name) and not (file and name == "ROTA_TOKEN")]
    if missing:
        raise NoDesk(
            f"There is no desk here: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set. "
            "Rota gives them to the agents it runs; outside of a run nobody sits at a desk."
        )
    return {
        "url": found["ROTA_URL"], "workspace": found["ROTA_WORKSPACE"], "run_id": found["ROTA_RUN_ID"],
        **({"token_file": Path(file)} if file else {"token": found["ROTA_TOKEN"]}),
    }  # fmt: skip


class AsyncDesk:
    """Once the attempt is over, every call raises `Unauthenticated` with the code `attempt_over`; with a `token_file`
    only after waiting for a new token in it, for a while."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        token_file: Path | None = None,
        workspace: str,
        run_id: str,
        patience: float = 30.0,
        wire: Wire | None = None,
    ) -> None:
        self._prefix = f"/api/v1/workspaces/{quote(workspace, safe='')}/runs/{quote(run_id, safe='')}/desk"
        wire = wire or AsyncWire(url, bearer(token))
        self.line = Line(wire, patience=patience, token_file=token_file)

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None, **options: Any) -> "AsyncDesk":
        """The desk of the run that this process works for."""
        return cls(**given_here(environment), **options)

    async def __aenter__(self) -> "AsyncDesk":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.line.wire.close()

    async def _post(self, verb: str, body: Any, key: str | None = None) -> Any:
        return await self.line.json(Call("POST", f"{self._prefix}/{verb}", body, key=key))

    async def say(self, text: str) -> None:
        """Say something in the transcript."""
        await self._post("say", {"text": text})

    async def tool(self, name: str, data: Mapping[str, Any] | None = None) -> None:
        """Record the use of a tool."""
        await self._post("tool", {"name": name, "data": dict(data or {})})

    async def usage(self, unit: str, amount: float) -> None:
        """Charge the account with so much more."""
        await self._post("usage", {"unit": unit, "amount": amount})

    async def message(self, body: Any, *, to: str = "all", key: str | None = None) -> dict[str, Any]:
        """Send a message to another role, to the person (`user`), or to all."""
        sent: dict[str, Any] = await self._post("message", {"body": body, "to": to}, key)
        return sent

    async def inbox(self, *, after: int = 0, wait: float = 0.0) -> list[dict[str, Any]]:
        """Messages that were not acknowledged, oldest first; waits so many seconds for the first."""
        return await first_page(self.line, f"{self._prefix}/inbox", {"after": after, "limit": 100}, wait)

    async def ack(self, *ids: int) -> None:
        """Take messages off the inbox for good."""
        await self._post("ack", {"ids": list(ids)})

    async def task(self, *tasks: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Add tasks to the session: each with `role`, `prompt` or `input`, and `key`, `depends_on` as needed."""
        added: list[dict[str, Any]] = (await self._post("task", {"tasks": [dict(each) for each in tasks]}))["items"]
        return added

    async def event(self, name: str, data: Any = None, *, key: str | None = None) -> dict[str, Any]:
        """Post a named event, which fires the triggers that wait for it; `{"runs": […]}` are what it started."""
        fired: dict[str, Any] = await self._post("event", {"event": name, "data": data}, key)
        return fired

    async def artifact(
        self, name: str, content: bytes | str | Path, *, media_type: str | None = None
    ) -> dict[str, Any]:
        """Keep a content; a `Path` is read in pieces."""
        with opened(content) as body:
            headers = {"Content-Type": media_type} if media_type else {}
            call = Call("POST", f"{self._prefix}/artifact", params={"name": name}, headers=headers, content=body)
            added: dict[str, Any] = await self.line.json(call)
        return added

    async def link(self, uri: str, *, name: str | None = None) -> dict[str, Any]:
        """Tell of something outside: a pull request, an e-mail."""
        added: dict[str, Any] = await self._post("artifact", {"uri": uri, **({"name": name} if name else {})})
        return added

    async def remember(
        self, key: str, value: Any, *, ttl: str | None = None, confidence: float | None = None
    ) -> dict[str, Any]:
        """Keep a value for later runs of the automation."""
        body = {"value": value, "ttl": ttl, "confidence": confidence}
        kept: dict[str, Any] = await self.line.json(Call("PUT", f"{self._prefix}/memory/{quote(key, safe='')}", body))
        return kept

    async def recall(self, key: str, default: Any = None) -> Any:
        """The value that is remembered under a key."""
        try:
            return (await self.line.json(Call("GET", f"{self._prefix}/memory/{quote(key, safe='')}")))["value"]
        except NotFound as missing:
            if missing.code != "not_found":
                raise
            return default

    async def memory(self) -> list[dict[str, Any]]:
        """All that the automation remembers, by key."""
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = await self.line.json(Call("GET", f"{self._prefix}/memory", params={"limit": 100, "cursor": cursor}))
            found += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    async def forget(self, key: str) -> None:
        await self.line.json(Call("DELETE", f"{self._prefix}/memory/{quote(key, safe='')}"))

    async def checkpoint(self, data: bytes) -> None:
        """Keep this, in place of what was kept before, for the attempt that goes on from here."""
        await self.line.send(Call("PUT", f"{self._prefix}/checkpoint", content=lambda: data))

    async def last_checkpoint(self) -> bytes | None:
        try:
            return (await self.line.send(Call("GET", f"{self._prefix}/checkpoint"))).content
        except NotFound:
            return None

    async def ask(
        self,
        question: str,
        *,
        options: Sequence[Mapping[str, Any]] | None = None,
        detail: Mapping[str, Any] | None = None,
        key: str | None = None,
        wait: float | None = None,
    ) -> dict[str, Any]:
        """Ask a person and wait for the answer, `{"approved", "option_id", "text", …}`; after `wait` seconds its
        `status` may still be `pending`. Asked again with the same key, it is the same question."""
        body = {"question": question, "options": options, "detail": detail, "key": key}
        asked: dict[str, Any] = await self._post("ask", body)
        until = None if wait is None else time.monotonic() + wait
        while asked["status"] == "pending":
            left = LONGEST_WAIT if until is None else until - time.monotonic()
            if left <= 0:
                break
            path = f"{self._prefix}/ask/{asked['approval_id']}"
            asked = await self.line.json(Call("GET", path, params=waiting(left), within=LONGEST_WAIT + 30.0))
        return asked
