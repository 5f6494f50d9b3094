"""OpenTelemetry spans of a run, when the usual OTEL_… variables ask for them: fire, claim, execute, settle.

A run's spans share its trace id, whichever process writes them. Without configuration nothing is imported.
"""

import logging
import os
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_provider: "TracerProvider | None" = None
_run_itself = ""  # the trace id of the run whose own span is being started


def wanted() -> bool:
    """Whether the environment names a place to send spans to, and does not switch them off."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    return not off and any(os.environ.get(name) for name in ENDPOINTS)


def set_up() -> None:
    """Send spans from now on, if they are wanted and the extra `otel` is installed."""
    if not wanted():
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        log.warning("tracing.unavailable", extra={"install": "rota[otel]"})
        return
    send_to(BatchSpanProcessor(OTLPSpanExporter()))


def send_to(processor: Any) -> None:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 — heavy, and only for those who want it
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415

    class Ids(RandomIdGenerator):
        """A run's own span has the ids that its agent was given; all others are random."""

        def generate_trace_id(self) -> int:
            return int(_run_itself, 16) if _run_itself else super().generate_trace_id()

        def generate_span_id(self) -> int:
            return int(_run_itself[16:], 16) if _run_itself else super().generate_span_id()

    global _provider  # noqa: PLW0603 — one for each process, as the libraries of OpenTelemetry have it
    name = os.environ.get("OTEL_SERVICE_NAME", "rota")
    _provider = TracerProvider(resource=Resource.create({"service.name": name}), id_generator=Ids())
    _provider.add_span_processor(processor)


def shut_down() -> None:
    """Send what is left. Takes as long as the other side does, so not on the event loop."""
    global _provider
    provider, _provider = _provider, None
    if provider:
        provider.shutdown()


def on() -> bool:
    return _provider is not None


def now() -> int:
    return time.time_ns()


def instant(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000


def of_id(run_id: UUID) -> int:
    """When an id was made, to the millisecond."""
    return (run_id.int >> 80) * 1_000_000


def run(trace_id: str, *, began: int, error: str | None = None, **facts: Any) -> None:
    """Tell of a whole run, once it has ended: the parent of all its other spans."""
    global _run_itself  # noqa: PLW0603
    _run_itself = trace_id
    try:
        _tell("run", None, began, None, error, facts)
    finally:
        _run_itself = ""


def span(
    name: str, trace_id: str, *, began: int, ended: int | None = None, error: str | None = None, **facts: Any
) -> None:
    """Tell of something that was done for the run with this trace id."""
    if _provider is not None:
        _tell(name, _within(trace_id), began, ended, error, facts)


def _tell(name: str, within: Any, began: int, ended: int | None, error: str | None, facts: dict[str, Any]) -> None:
    if _provider is None:
        return
    from opentelemetry.context import Context  # noqa: PLC0415
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

    attributes = {f"rota.{key}": each if isinstance(each, (int, float)) else str(each) for key, each in facts.items()}
    tracer = _provider.get_tracer("rota")
    told = tracer.start_span(name, context=within or Context(), start_time=began, attributes=attributes)
    if error:
        told.set_status(Status(StatusCode.ERROR, error))
    told.end(ended or now())


def _within(trace_id: str) -> Any:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context  # noqa: PLC0415

    # The parent is the run itself: the same id stands in the agent's TRACEPARENT.
    parent = SpanContext(
        int(trace_id, 16), int(trace_id[16:], 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
    return set_span_in_context(NonRecordingSpan(parent))
