"""The network that `make failover` harms: what passes it, and what each end hears."""

import socket
import threading
from collections.abc import Iterator

import pytest
from failover.network import Mode, Network

WAIT_S = 10.0
SHORT_S = 0.2


@pytest.fixture
def echo() -> Iterator[socket.socket]:
    """A server that sends everything back; gives its listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield listener
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_echo, args=(connection,), daemon=True).start()


def _echo(connection: socket.socket) -> None:
    with connection:
        try:
            while data := connection.recv(100):
                connection.sendall(data)
        except OSError:
            pass


@pytest.fixture
def network(echo: socket.socket) -> Iterator[Network]:
    with Network([echo.getsockname()[1]]) as network:
        yield network


def connect(network: Network) -> socket.socket:
    return socket.create_connection(("127.0.0.1", network.entries[0]), timeout=WAIT_S)


def hears_nothing(connection: socket.socket) -> bool:
    connection.settimeout(SHORT_S)
    try:
        connection.recv(100)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(WAIT_S)
    return False


def test_passes_and_delays_in_order(network: Network) -> None:
    """Bytes arrive in their order, also those that were sent while there was a delay, and the end of a connection."""
    with connect(network) as connection:
        network.set_delay(0.1)
        connection.sendall(b"first ")
        network.set_delay(0)
        connection.sendall(b"second")
        heard = b""
        while len(heard) < 12:
            heard += connection.recv(100)
        assert heard == b"first second"
        connection.shutdown(socket.SHUT_RDWR)


def test_resets_all_connections(network: Network) -> None:
    """Both ends hear of it, and new connections work."""
    with connect(network) as connection:
        connection.sendall(b"a")
        assert connection.recv(100) == b"a"
        network.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(100)
    with connect(network) as connection:
        connection.sendall(b"b")
        assert connection.recv(100) == b"b"


def test_is_silent_and_goes_on(network: Network) -> None:
    """What was sent into the silence arrives when it is over, over old connections and those opened meanwhile."""
    with connect(network) as old:
        old.sendall(b"a")
        assert old.recv(100) == b"a"
        network.set_mode(Mode.SILENT)
        old.sendall(b"b")
        with connect(network) as new:
            new.sendall(b"c")
            assert hears_nothing(old)
            assert hears_nothing(new)
            network.set_mode(Mode.OPEN)
            assert old.recv(100) == b"b"
            assert new.recv(100) == b"c"


def test_is_half_open(network: Network) -> None:
    """Requests arrive and answers are lost; then the connections that have lost one are reset, and others go on."""
    with connect(network) as idle, connect(network) as busy:
        for connection in (idle, busy):
            connection.sendall(b"a")
            assert connection.recv(100) == b"a"
        network.set_mode(Mode.HALF_OPEN)
        busy.sendall(b"b")
        assert hears_nothing(busy)
        network.set_mode(Mode.OPEN)
        with pytest.raises(ConnectionResetError):
            busy.recv(100)
        idle.sendall(b"c")
        assert idle.recv(100) == b"c"
