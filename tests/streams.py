"""A client for streams that reads from its socket only what a test asks for, and notes when each event came."""

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.service import Service

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
ENDS = ("done", "error")


class Event(NamedTuple):
    """`kind` is the event's name, or "comment" for an SSE comment; `text` is its payload as sent."""

    kind: str
    text: str
    at: float

    @property
    def data(self) -> Any:
        return json.loads(self.text)


class _Connection(http.client.HTTPConnection):
    """One whose receive buffer can be made small, so that a reader that stops is felt at once."""

    receive_buffer: int | None = None
    trust: ssl.SSLContext | None = None

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if self.receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        self.sock.settimeout(self.timeout)
        self.sock.connect((self.host, self.port))
        if self.trust is not None:
            self.sock = self.trust.wrap_socket(self.sock, server_hostname=self.host)


class Stream:
    """One request whose answer is read as it comes. `close` is what a client does that goes away."""

    def __init__(
        self,
        service: Service,
        sql: str,
        params: list[Any] | None = None,
        *,
        accept: str = SSE,
        route: str = "/v1/query",
        receive_buffer: int | None = None,
        **fields: Any,
    ) -> None:
        address = urlsplit(service.url)
        self.connection = _Connection(address.hostname or "", address.port, timeout=30)
        self.connection.receive_buffer = receive_buffer
        if address.scheme == "https":
            self.connection.trust = service.trust
        headers = {"Authorization": f"Bearer {service.key}", "Accept": accept}
        if route == "/query":
            body, headers["Content-Type"] = sql, "text/plain"
        else:
            given = {"sql": sql, **({} if params is None else {"params": params}), **fields}
            body, headers["Content-Type"] = json.dumps(given), "application/json"
        self.sent_at = time.monotonic()
        self.connection.request("POST", route, body.encode(), headers)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if "answer" in self.__dict__:
            self.answer.close()
        self.connection.close()

    def __getattr__(self, name: str) -> Any:
        """The answer's head is waited for when it is first looked at."""
        if name != "answer":
            raise AttributeError(name)
        self.answer: http.client.HTTPResponse = self.connection.getresponse()
        return self.answer

    @property
    def media_type(self) -> str:
        return self.answer.getheader("Content-Type", "")

    def events(self) -> Iterator[Event]:
        """Each event as it comes, until the answer ends; anything that is not framed as the contract says fails."""
        assert self.answer.status == 200, self.answer.read()
        assert self.media_type in (SSE, NDJSON), self.media_type
        while line := self.answer.readline():
            yield self._ndjson(line) if self.media_type == NDJSON else self._sse(line)

    def _ndjson(self, line: bytes) -> Event:
        at = time.monotonic()
        before, text = line.decode().split(',"data":', 1)
        assert before.startswith('{"event":"'), line
        assert text.endswith("}\n"), line
        return Event(before.removeprefix('{"event":"').removesuffix('"'), text[:-2], at)

    def _sse(self, line: bytes) -> Event:
        at = time.monotonic()
        if line.startswith(b":"):
            assert self.answer.readline() == b"\n", line
            return Event("comment", line.decode()[1:].strip(), at)
        data = self.answer.readline()
        assert line.startswith(b"event: "), line
        assert data.startswith(b"data: "), data
        assert self.answer.readline() == b"\n", (line, data)
        return Event(line.decode()[7:-1], data.decode()[6:-1], at)

    def rest(self) -> list[Event]:
        """Every further event; exactly one `done` or `error` ends them."""
        events = list(self.events())
        assert [event.kind for event in events if event.kind in ENDS] == [events[-1].kind], events[-3:]
        return events


class Told(NamedTuple):
    """A whole stream: what its events said."""

    columns: dict[str, Any] | None
    rows: list[Any]
    end: str
    last: dict[str, Any]


def tell(service: Service, sql: str, params: list[Any] | None = None, **more: Any) -> Told:
    """Reads a stream to its end. The columns come first and once, then rows, then the end."""
    with Stream(service, sql, params, **more) as stream:
        events = stream.rest()
    kinds = [event.kind for event in events]
    columns = events[0].data if kinds[0] == "columns" else None
    middle = events[(columns is not None) : -1]
    assert {event.kind for event in middle} <= {"row"}, kinds
    return Told(columns, [event.data for event in middle], kinds[-1], events[-1].data)


def read_until_cut(stream: Stream) -> list[Event]:
    """The events of a stream whose other side may vanish."""
    events = []
    try:
        for event in stream.events():
            events.append(event)
    except (http.client.HTTPException, ConnectionError):
        pass
    return events
