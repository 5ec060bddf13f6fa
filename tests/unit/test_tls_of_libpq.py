"""The bytes of a connection over TLS, behind libpq's back: what keeps its memory whole."""

import asyncio
import select
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from psycopg import OperationalError, pq
from psycopg.pq.abc import PGconn

from tests.unit.stage import WAIT_S
from tests.waiting import eventually_async
from tuplegate.engine.libpq.connections import tls_transport
from tuplegate.engine.libpq.connections.tls_transport import NoAccess, TlsTransport
from tuplegate.http.tls.self_signed import provide

_GREETING = b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I"


class Server:
    """Speaks just enough of PostgreSQL's protocol to be logged in at, and then says what it is told."""

    def __init__(self, directory: Path) -> None:
        files = provide(directory / "files", ["localhost"], datetime.now(UTC))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                client.recv(8, socket.MSG_WAITALL)
                client.sendall(b"S")
                with self._context.wrap_socket(client, server_side=True) as safe:
                    safe.recv(65536)
                    safe.sendall(_GREETING)
                    while (data := safe.recv(65536)) and data != b"leave":
                        safe.sendall(data)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def pgconn(server: Server) -> Iterator[PGconn]:
    conninfo = f"host=127.0.0.1 port={server.port} user=u dbname=d sslmode=require gssencmode=disable"
    opened = pq.PGconn.connect_start(conninfo.encode())
    polls = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}
    while (status := pq.PollingStatus(opened.connect_poll())) in polls:
        ready = select.poll()
        ready.register(opened.socket, polls[status])
        assert ready.poll(WAIT_S * 1000)
    assert status == pq.PollingStatus.OK, opened.error_message
    yield opened
    opened.finish()


class Above(asyncio.Protocol):
    """What is above a transport."""

    def __init__(self) -> None:
        self.got = b""
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


def watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of OpenSSL's functions, as they are called with a state."""
    called: list[str] = []
    functions = tls_transport._find_functions()

    def make_noted(name: str) -> Any:
        def note(*arguments: Any) -> Any:
            called.append(name)
            return functions[name](*arguments)

        return note

    noted = {name: make_noted(name) if name.startswith("SSL_") else functions[name] for name in functions}
    monkeypatch.setattr(tls_transport, "_find_functions", lambda: noted)
    return called


def finds_it_broken(pgconn: PGconn) -> bool:
    """Return whether libpq does, when it looks at the connection."""
    try:
        pgconn.consume_input()
    except OperationalError:
        return True
    return False


def test_bytes_go_both_ways(pgconn: PGconn) -> None:
    async def test() -> None:
        above = Above()
        transport = TlsTransport(pgconn, above)
        sent = bytes(range(256)) * 20_000
        transport.write(sent)
        await eventually_async(lambda: len(above.got) == len(sent))
        assert above.got == sent
        transport.write(b"leave")
        await eventually_async(lambda: bool(above.lost))

    asyncio.run(test())


def test_the_state_is_not_touched_once_libpq_has_closed_the_connection(
    pgconn: PGconn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        called = watch(monkeypatch)
        above = Above()
        transport = TlsTransport(pgconn, above)
        pgconn.finish()
        called.clear()
        transport.write(b"x")
        await eventually_async(lambda: bool(above.lost))
        assert (called, type(above.lost[0])) == ([], ConnectionResetError)

    asyncio.run(test())


def test_the_state_is_not_touched_once_libpq_has_freed_it_alone(
    pgconn: PGconn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq gives up a connection as soon as it finds it broken; its own record of it stays until it is closed."""

    async def test() -> None:
        called = watch(monkeypatch)
        above = Above()
        transport = TlsTransport(pgconn, above)
        transport.pause_reading()
        transport.write(b"leave")
        await eventually_async(lambda: finds_it_broken(pgconn))
        assert pgconn.pgconn_ptr is not None  # type: ignore[attr-defined]  # the protocol of both forms lacks it
        called.clear()
        transport.write(b"x")
        await eventually_async(lambda: bool(above.lost))
        assert (called, type(above.lost[0])) == ([], ConnectionResetError)

    asyncio.run(test())


def test_functions_that_say_other_things_than_libpq_are_not_used(
    pgconn: PGconn, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = tls_transport._find_functions()
    monkeypatch.setattr(tls_transport, "_find_functions", lambda: {**functions, "SSL_get_version": lambda _: b"older"})

    async def test() -> None:
        with pytest.raises(NoAccess, match="older"):
            TlsTransport(pgconn, Above())

    asyncio.run(test())


def test_a_connection_without_tls_has_no_state(server: Server) -> None:
    closed = pq.PGconn.connect_start(f"host=127.0.0.1 port={server.port}".encode())
    closed.finish()

    async def test() -> None:
        with pytest.raises(NoAccess, match="no OpenSSL"):
            TlsTransport(closed, Above())

    asyncio.run(test())


def test_a_psycopg_that_shows_no_openssl_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the one that is written in Python."""
    monkeypatch.setattr(sys.modules[pq.PGconn.__module__], "__file__", __file__)
    with pytest.raises(NoAccess, match="does not show"):
        tls_transport._find_functions.__wrapped__()


_SHOW_ANOTHER = """
import ctypes, sys
from tuplegate.engine.libpq.connections.tls_transport import NoAccess, _find_functions
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
try:
    _find_functions()
except NoAccess as no_access:
    print(no_access)
"""


def find_openssl() -> str:
    """Return the file of Python's own OpenSSL. That of psycopg finds its other half only where it lies."""
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libssl" in line}
    return min(path for path in loaded if "psycopg" not in path)


def test_another_openssl_that_is_shown_to_all_is_found(tmp_path: Path) -> None:
    """libpq could call that one, while the functions that are looked up are those of its own."""
    another = shutil.copy(find_openssl(), tmp_path / "libssl_of_others.so")
    done = subprocess.run([sys.executable, "-c", _SHOW_ANOTHER, another], capture_output=True, text=True, check=True)
    assert done.stdout == "this process has another OpenSSL, which shows SSL_read to all\n"
