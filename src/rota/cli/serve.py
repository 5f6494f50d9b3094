"""`rota serve`: chosen parts of Rota in this process, any number of times."""

import asyncio
from pathlib import Path

import click

from rota.cli import options
from rota.daemon import PARTS, serve
from rota.logs import set_up


def _parts(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in value.split(",") if part.strip())
    for part in chosen:
        if part not in PARTS:
            raise click.BadParameter(f"{part!r} is none of {', '.join(PARTS)}.")
    if not chosen:
        raise click.BadParameter(f"Name at least one of {', '.join(PARTS)}.")
    return chosen


@click.command("serve")
@options.home
@options.host
@options.port
@click.option("--only", callback=_parts, default=",".join(PARTS), help="Parts to run, with commas: " + ", ".join(PARTS))
def command(home: Path | None, host: str | None, port: int | None, only: tuple[str, ...]) -> None:
    """Run parts of Rota. Each may run any number of times, on any number of machines, with one database."""
    settings = options.settings_with(home=home, host=host, port=port)
    set_up(settings.log_level, file=settings.log_file)
    asyncio.run(serve(settings, only))
