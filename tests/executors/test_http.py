"""What only called agents do: they are elsewhere, so where a call may lead and what comes back is not trusted."""

import asyncio
import gzip
import ipaddress
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rota import executors
from rota.errors import Invalid, Lost
from rota.executors.events import Counter
from rota.executors.exchange import Patience
from rota.executors.http import HttpExecutor
from rota.executors.sse import ServerSentEvents
from rota.executors.transcript import Transcript
from rota.model import agent_config, webhook
from rota.model.executor import Assignment, Turn
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from support.http_agent import END, Answer, Request, Server, chunk, chunked, forever, head, line, response
from support.stand_ins import RecordingDesk

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "security.json").read_text())
URLS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "http_urls.json").read_text())
SECRET = VECTORS["standard_webhooks_vector"]["secret"]
HERE = "127.0.0.1:*"
# Those who are to be given up say so themselves; nobody else is, however busy the machine.
PATIENT = Patience(head=timedelta(seconds=20), idle=timedelta(seconds=20))
PUBLIC = "93.184.216.34"
NDJSON, SSE = "application/x-ndjson", "text/event-stream"
DONE = line(type="done")

Assign = Callable[..., Assignment]
Serve = Callable[..., Server]
Call = Callable[..., Awaitable[Outcome]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[Server] = []

    def started(answer: Answer | bytes, **options: Any) -> Server:
        servers.append(Server(answer, **options))
        return servers[-1]

    yield started
    for server in servers:
        await server.close()


@pytest.fixture
def call(assign: Assign, desk: RecordingDesk) -> Call:
    """Run one attempt of an agent at a URL."""

    async def called(url: str, config: dict[str, Any] | None = None, **options: Any) -> Outcome:
        changes = options.pop("changes", {})
        executor = HttpExecutor(**{"allow": [HERE], "patience": PATIENT, "grace": timedelta(seconds=0.1), **options})
        return await executor.execute(assign({"url": url, **(config or {})}, **changes), desk)

    return called


@pytest.fixture
def answered(serve: Serve, call: Call) -> Call:
    """Run one attempt of an agent that answers so."""
    return lambda answer, *config, **options: call(serve(answer).url, *config, **options)


class Names:
    """A resolver with an answer for each time it is asked; the last one stays."""

    def __init__(self, *answers: Sequence[str] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Dial:
    """Remembers which addresses are called. Those of `real` are really called, at another port."""

    def __init__(self, real: dict[str, int] | None = None) -> None:
        self.called: list[tuple[str, int]] = []
        self.options: list[dict[str, Any]] = []
        self._real = real or {}

    async def __call__(self, address: str, port: int, **options: Any) -> Any:
        self.called.append((address, port))
        self.options.append(options)
        if address not in self._real:
            raise ConnectionRefusedError(111, f"Connect call failed ('{address}', {port})")
        return await asyncio.open_connection("127.0.0.1", self._real[address], **options)


def failed(outcome: Outcome, *, retryable: bool, of: ErrorClass = ErrorClass.AGENT_ERROR) -> str:
    assert isinstance(outcome, Failed), outcome
    assert (outcome.error_class, outcome.retryable) == (of, retryable), outcome
    return outcome.detail


def unreached(outcome: Outcome, *, retryable: bool = True) -> str:
    return failed(outcome, retryable=retryable, of=ErrorClass.EXECUTOR_ERROR)


# What is asked ------------------------------------------------------------------------------------------------------


async def test_an_agent_is_told_all_about_its_assignment(serve: Serve, call: Call) -> None:
    server = serve(response(body="A poem."))
    given = {
        "input": {"a": 1}, "payload": [2], "slot": datetime(2027, 1, 1, 9, tzinfo=UTC), "missed": {"count": 2},
        "transcript": [Turn("user", "Hello")], "attempt": 3, "idempotency_key": "key-7", "instructions": "Rhyme.",
        "environment": {"TRACEPARENT": "00-1-2-01", "ROTA_TOKEN": "rota_run_secret"},
    }  # fmt: skip
    config = {"headers": {"X-Colour": "blue", "User-Agent": "poet/1"}}
    assert await call(server.url + "poems?style=haiku#last", config, changes=given) == Succeeded()
    [request] = server.requests
    assert request.line == "POST /poems?style=haiku HTTP/1.1"
    told = request.json
    assert (told.pop("run_id"), told.pop("session_id")) != (None, None)
    assert told == {
        "prompt": "Write a poem", "input": {"a": 1}, "payload": [2], "slot": "2027-01-01T09:00:00+00:00",
        "missed": {"count": 2}, "transcript": [{"speaker": "user", "text": "Hello"}], "attempt": 3,
        "idempotency_key": "key-7", "instructions": "Rhyme.",
    }  # fmt: skip
    headers = request.headers
    assert (headers["host"], headers["connection"]) == (f"127.0.0.1:{server.port}", "close")
    assert (headers["idempotency-key"], headers["traceparent"]) == ("key-7", "00-1-2-01")
    assert (headers["content-type"], headers["accept-encoding"]) == ("application/json", "identity")
    assert (headers["x-colour"], headers["user-agent"]) == ("blue", "poet/1")
    assert "rota_run_secret" not in str(request)


async def test_a_request_is_signed_with_the_credential_it_was_granted(serve: Serve, call: Call) -> None:
    server = serve(response())
    changes = {"environment": {"ROTA_HTTP_SECRET": SECRET}, "idempotency_key": "key-7"}
    assert await call(server.url, changes=changes) == Succeeded()
    [request] = server.requests
    signed = webhook.verify(
        [SECRET],
        message_id=request.headers["webhook-id"],
        timestamp=request.headers["webhook-timestamp"],
        signatures=request.headers["webhook-signature"],
        body=request.body,
        now=datetime.now(UTC),
    )
    assert signed == "key-7"
    assert SECRET not in str(request)


async def test_a_header_is_filled_with_the_credential_it_names(serve: Serve, call: Call) -> None:
    server = serve(response())
    config = {"headers": {"Authorization": "Bearer ${API_KEY}", "X-Price": "$5 {x} ${not a name}"}}
    changes = {"environment": {"API_KEY": " key-0123456789\n"}}
    assert await call(server.url, config, changes=changes) == Succeeded()
    [request] = server.requests
    assert request.headers["authorization"] == "Bearer key-0123456789"
    assert request.headers["x-price"] == "$5 {x} ${not a name}"


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "the agent is given no credential as API_KEY"), ("two\nlines", "must be one line of ASCII")],
)
async def test_a_header_that_cannot_be_filled_is_never_sent_and_repeats_nothing(
    serve: Serve, call: Call, value: str | None, reason: str
) -> None:
    server = serve(response())
    environment = {} if value is None else {"API_KEY": value}
    outcome = await call(
        server.url, {"headers": {"Authorization": "Bearer ${API_KEY}"}}, changes={"environment": environment}
    )
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)
    assert outcome.detail.startswith(f"config.headers.authorization: {reason}")
    assert "two" not in outcome.detail
    assert server.requests == []


