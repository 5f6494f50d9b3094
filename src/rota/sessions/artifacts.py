"""Artifacts: received in pieces, kept by their hash, told in the session's log. No transaction is open meanwhile."""

import asyncio
import hashlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from rota.db import artifacts, events, isolation
from rota.db.events import NewEvent
from rota.db.pool import Connection, Database
from rota.errors import Broken, Busy, Invalid, Lost, NotFound, TooLarge
from rota.model.artifact import Named
from rota.model.ids import RunId, SessionId, WorkspaceId, new_id
from rota.sessions.shelves import Shelf, key_of, open_shelf

log = logging.getLogger(__name__)

UNTOUCHED = timedelta(days=1)  # longer than any upload takes from its claim to its row
BATCH = 500
LARGEST = 104_857_600


@dataclass(frozen=True, slots=True)
class Draft:
    """Content that has arrived whole."""

    file: Path
    sha256: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Author:
    """Whose artifact it is: a session's, and of an attempt if an agent at work leaves it."""

    workspace_id: WorkspaceId
    session_id: SessionId
    run_id: RunId | None = None
    attempt: int | None = None


class Depot:
    """Takes contents in, gives them out, and clears away what nobody needs."""

    def __init__(self, db: Database, home: Path, url: str, *, largest: int) -> None:
        self._db = db
        self._incoming = home / "artifacts" / "incoming"
        self._shelf: Shelf = open_shelf(home, url)
        self._largest = largest

    @asynccontextmanager
    async def receive(
        self, pieces: AsyncIterator[bytes], *, size: int = 0, sha256: str | None = None
    ) -> AsyncIterator[Draft]:
        """The content as a file of its own, which is gone afterwards unless it was kept. `size` is its size as far as
        it is known beforehand."""
        self._refuse_larger(size)
        file = self._incoming / secrets.token_hex(16)
        try:
            with _told_if_unkept():
                await asyncio.to_thread(self._make_directories)
                draft = await self._write(file, pieces)
            if sha256 is not None and sha256.lower() != draft.sha256.hex():
                raise Invalid(
                    f"The content has the hash {draft.sha256.hex()}, not the one given; it was damaged on its way.",
                    code="wrong_hash",
                    field="sha256",
                )
            yield draft
        finally:
            with suppress(OSError):  # what stays here is cleared away later
                await asyncio.to_thread(file.unlink)

    def _make_directories(self) -> None:
        for each in (self._incoming.parent, self._incoming):  # `parents` would make the first one with the usual mode
            each.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def _write(self, file: Path, pieces: AsyncIterator[bytes]) -> Draft:
        hashed, size = hashlib.sha256(), 0
        with await asyncio.to_thread(open, file, "xb", opener=partial(os.open, mode=0o600)) as out:
            async for piece in pieces:
                size += len(piece)
                self._refuse_larger(size)
                hashed.update(piece)
                await asyncio.to_thread(out.write, piece)
        return Draft(file, hashed.digest(), size)

    def _refuse_larger(self, size: int) -> None:
        if size > self._largest:
            raise TooLarge(
                f"An artifact has at most {self._largest:,} bytes (ROTA_MAX_ARTIFACT_BYTES).",
                code="artifact_too_large",
                limit=self._largest,
            )

    async def keep(self, workspace_id: WorkspaceId, draft: Draft) -> None:
        """Put the content in its place. From here on an artifact may refer to it."""
        async with isolation.in_workspace(self._db, workspace_id) as conn:
            if not await artifacts.claim(conn, workspace_id, draft.sha256, draft.size):
                raise Busy("The same content is being cleared away at this moment; try again.")
        with _told_if_unkept():
            await self._shelf.put(key_of(workspace_id, draft.sha256), draft.file)

    async def content(self, workspace_id: WorkspaceId, artifact: dict[str, Any]) -> AsyncIterator[bytes]:
        """The content in pieces, checked against its hash: of damaged content the end is missing."""
        if artifact["sha256"] is None:
            raise NotFound(
                f"This artifact is not kept here but at {artifact['uri']}.", code="not_kept_here", uri=artifact["uri"]
            )
        pieces = self._verified(key_of(workspace_id, bytes.fromhex(artifact["sha256"])), artifact)
        try:
            first = await anext(pieces, b"")
        except FileNotFoundError:
            log.warning("artifact.missing", extra={"artifact_id": artifact["id"]})
            raise NotFound("The content of this artifact is gone.", code="content_missing") from None
        return _chained(first, pieces)

    async def _verified(self, key: str, artifact: dict[str, Any]) -> AsyncIterator[bytes]:
        hashed, held = hashlib.sha256(), b""
        async for piece in self._shelf.read(key):
            hashed.update(piece)
            if held:
                yield held
            held = piece
        if hashed.hexdigest() != artifact["sha256"]:
            log.error("artifact.damaged", extra={"artifact_id": artifact["id"]})
            raise OSError("the content is not what its hash says")
        if held:
            yield held

    async def clear(self) -> int:
        """Delete contents that no artifact refers to, and what broken uploads left; how many contents went."""
        await asyncio.to_thread(self._clear_incoming)
        async with self._db.transaction() as conn:
            doomed = await artifacts.doom(conn, untouched=UNTOUCHED, limit=BATCH)
        for workspace_id, sha256 in doomed:
            await self._shelf.delete(key_of(workspace_id, sha256))
        if doomed:
            async with self._db.transaction() as conn:
                await artifacts.forget(conn, doomed)
        return len(doomed)

    def _clear_incoming(self) -> None:
        oldest = time.time() - UNTOUCHED.total_seconds()
        for entry in os.scandir(self._incoming) if self._incoming.exists() else ():
            if entry.stat(follow_symlinks=False).st_mtime < oldest:
                Path(entry).unlink(missing_ok=True)


