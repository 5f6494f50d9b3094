"""Writes src/rota/surface.json: everything that people and programs outside Rota can rely on.

    python scripts/surface.py

The file lists the operations of the API with their schemas, the other routes, the command line, the MCP tools, the desk, the
Python API, settings, metrics, log events, error codes and closed lists of values. It is generated from the code, and
a test fails when the two differ, so that its diff shows what a change does to the public surface. It contains names
and types, and of texts only the one-line help.
"""

import inspect
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import FunctionType
from typing import Any, get_args
from uuid import UUID

import click
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from prometheus_client.metrics import MetricWrapperBase
from starlette.routing import Route

from rota import agent, client, executors, metrics
from rota.access.vault import Vault
from rota.cli import COMMANDS, main
from rota.daemon import PARTS
from rota.db.listener import Listener, Wakes
from rota.db.pool import Database
from rota.executors import python_child
from rota.executors.events import EVENTS
from rota.executors.requests import REQUESTS, TASK_FIELDS
from rota.http.app import create_app
from rota.http.attempt_access import DESK, OWN, may_try
from rota.http.auditing import CHANGING
from rota.http.context import InUnit, Web, unit_of
from rota.http.repeating import KEY
from rota.http.routes import API
from rota.mcp.forms import form_of
from rota.mcp.protocol import VERSIONS
from rota.mcp.tools import TOOLS
from rota.model import agent_config, export, grant_scope, scope
from rota.model.approval import ApprovalStatus
from rota.model.audit import action_of
from rota.model.caller import Level, Reach
from rota.model.ids import AccountId, GrantId, SessionId
from rota.model.notification import Kind
from rota.model.outcome import ErrorClass
from rota.model.run import SkipReason, Source, Status
from rota.model.session import SessionStatus, Verb
from rota.settings import FOREIGN, Settings, variable
from surface_source import SOURCE, config_fields, error_codes, line_fields, log_events

FILE = SOURCE / "surface.json"
WIDTH = 160

Json = Any


def surface() -> dict[str, Json]:
    app = _application()
    return {
        "agent_config": config_fields(),
        "cli": command_line(),
        "desk": desk(app),
        "entry_point_groups": sorted({executors.GROUP, python_child.GROUP}),
        "errors": error_codes(),
        "log_events": log_events(),
        "mcp_tools": mcp_tools(app),
        "metrics": metric_names(),
        "operations": operations(app),
        "other_routes": [f"{method} {route.path}" for method, route in _routes(app) if not route.include_in_schema],
        "python": {"rota.agent": python_names(agent), "rota.client": python_names(client)},
        "schemas": schemas(app),
        "settings": settings(),
        "values": values(),
    }


def _application() -> FastAPI:
    """The web application as a server makes it. It connects to nothing before it is started."""
    db, listener = Database(""), Listener("")
    return create_app(Web(db, Wakes(db, listener), listener, Settings(), Vault({"k": bytes(32)})))


# ── The API ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _routes(app: FastAPI) -> list[tuple[str, Any]]:
    """By path, then method. HEAD is answered wherever GET is."""
    found = [
        (method, each) for each in app.routes if isinstance(each, Route | APIRoute) for method in each.methods or ()
    ]
    return sorted((each for each in found if each[0] != "HEAD"), key=lambda each: (each[1].path, each[0]))


def operations(app: FastAPI) -> list[Json]:
    paths = app.openapi()["paths"]
    return [
        _operation(method, route, paths[route.path][method.lower()])
        for method, route in _routes(app)
        if route.include_in_schema
    ]


def _operation(method: str, route: APIRoute, described: Mapping[str, Any]) -> Json:
    """One operation. The path names the workspace, and every refusal is a `Problem`: neither is repeated here."""
    parameters = {(each["in"], each["name"]): each for each in described.get("parameters", ())}
    takes_key = parameters.pop(("header", KEY), None) is not None
    parameters.pop(("path", "workspace"), None)
    body = described.get("requestBody")
    return present(
        name=route.name,
        method=method,
        path=route.path,
        help=first_sentence(described["description"]),
        **_access(method, route),
        idempotency_key=takes_key,
        parameters=[_parameter(each) for _, each in sorted(parameters.items())],
        body=body and present(content=_content(body), required=body.get("required")),
        responses={status: _content(each) for status, each in described["responses"].items() if status != "4XX"},
    )


