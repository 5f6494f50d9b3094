"""Short names for addresses: made from a name, unique in the workspace."""

import re
import unicodedata
from collections.abc import Awaitable, Callable

from rota.errors import Conflict, Invalid
from rota.model.ids import as_uuid

LONGEST = 63
_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
UNTITLED = "untitled"


def slug_of(name: str) -> str:
    """The name in lower-case ASCII with hyphens, or "untitled" where nothing is left of it, or nothing but an id."""
    slug = _hyphenated(name)[:LONGEST].rstrip("-")
    return UNTITLED if not slug or as_uuid(slug) else slug


def own_slug_of(name: str) -> str | None:
    """The slug by which a name is known. None where other names make the same one: letters that are not Latin have no
    part in it, nor has what comes after its longest."""
    letters = filter(str.isalpha, unicodedata.normalize("NFKD", name))
    is_latin = all(unicodedata.name(each, "").startswith("LATIN ") for each in letters)
    slug = slug_of(name)
    return slug if is_latin and slug != UNTITLED and slug == _hyphenated(name) else None


def _hyphenated(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def checked(slug: str) -> str:
    """Slugs that look like an id are refused: routes take either."""
    if not _SLUG.fullmatch(slug):
        told = f"{slug[:64]!r} is not a slug: use 1 to {LONGEST} lower-case letters, digits and hyphens."
        raise Invalid(told, code="invalid_slug", field="slug")
    if as_uuid(slug):
        raise Invalid(f"{slug!r} looks like an id; use a slug that does not.", code="invalid_slug", field="slug")
    return slug


def numbered(slug: str, number: int) -> str:
    return slug if number == 1 else f"{slug[: LONGEST - len(str(number)) - 1]}-{number}"


async def free(taken: Callable[[list[str]], Awaitable[set[str]]], wanted: str | None, name: str, *, kind: str) -> str:
    """The slug asked for, or one made from the name with a number if it is taken. `taken` says which of some are."""
    if wanted is not None:
        if await taken([checked(wanted)]):
            raise Conflict(f"Another {kind} has the slug {wanted!r}.", code="slug_taken", field="slug")
        return wanted
    slug, first = slug_of(name), 1
    while True:
        last = 2 * first + 8  # each time as many as so far and a few: however many are taken, it is asked a few times
        some = [numbered(slug, number) for number in range(first, last)]
        used = await taken(some)
        if left := [each for each in some if each not in used]:
            return left[0]
        first = last
