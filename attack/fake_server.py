"""A server that a cell's superuser puts into the place of its own: it passes everything on, until it talks nonsense.

The listening socket is made inside of the sandbox, by native code that a server process of the cell loads. It is handed
out over that process's own connection, and is served here. It is closed with that process, so it goes with the cell.
"""

import array
import os
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psycopg
from tests.service import Service

from attack.nonsense import Talk

_READ_BYTES = 2**16
_SOCKET, _MOVED = ".s.PGSQL.5432", ".s.PGSQL.5433"

_END_OTHERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
    " and backend_type = 'client backend'"
)

_CODE = r"""
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
/* The first member is the socket of the connection. */
extern struct { int sock; } *MyProcPort;
__attribute__((constructor)) static void swap(void) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    char run[80], moved[108];
    FILE *order = fopen("order", "r");
    if (!order || !fgets(run, sizeof run, order)) return;
    fclose(order);
    run[strcspn(run, "\n")] = 0;
    snprintf(place.sun_path, sizeof place.sun_path, "%s/.s.PGSQL.5432", run);
    snprintf(moved, sizeof moved, "%s/.s.PGSQL.5433", run);
    rename(place.sun_path, moved);
    int listening = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listening, (struct sockaddr *)&place, sizeof place) || listen(listening, 128)) return;
    char byte = '!', room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &listening, sizeof listening);
    sendmsg(MyProcPort->sock, &message, 0);
}
"""


@cache
def compile_library(code: str) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "code.so"
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-x", "c", "-", "-o", str(made)]
        subprocess.run(command, input=code.encode(), check=True)
        return made.read_bytes()


def put_file(connection: "psycopg.Connection[tuple[object, ...]]", name: str, content: bytes) -> None:
    [(number,)] = connection.execute("select lo_from_bytea(0, %b)", [content]).fetchall()
    connection.execute("select lo_export(%s, %s)", [number, name])
    connection.execute("select lo_unlink(%s)", [number])


class Insider:
    """The superuser of one database's own server, with native code there."""

    def __init__(self, service: Service, database: str) -> None:
        cells = service.cells
        self.place = cells.directory.locate(database)
        self._info = f"{cells.superuser(database)} dbname={database}"
        self.connection = psycopg.connect(self._info, autocommit=True)

    def load(self, code: str, order: str = "") -> None:
        """Run native code in the server process of the connection: what it defines as a constructor."""
        put_file(self.connection, "order", order.encode())
        put_file(self.connection, "code.so", compile_library(code))
        with suppress(psycopg.Error):  # it is no library for PostgreSQL
            self.connection.execute(f"load '{self.place}/data/code.so'".encode())

    def take_socket(self) -> socket.socket:
        """Put a socket into the place of the server's, and return it."""
        run = self.place / "run"
        put_file(self.connection, "order", f"{run}\n".encode())
        put_file(self.connection, "code.so", compile_library(_CODE))
        descriptor = os.dup(self.connection.fileno())
        with socket.socket(fileno=descriptor) as line:
            self.connection.pgconn.send_query(f"load '{self.place}/data/code.so'".encode())
            line.setblocking(True)
            line.settimeout(20)
            _, ancillary, _, _ = line.recvmsg(1, socket.CMSG_SPACE(4))
        while self.connection.pgconn.get_result() is not None:
            pass  # it is no library for PostgreSQL
        self.connection.execute(_END_OTHERS)
        [(_, _, data)] = ancillary
        taken = socket.socket(fileno=array.array("i", data[:4])[0])
        taken.setblocking(True)
        return taken

    def close(self) -> None:
        self.connection.close()


@dataclass
class FakeServer:
    """Serves a cell's socket. It passes on what comes until a worker says `word`, and then `talk` goes on alone."""

    insider: Insider
    word: bytes
    talk: Talk
    met: int = 0
    _sockets: list[socket.socket] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "FakeServer":
        self._listening = self.insider.take_socket()
        self._sockets.append(self._listening)
        for work in (self._accept, self._end_with_cell):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.insider.close()

    def _end_with_cell(self) -> None:
        """Close everything when the server process is gone whose socket it is: what it had inside is closed, too."""
        with suppress(OSError):
            line = socket.socket(fileno=os.dup(self.insider.connection.fileno()))
            line.setblocking(True)
            while line.recv(_READ_BYTES):
                pass
            line.close()
        if not self._over.is_set():
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                worker, _ = self._listening.accept()
                self._sockets.append(worker)
                threading.Thread(target=self._serve, args=(worker,), daemon=True).start()

    def _serve(self, worker: socket.socket) -> None:
        with suppress(OSError), worker:
            said = worker.recv(_READ_BYTES)
            if not said:
                return
            if self.word in said:
                self._talk(worker)
                return
            server = socket.socket(socket.AF_UNIX)
            self._sockets.append(server)
            server.connect(str(self.insider.place / "run" / _MOVED))
            with server:
                server.sendall(said)
                back = threading.Thread(target=self._pass_back, args=(server, worker), daemon=True)
                back.start()
                while said := worker.recv(_READ_BYTES):
                    if self.word in said:
                        server.shutdown(socket.SHUT_RDWR)
                        back.join(5)
                        self._talk(worker)
                        return
                    server.sendall(said)
                server.shutdown(socket.SHUT_RDWR)

    def _pass_back(self, server: socket.socket, worker: socket.socket) -> None:
        with suppress(OSError):
            while answered := server.recv(_READ_BYTES):
                worker.sendall(answered)

    def _talk(self, worker: socket.socket) -> None:
        self.met += 1
        self.talk(worker)