async def add(
    conn: Connection, author: Author, named: Named, draft: Draft, *, artifact_id: UUID | None = None
) -> dict[str, Any]:
    """Record an artifact whose content is kept, and tell it in the session's log."""
    return await _add(conn, author, named, id=artifact_id or new_id(), uri=None, sha256=draft.sha256, size=draft.size)


async def link(
    conn: Connection, author: Author, named: Named, uri: str, *, artifact_id: UUID | None = None
) -> dict[str, Any]:
    """Record something outside: a pull request, an e-mail."""
    return await _add(conn, author, named, id=artifact_id or new_id(), uri=uri, sha256=None, size=None)


async def _add(conn: Connection, author: Author, named: Named, **content: Any) -> dict[str, Any]:
    run, attempt = author.run_id, author.attempt
    if run and attempt and not await events.hold(conn, [(author.workspace_id, run, attempt)]):
        raise Lost("This attempt belongs to another worker now.")
    added = await artifacts.add(
        conn, workspace_id=author.workspace_id, session_id=author.session_id, run_id=run, attempt=attempt,
        name=named.name, media_type=named.media_type, **content,
    )  # fmt: skip
    told = {name: added[name] for name in ("name", "media_type", "uri", "sha256", "size") if added[name] is not None}
    data = {"artifact_id": added["id"], **told}
    await events.append(conn, [NewEvent(author.workspace_id, author.session_id, "artifact", data, run, attempt)])
    return added


async def find(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, artifact_id: UUID) -> dict[str, Any]:
    found = await artifacts.find(conn, workspace_id, session_id, artifact_id)
    if not found:
        raise NotFound("There is no such artifact.")
    return found


@contextmanager
def _told_if_unkept() -> Iterator[None]:
    """Around files, not around the database, which would come back by itself."""
    try:
        yield
    except OSError as failure:
        log.warning("artifact.unkept", extra={"error": f"{type(failure).__name__}: {failure}"})
        why = f" ({failure.strerror})" if failure.strerror else ""
        told = f"The content cannot be kept where artifacts are{why}; the log has the details."
        raise Broken(told, code="content_unkept") from failure


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
