"""The command line against a Rota in this process, behind a real port, that answers requests and runs agents."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from rota import executors
from rota.cli import main
from rota.trace.record import Recorder
from rota.worker.worker import Worker
from support import api_client
from support.api_client import Office, Site
from support.running_worker import at_work

site, office, address = api_client.site, api_client.office, api_client.address

Command = Callable[..., Awaitable[Result]]
Answer = Callable[..., Awaitable[Any]]


@pytest_asyncio.fixture(loop_scope="module")
async def rota(address: str, office: Office, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `rota …` as the admin of a workspace would; a code other than the one expected fails."""
    api = await office.api()
    for name, value in {"URL": address, "TOKEN": api.token, "WORKSPACE": api.workspace}.items():
        monkeypatch.setenv(f"ROTA_{name}", value)

    async def run(*arguments: str, code: int = 0, stdin: str | bytes | None = None) -> Result:
        told = await asyncio.to_thread(CliRunner().invoke, main, arguments, input=stdin)
        if told.exception and not isinstance(told.exception, SystemExit):
            raise told.exception
        assert told.exit_code == code, told.output
        return told

    return run


@pytest.fixture
def answer(rota: Command) -> Answer:
    """The same with `--json`, read."""

    async def run(*arguments: str, **options: Any) -> Any:
        return json.loads((await rota(*arguments, "--json", **options)).stdout)

    return run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(site: Site, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    """A worker with the real executors, from here on for all tests of a module."""
    web, home = site.web, tmp_path_factory.mktemp("worker")
    recorder = Recorder(web.db, web.wakes)
    hired = Worker(
        web.db, web.wakes, recorder, executors.load(), url="http://rota.test", home=Path(home), vault=web.vault
    )
    async with at_work(hired, recorder, web.listener):
        yield hired
