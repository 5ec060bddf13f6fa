"""What somebody can do to the front door, most of it without a key: each is a small function that goes on for a while.

A flood runs in a process of its own, so that the bystander's times are not the flood's:

    echo '{"name": …, "url": …, …}' | python -m attack.door.floods

It prints what it saw as JSON. Well-formed requests must be answered in order, or the connection must be closed by an
answer that says so: what is neither is in `wrong`.
"""

import asyncio
import json
import resource
import ssl
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle

import uvloop

from attack.door import place_floods
from attack.door.flood import FLOODS, Door, Flood, flood
from attack.door.forged import forge_request
from attack.door.raw import Broken, post, unchecked
from attack.door.request_bytes import make_case
from tuplegate.http.short_frames import write_frame

_HELLO = bytes.fromhex("1603010200010001fc0303")
"""How a TLS handshake begins; what follows is missing."""
_LOOKED_UP = "another server has no tokens to look up"
_NEEDS_KEY = "it takes a key, and statements with such an answer"


# -- pipelined --------------------------------------------------------------------------------------------------------


async def _pipeline(door: Door, url: str, requests: list[bytes], statuses: tuple[int, ...]) -> None:
    """Send all in one packet and count the answers."""
    connection = await door.open(url)
    if connection is None:
        return
    connection.send(b"".join(requests))
    answered, is_closed = 0, False
    try:
        while answered < len(requests):
            answer = await connection.answer(door.patience_s)
            if answer is None:
                break
            answered += 1
            door.tally[f"status {answer.status}"] += 1
            is_closed = answer.closes
            if answer.status not in statuses:
                door.note(f"answer {answered} of {len(requests)} is {answer.status} {answer.body[:200]!r}")
        if answered < len(requests) and not is_closed:
            door.note(f"closed after {answered} of {len(requests)} answers, and none says so")
        elif not connection.answers.is_between and not is_closed:
            door.note(f"more came than {len(requests)} answers: {connection.answers.partial()[:200]!r}")
    except TimeoutError:
        door.note(f"silence after {answered} of {len(requests)} answers")
    except Broken as exc:
        door.note(f"after {answered} of {len(requests)} answers: {exc}")
    finally:
        await connection.gone()


