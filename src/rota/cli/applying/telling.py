"""A plan as people read it: each thing, and field by field what it is and what it would be."""

import json
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import click

from rota.cli import showing
from rota.cli.applying.planning import Change

MARKS = {"create": ("+", "green"), "change": ("~", "yellow"), "unchanged": ("=", None)}


def told(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        mark, colour = MARKS[change.action]
        yield click.style(f"{mark} {showing.one_line(change.item)}  {change.action}", fg=colour, bold=bool(colour))
        for name, (old, new) in change.differences.items():
            yield from field(showing.one_line(name), old, new, new_thing=change.action == "create")
        yield from (click.style(f"    {showing.clean(each)}", fg="yellow") for each in change.warnings)
    counts = {action: sum(change.action == action for change in changes) for action in MARKS}
    yield f"{counts['create']} to create, {counts['change']} to change, {counts['unchanged']} unchanged."


def field(name: str, old: Any, new: Any, *, new_thing: bool = False) -> Iterator[str]:
    """What it was, and what it is to be; of an object, each of its fields that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            if (key in old, old.get(key)) != (key in new, new.get(key)):
                yield from field(f"{name}.{showing.one_line(key)}", old.get(key), new.get(key))
    elif new_thing and not _long(new):
        yield click.style(f"    {name}: {_value(new)}", fg="green")
    elif _long(old) or _long(new):
        yield f"    {name}:"
        yield from map(_line, _compared(_lines(old), _lines(new)))
    else:
        was, will = click.style(_value(old), fg="red"), click.style(_value(new), fg="green")
        yield f"    {name}: {was} → {will}"


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Line by line. To look within lines, as `ndiff` does, takes minutes for a long prompt that was written anew."""
    for _, first, last, start, end in SequenceMatcher(None, old, new).get_opcodes():
        same = old[first:last] == new[start:end]
        yield from (f"{' ' if same else '-'} {line}" for line in old[first:last])
        yield from (f"+ {line}" for line in ([] if same else new[start:end]))


def _long(value: Any) -> bool:
    return (isinstance(value, str) and "\n" in value.strip()) or (isinstance(value, list) and bool(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, list):
        return [_value(each) for each in value]
    return [] if value is None else showing.clean(value).splitlines()


def _line(line: str) -> str:
    return click.style(f"      {line}", fg={"-": "red", "+": "green"}.get(line[0]))


def _value(value: Any) -> str:
    return showing.one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def as_data(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "kind": change.item.kind,
            "slug": change.item.slug,
            "place": change.item.place,
            "action": change.action,
            "changes": {name: {"from": old, "to": new} for name, (old, new) in change.differences.items()},
        }
        for change in changes
    ]
