"""`rota restore`: contents of artifacts first, then the database in one transaction: it stays empty or is complete."""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg

from rota import home as home_directory
from rota.access import key_ring
from rota.access.key_ring import Keys
from rota.backup.archive import Manifest, Reader, refuse
from rota.backup.making import Advance, Progress
from rota.db import dump
from rota.db.dump import Connection, Table
from rota.db.migrate import complete, create, migrations
from rota.db.pool import shown
from rota.errors import CannotStart, Invalid
from rota.failpoints import reach
from rota.sessions.shelves import Shelf, key_of, open_shelf
from rota.settings import Settings


def examine(settings: Settings, reader: Reader) -> Keys | None:
    """Refuse what cannot be restored here, before anything is changed. The keys in the file, if it has any."""
    _refuse_other_schema(reader.manifest)
    _refuse_without_room(settings.home, reader.unpacked_bytes)
    text = reader.keys()
    if text is None:
        return None
    keys = key_ring.from_text(text.strip().replace("\n", ","), "vault.keys in the backup")
    key_ring.refuse_other(settings.home, keys)
    return keys


async def restore(
    settings: Settings, owner_url: str, reader: Reader, keys: Keys | None, *, progress: Progress
) -> set[str]:
    """Fill an empty database and the place of artifacts. Ids of the vault's keys that the restored secrets need."""
    shelf = open_shelf(settings.home, settings.artifacts_url)
    put: list[str] = []
    wrote_keys = False
    try:
        async with dump.connected(owner_url) as conn:
            await dump.refuse_if_not_empty(conn, shown(owner_url))
            await _put_contents(settings.home, shelf, reader, put, progress)
            async with conn.transaction():
                used = await _fill(conn, shown(owner_url), reader, progress)
                wrote_keys = keys is not None and key_ring.put_back(settings.home, keys)
                reach("restore.before_commit")
            await dump.analyze(conn)
    except BaseException:
        if wrote_keys:
            (settings.home / key_ring.FILE).unlink(missing_ok=True)
        for key in put:
            await shelf.delete(key)
        raise
    return used


async def _fill(conn: Connection, where: str, reader: Reader, progress: Progress) -> set[str]:
    """The schema that the backup has, its rows, then the migrations since."""
    manifest = reader.manifest
    await dump.refuse_if_not_empty(conn, where)
    await create(conn, manifest.schema)
    tables = await dump.tables(conn)
    _refuse_other_columns(manifest, tables)
    with progress("Tables", manifest.rows) as advance:
        for table in tables:
            await _copy(conn, reader, Table(table.name, manifest.tables[table.name].columns), advance)
    await _refuse_without_contents(conn, reader)
    used = await dump.sealing_keys(conn, tables)
    await complete(conn)
    return used


async def _copy(conn: Connection, reader: Reader, table: Table, advance: Advance) -> None:
    def pieces() -> Iterator[bytes]:
        for piece in reader.lines(table.name):
            yield piece
            advance(piece.count(b"\n"))

    try:
        written = await dump.copy_in(conn, table, pieces())
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as failure:
        raise refuse(f"The database refuses the table {table.name}: {str(failure).splitlines()[0]}.") from failure
    if written != (expected := reader.manifest.tables[table.name].rows):
        raise refuse(f"The table {table.name} has {written} rows, and its manifest says {expected}.")


async def _put_contents(home: Path, shelf: Shelf, reader: Reader, put: list[str], progress: Progress) -> None:
    incoming = home / "artifacts" / "incoming"
    for each in (home, incoming.parent, incoming):
        home_directory.create(each)
    with progress("Artifacts", reader.manifest.artifact_bytes) as advance:
        for workspace_id, sha256, pieces in reader.contents():
            file = incoming / secrets.token_hex(16)
            try:
                with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                    for piece in pieces:
                        out.write(piece)
                        advance(len(piece))
                key = key_of(workspace_id, sha256)
                if not await _is_there(shelf, key):  # perhaps in a store that another Rota uses too
                    put.append(key)
                await shelf.put(key, file)
            finally:
                file.unlink(missing_ok=True)


async def _is_there(shelf: Shelf, key: str) -> bool:
    try:
        async for _ in shelf.read(key):
            break
    except FileNotFoundError:
        return False
    return True


async def _refuse_without_contents(conn: Connection, reader: Reader) -> None:
    manifest = reader.manifest
    absent = {name.removeprefix("artifacts/") for name in manifest.missing}
    there = {key_of(workspace_id, sha256) for workspace_id, sha256, _ in reader.contents()}
    needed = {key_of(workspace_id, sha256) for workspace_id, sha256, _ in await dump.contents(conn)}
    if needed - there - absent or there - needed:
        raise refuse("Its artifacts are not those that its tables name.")


def _refuse_other_schema(manifest: Manifest) -> None:
    known = {each.number: each.name for each in migrations()}
    if manifest.schema and manifest.schema[-1][0] > max(known):
        raise Invalid(
            f"This backup has schema {manifest.schema[-1][0]}, this Rota knows {max(known)}: it was made by Rota "
            f"{manifest.rota}. Install that version, or a newer one, and restore with it.",
            code="backup_newer",
            field="FILE",
        )
    if not manifest.schema or any(known.get(number) != name for number, name in manifest.schema):
        raise refuse(f"It has a schema that this Rota does not know; it was made by Rota {manifest.rota}.")


def _refuse_other_columns(manifest: Manifest, tables: list[Table]) -> None:
    there: Mapping[str, set[str]] = {each.name: set(each.columns) for each in tables}
    named = {name: set(lines.columns) for name, lines in manifest.tables.items()}
    repeated = [name for name, lines in manifest.tables.items() if len(set(lines.columns)) != len(lines.columns)]
    if repeated or there != named:
        raise refuse("Its tables and columns are not those of its schema.")


def _refuse_without_room(home: Path, needed: int) -> None:
    """A small file may unpack to more than the machine has."""
    there = next(each for each in (home, *home.parents) if each.exists())
    if (free := shutil.disk_usage(there).free) < needed:
        raise CannotStart(
            f"The backup unpacks to {needed:,} bytes, and {there} has {free:,} free. Make room, or name another home "
            "with --home.",
            code="no_room",
        )
