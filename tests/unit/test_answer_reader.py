"""Where the data plane's answer ends is read from its headers, however they are written."""

import pytest

from tuplegate.http.forwarding.answer_reader import AnswerReader, NoAnswer


def read(*headers: bytes, body: bytes = b"") -> tuple[AnswerReader, bytes]:
    reader = AnswerReader(bodiless=False)
    got = reader.feed(b"HTTP/1.1 200 OK\r\n" + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body)
    return reader, got


@pytest.mark.parametrize("line", [b"Content-Length: 2", b"content-length:2", b"CONTENT-LENGTH: \t 2 \t"])
def test_a_length(line: bytes) -> None:
    reader, got = read(b"X-Content-Length: 5", line, b"X: content-length: 7", body=b"{}")
    assert (reader.length, got, reader.complete, reader.keep_alive) == (b"2", b"{}", True, True)


def test_chunks() -> None:
    reader, got = read(b"Transfer-Encoding: Chunked", body=b"2\r\n{}\r\n0\r\n\r\n")
    assert (reader.length, got, reader.complete, reader.keep_alive) == (None, b"{}", True, True)


def test_the_end_of_the_connection() -> None:
    reader, got = read(b"connection: keep-alive", b"Connection: CLOSE", b"content-length: 2", body=b"{}")
    assert (got, reader.complete, reader.keep_alive) == (b"{}", True, False)
    reader, got = read(b"x: y", body=b"{}")
    assert (got, reader.complete, reader.end(), reader.keep_alive) == (b"{}", False, True, False)


@pytest.mark.parametrize(
    "headers",
    [
        (b"content-length: 2", b"Content-Length: 2"),
        (b"content-length: 2", b"transfer-encoding: chunked"),
        (b"transfer-encoding: chunked", b"x: y", b"Transfer-Encoding: chunked"),
        (b"content-length: 2, 2",),
        (b"content-length:",),
        (b"transfer-encoding: gzip",),
    ],
)
def test_what_does_not_say_where_it_ends(headers: tuple[bytes, ...]) -> None:
    with pytest.raises(NoAnswer):
        read(*headers, body=b"{}")
