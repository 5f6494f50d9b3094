"""One trace from the slot to the agent: spans over OTLP, the log, the ledger and TRACEPARENT tell the same id."""

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rota import tracing
from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.model.ids import AutomationId
from rota.roster import running
from rota.runs import cancelling, sweeping
from rota.scheduler.tick import Scheduler
from support.house import NOON, Clock, House
from support.rota_process import Rota, furnished, until
from support.run_state import from_now

AGENT = {"name": "Tracer", "executor": "command", "config": {"argv": ["sh", "-c", "echo $TRACEPARENT"]}}


class Collector:
    """Receives spans as a collector does, over HTTP and protobuf."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        collector.spans.extend(scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, trace_id: str) -> dict[str, Span]:
        return {span.name: span for span in self.spans if span.trace_id.hex() == trace_id}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_a_scheduled_run_is_one_trace_in_spans_log_ledger_and_agent(collector: Collector, tmp_path: Path) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    rota = Rota(furnished(tmp_path / "home"), "up", "--no-starters", ROTA_LOG_LEVEL="debug", **environment)
    try:
        rota.link()
        token = rota.token()
        rota.post(token, "/agents", AGENT)
        rota.post(token, "/automations", {"name": "T", "agent": "tracer", "prompt": "x", "schedule": {"every": "1s"}})
        done = until(lambda: [run for run in rota.get(token, "/runs")["items"] if run["status"] == "succeeded"])
        trace_id, parent = done[-1]["trace_id"], done[-1]["summary"].split("-")
        assert parent[1] == trace_id
    finally:
        rota.stop()
    spans = collector.of(trace_id)
    assert set(spans) == {"run", "fire", "claim", "execute", "settle"}
    assert spans["run"].span_id.hex() == parent[2]
    assert spans["run"].parent_span_id == b""
    assert {span.parent_span_id.hex() for name, span in spans.items() if name != "run"} == {parent[2]}
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())
    assert spans["claim"].end_time_unix_nano <= spans["execute"].end_time_unix_nano
    told = [json.loads(line) for line in rota.said if line.startswith("{") and trace_id in line]
    assert {line["event"] for line in told} >= {"trigger.fired", "run.claimed", "run.settled"}


@pytest.fixture
def told() -> Iterator[InMemorySpanExporter]:
    """Spans that this process tells of."""
    exporter = InMemorySpanExporter()
    tracing.send_to(SimpleSpanProcessor(exporter))
    yield exporter
    tracing.shut_down()


async def test_a_run_that_no_worker_settles_has_its_span_once_its_end_is_committed(
    house: House, db: Database, wakes: Wakes, clock: Clock, told: InMemorySpanExporter
) -> None:
    automation_id = AutomationId(await house.automation({"every": "1h"}, next_fire_at=NOON))
    async with db.transaction() as conn:
        lost = await running.run_now(conn, house.caller, automation_id)
    await Scheduler(db, wakes, clock=clock).once()  # a run is in flight, so the slot is skipped
    await house.set_run(lost, status="running", attempt=3, rescues=2, worker_id="gone", lease_until=from_now())
    async with db.transaction() as conn:
        await sweeping.rescue(conn, 10)
    async with db.transaction() as conn:
        cancelled = await running.run_now(conn, house.caller, automation_id)
    for keeps in (False, True):
        async with db.connection() as conn, conn.transaction(force_rollback=not keeps):
            await cancelling.cancel(conn, house.caller.workspace_id, cancelled)
            assert len([span for span in told.get_finished_spans() if span.name == "run"]) == 2
    spans = {
        f"{span.context.trace_id:032x}": ((span.attributes or {})["rota.status"], span.status.description)
        for span in told.get_finished_spans()
        if span.name == "run"
    }
    assert {run["trace_id"]: run["status"] for run in await house.ledger()} == {each: spans[each][0] for each in spans}
    assert sorted(spans.values(), key=str) == [("cancelled", None), ("failed", "stalled"), ("skipped", None)]


def test_nothing_of_opentelemetry_is_loaded_unless_it_is_configured() -> None:
    load = (
        "import sys, rota.daemon, rota.tracing; rota.tracing.set_up();"
        " print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    told = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True, env={})
    assert told.stdout == "[]\n"
