"""Traces: spans of a request as a collector gets them, and nothing of what the request said."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.service import Service, new_data_dir, remove, start_service
from tests.system.test_service import clear, run
from tests.waiting import eventually

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "a-value-nobody-may-see"


@dataclass
class Collector:
    """Takes OTLP over HTTP."""

    url: str
    bodies: list[bytes] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        found = []
        for body in list(self.bodies):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    found += scope.spans
        return found

    def of(self, request_id: str) -> dict[str, Any]:
        """The spans of one request, by name, once they have come."""

        def root() -> list[Any]:
            return [span for span in self.spans if attributes(span).get("tuplegate.request_id") == request_id]

        eventually(lambda: bool(root()), 30)
        [top] = root()
        below = {span.name: span for span in self.spans if span.parent_span_id == top.span_id}
        return {"request": top, **below}


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def service(collector: Collector) -> Iterator[Service]:
    data_dir = new_data_dir()
    running = start_service(
        data_dir, "--traces-endpoint", collector.url, env={"OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    )
    yield running
    assert running.stop() == 0
    remove(data_dir)


def ask(service: Service, sql: str, traceparent: str | None = None) -> str:
    """The request's id."""
    headers = {"traceparent": traceparent} if traceparent else {}
    with service.client() as client:
        answer = client.post("/v1/query", json={"sql": sql, "params": [SECRET]}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


def test_a_request_has_its_admission_and_its_engine_time(service: Service, collector: Collector) -> None:
    """Each part lies within the request, and one after the other."""
    spans = collector.of(ask(service, "select $1::text, 'a literal', pg_sleep(0.05)"))
    top, admission, engine = spans["request"], spans["admission"], spans["engine"]
    assert top.name == "POST /v1/query"
    about = attributes(top)
    assert about["http.route"] == "/v1/query"
    assert about["http.response.status_code"] == 200
    assert about["tuplegate.rows"] == 1
    assert top.start_time_unix_nano == admission.start_time_unix_nano <= admission.end_time_unix_nano
    assert admission.end_time_unix_nano <= engine.start_time_unix_nano
    assert engine.start_time_unix_nano + 50_000_000 <= engine.end_time_unix_nano <= top.end_time_unix_nano
    assert {span.trace_id for span in spans.values()} == {top.trace_id}


def test_the_clients_trace_goes_on(service: Service, collector: Collector) -> None:
    top = collector.of(ask(service, "select $1::text", f"00-{TRACE}-{PARENT}-01"))["request"]
    assert top.trace_id.hex() == TRACE
    assert top.parent_span_id.hex() == PARENT


def test_a_trace_that_is_not_recorded_stays_so(service: Service, collector: Collector) -> None:
    """The client's choice holds; what is no traceparent is as none."""
    unwanted = ask(service, "select $1::text", f"00-{TRACE}-{PARENT}-00")
    for bad in ("nonsense", f"00-{'0' * 32}-{PARENT}-01", "00-" + "x" * 500):
        top = collector.of(ask(service, "select $1::text", bad))["request"]
        assert not top.parent_span_id
    # Spans are sent in order, so one that was asked for before these would be here by now.
    assert not any(attributes(span).get("tuplegate.request_id") == unwanted for span in collector.spans)


def test_an_alias_passes_the_trace_on(service: Service, collector: Collector) -> None:
    top = collector.of(ask(service.alias, "select $1::text", f"00-{TRACE}-{PARENT}-01"))["request"]
    assert top.trace_id.hex() == TRACE


def test_the_control_plane_is_traced_by_templates(service: Service, collector: Collector) -> None:
    headers = {"Authorization": f"Bearer {service.key}"}
    answer = httpx.get(f"{service.control_url}/v1/databases/no-such-one", headers=headers)
    spans = collector.of(answer.headers["x-request-id"])
    assert spans.keys() == {"request", "admission"}
    about = attributes(spans["request"])
    assert (about["tuplegate.plane"], about["http.route"]) == ("control", "/v1/databases/{name}")
    assert (about["http.response.status_code"], about["error.type"]) == (404, "not_found")


def test_streams_and_failures(service: Service, collector: Collector) -> None:
    stream = collector.of(ask(service, "/*+ STREAM */ select $1::text, generate_series(1, 10)"))
    assert attributes(stream["request"])["tuplegate.rows"] == 10
    assert "engine" in stream
    failed = collector.of(ask(service, "select $1::text, 1/0"))["request"]
    assert attributes(failed)["error.type"] == "sql_error"
    with service.client() as client:
        lost = client.get("/secret-path-of-mine")
    top = collector.of(lost.headers["x-request-id"])["request"]
    assert top.name == "other other"


def test_nothing_that_was_said_is_in_a_span(service: Service, collector: Collector) -> None:
    collector.of(ask(service, "select $1::text as secretcolumn, 'a literal'"))
    sent = b"".join(collector.bodies)
    for said in (
        SECRET,
        "secretcolumn",
        "a literal",
        "pg_sleep",
        "secret-path-of-mine",
        service.key,
        service.key[6:30],
    ):
        assert said.encode() not in sent


def test_a_collector_that_is_not_there_is_no_matter() -> None:
    """Requests are answered, the log has a line, and the service stops in order."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--traces-endpoint", "http://127.0.0.1:9/v1/traces")
    ask(service, "select $1::text")
    eventually(lambda: "traces could not be sent" in service.log, 30)
    assert httpx.get(f"{service.url}/health").status_code == 200
    assert service.stop() == 0
    remove(data_dir)


def test_without_the_setting_it_is_not_even_imported() -> None:
    code = "import sys, tuplegate.worker; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_endpoint_that_is_none_is_refused(tmp_path: Path) -> None:
    serve = ("serve", "--data-dir", str(tmp_path / "data"), "--traces-endpoint", "127.0.0.1:4318")
    clear(run(*serve), "is not a URL of http or https")
    assert list(tmp_path.iterdir()) == []