def _access(method: str, route: APIRoute) -> dict[str, Json]:
    """What a caller needs. The level is missing: the functions that routes call check it, and nothing declares it."""
    if not route.path.startswith(API):
        return {"public": True}
    path = route.path.removeprefix(API)
    audited = method in CHANGING and (_depends_on(route.dependant, _IN_UNIT) or _calls(route.endpoint, unit_of))
    return {
        "scope": scope.needed(method, path),
        "attempt_token": _attempt_access(method, route.path),
        "audit": str(action_of(method, path)) if audited else None,
    }


def _attempt_access(method: str, path: str) -> Json:
    """What the token of an attempt can do here: `own` lists the parameters that must name something of its own."""
    within = path.removeprefix(API)
    if path.startswith(DESK):
        return "desk"
    if may_try(_reach(), method, within):
        return {"own": sorted(OWN[within])}
    return grant_scope.WORKSPACE_READ if may_try(_reach(grant_scope.WORKSPACE_READ), method, within) else "closed"


def _reach(*scopes: str) -> Reach:
    nobody = UUID(int=0)
    return Reach(SessionId(nobody), None, GrantId(nobody), AccountId(nobody), frozenset(scopes))


_IN_UNIT = get_args(InUnit)[1].dependency


def _depends_on(dependant: Dependant, wanted: Callable[..., Any]) -> bool:
    return dependant.call is wanted or any(_depends_on(each, wanted) for each in dependant.dependencies)


def _calls(function: Any, wanted: Any) -> bool:
    """Whether a function, or one that it calls in its own module, calls `wanted`."""
    local = [each for each in _named(function) if getattr(each, "__module__", "") == function.__module__]
    return any(each is wanted for caller in (function, *local) for each in _named(caller))


def _named(function: Any) -> list[Any]:
    """What the globals of a function have under the names in its code."""
    if not isinstance(function, FunctionType):
        return []
    return [function.__globals__.get(name) for name in function.__code__.co_names]


def _parameter(given: Mapping[str, Any]) -> Json:
    schema = {key: value for key, value in given["schema"].items() if key != "description"}
    text = given.get("description")
    return {"in": given["in"]} | present(
        name=given["name"], schema=_schema(schema), help=text and one_line(text), required=given.get("required")
    )


def _content(given: Mapping[str, Any]) -> Json:
    return {kind: _schema(each.get("schema", {})) for kind, each in given.get("content", {}).items()}


def schemas(app: FastAPI) -> Json:
    found = {}
    for name, given in app.openapi()["components"]["schemas"].items():
        found[name] = _schema(given)
        if "description" in given:
            found[name]["description"] = first_sentence(given["description"])
    return found


def _schema(given: Any) -> Any:
    """A schema without the titles that repeat its names, with references into this file."""
    match given:
        case {"$ref": str(reference)}:
            beside = {key: value for key, value in given.items() if key != "$ref"}
            return {"$ref": f"#/schemas/{reference.rpartition('/')[2]}", **_schema(beside)}
        case dict():
            return {key: _keyword(key, value) for key, value in given.items() if key != "title"}
        case list():
            return [_schema(each) for each in given]
        case _:
            return given


def _keyword(key: str, value: Any) -> Any:
    match key:
        case "properties":  # its keys are names, also where one is `title`
            return {name: _schema(each) for name, each in value.items()}
        case "required":
            return sorted(value)
        case "description":
            return one_line(value)
        case "mapping":
            return {name: f"#/schemas/{each.rpartition('/')[2]}" for name, each in value.items()}
        case "default" | "examples" | "enum" | "const":
            return value
        case _:
            return _schema(value)