async def test_without_a_secret_nothing_is_signed(serve: Serve, call: Call) -> None:
    server = serve(response())
    await call(server.url)
    assert [name for name in server.requests[0].headers if name.startswith("webhook-")] == []


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_AAAA", "not base64!", "whsec_é", "!!!!!!!!!!!!!!!!!!!!!!!!!!!!"]
)
async def test_a_secret_that_is_none_is_not_sent_around(serve: Serve, call: Call, secret: str) -> None:
    server = serve(response())
    detail = unreached(await call(server.url, changes={"environment": {"ROTA_HTTP_SECRET": secret}}), retryable=False)
    assert detail.startswith("ROTA_HTTP_SECRET: ")
    assert not secret or secret not in detail.removeprefix("ROTA_HTTP_SECRET").replace("whsec_ and", "")
    assert server.connections == 0


async def test_an_agent_may_answer_before_it_has_read_everything(desk: RecordingDesk, assign: Assign) -> None:
    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response("413 Content Too Large", "far too long"))
        with suppress(ConnectionError):
            await reader.read()
        writer.transport.abort()
        left.set()

    left = asyncio.Event()

    async with await asyncio.start_server(hasty, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        outcome = await HttpExecutor(allow=[HERE]).execute(assign({"url": url}, prompt="Write! " * 2_000_000), desk)
        await left.wait()
    assert failed(outcome, retryable=False).endswith("far too long")


# What is answered ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        response(body="A poem.", content_type="text/plain; charset=utf-8"),
        response("201 Created", "A poem.", content_type="application/json"),
        response(body="A poem."),
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + response(body="A poem."),
        b"HTTP/1.0 200 OK\r\ncontent-length: 7\r\n\r\nA poem.",
        chunked("text/plain") + chunk("A ") + b"5;name=value\r\npoem.\r\n" + b"0\r\ntrailer: x\r\n\r\n",
        chunked("text/plain") + b"".join(chunk(letter) for letter in "A poem.") + END + b"what follows is not read",
    ],
)
async def test_a_plain_answer_that_is_whole_is_the_completion(
    answered: Call, desk: RecordingDesk, answer: bytes
) -> None:
    assert await answered(answer) == Succeeded()
    assert desk.text == "A poem."


