"""Static files, read once: each with its type, its compressed form, and a hash that makes its address its version."""

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Written in several files, in the order of their names; sent as one, so that a page asks once.
BUNDLES = {
    "rota.css": "style",
    "rota.js": "script",
    "transcript.js": "transcript",
    "answers.js": "answers",
    "editor.js": "editor",
}
FOR_READERS = re.compile(rb"^\s*(?://.*\n)?| // .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asset:
    media_type: str
    version: str
    body: bytes
    zipped: bytes


@cache
def assets() -> dict[str, Asset]:
    """By path. Only these are ever served, whatever an address says."""
    whole = {name: _asset(Path(name).suffix, _joined(folder)) for name, folder in BUNDLES.items()}
    found = (path for path in FOLDER.rglob("*") if path.suffix in TYPES and path.parent.name not in BUNDLES.values())
    return whole | {path.relative_to(FOLDER).as_posix(): _asset(path.suffix, path.read_bytes()) for path in found}


def _joined(folder: str) -> bytes:
    """Without what is there for who reads the code: comments, and blanks that begin a line."""
    files = (path.read_bytes() for path in sorted((FOLDER / folder).iterdir()) if path.suffix in TYPES)
    return FOR_READERS.sub(b"", b"\n".join(files))


def _asset(suffix: str, body: bytes) -> Asset:
    return Asset(TYPES[suffix], hashlib.sha256(body).hexdigest()[:12], body, gzip.compress(body, mtime=0))


def address(name: str) -> str | None:
    """Where a page finds it; None if it was not built, as htmx in a checkout that was never installed."""
    found = assets().get(name)
    return f"/static/{name}?v={found.version}" if found else None
