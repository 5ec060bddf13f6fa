"""What takes long to convert is converted in pieces: others are answered meanwhile, as often as at any other time."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.service import Service

SHARE = 4
"""The longest silence for a bystander is less than this part of the time that the large request takes."""


class Bystander:
    """Sends one request after the other, and notes when each was answered."""

    def __init__(self, service: Service) -> None:
        self._client = service.client()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered: list[float] = []

    def _run(self) -> None:
        while not self._stopping.is_set():
            assert self._client.post("/v1/query", json={"sql": "select 1"}).status_code == 200
            self.answered.append(time.monotonic())

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            while len(self.answered) < 5:
                time.sleep(0.001)
            yield
        finally:
            self._stopping.set()
            self._thread.join()
            self._client.close()

    def longest_silence(self, start: float, end: float) -> float:
        """Between two answers, or before the first or behind the last of them."""
        moments = [start, *(moment for moment in self.answered if start < moment < end), end]
        return max(later - earlier for earlier, later in pairwise(moments))


def run_beside(service: Service, path: str, body: bytes) -> dict[str, Any]:
    """Send a large request, demand that a bystander hardly notices it, and return its answer."""
    bystander = Bystander(service)
    with service.client() as client, bystander.watching():
        started = time.monotonic()
        with client.stream("POST", path, content=body, headers={"Content-Type": "application/json"}) as answer:
            ended = time.monotonic()
            answer.read()
    silence = bystander.longest_silence(started, ended)
    assert silence < (ended - started) / SHARE, f"nobody was answered for {silence:.3f} s of {ended - started:.3f} s"
    text = answer.text
    if text.startswith("event:"):
        return {"success": "event: done" in text}
    read: dict[str, Any] = answer.json()
    return read


ANSWERS = {
    "numbers": "select array(select g from generate_series(1, 4000000) g)",
    "dimensions": "select array_fill(1, array[2000, 2000])",
    "one row of two dimensions": "select array_fill(1, array[1, 4000000])",
    "texts": "select array(select 'a\"b' || g from generate_series(1, 1000000) g)",
    "moments": "select array(select now() + g * interval '1s' from generate_series(1, 1000000) g)",
    "fractions": "select array(select g::numeric / 3 from generate_series(1, 500000) g)",
    "one long element": "select array[repeat('x \"', 5000000)]",
    "a stream": "/*+ STREAM */ select array(select g from generate_series(1, 4000000) g)",
}


@pytest.mark.parametrize("sql", ANSWERS.values(), ids=ANSWERS)
def test_others_are_answered_while_a_long_array_is_written(service: Service, sql: str) -> None:
    """An array in an answer keeps nobody waiting."""
    answer = run_beside(service, "/v1/query", b'{"sql":%b}' % _quoted(sql))
    assert answer["success"], answer


def _quoted(text: str) -> bytes:
    return json.dumps(text).encode()
