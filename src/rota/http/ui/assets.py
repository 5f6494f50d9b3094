"""Static files, read once: each with its type, its compressed form, and a hash that makes its address its version."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.errors import NotFound

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOREVER = "public, max-age=31536000, immutable"

router = APIRouter()


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


@router.get("/static/{name:path}", include_in_schema=False)
async def static(request: Request, name: str, v: str = "") -> Response:
    found = assets().get(name)
    if not found:
        raise NotFound("There is no such file.")
    # Another replica may be a version ahead or behind: what it asked for must not be kept under the wrong name.
    headers = {"Cache-Control": FOREVER if v == found.version else "no-cache", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return Response(found.body, media_type=found.media_type, headers=headers)
    return Response(found.zipped, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})
