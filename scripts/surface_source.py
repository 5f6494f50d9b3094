"""What only the source tells: log events, error codes, and the fields of configurations and of the desk's line."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NoReturn

from rota import errors
from rota.errors import STATUS, Broken, CannotStart, Lost, RotaError
from rota.http.errors import CODES
from rota.model.run import SkipReason

SOURCE = Path(__file__).resolve().parents[1] / "src" / "rota"
# What these raise answers no request.
CALLERS = {
    SOURCE / "access" / "key_ring.py", SOURCE / "backup", SOURCE / "cli", SOURCE / "client", SOURCE / "db" / "dump.py",
}  # fmt: skip
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
ANY = "*"  # stands for fields that the caller names
ERRORS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RotaError)}
# The reasons for which a run is skipped that also refuse to start one by hand.
REFUSED_STARTS = (SkipReason.AGENT_PAUSED, SkipReason.GRANT_REVOKED, SkipReason.GRANT_EXPIRED, SkipReason.GRANT_SCOPE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def log_events() -> dict[str, dict[str, list[str]]]:
    """Every event that is logged as `log.level("event", extra={…})`, with its levels and the union of its fields."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: {"fields": set(), "levels": set()})
    for file, module in _modules(rf"\blog\.({'|'.join(LEVELS)})\("):
        for event, level, names in events_of(module, file.name):
            found[event]["levels"].add(level)
            found[event]["fields"].update(names)
    return {event: {kind: sorted(each) for kind, each in facts.items()} for event, facts in found.items()}


def events_of(module: ast.Module, file: str) -> Iterator[tuple[str, str, set[str]]]:
    keys = Keys(module, file)
    for call in _calls(module):
        match call.func:
            case ast.Attribute(value=ast.Name(id="log"), attr=level) if level in LEVELS:
                event = call.args[0]
                if not isinstance(event, ast.Constant):
                    raise SystemExit(f"{file}:{call.lineno}: the name of a log event must be a constant.")
                extra = [each.value for each in call.keywords if each.arg == "extra"]
                yield str(event.value), LEVELS[level], {key for given in extra for key in keys.of(given)}


def line_fields() -> dict[str, list[str]]:
    """The fields of the message that each method of `rota.agent.Context` sends to the desk."""
    module = _parse(SOURCE / "agent.py")
    keys = Keys(module, "agent.py")
    [context] = [each for each in module.body if isinstance(each, ast.ClassDef) and each.name == "Context"]
    found: dict[str, set[str]] = defaultdict(set)
    for method in (each for each in context.body if isinstance(each, Function)):
        for call in _calls(method):
            if getattr(call.func, "attr", "") in {"send", "request"}:
                found[method.name].update(keys.of(call.args[0]))
    return {verb: sorted(names - {"type"}) for verb, names in found.items()}


def config_fields() -> dict[str, list[str]]:
    """The fields of each object in the configuration of an agent: what `Fields` is told to know, by the function that
    reads the object."""
    found: dict[str, set[str]] = defaultdict(set)
    for _, module in _modules(r"\bFields\("):
        for function in (each for each in module.body if isinstance(each, Function)):
            for call in _calls(function):
                if getattr(call.func, "id", "") == "Fields":
                    known = call.args[1]
                    [text] = _values_of(module, known.id) if isinstance(known, ast.Name) else [known]
                    found[function.name.removeprefix("_").removeprefix("read_")].update(ast.literal_eval(text).split())
    return {name: sorted(each) for name, each in found.items()}


def _values_of(module: ast.Module, name: str) -> list[ast.expr]:
    return [value for node in module.body for value in _assigned(node, name)]


