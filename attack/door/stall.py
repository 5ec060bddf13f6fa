"""A bystander that asks for one row all the while, beside a flood: his requests, the service's memory and its log."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import uvloop
from tests.service import Service, new_data_dir, remove, start_service
from tests.workers import workers

from attack.door.flood import Flood
from attack.door.raw import Broken, RawAnswer, RawConnection, open_raw, post, unchecked
from attack.party import new_party

P99_MAX_MS = 250.0
GROWTH_MAX_BYTES = 256 * 2**20
"""What a worker may hold for its clients by default (`http_memory_mb`)."""
LOG_MAX_BYTES = 2**20
STOP_MAX_S = 15.0

_ROOT = Path(__file__).parents[2]
_ANSWER_S = 20.0
_PAUSE_S = 0.005
_SPARING_PAUSE_S = 0.02
"""Between the bystander's requests: in a full run, and where time is short and no times are asked for."""
_KEPT = 3
"""Connections of the bystander that stay open; one more is opened anew for every request."""
_SOURCE = "127.0.0.2"
"""The bystander's own address, from which it opens new connections. Until its key is read, a new client at the flood's
address cannot be told from the flood, so it may lose its connection: see `tuplegate.http.sharing.precedence`."""
_FLOOD_MAX_S = 120.0
_CONNECTIONS_MAX = 14_000
"""More than a flood opens: that there is an end to them is another matter."""


@dataclass(frozen=True)
class Flooded:
    """A server that is flooded: its addresses, the keys of the one who floods and of the one who stands by, its log,
    and how much memory it has."""

    url: str
    alias_url: str
    attacker: str
    bystander: str
    log: Path
    memory: Callable[[], int]


@dataclass(frozen=True)
class Parties:
    """Keys of the one who floods and of the one who stands by."""

    service: Service
    attacker: str
    bystander: str

    @property
    def flooded(self) -> Flooded:
        service = self.service
        log = service.home / "service.log"
        return Flooded(service.url, service.alias_url, self.attacker, self.bystander, log, partial(memory, service))


@dataclass
class Figures:
    """What the bystander and the machine saw. `wrong` are the bystander's failures, and the flood's."""

    name: str
    times_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    failed: int = 0
    """How many of the bystander's requests failed."""
    growth_bytes: int = 0
    log_bytes: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    @property
    def p99_ms(self) -> float:
        times = sorted(self.times_ms)
        return times[len(times) * 99 // 100] if times else float("inf")

    def breaches(self, *, timed: bool) -> list[str]:
        """What did not hold; times only where the machine is quiet enough to ask for them."""
        wrong = list(self.wrong)
        if timed and self.p99_ms > P99_MAX_MS:
            wrong.append(f"the bystander's p99 is {self.p99_ms:.0f} ms")
        if self.growth_bytes > GROWTH_MAX_BYTES:
            wrong.append(f"the worker grew by {self.growth_bytes >> 20} MiB")
        if self.log_bytes > LOG_MAX_BYTES:
            wrong.append(f"the log grew by {self.log_bytes >> 10} KiB")
        return wrong

    def __str__(self) -> str:
        times = sorted(self.times_ms) or [float("inf")]
        seen = ", ".join(f"{name} {number}" for name, number in self.seen.items())
        return (
            f"bystander {len(self.times_ms)} requests, p50 {times[len(times) // 2]:.1f} ms, p99 {self.p99_ms:.0f} ms,"
            f" max {times[-1]:.0f} ms; memory +{self.growth_bytes >> 20} MiB, log +{self.log_bytes >> 10} KiB; {seen}"
        )


class _Bystander:
    def __init__(self, flooded: Flooded, figures: Figures, pause_s: float) -> None:
        self._pause_s = pause_s
        self._url = flooded.url
        self._request = post("/v1/query", flooded.bystander, b'{"sql":"select b from kept where a = 7"}')
        self._figures = figures
        self._trust = unchecked()
        self.is_over = False

    async def keep_asking(self, *, anew: bool) -> None:
        connection: RawConnection | None = None
        while not self.is_over:
            began = time.monotonic()
            try:
                if connection is None:
                    connection = await open_raw(self._url, self._trust, _ANSWER_S, source=_SOURCE if anew else None)
                connection.send(self._request)
                answer = await connection.answer(_ANSWER_S)
                wrong = _unless_row(answer)
            except (OSError, TimeoutError, Broken) as exc:
                wrong = f"{type(exc).__name__} {exc}"
            took_s = time.monotonic() - began
            self._figures.times_ms.append(took_s * 1000)
            self._figures.failed += wrong is not None
            if wrong is not None and len(self._figures.wrong) < 5:
                self._figures.wrong.append(f"the bystander got after {took_s:.1f} s: {wrong}")
            if connection is not None and (anew or wrong is not None or connection.is_over):
                await connection.gone()
                connection = None
            await asyncio.sleep(self._pause_s)
        if connection is not None:
            await connection.gone()


def _unless_row(answer: RawAnswer | None) -> str | None:
    if answer is None:
        return "no answer, the connection was closed"
    return None if answer.status == 200 and b'"row 7"' in answer.body else f"{answer.status} {answer.body[:300]!r}"


def memory(service: Service) -> int:
    """Resident memory of all workers, in bytes."""
    total = 0
    for pid in workers(service):
        total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    return total


def measure(parties: Parties, flood: Flood | None, seed: int, seconds: float, scale: float) -> Figures:
    """Run the flood beside the bystander; without a flood, what the bystander sees by himself."""
    return measure_at(parties.flooded, flood, seed, seconds, scale)


def measure_at(flooded: Flooded, flood: Flood | None, seed: int, seconds: float, scale: float) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(flooded, flood, seed, seconds, scale))


