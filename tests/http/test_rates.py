"""How many requests a token, a login and a workspace may send, and agents that a shared server does not run."""

import asyncio
import time
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response

from rota import executors
from rota.db import people, rate_buckets
from rota.http.app import create_app
from rota.http.context import Web
from rota.http.limiting import BURST_SECONDS, Limits, is_near
from rota.model.agent_config import LOCAL_KINDS
from rota.model.outcome import ErrorClass, Failed
from support import api_client
from support.api_client import COOKIE, Api, Office, Site, assert_ok, assert_refused

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

FAR = ("203.0.113.7", 40000)


def limited(site: Site, client: tuple[str, int] = FAR, **settings: Any) -> tuple[Web, AsyncClient]:
    """Another process of the same server, with these limits, asked from elsewhere."""
    web = replace(site.web, settings=site.web.settings.with_options(**settings))
    transport = ASGITransport(create_app(web), client=client)
    return web, AsyncClient(transport=transport, base_url="http://rota.test")


async def draw(site: Site, office: Office, wanted: int, *, key: bytes = b"k", rate: int = 10, burst: int = 100) -> int:
    async with site.db.connection() as conn:
        drawn = await rate_buckets.draw(conn, office.caller.workspace_id, key, wanted=wanted, rate=rate, burst=burst)
    return drawn.taken


async def test_a_bucket_gives_what_is_in_it_and_fills_by_the_databases_clock(site: Site, office: Office) -> None:
    assert await draw(site, office, 60, rate=0) == 60
    assert await draw(site, office, 60, rate=0) == 40
    assert await draw(site, office, 60, rate=0) == 0
    await office.execute("UPDATE rate_buckets SET filled_at = filled_at - interval '2 seconds'")
    assert await draw(site, office, 60) >= 20
    await office.execute("UPDATE rate_buckets SET filled_at = filled_at - interval '1 hour'")
    assert await draw(site, office, 1000) == 100


async def test_processes_that_draw_at_once_get_no_more_than_there_is(site: Site, office: Office) -> None:
    drawn = await asyncio.gather(*(draw(site, office, 10, key=b"all", rate=0) for _ in range(20)))
    assert sum(drawn) == 100


async def ask_until_refused(asks: Iterable[Awaitable[Response]], *, learnt: int = 1, full: bool = True) -> Response:
    """The first refusal, after as many as a second brings and were in the bucket, and those by which a process learns
    whose they are. A slow machine is given more before it is refused, as anybody who takes their time."""
    began, let_in = time.monotonic(), 0
    for ask in asks:
        if (answer := await ask).status_code != 200:
            break
        let_in += 1
    stored = BURST_SECONDS if full else 0
    assert learnt + stored <= let_in <= learnt + stored + time.monotonic() - began + (not full)
    return answer


async def test_who_sends_too_much_is_told_when_to_come_back(site: Site, office: Office, api: Api) -> None:
    (_, client), (_, other) = (limited(site, rate_limit=1, workspace_rate_limit=0) for _ in range(2))
    asking, elsewhere = (Api(each, api.workspace, api.token) for each in (client, other))
    answer = await ask_until_refused(asking.get("/agents") for _ in count())
    told = assert_refused(answer, 429, "rate_limited")
    assert answer.headers["Retry-After"] == str(told["retry_after"]) == "1"
    assert_refused(
        await ask_until_refused((elsewhere.get("/agents") for _ in count()), full=False), 429, "rate_limited"
    )
    assert_ok(await Api(client, api.workspace, (await office.api()).token).get("/agents"), 200)


@pytest.mark.parametrize("beside", ["nobody", f"rota_run_{'0' * 32}_{'0' * 32}_1_{'x' * 16}"])
async def test_a_second_token_behind_the_first_is_no_way_around_it(site: Site, api: Api, beside: str) -> None:
    """Who is let in with the one is counted by it."""
    _, client = limited(site, rate_limit=1, workspace_rate_limit=0)
    both = [("Authorization", f"Bearer {each}") for each in (api.token, beside)]
    answer = await ask_until_refused(client.get(api.url("/agents"), headers=both) for _ in count())
    assert_refused(answer, 429, "rate_limited")


async def test_a_workspace_is_limited_whoever_sends(site: Site, office: Office, api: Api) -> None:
    _, client = limited(site, rate_limit=0, workspace_rate_limit=1)
    callers = [Api(client, api.workspace, (await office.api("viewer")).token) for _ in range(3)]
    answer = await ask_until_refused((callers[n % 3].get("/agents") for n in count()), learnt=3)
    assert "this workspace" in assert_refused(answer, 429, "rate_limited")["detail"]


