"""The file of a backup: a ZIP archive whose manifest names everything in it.

    manifest.json                   versions, and for each table its columns, rows, bytes and SHA-256; see `Manifest`
    tables/NAME                     lines of COPY text, with the columns that the manifest names
    artifacts/WORKSPACE/aa/SHA256   contents, by workspace and hash
    vault.keys                      the keys of the vault, only if they were asked for

Nothing is ever extracted by the name that a file gives it: a reader asks for the members that it expects, and refuses
a file with any other.
"""

import hashlib
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self
from uuid import UUID

from rota.db.dump import Schema
from rota.errors import Invalid

FORMAT = 1
MANIFEST, KEYS = "manifest.json", "vault.keys"
TABLES, ARTIFACTS = "tables/", "artifacts/"
PIECE = 262_144
COMPRESSION = 3  # a third larger than the best, at three times its speed
LARGEST_MANIFEST = 268_435_456
LARGEST_KEYS = 65_536
CONTENT = re.compile(r"artifacts/([0-9a-f-]{36})/([0-9a-f]{2})/(\2[0-9a-f]{62})")
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError, OSError)


@dataclass(frozen=True, slots=True)
class Lines:
    """A table as it was written."""

    columns: list[str]
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the file holds, and of which Rota. `missing` are contents that were not where they should be, or damaged."""

    rota: str
    made_at: str
    schema: Schema
    tables: dict[str, Lines]
    artifacts: int = 0
    artifact_bytes: int = 0
    missing: list[str] = field(default_factory=list)
    keys: str | None = None  # the hash of the member with the vault's keys
    format: int = FORMAT

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.tables.values())


class Member:
    """Collects what is written and knows its size and hash."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._held = bytearray()
        self._hash = hashlib.sha256()
        self.bytes = self.lines = 0

    def write(self, piece: bytes) -> None:
        self._held += piece
        if len(self._held) >= PIECE:
            self.flush()

    def flush(self) -> None:
        self._hash.update(self._held)
        self.bytes += len(self._held)
        self.lines += self._held.count(b"\n")
        self._file.write(self._held)
        self._held = bytearray()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class Writer:
    """Writes the members one after another, the manifest last."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._zip = archive

    @classmethod
    @contextmanager
    def to(cls, file: BinaryIO) -> Iterator[Self]:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION) as archive:
            yield cls(archive)

    @contextmanager
    def member(self, name: str) -> Iterator[Member]:
        with self._zip.open(name, "w", force_zip64=True) as file:
            member = Member(file)
            yield member
            member.flush()

    def end(self, manifest: Manifest) -> None:
        self._zip.writestr(MANIFEST, json.dumps(asdict(manifest), indent=1))


class Reader:
    """An archive whose list of members and manifest make sense."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._zip = archive
        self.manifest = _manifest_of(archive)
        self._refuse_other_members()

    @classmethod
    @contextmanager
    def of(cls, file: Path) -> Iterator[Self]:
        try:
            archive = zipfile.ZipFile(file)
        except FileNotFoundError:
            raise Invalid(f"There is no file {file}.", code="no_backup", field="FILE") from None
        except OSError as failure:
            raise Invalid(f"{file} cannot be read: {failure.strerror}.", code="no_backup", field="FILE") from None
        except (*UNREADABLE, ValueError):
            raise refuse("It is no backup of Rota, or its end is missing.") from None
        with archive:
            yield cls(archive)

    def _refuse_other_members(self) -> None:
        manifest, names = self.manifest, [each.filename for each in self._zip.infolist()]
        expected = {MANIFEST, *(TABLES + name for name in manifest.tables), *([KEYS] if manifest.keys else [])}
        of_artifacts = {name for name in names if CONTENT.fullmatch(name)}
        if len(names) != len(set(names)) or set(names) - of_artifacts != expected:
            raise refuse("It does not have the members that its manifest names.")
        if len(of_artifacts - set(manifest.missing)) != manifest.artifacts:
            raise refuse("It does not have the artifacts that its manifest counts.")
        sizes = {TABLES + name: lines.bytes for name, lines in manifest.tables.items()}
        if any(self._zip.getinfo(name).file_size != size for name, size in sizes.items()):
            raise refuse("Its tables do not have the sizes that its manifest names.")
        if sum(each.file_size for each in self._contents()) != manifest.artifact_bytes:
            raise refuse("Its artifacts do not have the size that its manifest names.")

    @property
    def unpacked_bytes(self) -> int:
        """How much everything is together, and no more is ever read."""
        return sum(each.file_size for each in self._zip.infolist())

    def lines(self, table: str) -> Iterator[bytes]:
        """A table in pieces. Raises at the end if these are not what the manifest says."""
        yield from self._pieces(TABLES + table, self.manifest.tables[table].sha256)

    def keys(self) -> str | None:
        """The lines of the vault's keys, if they are in the file."""
        if self.manifest.keys is None:
            return None
        if self._zip.getinfo(KEYS).file_size > LARGEST_KEYS:
            raise refuse("Its keys are too large.")
        try:
            return b"".join(self._pieces(KEYS, self.manifest.keys)).decode()
        except UnicodeDecodeError:
            raise refuse("Its keys are not text.") from None

    def contents(self) -> Iterator[tuple[UUID, bytes, Iterator[bytes]]]:
        """Workspace, hash and pieces of every content that was whole. The pieces raise at their end if they are not."""
        for each in self._contents():
            workspace_id, _, sha256 = each.filename.removeprefix(ARTIFACTS).split("/")
            yield _uuid(workspace_id), bytes.fromhex(sha256), self._pieces(each.filename, sha256)

    def _contents(self) -> list[zipfile.ZipInfo]:
        missing = set(self.manifest.missing)
        return [
            each
            for each in self._zip.infolist()
            if each.filename.startswith(ARTIFACTS) and each.filename not in missing
        ]

    def _pieces(self, name: str, sha256: str) -> Iterator[bytes]:
        hashed = hashlib.sha256()
        try:
            with self._zip.open(name) as file:
                while piece := file.read(PIECE):
                    hashed.update(piece)
                    yield piece
        except UNREADABLE as failure:
            raise refuse(f"{name} cannot be read: {failure}.") from None
        if hashed.hexdigest() != sha256:
            raise refuse(f"{name} is not what its hash says.")


