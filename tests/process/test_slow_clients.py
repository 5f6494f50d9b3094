"""Hundreds of clients that send half a request and stop, against a real process."""

import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from urllib.parse import urlsplit

import psutil
import pytest

from support.rota_process import Rota, furnished, until

CLIENTS = 300
HEADER_SECONDS = 2
HELD = 990_000
MEBIBYTE = 1 << 20
HOOK = "/hooks/01a1e0db-2cd9-7826-809d-0931e0e98709"
BODY = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


@pytest.fixture(scope="module")
def rota(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rota]:
    started = Rota(
        furnished(tmp_path_factory.mktemp("slow") / "home"),
        ROTA_HEADER_SECONDS=str(HEADER_SECONDS),
        ROTA_BODY_SECONDS="60",
    )
    started.url()
    yield started
    started.stop()


def connect(rota: Rota, stack: ExitStack) -> socket.socket:
    there = urlsplit(rota.url())
    assert there.hostname
    assert there.port
    return stack.enter_context(socket.create_connection((there.hostname, there.port), timeout=20))


def first_lines(
    clients: Sequence[socket.socket], *, within: float, count: int | None = None
) -> dict[socket.socket, bytes]:
    """What each client is answered, of those that are answered in time, until `count` of them were."""
    wanted = len(clients) if count is None else count
    answers: dict[socket.socket, bytes] = {}
    deadline = time.monotonic() + within
    with selectors.DefaultSelector() as selector:
        for each in clients:
            selector.register(each, selectors.EVENT_READ)
        while len(answers) < wanted and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                client = key.fileobj
                assert isinstance(client, socket.socket)
                answers[client] = client.recv(65536).partition(b"\r\n")[0]
                selector.unregister(client)
    return answers


def send_half(client: socket.socket, path: str) -> socket.socket:
    client.sendall(f"POST {path} HTTP/1.1\r\n{BODY.format(HELD + 10_000)}".encode() + b" " * HELD)
    return client


def resident(rota: Rota) -> int:
    return int(psutil.Process(rota.process.pid).memory_info().rss)


def test_all_connections_with_unfinished_headers_are_closed_in_time(rota: Rota) -> None:
    with ExitStack() as stack:
        clients = []
        for _ in range(CLIENTS):
            clients.append(connect(rota, stack))
            clients[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        answers = first_lines(clients, within=HEADER_SECONDS + 10)
        assert [*answers.values()] == [b"HTTP/1.1 408 Request Timeout"] * CLIENTS
        for each in clients:
            while each.recv(65536):
                pass
        process = psutil.Process(rota.process.pid)
        port = urlsplit(rota.url()).port
        until(lambda: not [each for each in process.net_connections() if each.laddr.port == port and each.raddr])


def test_strangers_who_stop_in_the_middle_of_a_body_do_not_fill_the_memory(rota: Rota) -> None:
    before = resident(rota)
    with ExitStack() as stack:
        clients = [send_half(connect(rota, stack), "/api/v1/workspaces/default/agents") for _ in range(CLIENTS)]
        answers = first_lines(clients, within=30)
        assert [*answers.values()] == [b"HTTP/1.1 401 Unauthorized"] * CLIENTS
        assert resident(rota) - before < CLIENTS * HELD / 3


def test_nor_do_senders_of_webhooks_who_keep_nobody_else_out(rota: Rota) -> None:
    before = resident(rota)
    with ExitStack() as stack:
        clients = [send_half(connect(rota, stack), HOOK) for _ in range(CLIENTS)]
        held = 8 * MEBIBYTE // HELD
        answers = first_lines(clients, within=60, count=CLIENTS - held)
        assert set(answers.values()) == {b"HTTP/1.1 503 Service Unavailable"}
        assert len(answers) == CLIENTS - held
        assert resident(rota) - before < CLIENTS * HELD / 3
        small = connect(rota, stack)
        small.sendall(f"POST {HOOK} HTTP/1.1\r\n{BODY.format(2)}".encode() + b"{}")
        assert [*first_lines([small], within=20).values()] == [b"HTTP/1.1 404 Not Found"]
        for each in set(clients) - set(answers):
            each.sendall(b" " * 9_998 + b"{}")
        assert set(first_lines([*set(clients) - set(answers)], within=20).values()) == {b"HTTP/1.1 404 Not Found"}
