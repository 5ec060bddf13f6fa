"""The tenant that must not notice: it works all the while, and its errors and times are what an attack is judged by."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from attack.party import Answer, Party

_PAUSE_S = 0.01


@dataclass
class Figures:
    """Times of the bystander's requests in milliseconds, and the requests that failed."""

    times_ms: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.times_ms:
            return "no requests"
        times = sorted(self.times_ms)
        p50, p95 = (times[min(len(times) - 1, len(times) * share // 100)] for share in (50, 95))
        return (
            f"{len(times)} requests, p50 {p50:.1f} ms, p95 {p95:.1f} ms, max {times[-1]:.0f} ms,"
            f" {len(self.errors)} errors"
        )


class Bystander:
    """Two threads of ordinary work. `figures` counts since the last `renew`."""

    def __init__(self, party: Party) -> None:
        self.party = party
        self.figures = Figures()
        self._over = threading.Event()
        self._numbers = count(1)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Bystander":
        self.party.must("create table kept (a int primary key, b text)")
        self.party.must("insert into kept select i, 'row ' || i from generate_series(1, 100) i")
        self._threads = [threading.Thread(target=self._work, args=(place,)) for place in range(2)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def renew(self) -> Figures:
        """Start counting anew; what was counted so far."""
        before, self.figures = self.figures, Figures()
        return before

    def _work(self, place: int) -> None:
        steps = (self._read, self._write, self._stream, self._transact, self._repeat, self._health, self._tables)
        turn = place
        while not self._over.is_set():
            self._time(steps[turn % len(steps)])
            turn += 1
            time.sleep(_PAUSE_S)

    def _time(self, step: Callable[[], str | None]) -> None:
        figures = self.figures
        began = time.monotonic()
        wrong = step()
        took_s = time.monotonic() - began
        figures.times_ms.append(took_s * 1000)
        if wrong is not None:
            figures.errors.append(f"{step.__name__[1:]} after {took_s:.1f} s: {wrong[:300]}")

    def _read(self) -> str | None:
        return _unless(self.party.query("select b from kept where a = 7", scope="read"), '"row 7"')

    def _write(self) -> str | None:
        return _unless(self.party.query("update kept set b = b where a = 8"), '"affected_rows":1')

    def _stream(self) -> str | None:
        return _unless(self.party.query("/*+ STREAM */ select a from kept"), '"row_count":100')

    def _transact(self) -> str | None:
        """With an id of its own choice, whose outcome it asks for."""
        id = f"txn_bystander{next(self._numbers):08d}"
        number = next(self._numbers)
        done = self.party.transaction(
            f"insert into kept values ({1000 + number}, 'x')",
            f"delete from kept where a = {1000 + number}",
            headers={"Tuplegate-Transaction-Id": id},
        )
        if (wrong := _unless(done, '"success":true')) is not None:
            return wrong
        return _unless(self.party.ask("write", "GET", f"/v1/transaction/{id}"), '"committed"')

    def _repeat(self) -> str | None:
        headers = {"Idempotency-Key": f"bystander-{next(self._numbers)}"}
        first = self.party.query("select txid_current() as number", headers=headers)
        again = self.party.query("select txid_current() as number", headers=headers)
        if not first.succeeded:
            return first.text
        return None if first.rows == again.rows else f"{first.text} and then {again.text}"

    def _health(self) -> str | None:
        return _unless(self.party.ask("read", "GET", "/health"), '"status":"ok"')

    def _tables(self) -> str | None:
        return _unless(self.party.ask("read", "GET", "/tables"), '"kept"')


def _unless(answer: Answer, wanted: str) -> str | None:
    """What is wrong with the answer; None where it has what is wanted."""
    if answer.status == 200 and wanted in answer.text:
        return None
    return f"{answer.status} {answer.text}"