@pytest.mark.parametrize("answer", [head("204 No Content"), response(), chunked("text/plain") + END])
async def test_an_empty_answer_is_one_too(answered: Call, desk: RecordingDesk, answer: bytes) -> None:
    assert await answered(answer) == Succeeded()
    assert desk.calls == []


@pytest.mark.parametrize(
    "answer",
    [
        head(content_length="9") + b"A poem.",
        chunked("text/plain") + chunk("A poem."),
        chunked("text/plain") + b"9\r\nA poem.",
        chunked("text/plain") + chunk("A poem.") + b"0\r\n",
    ],
)
async def test_a_plain_answer_that_breaks_off_is_a_failure(answered: Call, desk: RecordingDesk, answer: bytes) -> None:
    assert "broke off" in unreached(await answered(answer))
    assert desk.text == "A poem."


@pytest.mark.parametrize("answer", [head(content_type="text/plain"), b"HTTP/1.0 200 OK\r\n\r\n"])
async def test_an_answer_that_ends_with_the_connection_may_not_be_whole(answered: Call, answer: bytes) -> None:
    assert "whether the answer is whole" in failed(await answered(answer + b"A poem."), retryable=False)


async def test_json_in_a_plain_answer_is_text(answered: Call, desk: RecordingDesk) -> None:
    assert await answered(response(body='{"type": "error", "detail": "x"}\n', content_type="text/plain")) == Succeeded()
    assert desk.text == '{"type": "error", "detail": "x"}\n'


async def test_a_stream_of_lines_has_events_and_text(answered: Call, desk: RecordingDesk) -> None:
    events = line(type="say", text="On rain\n") + chunk('Thinking …\n{"type": "to') + chunk('ol", "name": "rhyme"}\r\n')
    answer = chunked(f"{NDJSON}; charset=utf-8") + events + line(type="done", summary="A poem") + END
    assert await answered(answer) == Succeeded("A poem")
    assert desk.calls == [("say", "On rain\n"), ("say", "Thinking …\n"), ("tool", "rhyme", {})]


async def test_server_sent_events_are_the_same(answered: Call, desk: RecordingDesk) -> None:
    body = ': hello\n\nevent: x\nid: 1\ndata: {"type": "tool",\ndata:  "name": "rhyme"}\n\ndata: It rai\n\ndata:ns,\n\n'
    assert await answered(
        chunked(SSE) + chunk(body) + chunk('data: {"type": "done", "summary": "A poem"}\n\n') + END
    ) == (Succeeded("A poem"))
    assert desk.calls == [("tool", "rhyme", {}), ("say", "It rai"), ("say", "ns,")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_server_sent_events_may_arrive_in_any_pieces(desk: RecordingDesk, end: bytes, size: int) -> None:
    lines = [
        "\ufeffdata: first",
        "data: line",
        "",
        "",
        ":",
        "data",
        "datax: no",
        "retry: 1",
        "",
        "data: é",
        "",
        "data: las",
    ]
    stream = end.join(each.encode() for each in lines) + b"t" + (end if size % 2 else b"")
    transcript = Transcript(desk, 1000)
    events = ServerSentEvents(transcript, Counter(transcript))
    for at in range(0, len(stream), size):
        await events.hear(stream[at : at + size])
    await events.end()
    assert desk.text == "first\nlineélast"


@pytest.mark.parametrize("piece", ["x" * 50_000, "data: " + "x" * 50_000 + "\n", "data:\n" * 10_000])
async def test_a_message_without_end_is_not_kept_forever(serve: Serve, call: Call, piece: str) -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(SSE) + chunk("data: "))
        while True:
            writer.write(chunk(piece))
            await writer.drain()

    assert "a message of over" in failed(await call(serve(answer).url), retryable=False)


