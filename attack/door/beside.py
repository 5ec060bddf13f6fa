"""The same floods against this service and against servers that others maintain, in one run, as one table."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from bench.peers.asgi import KEY, running_asgi
from bench.peers.processes import memory_of

from attack.door.crosstalk import TLS
from attack.door.flood import Flood
from attack.door.stall import Figures, Flooded, flooded_service, measure_at
from tuplegate.http.tls.self_signed import provide

OURS = "tuplegate"
_FLOOD_S = 4.0


def compare(floods: Sequence[Flood], servers: Sequence[str], seed: int) -> list[str]:
    """Print a row for each flood and server. Return what is left out, and why."""
    print("| flood | server | bystander's requests | failed | p99 | longest | memory |\n|---|---|---|---|---|---|---|")
    run = sorted((flood for flood in floods if not flood.ours_alone), key=_surroundings)
    for _, group in groupby(run, _surroundings):
        alike = list(group)
        for server in (OURS, *servers):
            _measure_all(server, alike, seed)
    return [f"{flood.name}: {flood.ours_alone}" for flood in floods if flood.ours_alone]


def _surroundings(flood: Flood) -> tuple[bool, int]:
    return flood.needs_tls, flood.places or 0


def _measure_all(server: str, floods: list[Flood], seed: int) -> None:
    """Run the floods one after the other; after one that did harm, on a server that was started anew."""
    left = list(floods)
    while left:
        with _started(server, left[0]) as flooded:
            while left:
                flood = left.pop(0)
                figures = measure_at(flooded, flood, seed, _FLOOD_S, 1.0)
                _print_row(server, figures)
                if figures.failed:
                    break


@contextmanager
def _started(server: str, flood: Flood) -> Iterator[Flooded]:
    if server == OURS:
        with flooded_service(*(TLS if flood.needs_tls else ()), places=flood.places) as parties:
            yield parties.flooded
        return
    with tempfile.TemporaryDirectory(prefix="tg-peer-") as folder:
        home = Path(folder)
        tls = provide(home / "tls", ["localhost"], datetime.now(UTC)) if flood.needs_tls else None
        with running_asgi(server, home, tls) as (child, url):
            yield Flooded(url, url, KEY, KEY, child.err, lambda: int(memory_of([child.pid]).server * 2**20))


def _print_row(server: str, figures: Figures) -> None:
    times = sorted(figures.times_ms) or [float("inf")]
    print(
        f"| {figures.name} | {server} | {len(figures.times_ms)} | {figures.failed} | {figures.p99_ms:.0f} ms"
        f" | {times[-1]:.0f} ms | +{figures.growth_bytes >> 20} MiB |",
        flush=True,
    )