def refuse(why: str) -> Invalid:
    """The error that says why a file cannot be used."""
    return Invalid(
        f"This backup cannot be used. {why} Take another copy of the file, or another backup.",
        code="damaged_backup",
        field="FILE",
    )


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise refuse("It has artifacts of no workspace.") from None


def _manifest_of(archive: zipfile.ZipFile) -> Manifest:
    try:
        if archive.getinfo(MANIFEST).file_size > LARGEST_MANIFEST:
            raise refuse("Its manifest is too large.")
        found = json.loads(archive.read(MANIFEST))
    except KeyError:
        raise refuse("It is no backup of Rota: it has no manifest.") from None
    except (*UNREADABLE, ValueError, RecursionError):
        raise refuse("Its manifest cannot be read.") from None
    if isinstance(found, dict) and isinstance(found.get("format"), int) and found["format"] > FORMAT:
        raise Invalid(
            "This backup was made by a newer Rota. Install that version, or a newer one, and restore with it.",
            code="backup_newer",
            field="FILE",
        )
    try:
        return _read_manifest(found)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise refuse("Its manifest is not understood.") from None


def _read_manifest(found: Mapping[str, Any]) -> Manifest:
    """Raises an error of Python if anything has another type."""
    tables = {_text(name): _read_lines(lines) for name, lines in found["tables"].items()}
    keys = found["keys"]
    return Manifest(
        rota=_text(found["rota"]),
        made_at=_text(found["made_at"]),
        schema=[(int(number), _text(name)) for number, name in found["schema"]],
        tables=tables,
        artifacts=int(found["artifacts"]),
        artifact_bytes=int(found["artifact_bytes"]),
        missing=[_text(each) for each in found["missing"]],
        keys=None if keys is None else _text(keys),
        format=int(found["format"]),
    )


def _read_lines(found: Mapping[str, Any]) -> Lines:
    columns = [_text(each) for each in found["columns"]]
    return Lines(columns, int(found["rows"]), int(found["bytes"]), _text(found["sha256"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
