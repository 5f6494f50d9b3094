"""A Rota in this process that answers requests and runs agents, for what the documentation says one can do."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from rota import executors
from rota.access import tokens
from rota.access.vault import open_vault
from rota.daemon import bind
from rota.db.listener import Listener, Wakes
from rota.db.pool import Database
from rota.http.app import create_app
from rota.http.context import Web
from rota.roster import agents
from rota.settings import Settings
from rota.trace.record import Recorder
from rota.worker.worker import Worker
from support.doc_requests import Api
from support.house import House
from support.running_worker import at_work


@pytest.fixture
def app(db: Database, wakes: Wakes, listener: Listener, tmp_path: Path) -> FastAPI:
    return create_app(Web(db, wakes, listener, Settings(allowed_hosts=("rota.test",)), open_vault(tmp_path)))


@pytest.fixture
async def token(house: House) -> str:
    async with house.db.transaction() as conn:
        return await tokens.create_as_operator(conn, "default", "docs")


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(transport=ASGITransport(app)) as open_client:
        yield open_client


@pytest.fixture
async def api(client: AsyncClient, token: str, house: House) -> Api:
    """With an agent `digest`, which the examples of the schedules use."""
    async with house.db.transaction() as conn:
        values = {"name": "Digest", "executor": "command", "config": {"argv": ["cat"]}}
        await agents.create(conn, house.caller, values)
    return Api(client, token)


@pytest.fixture
async def worker(db: Database, wakes: Wakes, listener: Listener, tmp_path: Path) -> AsyncIterator[Worker]:
    """A worker with the real executors."""
    recorder = Recorder(db, wakes)
    hired = Worker(
        db,
        wakes,
        recorder,
        executors.load(),
        url="http://rota.test",
        home=tmp_path / "home",
        vault=open_vault(tmp_path),
    )
    async with at_work(hired, recorder, listener):
        yield hired


@pytest.fixture
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The application behind a real port, for programs that are not ours."""
    listening = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await serving
    listening.close()
