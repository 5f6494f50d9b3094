"""`rota events`: named things that happened, which fire the triggers that wait for them."""

from typing import Any

import click

from rota.cli.noun import JSON, Rota, asks_rota, with_fields

command = click.Group("events", help="Post events.")


@command.command()
@click.argument("name")
@click.argument("data", type=JSON, required=False)
@click.option("--key", help="Posted again with it, it is the same event")
@asks_rota
def post(rota: Rota, name: str, data: Any, key: str | None) -> None:
    """Fire every trigger that waits for NAME, with DATA as JSON (`-`: from the standard input).

    Prints the runs it started, which may be none.
    """
    fired = rota.ask("POST", "/events", with_fields({"data": data, "key": key}, ()) | {"event": name})
    if rota.as_json or fired["runs"]:
        rota.said(fired, "\n".join(fired["runs"]))
    else:
        click.secho("It started no run.", dim=True, err=True)
