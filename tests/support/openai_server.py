"""A real HTTP server on this machine that speaks as OpenAI's chat completions do: streaming, failing, hanging."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], None]
MODEL = "openai-chat:gpt-4o-mini"


class Provider:
    """Gives its answers one after the other, and remembers what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.heard, self.hung_up = threading.Event(), threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"provider": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> "Provider":
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hung_up.set()
        self._server.shutdown()
        self._server.server_close()

    def messages(self, number: int) -> list[tuple[str, Any]]:
        """Who said what in a request."""
        return [(each["role"], each.get("content")) for each in self.asked[number]["messages"]]


class Handler(BaseHTTPRequestHandler):
    provider: Provider
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.close_connection = True
        size = int(self.headers["Content-Length"])
        self.provider.asked.append(json.loads(self.rfile.read(size)))
        self.provider.keys.append(self.headers["Authorization"])
        self.provider.heard.set()
        answer = self.provider.answers.pop(0) if self.provider.answers else status(400, "nothing more is prepared")
        answer(self)

    def log_message(self, *_: object) -> None:
        pass

    @contextmanager
    def streaming(self) -> Iterator[Callable[[Any], None]]:
        """Chunks of the transfer encoding; what is not ended properly is a stream that was cut."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        yield lambda data: self.chunk(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def piece(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {**_head(), "choices": [choice]}


def says(*pieces: str, usage: tuple[int, int] = (0, 0), ends: str = "stop") -> Answer:
    return _streams([piece({"role": "assistant", "content": text}) for text in pieces], ends, usage)


def calls(*wanted: tuple[str, Any], text: str = "", usage: tuple[int, int] = (0, 0)) -> Answer:
    told = [
        {
            "index": at,
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given)},
        }
        for at, (name, given) in enumerate(wanted)
    ]
    said = [piece({"role": "assistant", "content": text})] if text else []
    return _streams([*said, *(piece({"tool_calls": [each]}) for each in told)], "tool_calls", usage)


def status(code: int, message: str = "no", **headers: str) -> Answer:
    def answer(handler: Handler) -> None:
        body = json.dumps({"error": {"message": message, "type": "error", "code": None}}).encode()
        handler.send_response(code)
        for name, value in {"Content-Type": "application/json", "Connection": "close", **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def cut(text: str) -> Answer:
    """Breaks off in the middle of its answer."""

    def answer(handler: Handler) -> None:
        with handler.streaming() as send:
            send(piece({"role": "assistant", "content": text}))

    return answer


def unfinished(text: str) -> Answer:
    """Ends in order, but without saying that this was all."""

    def answer(handler: Handler) -> None:
        with handler.streaming() as send:
            send(piece({"role": "assistant", "content": text}))
            handler.wfile.write(b"0\r\n\r\n")

    return answer


def garbage(handler: Handler) -> None:
    with handler.streaming() as send:
        send('{"choices": 7, "never": "ending')
        handler.wfile.write(b"0\r\n\r\n")


def hangs(handler: Handler) -> None:
    """Says nothing more, until its caller leaves."""
    with handler.streaming() as send:
        send(piece({"role": "assistant", "content": "Let me see …"}))
        while handler.rfile.read(1):
            pass
    handler.provider.hung_up.set()


def _streams(pieces: Iterable[dict[str, Any]], ends: str, usage: tuple[int, int]) -> Answer:
    def answer(handler: Handler) -> None:
        with handler.streaming() as send:
            for each in pieces:
                send(each)
            send(piece({}, ends))
            given, taken = usage
            told = {"prompt_tokens": given, "completion_tokens": taken, "total_tokens": given + taken}
            send({**_head(), "choices": [], "usage": told})
            send("[DONE]")
            handler.wfile.write(b"0\r\n\r\n")

    return answer


def _head() -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_800_000_000, "model": "gpt-4o-mini"}
