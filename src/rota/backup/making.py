"""`rota backup`: one snapshot of the database first, then the contents that its artifacts refer to."""

import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from rota import __version__
from rota.access import key_ring
from rota.backup.archive import ARTIFACTS, KEYS, TABLES, Lines, Manifest, Writer
from rota.db import dump
from rota.db.dump import Connection, Schema, Table
from rota.db.migrate import newest
from rota.errors import Broken, CannotStart, Invalid
from rota.sessions.shelves import Shelf, key_of, open_shelf
from rota.settings import Settings

Advance = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Advance]]  # a step, and how much it is in all


async def back_up(settings: Settings, owner_url: str, file: Path, *, with_keys: bool, progress: Progress) -> Manifest:
    """Write the file, complete or not at all. Rota may run meanwhile."""
    with new_file(file) as out, Writer.to(out) as writer:
        async with dump.connected(owner_url) as conn, dump.snapshot(conn) as schema:
            _refuse_foreign(schema)
            tables = await dump.tables(conn)
            lines = await _write_tables(writer, conn, tables, progress)
            contents = await dump.contents(conn)
            used_keys = await dump.sealing_keys(conn, tables)
        keys = _write_keys(writer, settings, used_keys) if with_keys else None
        shelf = open_shelf(settings.home, settings.artifacts_url)
        missing = await _write_contents(writer, shelf, contents, progress)
        whole = [size for workspace_id, sha256, size in contents if _name(workspace_id, sha256) not in set(missing)]
        manifest = Manifest(
            __version__, datetime.now(UTC).isoformat(timespec="seconds"), schema, lines,
            artifacts=len(whole), artifact_bytes=sum(whole), missing=missing, keys=keys,
        )  # fmt: skip
        writer.end(manifest)
    return manifest


@contextmanager
def new_file(file: Path) -> Iterator[BinaryIO]:
    """A new file for its owner only, which appears once it is complete. Nothing is written over."""
    _refuse_to_replace(file)
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        _refuse_to_replace(file)
        part.rename(file)
    except OSError as failure:
        raise Invalid(f"{file} cannot be written: {failure.strerror or failure}.", field="FILE") from None
    finally:
        with suppress(OSError):
            part.unlink()


def _refuse_to_replace(file: Path) -> None:
    if file.exists():
        raise Invalid(f"{file} is there already, and is not written over. Name another file.", field="FILE")


def _refuse_foreign(schema: Schema) -> None:
    if not schema:
        raise CannotStart("The database has no tables of Rota: there is nothing to back up.", code="no_database")
    if (present := schema[-1][0]) > newest():
        raise CannotStart(
            f"The database is at schema {present}, this Rota knows {newest()}. Back up with the Rota that uses it.",
            code="schema_newer",
        )


async def _write_tables(writer: Writer, conn: Connection, tables: list[Table], progress: Progress) -> dict[str, Lines]:
    written = {}
    with progress("Tables", sum(each.estimated_rows for each in tables)) as advance:
        for table in tables:
            with writer.member(TABLES + table.name) as member:
                told = 0
                async for piece in dump.copy_out(conn, table):
                    member.write(piece)
                    if member.lines > told:
                        advance(member.lines - told)
                        told = member.lines
            advance(member.lines - told)
            written[table.name] = Lines(table.columns, member.lines, member.bytes, member.sha256)
    return written


def _write_keys(writer: Writer, settings: Settings, used: set[str]) -> str:
    """The ring as it is now: a key that was made after the snapshot does no harm, and old ones are still there."""
    if not settings.vault_keys and not (settings.home / key_ring.FILE).exists():
        raise CannotStart(
            f"There is no {key_ring.FILE} in {settings.home}. Name the home that has it, set ROTA_VAULT_KEYS, or back "
            "up without --with-keys.",
            code="vault_key_missing",
            field="ROTA_VAULT_KEYS",
        )
    ring = key_ring.open_ring(settings.home, settings.vault_keys, may_make=False).keys
    if lost := sorted(used - ring.keys()):
        raise CannotStart(
            f"Secrets are sealed with the key {lost[0]!r}, which is not in the vault's ring. Put it back from an "
            "older backup, or back up without --with-keys.",
            code="vault_key_missing",
            field="ROTA_VAULT_KEYS",
        )
    with writer.member(KEYS) as member:
        member.write(key_ring.as_text(ring).encode())
    return member.sha256


async def _write_contents(
    writer: Writer, shelf: Shelf, contents: list[tuple[Any, bytes, int]], progress: Progress
) -> list[str]:
    """Names of those that were not there, or were damaged: their artifacts are of no use in the running Rota either."""
    missing = []
    with progress("Artifacts", sum(size for _, _, size in contents)) as advance:
        for workspace_id, sha256, size in contents:
            if not await _write_content(writer, shelf, key_of(workspace_id, sha256), sha256, size):
                missing.append(_name(workspace_id, sha256))
            advance(size)
    return missing


async def _write_content(writer: Writer, shelf: Shelf, key: str, sha256: bytes, size: int) -> bool:
    pieces = _read(shelf, key)
    try:
        first = await anext(pieces, b"")
    except FileNotFoundError:
        return False
    with writer.member(ARTIFACTS + key) as member:
        hashed = hashlib.sha256(first)
        member.write(first)
        async for piece in pieces:
            hashed.update(piece)
            member.write(piece)
    return hashed.digest() == sha256 and member.bytes == size


async def _read(shelf: Shelf, key: str) -> AsyncIterator[bytes]:
    """The content. A store that cannot be read is not a file that cannot be written."""
    try:
        async for piece in shelf.read(key):
            yield piece
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise Broken(
            f"The content {key} of an artifact cannot be read: {failure.strerror or failure}.",
            code="content_unreadable",
        ) from None


def _name(workspace_id: object, sha256: bytes) -> str:
    return ARTIFACTS + key_of(workspace_id, sha256)  # type: ignore[arg-type]
