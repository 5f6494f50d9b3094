"""Where contents are kept: under the home, or in an object store. A key is a workspace and a hash, never a name."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from rota.errors import CannotStart

PIECE = 262_144


class Shelf(Protocol):
    async def put(self, key: str, file: Path) -> None:
        """Keep the content of a file, which may be moved away. All of it is there afterwards, or nothing new."""
        ...

    def read(self, key: str) -> AsyncIterator[bytes]:
        """The content in pieces. Raises FileNotFoundError before the first if it is not there."""
        ...

    async def delete(self, key: str) -> None:
        """Also what is not there any more."""
        ...


def key_of(workspace_id: UUID, sha256: bytes) -> str:
    """The key of a content."""
    name = sha256.hex()
    return f"{workspace_id}/{name[:2]}/{name}"


def open_shelf(home: Path, url: str) -> Shelf:
    return ObjectShelf(url) if url else FileShelf(home / "artifacts")


class FileShelf:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, key: str, file: Path) -> None:
        await asyncio.to_thread(self._put, self._root / key, file)

    def _put(self, place: Path, file: Path) -> None:
        """Also where it is already: what was damaged there is whole again, and who reads it reads on."""
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("rb") as written:
            os.fsync(written.fileno())
        file.replace(place)
        directory = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    async def read(self, key: str) -> AsyncIterator[bytes]:
        with await asyncio.to_thread((self._root / key).open, "rb") as file:
            while piece := await asyncio.to_thread(file.read, PIECE):
                yield piece

    async def delete(self, key: str) -> None:
        await asyncio.to_thread((self._root / key).unlink, missing_ok=True)


class ObjectShelf:
    """Whatever fsspec reaches. Objects appear whole or not at all, and are not looked for before their row says so."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # noqa: PLC0415 — only who keeps artifacts elsewhere needs it

            self._files: Any
            self._files, self._root = fsspec.url_to_fs(url)
        except (ImportError, ValueError) as failure:
            raise CannotStart(
                f"ROTA_ARTIFACTS_URL cannot be used: {failure}. "
                "It needs fsspec (`pip install 'rota[artifacts]'`) and fsspec's package for this kind of store.",
                code="invalid_setting",
                field="ROTA_ARTIFACTS_URL",
            ) from None

    def _place(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}"

    async def put(self, key: str, file: Path) -> None:
        await asyncio.to_thread(self._put, self._place(key), file)

    def _put(self, place: str, file: Path) -> None:
        with suppress(FileNotFoundError):
            if self._files.info(place)["size"] == file.stat().st_size:
                return
        self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
        with file.open("rb") as content, self._files.open(place, "wb") as kept:
            shutil.copyfileobj(content, kept, PIECE)

    async def read(self, key: str) -> AsyncIterator[bytes]:
        with await asyncio.to_thread(self._files.open, self._place(key), "rb") as file:
            while piece := await asyncio.to_thread(file.read, PIECE):
                yield piece

    async def delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            await asyncio.to_thread(self._files.rm_file, self._place(key))
