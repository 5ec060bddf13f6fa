"""Requests from a seed, read by the service, h11 and llhttp, whole and in pieces.

    python -m attack.door.fuzz SEED FIRST COUNT

runs COUNT cases from number FIRST on; a difference is shown with its bytes, and is found again by its seed and number.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from attack.door.readings import Reader, Reading, differences, read_h11, read_llhttp, read_ours, reasons, service_reader
from attack.door.request_bytes import make_case, split

_WRONG_MAX = 20


@dataclass
class Outcome:
    """`wrong` are differences; `tally` counts cases by sort, so that a run that tries nothing shows."""

    wrong: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)


def run_cases(seed: int, first: int, count: int, reader: Callable[[], Reader]) -> Outcome:
    """Compare the reader with the others in so many cases. Ends early once there are enough differences."""
    outcome = Outcome()
    for number in range(first, first + count):
        random = Random(seed * 2**32 + number)
        data = make_case(random)
        wrong = _judge(reader, data, split(random, data), outcome.tally)
        outcome.wrong += [f"seed {seed}, case {number}: {line}\n      {data[:3000]!r}" for line in wrong]
        if len(outcome.wrong) >= _WRONG_MAX:
            break
    return outcome


def _judge(reader: Callable[[], Reader], data: bytes, pieces: list[bytes], tally: Counter[str]) -> list[str]:
    ours = read_ours(reader, [data])
    by_h11 = read_h11(data)
    tally["cases"] += 1
    tally["requests accepted"] += sum(request.complete for request in ours.requests)
    tally["refused"] += ours.refusal is not None
    tally["refused, accepted by h11"] += ours.refusal is not None and by_h11.refusal is None
    wrong = differences(data, ours, by_h11, read_llhttp(data))
    if not _same(in_pieces := read_ours(reader, pieces), ours):
        wrong.append(f"in pieces it is {in_pieces}, whole {ours}; the pieces: {[len(piece) for piece in pieces]}")
    return wrong


def _same(one: Reading, other: Reading) -> bool:
    """Compared is what is accepted as a whole, up to a request that closes, and whether the rest is refused."""
    accepted = [[request for request in reading.requests if request.complete] for reading in (one, other)]
    for pair in zip(*accepted, strict=False):
        if pair[0] != pair[1]:
            return False
        if not pair[0].keep_alive:
            return True
    return len(accepted[0]) == len(accepted[1]) and (one.refusal is None) == (other.refusal is None)


def rules_met(seed: int, count: int) -> Counter[str]:
    """How often each stricter rule applies to what h11 accepts: one that never does is not tried at all."""
    met: Counter[str] = Counter()
    for number in range(count):
        data = make_case(Random(seed * 2**32 + number))
        reading = read_h11(data)
        edges = [*reading.begins, len(data)]
        for place, request in enumerate(reading.requests):
            met.update(reasons(data[edges[place] : edges[place + 1]], request))
    return met


def run_in_processes(seed: int, count: int, processes: int) -> Outcome:
    """The cases shared out, since one process has one core."""
    share = -(-count // processes)
    command = [sys.executable, "-m", "attack.door.fuzz", str(seed)]
    root = Path(__file__).parents[2]
    running = [
        subprocess.Popen([*command, str(place * share), str(share)], stdout=subprocess.PIPE, text=True, cwd=root)
        for place in range(processes)
    ]
    outcome = Outcome()
    for process in running:
        output, _ = process.communicate()
        if process.returncode:
            outcome.wrong.append(f"a process of the comparison ended with {process.returncode}")
            continue
        found = json.loads(output)
        outcome.wrong += found["wrong"]
        outcome.tally.update(found["tally"])
    return outcome


if __name__ == "__main__":
    done = run_cases(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), service_reader())
    print(json.dumps({"wrong": done.wrong, "tally": done.tally}))
