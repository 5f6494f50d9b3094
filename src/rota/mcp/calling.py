"""A call of a tool as a request to the API, and what the API answers as a result that a model can use."""

import difflib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import orjson

from rota.errors import Invalid
from rota.mcp.forms import KEY, KEY_HEADER, PREFIX, USUAL_LIMIT, Form
from rota.mcp.tools import Tool

LONGEST = 1000  # of what is part of an address: more than any route takes there
SHOWN_FIRST = ("title", "detail", "errors", "status", "code", "field")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the API."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None


def request_of(tool: Tool, form: Form, workspace: str, given: Mapping[str, Any]) -> Asked:
    """Where each argument goes. What it is worth, the route judges; here only whether it can be sent there."""
    _refuse_unknown(form.arguments.keys(), given)
    parts: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "header": {}, "body": {}}
    for argument in form.arguments.values():
        if argument.name in given:
            parts[argument.place][argument.name] = given[argument.name]
        elif argument.name == "limit":
            parts["query"]["limit"] = USUAL_LIMIT
        elif argument.place == "path":
            raise Invalid(f"{argument.name}: This field is required.", field=argument.name)
    named = {name: _segment(name, value) for name, value in parts["path"].items()}
    takes_body = any(each.place == "body" for each in form.arguments.values())
    return Asked(
        tool.method,
        (PREFIX + tool.path).format(workspace=workspace, **named),
        {name: _parameter(name, value) for name, value in parts["query"].items() if value is not None},
        {**_key(parts["header"].get(KEY)), **({"Content-Type": "application/json"} if takes_body else {})},
        orjson.dumps(parts["body"]) if takes_body else None,
    )


def _refuse_unknown(known: Set[str], given: Mapping[str, Any]) -> None:
    for name in sorted(given.keys() - known):
        shown = name[:64]
        near = difflib.get_close_matches(shown, known, n=1)
        takes = f"Did you mean {near[0]}?" if near else f"This tool takes {', '.join(known) or 'none'}."
        raise Invalid(f"There is no argument {shown!r}. {takes}", field=shown)


def _segment(name: str, value: Any) -> str:
    """One step of an address: nothing in it may lead to another route."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not text.strip() or len(text) > LONGEST or "/" in text or "\\" in text or text in {".", ".."}:
        raise Invalid(f"{name}: Give an id, or the slug of an agent or automation.", field=name)
    return quote(text, safe="")


def _key(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or not value.strip():
        raise Invalid(f"{KEY}: Give plain text, such as “digest-2026-06-01”.", field=KEY)
    return {KEY_HEADER: value}


def _parameter(name: str, value: Any) -> str:
    text = _text(value)
    if len(text) > LONGEST:
        raise Invalid(f"{name}: Give at most {LONGEST} characters.", field=name)
    return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


# ── Results ──────────────────────────────────────────────────────────────────────────────────────────────────────


def result_of(status: int, content: bytes) -> dict[str, Any]:
    """What the API answered, for programs and as text."""
    value = orjson.loads(content) if content else {}
    if status >= 400:
        return refused(_in_its_words(value))
    return {"content": _said(orjson.dumps(value).decode()), "structuredContent": value, "isError": False}


def _in_its_words(told: dict[str, Any]) -> dict[str, Any]:
    """What the API tells of a header is told of the argument that it was."""
    if told.get("field") != KEY_HEADER:
        return told
    return {**told, "field": KEY, "detail": told["detail"].replace(KEY_HEADER, KEY)}


def refused(told: Mapping[str, Any]) -> dict[str, Any]:
    """A problem as a result: what was wrong, with which field, and what would be right."""
    lines = [f"{told['title']}: {told['detail']}"]
    lines += [f"- {each['field']}: {each['message']}" for each in (told.get("errors") or ())[1:]]
    facts = {name: told[name] for name in ("field", "code") if told.get(name)}
    facts |= {name: value for name, value in told.items() if name not in SHOWN_FIRST}
    lines.append(", ".join(f"{name}: {_text(value)}" for name, value in facts.items()))
    return {"content": _said("\n".join(lines)), "structuredContent": dict(told), "isError": True}


def invalid(wrong: Invalid) -> dict[str, Any]:
    return refused(
        {"title": "Invalid", "status": 422, "code": wrong.code, "detail": wrong.message, "field": wrong.field}
    )


def _said(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