def mcp_tools(app: FastAPI) -> Json:
    document = app.openapi()
    return {
        tool.name: {
            "route": tool.route,
            "help": first_sentence(tool.description),
            "hints": [name for name, given in tool.effect.hints().items() if given],
            "input": _schema(form_of(tool, document).schema(tool.example)),
        }
        for tool in TOOLS
    }


# ── The command line ─────────────────────────────────────────────────────────────────────────────────────────────

SHARED_OPTIONS = ("--all", "--json", "--limit", "--token", "--url", "--workspace")


def command_line() -> Json:
    """Options that most commands share are described once: commands name them."""
    found = dict(_commands(main, ()))
    options = [each for command in found.values() for each in command.get("options", ())]
    shared = {}
    for name in SHARED_OPTIONS:
        same = Counter(json.dumps(each, sort_keys=True) for each in options if each["flags"] == [name])
        shared[name] = json.loads(max(same, key=lambda each: (same[each], each)))
    for command in found.values():
        if "options" in command:
            command["options"] = [
                each["flags"][0] if each == shared.get(each["flags"][0]) else each for each in command["options"]
            ]
    return {"commands": found, "shared_options": shared}


def _commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Json]]]:
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command
            yield " ".join((*path, name)), _command(command, "" if path else COMMANDS[name])
            if isinstance(command, click.Group):
                yield from _commands(command, (*path, name))


def _command(command: click.Command, short_help: str) -> dict[str, Json]:
    arguments = [_argument(each) for each in command.params if isinstance(each, click.Argument)]
    options = [_option(each) for each in command.params if isinstance(each, click.Option)]
    return present(
        help=first_sentence(short_help or command.help or ""),
        arguments=arguments,
        options=sorted(options, key=lambda option: option["flags"]),
        hidden=command.hidden,
    )


def _argument(argument: click.Argument) -> Json:
    return present(name=argument.name, many=argument.nargs == -1, **_value(argument))


def _option(option: click.Option) -> Json:
    return present(
        flags=[*option.opts, *option.secondary_opts],
        many=option.multiple,
        variable=option.envvar,
        help=option.help and one_line(option.help),
        **({"flag": True} if option.is_flag else _value(option)),
    )


def _value(parameter: click.Parameter) -> dict[str, Json]:
    """What it takes. A default that is worked out on the machine is left out."""
    described = parameter.to_info_dict()
    kind, default = described["type"], described["default"]
    return {
        "type": kind["name"],
        "choices": [str(each) for each in kind.get("choices", ())],
        "min": kind.get("min"),
        "max": kind.get("max"),
        "default": default if isinstance(default, str | int | float) else None,
        "required": parameter.required,
    }


# ── What agents and programs call ────────────────────────────────────────────────────────────────────────────────


def desk(app: FastAPI) -> Json:
    """Every verb of the desk: the fields that a worker checks on an agent's line, those that `rota.agent` sends, and its
    operations over HTTP."""
    verbs: dict[str, dict[str, Json]] = defaultdict(dict)
    for name, checked in {**REQUESTS, **EVENTS}.items():
        verbs[name]["checked"] = sorted(checked)
    for name, sent in line_fields().items():
        verbs[name]["sent"] = sent
    verbs["task"]["task_fields"] = sorted(TASK_FIELDS)
    for method, route in _routes(app):
        if route.path.startswith(DESK):
            within = route.path.removeprefix(DESK)
            verbs[within.partition("/")[0]].setdefault("operations", []).append(f"{method} {within}")
    return verbs


def python_names(module: Any) -> Json:
    """Public functions and classes of a module, with the parameters of what can be called."""
    found: dict[str, Json] = {}
    for name in getattr(module, "__all__", vars(module)):
        value = getattr(module, name)
        if name.startswith("_") or not _is_ours(value):
            continue
        if inspect.isclass(value):
            has_own = isinstance(value.__init__, FunctionType)
            found[name] = present(new=_signature(value.__init__) if has_own else None, methods=_methods(value))
        elif callable(value):
            found[name] = _signature(value)
    return found


def _methods(kind: type) -> dict[str, str]:
    public = [(name, getattr(kind, name)) for name in dir(kind) if not name.startswith("_")]
    return {name: _signature(each) for name, each in public if inspect.isroutine(each) and _is_ours(each)}


