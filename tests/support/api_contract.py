"""Whether the API and its description agree: any request to any route, by one of two tenants, and its answer judged."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar
from uuid import UUID

import pytest
import requests
import schemathesis
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    unsupported_method,
)  # fmt: skip

from rota.access.vault import Vault
from rota.db.listener import Listener, Wakes
from rota.db.pool import Database
from rota.errors import Invalid
from rota.http.app import create_app
from rota.http.context import Web
from rota.model.duration import parse_duration
from rota.settings import Settings
from support.api_client import Api, AtWork, Office, Site, assert_ok, furnish, opened, serving
from support.api_routes import create_one_of_each

T = TypeVar("T")

DESK = "/desk/"
STREAM = "/trace"
NOWHERE = "postgresql://rota@127.0.0.1:1/rota"
SECONDS = 20
MOMENT = "0.05s"
# A request may be well-formed and still wrong, such as a cron expression that never comes; and what is malformed on its
# way (an empty list in a query, a header that we replace) may be well-formed once it is sent.
BEYOND_A_SCHEMA = [positive_data_acceptance, negative_data_rejection]
# GET …/sessions/import is also the address of a session, whose id is not one; an automation may be called preview.
ALSO_A_NAME = ("/sessions/import", "/automations/preview")
OF_ONE_ADDRESS = [unsupported_method, allow_header_conformance]


def document() -> dict[str, Any]:
    db, listener = Database(NOWHERE), Listener(NOWHERE)
    web = Web(db, Wakes(db, listener), listener, Settings(home=Path("/nowhere")), Vault({"k1": bytes(32)}))
    return create_app(web).openapi()


@dataclass
class Tenant:
    """Somebody's workspace: what is in it, an agent at work there, and who asks."""

    office: Office
    api: Api
    things: dict[str, str]
    at_work: AtWork
    untouched: bool = True

    @classmethod
    async def move_in(cls, site: Site) -> "Tenant":
        office = await furnish(site)
        api = await office.api()
        found = await create_one_of_each(office, api)
        assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
        return cls(office, api, found, await office.claim())

    def headers(self, path: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.at_work.token if DESK in path else self.api.token}"}

    def address(self, path: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Of something that is there, except where the address can be nobody's."""
        known = {**self.things, "workspace": self.api.workspace, "key": "last"}
        if DESK in path:
            known["run"] = str(self.at_work.id)
        return {
            name: value if name.endswith("_id") and not is_id(value) else known[name.removesuffix("_id")]
            for name, value in parameters.items()
        }


def is_id(value: object) -> bool:
    try:
        return bool(UUID(str(value)))
    except ValueError:
        return str(value).isdigit()  # as messages are numbered


def would_wait(given: Any) -> bool:
    """A minute at most, for what nobody sends: the answer is the same after a moment."""
    try:
        return bool(parse_duration(given[-1] if isinstance(given, list) and given else given))
    except Invalid:
        return False


class Served:
    """The application on a loop of its own, for callers who wait for its answers."""

    def __init__(self, site: Site, address: str) -> None:
        self._site, self.address = site, address
        self._loop = asyncio.get_running_loop()
        self.session = requests.Session()
        self.reader: Tenant
        self.other: Tenant
        self._refused: Tenant | None = None

    @contextmanager
    def asker(self, method: str) -> Iterator[Tenant]:
        """Somebody in a workspace where nothing was changed before: who was only refused so far may ask again."""
        with nullcontext(self.reader) if method.upper() == "GET" else self._mover() as one:
            yield one

    @contextmanager
    def _mover(self) -> Iterator[Tenant]:
        one, self._refused = self._refused or self._do(Tenant.move_in(self._site)), None
        try:
            yield one
        finally:
            if one.untouched:
                self._refused = one
            else:
                self._do(one.office.leave())

    def close(self) -> None:
        if self._refused:
            self._do(self._refused.office.leave())

    @contextmanager
    def tenant(self) -> Iterator[Tenant]:
        """Somebody in a workspace of their own."""
        one = self._do(Tenant.move_in(self._site))
        yield one
        self._do(one.office.leave())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def judge(self, case: schemathesis.Case[Any], one: Tenant) -> None:
        """One tenant is answered as described; nothing of that can be had by another."""
        parameters = dict(case.path_parameters)
        case.path_parameters = one.address(case.path, parameters)
        if would_wait((case.query or {}).get("wait")):
            case.query = {**case.query, "wait": MOMENT}
        excluded = [*BEYOND_A_SCHEMA, *(OF_ONE_ADDRESS if case.path.endswith(ALSO_A_NAME) else [])]
        options: dict[str, Any] = {"base_url": self.address, "session": self.session, "timeout": SECONDS}
        if not case.path.endswith(STREAM):  # which goes on; its own tests read it
            one.untouched, before = False, one.untouched  # until it is known that this was refused
            answer = case.call_and_validate(headers=one.headers(case.path), excluded_checks=excluded, **options)
            one.untouched = before and answer.status_code >= 400
        other = self.other
        if "workspace" in parameters:
            answer = case.call(headers=other.headers(case.path), **options)
            assert 400 <= answer.status_code < 500
            case.path_parameters = {**case.path_parameters, "workspace": other.api.workspace}
            if len(parameters) > 1:
                answer = case.call(headers=other.headers(case.path), **options)
                assert 400 <= answer.status_code < 500


@pytest.fixture(scope="module")
def served(database_of_module: str) -> Iterator[Served]:
    """With two tenants: who reads, and who may have nothing of anybody's."""
    with _running(database_of_module) as here, here.tenant() as here.reader, here.tenant() as here.other:
        yield here
        here.close()


@contextmanager
def _running(url: str) -> Iterator[Served]:
    told: SimpleQueue[Served] = SimpleQueue()
    done = threading.Event()

    async def serve() -> None:
        async with opened(url) as site, serving(site) as address:
            here = Served(site, address)
            told.put(here)
            await asyncio.to_thread(done.wait)
            here.session.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield told.get(timeout=SECONDS)
    finally:
        done.set()
        thread.join()
