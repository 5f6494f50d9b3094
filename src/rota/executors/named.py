"""What a configuration names as `module:name` or by an entry point, in the child that runs it."""

import importlib
from typing import Any

from rota.agent import Unusable


def named(target: str, group: str | None = None) -> Any:
    """Whatever stands under that name, which without a colon is an entry point of the group; `Unusable` says what is
    missing."""
    module, _, name = (target if ":" in target or group is None else installed(target, group)).partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as failure:  # somebody else's module
        raise Unusable(f"{target!r} cannot be imported: {type(failure).__name__}: {failure}") from failure
    return found


def installed(name: str, group: str) -> str:
    """The `module:name` of an entry point."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, and seldom needed

    known = {each.name: each.value for each in entry_points(group=group)}
    if name not in known:
        raise Unusable(f"there is no entry point {name!r} in the group {group}; known are {', '.join(known) or 'none'}")
    return known[name].split("[")[0].strip()