def _is_ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith("rota.")


def _signature(function: Callable[..., Any]) -> str:
    """Names and defaults. How Python prints annotations and functions depends on its version."""
    signature = inspect.signature(function)
    named = [each for each in signature.parameters.values() if each.name != "self"]
    plain = [
        each.replace(annotation=each.empty, default=_SOME if isinstance(each.default, FunctionType) else each.default)
        for each in named
    ]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


class _Some:
    """A default that is a function."""

    def __repr__(self) -> str:
        return "…"


_SOME = _Some()


# ── What operators see ───────────────────────────────────────────────────────────────────────────────────────────


def settings() -> Json:
    return {
        variable(each.name): present(
            wants=each.metadata["wants"],
            default=_default(each.name, each.default),
            help=each.metadata["about"],
            secret=each.metadata["secret"],
        )
        for each in fields(Settings)
    }


def _default(name: str, default: Any) -> Json:
    """As it would be set, in the unit of the setting; a path in the user's home begins with `~`."""
    match default:
        case timedelta():
            return default / (timedelta(days=1) if name.endswith("_days") else timedelta(seconds=1))
        case Path():
            return f"~/{default.relative_to(Path.home())}"
        case tuple():
            return ",".join(default)
        case bool():
            return "on" if default else "off"
        case _:
            return default


def metric_names() -> Json:
    found = {}
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            [described] = metric.describe()
            name = described.name + ("_total" if described.type == "counter" else "")
            found[name] = {"type": described.type, "labels": list(metric._labelnames)}  # noqa: SLF001
    return found


# ── Closed lists, and how the file is written ────────────────────────────────────────────────────────────────────


def values() -> Json:
    """Lists of names that appear in answers, in the database and in the environment."""
    return {
        "agent_kinds": agent_config.KINDS,
        "agent_variables": sorted(FOREIGN),
        "approval_statuses": list(ApprovalStatus),
        "desk_tools": sorted(agent_config.DESK_TOOLS),
        "error_classes": list(ErrorClass),
        "event_kinds": sorted(export.KINDS),
        "grant_scopes": [grant_scope.AGENT_RUN, grant_scope.ANY_AGENT, grant_scope.WORKSPACE_READ],
        "levels": list(Level),
        "mcp_versions": list(VERSIONS),
        "notification_kinds": list(Kind),
        "parts": list(PARTS),
        "run_sources": list(Source),
        "run_statuses": list(Status),
        "session_kinds": sorted(export.SESSION_KINDS),
        "session_statuses": list(SessionStatus),
        "session_verbs": list(Verb),
        "skip_reasons": list(SkipReason),
        "token_scopes": list(scope.ALL),
    }


def present(**facts: Json) -> dict[str, Json]:
    """These facts, without those that are None, False or an empty list."""
    return {name: fact for name, fact in facts.items() if fact is not None and fact is not False and fact != []}


def one_line(text: str) -> str:
    return " ".join(text.split())


def first_sentence(text: str) -> str:
    """Of the first paragraph. How docstrings are indented depends on the version of Python."""
    paragraph = one_line(inspect.cleandoc(text).partition("\n\n")[0])
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", paragraph, maxsplit=1)[0]


def write(value: Json, indent: int = 0, taken: int = 0) -> str:
    """JSON with sorted keys. A list or an object that fits into a line, of which so much is `taken`, is written in one:
    an entry is then a line of a diff."""
    flat = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if not value or not isinstance(value, dict | list | tuple) or (indent and taken + len(flat) <= WIDTH):
        return flat
    inner = indent + 1
    if isinstance(value, dict):
        entries = [(f"{json.dumps(key)}: ", each) for key, each in sorted(value.items())]
    else:
        entries = [("", each) for each in value]
    lines = [" " * inner + start + write(each, inner, inner + len(start)) for start, each in entries]
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opened, ",\n".join(lines), " " * indent + closed])


def text() -> str:
    return write(surface()) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
    sys.stdout.write(f"{FILE}\n")
