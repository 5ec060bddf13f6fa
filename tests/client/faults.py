"""A relay in front of the real service that loses answers, as networks do. It speaks bytes, and changes none."""

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import urlsplit

PASS, LOSE, ABANDON, HANG, CUT, CUT_LATE = "pass", "lose", "abandon", "hang", "cut", "cut late"
"""What is done with an answer: handed on; read and thrown away, with the connection; the connection is closed as soon
as the request was handed on, while the service goes on with it; never handed on, and the connection stays open; the
beginning of a stream is handed on, and then the connection is closed, at once or behind its first rows."""
_LATE_BYTES = 20_000


class Relay:
    """`plan(request)` says what happens to the answer of each request, in the order in which they come."""

    def __init__(self, target: str, plan: Callable[[bytes], str]) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        self._target = (parts.hostname, parts.port or 80)
        self._plan = plan
        self.requests: list[bytes] = []
        self.statuses: list[int] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        # Shutting it down, unlike closing it, wakes the thread that waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for opened in self._sockets:
            _shut(opened)
        for thread in list(self._threads):
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            thread = threading.Thread(target=self._serve, args=[client], daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        """Until one of the two leaves, as the killed ones do without a word."""
        with suppress(ConnectionError), closing(client), closing(socket.create_connection(self._target)) as service:
            self._sockets.append(service)
            while request := _message(client, whole=True):
                self.requests.append(request)
                fate = self._plan(request)
                service.sendall(request)
                if fate == ABANDON:
                    _shut(client)
                elif fate == PASS and not _stays(client, service):
                    return
                answer = _message(service)
                self.statuses.append(int(answer.split(b" ", 2)[1]) if answer else 0)
                if fate == HANG:
                    client.recv(1)  # until the client gives up
                if fate not in (PASS, CUT, CUT_LATE) or not answer:
                    return
                client.sendall(answer)
                while fate == CUT_LATE and len(answer) < _LATE_BYTES:
                    answer += (part := service.recv(65536))
                    client.sendall(part)
                if fate in (CUT, CUT_LATE):
                    return
                if b"transfer-encoding: chunked" in answer.lower() and not _pumped(service, client, answer[-5:]):
                    return


_LAST_CHUNK = b"0\r\n\r\n"


def _pumped(service: socket.socket, client: socket.socket, tail: bytes) -> bool:
    """Hands on the rest of a stream as it comes; False where one of the two has left."""
    try:
        while tail != _LAST_CHUNK:
            if not _stays(client, service):
                return False
            part = service.recv(65536)
            if not part:
                return False
            client.sendall(part)
            tail = (tail + part)[-5:]
    except OSError:
        return False
    return True


def _stays(client: socket.socket, service: socket.socket) -> bool:
    """Waits for the answer to begin; False where the client has left before."""
    try:
        looked_at = select.poll()  # `select` takes no descriptor beyond 1,023
        for end in (client, service):
            looked_at.register(end, select.POLLIN)
        ready = [descriptor for descriptor, _ in looked_at.poll()]
        return service.fileno() in ready or client.recv(1, socket.MSG_PEEK) != b""
    except (OSError, ValueError):  # the relay was closed
        return False


def _shut(opened: socket.socket) -> None:
    try:
        opened.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already


def _message(source: socket.socket, whole: bool = False) -> bytes:
    """One whole request or answer with its Content-Length; nothing where the connection ended. Of one in chunks the
    beginning, or the whole."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            part = source.recv(65536)
            if not part:
                return b""
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        missing = (int(lengths[0].split(b":")[1]) if lengths else 0) - len(body)
        while missing > 0:
            part = source.recv(missing)
            if not part:
                return b""
            data += part
            missing -= len(part)
        while whole and b"transfer-encoding: chunked" in head.lower() and not data.endswith(_LAST_CHUNK):
            part = source.recv(65536)
            if not part:
                return b""
            data += part
    except OSError:
        return b""
    return data


@contextmanager
def relay(target: str, plan: Callable[[bytes], str]) -> Iterator[Relay]:
    opened = Relay(target, plan)
    try:
        yield opened
    finally:
        opened.close()


def first(fate: str, then: str = PASS) -> Callable[[bytes], str]:
    """A plan: this fate for the first request, another for the rest."""
    fates = iter([fate])
    return lambda _request: next(fates, then)
