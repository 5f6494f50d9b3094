"""Options that several commands share; each wins over its `ROTA_…` variable."""

import json
import os
from pathlib import Path
from typing import Any

import click

from rota.errors import Invalid, Unauthenticated
from rota.settings import Settings, read_settings

home = click.option("--home", type=click.Path(path_type=Path), help="Where Rota keeps its files [ROTA_HOME, ~/.rota]")
host = click.option("--host", help="Address to listen on [ROTA_HOST, 127.0.0.1]")
port = click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on, 0 for any [ROTA_PORT, 7682]")


def _here() -> str:
    """Where a `rota up` that runs on this machine answers, as it wrote down in its home; else at `ROTA_PORT`."""
    home = Path(os.environ.get("ROTA_HOME") or "~/.rota").expanduser()
    return up_at(home) or f"http://127.0.0.1:{_port()}"


def _port() -> int:
    port = os.environ.get("ROTA_PORT") or "7682"
    if not (port.isascii() and port.isdecimal() and len(port) <= len("65535") and int(port) <= 65535):
        raise Invalid(f"ROTA_PORT must be a port from 0 to 65535, not {port!r}.", field="ROTA_PORT")
    return int(port) or 7682  # 0 is any free port, which only the home of a `rota up` knows


def up_at(home: Path) -> str | None:
    import psutil  # noqa: PLC0415 — agents call `rota desk` often, which knows where Rota is

    try:
        told = json.loads((home / "up.lock").read_text())
        return str(told["url"]) if psutil.pid_exists(told["pid"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


url = click.option(
    "--url", envvar="ROTA_URL", default=_here, help="Where Rota answers [ROTA_URL, this machine at ROTA_PORT]"
)
token = click.option("--token", envvar="ROTA_TOKEN", help="`rota tokens create NAME` makes one [ROTA_TOKEN]")


def known(token: str | None) -> str:
    """The token that was given."""
    if not token:
        raise Unauthenticated(
            "Who are you? Give a token as --token or ROTA_TOKEN; `rota tokens create NAME` makes one.", field="token"
        )
    return token


class Seconds(click.ParamType):  # type: ignore[type-arg]
    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """`90`, `90s`, `15m` or `1h`."""
        text = str(value)
        unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
        try:
            seconds = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            self.fail(f"{text!r} is no time; write 90s, 15m or 1h.", param, ctx)
        if not 0 <= seconds < 1e9:
            self.fail(f"{text!r} is no time to wait.", param, ctx)
        return seconds


def settings_with(**options: Any) -> Settings:
    given = options.get("home")
    if given is not None:
        options["home"] = given.expanduser().absolute()
    return read_settings().with_options(**options)