async def test_a_login_is_limited_too(site: Site, office: Office, api: Api) -> None:
    from rota.access import signing_in

    async with office.db.transaction() as conn:
        login = await signing_in.sign_in(conn, await signing_in.create_link(conn, office.caller.user_id))
    _, client = limited(site, rate_limit=1, workspace_rate_limit=0)
    beside = {"Cookie": f'seen={{"tour": true}}; {COOKIE}={login}'}  # of another application at the same host
    asked = (client.get(api.url("/agents"), headers=beside) for _ in count())
    assert_refused(await ask_until_refused(asked), 429, "rate_limited")


async def test_a_login_counts_for_the_workspace_that_it_asks(site: Site, office: Office, api: Api) -> None:
    """Not for the first one that it was seen in."""
    from rota.access import signing_in

    other = await api_client.furnish(site)
    async with office.db.transaction() as conn:
        await people.add_member(conn, other.caller.workspace_id, office.caller.user_id, "viewer")
        login = await signing_in.sign_in(conn, await signing_in.create_link(conn, office.caller.user_id))
    _, client = limited(site, rate_limit=0, workspace_rate_limit=1)
    cookie = {"Cookie": f"{COOKIE}={login}"}
    assert_ok(await client.get(api.url("/agents"), headers=cookie), 200)
    theirs = f"/api/v1/workspaces/{other.caller.workspace_slug}/agents"
    answer = await ask_until_refused(client.get(theirs, headers=cookie) for _ in count())
    assert "this workspace" in assert_refused(answer, 429, "rate_limited")["detail"]
    assert_ok(await client.get(api.url("/agents"), headers=cookie), 200)


async def test_this_machine_agents_at_work_and_strangers_are_not_counted(site: Site, office: Office, api: Api) -> None:
    _, near = limited(site, ("127.0.0.1", 1), rate_limit=1, workspace_rate_limit=1)
    for _ in range(BURST_SECONDS * 2):
        assert_ok(await Api(near, api.workspace, api.token).get("/agents"), 200)
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    at_work = await office.claim()
    _, far = limited(site, rate_limit=1, workspace_rate_limit=1)
    for _ in range(BURST_SECONDS * 2):
        assert_ok(await Api(far, api.workspace, at_work.token).get("/agents/worker-bee"), 200)
        assert_refused(await Api(far, api.workspace, "rota_nobody").get("/agents"), 401, "unauthenticated")
    await office.settle(at_work)


async def test_most_requests_cost_no_write(
    site: Site, office: Office, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[Any] = []
    real = Limits._draw

    async def counted(self: Limits, bucket: Any) -> None:
        draws.append(bucket)
        await real(self, bucket)

    monkeypatch.setattr(Limits, "_draw", counted)
    _, client = limited(site, rate_limit=50, workspace_rate_limit=500)
    for _ in range(41):
        assert_ok(await Api(client, api.workspace, api.token).get("/agents"), 200)
    assert len(draws) == 4 + 1


@pytest.mark.parametrize(
    ("client", "near"),
    [(("127.0.0.1", 1), True), (("::1", 1), True), (None, True), (FAR, False), (("testclient", 1), False)],
)
async def test_near_is_this_machine_only(client: Any, near: bool) -> None:
    assert is_near(client) is near


# Shared servers -----------------------------------------------------------------------------------------------------


async def test_a_server_that_runs_no_programs_of_its_tenants_saves_no_such_agents(
    site: Site, office: Office, api: Api
) -> None:
    _, client = limited(site, local_agents=False)
    asking = Api(client, api.workspace, api.token)
    for kind, config in (("command", {"argv": ["true"]}), ("python", {"function": "json:dumps"})):
        body = {"name": "Mine", "executor": kind, "config": config}
        assert_refused(await asking.post("/agents", body), 403, "local_agents_off", "executor")
        assert_refused(
            await asking.patch("/agents/worker-bee", {"executor": kind}), 403, "local_agents_off", "executor"
        )
    assert_ok(
        await asking.post("/agents", {"name": "Far", "executor": "http", "config": {"url": "https://example.org/"}})
    )
    assert_ok(await asking.patch("/agents/worker-bee", {"name": "Renamed"}), 200)
    viewer = Api(client, api.workspace, (await office.api("viewer")).token)
    assert_refused(await viewer.post("/agents", {"name": "x", "executor": "command"}), 403, "forbidden")


async def test_its_workers_fail_what_is_there_already_and_say_why(tmp_path: Path) -> None:
    loaded = executors.load(["command", "python", "http"], barred=LOCAL_KINDS)
    assert type(loaded["http"]).__name__ == "HttpExecutor"
    for kind in ("command", "python"):
        outcome = await loaded[kind].execute(None, None)  # type: ignore[arg-type]
        assert isinstance(outcome, Failed)
        assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)
        assert "ROTA_LOCAL_AGENTS" in outcome.detail
