"""Stands between the service and its engine, and does harm at a chosen step of PostgreSQL's protocol.

It takes the place of the bundled engine's unix socket: the real one is moved aside, and what connects from then on goes
through here. For an engine elsewhere it has an address of its own, which the service is given instead. Bytes are passed
on as they are. Messages are read only as far as it takes to know which statement is on its way to the engine, and which
one the engine has just answered.

A fault waits for a statement. At `request` the statement has not reached the engine; at `answer` the engine has run it,
with everything up to its next "ready", and nobody knows of it yet. Then the action is called, and the connection is cut
at both ends, or goes on where the fault says so; or the answer is passed on and the connection cut right behind it.
"""

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_SOCKET = ".s.PGSQL.5432"
_CANCEL = 80877102
_READ = 1 << 16
_SYNC = None
"""Stands among the statements under way for the end of a segment: an error skips up to it."""


class At(Enum):
    REQUEST = "request"
    ANSWER = "answer"


@dataclass(eq=False)
class Fault:
    """`when` judges the text of a statement. It happens once, after it was given `skip` chances."""

    when: Callable[[str], bool]
    at: At
    action: Callable[[], None] = lambda: None
    cut: bool = True
    behind: Callable[[], None] | None = None
    """Called after the cut, which then comes behind the answer."""
    skip: int = 0
    happened: threading.Event = field(default_factory=threading.Event)
    """Set after the action."""
    sender: int = 0
    """The process whose connection it is, by the bundled engine's socket; known to the action."""


