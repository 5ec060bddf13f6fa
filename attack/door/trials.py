"""The table of what `make attack` tries on the front door. Each starts a service of its own, which it may ruin."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from attack import inside
from attack.campaign import Verdict
from attack.door.crosstalk import TLS, check, several_workers
from attack.door.floods import FLOODS, Flood
from attack.door.fuzz import run_in_processes
from attack.door.handover import hand_over
from attack.door.odd import SLOPE_MAX_BYTES, send_oddities
from attack.door.stall import flooded_service, measure, stop_in_order
from attack.like_the_engine import compare

_REQUESTS = 200_000
_KILLS = 20
_FLOOD_S = 8.0
_HANDOVER_S = 60.0
_HANDOVER_FLAGS = ("--workers", "3", "--open-transactions-max", "200")
_ODDITIES = 140_000
_WARM_UP = 60_000
"""After so many the service keeps as many heads, tokens and names as it ever does: from then on its memory stays."""
_CASES = 1_000_000
_SHOWN_MAX = 30


@dataclass(frozen=True)
class Trial:
    """`run` takes a seed."""

    name: str
    sentence: str
    run: Callable[[int], Verdict]


def _crosstalk(seed: int) -> Verdict:
    with ExitStack() as stack:
        services = [stack.enter_context(several_workers(*flags)) for flags in ((), TLS)]
        run = check(services, seed, _REQUESTS, _KILLS)
    figures = ", ".join(f"{name} {number}" for name, number in sorted(run.tally.items()))
    return Verdict("crosstalk", run.wrong[:_SHOWN_MAX], f"{run.sent} requests; {figures}", [])


def _handover(seed: int) -> Verdict:
    with several_workers(*_HANDOVER_FLAGS) as service:
        load = hand_over(service, seed, _HANDOVER_S)
    figures = ", ".join(f"{name} {number}" for name, number in sorted(load.tally.items()))
    return Verdict("handover", load.wrong, figures, [])


def _stall(flood: Flood, seed: int) -> Verdict:
    with flooded_service(*(TLS if flood.needs_tls else ()), places=flood.places) as parties:
        alone = measure(parties, None, seed, 2.0, 1.0)
        figures = measure(parties, flood, seed, _FLOOD_S, 1.0)
        after = measure(parties, None, seed, 2.0, 1.0)
        wrong = [*figures.breaches(timed=True), *(f"afterwards {line}" for line in after.wrong)]
        wrong += stop_in_order(parties.service)
    return Verdict(flood.name, wrong, f"{figures}; p99 without it {alone.p99_ms:.0f} ms", [])


def _oddities(seed: int) -> Verdict:
    with flooded_service() as parties:
        run = send_oddities(parties, seed, _WARM_UP, _ODDITIES)
        after = measure(parties, None, seed, 2.0, 1.0)
        wrong = [*after.wrong, *stop_in_order(parties.service)]
    grown = f"{run.growth_bytes / 2**20:.1f} MiB"
    if run.growth_bytes > SLOPE_MAX_BYTES:
        wrong.append(f"the worker grew by {grown} from request {_WARM_UP} to {_ODDITIES}")
    return Verdict("oddities", wrong, f"{run.sent} requests, {grown} more memory; {dict(run.tally)}", [])


def _reading(seed: int) -> Verdict:
    outcome = run_in_processes(seed, _CASES, processes=2)
    figures = ", ".join(f"{name} {number}" for name, number in outcome.tally.items())
    return Verdict("reading", outcome.wrong[:_SHOWN_MAX], figures, [])


TRIALS: dict[str, Trial] = {
    trial.name: trial
    for trial in (
        Trial(
            "reading", "A million requests are read as h11 and llhttp read them, or refused by a listed rule.", _reading
        ),
        Trial("like_the_engine", "Every statement is answered as over a plain connection to the engine.", compare),
        Trial("crosstalk", "Nobody gets a byte of an answer to anybody else's request.", _crosstalk),
        Trial("handover", "Every request of an open transaction is answered, whichever worker holds it.", _handover),
        Trial("inside_nonsense", "No server of a tenant's own harms others by what it answers.", inside.run_nonsense),
        Trial("inside_native", "Native code in a server of a tenant's own reaches nobody else.", inside.run_native),
        Trial("oddities", "Odd requests, more than a hundred thousand, leave nothing behind in memory.", _oddities),
        *(Trial(flood.name, flood.sentence, partial(_stall, flood)) for flood in FLOODS.values()),
    )
}