async def _measure(flooded: Flooded, flood: Flood | None, seed: int, seconds: float, scale: float) -> Figures:
    figures = Figures(flood.name if flood else "nothing")
    bystander = _Bystander(flooded, figures, _PAUSE_S if scale >= 1 else _SPARING_PAUSE_S)
    asking = [asyncio.create_task(bystander.keep_asking(anew=place == _KEPT)) for place in range(_KEPT + 1)]
    await asyncio.sleep(min(1.0, seconds / 2))
    figures.times_ms.clear()
    before, log_before = flooded.memory(), flooded.log.stat().st_size
    watching = asyncio.create_task(_watch_memory(flooded, figures, before))
    if flood is None:
        await asyncio.sleep(seconds)
    else:
        await _run_flood(flooded, flood, figures, seed, seconds, scale)
        await asyncio.sleep(min(2.0, seconds / 2))
    bystander.is_over = True
    await asyncio.gather(*asking)
    watching.cancel()
    figures.log_bytes = flooded.log.stat().st_size - log_before
    return figures


async def _watch_memory(flooded: Flooded, figures: Figures, before: int) -> None:
    while True:
        figures.growth_bytes = max(figures.growth_bytes, flooded.memory() - before)
        await asyncio.sleep(0.1)


async def _run_flood(flooded: Flooded, flood: Flood, figures: Figures, seed: int, seconds: float, scale: float) -> None:
    told = {
        "name": flood.name,
        "url": flooded.url,
        "alias_url": flooded.alias_url,
        "key": flooded.attacker,
        "seed": seed,
        "seconds": seconds,
        "scale": scale,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "attack.door.floods",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=_ROOT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_FLOOD_MAX_S):
            output, errors = await process.communicate(json.dumps(told).encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        figures.wrong.append(f"the flood did not end in {_FLOOD_MAX_S:.0f} s")
        return
    if process.returncode:
        figures.wrong.append(f"the flood broke down: {errors.decode()[-1000:]}")
        return
    seen = json.loads(output)
    figures.wrong += [f"the flood saw: {line}" for line in seen["wrong"]]
    figures.seen = seen["tally"]


@contextmanager
def flooded_service(*flags: str, places: int | None = None) -> Iterator[Parties]:
    """A service with the two parties, and room for so many connections. It is killed in the end, if it was not
    stopped."""
    service = start_service(
        new_data_dir(), "--tiers", "unlimited", "--http-connections-max", str(places or _CONNECTIONS_MAX), *flags
    )
    try:
        attacker, bystander = new_party(service, "attacker"), new_party(service, "bystander")
        bystander.must("create table kept (a int primary key, b text)")
        bystander.must("insert into kept select i, 'row ' || i from generate_series(1, 100) i")
        attacker.close()
        bystander.close()
        yield Parties(service, attacker.keys["write"], bystander.keys["write"])
    finally:
        if service.process.poll() is None:
            service.kill()
        remove(service.data_dir)


def stop_in_order(service: Service) -> list[str]:
    """Stop it; what is wrong where that takes too long or ends badly."""
    service.process.terminate()
    began = time.monotonic()
    try:
        code = service.process.wait(STOP_MAX_S)
    except subprocess.TimeoutExpired:
        return [f"the service did not stop in {STOP_MAX_S:.0f} s"]
    return [] if code == 0 else [f"the service ended with {code} after {time.monotonic() - began:.1f} s"]
