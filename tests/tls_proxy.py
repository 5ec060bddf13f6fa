"""TLS in front of a PostgreSQL server that has none."""

import select
import socket
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

_TLS_REQUEST = struct.pack(">ii", 8, 80877103)
_READ = 1 << 16


class TlsProxy:
    """`with` opens the port, and closes it with all that came through it. Who asks for no TLS is sent away."""

    def __init__(self, server_port: int, certificate: Path, key: Path) -> None:
        self._server_port = server_port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        for end in [self._listener, *self._ends]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            if client.recv(8, socket.MSG_WAITALL) != _TLS_REQUEST:
                return
            client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as safe,
                socket.create_connection(("127.0.0.1", self._server_port)) as server,
            ):
                self._ends += [safe, server]
                relay(safe, server)


def relay(safe: ssl.SSLSocket, plain: socket.socket) -> None:
    """Pass bytes on in both directions, until one side ends. Two threads may not use one TLS object at once (before
    Python 3.13 answers are lost then), so one has both."""
    safe.setblocking(False)
    plain.setblocking(False)
    to_plain, to_safe = bytearray(), bytearray()
    while True:
        readers = [safe] * (len(to_plain) < _READ) + [plain] * (len(to_safe) < _READ)
        writers = [plain] * bool(to_plain) + [safe] * bool(to_safe)
        waits = 0 if safe.pending() and safe in readers else 5000
        looked_at = select.poll()  # `select` takes no descriptor beyond 1,023
        for end in (safe, plain):
            looked_at.register(end, select.POLLIN * (end in readers) | select.POLLOUT * (end in writers))
        looked_at.poll(waits)
        with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if safe in readers:
                data = safe.recv(_READ)
                if not data:
                    return
                to_plain += data
        with suppress(BlockingIOError):
            if plain in readers:
                data = plain.recv(_READ)
                if not data and not to_safe:
                    return
                to_safe += data
        with suppress(BlockingIOError):
            if to_plain:
                del to_plain[: plain.send(to_plain)]
        with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if to_safe:
                del to_safe[: safe.send(bytes(to_safe[:16384]))]
