"""Open transactions whose statements and streams come through connections of other workers: is every one answered?

Clients keep their connections alive, read at once or slowly, leave in the middle of a stream, and abort transactions
whose streams run. A connection that the service closes while an answer is due, or in the middle of one, is a finding:
the last event of a stream says how it has ended.
"""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import uvloop
from tests.service import Service

from attack.door.raw import Broken, RawAnswer, RawConnection, open_raw, post
from attack.party import new_party

CLIENTS = 12
_CONNECTIONS = 4
"""Of each client, to whichever workers."""
_ANSWER_S = 30.0
_STEPS_MAX = 8
_ROWS = (1, 50, 5_000, 100_000)
_WRONG_MAX = 30


@dataclass
class Load:
    """What is asked, for how long, and what was seen."""

    service: Service
    key: str
    seed: int
    seconds: float
    wrong: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.seconds

    def note(self, line: str) -> None:
        self.tally["wrong"] += 1
        if len(self.wrong) < _WRONG_MAX:
            self.wrong.append(line)


class Client:
    """One client, with connections to whichever workers, and one transaction after the other."""

    def __init__(self, load: Load, number: int) -> None:
        self._load = load
        self._random = Random(load.seed * 1000 + number)
        self._connections: list[RawConnection] = []

    async def run(self) -> None:
        while time.monotonic() < self._load.until:
            await self._transact()
        for connection in self._connections:
            await connection.gone()

    async def _connect(self) -> RawConnection:
        """Return one of its connections, that nothing is due on."""
        self._connections = [each for each in self._connections if not each.is_over]
        while len(self._connections) < _CONNECTIONS:
            self._connections.append(await open_raw(self._load.service.url))
        return self._random.choice(self._connections)

    async def _transact(self) -> None:
        begun = await self._ask("begin", "/v1/transaction/begin", {})
        if begun is None or begun.status != 201:
            return
        path = f"/v1/transaction/{json.loads(begun.body)['transaction_id']}"
        for _ in range(self._random.randrange(1, _STEPS_MAX)):
            behave = self._random.choice(
                (self._query, self._query, self._stream, self._stream, self._read_slowly, self._leave, self._abort)
            )
            if not await behave(path):
                break
        end = self._random.choice(("commit", "rollback"))
        ended = await self._ask(end, f"{path}/{end}", {})
        if ended is not None and ended.status == 409:  # a stream that was left has not ended yet, or all is over
            await self._ask("abort", f"{path}/abort", {})

    async def _query(self, path: str) -> bool:
        answer = await self._ask("query", f"{path}/query", {"sql": "select 1"})
        return answer is not None and answer.status in (200, 409)

    async def _stream(self, path: str) -> bool:
        answer = await self._ask("stream", f"{path}/query", self._make_stream(), "Accept: application/x-ndjson")
        return answer is not None and self._check_end(answer)

    def _make_stream(self) -> dict[str, object]:
        return {"sql": f"select i, repeat('x', 100) from generate_series(1, {self._random.choice(_ROWS)}) i"}

    def _check_end(self, answer: RawAnswer) -> bool:
        last = answer.body[answer.body.rfind(b"\n", 0, -1) + 1 :]
        if answer.status == 200 and not last.startswith((b'{"event":"done"', b'{"event":"error"')):
            self._load.note(f"a stream ends with {answer.body[-200:]!r}")
        return answer.status in (200, 409)

    async def _read_slowly(self, path: str) -> bool:
        connection = await self._connect()
        connection.transport.pause_reading()
        connection.send(self._write(f"{path}/query", self._make_stream(), "Accept: application/x-ndjson"))
        for _ in range(self._random.randrange(1, 5)):
            await asyncio.sleep(self._random.choice((0.01, 0.2)))
            connection.transport.resume_reading()
            await asyncio.sleep(0)
            connection.transport.pause_reading()
        connection.transport.resume_reading()
        answer = await self._take("slow stream", connection)
        return answer is not None and self._check_end(answer)

    async def _leave(self, path: str) -> bool:
        """Leave in the middle of a stream."""
        connection = await self._connect()
        connection.send(self._write(f"{path}/query", self._make_stream(), "Accept: application/x-ndjson"))
        enough = connection.received + self._random.choice((0, 1, 10_000, 500_000))
        while connection.received < enough and not connection.is_over:
            try:
                await connection.news(0.05)
            except TimeoutError:
                break
        self._load.tally["left"] += 1
        connection.reset()
        await connection.gone()
        return True

    async def _abort(self, path: str) -> bool:
        """Abort the transaction through one connection while its stream is read through another."""
        reading, aborting = await self._connect(), await open_raw(self._load.service.url)
        reading.send(self._write(f"{path}/query", self._make_stream(), "Accept: application/x-ndjson"))
        await asyncio.sleep(self._random.choice((0, 0.001, 0.02)))
        aborting.send(self._write(f"{path}/abort", {}))
        if await self._take("abort", aborting) is None:
            return False
        await aborting.gone()
        answer = await self._take("aborted stream", reading)
        if answer is not None:
            self._check_end(answer)
        return False

    def _write(self, path: str, body: dict[str, object], *more: str) -> bytes:
        return post(path, self._load.key, json.dumps(body).encode(), *more)

    async def _ask(self, kind: str, path: str, body: dict[str, object], *more: str) -> RawAnswer | None:
        connection = await self._connect()
        connection.send(self._write(path, body, *more))
        return await self._take(kind, connection)

    async def _take(self, kind: str, connection: RawConnection) -> RawAnswer | None:
        load = self._load
        load.tally[kind] += 1
        try:
            answer = await connection.answer(_ANSWER_S)
        except TimeoutError:
            load.note(f"{kind}: no answer in {_ANSWER_S:.0f} s")
            await connection.gone()
            return None
        except Broken as exc:
            load.note(f"{kind}: {exc}")
            await connection.gone()
            return None
        if answer is None:
            came = connection.answers.partial()
            load.note(f"{kind}: closed without {'the rest of ' if came else ''}an answer; {came[-200:]!r}")
            return None
        load.tally[f"{kind} {answer.status}"] += 1
        if answer.status >= 500:
            load.note(f"{kind}: {answer.status} {answer.body[:300]!r}")
        return answer


def hand_over(service: Service, seed: int, seconds: float) -> Load:
    """Run the load on a service with several workers."""
    party = new_party(service, "transactions")
    party.close()
    load = Load(service, party.keys["write"], seed, seconds)

    async def run() -> None:
        await asyncio.gather(*(Client(load, number).run() for number in range(CLIENTS)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return load
