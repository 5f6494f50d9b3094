"""Sessions over HTTP: the list, where one came from, its log in pages, and its trace as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from httpx import AsyncClient, Response

from rota.db import events
from rota.db.events import NewEvent
from rota.db.listener import session_channel
from rota.model.ids import SessionId
from rota.trace.follow import Limits
from support import api_client
from support.api_client import UNKNOWN, Api, Office, assert_ok, assert_refused, example
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api, address = api_client.site, api_client.office, api_client.api, api_client.address

FIELDS = {
    "id", "kind", "status", "origin", "title", "goal", "automation_id", "agent_id", "imported", "last_seq", "created_at",
    "updated_at",
}  # fmt: skip


async def session_of(api: Api, **values: Any) -> str:
    """The session of a new automation's run: its log holds one event, that the run is queued."""
    automation = assert_ok(await api.post("/automations", example(**values)))
    return str(assert_ok(await api.post(f"/automations/{automation['id']}/run"))["session_id"])


async def say(office: Office, session_id: str, *texts: str) -> None:
    """Append output as a worker does: written and committed, then told."""
    new = [
        NewEvent(office.caller.workspace_id, SessionId(session_id), "output", {"text": text})  # type: ignore[arg-type]
        for text in texts
    ]
    async with office.db.transaction() as conn:
        await events.append(conn, new)
    office.site.web.wakes.send(session_channel(UUID(session_id)))


async def followed(office: Office, session_id: str, *, expected: bool = True) -> None:
    """Wait until this process listens for the session; or does so no more."""

    async def check() -> bool:
        return (session_channel(UUID(session_id)) in office.site.web.listener.handler_counts()) is expected

    await until(check)


async def forgotten(office: Office, session_id: str) -> None:
    await followed(office, session_id, expected=False)


async def stored(office: Office, session_id: str) -> list[tuple[int, str]]:
    async with office.db.connection() as conn:
        rows = await conn.execute("SELECT seq, kind FROM events WHERE session_id = %s ORDER BY seq", [session_id])
        return [(seq, kind) for seq, kind in await rows.fetchall()]


# Sessions -----------------------------------------------------------------------------------------------------------


async def test_a_session_is_shown_and_listed_newest_first_and_by_kind(api: Api) -> None:
    first = await session_of(api)
    second = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))["session_id"]
    shown = (await api.get(f"/sessions/{first}")).json()
    assert set(shown) == FIELDS
    assert (shown["kind"], shown["origin"], shown["title"]) == ("automation", "run_now", "Morning digest")
    assert (shown["status"], shown["last_seq"]) == ("active", 1)

    async def listed(**given: Any) -> list[str]:
        return [each["id"] for each in (await api.get("/sessions", **given)).json()["items"]]

    assert await listed() == [second, first]
    assert await listed(kind="interactive") == [second]
    assert await listed(kind="background") == []
    assert_refused(await api.get("/sessions", kind="secret"), 422, "invalid", "kind")


async def test_pages_of_sessions_go_on_where_they_stopped(api: Api) -> None:
    made_ids = [await session_of(api) for _ in range(3)]
    page = (await api.get("/sessions", limit=2)).json()
    rest = (await api.get("/sessions", limit=2, cursor=page["next_cursor"])).json()
    assert [each["id"] for each in page["items"] + rest["items"]] == made_ids[::-1]
    assert rest["next_cursor"] is None


async def test_a_session_ends_with_its_run(office: Office, api: Api) -> None:
    for outcome in ("done", "failed"):
        session = await session_of(api)
        at_work = await office.claim()
        await (office.settle(at_work) if outcome == "done" else office.fail(at_work))
        assert (await api.get(f"/sessions/{session}")).json()["status"] == outcome


async def test_the_origin_names_the_automation_and_the_run_that_began_it(office: Office, api: Api) -> None:
    session = await session_of(api)
    await office.claim()
    [run] = (await api.get("/runs", session=session)).json()["items"]
    assert (await api.get(f"/sessions/{session}/origin")).json() == {
        "automation_id": run["automation_id"], "automation_name": "Morning digest", "run_id": run["id"],
        "source": "run_now", "slot": None, "started_at": run["started_at"],
    }  # fmt: skip


async def test_a_session_that_no_automation_started_has_no_origin(api: Api) -> None:
    session = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))["session_id"]
    assert_refused(await api.get(f"/sessions/{session}/origin"), 404, "not_found")


@pytest.mark.parametrize("path", ["", "/origin", "/events", "/trace"])
async def test_a_session_that_is_not_there_is_not_found_and_what_is_no_id_is_refused(api: Api, path: str) -> None:
    assert_refused(await api.get(f"/sessions/{UNKNOWN}{path}"), 404, "not_found")
    assert_refused(await api.get(f"/sessions/latest{path}"), 422, "invalid", "session_id")


