"""One connection, byte by byte."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

from tests.service import Service


class Wire:
    def __init__(self, service: Service) -> None:
        address = urlsplit(service.url)
        assert address.hostname
        self.key = service.key
        self.socket = socket.create_connection((address.hostname, address.port), timeout=20)
        self._read = b""

    def head(self, length: int, *more: str, path: str = "/v1/query") -> bytes:
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.key}", f"Content-Length: {length}"]
        return "\r\n".join([*lines, *more, "", ""]).encode()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, Any]]:
        """The only one that there is."""
        answer = self.next_answer()
        assert not self._read, "nothing but the answer"
        return answer

    def next_answer(self) -> tuple[int, dict[str, Any]]:
        """What follows may have come already."""
        while b"\r\n\r\n" not in self._read:
            self._receive()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(self._read) < length:
            self._receive()
        body, self._read = self._read[:length], self._read[length:]
        return int(head.split()[1]), json.loads(body)

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        assert data, "the service has closed the connection"
        self._read += data
