"""What PostgreSQL can keep of what anybody says, in text or in JSON."""

import re
from collections.abc import Mapping
from typing import Any

DEEPEST = 64

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def clean(text: str) -> str:
    """Without NUL and halves of characters."""
    return _UNSTORABLE.sub("\ufffd", text) if "\0" in text or not text.isascii() else text


def clean_json(value: Any, depth: int = DEEPEST) -> Any:
    """The same for every text in a JSON value; `ValueError` when it is nested too deep."""
    if depth == 0:
        raise ValueError("nested too deep")
    match value:
        case str():
            return clean(value)
        case Mapping():
            return {clean(str(key)): clean_json(each, depth - 1) for key, each in value.items()}
        case list() | tuple():
            return [clean_json(each, depth - 1) for each in value]
        case _:
            return value
