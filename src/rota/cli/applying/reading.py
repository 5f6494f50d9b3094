"""Files of YAML as the things they describe, each with the place it stands in."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from rota.cli.noun import standard_input
from rota.errors import Invalid
from rota.roster.slugs import LONGEST, own_slug_of

KINDS = {"agents": "agent", "automations": "automation"}
STDIN = "-"
DEEPEST, MOST_VALUES = 64, 200_000


@dataclass(frozen=True, slots=True)
class Item:
    """An agent or automation as a file describes it: `body` is what POST takes."""

    kind: str
    slug: str
    body: dict[str, Any]
    place: str

    @property
    def path(self) -> str:
        return f"/{self.kind}s"

    def __str__(self) -> str:
        return f"{self.kind} {self.slug}"


def read_all(files: Sequence[str]) -> list[Item]:
    """Everything that files and directories describe, in their order. Refused if one thing is described twice."""
    items = [item for file in files for name, text in _texts(file) for item in _items(name, text)]
    seen: dict[tuple[str, str], Item] = {}
    for item in items:
        if twin := seen.get((item.kind, item.slug)):
            raise _refuse(
                item.place, f"the {item} is described already, at {twin.place}. Give one of them another slug."
            )
        seen[item.kind, item.slug] = item
    return items


def _texts(file: str) -> Iterator[tuple[str, str]]:
    if file == STDIN:
        yield "stdin", standard_input()
        return
    path = Path(file)
    found = sorted(each for each in path.iterdir() if each.suffix in {".yaml", ".yml"}) if path.is_dir() else [path]
    if not found:
        raise _refuse(file, "there is no *.yaml in this directory.")
    for each in found:
        try:
            yield str(each), each.read_text("utf-8")
        except OSError as failure:
            raise _refuse(str(each), f"cannot be read: {failure.strerror}.") from None
        except UnicodeDecodeError:
            raise _refuse(str(each), "is not UTF-8.") from None


def _items(name: str, text: str) -> Iterator[Item]:
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as wrong:
        raise _wrong_yaml(name, wrong) from None
    except (yaml.YAMLError, RecursionError, ValueError) as wrong:
        raise _refuse(
            name, f"is not YAML: {str(wrong).splitlines()[0] if str(wrong) else 'it is nested too deep'}."
        ) from None
    for document in documents:
        if document is not None:
            yield from _document(name, document)


def _wrong_yaml(name: str, wrong: yaml.MarkedYAMLError) -> Invalid:
    mark = wrong.problem_mark or wrong.context_mark
    place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    told = " ".join(part for part in (wrong.problem, wrong.note) if part) or "it cannot be read"
    hint = "; a cron expression stands in quotes" if "alias" in told or "alias" in (wrong.context or "") else ""
    return _refuse(place, f"is not YAML: {told}{hint}.")


def _document(name: str, document: Any) -> Iterator[Item]:
    if not isinstance(document, Located):
        raise _refuse(name, "holds the lists `agents:` and `automations:`, and nothing else.")
    for key, found in document.items():
        if key not in KINDS:
            near = get_close_matches(key, KINDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise _refuse(f"{name}:{document.line}", f"there is no {key!r}; use agents and automations.{hint}")
        if found is not None and not isinstance(found, list):
            raise _refuse(f"{name}:{document.line}", f"{key} is a list; begin each of them with “- ”.")
    for key, kind in KINDS.items():
        for number, body in enumerate(document.get(key) or [], start=1):
            yield _item(name, kind, number, body)


def _item(name: str, kind: str, number: int, body: Any) -> Item:
    if not isinstance(body, Located):
        raise _refuse(name, f"{kind} {number} is no object with fields such as `name:`.")
    place = f"{name}:{body.line}"
    slug, called = body.get("slug"), body.get("name")
    if slug is not None and not isinstance(slug, str):
        raise _refuse(place, f"the slug of {kind} {number} is text; put it in quotes.")
    if not slug and not isinstance(called, str):
        raise _refuse(place, f"{kind} {number} has no name. Give it one as text, or a slug.")
    known = slug or own_slug_of(str(called))
    if not known:
        own = f"makes no slug of its own, which has Latin letters and digits, {LONGEST} at most"
        raise _refuse(place, f"the name of {kind} {number} {own}. Give it a slug.")
    return Item(kind, known, _plain(body, place), place)


def _plain(body: Mapping[str, Any], place: str) -> dict[str, Any]:
    """As JSON has it. An alias may stand for much; what no request could hold is not begun."""
    left = MOST_VALUES

    def copied(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if depth > DEEPEST or left < 0:
            raise _refuse(place, "is nested too deep, or holds itself, or too much.")
        if isinstance(value, float) and not isfinite(value):
            raise _refuse(place, f"{value} is no number that JSON has.")
        if isinstance(value, dict):
            return {key: copied(each, depth + 1) for key, each in value.items()}
        return [copied(each, depth + 1) for each in value] if isinstance(value, list) else value

    plain: dict[str, Any] = copied(body, 1)
    return plain


def _refuse(place: str, message: str) -> Invalid:
    return Invalid(f"{place}: {message}", field="-f")


# ── YAML as JSON means it ────────────────────────────────────────────────────────────────────────────────────────


class Located(dict[str, Any]):
    """An object, and the line that it begins in."""

    line = 0


class _Loader(yaml.SafeLoader):
    """Only what JSON has. YAML of old takes `on` for true, `18:00` for a number and a date for no text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 — as yaml has it

    def located(self, node: yaml.MappingNode) -> Iterator[Located]:
        found = Located()
        found.line = node.start_mark.line + 1
        yield found
        self._refuse_repeats(node)
        self.flatten_mapping(node)  # what is merged comes first, so that what is written here wins
        for key_node, value_node in node.value:
            key = self.construct_object(key_node)
            if not isinstance(key, str):
                told = f"{json.dumps(key, default=str)} is no name of a field: put it in quotes"
                raise yaml.constructor.ConstructorError(None, None, told, key_node.start_mark)
            found[key] = self.construct_object(value_node)

    def _refuse_repeats(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen and isinstance(key_node, yaml.ScalarNode):
                told = f"{key_node.value!r} stands here twice"
                raise yaml.constructor.ConstructorError(None, None, told, key_node.start_mark)
            seen.add(key_node.value if isinstance(key_node, yaml.ScalarNode) else None)


_RESOLVED = (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
    ("merge", r"<<", "<"),
)
for _tag, _pattern, _first in _RESOLVED:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.located)


def _refuse_tag(_: yaml.SafeLoader, node: yaml.Node) -> None:
    raise yaml.constructor.ConstructorError(None, None, f"JSON has no {node.tag}", node.start_mark)


for _tag in ("timestamp", "binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse_tag)