async def _pipelines(
    door: Door, sizes: tuple[int, ...], make: Callable[[int], list[bytes]], statuses: tuple[int, ...], at_once: int = 4
) -> None:
    """Packets of requests on a few connections, on the data port and the alias by turns."""

    async def one(place: int) -> None:
        turn = place
        while door.lasts:
            size = sizes[turn // 2 % len(sizes)]
            await _pipeline(door, door.alias_url if turn % 2 else door.url, make(size), statuses)
            turn += 1

    await asyncio.gather(*(one(place) for place in range(at_once)))


_NOWHERE = b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n"


@flood()
async def pipelined_unknown_routes(door: Door) -> None:
    """Thousands of requests for nothing in one packet are answered, each and in order."""
    sizes = (150, 5000, 60_000) if door.scale == 1 else (150, 5000)
    await _pipelines(door, sizes, lambda size: size * [_NOWHERE], (404, 401))


@flood()
async def heads_that_take_long_to_read(door: Door) -> None:
    """Heads as long as they may be, of what takes long to look at, hold up nobody."""
    start = b"Host: x\r\n\r\n"
    random = b"".join(b"x%d: %b\r\n" % (number, door.random.randbytes(120).hex().encode()) for number in range(98))
    heads = (
        b"GET " + b"/%41" * 8000 + b" HTTP/1.1\r\n" + start,
        b"GET /" + b"%41" * 10_000 + b" HTTP/1.1\r\n" + start,
        b"GET /nope HTTP/1.1\r\nConnection: keep-alive" + b"," * 30_000 + b"\r\n" + start,
        b"GET /nope HTTP/1.1\r\n" + random + start,
    )
    await _pipelines(door, (64,), lambda size: size * [door.random.choice(heads)], (404, 401))


@flood()
async def empty_lines(door: Door) -> None:
    """Empty lines without end are no request."""
    await _hammer(door, lambda: b"\r\n" * 500_000, "")


@flood()
async def small_chunks_for_nothing(door: Door) -> None:
    """The chunks of a body that nobody wants are not looked through."""
    head = b"POST /nope HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await _hammer(door, lambda: head + b"5\r\n12345\r\n" * 50_000, "")


@flood()
async def promised_bodies(door: Door) -> None:
    """A body that is promised and does not come takes nothing from anybody."""
    head = b"POST /v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 65000\r\n\r\n"
    held = []
    for place in range(door.scaled(2000, 200)):
        connection = await door.open(door.alias_url if place % 2 else door.url)
        if connection is not None:
            connection.send(head)
            held.append(connection)
    await asyncio.sleep(door.left_s)
    for connection in held:
        await connection.gone()


@flood(ours_alone=_LOOKED_UP)
async def pipelined_behind_one_that_waits(door: Door) -> None:
    """Requests that could be answered at once, behind one that waits, are answered one after the other."""
    sizes = (150, 1000, 5000) if door.scale == 1 else (150, 600)
    await _pipelines(door, sizes, lambda size: [forge_request(), *(size - 1) * [_NOWHERE]], (404, 401))


@flood(ours_alone=_LOOKED_UP)
async def pipelined_forged_tokens(door: Door) -> None:
    """Tokens that are well-formed and unknown have to be looked up, and hold up nobody."""
    sizes = (150, 600) if door.scale == 1 else (150,)
    await _pipelines(door, sizes, lambda size: [forge_request() for _ in range(size)], (401, 429, 503))


@flood(ours_alone=_LOOKED_UP)
async def forged_tokens_from_many(door: Door) -> None:
    """Hundreds of clients that each wait for a made-up token to be looked up do not delay those whose token is good."""
    clients = door.scaled(600, 100)
    await _pipelines(door, (20,), lambda size: [forge_request() for _ in range(size)], (401, 429, 503), clients)


@flood(ours_alone=_LOOKED_UP)
async def pipelined_same_forged_token(door: Door) -> None:
    """One forged token, pipelined, is looked up once; the answers behind it do not pile up on each other."""
    sizes = (150, 1000) if door.scale == 1 else (150, 600)
    await _pipelines(door, sizes, lambda size: size * [forge_request()], (401, 429, 503))


@flood()
async def pipelined_upgrade_offers(door: Door) -> None:
    """Offers of another protocol are declined, each by an answer, however many come at once."""
    offer = b"\r\n".join(
        (b"GET /nope HTTP/1.1", b"Host: x", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c",
         b"HTTP2-Settings: AAMAAABk", b"", b"")
    )  # fmt: skip
    await _pipelines(door, (600,), lambda size: size * [offer], (404, 401))


@flood()
async def pipelined_expectations(door: Door) -> None:
    """Clients that would rather wait for 100 and do not are answered all the same."""
    request = post("/v1/query", "nobody", b"{}", "Expect: 100-continue")
    await _pipelines(door, (300,), lambda size: size * [request], (401,))


@flood()
async def half_closed(door: Door) -> None:
    """A client that has said all, and closes its half, gets its answers."""

    async def one(place: int) -> None:
        while door.lasts:
            connection = await door.open(door.alias_url if place % 2 else door.url)
            if connection is None:
                continue
            connection.send(2 * b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            connection.transport.write_eof()
            try:
                for number in range(2):
                    if await connection.answer(door.patience_s) is None:
                        door.note(f"closed after {number} of 2 answers")
                        break
            except TimeoutError:
                door.note("silence after a half was closed")
            await connection.gone()
            await asyncio.sleep(0.01)

    await asyncio.gather(*(one(place) for place in range(8)))


# -- what is not read -------------------------------------------------------------------------------------------------


async def _never_read(door: Door, request: bytes, connections: int) -> None:
    """Send and take nothing, not even into this process."""
    held = []
    for place in range(connections):
        connection = await door.open(door.alias_url if place % 2 else door.url)
        if connection is not None:
            connection.transport.pause_reading()
            connection.send(request)
            held.append(connection)
    await asyncio.sleep(door.left_s)
    for connection in held:
        await connection.gone()


@flood(ours_alone=_NEEDS_KEY)
async def large_answers_that_nobody_reads(door: Door) -> None:
    """Sixty pipelined answers of 20 MB that nobody reads are not all held in memory."""
    sql = b'{"sql":"select repeat(\'x\', 20000000) as x"}'
    await _never_read(door, 60 * post("/v1/query", door.key, sql), 2)


@flood()
async def descriptions_that_nobody_reads(door: Door) -> None:
    """Descriptions of the service that nobody reads, asked for without a key, are held by the piece."""
    await _never_read(door, 40 * b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n", door.scaled(1000))


@flood(ours_alone=_NEEDS_KEY)
async def streams_that_nobody_reads(door: Door) -> None:
    """Streams to readers that never read are held back, not held."""
    sql = b'{"sql":"/*+ STREAM */ select repeat(\'x\', 10000) as x from generate_series(1, 10000000)"}'
    await _never_read(door, post("/v1/query", door.key, sql), 12)


# -- what comes slowly, or in odd pieces ------------------------------------------------------------------------------


@flood()
async def bodies_without_a_key(door: Door) -> None:
    """Bodies of 10 MiB that come without a key are not held."""
    size = 10 * 2**20
    head = f"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    piece = b" " * 65536

    async def one(place: int) -> None:
        while door.lasts:
            connection = await door.open(door.alias_url if place % 2 else door.url)
            if connection is None:
                continue
            connection.send(head.encode())
            for _ in range(size // len(piece) - 1):
                connection.send(piece)
                await asyncio.sleep(0.001)
                if connection.is_over or not door.lasts:
                    break
            while door.lasts and not connection.is_over:
                await asyncio.sleep(0.1)
            await connection.gone()

    await asyncio.gather(*(one(place) for place in range(door.scaled(60, 24))))


@flood()
async def two_byte_chunks(door: Door) -> None:
    """Bodies in chunks of two bytes cost no more memory than their size."""
    head = b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = 4000 * b"2\r\n  \r\n"

    async def one(place: int) -> None:
        while door.lasts:
            connection = await door.open(door.alias_url if place % 2 else door.url)
            if connection is None:
                continue
            connection.send(head)
            while door.lasts and not connection.is_over:
                connection.send(piece)
                await asyncio.sleep(0.02)
            await connection.gone()

    await asyncio.gather(*(one(place) for place in range(door.scaled(16, 4))))


async def _slowly(door: Door, data: bytes, connections: int, url: str = "") -> None:
    """One byte a second on each connection; what the service ends is opened anew."""

    async def one(place: int) -> None:
        while door.lasts:
            connection = await door.open(url or (door.alias_url if place % 2 else door.url))
            if connection is None:
                await asyncio.sleep(0.1)
                continue
            for number in range(len(data)):
                if connection.is_over or not door.lasts:
                    break
                connection.send(data[number : number + 1])
                await asyncio.sleep(min(1.0, door.left_s))
            await connection.gone()

    await asyncio.gather(*(one(place) for place in range(connections)))


@flood()
async def slow_heads(door: Door) -> None:
    """Hundreds of heads that come by a byte a second end by themselves."""
    await _slowly(door, b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: " + 60 * b"x", door.scaled(500, 100))


async def _idle(door: Door, connections: int) -> None:
    held = await asyncio.gather(
        *(door.open(door.alias_url if place % 4 == 3 else door.url) for place in range(connections))
    )
    await asyncio.sleep(door.left_s)
    opened = [connection for connection in held if connection is not None]
    door.tally["held to the end"] += sum(not connection.is_over for connection in opened)
    for connection in opened:
        connection.reset()
    for connection in opened:
        await connection.gone()


@flood()
async def idle_connections(door: Door) -> None:
    """Ten thousand connections that say nothing leave room for others."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500
    await _idle(door, min(door.scaled(10_000, 500), allowed))


@flood(tls=True)
async def idle_tls_connections(door: Door) -> None:
    """Hundreds of connections with TLS that say nothing leave room for others."""
    await _idle(door, door.scaled(1000, 60))


@flood(tls=True, ours_alone=_LOOKED_UP)
async def tls_pipelined_behind_one_that_waits(door: Door) -> None:
    """The same over TLS: requests behind one that waits are answered one after the other."""
    await pipelined_behind_one_that_waits(door)


@flood(tls=True)
async def tls_bodies_without_a_key(door: Door) -> None:
    """Bodies of 10 MiB that come over TLS and without a key are not held."""
    await bodies_without_a_key(door)


@flood(tls=True, ours_alone=_NEEDS_KEY)
async def tls_large_answers_that_nobody_reads(door: Door) -> None:
    """Sixty pipelined answers of 20 MB over TLS that nobody reads are not all held in memory."""
    await large_answers_that_nobody_reads(door)


@flood(tls=True)
async def tls_descriptions_that_nobody_reads(door: Door) -> None:
    """Descriptions of the service that nobody reads, asked for over TLS without a key, are held by the piece."""
    await descriptions_that_nobody_reads(door)


@flood(tls=True)
async def slow_tls_heads(door: Door) -> None:
    """Heads that come by a byte a second over TLS end by themselves."""
    await _slowly(door, b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: " + 60 * b"x", door.scaled(200, 40))


@flood(tls=True, ours_alone=_NEEDS_KEY)
async def tls_streams_that_nobody_reads(door: Door) -> None:
    """Streams over TLS to readers that never read are held back, not held."""
    sql = b'{"sql":"/*+ STREAM */ select repeat(\'x\', 10000) as x from generate_series(1, 10000000)"}'
    await _never_read(door, post("/v1/query", door.key, sql), 8)


@flood(tls=True)
async def unfinished_handshakes(door: Door) -> None:
    """Handshakes that begin and never end take no place from others."""
    door.trust = None
    await _slowly(door, _HELLO + bytes(500), door.scaled(500, 100), door.url.replace("https", "http"))


@flood(tls=True)
async def tls_garbage(door: Door) -> None:
    """Bytes that are no TLS are refused, and little is said about it in the log."""
    door.trust = None
    await _hammer(door, lambda: _HELLO * door.random.randrange(2) + door.random.randbytes(200), "http")


@flood()
async def opened_and_closed(door: Door) -> None:
    """Connections that are opened and closed as fast as possible hold up nobody."""
    await _hammer(door, lambda: b"", "")


@flood()
async def malformed_heads(door: Door) -> None:
    """Heads of all odd sorts are refused, each on its own connection alone."""
    await _hammer(door, lambda: make_case(door.random), "")


async def _hammer(door: Door, make: Callable[[], bytes], scheme: str) -> None:
    """Connect, send, leave, on 16 connections at once."""
    urls = [door.url, door.alias_url]
    if scheme:
        urls = [f"{scheme}://{url.partition('://')[2]}" for url in urls]

    async def one(place: int) -> None:
        while door.lasts:
            connection = await door.open(urls[place % 2])
            if connection is None:
                await asyncio.sleep(0.05)
                continue
            if data := make():
                connection.send(data)
                with suppress(TimeoutError):
                    await connection.news(door.random.choice((0.001, 0.05, 0.3)))
            if door.random.random() < 0.5:
                connection.reset()
            await connection.gone()

    await asyncio.gather(*(one(place) for place in range(16)))


# -- at one instant ---------------------------------------------------------------------------------------------------


async def _at_one_instant(door: Door, said: list[bytes], connections: int, url: str = "") -> None:
    """Connections that are silent until all are there, and then each says one of these; again and again."""
    while door.lasts:
        opened = [await door.open(url) for _ in range(connections)]
        for connection, data in zip(opened, cycle(said), strict=False):
            if connection is not None:
                connection.send(data)
        await asyncio.sleep(min(1.0, door.left_s))
        for connection in opened:
            if connection is not None:
                connection.reset()
                await connection.gone()


@flood()
async def requests_at_one_instant(door: Door) -> None:
    """Many connections that send at one instant what takes a little each take little of a turn together."""
    await _at_one_instant(door, [b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 16], door.scaled(3000, 100))


@flood(tls=True)
async def hellos_at_one_instant(door: Door) -> None:
    """So are handshakes, the costliest that there are."""
    door.trust = None
    hellos = [_hello(group) for group in ("ffdhe8192", "secp521r1", "X25519")]
    await _at_one_instant(door, hellos, door.scaled(1000, 50), door.url.replace("https", "http"))


def _hello(group: str) -> bytes:
    """What a client says that knows one group alone."""
    context, said = unchecked(), ssl.MemoryBIO()
    context.set_ecdh_curve(group)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said).do_handshake()
    return said.read()


# -- over a WebSocket -------------------------------------------------------------------------------------------------


_UPGRADE = (
    b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_SEND_BUFFER_MAX = 2**20


async def _send_frames(door: Door, first: bytes, frames: bytes, connections: int) -> None:
    """Open WebSockets, and send the same frames over each for as long as it is open."""

    async def one(place: int) -> None:
        while door.lasts:
            connection = await door.open(door.alias_url if place % 4 == 3 else door.url)
            if connection is None:
                await asyncio.sleep(0.1)
                continue
            connection.send(_UPGRADE + first)
            while door.lasts and not connection.is_over:
                if connection.transport.get_write_buffer_size() < _SEND_BUFFER_MAX:
                    connection.send(frames)
                await asyncio.sleep(0.01)
            await connection.gone()

    await asyncio.gather(*(one(place) for place in range(connections)))


@flood()
async def websocket_frames_without_a_key(door: Door) -> None:
    """The smallest frames, on WebSockets that never show a key, are read by turns and leave others theirs."""
    await _send_frames(door, b"", 20_000 * write_frame(b"", bytes(4)), 20)


@flood()
async def wire_messages_of_five_bytes(door: Door) -> None:
    """Two million messages of the engine's protocol in one frame are cut by turns."""
    startup = struct.pack(">i", 196608) + b"user\0x\0\0"
    login = struct.pack(">i", len(startup) + 4) + startup
    login += b"p" + struct.pack(">i", len(door.key) + 5) + door.key.encode() + b"\0"
    flushes = write_frame(b"H\0\0\0\4" * 2_000_000, bytes(4))
    await _send_frames(door, write_frame(login, bytes(4)), flushes, 2)


__all__ = ["FLOODS", "Flood", "place_floods"]


async def _run(told: dict[str, object]) -> Door:
    door = Door(**told)  # type: ignore[arg-type]
    await FLOODS[door.name].run(door)
    if not door.tally["connections"]:
        door.note("no connection was to be had")
    return door


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(_run(json.load(sys.stdin)))
    print(json.dumps({"wrong": seen.wrong, "tally": seen.tally}))
