"""Options that several commands share; each wins over its `ROTA_…` variable."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rota.settings import Settings, read_settings

F = TypeVar("F", bound=Callable[..., Any])

home = click.option("--home", type=click.Path(path_type=Path), help="Where Rota keeps its files [ROTA_HOME, ~/.rota]")
host = click.option("--host", help="Address to listen on [ROTA_HOST, 127.0.0.1]")
port = click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on, 0 for any [ROTA_PORT, 7682]")


def settings_with(**options: Any) -> Settings:
    given = options.get("home")
    if given is not None:
        options["home"] = given.expanduser().absolute()
    return read_settings().with_options(**options)
