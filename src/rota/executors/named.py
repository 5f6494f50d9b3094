"""What a configuration names as `module:name`, in the child that runs it."""

import importlib
from typing import Any

from rota.agent import Unusable


def named(target: str) -> Any:
    """Whatever stands under that name; `Unusable` says what is missing."""
    module, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as failure:  # somebody else's module
        raise Unusable(f"{target!r} cannot be imported: {type(failure).__name__}: {failure}") from failure
    return found
