"""`make bench-move`: how long the writers of a database wait while it moves to another engine.

A database of so many megabytes (1000 unless told) moves there and back while clients write to it without a pause. What
is printed is the longest time that a write took, and what the service says of it; beside it the longest write of as
long a time without a move. There is no bar: the time depends on the machine.
"""

import sys
import threading
import time
from dataclasses import dataclass, field

import httpx
from tests.external import ExternalServer
from tests.service import Service, Sql, new_data_dir, remove, start_service

MEGABYTES = 1000
WRITERS = 4
ROW_BYTES = 1000
_ROWS_AT_ONCE = 20_000


@dataclass
class Writers:
    """Clients that insert and update rows; each notes the longest time that one write took."""

    service: Service
    longest_s: float = 0.0
    writes: int = 0
    failures: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Writers":
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        with self.service.client() as client:
            sql, count = Sql(client), 0
            while not self._stop.is_set():
                count += 1
                began = time.monotonic()
                answer = sql.answer("update row set note = $1 where id = $2", [str(count), count * WRITERS + number])
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.writes += 1
                if not answer.json()["success"]:
                    self.failures.append(answer.text)


def main(arguments: list[str]) -> int:
    megabytes = int(arguments[0]) if arguments else MEGABYTES
    server, data_dir = ExternalServer(wal_level="logical"), new_data_dir()
    service = start_service(data_dir, env={"TUPLEGATE_ENGINES": f"second={server.url()}"})
    try:
        fill(service, megabytes)
        with Writers(service) as quiet:
            time.sleep(10)
        print(f"without a move: {quiet.writes} writes in 10 s, the longest took {quiet.longest_s:.2f} s", flush=True)
        headers = {"Authorization": f"Bearer {service.key}"}
        with httpx.Client(base_url=service.control_url, headers=headers, timeout=3600, trust_env=False) as control:
            for engine in ("second", "first"):
                began = time.monotonic()
                with Writers(service) as writers:
                    moved = control.post("/v1/databases/main/move", json={"engine": engine}).json()
                took_s = time.monotonic() - began
                assert moved["success"], moved
                print(
                    f"{moved['size_bytes'] / 2**20:.0f} MiB to {engine} by {moved['way']} in {took_s:.1f} s:"
                    f" {writers.writes} writes, the longest took {writers.longest_s:.2f} s"
                    f" (held {moved['held_ms']} ms), {len(writers.failures)} failed",
                    flush=True,
                )
    finally:
        service.stop()
        remove(data_dir)
        server.remove()
    return 0


def fill(service: Service, megabytes: int) -> None:
    with service.client() as client:
        sql = Sql(client)
        sql("create table row (id int primary key, note text, filling text)")
        rows = megabytes * 2**20 // (ROW_BYTES + 60)
        for first in range(0, rows, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, rows) - 1
            sql(
                "insert into row select i, '', repeat(md5(i::text), $3::int / 32) from generate_series($1::int, $2) i",
                [first, last, ROW_BYTES],
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
