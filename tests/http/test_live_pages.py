"""Pages that stay true while they are open: what their stream sends, and when."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from httpx import AsyncClient

from rota.db.listener import Listener
from rota.http.context import Web
from rota.http.ui import agents, automations, live, sessions
from rota.http.ui.live import View
from rota.http.ui.speech import Teller
from rota.model.ids import new_id

LIST = "/w/default/automations"


@pytest.fixture
def asks() -> Any:
    """A request of a browser, as far as a stream looks at it."""
    url, query = SimpleNamespace(path=LIST), SimpleNamespace(multi_items=lambda: [("q", "x"), ("live", "0")])
    return SimpleNamespace(headers={}, cookies={}, method="GET", url=url, query_params=query)


def the_list() -> View:
    look = partial(automations._list, q="", status=None, before=None, gone="")
    return View("automations/list.html", "automations/_results.html", "automations/_list.html", look)


@asynccontextmanager
async def listening(request: Any, web: Web, house: Any, seen: str = "") -> AsyncIterator[Any]:
    feed = live.parts(request, web, house.caller, the_list(), seen)
    try:
        yield feed
    finally:
        await feed.aclose()


def mark(message: bytes) -> str:
    return message.decode().split("\n", 1)[0].removeprefix("id: ")


async def test_a_stream_sends_the_part_whenever_it_changed(asks: Any, web: Web, house: Any) -> None:
    automation_id = await house.automation({"cron": "0 9 * * *"})
    async with listening(asks, web, house) as feed:
        first = await anext(feed)
        assert b"Errand" in first
        assert b"<html" not in first
        assert b"q=x" in first  # forms lead back to the page with its search, not to its stream
        assert b"live=" not in first
        run = await house.ended_run(automation_id)
        second = await anext(feed)
        assert str(run["session_id"]).encode() in second
        assert mark(first) != mark(second)


async def test_who_has_seen_it_is_sent_nothing_until_it_changes(
    asks: Any, web: Web, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    await house.automation({"cron": "0 9 * * *"})
    view, looks, again = the_list(), 0, asyncio.Event()

    async def counted(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 3:
            again.set()
        return await view.look(*given)

    async with listening(asks, web, house) as feed:
        seen = mark(await anext(feed))
    feed = live.parts(asks, web, house.caller, replace(view, look=counted), seen)  # as another replica would be asked
    told, looked = asyncio.ensure_future(anext(feed)), asyncio.ensure_future(again.wait())
    await asyncio.wait({told, looked}, return_when=asyncio.FIRST_COMPLETED)
    assert not told.done()
    await house.execute("UPDATE triggers SET parked_error = 'odd'")
    assert b"odd" in await told
    await feed.aclose()


async def test_a_wake_is_not_waited_out(asks: Any, web: Web, house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_SECONDS", 3600.0)
    automation_id = await house.automation()
    async with listening(asks, web, house) as feed:
        await anext(feed)
        run = await house.ended_run(automation_id)
        waits = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0)
        web.wakes.send("rota_runs", [house.caller.workspace_id])
        assert str(run["session_id"]).encode() in await waits


async def test_what_happens_in_another_workspace_makes_nobody_look(
    asks: Any, web: Web, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def rest(changed: asyncio.Event, _: asyncio.Event) -> None:
        rested.put_nowait(changed)
        await changed.wait()

    monkeypatch.setattr(live, "_rest", rest)
    told = Listener("")  # it hears what this test says, and nothing else
    async with listening(asks, replace(web, listener=told), house) as feed:
        seen = mark(await anext(feed))
    feed = live.parts(asks, replace(web, listener=told), house.caller, the_list(), seen)
    looking = asyncio.ensure_future(anext(feed))
    changed = await rested.get()
    told.hear("rota_runs", [str(new_id())])
    assert not changed.is_set()
    for about in (str(house.caller.workspace_id), ""):  # nobody is named where something may have been lost
        told.hear("rota_runs", [about])
        assert changed.is_set()
        await rested.get()
    looking.cancel()
    await asyncio.wait({looking})


async def test_a_stream_ends_with_the_server(asks: Any, web: Web, house: Any) -> None:
    await house.automation()
    async with listening(asks, web, house) as feed:
        await anext(feed)
        web.closing.set()
        with pytest.raises(StopAsyncIteration):
            await anext(feed)


async def test_a_stream_ends_with_what_it_shows(admin: AsyncClient, asks: Any, web: Web, house: Any) -> None:
    await house.automation()
    found = await house.value("SELECT id FROM agents")
    view = View("", "", "agents/_agent.html", agents._look(web, str(found)))
    async with aclosing(live.parts(asks, web, house.caller, view, "")) as feed:
        await anext(feed)
        await house.execute("UPDATE automations SET deleted_at = now()")
        await house.execute("UPDATE agents SET deleted_at = now()")
        assert b"There is no such agent." in [told async for told in feed][-1]
    assert (await admin.get(f"/w/default/agents/{found}?live=0")).status_code == 404


async def test_a_page_names_its_stream_and_the_stream_answers(admin: AsyncClient, house: Any, web: Web) -> None:
    automation_id = await house.automation({"cron": "0 9 * * *"})
    web.closing.set()
    for path in (LIST, f"{LIST}?q=err&status=active", f"{LIST}/errand", "/w/default/runs", "/w/default/fleet"):
        page = (await admin.get(path)).text
        address = page.split('hx-sse:connect="')[1].split('"')[0].replace("&amp;", "&")
        assert address.startswith(path.replace("errand", str(automation_id)))
        answer = await admin.get(address)
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.content == b""


async def test_every_page_has_one_stream_which_answers(admin: AsyncClient, house: Any, web: Web) -> None:
    run = await house.ended_run(await house.automation({"cron": "0 9 * * *"}))
    await house.write_event(run, text="One.")
    await house.write_event(run, text="Two.")
    web.closing.set()
    session = f"/w/default/sessions/{run['session_id']}"
    settings = [f"/w/default/settings/{each}" for each in ("credentials", "grants", "accounts", "audit")]
    still = [
        f"{LIST}/new",
        f"{LIST}/errand/edit",
        f"{LIST}/errand?view=calendar",
        "/w/default/notifications/choices",
        *settings,
    ]
    for path in (LIST, session, f"{session}?before=2", "/w/default/notifications", "/w/default/approvals", *still):
        page = (await admin.get(path)).text
        assert page.count("hx-sse:connect=") == 1, path
        address = page.split('hx-sse:connect="')[1].split('"')[0].replace("&amp;", "&")
        assert (await admin.get(address)).headers["Content-Type"].startswith("text/event-stream"), path


async def test_the_stream_of_a_session_tells_its_top_too_and_leaves_its_place_alone(
    asks: Any, web: Web, house: Any
) -> None:
    """A browser that lost the line says where in the transcript it was: the top must not change that."""
    run = await house.running_run(await house.automation())
    said = sessions.messages(web, house.caller, run["session_id"], 0, Teller())
    feed = live.with_top(asks, web, house.caller, said)
    await house.write_event(run, text="Hello.")
    while not mark(await anext(feed)).isdigit():
        pass
    await house.add_question(run)
    while b'class="count">1<' not in (told := await anext(feed)):
        pass
    assert told.startswith(b"data: ")
    await feed.aclose()


async def test_who_lost_the_line_of_a_session_is_told_its_top_anew(asks: Any, web: Web, house: Any) -> None:
    """Nobody knows what it shows: a question may have been asked and shown since the page was loaded, and answered
    while the line was lost."""
    run = await house.ended_run(await house.automation())
    said = sessions.messages(web, house.caller, run["session_id"], 0, Teller())
    async with asyncio.timeout(10), aclosing(live.with_top(asks, web, house.caller, said)) as feed:
        told = b""
        while b"#asked" not in told:
            told = await anext(feed)
    assert b'class="count"' not in told