@pytest.mark.parametrize(
    "answer",
    [
        chunked(NDJSON) + line(type="say", text="A poem.") + END,
        head(content_type=NDJSON) + b'{"type": "say", "text": "A poem."}\n',
        chunked(SSE) + chunk('data: {"type": "say", "text": "A poem."}\n\n') + END,
        response(content_type=SSE),
    ],
)
async def test_a_stream_that_ends_without_saying_so_is_a_failure(answered: Call, answer: bytes) -> None:
    assert "without saying it was done" in failed(await answered(answer), retryable=True)


@pytest.mark.parametrize("rest", [b"", b"not a chunk", END, line(type="usage", unit="tokens", amount=1)])
async def test_an_agent_that_said_it_was_done_is_done(answered: Call, rest: bytes) -> None:
    assert await answered(chunked(NDJSON) + line(type="done", summary="A poem") + rest) == Succeeded("A poem")


async def test_an_agent_that_is_done_but_does_not_end_is_left(serve: Serve, call: Call, desk: RecordingDesk) -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(NDJSON) + DONE)
        await writer.drain()
        writer.write(line(type="usage", unit="tokens", amount=3))
        await forever()

    patience = Patience(timedelta(minutes=1), timedelta(minutes=1))
    assert await call(serve(answer).url, patience=patience) == Succeeded()
    assert desk.events == [("usage", "tokens", 3)]  # what comes soon after is still heard


@pytest.mark.parametrize("retryable", [True, False])
async def test_an_agent_says_itself_whether_to_try_again(answered: Call, retryable: bool) -> None:
    answer = chunked(NDJSON) + line(type="error", detail="no ink", retryable=retryable) + END
    assert failed(await answered(answer), retryable=retryable) == "no ink"


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *[(f"{code} X", False) for code in (400, 401, 403, 404, 405, 409, 410, 413, 422, 451, 499)],
        *[(f"{code} X", True) for code in (408, 425, 429, 500, 501, 502, 503, 504, 599)],
    ],
)
async def test_a_status_decides_whether_to_try_again(
    answered: Call, desk: RecordingDesk, status: str, retryable: bool
) -> None:
    detail = failed(await answered(response(status, "first\nno ink\n", content_type="text/plain")), retryable=retryable)
    assert detail.startswith(f"the agent answered {status[:3]}")
    assert detail.endswith(": no ink")
    assert desk.text == "first\nno ink\n"


async def test_no_status_but_success_completes(answered: Call) -> None:
    assert "503" in failed(await answered(chunked(NDJSON, "503 Busy") + DONE + END), retryable=True)
    assert "</html>" not in failed(
        await answered(response("500 X", "</html>", content_type="text/html")), retryable=True
    )


async def test_a_refusal_whose_body_does_not_end_is_not_waited_for(serve: Serve, call: Call) -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked("text/plain", "500 Oh") + chunk("no ink"))
        await forever()

    patience = Patience(timedelta(minutes=1), timedelta(minutes=1))
    assert failed(await call(serve(answer).url, patience=patience), retryable=True).endswith(": no ink")


# Redirects, proxies, compression --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [300, 301, 302, 303, 304, 305, 307, 308])
@pytest.mark.parametrize("there", ["http://169.254.169.254/latest/", "file:///etc/passwd", "/again", "canary"])
async def test_redirects_are_not_followed(serve: Serve, call: Call, code: int, there: str) -> None:
    canary = serve(response())
    server = serve(response(f"{code} There", "secret", location=canary.url if there == "canary" else there))
    dial = Dial({"127.0.0.1": server.port})
    detail = failed(await call("http://127.0.0.1/", dial=dial), retryable=False)
    assert "redirects are not followed" in detail
    assert str(code) in detail
    assert "secret" not in detail
    assert (server.connections, canary.connections, dial.called) == (1, 0, [("127.0.0.1", 80)])


async def test_proxies_of_the_environment_are_not_asked(
    serve: Serve, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary, server = serve(response(body="I am in between")), serve(response())
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, canary.url)
    monkeypatch.setenv("NO_PROXY", "")
    assert await call(server.url) == Succeeded()
    assert (server.connections, canary.connections) == (1, 0)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "deflate, gzip", "identity, gzip"])
async def test_a_compressed_answer_is_refused(answered: Call, desk: RecordingDesk, encoding: str) -> None:
    bomb = gzip.compress(b"\0" * 10_000_000)
    assert "compressed" in failed(await answered(response(body=bomb, content_encoding=encoding)), retryable=False)
    assert desk.calls == []