class Keys:
    """Finds the keys of a dict: of a literal, of a local variable that holds one, or of what a function returns."""

    def __init__(self, module: ast.Module, file: str) -> None:
        self._file = file
        self._functions = [node for node in ast.walk(module) if isinstance(node, Function)]

    def of(self, given: ast.expr) -> Iterator[str]:
        sources: list[ast.expr]
        match given:
            case ast.Dict(keys, values):
                yield from (str(each.value) for each in keys if isinstance(each, ast.Constant))
                sources = [value for key, value in zip(keys, values, strict=True) if key is None]
            case ast.Name(name) if any(each.args.kwarg and each.args.kwarg.arg == name for each in self._around(given)):
                yield ANY
                return
            case ast.Name(name):
                nodes = [node for function in self._around(given) for node in ast.walk(function)]
                yield from (key for node in nodes for key in _added(node, name))
                sources = [value for node in nodes for value in _assigned(node, name)] or self._unknown(given)
            case ast.Call(func=ast.Name(name)):
                nodes = [node for each in self._functions if each.name == name for node in ast.walk(each)]
                returned = [each.value for each in nodes if isinstance(each, ast.Return) and each.value]
                sources = returned or self._unknown(given)
            case _:
                self._unknown(given)
        for each in sources:
            yield from self.of(each)

    def _around(self, given: ast.expr) -> list[Function]:
        return [each for each in self._functions if each.lineno <= given.lineno <= (each.end_lineno or 0)]

    def _unknown(self, given: ast.expr) -> NoReturn:
        raise SystemExit(f"{self._file}:{given.lineno}: the fields are not known here; give them as a dict literal.")


def _assigned(node: ast.AST, name: str) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return [value]
        case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
            return [value]
        case _:
            return []


def _added(node: ast.AST, name: str) -> list[str]:
    """The key of `name["key"] = …`."""
    match node:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=target), slice=ast.Constant(value=str(key)))]):
            return [key] if target == name else []
        case _:
            return []


def error_codes() -> dict[str, list[int]]:
    """Every code with which Rota refuses a request, and its HTTP statuses."""
    found: dict[str, set[int]] = defaultdict(set)
    kinds: list[type[RotaError]] = [*STATUS, Broken]
    known = [
        *((kind.code, _status(kind)) for kind in kinds),
        *((code, status) for status, code in CODES.items()),
        *((str(reason), _status(errors.Conflict)) for reason in REFUSED_STARTS),
    ]
    for code, status in known:
        found[code].add(status)
    for file, module in _modules(r"\bcode=|\bproblem\("):
        if not CALLERS.intersection((file, *file.parents)):
            for code, status in codes_of(module):
                found[code].add(status)
    return {code: sorted(statuses) for code, statuses in found.items()}


def codes_of(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Codes given to an error, to a function of the module that makes one, or to `problem`."""
    makers = dict(_makers(module))
    for call in _calls(module):
        name, status, codes = getattr(call.func, "id", ""), 0, list[ast.expr]()
        if name == "problem" and isinstance(call.args[0], ast.Constant):
            status, codes = int(str(call.args[0].value)), call.args[1:2]
        elif name in makers:
            kind, position = makers[name]
            status, codes = _status(kind), call.args[position : position + 1]
        elif name in ERRORS and not issubclass(ERRORS[name], CannotStart | Lost):
            status, codes = _status(ERRORS[name]), _code(call)
        yield from ((str(code.value), status) for code in codes if isinstance(code, ast.Constant))


def _makers(module: ast.Module) -> Iterator[tuple[str, tuple[type[RotaError], int]]]:
    """Functions that make an error with the code they are given, and the position of that parameter."""
    for function in (node for node in module.body if isinstance(node, Function)):
        parameters = [each.arg for each in function.args.args]
        for call in _calls(function):
            kind = ERRORS.get(getattr(call.func, "id", ""))
            for code in _code(call):
                if kind and isinstance(code, ast.Name) and code.id in parameters:
                    yield function.name, (kind, parameters.index(code.id))


def _code(call: ast.Call) -> list[ast.expr]:
    return [each.value for each in call.keywords if each.arg == "code"]


def _status(kind: type[RotaError]) -> int:
    return next((STATUS[each] for each in kind.__mro__ if each in STATUS), 500)


def _modules(pattern: str) -> Iterator[tuple[Path, ast.Module]]:
    """The modules in which this pattern occurs: parsing all of them would take seconds."""
    for file in sorted(SOURCE.rglob("*.py")):
        if re.search(pattern, file.read_text()):
            yield file, _parse(file)


@cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))
