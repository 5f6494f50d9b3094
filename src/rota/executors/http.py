"""The kind `http`: the assignment is posted to a URL, and the answer is heard while it comes."""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Protocol

from rota.errors import Invalid
from rota.executors.briefing import as_json
from rota.executors.ending import LONGEST, misconfigured
from rota.executors.events import Counter, Done, Error, EventStream
from rota.executors.exchange import Exchange, Head, Patience
from rota.executors.outbound import CutShort, Dial, Outbound, Resolve, look_up
from rota.executors.sse import ServerSentEvents
from rota.executors.transcript import Tail, Transcript, Words
from rota.model import agent_config, webhook
from rota.model.agent_config import HttpConfig
from rota.model.credential import HTTP_SECRET
from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded

PATIENCE = Patience(head=timedelta(seconds=60), idle=timedelta(seconds=120))
GRACE = timedelta(seconds=5)
SHORTEST_SECRET = 16
GIVEN_UP_AT = 100  # times the output limit
LEAST_READ = 1_000_000
DEFAULTS = {"user-agent": "rota", "accept": "text/event-stream, application/x-ndjson, text/plain, */*;q=0.1"}
TOLD = (
    *("prompt", "input", "payload", "slot", "missed", "transcript", "run_id", "session_id"),
    *("attempt", "idempotency_key", "instructions"),
)


class _Listener(Protocol):
    async def hear(self, data: bytes) -> None: ...

    async def end(self) -> None: ...


EVENT_STREAMS: Mapping[str, Callable[[Transcript, Counter], _Listener]] = {
    "text/event-stream": ServerSentEvents,
    "application/x-ndjson": EventStream,
    "application/ndjson": EventStream,
    "application/jsonl": EventStream,
}
_PERHAPS_LATER = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


class HttpExecutor:
    """A plain answer completes by being whole; a stream of events only by its event `done`."""

    kind = "http"
    resumes = False

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        patience: Patience = PATIENCE,
        grace: timedelta = GRACE,
        resolve: Resolve = look_up,
        dial: Dial = asyncio.open_connection,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._outbound = Outbound(allow, resolve=resolve, dial=dial, trust=trust)
        self._patience, self._grace = patience, grace

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return agent_config.check(self.kind, config, allow=self._outbound.allowed)

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        try:
            config = agent_config.read_http(assignment.config)
            body = _body(assignment)
            headers = {
                **DEFAULTS,
                **_filled(config, assignment),
                **_headers(assignment),
                **_signature(assignment, body),
            }
        except Invalid as mistake:
            return misconfigured(mistake)
        try:
            async with self._outbound.connect(config.target, config.timeout) as streams:
                exchange = Exchange(streams, self._patience_of(config))
                exchange.post(config.target, headers, body)
                return await _Attempt(config, desk, self._grace).attend(exchange)
        except CutShort as end:
            return end.failure

    async def abandon(self, lost: LostAttempt) -> None:
        """Nothing: the connection ended with the worker, and the idempotency key tells the agent of a repetition."""

    def _patience_of(self, config: HttpConfig) -> Patience:
        return Patience(config.header_timeout or self._patience.head, config.idle_timeout or self._patience.idle)


def _body(assignment: Assignment) -> bytes:
    """Not the directory: it is of no use elsewhere."""
    told = as_json(assignment)
    return json.dumps({name: told[name] for name in TOLD}).encode()


def _filled(config: HttpConfig, assignment: Assignment) -> dict[str, str]:
    """The configured headers, with the values of credentials where `${NAME}` stands."""
    return {
        name: agent_config.fill_header(text, assignment.environment, f"config.headers.{name}")
        for name, text in config.headers.items()
    }


def _headers(assignment: Assignment) -> dict[str, str]:
    trace = assignment.environment.get("TRACEPARENT")
    return {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "idempotency-key": assignment.idempotency_key,
        **({"traceparent": trace} if trace else {}),
    }


def _signature(assignment: Assignment, body: bytes) -> dict[str, str]:
    secret = assignment.environment.get(HTTP_SECRET)
    if secret is None:
        return {}
    message_id, timestamp = assignment.idempotency_key, str(int(time.time()))
    _check(secret)
    signature = webhook.sign(secret, message_id, timestamp, body)
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature}


