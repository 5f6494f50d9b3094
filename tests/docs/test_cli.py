"""docs/reference/cli.md and `rota --help` say the same: every command, every option, and examples that can be typed."""

import re
from collections.abc import Iterator

import click

from rota.cli import main
from support.curl import commands
from support.doc_pages import ROOT, blocks, spans, text_of

PAGE = ROOT / "docs" / "reference" / "cli.md"
OF_EVERY_NOUN = {"--url", "--token", "--workspace", "--json", "--help"}
LIKE_ANOTHER = {
    "agents edit": "agents create", "automations edit": "automations create", "triggers edit": "triggers add",
    "audit export": "audit list",
}  # fmt: skip

AT_THE_DATABASE = {"/tokens", "/tokens/{}"}
FOR_PROGRAMS = {"/healthz", "/readyz", "/metrics", "/hooks/{}"}
PATH = re.compile(r'"(?:\{self\._prefix\})?(/[^"]*)"')


def leaves(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group; the desk has a page of its own."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found
            if isinstance(found, click.Group):
                yield from leaves(found, (*path, name)) if name != "desk" else ()
            else:
                yield " ".join((*path, name)), found


def options_of(command: click.Command) -> set[str]:
    return {
        name for each in command.params if isinstance(each, click.Option) for name in (*each.opts, *each.secondary_opts)
    } | {"--help"}


def rows() -> dict[str, set[str]]:
    """What the page's tables tell: a command, and the options beside it."""
    cells = [line.strip("|").split("|") for line in text_of(PAGE).splitlines() if line.startswith("| `")]
    return {spans(command)[0]: set(spans(options)) for command, _, options in cells}


def test_every_command_and_option_is_told() -> None:
    told = rows()
    assert set(told) == {path for path, _ in leaves()}
    for path, command in leaves():
        named = told[path] | told.get(LIKE_ANOTHER.get(path, ""), set())
        assert options_of(command) - OF_EVERY_NOUN <= named, path
        assert {each for each in told[path] if each.startswith("-")} <= options_of(command), path


def test_every_command_has_an_example_that_can_be_typed() -> None:
    known = dict(leaves())
    shown = set()
    for _, *words in (each for block in blocks(PAGE, "sh") for each in commands(block.text)):
        path = next(path for path in (words[0], " ".join(words[:2])) if path in known)
        shown.add(path)
        assert {word for word in words if word.startswith("--")} <= options_of(known[path]), words
    assert shown == set(known)


def test_what_every_noun_takes_is_told() -> None:
    assert set(spans(text_of(PAGE))) >= OF_EVERY_NOUN - {"--help"}


def test_every_command_says_what_it_does_and_every_option_what_it_is_for() -> None:
    for path, command in leaves():
        assert command.help, path
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help or isinstance(option.type, click.Choice), (path, option.name)


def anonymous(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_every_route_of_the_api_has_a_command() -> None:
    """But for agents at work, who have the desk, and for other programs."""
    told = re.findall(r"^\| `[A-Z]+ (/\S+)` \|", text_of(ROOT / "docs" / "reference" / "api.md"), flags=re.MULTILINE)
    files = [*(ROOT / "src" / "rota" / "cli").rglob("*.py"), ROOT / "src" / "rota" / "client" / "rota.py"]
    asked = {anonymous(path) for file in files for path in PATH.findall(file.read_text())}
    verbs = {f"/{path.replace(' ', '/{}/')}" for path, _ in leaves()}
    missing = {anonymous(path) for path in told if "/desk/" not in path} - asked - verbs
    assert missing == AT_THE_DATABASE | FOR_PROGRAMS