async def test_a_compressed_transfer_is_refused(answered: Call) -> None:
    answer = head(transfer_encoding="gzip, chunked") + chunk(gzip.compress(b"x")) + END
    assert "not proper HTTP" in failed(await answered(answer), retryable=False)


# Limits -------------------------------------------------------------------------------------------------------------


async def test_an_answer_that_never_ends_is_ended(serve: Serve, call: Call, desk: RecordingDesk) -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked("text/plain"))
        while True:
            writer.write(chunk(b"x" * 50_000))
            await writer.drain()

    server = serve(answer)
    detail = failed(await call(server.url, {"output_limit": "20k"}), retryable=False)
    assert "over 2,000,000 bytes" in detail
    assert 20_000 <= len(desk.text) <= 20_100
    await server.hung_up.wait()


async def test_an_answer_of_many_tiny_chunks_is_heard_in_pieces_that_leave_the_loop_its_turn(
    answered: Call, desk: RecordingDesk
) -> None:
    assert await answered(chunked("text/plain") + chunk("x") * 30_000 + END) == Succeeded()
    assert desk.text == "x" * 30_000
    assert 60 <= len(desk.calls) < 300


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000 + response(),
    ],
)
async def test_large_headers_are_refused(answered: Call, answer: bytes) -> None:
    assert "not proper HTTP" in failed(await answered(answer), retryable=False)


@pytest.mark.parametrize(
    "answer",
    [
        *[b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"\0" * 100 + b"\r\n\r\n", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"],
        head("101 Switching Protocols", upgrade="x"),
        head(content_length="-1"),
        head(content_length="1, 2"),
        chunked("text/plain") + b"zz\r\nx\r\n",
        chunked("text/plain") + b"1\r\nxyz",
        chunked("text/plain") + b"1;" + b"x" * 70_000,
    ],
)
async def test_what_is_no_http_is_not_believed(answered: Call, desk: RecordingDesk, answer: bytes) -> None:
    assert "not proper HTTP" in failed(await answered(answer), retryable=False)
    assert "SSH" not in desk.text


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nx: y\r\n"])
async def test_hanging_up_is_no_answer(answered: Call, answer: bytes) -> None:
    assert "the connection was closed" in unreached(await answered(answer))


async def test_an_agent_that_drips_its_headers_is_given_up(serve: Serve, call: Call) -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        for letter in response(body="A poem"):
            writer.write(bytes([letter]))
            await asyncio.sleep(0.02)

    server = serve(answer)
    assert "no answer within 0.2s" in unreached(await call(server.url, {"header_timeout": 0.2}))
    await server.hung_up.wait()


async def test_an_agent_that_falls_silent_is_given_up(serve: Serve, call: Call, desk: RecordingDesk) -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(NDJSON))
        for _number in range(5):
            writer.write(chunk("x"))
            await asyncio.sleep(0.15)
        await forever()

    server = serve(answer)
    assert "nothing came for 0.6s" in unreached(await call(server.url, {"idle_timeout": "0.6s"}))
    assert desk.text == "xxxxx"  # slow is not silent
    await server.hung_up.wait()


async def test_a_connection_that_does_not_come_about_is_given_up(call: Call) -> None:
    async def never(*_: object, **__: object) -> Any:
        await forever()

    assert "example.com cannot be reached" in unreached(
        await call("http://example.com/", {"timeout": 0.05}, resolve=Names([PUBLIC]), dial=never)
    )
    assert "no connection within 0.05s" in unreached(await call("http://a.example/", {"timeout": 0.05}, resolve=never))


# Where a call may lead ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", VECTORS["deny"])
async def test_nothing_inside_is_called(call: Call, url: str) -> None:
    names, dial = Names([PUBLIC]), Dial()
    unreached(await call(url, allow=(), resolve=names, dial=dial), retryable=False)
    assert (names.asked, dial.called) == ([], [])


@pytest.mark.parametrize(
    ("url", "address"),
    list(zip(VECTORS["allow"], [("8.8.8.8", 443), ("2606:4700::1111", 443), (PUBLIC, 443)], strict=True)),
)
async def test_what_is_public_is_called(call: Call, url: str, address: tuple[str, int]) -> None:
    dial = Dial()
    unreached(await call(url, allow=(), resolve=Names([PUBLIC]), dial=dial))
    assert dial.called == [address]