def _check(secret: str) -> None:
    try:
        size = len(base64.b64decode(secret.removeprefix(webhook.PREFIX), validate=True))
    except ValueError:
        size = 0
    if size < SHORTEST_SECRET:
        raise Invalid("is not a secret of Standard Webhooks: whsec_ and base64", field=HTTP_SECRET)


class _Text:
    """A plain answer."""

    def __init__(self, transcript: Transcript, tail: Tail) -> None:
        self._words, self._tail = Words(transcript), tail

    async def hear(self, data: bytes) -> None:
        self._tail.hear(data)
        await self._words.hear(data)

    async def end(self) -> None:
        await self._words.hear(b"", last=True)


class _Attempt:
    def __init__(self, config: HttpConfig, desk: Desk, grace: timedelta) -> None:
        self._most, self._grace = max(GIVEN_UP_AT * config.output_limit, LEAST_READ), grace
        self._transcript = Transcript(desk, config.output_limit)
        self._counter = Counter(self._transcript)
        self._tail = Tail()

    async def attend(self, exchange: Exchange) -> Outcome:
        head = await exchange.head()
        if unheard := _not_worth_hearing(head):
            return unheard
        if head.status >= 400:
            exchange.end_within(self._grace)
        cut_short = await self._hear(exchange, self._listener(head))
        if head.status >= 400:
            return _refused(head, self._tail.last_line())
        return self._outcome(head, cut_short)

    def _listener(self, head: Head) -> _Listener:
        events = EVENT_STREAMS.get(head.media_type) if head.status < 300 else None
        return events(self._transcript, self._counter) if events else _Text(self._transcript, self._tail)

    async def _hear(self, exchange: Exchange, listener: _Listener) -> Failed | None:
        failure = None
        try:
            await self._hear_all(exchange, listener)
        except CutShort as end:
            failure = end.failure
        await listener.end()
        return failure

    async def _hear_all(self, exchange: Exchange, listener: _Listener) -> None:
        size = 0
        while data := await exchange.read():
            size += len(data)
            if size > self._most:
                detail = f"the answer was ended: it has over {self._most:,} bytes"
                raise CutShort(ErrorClass.AGENT_ERROR, detail, retryable=False)
            await listener.hear(data)
            if self._counter.verdict is not None:
                exchange.end_within(self._grace)

    def _outcome(self, head: Head, cut_short: Failed | None) -> Outcome:
        match self._counter.verdict:
            case Error() as said:
                return said.outcome
            case Done(summary):
                return Succeeded(summary)
        if cut_short is not None:
            return cut_short
        if head.media_type in EVENT_STREAMS:
            return Failed(ErrorClass.AGENT_ERROR, "the agent ended without saying it was done")
        if not head.says_where_it_ends:
            detail = "nobody knows whether the answer is whole: it has neither Content-Length nor chunks"
            return Failed(ErrorClass.AGENT_ERROR, detail, retryable=False)
        return Succeeded()


def _not_worth_hearing(head: Head) -> Failed | None:
    if 300 <= head.status < 400:
        detail = f"the agent answered {_told(head)}; redirects are not followed"
        return Failed(ErrorClass.AGENT_ERROR, detail, retryable=False)
    if head.encoding != "identity":
        detail = f"the agent answered {_told(head)}, compressed ({head.encoding[:40]}), which nobody asked for"
        return Failed(ErrorClass.AGENT_ERROR, detail, _may_be_tried_again(head))
    return None


def _refused(head: Head, last_words: str) -> Failed:
    words = f": {last_words[:LONGEST]}" if last_words and "html" not in head.media_type else ""
    return Failed(ErrorClass.AGENT_ERROR, f"the agent answered {_told(head)}{words}", _may_be_tried_again(head))


def _may_be_tried_again(head: Head) -> bool:
    return head.status >= 500 or head.status in _PERHAPS_LATER


def _told(head: Head) -> str:
    try:
        return f"{head.status} {HTTPStatus(head.status).phrase}"
    except ValueError:
        return str(head.status)
