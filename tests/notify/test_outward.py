"""Outward: sealed, sent at least once by a process that calls nothing private, gathered, retried, and given up visibly."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from rota import daemon
from rota.db import targets
from rota.db.listener import OUTWARD
from rota.model.ids import AutomationId, RunId, new_id
from rota.model.outward import LOCAL, MOST_TRIES, delay, message
from rota.notify import courier_process, telling
from rota.notify.outward import MOST_UNPROVEN, Outward, courier
from support import api_client
from support.api_client import UNKNOWN, Api, Office, assert_ok, assert_refused, example
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

ROOT = "https://rota.test/w"
SECRET = "k3y-of-the-desk"


class Desk:
    """Somebody's HTTP server, which takes what Apprise posts."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.status = "200 OK"
        self.headers = ""
        self.port = 0
        self.answers = asyncio.Event()
        self.answers.set()

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.port}/{SECRET}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length")), 0)
        body = await reader.readexactly(size)
        if body:
            self.taken.append(json.loads(body))
        await self.answers.wait()
        writer.write(f"HTTP/1.1 {self.status}\r\nContent-Length: 0\r\nConnection: close\r\n{self.headers}\r\n".encode())
        await writer.drain()
        writer.close()

    async def took(self, number: int) -> None:
        async def arrived() -> bool:
            return len(self.taken) == number

        await until(arrived)


