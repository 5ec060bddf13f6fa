"""A plain TCP port whose connections go through WebSockets to `GET /v2`: what any PostgreSQL program connects to."""

import socket
import threading
from contextlib import suppress
from typing import Any, Self

import psycopg
from psycopg.rows import TupleRow
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.service import Service

_READ = 1 << 16


def open_websocket(service: Service) -> ClientConnection:
    url = service.url.replace("http", "ws", 1) + "/v2"
    tls = service.trust if url.startswith("wss") else None
    return connect(url, ssl=tls, compression=None, proxy=None, max_size=None, ping_interval=None, legacy=True)


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
