"""Memory: what an automation's agents keep from one run to the next. What may be kept, and under which keys."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson

from rota.errors import Invalid, TooLarge

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}", re.ASCII)
LARGEST_VALUE = 65_536
MOST_KEYS = 1000


@dataclass(frozen=True, slots=True)
class Remembered:
    """A value to keep, for a time or for good, and how sure of it whoever keeps it is."""

    key: str
    value: Any
    ttl: timedelta | None = None
    confidence: float | None = None


def checked(given: Remembered) -> Remembered:
    check_key(given.key)
    if (size := len(orjson.dumps(given.value))) > LARGEST_VALUE:
        raise TooLarge(
            f"The value has {size:,} bytes; {LARGEST_VALUE:,} is the most. Save it as an artifact and remember its id.",
            code="memory_too_large",
            field="value",
            limit=LARGEST_VALUE,
        )
    if given.confidence is not None and not 0 <= given.confidence <= 1:
        raise Invalid(f"Confidence is a number from 0 to 1, not {given.confidence!r}.", field="confidence")
    if given.ttl is not None and given.ttl <= timedelta(0):
        raise Invalid("A time to live is longer than nothing.", field="ttl")
    return given


def check_key(key: str) -> None:
    if not KEY.fullmatch(key):
        raise Invalid(
            "A key has 1 to 200 letters, digits, dots, colons, dashes and underscores, "
            "and begins with a letter or digit.",
            code="invalid_memory_key",
            field="key",
        )
