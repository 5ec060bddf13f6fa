"""Floods that want all places of a service, which has few: those who hold one must give way to others."""

import asyncio
from collections.abc import Callable, Iterator

from attack.door.flood import Door, flood
from attack.door.forged import forge_request
from attack.door.raw import post

PLACES = 500
_CONNECTIONS = 2 * PLACES
_FORGED = 20
"""Requests of a connection that wait for a look-up, one after the other."""


async def _hold(door: Door, send: Callable[[], Iterator[bytes]], urls: list[str]) -> None:
    """Hold connections that send one piece a second and do not close when the service does. One that the service ends
    is opened anew."""

    async def one(place: int) -> None:
        while door.lasts:
            connection = await door.open(urls[place % len(urls)])
            if connection is None:
                await asyncio.sleep(0.1)
                continue
            connection.closes_too = False
            for piece in send():
                connection.send(piece)
                await asyncio.wait([connection.lost], timeout=min(1.0, door.left_s))
                if connection.lost.done() or not door.lasts:
                    break
            door.tally["ended by the service"] += connection.is_over
            await connection.gone()

    await asyncio.gather(*(one(place) for place in range(_CONNECTIONS)))


@flood(places=PLACES)
async def refused_clients_that_stay(door: Door) -> None:
    """Clients that were refused and do not close their side leave room for others."""

    def send() -> Iterator[bytes]:
        yield b"this is no request\r\n\r\n"
        while True:
            yield b"\r\n"

    await _hold(door, send, [door.url, door.alias_url])


@flood(places=PLACES, ours_alone="other servers know no organizations")
async def slow_bodies_of_one_organization(door: Door) -> None:
    """Bodies that trickle in with one organization's key leave room for others."""
    head = post("/v1/query", door.key, 1000 * b" ")[:-1000]

    def send() -> Iterator[bytes]:
        yield head
        while True:
            yield b" "

    await _hold(door, send, [door.url])


@flood(places=PLACES, ours_alone="another server has no tokens to look up")
async def look_ups_in_all_places(door: Door) -> None:
    """Connections that all wait until a made-up token was looked up leave room for others."""

    def send() -> Iterator[bytes]:
        while True:
            yield b"".join(forge_request() for _ in range(_FORGED))

    await _hold(door, send, [door.url, door.alias_url])
