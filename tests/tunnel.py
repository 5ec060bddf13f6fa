"""A plain TCP port whose connections go through WebSockets to `GET /v2`: what any PostgreSQL program connects to."""

import socket
import ssl
import threading
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg
from psycopg.rows import TupleRow
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.service import Service
from tests.tls_proxy import relay

_READ = 1 << 16


def open_websocket(service: Service) -> ClientConnection:
    """Open a WebSocket. Its library reads and writes in two threads, so TLS is left to a third one."""
    parts = urlsplit(service.url)
    sock = socket.create_connection((parts.hostname, parts.port))
    if parts.scheme == "https":
        sock = _leave_tls_out(service.trust.wrap_socket(sock, server_hostname=parts.hostname))
    url = f"ws://{parts.netloc}/v2"
    return connect(url, sock=sock, compression=None, proxy=None, max_size=None, ping_interval=None, legacy=True)


def _leave_tls_out(safe: ssl.SSLSocket) -> socket.socket:
    """Return the plain end of a connection with TLS."""
    inner, outer = socket.socketpair()

    def serve() -> None:
        with suppress(OSError), safe, inner:
            relay(safe, inner)

    threading.Thread(target=serve, daemon=True).start()
    return outer


class Tunnel:
    """`with` opens the port, and closes it with all that came through it."""

    def __init__(self, service: Service, key: str | None = None) -> None:
        self._service = service
        self._key = key or service.key
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)

    def connect(self, database: str = "main", *, autocommit: bool = True, **more: Any) -> psycopg.Connection[TupleRow]:
        given = {"host": "127.0.0.1", "port": self.port, "user": "anybody", "password": self._key, "dbname": database}
        return psycopg.connect(
            **{**given, "sslmode": "disable", "gssencmode": "disable", **more}, autocommit=autocommit
        )

    def _start(self, work: Any, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            self._ends.append(end)
            websocket = open_websocket(self._service)
            self._start(self._up, end, websocket)
            self._start(self._down, end, websocket)

    def _up(self, end: socket.socket, websocket: ClientConnection) -> None:
        with suppress(OSError, ConnectionClosed):
            while data := end.recv(_READ):
                websocket.send(data)
        websocket.close()

    def _down(self, end: socket.socket, websocket: ClientConnection) -> None:
        with suppress(OSError, ConnectionClosed):
            for data in websocket:
                assert isinstance(data, bytes)
                end.sendall(data)
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