# Events in pages ----------------------------------------------------------------------------------------------------


async def test_events_come_in_order_after_a_number(office: Office, api: Api) -> None:
    session = await session_of(api)
    await say(office, session, "one", "two", "three")
    everything = (await api.get(f"/sessions/{session}/events")).json()
    assert [each["seq"] for each in everything["items"]] == [1, 2, 3, 4]
    assert [each["data"].get("text") for each in everything["items"]] == [None, "one", "two", "three"]
    assert everything["items"][0]["kind"] == "run"
    assert everything["items"][0]["data"]["prompt"] == "Summarise my inbox"
    assert everything["next_cursor"] is None
    later = (await api.get(f"/sessions/{session}/events", after=2)).json()
    assert [each["seq"] for each in later["items"]] == [3, 4]
    assert (await api.get(f"/sessions/{session}/events", after=2**63 - 1)).json()["items"] == []


async def test_events_can_be_paged_by_number_and_by_cursor(office: Office, api: Api) -> None:
    session = await session_of(api)
    await say(office, session, *"abcd")
    by_number: list[int] = []
    while found := (
        await api.get(f"/sessions/{session}/events", limit=2, after=by_number[-1] if by_number else 0)
    ).json()["items"]:
        by_number += [each["seq"] for each in found]
    by_cursor = [each["seq"] for each in await api.pages(f"/sessions/{session}/events", 2)]
    assert by_number == by_cursor == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("told", ["events", "transcript"])
