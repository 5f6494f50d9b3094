"""The client: refusals as errors, repeats that are one write, a trace that goes on over broken connections."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rota.cli import refusal_lines
from rota.client import AsyncClient, AsyncDesk, Client, Desk, Unreachable, rota, wire
from rota.client.events import Events
from rota.client.rota import LONGEST_WAIT, waiting
from rota.client.wire import BlockingWire, NoDesk, pause_after
from rota.errors import Broken, Busy, Conflict, Invalid, TooMany, Unauthenticated
from rota.model.duration import parse_duration

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server(ThreadingHTTPServer):
    """Answers each request with the next of its answers; breaks the connection off where that is None."""

    answers: list[Answer | None]
    keys: list[str | None]
    ids: list[str | None]
    tokens: list[str | None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.keys.append(self.headers.get("Idempotency-Key"))
        self.server.ids.append(self.headers.get("Last-Event-ID"))
        self.server.tokens.append(self.headers.get("Authorization"))
        answer = self.server.answers.pop(0)
        if answer:
            answer(self)
        self.close_connection = True

    do_GET = do_POST = do_PUT = _answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(*answers: Answer | None) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.answers, server.keys, server.ids, server.tokens = list(answers), [], [], []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def told(code_of_http: int, /, **body: Any) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        data = json.dumps(body).encode()
        request.send_response(code_of_http)
        request.send_header("Content-Length", str(len(data)))
        request.send_header("Connection", "close")  # or the next request may be sent just before the line is closed
        if "retry_after" in body:
            request.send_header("Retry-After", str(body["retry_after"]))
        request.end_headers()
        request.wfile.write(data)

    return answer


def traced(*numbers: int, half: bytes = b"") -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.end_headers()
        for number in numbers:
            event = json.dumps({"seq": number, "kind": "output"})
            request.wfile.write(f": still here\n\nevent: output\nid: {number}\ndata: {event}\n\n".encode())
        request.wfile.write(half)

    return answer


PROBLEM = {"title": "Conflict", "status": 409, "code": "memory_full", "detail": "Full.", "field": "key", "limit": 3}


def test_a_refusal_is_the_error_it_tells() -> None:
    with (
        serving(told(409, **PROBLEM)) as server,
        Client(server.url, token="t") as client,
        pytest.raises(Conflict) as refused,
    ):
        client.request("PUT", "/automations/a/memory/k", {"value": 1})
    assert (refused.value.code, refused.value.field, refused.value.facts) == ("memory_full", "key", {"limit": 3})
    assert str(refused.value) == PROBLEM["detail"]


def page(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "text/html")
    request.send_header("Content-Length", "15")
    request.end_headers()
    request.wfile.write(b"<html>Hi</html>")


def test_a_page_of_somebody_else_is_no_answer_and_no_trace() -> None:
    """A proxy that wants a login answers 200, whatever was asked."""
    with serving(page, page) as server, Client(server.url, token="t") as client:
        with pytest.raises(Unreachable, match=r"/agents is not Rota: it gives text/html. Is ROTA_URL right") as told:
            client.request("GET", "/agents", params={"limit": 1})
        assert told.value.code == "not_rota"
        with pytest.raises(Unreachable) as followed:
            next(client.follow("s"))
        assert followed.value.code == "not_rota"


def plain(content: bytes, status: int = 200) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    return answer


@pytest.mark.parametrize("content", [b"[]", b"{}", b"null", b'"ok"', b"17", b'{"status": "ok"}', b""])
def test_json_of_somebody_else_is_no_answer_either(content: bytes) -> None:
    with serving(plain(content)) as server, Client(server.url, token="t") as client:
        with pytest.raises(Unreachable) as told:
            client.messages("s")
        assert told.value.code == "not_rota"


def test_a_name_that_an_answer_lacks_is_missing_as_in_any_mapping() -> None:
    with serving(told(200, id=7)) as server, Client(server.url, token="t") as client:
        answer = client.request("GET", "/runs/7")
    assert (answer, answer.get("mood"), json.dumps(answer)) == ({"id": 7}, None, '{"id": 7}')
    with pytest.raises(KeyError):
        answer["mood"]


def test_a_refusal_of_somebody_else_may_say_anything() -> None:
    strange = {"code": "no", "detail": "No.", "message": "Not at all.", "self": 1, "field": 7, "errors": ["a", "b"]}
    with (
        serving(told(409, **strange)) as server,
        Client(server.url, token="t") as client,
        pytest.raises(Conflict) as refused,
    ):
        client.request("GET", "/agents")
    assert (refused.value.field, refused.value.facts["message"]) == (None, "Not at all.")
    assert list(refusal_lines(refused.value)) == ["rota: No."]


def test_a_write_that_broke_off_is_repeated_with_its_key() -> None:
    busy = told(503, code="busy", detail="Later.")
    with serving(None, busy, told(201, id=7)) as server, Client(server.url, token="t") as client:
        assert client.publish("s", "hello") == {"id": 7}
    assert len(server.keys) == 3
    assert len(set(server.keys)) == 1
    assert server.keys[0]


def test_who_asked_too_often_waits_and_asks_again_unless_that_takes_too_long() -> None:
    soon, late = (told(429, retry_after=wait, code="rate_limited", detail="Later.") for wait in (0, 100))
    with serving(soon, told(201, id=7)) as server, Client(server.url, token="t") as client:
        assert client.publish("s", "hello") == {"id": 7}
    assert len(set(server.keys)) == 1
    with serving(late) as server, Client(server.url, token="t", patience=50) as client, pytest.raises(TooMany):
        client.publish("s", "hello")


def test_each_write_has_a_key_of_its_own_unless_one_is_given() -> None:
    with serving(*[told(201, id=7)] * 3) as server, Client(server.url, token="t") as client:
        client.publish("s", "hello")
        client.publish("s", "hello")
        client.publish("s", "hello", key="mine")
    assert len({*server.keys}) == 3
    assert server.keys[2] == "mine"


@pytest.mark.parametrize("key", ["", " ", "a ", "a\nb", "é", "x" * 201])
def test_a_key_that_no_header_can_hold_is_refused_at_once(key: str) -> None:
    """Nobody waits for a server that was never asked, and nothing is done under another key."""
    with (
        Client("http://127.0.0.1:9", token="t", patience=60.0) as client,
        pytest.raises(Invalid) as refused,
    ):
        client.request("POST", "/automations/a/run", key=key)
    assert (refused.value.code, refused.value.field) == ("invalid_key", "key")


def test_what_no_header_can_hold_is_not_tried_again_and_again() -> None:
    with serving() as server, Client(server.url, token="t") as client, pytest.raises(Invalid) as refused:
        client.add_artifact("s", "a.md", b"x", media_type="text/plain\n")
    assert refused.value.code == "invalid"
    assert server.tokens == []


def test_patience_ends() -> None:
    with serving() as server:
        gone = server.url
    with Client(gone, token="t", patience=0.1) as client, pytest.raises(Unreachable, match="Nobody answers") as ended:
        client.request("GET", "/runs")
    assert ended.value.code == "unreachable"
    with (
        serving(*[told(503, code="busy", detail="Later.")] * 50) as server,
        Client(server.url, token="t", patience=0.1) as client,
        pytest.raises(Busy),
    ):
        client.request("GET", "/runs")


def test_where_nobody_ever_answered_a_trace_and_an_export_end() -> None:
    with serving() as server:
        gone = server.url
    with Client(gone, token="t", patience=0.1) as client:
        for asked in (client.follow("s"), client.export("s")):
            with pytest.raises(Unreachable) as ended:
                next(asked)
            assert ended.value.code == "unreachable"
    with (
        serving(*[told(503, code="busy", detail="Later.")] * 50) as server,
        Client(server.url, token="t", patience=0.1) as client,
        pytest.raises(Busy),
    ):
        next(client.follow("s"))


@pytest.mark.parametrize("url", ["", "nonsense", "127.0.0.1:7682", "ftp://x", "http://", "http://x:port"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        Client(url, token="t")
    assert (refused.value.code, refused.value.field) == ("invalid", "url")


@pytest.mark.parametrize("token", ["rota_ü", "rota_x\n", "rota_x y"])
def test_a_token_that_no_header_can_hold_is_refused_at_once(token: str) -> None:
    with pytest.raises(Invalid) as refused:
        Client("http://127.0.0.1:1", token=token)
    assert (refused.value.code, refused.value.field) == ("invalid", "token")
    assert token not in str(refused.value)


def test_a_trace_goes_on_where_it_broke_off() -> None:
    answers = [traced(1, 2, half=b'data: {"seq": 3'), None, told(503, code="busy", detail="Later."), traced(3, 4)]
    with serving(*answers) as server, Client(server.url, token="t") as client:
        events = client.follow("s")
        assert [next(events)["seq"] for _ in range(4)] == [1, 2, 3, 4]
        events.close()
    assert server.ids == ["0", "2", "2", "2"]


async def test_the_same_with_await() -> None:
    with serving(traced(1), traced(2), told(201, id=7), told(422, code="unknown_role", detail="Who?")) as server:
        async with AsyncClient(server.url, token="t") as client:
            seen = []
            async for event in client.follow("s"):
                seen.append(event["seq"])
                if len(seen) == 2:
                    break
            assert seen == [1, 2]
            assert await client.publish("s", "hello") == {"id": 7}
            with pytest.raises(Invalid):
                await asyncio.wait_for(client.publish("s", "hello", to="x"), 10)


async def test_an_event_is_heard_while_the_trace_goes_on() -> None:
    heard = threading.Event()

    def goes_on(request: BaseHTTPRequestHandler) -> None:
        traced(1)(request)
        request.wfile.flush()
        heard.wait(10)

    with serving(goes_on) as server:
        async with AsyncClient(server.url, token="t") as client, aclosing(client.follow("s")) as events:
            async with asyncio.timeout(5):
                assert (await anext(events))["seq"] == 1
            heard.set()


def test_a_trace_that_is_refused_ends() -> None:
    with (
        serving(told(401, code="attempt_over", detail="Over.")) as server,
        Client(server.url, token="t") as client,
        pytest.raises(Unauthenticated) as refused,
    ):
        next(client.follow("s"))
    assert refused.value.code == "attempt_over"


def test_events_come_whole_whatever_the_pieces() -> None:
    wire = b': still here\n\nevent: output\nid: 1\ndata: {"seq": 1}\n\nevent: tool\nid: 2\ndata: {"seq": 2}\n\n'
    for size in (1, 2, 7, 1000):
        events = Events()
        pieces = [wire[at : at + size] for at in range(0, len(wire), size)]
        assert [event["seq"] for piece in pieces for event in events.feed(piece)] == [1, 2]


def test_there_is_no_desk_outside_of_a_run() -> None:
    for kind in (Desk, AsyncDesk):
        with pytest.raises(NoDesk) as refused:
            kind.here({"ROTA_URL": "http://x", "ROTA_WORKSPACE": "w"})
        assert refused.value.code == "no_desk"
        assert set(re.findall(r"ROTA_\w+", str(refused.value))) >= {"ROTA_RUN_ID", "ROTA_TOKEN"}


OVER = {"code": "attempt_over", "detail": "over"}


def test_a_token_that_is_over_is_read_anew_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is adopted goes on with the next attempt's token, and what it was about to write is written once."""
    file = tmp_path / "token"
    file.write_text("first\n")
    pauses: list[float] = []

    async def adopted(_: BlockingWire, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            file.write_text("second\n")

    monkeypatch.setattr(BlockingWire, "pause", adopted)
    with serving(told(401, **OVER), told(200)) as server:
        given = {"ROTA_URL": server.url, "ROTA_WORKSPACE": "w", "ROTA_RUN_ID": "r", "ROTA_TOKEN_FILE": str(file)}
        with Desk.here(given) as desk:
            desk.say("Hello")
    assert server.tokens == ["Bearer first", "Bearer second"]
    assert len(set(server.keys)) == 1
    assert len(pauses) == 2


def test_a_token_that_nobody_renews_ends_the_agents_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    monkeypatch.setattr(wire, "ADOPTED_WITHIN", 0.0)
    with serving(told(401, **OVER)) as server:
        desk = Desk(server.url, token_file=file, workspace="w", run_id="r")
        with desk, pytest.raises(Unauthenticated):
            desk.say("Hello")


def test_any_other_refusal_of_a_token_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    with serving(told(401, code="unauthenticated", detail="who?")) as server:
        desk = Desk(server.url, token_file=file, workspace="w", run_id="r")
        with desk, pytest.raises(Unauthenticated) as refused:
            desk.say("Hello")
        assert refused.value.code == "unauthenticated"


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    desk = Desk("http://x", token_file=tmp_path / "nowhere", workspace="w", run_id="r")
    with desk, pytest.raises(Broken, match="nowhere") as broken:
        desk.say("Hello")
    assert broken.value.code == "no_desk"


@pytest.mark.parametrize("left", [1e-9, 0.0999983, 1 / 3, 29.9999999, 30.0, 3600.0])
def test_whatever_is_left_of_a_wait_can_be_asked_for(left: float) -> None:
    asked = parse_duration(waiting(left)["wait"])
    assert abs(asked.total_seconds() - min(left, LONGEST_WAIT)) <= 0.001


def test_messages_are_waited_for_as_long_as_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rota, "LONGEST_WAIT", 0.01)
    nothing = told(200, items=[], next_cursor=None)
    with (
        serving(nothing, nothing, told(200, items=[{"id": 1}], next_cursor=None)) as server,
        Client(server.url, token="t") as client,
    ):
        assert client.messages("s", wait=60.0) == [{"id": 1}]


def test_a_server_that_stops_ends_no_wait() -> None:
    """It answers at once, with nothing; whoever takes its place has the rest of the time."""
    nothing = told(200, items=[], next_cursor=None)
    with (
        serving(nothing, None, told(200, items=[{"id": 1}], next_cursor=None)) as server,
        Client(server.url, token="t") as client,
    ):
        assert client.messages("s", wait=20.0) == [{"id": 1}]
    with serving(nothing) as server, Client(server.url, token="t") as client:
        assert client.messages("s") == []


def test_who_tries_for_days_pauses_no_longer_than_others() -> None:
    assert [pause_after(tries) for tries in (1, 2, 6, 5000)] == [0.1, 0.2, 2.0, 2.0]


@pytest.mark.parametrize("body", [float("nan"), {"half": "\udcff"}])
def test_what_no_request_can_hold_is_refused_in_words(body: Any) -> None:
    with serving() as server, Client(server.url, token="t") as client, pytest.raises(Invalid, match="cannot be sent"):
        client.publish("s", body)


def test_who_does_not_wait_asks_for_none() -> None:
    assert waiting(0.0) == waiting(-1.0) == {}
