"""Static files, read once: each with its type, its compressed form, and a hash that makes its address its version."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    media_type: str
    version: str
    body: bytes
    zipped: bytes


@cache
def assets() -> dict[str, Asset]:
    """By path. Only these are ever served, whatever an address says."""
    found = (path for path in FOLDER.rglob("*") if path.suffix in TYPES)
    return {path.relative_to(FOLDER).as_posix(): _read(path) for path in found}


def _read(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(TYPES[path.suffix], hashlib.sha256(body).hexdigest()[:12], body, gzip.compress(body, mtime=0))


def address(name: str) -> str | None:
    """Where a page finds it; None if it was not built, as htmx in a checkout that was never installed."""
    found = assets().get(name)
    return f"/static/{name}?v={found.version}" if found else None
