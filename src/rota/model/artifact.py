"""Artifacts: what they may be called, where they may point to, and as what they may be served."""

import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rota.errors import Invalid

LONGEST_NAME, LONGEST_URI = 200, 2000
SCHEMES = ("https", "http", "mailto", "mid", "s3", "gs", "git", "ssh")
OCTETS = "application/octet-stream"
MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}", re.ASCII)
# What no browser takes for a page or a program. All else is served as mere octets.
SAFE_TEXTS = ("text/plain", "text/markdown", "text/csv", "application/json", "application/x-ndjson")
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
SAFE = ("application/pdf", "application/zip", "application/gzip", *IMAGES)
# What people read, besides everything that calls itself text.
READABLE = ("application/json", "application/x-ndjson", "application/xml", "application/yaml", "application/toml")
LARGEST_IMAGE = 10_000_000


@dataclass(frozen=True, slots=True)
class Named:
    """How an artifact is called, and what it is said to be."""

    name: str
    media_type: str


def named(name: str, media_type: str | None = None) -> Named:
    return Named(check_name(name), check_media_type(media_type, name))


def check_name(name: str) -> str:
    """A name, and never a way to somewhere else."""
    wrong = (
        not 0 < len(name) <= LONGEST_NAME
        or name.strip(". ") == ""
        or name != name.strip()
        or any(each in "/\\:" or not each.isprintable() for each in name)
    )
    if wrong:
        raise Invalid(
            f"A name has 1 to {LONGEST_NAME} printable characters, no slash, backslash or colon, "
            "and does not consist of dots. Example: report.md",
            code="invalid_artifact_name",
            field="name",
        )
    return name


def check_media_type(given: str | None, name: str) -> str:
    kind = (given or "").partition(";")[0].strip().lower()
    if not kind:
        return mimetypes.guess_type(name, strict=True)[0] or OCTETS
    if not MEDIA_TYPE.fullmatch(kind):
        raise Invalid("A media type is such as text/markdown.", code="invalid_media_type", field="media_type")
    return kind


def check_uri(uri: str) -> str:
    """The address of something outside, which somebody will click on."""
    try:
        parts = urlsplit(uri)
        fits = parts.scheme in SCHEMES and bool(
            parts.hostname if parts.scheme in {"http", "https"} else parts.path or parts.netloc
        )
    except ValueError:
        fits = False
    if not fits or len(uri) > LONGEST_URI or any(each.isspace() or not each.isprintable() for each in uri):
        raise Invalid(
            f"A URI begins with one of {', '.join(f'{each}:' for each in SCHEMES)} and has at most {LONGEST_URI} "
            "characters, none of them a space. Example: https://example.org/pull/7",
            code="invalid_uri",
            field="uri",
        )
    return uri


def served_as(media_type: str) -> str:
    """A type that a browser cannot be tricked with, whatever the artifact says it is."""
    if media_type in SAFE_TEXTS:
        return f"{media_type}; charset=utf-8"
    return media_type if media_type in SAFE else OCTETS


def preview_of(artifact: Mapping[str, Any]) -> str | None:
    """As what a page may show it: text, markdown or image; None for what is kept elsewhere or can only be saved."""
    kind = str(artifact["media_type"])
    if artifact.get("uri") is not None:
        return None
    if kind in IMAGES:
        return "image" if (artifact["size"] or 0) <= LARGEST_IMAGE else None
    if kind == "text/markdown":
        return "markdown"
    return "text" if kind.startswith("text/") or kind in READABLE or kind.endswith(("+json", "+xml")) else None
