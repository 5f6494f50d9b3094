"""src/rota/surface.json: it says what the code offers, and nothing of the machine that wrote it."""

import ast
import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import surface
import surface_source
from rota.http.attempt_access import DESK
from rota.http.routes import API
from surface_source import SOURCE

SHOWN = 200  # lines of a difference


@pytest.fixture(scope="module")
def generated() -> str:
    return surface.text()


@pytest.fixture(scope="module")
def contents(generated: str) -> Any:
    return json.loads(generated)


def test_the_file_is_up_to_date(generated: str) -> None:
    committed = surface.FILE.read_text() if surface.FILE.exists() else ""
    lines = difflib.unified_diff(
        committed.splitlines(),
        generated.splitlines(),
        "src/rota/surface.json",
        "what the code offers",
        n=8,
        lineterm="",
    )
    if changed := list(lines):
        more = [f"… and {len(changed) - SHOWN} more lines"] if len(changed) > SHOWN else []
        told = "The public surface has changed. Run `make surface`, and commit the file if the change is meant."
        pytest.fail("\n".join([told, *changed[:SHOWN], *more]), pytrace=False)


def test_every_reference_leads_to_a_schema(contents: Any) -> None:
    named = {each.removeprefix("#/schemas/") for each in references(contents)}
    assert len(named) > 50
    assert named <= contents["schemas"].keys()


def references(value: Any) -> Iterator[str]:
    match value:
        case {"$ref": str(reference)}:
            yield reference
        case dict():
            yield from (each for inner in value.values() for each in references(inner))
        case list():
            yield from (each for inner in value for each in references(inner))


def test_every_tool_and_every_verb_of_the_desk_is_an_operation(contents: Any) -> None:
    offered = {f"{each['method']} {each['path'].removeprefix(API)}".strip() for each in contents["operations"]}
    desk = DESK.removeprefix(API)
    verbs = [operation.split() for verb in contents["desk"].values() for operation in verb.get("operations", ())]
    assert {tool["route"] for tool in contents["mcp_tools"].values()} <= offered
    assert {f"{method} {desk}{path}" for method, path in verbs} == {each for each in offered if desk in each}


def test_an_operation_says_who_may_call_it_and_what_is_written_of_it(contents: Any) -> None:
    found = {f"{each['method']} {each['path'].removeprefix(API)}": each for each in contents["operations"]}
    facts = ("scope", "attempt_token", "audit", "idempotency_key", "public")

    def told(operation: str) -> dict[str, Any]:
        return {name: found[operation][name] for name in facts if name in found[operation]}

    assert told("POST /automations/{automation}/pause") == {
        "scope": "write", "attempt_token": "closed", "audit": "automation.pause", "idempotency_key": True,
    }  # fmt: skip
    assert told("GET /runs") == {"scope": "read", "attempt_token": {"own": ["automation", "session"]}}
    assert told("GET /workers") == {"scope": "read", "attempt_token": "workspace:read"}
    assert told("GET /me") == {"scope": "read", "attempt_token": "closed"}
    assert told("POST /runs/{run_id}/desk/say") == {"scope": "run", "attempt_token": "desk", "idempotency_key": True}
    assert told("POST /notifications/read") == {
        "scope": "write", "attempt_token": "closed", "idempotency_key": True,
    }  # fmt: skip
    assert told("PUT /me/password")["audit"] == "me.password"  # it opens its transaction by itself
    assert told("GET /healthz") == {"public": True}


def test_nothing_depends_on_the_machine(generated: str) -> None:
    for word in (str(Path.home()), str(SOURCE.parents[1]), " at 0x", "<function", "<object"):
        assert word not in generated


def test_an_entry_that_fits_is_a_line() -> None:
    options = [{"name": "b", "help": "x" * 60}, {"name": "a", "help": "y" * 60}]
    assert surface.write({"z": {"options": options, "empty": []}, "a": 1}) == dedent(f"""\
        {{
         "a": 1,
         "z": {{
          "empty": [],
          "options": [
           {{"help": "{"x" * 60}", "name": "b"}},
           {{"help": "{"y" * 60}", "name": "a"}}
          ]
         }}
        }}""")


@pytest.mark.parametrize(
    ("text", "help_line"),
    [
        ("One thing.", "One thing."),
        ("One\n    thing. Then\n    another.", "One thing."),
        ("Runs at 9.30 a.m. in UTC", "Runs at 9.30 a.m. in UTC"),
        ("No full stop\n\nA second paragraph.", "No full stop"),
    ],
)
def test_the_help_is_the_first_sentence(text: str, help_line: str) -> None:
    assert surface.first_sentence(text) == help_line


# What is read from the source -----------------------------------------------------------------------------------------


def logged(source: str) -> list[tuple[str, str, set[str]]]:
    return list(surface_source.events_of(ast.parse(dedent(source)), "module.py"))


def test_fields_of_a_log_event_are_found_where_they_are_given() -> None:
    assert logged("""
        def facts(run):
            return {"run_id": run.id, "attempt": run.attempt}

        def work(run, **more):
            log.info("a.literal", extra={"one": 1})
            log.exception("a.function", extra=facts(run))
            own: dict[str, object] = {**facts(run), "two": 2}
            own["three"] = 3
            log.warning("a.variable", extra={**own, "four": 4})
            log.debug("no.fields", exc_info=True)
            log.error("any.fields", extra=more)
    """) == [
        ("a.literal", "info", {"one"}),
        ("a.function", "error", {"run_id", "attempt"}),
        ("a.variable", "warning", {"run_id", "attempt", "two", "three", "four"}),
        ("no.fields", "debug", set()),
        ("any.fields", "error", {"*"}),
    ]


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("log.info(name)", "module.py:1: the name of a log event must be a constant."),
        ('log.info("event", extra=elsewhere.facts())', "module.py:1: the fields are not known here"),
        ('log.info("event", extra=given)', "module.py:1: the fields are not known here"),
        ('log.info("event", extra=imported())', "module.py:1: the fields are not known here"),
    ],
)
def test_what_cannot_be_read_is_refused(statement: str, wrong: str) -> None:
    with pytest.raises(SystemExit, match=wrong):
        logged(statement)


def test_codes_are_found_with_their_statuses() -> None:
    module = ast.parse(
        dedent("""
        def _refuse(message, code):
            return Unauthenticated(message, code=code)

        def work():
            problem(503, "busy", "Later.")
            Conflict("Twice.", code="twice")
            Broken("Lost.", code="blob_missing")
            CannotStart("No.", code="no_start")
            _refuse("Who?", "unsigned")
            Invalid("Wrong.")
        """)
    )
    assert set(surface_source.codes_of(module)) == {
        ("busy", 503), ("twice", 409), ("blob_missing", 500), ("unsigned", 401),
    }  # fmt: skip
