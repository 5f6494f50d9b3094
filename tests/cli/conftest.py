"""The command line against a Rota in this process, behind a real port, that answers requests and runs agents."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from docs.conftest import app, client, served, token, worker

from rota.cli import main

__all__ = ["app", "client", "served", "token", "worker"]

Command = Callable[..., Awaitable[Result]]


@pytest.fixture
async def rota(served: str, token: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `rota …` as a person would; a code other than the one expected fails."""
    monkeypatch.setenv("ROTA_URL", served)
    monkeypatch.setenv("ROTA_TOKEN", token)
    monkeypatch.setenv("TZ", "UTC")

    async def run(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
        told = await asyncio.to_thread(CliRunner().invoke, main, arguments, input=stdin)
        if told.exception and not isinstance(told.exception, SystemExit):
            raise told.exception
        assert told.exit_code == code, told.output
        return told

    return run


@pytest.fixture
def answer(rota: Command) -> Callable[..., Awaitable[Any]]:
    """The same with `--json`, read."""

    async def run(*arguments: str, **options: Any) -> Any:
        return json.loads((await rota(*arguments, "--json", **options)).stdout)

    return run
