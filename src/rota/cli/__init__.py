"""The command line: a file for each command, imported only when it is used, so that help answers at once."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import click
from click.exceptions import NoSuchCommand

from rota import __version__
from rota.cli.showing import clean, wants_colour
from rota.errors import BrokeOff, RotaError

# httpx would load what its own command line draws with: a quarter of the time in which `rota desk` starts.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

BROKE_OFF, REFUSED, INTERRUPTED = 1, 2, 130
COMMANDS = {
    "up": "Run everything, on the embedded PostgreSQL unless ROTA_DATABASE_URL is set.",
    "serve": "Run chosen parts of Rota: api, scheduler, worker, watch.",
    "doctor": "Check the settings, the database and the fleet.",
    "backup": "Write the database and the artifacts to a file, while Rota runs.",
    "restore": "Fill a new home, or an empty database, from such a file.",
    "tokens": "Make tokens for scripts.",
    "keys": "Turn the vault's ring of keys, and see what is sealed with which.",
    "apply": "Create and change the agents and automations that files of YAML describe.",
    "agents": "List, show, save, run, pause and delete agents.",
    "automations": "List, show, save, run, pause and delete automations; ask what a schedule would do.",
    "triggers": "List, show, add, change and delete triggers of an automation.",
    "runs": "List, show, follow, cancel and retry runs.",
    "sessions": "List, show, open and follow sessions, speak in them, export and import them.",
    "messages": "List, show, publish and acknowledge messages of a session.",
    "artifacts": "List, download and add what is left in a session.",
    "memory": "List, read, set and delete what an automation remembers.",
    "approvals": "List, show and answer what agents ask.",
    "events": "Post events.",
    "workers": "List workers.",
    "executors": "List and show the kinds of agents, and who serves them.",
    "snapshots": "List how machines and workers were doing.",
    "grants": "List, show and revoke grants.",
    "accounts": "List, show and save accounts, and see what they were charged with.",
    "usage": "See what was spent, and what this month will cost.",
    "credentials": "List, save and delete secrets for agents. Never shows a value.",
    "workspace": "Show and change the workspace: its name, zone and limits.",
    "members": "List, show, invite, change and remove members.",
    "me": "Show and change who you are: name, password, where you are signed in.",
    "notifications": "List and read your notifications, and choose what you hear of and where.",
    "audit": "List and export the audit log. For admins.",
    "desk": "Work at the desk of a run: say, message, ask and more, for scripts that Rota runs.",
    "mcp": "Give Claude and other clients of the Model Context Protocol Rota's abilities as tools.",
    "workspaces": "Make workspaces beside the first one, and list them.",
    "sign-in": "Print a new link to sign in with.",
    "users": "List people, switch their accounts off and on, and let them sign in with a new identity.",
}

PREDICATES = ("must ", "is ", "holds ", "names ", "needs ", "cannot ")  # of a refusal whose subject is the field


class Commands(click.Group):
    def list_commands(self, _: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"rota.cli.{name.replace('-', '_')}").command
        return command

    def resolve_command(self, context: click.Context, words: list[str]) -> Any:
        try:
            return super().resolve_command(context, words)
        except NoSuchCommand:  # which knows only of commands that are imported
            raise NoSuchCommand(words[0], possibilities=COMMANDS, ctx=context) from None

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except RotaError as refused:
            for line in refusal_lines(refused):
                click.secho(line, fg="red", err=True)
            sys.exit(BROKE_OFF if isinstance(refused, BrokeOff) else REFUSED)
        except KeyboardInterrupt:  # somebody's own wish, so nothing went wrong
            if sys.stderr.isatty():
                click.echo(err=True)
            sys.exit(INTERRUPTED)


def refusal_lines(refused: RotaError) -> Iterator[str]:
    """What was wrong; of several fields, each. A refusal repeats what people typed, which no terminal may obey."""
    wrong = refused.facts.get("errors")
    if isinstance(wrong, list) and len(wrong) > 1 and all(_is_field(each) for each in wrong):
        yield f"rota: {len(wrong)} fields are wrong."
        yield from (f"  {clean(each['field'])}: {clean(each['message'])}" for each in wrong)
    else:
        yield f"rota: {clean(_with_field(refused))}"


def _is_field(told: object) -> bool:
    """As Rota tells of it; whoever else answers at ROTA_URL may mean anything by the name."""
    return isinstance(told, dict) and all(isinstance(told.get(name), str) for name in ("field", "message"))


def _with_field(refused: RotaError) -> str:
    """Options and settings are named in their refusals; a field of the API may have to be."""
    field = refused.field or ""
    last, told = field.rpartition(".")[2].lower(), refused.message.lower()
    mentioned = (last in told or last.replace("_", " ") in told) and not told.startswith(PREDICATES)
    named = field.startswith(("-", "ROTA_")) or mentioned
    return refused.message if not field or named else f"{field}: {refused.message}"


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "color": wants_colour()})
@click.version_option(__version__, prog_name="rota")
def main() -> None:
    """Rota, a duty roster for AI agents: saved prompts that run on a schedule, durably."""
