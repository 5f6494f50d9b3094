"""Who follows a trace must keep up, and must still be allowed to."""

import asyncio
import socket
from collections import Counter
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from httpx import AsyncClient, Response

from rota.access.signing_in import hashed
from rota.http import admitting, streams
from rota.trace.follow import Limits
from support import api_client
from support.api_client import Api, Office, assert_ok, assert_refused
from support.waiting import until

from .test_api_sessions import Reader, followed, forgotten, reading, say, session_of
from .test_slow_clients import server_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api, address = api_client.site, api_client.office, api_client.api, api_client.address


async def test_a_reader_who_takes_nothing_is_cut_off_and_nothing_is_kept_for_it(
    office: Office, api: Api, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CUT_OFF_SECONDS", 0.3)
    session = await session_of(api)
    with closing(_stalled(address, api, session)):
        await followed(office, session)
        for _ in range(40):
            await say(office, session, "x" * 500_000)
        await forgotten(office, session)


def _stalled(address: str, api: Api, session: str) -> socket.socket:
    """A client that asks and then reads nothing."""
    there = urlsplit(address)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect((there.hostname, there.port))
    path = api.url(f"/sessions/{session}/trace")
    reader.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n\r\n".encode())
    return reader


async def test_a_reader_whose_token_was_revoked_is_shown_no_more(
    office: Office, api: Api, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ASK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(office.site.web.readers, "limits", Limits(beat_seconds=0.05))
    reader_of_one = await office.api("viewer")
    session = await session_of(api)
    async with reading(address, reader_of_one, session) as reader:
        await reader.events(1)
        await say(office, session, "still allowed")
        while "id" not in await reader.block():
            pass
        async with office.db.connection() as conn:
            await conn.execute("UPDATE tokens SET revoked_at = now() WHERE workspace_id = %s AND secret_hash = %s",
                               [office.caller.workspace_id, hashed(reader_of_one.token)])  # fmt: skip
        with pytest.raises(EOFError):
            await _nothing_but_beats(reader)


async def _nothing_but_beats(reader: Reader) -> None:
    while True:
        assert "id" not in await reader.block()


async def test_many_readers_are_told_at_once(office: Office, api: Api, address: str) -> None:
    session = await session_of(api)

    async def read(started: asyncio.Event) -> list[int]:
        async with reading(address, api, session) as reader:
            seen = await reader.events(1)
            started.set()
            return seen + await reader.events(2)

    begun = [asyncio.Event() for _ in range(60)]
    crowd = [asyncio.create_task(read(each)) for each in begun]
    await asyncio.gather(*(each.wait() for each in begun))
    await say(office, session, "to", "all")
    assert await asyncio.gather(*crowd) == [[1, 2, 3]] * 60


CROWD = 80


async def test_streams_that_are_opened_at_once_are_admitted_in_turn(
    office: Office, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(office.db._pool, "max_waiting", 20)  # fewer than come
    monkeypatch.setattr(admitting, "ADMIT_SECONDS", 60.0)  # on a busy machine
    session = await session_of(api)
    async with server_of(office.site, max_streams=CROWD) as address:
        answers = await asyncio.gather(*(_status(address, api, session) for _ in range(CROWD)))
    assert Counter(answers) == {200: CROWD}


async def _status(address: str, api: Api, session: str) -> int:
    there = urlsplit(address)
    reader, writer = await asyncio.open_connection(there.hostname, there.port)
    path = api.url(f"/sessions/{session}/trace")
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n\r\n".encode())
    status = (await reader.readline()).split()[1]
    writer.close()
    return int(status)


async def test_a_stream_that_is_not_admitted_in_time_is_refused(
    office: Office, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All turns are taken by streams that wait for a lock; other requests go on."""
    session = await session_of(api)
    path = api.url(f"/sessions/{session}/trace")
    headers = {"Authorization": f"Bearer {api.token}"}
    async with (
        server_of(office.site, pool_size=4) as address,
        AsyncClient(base_url=address, headers=headers) as client,
        office.db.connection() as conn,
    ):
        async with conn.transaction():
            await conn.execute("LOCK TABLE sessions")
            waiting = [asyncio.create_task(_status(address, api, session)) for _ in range(2)]
            await until(lambda: office.value(WAITING_FOR_SESSIONS))
            monkeypatch.setattr(admitting, "ADMIT_SECONDS", 0.05)
            assert_refused(await client.get(path), 503, "busy")
            assert (await client.get(api.url("/agents"))).status_code == 200
        assert [await each for each in waiting] == [200, 200]


WAITING_FOR_SESSIONS = "SELECT count(*) = 2 FROM pg_locks WHERE NOT granted AND relation = 'sessions'::regclass"


# HEAD ---------------------------------------------------------------------------------------------------------------


async def test_whoever_asks_by_head_is_told_what_get_would_send(api: Api, address: str) -> None:
    session = await session_of(api)
    content = api.url(f"/sessions/{session}/artifacts/{await _artifact(api, session)}/content")
    paths = ("/healthz", "/readyz", "/api/openapi.json", content, api.url("/agents"), api.url("/agents/nobody"))
    async with AsyncClient(base_url=address, headers={"Authorization": f"Bearer {api.token}"}) as client:
        for path in paths:
            asked, answer = await client.head(path), await client.get(path)
            assert (asked.status_code, _told(asked), asked.content) == (answer.status_code, _told(answer), b"")
            assert int(asked.headers["Content-Length"]) == len(answer.content) > 0
        assert (await client.head("/metrics")).headers["Content-Length"]


async def test_a_stream_that_is_asked_for_by_head_ends_with_its_headers(office: Office, api: Api, address: str) -> None:

    def heard() -> dict[str, int]:
        return office.site.web.listener.handler_counts()

    session = await session_of(api)
    before = heard()
    async with AsyncClient(base_url=address, headers={"Authorization": f"Bearer {api.token}"}) as client:
        for path in (
            api.url(f"/sessions/{session}/trace"),
            f"/w/{api.workspace}/top",
            f"/w/{api.workspace}/runs?live=x",
        ):
            answer = await client.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert answer.headers["Cache-Control"] == "no-store"
        assert (await client.get("/healthz")).text == "ok\n"  # on the same line
        assert heard() == before


async def _artifact(api: Api, session: str) -> str:
    given = {"params": {"name": "notes.txt"}, "content": b"as they are"}
    kept = await api.send("POST", f"/sessions/{session}/artifacts", **given)
    return str(assert_ok(kept)["id"])


def _told(answer: Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name != "date"}
