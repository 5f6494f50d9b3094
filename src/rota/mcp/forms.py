"""What a tool takes: the path, query and body of its route as one flat object, from the API's own description."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rota.mcp.tools import Tool

PREFIX = "/api/v1/workspaces/{workspace}"
KEY_HEADER, KEY = "Idempotency-Key", "idempotency_key"
KEY_SCHEMA = {
    "type": "string",
    "description": "Any text of your own. A call that is made again with the same one is done once.",
}
USUAL_LIMIT = 20  # a page of the API is made for programs; a model reads every word
VERBATIM = frozenset({"default", "examples", "enum", "const"})
NOISE = frozenset({"title", "discriminator"})

Place = Literal["path", "query", "header", "body"]


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    place: Place
    schema: Any
    required: bool


@dataclass(frozen=True, slots=True)
class Form:
    """The arguments of one tool, and where each goes."""

    arguments: Mapping[str, Argument]

    def schema(self, example: dict[str, Any]) -> dict[str, Any]:
        required = [each.name for each in self.arguments.values() if each.required]
        optional = [name for name in self.arguments if name not in required]
        return {
            "type": "object",
            "properties": {name: self.arguments[name].schema for name in (*required, *optional)},
            **({"required": required} if required else {}),
            "additionalProperties": False,
            "examples": [example],
        }


def form_of(tool: Tool, document: Mapping[str, Any]) -> Form:
    """From the OpenAPI document of the application."""
    operation = document["paths"][PREFIX + tool.path][tool.method.lower()]
    schemas = document["components"]["schemas"]
    arguments: dict[str, Argument] = {}
    for each in (*_parameters(operation, schemas), *_fields(operation, schemas, tool.body)):
        if each.name in arguments:
            raise ValueError(f"{tool.name} would take {each.name} twice")
        arguments[each.name] = each
    return Form(arguments)


def _parameters(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[Argument]:
    for given in operation.get("parameters", ()):
        argument = Argument(
            given["name"], given["in"], _resolved(given["schema"], schemas), given.get("required", False)
        )
        if argument.name == "limit":
            yield replace(argument, schema={**argument.schema, "default": USUAL_LIMIT})
        elif argument.name == KEY_HEADER:
            yield replace(argument, name=KEY, schema=KEY_SCHEMA)
        elif argument.place == "path" and argument.name != "workspace":
            about = "Id" if argument.name.endswith("_id") else "Id or slug"
            yield replace(argument, schema={**argument.schema, "description": about})
        elif argument.place == "query":
            yield argument


def _fields(operation: Mapping[str, Any], schemas: Mapping[str, Any], chosen: str) -> Iterator[Argument]:
    body = operation.get("requestBody")
    if body is None:
        return
    [shape] = _objects(body["content"]["application/json"]["schema"], schemas, chosen)
    for name, schema in shape["properties"].items():
        yield Argument(name, "body", _resolved(schema, schemas), name in shape.get("required", ()))


def _objects(schema: Mapping[str, Any], schemas: Mapping[str, Any], chosen: str) -> Iterator[Mapping[str, Any]]:
    """The forms a body may have; only the chosen one, if one is."""
    if reference := schema.get("$ref"):
        name = _name(reference)
        if chosen in {"", name}:
            yield schemas[name]
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _objects(each, schemas, chosen)


def _resolved(schema: Any, schemas: Mapping[str, Any], within: frozenset[str] = frozenset()) -> Any:
    """The schema with all that it refers to in its place, without the titles that only repeat its names."""
    if isinstance(schema, list):
        return [_resolved(each, schemas, within) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if reference := schema.get("$ref"):
        name = _name(reference)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return {} if name in within else _resolved({**schemas[name], **beside}, schemas, within | {name})
    return {
        key: value if key in VERBATIM else _inner(key, value, schemas, within)
        for key, value in schema.items()
        if key not in NOISE
    }


def _inner(key: str, value: Any, schemas: Mapping[str, Any], within: frozenset[str]) -> Any:
    if key == "properties":  # its keys are names, also where one is `title`
        return {name: _resolved(each, schemas, within) for name, each in value.items()}
    return _resolved(value, schemas, within)


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
