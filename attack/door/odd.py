"""Odd requests of all sorts, mixed from a seed: what they leave behind in the worker's memory.

Whatever a client can make up without end is in them: tokens, names of databases, paths, headers, statements, keys for
repeats. A cache that has no bound in bytes shows as growth.
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import uvloop

from attack.door.raw import RawConnection, open_raw, post, unchecked
from attack.door.request_bytes import make_case
from attack.door.stall import Parties, memory
from tuplegate.access.tokens import RANDOM_BYTES, TokenKind, make_token

SLOPE_MAX_BYTES = 5 * 2**20
_AT_ONCE = 24
_SETTLE_S = 3.0
"""Time for what has left to be forgotten."""


@dataclass
class Oddities:
    """A run. `memory` are the worker's bytes after the warm-up and in the end."""

    parties: Parties
    random: Random
    sent: int = 0
    memory: list[int] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)

    @property
    def growth_bytes(self) -> int:
        return self.memory[-1] - self.memory[0]


def send_oddities(parties: Parties, seed: int, warm_up: int, requests: int) -> Oddities:
    """Send so many requests in all; look at the memory after the warm-up and after the last."""
    run = Oddities(parties, Random(seed))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for goal in (warm_up, requests):
            runner.run(_until(run, goal))
            time.sleep(_SETTLE_S)
            run.memory.append(memory(parties.service))
    return run


async def _until(run: Oddities, goal: int) -> None:
    async def one(place: int) -> None:
        url = run.parties.service.alias_url if place % 3 == 2 else run.parties.service.url
        while run.sent < goal:
            with suppress(OSError, TimeoutError):
                connection = await open_raw(url, unchecked() if url.startswith("https") else None)
                await _talk(run, connection)
                await connection.gone()

    await asyncio.gather(*(one(place) for place in range(_AT_ONCE)))


async def _talk(run: Oddities, connection: RawConnection) -> None:
    random = run.random
    for _ in range(random.randrange(1, 6)):
        makers = [random.choice(_SORTS) for _ in range(random.choice((1, 1, 1, 2, 5)))]
        run.sent += len(makers)
        run.tally.update(maker.__name__[1:] for maker in makers)
        connection.send(b"".join(maker(run) for maker in makers))
        with suppress(TimeoutError):
            await connection.news(random.choice((0, 0.01, 0.2, 0.2, 0.2)))
        connection.answers.rest.clear()
        if connection.is_over:
            return
    if random.random() < 0.3:
        connection.reset()


def _made_up(random: Random) -> str:
    """Text that never came before, of any length up to some kilobytes."""
    return random.randbytes(random.choice((4, 8, 30, 200, 1500))).hex()


def _malformed(run: Oddities) -> bytes:
    return make_case(run.random)


def _long_path(run: Oddities) -> bytes:
    return f"GET /{_made_up(run.random)} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def _query_string(run: Oddities) -> bytes:
    return f"GET /health?{_made_up(run.random)}=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def _odd_headers(run: Oddities) -> bytes:
    made_up = _made_up(run.random)
    return f"GET /health HTTP/1.1\r\nHost: x\r\nX-{made_up[:60]}: {made_up}\r\nOrigin: http://{made_up[:50]}\r\n\r\n".encode()


def _unknown_database(run: Oddities) -> bytes:
    name = f"Tuplegate-Database: d{_made_up(run.random)}"
    return post("/v1/query", run.parties.attacker, b'{"sql":"select 1"}', name)


def _forged_token(run: Oddities) -> bytes:
    kind = run.random.choice((TokenKind.KEY, TokenKind.SESSION))
    return post("/v1/query", make_token(kind, os.urandom(RANDOM_BYTES)).text, b"{}")


def _bad_token(run: Oddities) -> bytes:
    return post("/v1/query", _made_up(run.random), b"{}")


def _statement(run: Oddities) -> bytes:
    made_up = _made_up(run.random)
    sql = run.random.choice(
        (
            f"select '{made_up}'",
            f'select 1 as "{made_up[:60]}"',
            f"selec {made_up}",
            f"select '{made_up}'::int",
            f"/* {made_up} */ select $1::int",
        )
    )
    body = {"sql": sql, "params": [1]} if "$1" in sql else {"sql": sql}
    return post("/v1/query", run.parties.attacker, json.dumps(body).encode())


def _not_json(run: Oddities) -> bytes:
    return post("/v1/query", run.parties.attacker, _made_up(run.random).encode())


def _unknown_transaction(run: Oddities) -> bytes:
    key = run.parties.attacker
    path = f"/v1/transaction/txn_{_made_up(run.random)[:40]}"
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode()


def _stream(run: Oddities) -> bytes:
    sql = f"/*+ STREAM */ select '{_made_up(run.random)}' as x from generate_series(1, 20)"
    return post("/v1/query", run.parties.attacker, json.dumps({"sql": sql}).encode())


def _upgrade(run: Oddities) -> bytes:
    return f"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {_made_up(run.random)}\r\n\r\n".encode()


_SORTS: tuple[Callable[[Oddities], bytes], ...] = (
    _malformed, _malformed, _malformed, _long_path, _query_string, _odd_headers, _unknown_database, _forged_token,
    _bad_token, _statement, _statement, _not_json, _unknown_transaction, _stream, _upgrade,
)  # fmt: skip