@pytest.mark.parametrize(
    "answers",
    [
        [PUBLIC, "10.0.0.1"],
        ["10.0.0.1", PUBLIC],
        [*[PUBLIC] * 9, "127.0.0.1"],
        ["fd12::1"],
        ["::ffff:10.0.0.1"],
        ["fe80::1%eth0"],
        ["64:ff9b::a00:1"],
        ["169.254.169.254"],
    ],
)
async def test_a_name_with_any_inner_address_is_not_called(call: Call, answers: list[str]) -> None:
    dial = Dial()
    detail = unreached(
        await call("http://innocent.example/", allow=(), resolve=Names(answers), dial=dial), retryable=False
    )
    assert detail.startswith("innocent.example may not be called: its address is ")
    assert not any(answer.partition("%")[0] in detail for answer in answers)
    assert dial.called == []


async def test_a_name_is_looked_up_once_and_the_checked_address_called(serve: Serve, call: Call) -> None:
    server = serve(response())
    names, dial = Names([PUBLIC], ["127.0.0.1"], ["10.0.0.1"]), Dial({PUBLIC: server.port})
    assert await call("http://rebinding.example/x", allow=(), resolve=names, dial=dial) == Succeeded()
    assert (names.asked, dial.called) == (["rebinding.example"], [(PUBLIC, 80)])
    assert server.requests[0].headers["host"] == "rebinding.example"