class Silence:
    """Somebody's server, which takes calls and never answers. The caller would wait for longer than it may."""

    def __init__(self) -> None:
        self.held: list[asyncio.StreamWriter] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.port}/?rto=300"

    async def hold(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.held.append(writer)

    async def holds(self, number: int) -> None:
        async def called() -> bool:
            return len(self.held) == number

        await until(called)


@asynccontextmanager
async def open_silence() -> AsyncIterator[Silence]:
    silence = Silence()
    server = await asyncio.start_server(silence.hold, "127.0.0.1", 0)
    silence.port = server.sockets[0].getsockname()[1]
    async with server:
        yield silence
        for each in silence.held:
            each.close()


@asynccontextmanager
async def open_desk() -> AsyncIterator[Desk]:
    desk = Desk()
    server = await asyncio.start_server(desk.answer, "127.0.0.1", 0)
    desk.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield desk
        finally:
            desk.answers.set()


def sender(office: Office, *allow: str) -> Outward:
    return Outward(office.db, office.site.web.vault, url="https://rota.test", allow=allow or ["127.0.0.0/8:*"])


def _couriers() -> list[psutil.Process]:
    """Those at work. Other children of this process may have ended, and wait to be waited for."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # of which ZombieProcess is one
            if "rota.notify.courier" in child.cmdline():
                found.append(child)
    return found


async def send(office: Office, *allow: str) -> None:
    """One pass, and all that came of it."""
    outward = sender(office, *allow)
    await outward.once()
    await outward.drain(60)


async def target(office: Office, api: Api, url: str) -> dict[str, Any]:
    """As if the operator had allowed it when it was saved; the sender judges for itself."""
    saved = assert_ok(await api.post("/notifications/targets", {"name": "Desk", "url": "json://example.org/"}))
    sealed = office.site.web.vault.seal(url, f"target/{office.caller.workspace_id}/{saved['id']}")
    await office.execute("UPDATE notification_targets SET sealed = %s WHERE id = %s", sealed, saved["id"])
    return saved


async def shown(api: Api) -> dict[str, Any]:
    [only] = assert_ok(await api.get("/notifications/targets"), 200)["items"]
    found: dict[str, Any] = only
    return found


async def fail(office: Office, automation_id: str, times: int = 1) -> None:
    where = office.caller.workspace_id, AutomationId(UUID(automation_id))
    failures = [telling.Failure(where[0], RunId(new_id()), where[1], None, "timeout") for _ in range(times)]
    async with office.db.transaction() as conn:
        await telling.of_failed(conn, failures)


async def due(office: Office) -> None:
    await office.execute("UPDATE notification_targets SET not_before = now()")


async def test_failures_arrive_as_one_message_with_links_and_what_follows_is_gathered(office: Office, api: Api) -> None:
    one, two = [assert_ok(await api.post("/automations", example(name=name))) for name in ("One", "Two")]
    async with open_desk() as desk:
        await target(office, api, desk.url)
        await fail(office, one["id"], 1000)
        await send(office)
        [first] = desk.taken
        assert (first["title"], first["message"]) == (
            "One failed 1000 times",
            f"One failed 1000 times\nIt took longer than it may\n{ROOT}/{office.caller.workspace_slug}/notifications",
        )
        assert ((await shown(api))["waiting"], (await shown(api))["error"]) == (0, None)
        for _ in range(3):
            await fail(office, one["id"])
            await fail(office, two["id"])
            await send(office)
        assert len(desk.taken) == 1, "not within the same minute"
        await due(office)
        await send(office)
        assert desk.taken[1]["title"] == "2 notifications"
        assert "One failed 3 times" in desk.taken[1]["message"]
        assert "Two failed 3 times" in desk.taken[1]["message"]


async def test_what_happens_while_a_message_is_on_its_way_goes_with_the_next(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    await target(office, api, "json://example.org/")
    await fail(office, automation["id"], 2)
    async with office.db.transaction() as conn:
        [claim] = await targets.claim(conn, proven=False, limit=1, lease=timedelta(minutes=1))
    async with office.db.transaction() as conn:
        assert await targets.claim(conn, proven=False, limit=1, lease=timedelta(minutes=1)) == [], "it is somebody's"
    await fail(office, automation["id"], 3)
    async with office.db.transaction() as conn:
        await targets.sent(conn, claim, pause=timedelta())
    async with office.db.transaction() as conn:
        [again] = await targets.claim(conn, proven=True, limit=1, lease=timedelta(minutes=1))
    assert [each["count"] for each in again.waiting] == [3]
    async with office.db.transaction() as conn:
        await targets.sent(conn, claim, pause=timedelta())  # who lost it changes nothing
    assert (await shown(api))["waiting"] == 1


async def test_a_service_that_refuses_is_tried_again_and_given_up_for_all_to_see(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    async with open_desk() as desk:
        desk.status = "500 Oh no"
        await target(office, api, desk.url)
        await fail(office, automation["id"])
        await send(office)
        found = await shown(api)
        assert (found["error"], found["tries"], found["waiting"]) == ("the service answered 500", 1, 1)
        await office.execute("UPDATE notification_targets SET tries = %s, not_before = now()", MOST_TRIES - 1)
        await send(office)
        found = await shown(api)
        assert (found["given_up"], found["tries"], found["waiting"]) == (1, 0, 0)
        desk.status = "200 OK"
        await fail(office, automation["id"])
        await due(office)
        await send(office)
        found = await shown(api)
        assert (found["error"], found["given_up"]) == (None, 1)
    assert [delay(tries).total_seconds() for tries in (1, 2, 3, 8)] == [30, 60, 120, 1800]


async def test_who_stops_does_not_wait_for_a_service_that_says_nothing(office: Office, api: Api) -> None:
    """Whoever watches next sends it again."""
    async with open_silence() as silence:
        await target(office, api, silence.url)
        await fail(office, assert_ok(await api.post("/automations", example()))["id"])
        async with asyncio.timeout(20), daemon.send_outward(sender(office), lets_go_after=0.01):
            await silence.holds(1)
        stands = await shown(api)
        assert (stands["waiting"], stands["tries"], stands["error"]) == (1, 1, None)


async def test_who_says_nothing_keeps_nobody_else_waiting(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    async with open_desk() as desk, open_silence() as silence:
        for _ in range(MOST_UNPROVEN + 1):
            await target(office, api, silence.url)
        await fail(office, automation["id"])
        answers = await target(office, api, desk.url)
        await office.execute("UPDATE notification_targets SET sent_at = now() WHERE id = %s", answers["id"])
        async with asyncio.timeout(30), daemon.send_outward(sender(office), lets_go_after=0.01) as loop:
            await silence.holds(MOST_UNPROVEN)
            await fail(office, automation["id"])
            loop.wake()
            await desk.took(1)
            assert len(silence.held) == MOST_UNPROVEN, "places stay for those who answer"
            silence.held[0].close()
            await silence.holds(MOST_UNPROVEN + 1)  # who comes next is called as soon as a place is free


async def test_a_message_on_its_way_arrives_once_though_everything_is_told_to_stop(office: Office, api: Api) -> None:
    """As with Ctrl-C, the signal comes to the watch and to whoever sends for it."""
    automation = assert_ok(await api.post("/automations", example()))
    async with open_desk() as desk:
        desk.answers.clear()
        await target(office, api, desk.url)
        await fail(office, automation["id"])
        async with asyncio.timeout(20), daemon.send_outward(sender(office), lets_go_after=20):
            await desk.took(1)
            [on_its_way] = _couriers()
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                on_its_way.send_signal(each)
            desk.answers.set()
        stands = await shown(api)
        assert (stands["waiting"], stands["error"], len(desk.taken)) == (0, None, 1)


@pytest.mark.parametrize("path", ["direct", "redirect"])
async def test_nothing_private_is_called_unless_the_operator_allows_it(office: Office, api: Api, path: str) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    async with open_desk() as desk, open_desk() as inner:
        if path == "redirect":
            desk.status, desk.headers = "307 There", f"Location: http://127.0.0.1:{inner.port}/\r\n"
        allow = f"127.0.0.1:{desk.port}" if path == "redirect" else "192.0.2.1"
        await target(office, api, desk.url if path == "redirect" else inner.url)
        await fail(office, automation["id"])
        await send(office, allow)
        assert inner.taken == []
        found = await shown(api)
        assert "it may not be called: " in found["error"]
        assert "ROTA_NOTIFY_ALLOW" in found["error"]
        assert SECRET not in json.dumps(found)


async def test_the_sender_starts_no_program_and_talks_to_no_socket_of_the_machine() -> None:
    given = {"title": "T", "body": "B", "allow": ["127.0.0.0/8:*"]}
    for url in ("syslog://", "dbus://", "nonsense://host/", "json://"):
        assert await courier({**given, "url": url})


async def test_what_an_agent_writes_is_text_also_where_messages_are_markup() -> None:
    """As in mail: a question with a link in it must not become one."""
    async with open_desk() as desk:
        given = {"title": "A <b>", "body": "<a href='//x'>Sign in</a>\nhere", "allow": [f"127.0.0.1:{desk.port}"]}
        assert await courier({**given, "url": f"{desk.url}?format=html"}) == ""
    [taken] = desk.taken
    assert "<a" not in taken["message"]
    assert "&lt;a" in taken["message"]
    assert "&gt;<br/>here" in taken["message"]


async def test_the_sender_reads_no_file_that_a_target_names(tmp_path: Path) -> None:
    """Some services take a template, and send what is in it: to whom, the target says."""
    (tmp_path / "secret.json").write_text('{"content": "what another tenant wrote"}')
    async with open_desk() as desk:
        given = {"title": "T", "body": "B", "allow": [f"127.0.0.1:{desk.port}"]}
        named = f"discord://{'4' * 19}/{'A' * 68}/?template={tmp_path}/secret.json"
        assert await courier({**given, "url": named}) == "it may not be called: it needs a file of the machine"
        assert await courier({**given, "url": desk.url}) == ""


async def test_the_sender_imports_nothing_of_the_directory_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("apprise", "ipaddress"):
        (tmp_path / f"{name}.py").write_text("raise OSError('not meant for Rota')")
    monkeypatch.chdir(tmp_path)
    why = await courier({"title": "T", "body": "B", "allow": [], "url": "json://127.0.0.1"})
    assert why.startswith("it may not be called: its address is this machine")


async def test_a_test_is_sent_at_once_by_whoever_is_woken(office: Office, api: Api) -> None:
    woken = asyncio.Event()
    async with open_desk() as desk, office.site.web.listener.subscribed(OUTWARD, lambda _: woken.set()):
        saved = await target(office, api, desk.url)
        assert assert_ok(await api.post(f"/notifications/targets/{saved['id']}/test"), 202)["waiting"] == 1
        await woken.wait()
        await send(office)
        assert [each["title"] for each in desk.taken] == ["Rota can reach you"]
    assert (await shown(api))["sent_at"]
    assert_refused(await api.post(f"/notifications/targets/{UNKNOWN}/test"), 404, "not_found")


async def test_who_is_switched_off_or_removed_is_told_nothing_more(office: Office, api: Api) -> None:
    member = await office.api("member")
    automation = assert_ok(await member.post("/automations", example()))
    me = assert_ok(await member.get("/me"), 200)["id"]
    async with open_desk() as desk:
        await target(office, member, desk.url)
        await fail(office, automation["id"])
        assert_ok(await api.patch(f"/members/{me}", {"disabled": True}), 200)
        await fail(office, automation["id"])
        await send(office)
        assert desk.taken == []
        assert_ok(await api.patch(f"/members/{me}", {"disabled": False}), 200)
        waiting = "SELECT sum(count) FROM notification_outbox WHERE workspace_id = %s"
        assert await office.value(waiting, office.caller.workspace_id) == 1, "of what came meanwhile nothing"
        await api.delete(f"/members/{me}")
        await send(office)
        assert desk.taken == []
        left = "SELECT count(*) FROM notification_targets WHERE workspace_id = %s"
        assert await office.value(left, office.caller.workspace_id) == 0
        assert await office.value(waiting, office.caller.workspace_id) is None


async def test_who_chose_not_to_hear_of_it_outward_does_not(office: Office, api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    await target(office, api, "json://example.org/")
    choice = {"run_failed": {"bell": True, "outward": False}}
    assert_ok(await api.send("PUT", "/notifications/choices", json=choice), 200)
    await fail(office, automation["id"])
    assert (await shown(api))["waiting"] == 0
    assert_ok(
        await api.send("PUT", "/notifications/choices", json={"run_failed": {"bell": False, "outward": True}}), 200
    )
    await fail(office, automation["id"])
    assert (await shown(api))["waiting"] == 1
    assert assert_ok(await api.get("/notifications"), 200)["unread"] == 1


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("json://127.0.0.1/", "this machine"),
        ("jsons://10.0.0.1/", "private network"),
        ("json://169.254.169.254/latest", "metadata"),
        ("xml://localhost/", "inner network"),
        ("form://user:word@[::1]/", "this machine"),
        ("json://example.org:22/", "port 22"),
        ("json://127.1/", "cannot be read"),
        ("json:///", "no host"),
        ("json://example.org:99999/", "cannot be read"),
        ("syslog://", "Apprise URL"),
        ("dbus://x", "server itself"),
        ("file://etc/passwd", "server itself"),
        ("nonsense", "Apprise URL"),
        ("json://example.org/ with spaces", "Apprise URL"),
        ("json://" + "x" * 3000, "Apprise URL"),
    ],
)
async def test_a_url_that_leads_nowhere_good_is_refused_without_being_repeated(api: Api, url: str, why: str) -> None:
    told = assert_refused(
        await api.post("/notifications/targets", {"name": "X", "url": url}), 422, "invalid_target", "url"
    )
    assert why in told["detail"]
    assert url not in json.dumps(told)


@pytest.mark.parametrize(
    ("url", "hint"),
    [("slak://token-a/token-b/token-c", "slack"), ("foobar://somewhere", ""), ("https://example.org/hook", "")],
)
async def test_a_url_that_no_service_is_for_is_refused_with_the_schemes_that_exist(
    api: Api, url: str, hint: str
) -> None:
    told = assert_refused(
        await api.post("/notifications/targets", {"name": "X", "url": url}), 422, "invalid_target", "url"
    )
    listed = told["detail"].rpartition(": ")[2].removesuffix(".").split(", ")
    assert {"mailto", "slack", "ntfy", "json"} <= set(listed)
    assert not LOCAL & set(listed)
    assert f"“{hint}”" in told["detail"] if hint else "Did you mean" not in told["detail"]
    assert url not in json.dumps(told)
    assert assert_ok(await api.get("/notifications/targets"), 200)["items"] == []


async def test_a_service_may_be_given_by_the_address_that_it_shows_itself(api: Api) -> None:
    url = "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
    assert assert_ok(await api.post("/notifications/targets", {"name": "X", "url": url}))["scheme"] == "https"
    url = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
    assert assert_ok(await api.post("/notifications/targets", {"name": "Y", "url": url}))["scheme"] == "slack"


async def test_a_url_is_saved_where_apprise_cannot_be_asked(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_process, "_schemes", frozenset())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert_ok(await api.post("/notifications/targets", {"name": "X", "url": "ntfy://example.org/topic"}))


async def test_a_url_is_sealed_masked_and_forgotten_with_its_target(office: Office, api: Api) -> None:
    url = f"mailto://me:{SECRET}@example.org"
    saved = assert_ok(await api.post("/notifications/targets", {"name": "Mail", "url": url}))
    assert saved["scheme"] == "mailto"
    for answer in (saved, assert_ok(await api.get("/notifications/targets"), 200)):
        assert SECRET not in json.dumps(answer)
    stored = await office.value("SELECT sealed FROM notification_targets WHERE id = %s", saved["id"])
    assert SECRET.encode() not in bytes(stored)
    assert SECRET not in str(await office.value("SELECT json_agg(a) FROM audit a"))
    assert (await api.delete(f"/notifications/targets/{saved['id']}")).status_code == 204
    assert assert_ok(await api.get("/notifications/targets"), 200)["items"] == []
    for number in range(10):
        assert_ok(await api.post("/notifications/targets", {"name": f"{number}", "url": url}))
    assert_refused(await api.post("/notifications/targets", {"name": "11", "url": url}), 409, "too_many_targets")


async def test_an_answered_question_is_not_sent_any_more(office: Office, api: Api) -> None:
    await target(office, api, "json://example.org/")
    automation = assert_ok(await api.post("/automations", example()))
    assert_ok(await api.post(f"/automations/{automation['id']}/run"))
    asked = await (await office.claim()).desk.park("May I?")
    assert (await shown(api))["waiting"] == 1
    assert_ok(await api.post(f"/approvals/{asked.approval_id}", {"answer": "approve"}), 200)
    assert (await shown(api))["waiting"] == 0


async def test_a_long_message_is_cut_after_twenty_lines() -> None:
    one = {"kind": "run_failed", "about": "A", "count": 1, "detail": None, "session_id": "s"}
    heading, body = message([one] * 25, "https://rota.test/w/x")
    assert heading == "25 notifications"
    assert body.count("A failed\nhttps://rota.test/w/x/sessions/s") == 20
    assert body.endswith("And 5 more: https://rota.test/w/x/notifications")
