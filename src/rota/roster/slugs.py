"""Short names for addresses: made from a name, unique in the workspace."""

import re
import unicodedata
from collections.abc import Awaitable, Callable

from rota.errors import Conflict, Invalid

LONGEST = 63
_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def slug_of(name: str) -> str:
    """The name in lower-case ASCII with hyphens, or "untitled" where nothing is left of it."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:LONGEST].rstrip("-") or "untitled"


def checked(slug: str) -> str:
    """Slugs that look like an id are refused: routes take either."""
    if not _SLUG.fullmatch(slug) or re.fullmatch(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", slug):
        raise Invalid(
            f"{slug!r} is not a slug: use 1 to {LONGEST} lower-case letters, digits and hyphens.",
            code="invalid_slug", field="slug",
        )  # fmt: skip
    return slug


def numbered(slug: str, number: int) -> str:
    return slug if number == 1 else f"{slug[: LONGEST - len(str(number)) - 1]}-{number}"


async def free(find: Callable[[str], Awaitable[object | None]], wanted: str | None, name: str, *, kind: str) -> str:
    """The slug asked for, or one made from the name with a number if it is taken."""
    if wanted:
        if await find(checked(wanted)):
            raise Conflict(f"Another {kind} has the slug {wanted!r}.", code="slug_taken", field="slug")
        return wanted
    number = 1
    while await find(slug := numbered(slug_of(name), number)):
        number += 1
    return slug