class WireProxy:
    """`with` puts it in the socket's place and takes it away again; connections that went through it are cut then."""

    def __init__(self, run_dir: Path) -> None:
        self._place = run_dir / _SOCKET
        self._aside = run_dir / "engine.aside"
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._listener: socket.socket | None = None
        self._inode = 0
        self.seen: deque[str] = deque(maxlen=1000)
        """The statements that went to the engine lately."""
        self.segments: deque[tuple[_Link, list[str]]] = deque(maxlen=1000)
        """The same with their connection, those together that the engine answers together."""

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()

    def install(self) -> None:
        """Takes the place of the engine's socket. To be called again after the engine has started anew."""
        self._stop_listening()
        self._place.rename(self._aside)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._place))
        self._place.chmod(0o777)
        self._inode = self._place.stat().st_ino
        listener.listen(128)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    @property
    def in_place(self) -> bool:
        """Whether it stands in the way: an engine that starts anew puts its own socket there."""
        with contextlib.suppress(FileNotFoundError):
            return self._listener is not None and self._place.stat().st_ino == self._inode
        return False

    def remove(self) -> None:
        if self.in_place:
            self._aside.rename(self._place)
        self._stop_listening()
        self._cut_all()

    def _cut_all(self) -> None:
        with self._lock:
            self._faults.clear()
            links = list(self._links)
        for link in links:
            link.cut()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def arm(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def disarm(self) -> None:
        with self._lock:
            self._faults.clear()

    def claim(self, text: str, at: At) -> Fault | None:
        """The fault that this step sets off, if any; it is set off once."""
        with self._lock:
            for fault in self._faults:
                if fault.at is at and fault.when(text):
                    if fault.skip == 0:
                        self._faults.remove(fault)
                        return fault
                    fault.skip -= 1
                    return None
        return None

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                engine = self._connect()
            except OSError:
                client.close()  # the engine is down
                continue
            link = _Link(self, client, engine)
            with self._lock:
                self._links.add(link)
            link.start()

    def _connect(self) -> socket.socket:
        engine = socket.socket(socket.AF_UNIX)
        try:
            engine.connect(str(self._aside))
        except OSError:
            engine.close()
            raise
        return engine

    def forget(self, link: "_Link") -> None:
        with self._lock:
            self._links.discard(link)


class PortProxy(WireProxy):
    """In front of an engine elsewhere, without TLS: that could not be read."""

    def __init__(self, engine: str) -> None:
        super().__init__(Path())
        self._engine = urlsplit(engine)

    def install(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    @property
    def in_place(self) -> bool:
        return self._listener is not None

    @property
    def url(self) -> str:
        """The engine's, by way of this."""
        assert self._listener is not None
        user, _, _ = self._engine.netloc.rpartition("@")
        netloc = f"{user}@127.0.0.1:{self._listener.getsockname()[1]}"
        return urlunsplit(self._engine._replace(netloc=netloc, query="sslmode=disable&gssencmode=disable"))

    def remove(self) -> None:
        self._stop_listening()
        self._cut_all()

    def _connect(self) -> socket.socket:
        return socket.create_connection((self._engine.hostname or "127.0.0.1", self._engine.port or 5432))


class _Link:
    """One connection of the service, and the proxy's own to the engine for it."""

    def __init__(self, proxy: WireProxy, client: socket.socket, engine: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._engine = engine
        self._texts: dict[bytes, str] = {}
        """Of prepared statements, by their names."""
        self._bound = ""
        self._segment: list[str] = []
        self._under_way: deque[str | None] = deque()
        self._answered: Fault | None = None
        self._lock = threading.Lock()
        self._running = 2

    def start(self) -> None:
        for work in (self._requests, self._answers):
            threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            work()
        self.cut()
        with self._lock:
            self._running -= 1
            last = not self._running
        if last:
            self._client.close()
            self._engine.close()

    def cut(self) -> None:
        self._proxy.forget(self)
        for end in (self._client, self._engine):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    # -- to the engine ------------------------------------------------------------------------------------------

    def _requests(self) -> None:
        head = _exactly(self._client, 8)
        length, code = struct.unpack("!ii", head)
        self._engine.sendall(head + _exactly(self._client, length - 8))
        if code == _CANCEL:
            return
        for pending in _portions(self._client):
            passed = bytearray()
            for kind, message in pending:
                text = self._note_request(kind, message)
                if text is not None and (fault := self._proxy.claim(text, At.REQUEST)):
                    self._engine.sendall(passed)
                    passed.clear()
                    self._happen(fault)
                passed += message
            self._engine.sendall(passed)

    def _note_request(self, kind: int, message: bytes) -> str | None:
        """The statement that the message brings, if any. One that is described only counts as well."""
        match chr(kind):
            case "P":
                name, sql, _ = message[5:].split(b"\0", 2)
                text = self._texts[name] = sql.decode("utf-8", "replace")
                self._proxy.seen.append(text)
                return text
            case "B":
                self._bound = self._texts.get(message[5:].split(b"\0", 2)[1], "")
            case "Q":
                text = message[5:-1].decode("utf-8", "replace")
                self._proxy.seen.append(text)
                self._under_way += [text, _SYNC]
                return text
            case "E":
                self._under_way.append(self._bound)
                self._segment.append(self._bound)
            case "S":
                self._under_way.append(_SYNC)
                self._proxy.segments.append((self, self._segment))
                self._segment = []
        return None

    # -- from the engine ----------------------------------------------------------------------------------------

    def _answers(self) -> None:
        held = bytearray()
        for pending in _portions(self._engine):
            for kind, message in pending:
                held += message
                self._note_answer(kind)
                if chr(kind) == "Z" and (fault := self._answered):
                    self._answered = None
                    self._happen(fault, held)
            if self._answered is None:
                self._client.sendall(held)
                held.clear()

    def _note_answer(self, kind: int) -> None:
        match chr(kind):
            case "C" | "I" | "s":
                text = self._under_way.popleft() if self._under_way else None
                if text is not None and self._answered is None:
                    self._answered = self._proxy.claim(text, At.ANSWER)
            case "E":
                while self._under_way and self._under_way[0] is not _SYNC:
                    self._under_way.popleft()
            case "Z":
                if self._under_way and self._under_way[0] is _SYNC:
                    self._under_way.popleft()

    def _happen(self, fault: Fault, answer: bytes | bytearray = b"") -> None:
        fault.sender = _peer(self._client)
        try:
            fault.action()
        finally:
            if fault.behind is not None:
                self._client.sendall(answer)
            if fault.cut:
                self.cut()
            if fault.behind is not None:
                fault.behind()
            fault.happened.set()
        if fault.cut:
            raise ConnectionAbortedError


def _peer(sock: socket.socket) -> int:
    """The process at the other end of a unix socket, 0 of another."""
    if sock.family is not socket.AF_UNIX:
        return 0
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def _portions(sock: socket.socket) -> Iterator[list[tuple[int, bytes]]]:
    """What arrives, cut into whole messages with their kinds; all that are there at once."""
    buffer = b""
    while True:
        data = sock.recv(_READ)
        if not data:
            return
        buffer += data
        messages = []
        start = 0
        while len(buffer) - start >= 5:
            end = start + 1 + int.from_bytes(buffer[start + 1 : start + 5])
            if end > len(buffer):
                break
            messages.append((buffer[start], buffer[start:end]))
            start = end
        buffer = buffer[start:]
        if messages:
            yield messages