async def test_a_page_of_large_events_ends_with_the_one_that_makes_it_a_megabyte(
    office: Office, api: Api, told: str
) -> None:
    session = await session_of(api)
    await say(office, session, *(f"{n}{'x' * 300_000}" for n in range(4)), "last")
    path = f"/sessions/{session}/{told}"
    page = assert_ok(await api.get(path, limit=100, after=1), 200)
    rest = assert_ok(await api.get(path, limit=100, cursor=page["next_cursor"]), 200)
    assert [len(json.dumps(each["items"])) // 1_000_000 for each in (page, rest)] == [1, 0]
    assert [each["data"]["text"][:4] for each in rest["items"]] == ["last"]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize("after", ["-1", "one", "1.5", str(2**63), "9" * 5000])
async def test_what_events_come_after_is_a_whole_number(api: Api, after: str) -> None:
    assert_refused(await api.get(f"/sessions/{UNKNOWN}/events", after=after), 422, "invalid", "after")


# The trace ----------------------------------------------------------------------------------------------------------


class Reader:
    """A client of the trace. Gives blocks as they stand between blank lines: fields, or a comment."""

    def __init__(self, answer: Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def block(self) -> dict[str, str]:
        block: dict[str, str] = {}
        async with asyncio.timeout(15):
            async for line in self._lines:
                if not line:
                    return block
                name, _, value = line.partition(":")
                assert name not in block
                block[name] = value.removeprefix(" ")
        raise EOFError

    async def event(self) -> dict[str, Any]:
        block = await self.block()
        assert list(block) == ["event", "id", "data"]
        told: dict[str, Any] = json.loads(block["data"])
        assert (block["event"], block["id"]) == (told["kind"], str(told["seq"]))
        return told

    async def events(self, count: int) -> list[int]:
        return [(await self.event())["seq"] for _ in range(count)]


@asynccontextmanager
async def reading(
    address: str, api: Api, session: str, *, last: str | None = None, **params: Any
) -> AsyncIterator[Reader]:
    headers = {"Authorization": f"Bearer {api.token}"} | ({"Last-Event-ID": last} if last is not None else {})
    async with (
        AsyncClient(base_url=address, timeout=20) as client,
        client.stream("GET", api.url(f"/sessions/{session}/trace"), headers=headers, params=params) as answer,
    ):
        yield Reader(answer)


async def test_the_trace_gives_what_is_stored_then_what_comes(office: Office, api: Api, address: str) -> None:
    session = await session_of(api)
    await say(office, session, "before")
    async with reading(address, api, session) as reader:
        assert reader.answer.headers["content-type"].startswith("text/event-stream")
        assert reader.answer.headers["cache-control"] == "no-store"
        assert (await reader.event())["kind"] == "run"
        told = await reader.event()
        assert (told["kind"], told["data"], told["seq"]) == ("output", {"text": "before"}, 2)
        for number in range(3):
            await say(office, session, f"live {number}")
            assert (await reader.event())["data"] == {"text": f"live {number}"}


async def test_text_of_many_lines_is_one_event(office: Office, api: Api, address: str) -> None:
    session = await session_of(api)
    text = "two\nlines\r\n\r\nid: 99\n\n: and more\u2028\x85"
    await say(office, session, text)
    async with reading(address, api, session, after=1) as reader:
        assert (await reader.event())["data"]["text"] == text


async def test_last_event_id_resumes_exactly_however_often_the_line_breaks(
    office: Office, api: Api, address: str
) -> None:
    session = await session_of(api)
    await say(office, session, *"abcdefgh")
    seen: list[int] = []
    for count in (1, 3, 2, 1):
        async with reading(address, api, session, last=str(seen[-1]) if seen else None) as reader:
            seen += await reader.events(count)
        await say(office, session, "meanwhile")
    async with reading(address, api, session, last=str(seen[-1])) as reader:
        seen += await reader.events(13 - len(seen))
    assert seen == [seq for seq, _ in await stored(office, session)] == list(range(1, 14))


async def test_last_event_id_wins_over_after_and_an_empty_one_says_nothing(
    office: Office, api: Api, address: str
) -> None:
    session = await session_of(api)
    await say(office, session, *"abc")
    async with reading(address, api, session, last="3", after=1) as reader:
        assert await reader.events(1) == [4]
    async with reading(address, api, session, last="", after=1) as reader:
        assert await reader.events(1) == [2]


@pytest.mark.parametrize(
    "last", ["x", "-1", "1.5", "0x1", "1 2", "1,2", "²", "٣", str(2**63), "9" * 20, "9" * 5000, "null"]
)
async def test_a_last_event_id_that_is_no_number_of_ours_is_refused(api: Api, last: str) -> None:
    session = await session_of(api)
    answer = await api.send("GET", f"/sessions/{session}/trace", headers={"Last-Event-ID": last.encode()})
    assert_refused(answer, 422, "invalid", "Last-Event-ID")


@pytest.mark.parametrize("last", ["7", str(2**63 - 1)])
async def test_a_number_that_is_not_there_yet_means_from_now_on(
    office: Office, api: Api, address: str, last: str
) -> None:
    """Otherwise a reader of a database that was restored would wait for ever for numbers it once saw."""
    session = await session_of(api)
    async with reading(address, api, session, last=last) as reader:
        await say(office, session, "next")
        assert (await reader.event())["seq"] == 2


async def test_two_readers_see_the_same(office: Office, api: Api, address: str) -> None:
    session = await session_of(api)
    async with reading(address, api, session) as one, reading(address, api, session) as two:
        await one.events(1)
        await say(office, session, "a", "b")
        assert await one.events(2) == [2, 3]
        assert await two.events(3) == [1, 2, 3]


async def test_a_reader_misses_nothing_of_a_writer_that_commits_late(office: Office, api: Api, address: str) -> None:
    """Promise 7: a number is given out under the session's lock, so a later one can't be seen before an earlier one."""
    session = await session_of(api)
    late = NewEvent(office.caller.workspace_id, SessionId(session), "output", {"text": "late"})  # type: ignore[arg-type]
    async with reading(address, api, session) as reader:
        assert await reader.events(1) == [1]
        async with office.db.connection() as slow:
            async with slow.transaction():
                await events.append(slow, [late])
                quick = asyncio.create_task(say(office, session, "quick"))
                await office.site.waiting_for_a_lock(1)
            await quick
        told = [await reader.event() for _ in range(2)]
    assert [(each["seq"], each["data"]["text"]) for each in told] == [(2, "late"), (3, "quick")]
    assert [seq for seq, _ in await stored(office, session)] == [1, 2, 3]


async def test_many_writers_at_once_leave_no_gap_and_no_repeat(office: Office, api: Api, address: str) -> None:
    session = await session_of(api)
    async with reading(address, api, session) as reader:
        writers = [asyncio.create_task(say(office, session, f"{number}", "and")) for number in range(20)]
        seen = await reader.events(41)
        await asyncio.gather(*writers)
    assert seen == list(range(1, 42))


async def test_a_reader_on_a_replica_that_hears_no_notification_still_gets_everything(
    office: Office, api: Api, address: str
) -> None:
    session = await session_of(api)
    async with reading(address, api, session) as reader:
        await reader.events(1)
        new = NewEvent(office.caller.workspace_id, SessionId(session), "output", {"text": "hush"})  # type: ignore[arg-type]
        async with office.db.transaction() as conn:
            await events.append(conn, [new])
        assert await reader.events(1) == [2]


async def test_a_keep_alive_carries_no_id(
    office: Office, api: Api, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(office.site.web.readers, "limits", Limits(poll_seconds=0.01, beat_seconds=0.02))
    session = await session_of(api)
    async with reading(address, api, session) as reader:
        assert await reader.events(1) == [1]
        for _ in range(3):
            assert await reader.block() == {"": "still here"}
        await say(office, session, "next")
        while (block := await reader.block()) == {"": "still here"}:
            pass
    assert block["id"] == "2"


async def test_a_reader_who_leaves_leaves_nothing_behind(office: Office, api: Api, address: str) -> None:
    session = await session_of(api)
    async with reading(address, api, session) as reader:
        await reader.events(1)
        await followed(office, session)
    await forgotten(office, session)


async def test_following_takes_no_connection_from_the_pool_while_it_waits(
    office: Office, api: Api, address: str
) -> None:
    session = await session_of(api)
    readers = 30  # more than the pool has
    async with AsyncClient(base_url=address, timeout=20) as client:
        headers = {"Authorization": f"Bearer {api.token}"}
        streams = [client.stream("GET", api.url(f"/sessions/{session}/trace"), headers=headers) for _ in range(readers)]
        answers = [await each.__aenter__() for each in streams]
        opened = [Reader(each) for each in answers]
        assert [await each.events(1) for each in opened] == [[1]] * readers
        await say(office, session, "to all")
        assert [await each.events(1) for each in opened] == [[2]] * readers
        for each in streams:
            await each.__aexit__(None, None, None)


async def test_a_session_in_which_an_automation_goes_on_is_not_archived(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(session="same")))
    path = f"/sessions/{saved['session_id']}"
    run = assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    assert_ok(await api.post(f"{path}/complete"), 200)
    told = assert_refused(await api.post(f"{path}/archive"), 409, "session_in_use")
    assert "`session: new`" not in told["detail"]
    await api.post(f"/runs/{run['id']}/cancel")
    told = assert_refused(await api.post(f"{path}/archive"), 409, "session_in_use")
    assert "`session: new`" in told["detail"]
    assert_ok(await api.patch(f"/automations/{saved['id']}", {"session": "new"}), 200)
    assert assert_ok(await api.post(f"{path}/archive"), 200)["status"] == "archived"


async def test_an_automation_that_goes_on_again_after_its_session_was_archived_has_a_new_one(api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(session="same")))
    automation, seen = f"/automations/{saved['id']}", {saved["session_id"]}

    async def put_away(session_id: str) -> None:
        for verb in ("complete", "archive"):
            assert_ok(await api.post(f"/sessions/{session_id}/{verb}"), 200)

    assert_ok(await api.patch(automation, {"session": "new"}), 200)
    await put_away(saved["session_id"])
    changed = assert_ok(await api.patch(automation, {"session": "same"}), 200)
    seen.add(changed["session_id"])
    assert (await api.delete(automation)).status_code == 204
    await put_away(changed["session_id"])
    restored = assert_ok(await api.post(f"{automation}/restore"), 200)
    assert len({*seen, restored["session_id"]}) == 3
    assert assert_ok(await api.get(f"/sessions/{restored['session_id']}"), 200)["status"] == "active"
    assert assert_ok(await api.patch(automation, {"name": "Same"}), 200)["session_id"] == restored["session_id"]


async def test_an_automation_that_goes_on_in_a_session_that_was_ended_by_hand_makes_it_active_again(
    office: Office, api: Api
) -> None:
    saved = assert_ok(await api.post("/automations", example(session="same")))
    assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    at_work = await office.claim()
    session = f"/sessions/{at_work.assignment.session_id}"
    await office.settle(at_work)
    assert_ok(await api.post(f"{session}/complete"), 200)
    assert_ok(await api.post(f"/automations/{saved['id']}/run"))
    assert assert_ok(await api.get(session), 200)["status"] == "active"
    told = assert_ok(await api.get(f"{session}/events"), 200)["items"]
    assert [each["data"]["status"] for each in told if each["kind"] == "session"] == ["done", "active"]


async def test_a_turn_that_its_budget_keeps_from_starting_leaves_its_session_ended(office: Office, api: Api) -> None:
    assert_ok(await api.post("/automations", example(run_immediately=True)))
    at_work = await office.claim()
    await office.settle(at_work)
    [account] = assert_ok(await api.get("/accounts"), 200)["items"]
    ten = {"per_run": {"tokens": 10}, "per_month": {"tokens": 10}}
    assert_ok(await api.patch(f"/accounts/{account['id']}", {"budget": ten}), 200)
    assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    session = f"/sessions/{at_work.assignment.session_id}"
    run = assert_ok(await api.post(f"{session}/messages", {"prompt": "And now?"}))
    assert (run["skip_reason"], assert_ok(await api.get(session), 200)["status"]) == ("budget", "done")
