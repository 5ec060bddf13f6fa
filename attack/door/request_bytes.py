"""Bytes that are HTTP requests, or nearly: made from a seed by changes that know the grammar.

A case begins as one to three valid requests. Most cases then get one to three changes, each of a kind that has fooled
some server before: blanks, line ends, two lengths, odd codings, chunks, folds, NUL, versions, targets, hosts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

Header = tuple[bytes, bytes]

_TARGETS = (
    b"/",
    b"/health",
    b"/v1/query",
    b"/v1/transaction/txn_1",
    b"/a/b?c=d&e=%20f",
    b"/%41",
    b"/a;b=c",
    b"/?",
    b"/~x",
)
_METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH")
_PLAIN: tuple[Header, ...] = (
    (b"Accept", b"*/*"),
    (b"Authorization", b"Bearer svc_k_none"),
    (b"Content-Type", b"application/json"),
    (b"User-Agent", b"curl/8.5.0"),
    (b"X-Empty", b""),
    (b"X-Text", b"caf\xc3\xa9 \xff"),
    (b"X-Many", b"a, b;q=0.5,\tc"),
    (b"Connection", b"keep-alive"),
    (b"Idempotency-Key", b"job"),
    (b"X-Quoted", b'"a:b\\"c"'),
)
_BODIES = (
    b"",
    b"{}",
    b'{"sql":"select 1"}',
    b"\r\n",
    b"0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x00\xff\n",
    b"x" * 300,
)


@dataclass
class Draft:
    """A request in parts, so that a change can be made to one of them."""

    method: bytes
    target: bytes
    version: bytes = b"HTTP/1.1"
    headers: list[Header] = field(default_factory=list)
    body: bytes = b""
    """As it is sent, with the framing of its chunks."""
    gaps: tuple[bytes, bytes] = (b" ", b" ")
    before: bytes = b""
    line_end: bytes = b"\r\n"
    colon: bytes = b": "
    after_value: bytes = b""

    def write(self) -> bytes:
        end = self.line_end
        lines = [self.method + self.gaps[0] + self.target + self.gaps[1] + self.version]
        lines += [name + self.colon + value + self.after_value for name, value in self.headers]
        return self.before + end.join([*lines, b"", b""]) + self.body


def make_case(random: Random) -> bytes:
    """A stream of one to three requests. Two in three cases have something odd in them."""
    drafts = [_valid(random) for _ in range(random.choice((1, 1, 1, 2, 2, 3)))]
    if random.random() < 0.66:
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            random.choice(CHANGES)(random, random.choice(drafts))
    data = b"".join(draft.write() for draft in drafts)
    chance = random.random()
    if chance < 0.06:
        data = _touch(random, data)
    elif chance < 0.10:
        data = data[: random.randrange(len(data))]
    return data


def split(random: Random, data: bytes) -> list[bytes]:
    """The same bytes in pieces: a few, or one byte each."""
    if random.random() < 0.1 and len(data) < 400:
        return [data[at : at + 1] for at in range(len(data))]
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(6)))
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


def _valid(random: Random) -> Draft:
    draft = Draft(random.choice(_METHODS), random.choice(_TARGETS))
    if random.random() < 0.1:
        draft.version = b"HTTP/1.0"
    draft.headers = [(b"Host", random.choice((b"x", b"localhost:8080", b"127.0.0.1:1", b"[::1]:80", b"a.example")))]
    draft.headers += random.sample(_PLAIN, random.randrange(5))
    framing = random.random()
    if framing < 0.35:
        _give_length(draft, random.choice(_BODIES))
    elif framing < 0.65 and draft.version == b"HTTP/1.1":
        draft.headers.append((b"Transfer-Encoding", b"chunked"))
        draft.body = _chunks(random, random.choice(_BODIES))
    if random.random() < 0.3:
        random.shuffle(draft.headers)
    if random.random() < 0.15:
        draft.headers.append((b"Connection", random.choice((b"close", b"keep-alive", b"Close, x"))))
    return draft


def _give_length(draft: Draft, body: bytes) -> None:
    draft.body = body
    draft.headers.append((b"Content-Length", b"%d" % len(body)))


def _chunks(random: Random, body: bytes) -> bytes:
    parts = []
    at = 0
    while at < len(body):
        size = random.randrange(1, len(body) - at + 1)
        parts.append(b"%x\r\n%b\r\n" % (size, body[at : at + size]))
        at += size
    return b"".join(parts) + b"0\r\n\r\n"


def _touch(random: Random, data: bytes) -> bytes:
    """Change, drop, double or insert a byte anywhere."""
    at = random.randrange(len(data))
    odd = bytes([random.choice((0, 9, 10, 11, 13, 32, 44, 58, 59, 127, 128, 255, random.randrange(256)))])
    return random.choice(
        (
            data[:at] + odd + data[at + 1 :],
            data[:at] + data[at + 1 :],
            data[:at] + odd + data[at:],
            data[:at] + data[at : at + 1] + data[at:],
        )
    )


# -- changes ----------------------------------------------------------------------------------------------------------


def _blanks(random: Random, draft: Draft) -> None:
    odd = random.choice((b"", b"  ", b"\t", b" \t", b"\x0b", b"\x0c", b"\r", b"\xa0"))
    draft.gaps = random.choice(((odd, b" "), (b" ", odd)))


def _before(random: Random, draft: Draft) -> None:
    draft.before = random.choice((b"\r\n", b"\n", b"\r\n\r\n", b" ", b"\t", b"\x00", b"\r", b"\xef\xbb\xbf", b"X"))


def _line_ends(random: Random, draft: Draft) -> None:
    draft.line_end = random.choice((b"\n", b"\r", b"\n\r", b"\r\r\n", b" \r\n", b"\x00\r\n", b"\x85", b"\r\n\r"))


def _colon(random: Random, draft: Draft) -> None:
    draft.colon = random.choice((b":", b" : ", b" :", b":\t ", b"", b"\t:", b":   ", b"=", b"::", b":\x00"))


def _after_value(random: Random, draft: Draft) -> None:
    draft.after_value = random.choice((b" ", b"\t", b"  \t ", b"\x00", b"\x0b", b"\r", b"\x7f", b"\x01", b"\xa0", b","))


def _version(random: Random, draft: Draft) -> None:
    draft.version = random.choice(
        (b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b"HTTP/1.10", b"HTTP/1", b"http/1.1", b"HTTP/1.1 ", b"",
         b"HTTP/11", b"HTTP/1.1x", b"HTTPS/1.1", b"ICE/1.0", b"HTTP/ 1.1", b"HTTP/1,1", b"HTTP/01.1", b"HTTP/3.0")
    )  # fmt: skip


def _target(random: Random, draft: Draft) -> None:
    draft.target = random.choice(
        (b"*", b"http://x/", b"http://other/v1/query", b"x:80", b"", b"//x/y", b"/a b", b"/\x00", b"/\xff",
         b"/a#b", b"a", b"/%2f", b"/%zz", b"/%", b"/..", b"/a/../b", b"/a\\b", b'/"', b"/<>",
         b"/" + b"a" * random.choice((2000, 9000)), b"/\x7f", b"?a", b"/a?b?c", b"/{x}", b"HTTP://X/",
         b"https:/x", b"/%00", b"/a|b^`")
    )  # fmt: skip


def _method(random: Random, draft: Draft) -> None:
    draft.method = random.choice(
        (b"get", b"G", b"", b"GE T", b"CONNECT", b"TRACE", b"PRI", b"FOO", b"G\x00T", b"PROPFIND", b"(GET)",
         b"M-SEARCH", b"GET\r", b"Post", b"QUERY", b"SOURCE", b"X" * 300)
    )  # fmt: skip


def _host(random: Random, draft: Draft) -> None:
    chance = random.random()
    others = [header for header in draft.headers if header[0].lower() != b"host"]
    if chance < 0.2:
        draft.headers = others
    elif chance < 0.45:
        draft.headers = [
            *others,
            (b"Host", b"x"),
            (random.choice((b"Host", b"host", b"HOST")), random.choice((b"x", b"y"))),
        ]
    else:
        value = random.choice(
            (b"", b"a b", b"x/y", b"x@y", b"x:y", b"x:80:80", b"http://x", b"[::1", b"x,y", b"\xff", b"x:", b"x#",
             b"%41", b"a_b", b"x\\y", b"[::g]", b"x:99999999", b"<x>", b"x?y", b"::1", b"x..y", b"-", b"[v1.a]")
        )  # fmt: skip
        draft.headers = [*others, (b"Host", value)]


def _lengths(random: Random, draft: Draft) -> None:
    """One, two or three lengths that are odd by themselves or together."""
    size = len(draft.body)
    odd = random.choice(
        (b"%d" % size, b"%d" % (size + 1), b"+%d" % size, b"-1", b"0x%x" % size, b"%d, %d" % (size, size), b"", b"1e1",
         b"%d,%d" % (size, size + 1), b"0%d" % size, b"0" * 4400, b"9" * 25, b"%d " % size, b"%d;" % size, b"1 1",
         b"18446744073709551616", b"4294967296", b"\xb2", "٣".encode(), b"%d\t" % size, b"0" * 25 + b"%d" % size)
    )  # fmt: skip
    name = random.choice(
        (b"Content-Length", b"content-length", b"CONTENT-LENGTH", b"Content-Length ", b"Content_Length")
    )
    if random.random() < 0.5:
        draft.headers = [header for header in draft.headers if header[0].lower() != b"content-length"]
    draft.headers.insert(random.randrange(len(draft.headers) + 1), (name, odd))


def _coding(random: Random, draft: Draft) -> None:
    value = random.choice(
        (b"chunked", b"Chunked", b"CHUNKED", b"gzip, chunked", b"chunked, gzip", b"chunked, chunked", b"identity",
         b"gzip", b"xchunked", b"chunked;q=1", b"\x0bchunked", b"chunked\x00", b"", b"chunked,", b",chunked",
         b"chu\tnked", b"x")
    )  # fmt: skip
    name = random.choice((b"Transfer-Encoding", b"transfer-encoding", b"Transfer-Encoding ", b"Transfer_Encoding"))
    if random.random() < 0.5:
        draft.headers = [header for header in draft.headers if header[0].lower() != b"transfer-encoding"]
    draft.headers.insert(random.randrange(len(draft.headers) + 1), (name, value))
    if random.random() < 0.5:
        draft.body = _chunks(random, b"abc")


def _both(random: Random, draft: Draft) -> None:
    body = _chunks(random, random.choice(_BODIES))
    draft.headers = [h for h in draft.headers if h[0].lower() not in (b"content-length", b"transfer-encoding")]
    both = [(b"Content-Length", b"%d" % random.choice((len(body), 0, 3))), (b"Transfer-Encoding", b"chunked")]
    random.shuffle(both)
    draft.headers += both
    draft.body = body


def _chunk(random: Random, draft: Draft) -> None:
    """A chunked body with something odd in its framing."""
    draft.headers = [h for h in draft.headers if h[0].lower() not in (b"content-length", b"transfer-encoding")]
    draft.headers.append((b"Transfer-Encoding", b"chunked"))
    size = random.choice(
        (b"3", b"03", b"3 ", b" 3", b"0x3", b"+3", b"3;a=b", b'3;a="b;c"', b"3 ; a", b"3;", b"-3", b"", b"3\t",
         b"3;\x00", b"0" * 30 + b"3", b"3;" + b"a" * 300, b"4", b"2", b"f" * 16, b"f" * 17, b"100000000", b"3_",
         b"3;a=\xff", b"g", b"3;a\nb", b'3;a="', b"3,3", b"3\x00", "３".encode())
    )  # fmt: skip
    end = random.choice((b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\n\r", b"\r\r\n", b" \r\n"))
    after = random.choice((b"\r\n", b"\r\n", b"\r\n", b"\n", b"", b"\r", b"xx", b" \r\n"))
    last = random.choice(
        (b"0\r\n", b"0\r\n", b"0\r\n", b"00\r\n", b"0;x=y\r\n", b"0\n", b"0 \r\n", b"000000\r\n", b"\r\n")
    )
    trailer = random.choice(
        (b"", b"", b"X-T: 1\r\n", b"Content-Length: 5\r\n", b"Host: y\r\n", b"X-T: 1\n", b"X T: 1\r\n",
         b"Y: 1\r\n z\r\n", b"nocolon\r\n", b"X:\x00\r\n", b"Transfer-Encoding: chunked\r\n", b"X-T: 1\r\n" * 120)
    )  # fmt: skip
    draft.body = size + end + b"abc" + after + last + trailer + random.choice((b"\r\n", b"\r\n", b"\n", b"\r", b""))


def _fold(random: Random, draft: Draft) -> None:
    fold = random.choice((b"\r\n ", b"\r\n\t", b"\n ", b"\r ", b"\r\n \r\n "))
    draft.headers.insert(random.randrange(len(draft.headers) + 1), (b"X-Fold", b"a" + fold + b"b"))
    if random.random() < 0.2:
        draft.headers.insert(0, (b" X-First", b"a"))


def _name(random: Random, draft: Draft) -> None:
    name = random.choice(
        (b"", b"X Y", b"X\x00", b"X(Y)", b"\xc3\xa9", b"X/Y", b"X\tY", b"_x", b"X@", b"x" * 5000, b"X\r", b"X\n",
         b'"X"', b"!#$%&'*+-.^_`|~")
    )  # fmt: skip
    draft.headers.insert(random.randrange(len(draft.headers) + 1), (name, b"v"))


def _value(random: Random, draft: Draft) -> None:
    value = random.choice(
        (b"a\x00b", b"a\rb", b"a\nb", b"a\x01b", b"a\x7fb", b"\x80", b"a\x0bb", b"\xff" * 9, b"a" * 9000, b" ", b"\t\t",
         b"a\x0c", b"\x1b[31m", b"a\r\nX-Injected: 1", b"a\x85b", b"a\xa0")
    )  # fmt: skip
    draft.headers.insert(
        random.randrange(len(draft.headers) + 1), (random.choice((b"X-Value", b"Idempotency-Key")), value)
    )


def _many(random: Random, draft: Draft) -> None:
    count, value = random.choice(((99, b"1"), (101, b"1"), (200, b"1"), (60, b"y" * 600), (20, b"z" * 1600)))
    draft.headers += [(b"X-%d" % number, value) for number in range(count)]


def _twice(random: Random, draft: Draft) -> None:
    draft.headers.append(random.choice(draft.headers or [(b"Host", b"x")]))


def _upgrade(random: Random, draft: Draft) -> None:
    draft.headers += [(b"Connection", random.choice((b"Upgrade", b"upgrade, HTTP2-Settings", b"close, upgrade")))]
    draft.headers += [(b"Upgrade", random.choice((b"h2c", b"websocket", b"")))]


def _expect(random: Random, draft: Draft) -> None:
    draft.headers.append((b"Expect", random.choice((b"100-continue", b"100-Continue", b"x", b""))))


def _connection(random: Random, draft: Draft) -> None:
    value = random.choice(
        (b"close", b"Close", b"keep-alive", b"close, keep-alive", b"keep-alive, close", b"", b"x", b"TE")
    )
    draft.headers.append((random.choice((b"Connection", b"Proxy-Connection", b"Keep-Alive")), value))


CHANGES: tuple[Callable[[Random, Draft], None], ...] = (
    _blanks, _before, _line_ends, _colon, _after_value, _version, _target, _method, _host, _host, _lengths, _lengths,
    _lengths, _coding, _coding, _both, _chunk, _chunk, _chunk, _fold, _name, _value, _value, _many, _twice, _upgrade,
    _expect, _connection,
)  # fmt: skip
