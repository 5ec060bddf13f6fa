"""Traces for OpenTelemetry: a span for every request, and under it one for its admission and one for the engine.

Spans are made when a request has ended, from times that were noted on its way, so that no tracing code is needed in
between. They contain route, status and error code, never a statement, a value, a path or a token. A client's trace
(`traceparent`) is continued. OpenTelemetry is imported only where traces are wanted; it sends the spans in its own
thread.
"""

import logging
import threading
import time
from typing import TYPE_CHECKING

import structlog

from tuplegate import __version__
from tuplegate.http.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Tracer as SdkTracer
    from opentelemetry.trace import Tracer as ApiTracer

_log = structlog.get_logger()

_SEND_EVERY_MS = 1000
_SEND_TIMEOUT_S = 5
_STOP_S = 5.0


class Traces:
    """Sends spans to `endpoint`, which takes OTLP over HTTP. Make it in the process that uses it: it starts a
    thread."""

    def __init__(self, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        _take_over_logs()
        resource = Resource.create({"service.name": "tuplegate", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_SEND_EVERY_MS))
        self._tracer: SdkTracer | ApiTracer = self._provider.get_tracer("tuplegate", __version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._in_context = set_span_in_context
        self._server, self._client = SpanKind.SERVER, SpanKind.CLIENT
        self._failed = Status(StatusCode.ERROR)

    def record(self, exchange: Exchange, plane: str, method: str, route: str) -> None:
        """Record one request, under the template of its route."""
        now = time.perf_counter_ns()
        epoch = time.time_ns() - now
        headers = exchange.headers
        carrier = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in headers
        }
        span = self._tracer.start_span(
            f"{method} {route}",
            self._extract(carrier),
            self._server,
            {
                "http.request.method": method,
                "http.route": route,
                "http.response.status_code": exchange.status,
                "tuplegate.plane": plane,
                "tuplegate.request_id": exchange.request_id,
                "tuplegate.rows": exchange.row_count,
            },
            start_time=epoch + exchange.started_ns,
        )
        if span.is_recording():
            if exchange.error_code is not None:
                span.set_attribute("error.type", exchange.error_code)
            if exchange.status >= 500:
                span.set_status(self._failed)
            inside = self._in_context(span)
            if exchange.admitted_ns:
                waiting = self._tracer.start_span("admission", inside, start_time=epoch + exchange.started_ns)
                waiting.end(epoch + exchange.admitted_ns)
            if exchange.engine_ended_ns:
                started = max(exchange.engine_ended_ns - exchange.exec_us * 1000, exchange.admitted_ns)
                about: dict[str, str | int] = {"db.system.name": "postgresql", "tuplegate.exec_us": exchange.exec_us}
                engine = self._tracer.start_span("engine", inside, self._client, about, start_time=epoch + started)
                engine.end(epoch + exchange.engine_ended_ns)
        span.end(epoch + now)

    def close(self) -> None:
        """Send what is left, but give up if that takes too long."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(_STOP_S)


def _take_over_logs() -> None:
    """Send OpenTelemetry's messages to the service's own log."""
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.handlers = [_Handler(logging.WARNING)]


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _log.warning("traces could not be sent", reason=record.getMessage())
