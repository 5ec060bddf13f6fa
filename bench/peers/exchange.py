"""One HTTP exchange over a connection of its own, read to its end as it comes: for checks, for loading, for streams."""

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
TAIL_BYTES = 1000


@dataclass(frozen=True)
class Answer:
    """`size` counts the head too, as the load generator does."""

    status: int
    body: bytes
    size: int
    seconds: float

    def json(self) -> Any:
        if self.status != 200:
            raise AssertionError(f"status {self.status}: {self.body[:300]!r}")
        return json.loads(self.body)


def exchange(url: str, method: str, path: str, headers: Mapping[str, str], body: str, *, keep: bool = True) -> Answer:
    """With `keep` false only the end of the body is kept, undecoded: what a stream is measured with."""
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    content = body.encode()
    lines = {**headers, "Host": address.netloc, "Content-Length": str(len(content))}
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    received = bytearray()
    size = 0
    with socket.create_connection((address.hostname, address.port), timeout=TIMEOUT_S) as sock:
        started = time.perf_counter()
        sock.sendall(f"{head}\r\n".encode() + content)
        while data := sock.recv(1 << 18):
            size += len(data)
            received += data
            if not keep and size > len(data):
                del received[TAIL_BYTES : len(received) - TAIL_BYTES]
            if _complete(received, size):
                break
        seconds = time.perf_counter() - started
    answer_head, _, rest = bytes(received).partition(b"\r\n\r\n")
    status = int(answer_head.split(b" ", 2)[1])
    if keep and b"transfer-encoding: chunked" in answer_head.lower():
        rest = _without_chunks(rest)
    return Answer(status, rest, size, seconds)


def _complete(received: bytearray, size: int) -> bool:
    head, found, _ = bytes(received[:TAIL_BYTES]).lower().partition(b"\r\n\r\n")
    if not found:
        return False
    if b"\r\ncontent-length:" in head:
        length = int(head.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        return size >= len(head) + 4 + length
    return b"transfer-encoding: chunked" in head and received.endswith(b"\r\n0\r\n\r\n")


def _without_chunks(data: bytes) -> bytes:
    whole = bytearray()
    while data:
        length, _, data = data.partition(b"\r\n")
        count = int(length.split(b";")[0], 16)
        if count == 0:
            break
        whole += data[:count]
        data = data[count + 2 :]
    return bytes(whole)