async def test_a_real_connection_is_made_without_another_look_up(
    serve: Serve, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(response())
    monkeypatch.setattr(socket, "getaddrinfo", None)
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    assert await call(f"http://rebinding.example:{server.port}/", resolve=names) == Succeeded()
    assert server.requests[0].headers["host"] == f"rebinding.example:{server.port}"


async def test_the_resolver_of_the_machine_is_asked(serve: Serve, call: Call) -> None:
    server = serve(response())
    allow = ["localhost:*", HERE]
    assert await call(f"http://localhost:{server.port}/", allow=allow, patience=PATIENT) == Succeeded()


async def test_the_next_address_is_called_when_the_first_does_not_answer(serve: Serve, call: Call) -> None:
    server = serve(response())
    dial = Dial({"2606:4700::2": server.port})
    names = Names(["2606:4700::1", "2606:4700::1", "2606:4700::2"])
    assert await call("http://a.example/", resolve=names, dial=dial) == Succeeded()
    assert [address for address, _ in dial.called] == ["2606:4700::1", "2606:4700::2"]


@pytest.mark.parametrize(
    "answer", [[], socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")]
)
async def test_a_name_that_nobody_knows_may_be_known_later(call: Call, answer: Any) -> None:
    detail = unreached(await call("http://nowhere.example/", resolve=Names(answer)))
    assert detail == "nowhere.example cannot be reached: its name is not known"


async def test_a_refused_connection_may_be_accepted_later(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    assert unreached(await call(f"http://127.0.0.1:{port}/")).endswith("Connection refused")
    detail = unreached(await call("http://a.example/", resolve=Names([PUBLIC]), dial=Dial()))
    assert PUBLIC not in detail


async def test_ipv6_is_spoken(serve: Serve, call: Call) -> None:
    try:
        server = serve(response(), host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert await call(f"http://[::1]:{server.port}/", allow=["[::1]:*"]) == Succeeded()
    assert server.requests[0].headers["host"] == f"[::1]:{server.port}"


# Encryption ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encryption(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A server's side for `agent.example` and 127.0.0.1, and the certificate that vouches for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Rota's tests")])
    names = [x509.DNSName("agent.example"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file.write_bytes(
        certificate.public_bytes(encoding) + key.private_bytes(encoding, private, serialization.NoEncryption())
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context, file


Encryption = tuple[ssl.SSLContext, Path]


@pytest.mark.parametrize("host", ["agent.example", "127.0.0.1"])
async def test_the_certificate_must_be_for_the_name_although_the_address_is_called(
    serve: Serve, call: Call, encryption: Encryption, host: str
) -> None:
    context, file = encryption
    server = serve(response(body="A poem."), tls=context)
    url = f"https://{host}:{server.port}/"
    assert (
        await call(url, resolve=Names(["127.0.0.1"]), trust=ssl.create_default_context(cafile=str(file))) == Succeeded()
    )
    assert server.requests[0].headers["host"] == f"{host}:{server.port}"


@pytest.mark.parametrize(("host", "known"), [("other.example", True), ("agent.example", False)])
async def test_a_certificate_for_another_name_or_from_nobody_is_refused(
    serve: Serve, call: Call, encryption: Encryption, host: str, known: bool
) -> None:
    context, file = encryption
    server = serve(response(), tls=context)
    trust = ssl.create_default_context(cafile=str(file)) if known else None
    detail = unreached(await call(f"https://{host}:{server.port}/", resolve=Names(["127.0.0.1"]), trust=trust))
    assert f"{host} cannot be reached: its certificate is not accepted" in detail
    assert server.requests == []


async def test_a_server_that_does_not_encrypt_is_told_nothing(serve: Serve, call: Call) -> None:
    server = serve(response())
    unreached(await call(f"https://127.0.0.1:{server.port}/", {"timeout": 0.3}))
    assert server.requests == []


async def test_cancelling_ends_an_encrypted_connection_too(serve: Serve, call: Call, encryption: Encryption) -> None:
    await cancelled_while_hanging(serve, call, chunked(NDJSON) + chunk("x"), encryption)


# Cancelling ---------------------------------------------------------------------------------------------------------


async def cancelled_while_hanging(serve: Serve, call: Call, start: bytes, encryption: Encryption | None = None) -> None:
    reached = asyncio.Event()

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        await writer.drain()
        reached.set()
        await forever()

    context, file = encryption or (None, None)
    server = serve(answer, tls=context)
    trust = ssl.create_default_context(cafile=str(file)) if file else None
    patience = Patience(timedelta(minutes=1), timedelta(minutes=1))
    attempt = asyncio.ensure_future(call(server.url, patience=patience, trust=trust))
    await reached.wait()
    attempt.cancel()
    async with asyncio.timeout(30):  # long before its patience ends
        with pytest.raises(asyncio.CancelledError):
            await attempt
        await server.hung_up.wait()


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 20", chunked(NDJSON), chunked("text/plain") + chunk("x")])
async def test_cancelling_hangs_up_at_once(serve: Serve, call: Call, start: bytes) -> None:
    await cancelled_while_hanging(serve, call, start)


async def test_cancelling_ends_the_wait_for_a_name_or_a_connection(call: Call) -> None:
    async def never(*_: object, **__: object) -> Any:
        await forever()

    for options in ({"resolve": never}, {"resolve": Names([PUBLIC]), "dial": never}):
        attempt = asyncio.ensure_future(call("http://a.example/", **options))
        await asyncio.sleep(0)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt


async def test_losing_the_attempt_hangs_up_and_is_told_as_it_is(serve: Serve, assign: Assign) -> None:
    class LostDesk(RecordingDesk):
        async def say(self, text: str, *, voice: str = "") -> None:
            raise Lost("the attempt belongs to somebody else")

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked("text/plain") + chunk("x"))
        await forever()

    server = serve(answer)
    with pytest.raises(Lost):
        await HttpExecutor(allow=[HERE]).execute(assign({"url": server.url}), LostDesk())
    await server.hung_up.wait()


# Configuration ------------------------------------------------------------------------------------------------------


def test_a_configuration_has_sensible_defaults() -> None:
    config = agent_config.read_http({"url": "https://a.example/x"})
    assert (config.target.host, config.headers, config.output_limit) == ("a.example", {}, 10_000_000)
    assert (config.timeout, config.header_timeout, config.idle_timeout) == (timedelta(seconds=10), None, None)


WRONG_TIMEOUTS: list[Any] = [0, -1, "soon", True, 3601, "2h", float("nan"), []]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "config.url"),
        ({"url": "ftp://a.example"}, "config.url"),
        ({"url": "https://a:b@c.example"}, "config.url"),
        ({"urls": []}, "config.urls"),
        ({"allow_private": True}, "config.allow_private"),
        ({"secret": "whsec_x"}, "config.secret"),
        *[({"timeout": value}, "config.timeout") for value in WRONG_TIMEOUTS],
        ({"idle_timeout": 0}, "config.idle_timeout"),
        ({"output_limit": 0}, "config.output_limit"),
        ({"headers": ["a"]}, "config.headers"),
        *[({"headers": {name: "x"}}, "config.headers") for name in ("", "a b", "a:", "a\r\nb", "é")],
        *[
            ({"headers": {"X-A": value}}, "config.headers.X-A")
            for value in (1, "a\r\nb: c", "a\nb", "é", "\x7f", "a\0")
        ],
        *[
            ({"headers": {name: "x"}}, f"config.headers.{name}")
            for name in (
                *("Host", "content-length", "Transfer-Encoding", "Connection", "TE", "Upgrade", "Expect", "Trailer"),
                *("webhook-id", "Webhook-Signature", "Idempotency-Key", "traceparent", "Accept-Encoding"),
                *("Content-Type", "Proxy-Authorization"),
            )
        ],
        ({"headers": {"a": "x", "A": "y"}}, "config.headers.A"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        agent_config.check("http", {"url": "https://a.example/", **config} if config else {})
    assert refusal.value.field == field


BAD_URLS = [url for urls in URLS["bad"].values() for url in urls]


@pytest.mark.parametrize("url", BAD_URLS)
async def test_a_url_that_cannot_be_saved_is_not_called_and_its_name_is_not_resolved(url: str, call: Call) -> None:
    names, dial = Names([PUBLIC]), Dial()
    with pytest.raises(Invalid):
        HttpExecutor().check({"url": url})
    unreached(await call(url, allow=[], resolve=names, dial=dial), retryable=False)
    assert (names.asked, dial.called) == ([], [])


@pytest.mark.parametrize("url", URLS["good"])
async def test_a_url_that_can_be_saved_is_called(url: str, call: Call) -> None:
    names, dial = Names([PUBLIC]), Dial()
    assert HttpExecutor().check({"url": url}) == []
    unreached(await call(url, allow=[], resolve=names, dial=dial))
    assert dial.called


@pytest.mark.parametrize(("url", "allow"), URLS["allowed"])
async def test_a_private_target_can_be_saved_and_called_where_the_operator_allows_it(
    url: str, allow: str, call: Call
) -> None:
    names, dial = Names([PUBLIC]), Dial()
    assert HttpExecutor(allow=[allow]).check({"url": url}) == []
    unreached(await call(url, allow=[allow], resolve=names, dial=dial))
    assert dial.called
    with pytest.raises(Invalid, match=r"may not be called: .* ROTA_HTTP_ALLOW") as refusal:
        HttpExecutor().check({"url": url})
    assert (refusal.value.code, refusal.value.field) == ("target_not_allowed", "config.url")


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "Cookie", "x-auth-token"])
def test_a_secret_in_a_header_is_a_warning(name: str) -> None:
    [warning] = agent_config.check("http", {"url": "https://a.example/", "headers": {name: "x"}})
    assert f"config.headers.{name.lower()}" in warning


async def test_what_the_operator_allows_comes_with_the_executor(
    serve: Serve, assign: Assign, desk: RecordingDesk
) -> None:
    server = serve(response())
    for allow, opened in ((["127.0.0.0/8:*"], True), ([], False)):
        outcome = await executors.load(["http"], http={"allow": allow})["http"].execute(
            assign({"url": server.url}), desk
        )
        assert isinstance(outcome, Succeeded) == opened
    with pytest.raises(Invalid, match="ROTA_HTTP_ALLOW: 'nonsense/7' is not"):
        executors.load(http={"allow": ["nonsense/7"]})


# All of the vectors ---------------------------------------------------------------------------------------------------

SCENARIOS = {
    "hostname resolving to [public, private]": test_a_name_with_any_inner_address_is_not_called,
    "hostname public at check, private at connect": test_a_name_is_looked_up_once_and_the_checked_address_called,
    "302/307/308 to http://169.254.169.254/": test_redirects_are_not_followed,
    "redirect http->file://": test_redirects_are_not_followed,
    "redirect chain of 20": test_redirects_are_not_followed,
    "response body 10 GB / gzip bomb": (test_an_answer_that_never_ends_is_ended, test_a_compressed_answer_is_refused),
    "server that sends 1 byte per 10 s": (
        test_an_agent_that_drips_its_headers_is_given_up,
        test_an_agent_that_falls_silent_is_given_up,
    ),
    "CNAME to internal name": test_a_name_with_any_inner_address_is_not_called,
    "AAAA-only internal": test_a_name_with_any_inner_address_is_not_called,
    "proxy env vars": test_proxies_of_the_environment_are_not_asked,
}


@pytest.mark.parametrize("scenario", VECTORS["scenarios"])
def test_every_scenario_of_the_vectors_has_its_test(scenario: str) -> None:
    assert [begin for begin in SCENARIOS if scenario.startswith(begin)]
