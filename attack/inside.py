"""A tenant that is superuser in its own cell and runs native code there, beside others who must not notice.

It gets there by the tests' own means: no tenant is known to become superuser. What it does must harm nobody but itself.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.service import Service
from tests.workers import workers

from attack import native, nonsense
from attack.arena import running_service
from attack.bystander import Bystander
from attack.campaign import Verdict
from attack.fake_server import FakeServer, Insider
from attack.nonsense import Nonsense
from attack.party import Answer, Party, new_party

ANSWER_S_MAX = 90.0
"""How long the attacker's own requests may take, whatever its server does."""
GROWTH_BYTES_MAX = 700 * 2**20
"""By how much a worker may grow meanwhile: rows of all tenants, and one very large row."""
P99_MS_MAX = 3000.0
ALONE_S = 3.0
SETTINGS = ("--workers", "2", "--tiers", "small=/24MB, unlimited", "--engine-temp-mb", "64")
_REQUEST_MS = 5000


@dataclass
class Watched:
    """A service with a bystander, and what was wrong with either."""

    service: Service
    bystander: Bystander
    wrong: list[str] = field(default_factory=list)
    grown: int = 0
    p99_ms_max: float = P99_MS_MAX
    """How long the bystander may wait. A test does not judge that: it has other tests beside it."""

    def judge(self, what: str, before: Sequence[int]) -> None:
        """Note what the bystander saw, and what became of the workers, since the last judgement."""
        figures = self.bystander.renew()
        self.wrong += [f"{what}: the bystander's {error}" for error in figures.errors[:3]]
        times = sorted(figures.times_ms)
        if times and (p99 := times[len(times) * 99 // 100]) > self.p99_ms_max:
            self.wrong.append(f"{what}: the bystander's p99 was {p99:.0f} ms")
        if sorted(workers(self.service)) != sorted(before):
            self.wrong.append(f"{what}: a worker died")

    def check_data(self) -> None:
        """Note where the bystander's data are not whole."""
        answer = self.bystander.party.query("select count(*) as n, min(b) as b from kept where a <= 100")
        if answer.rows != [{"n": 100, "b": "row 1"}]:
            self.wrong.append(f"the bystander's data are not whole: {answer.text[:300]}")


@contextmanager
def watched_service() -> Iterator[Watched]:
    with running_service(*SETTINGS) as service:
        standing_by = new_party(service, "bystander")
        try:
            with Bystander(standing_by) as bystander:
                yield Watched(service, bystander)
        finally:
            standing_by.close()


def talk_nonsense(watched: Watched, each: Nonsense) -> list[Answer]:
    """Let a cell's own server talk nonsense to both workers. Return the answers that its tenant got."""
    attacker = new_party(watched.service, f"inside-{each.name}")
    pids = sorted(workers(watched.service))
    sizes = {pid: _read_memory(pid) for pid in pids}
    try:
        insider = Insider(watched.service, attacker.database)
        with FakeServer(insider, each.word, each.talk) as fake, _peak_of(pids) as peak:
            answers = _ask_in_all_ways(attacker, fake, watched)
    finally:
        attacker.close()
    watched.judge(each.name, pids)
    grown = max((peak[pid] - sizes[pid] for pid in pids if pid in peak), default=0)
    watched.grown = max(watched.grown, grown)
    if grown > GROWTH_BYTES_MAX:
        watched.wrong.append(f"{each.name}: a worker grew by {grown >> 20} MiB")
    return answers


def _ask_in_all_ways(attacker: Party, fake: FakeServer, watched: Watched) -> list[Answer]:
    sql = "select 'nonsense' as a"
    ways: list[Callable[[], Answer]] = [
        lambda: attacker.query(sql, timeout_ms=_REQUEST_MS),
        lambda: attacker.query(sql, timeout_ms=_REQUEST_MS, scope="read"),
        lambda: attacker.query(f"/*+ STREAM */ {sql}", timeout_ms=_REQUEST_MS),
        lambda: attacker.transaction(sql, timeout_ms=_REQUEST_MS),
        lambda: attacker.ask("admin", "GET", "/v1/databases/main/dump", control=True),
    ]
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda way=way: answers.append(way()), daemon=True) for way in ways]
    deadline = time.monotonic() + ANSWER_S_MAX
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if hanging := sum(thread.is_alive() for thread in threads):
        watched.wrong.append(f"{hanging} of the attacker's own requests were not answered within {ANSWER_S_MAX:g} s")
    return answers


def _read_memory(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("\nVmRSS:")[1].split()[0]) * 1024
    except (FileNotFoundError, IndexError):
        return 0  # it has ended


@contextmanager
def _peak_of(pids: Sequence[int]) -> Iterator[dict[int, int]]:
    """Measure the memory of processes ten times a second, and give the most that each had."""
    peak: dict[int, int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for pid in pids:
                peak[pid] = max(peak.get(pid, 0), _read_memory(pid))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield peak
    finally:
        over.set()
        looking.join()


def run_nonsense(seed: int) -> Verdict:
    """Every kind of nonsense, in an order of the seed."""
    kinds = list(nonsense.ALL)
    random.Random(seed).shuffle(kinds)
    with watched_service() as watched:
        for each in kinds:
            talk_nonsense(watched, each)
        watched.check_data()
    figures = f"{len(kinds)} kinds; the largest growth of a worker was {watched.grown >> 20} MiB"
    return Verdict("inside_nonsense", watched.wrong, figures, [])


def run_native(_seed: int) -> Verdict:
    """What native code tries on neighbours and on what all share."""
    with watched_service() as watched:
        reached = native.reach_out(watched.service, watched.bystander.party.database, sorted(workers(watched.service)))
        watched.wrong += [f"native code could {name}" for name in reached]
        pids = sorted(workers(watched.service))
        for name, strain in native.STRAINS.items():
            attacker = new_party(watched.service, f"inside-{name}", "small")
            strain(watched.service, attacker)
            attacker.close()
            watched.judge(name, pids)
        watched.check_data()
    return Verdict("inside_native", watched.wrong, f"{native.ATTEMPTS} attempts, {len(native.STRAINS)} strains", [])
