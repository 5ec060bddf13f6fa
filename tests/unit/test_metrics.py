"""The parts of the metrics that need no service: cells, sums, the shared board, the page."""

import os
import random
import signal
import time

import pytest

from tests.metrics import Page
from tuplegate.metrics.board import Board, TooLarge
from tuplegate.metrics.cells import BOUNDS_S, BUCKETS, SUM, count_answer, new_cell, observe
from tuplegate.metrics.page import DATABASES_SHOWN, write_page
from tuplegate.metrics.sums import DATABASES_MAX, OTHER, Snapshot, Sums

INFO = ("1", "postgresql", 'a "quoted\\"\nversion')


def page_of(sums: Sums) -> Page:
    return Page(write_page(sums, {}, INFO).decode())


@pytest.mark.parametrize("place", range(len(BOUNDS_S)))
def test_a_bound_belongs_to_its_bucket(place: int) -> None:
    """What took exactly as long as a bound is not beyond it; a nanosecond more is."""
    cell = new_cell()
    ns = round(BOUNDS_S[place] * 1e9)
    observe(cell, ns)
    assert cell[BUCKETS + place] == 1
    observe(cell, ns + 1)
    assert cell[BUCKETS + place + 1] == 1
    assert cell[SUM] == 2 * ns + 1


@pytest.mark.parametrize("status", [0, 101, 200, 204, 307, 404, 500, 599])
def test_every_status_has_its_class(status: int) -> None:
    cell = new_cell()
    count_answer(cell, status, time.perf_counter_ns())
    assert cell[status // 100] == 1
    assert sum(cell[:BUCKETS]) == sum(cell[BUCKETS:SUM]) == 1


def test_labels_are_escaped() -> None:
    """A quote, a backslash and a line break come out of the parser as they went in."""
    [labels] = page_of(Sums()).series("info")
    assert labels["engine_version"] == INFO[2]


def test_what_was_never_counted_is_zero_and_there() -> None:
    """A metric without labels has a series from the start, so that an alarm on it can be written."""
    page = page_of(Sums())
    assert page.series("storage_mismatches_total") == [{}]
    assert page.series("quota_refusals_total") == [{}]


def test_alarms_are_counted_over_all_planes() -> None:
    errors = {"data storage_mismatch": 2, "data rate_limited": 3, "control rate_limited": 4, "data busy": 5}
    page = page_of(Sums(errors=errors))
    assert page.value("storage_mismatches_total") == 2
    assert page.value("quota_refusals_total") == 7
    assert page.total("errors_total") == 14


def test_a_histogram_adds_up() -> None:
    cell = new_cell()
    for ms in (0.1, 3, 3, 70_000):
        observe(cell, int(ms * 1e6))
    page = page_of(Sums(engine={"query": cell}))
    assert page.value("engine_seconds_bucket", kind="query", le="0.0005") == 1
    assert page.value("engine_seconds_bucket", kind="query", le="0.005") == 3
    assert page.value("engine_seconds_bucket", kind="query", le="60") == 3
    assert page.value("engine_seconds_bucket", kind="query", le="+Inf") == 4
    assert page.value("engine_seconds_count", kind="query") == 4
    assert page.value("engine_seconds_sum", kind="query") == pytest.approx(70.0061)


def test_an_unknown_metric_is_not_let_onto_the_page() -> None:
    with pytest.raises(AssertionError, match="not in the table"):
        write_page(Sums(events={"made_up_total": 1}), {}, INFO)


def test_databases_are_bounded_and_the_rest_never_goes_down() -> None:
    """However the databases overtake each other, every series on the page only grows, and the sum is that of all."""
    draw = random.Random(7)
    databases = {f"org tg_{n}": [0, 0, 0, 0] for n in range(4 * DATABASES_SHOWN)}
    rest: dict[str, float] = {}
    for _ in range(300):
        row = databases[draw.choice(list(databases))]
        for place in range(4):
            row[place] += draw.randrange(100)
        page = page_of(Sums(databases=databases))
        for place, what in enumerate(("requests", "rows", "bytes", "errors")):
            name = f"database_{what}_total"
            assert len(page.series(name)) <= DATABASES_SHOWN + 1
            assert page.total(name) == sum(row[place] for row in databases.values())
            shown = sorted(
                (page.value(name, **labels) for labels in page.series(name) if _is_named(labels)), reverse=True
            )
            assert (
                shown
                == [n for n in sorted((row[place] for row in databases.values()), reverse=True) if n][:DATABASES_SHOWN]
            )
            now = page.value(name, organization="other", database="other")
            assert now >= rest.get(name, 0)
            rest[name] = now


def _is_named(labels: dict[str, str]) -> bool:
    return labels["database"] != "other"


def test_a_worker_tells_only_so_many_databases_apart() -> None:
    """Those of its predecessor keep their places, later ones are counted together, and nothing is lost."""
    before = Sums(databases={f"org a{n}": [1, 1, 1, 1] for n in range(DATABASES_MAX - 1)})
    own = Sums(databases={f"org b{n}": [1, 1, 1, 1] for n in range(DATABASES_MAX)})
    together = before.plus(own, DATABASES_MAX).databases
    assert len(together) == DATABASES_MAX + 1
    assert together["org b0"] == [1, 1, 1, 1]
    assert together[OTHER] == [DATABASES_MAX - 1] * 4
    assert before.plus(own, DATABASES_MAX).plus(own, DATABASES_MAX).databases[OTHER] == [2 * (DATABASES_MAX - 1)] * 4


def test_a_worker_with_all_its_databases_fits_into_its_slot() -> None:
    big = 2**60
    sums = Sums(databases={f"org_{n:020} tg_{n:020}": [big] * 4 for n in range(DATABASES_MAX + 1)})
    board = Board(2)
    board.post(1, Snapshot(1, 0, sums, {}))
    read = board.read(1)
    assert read is not None
    assert read.sums == sums
    assert board.read(0) is None
    with pytest.raises(TooLarge):
        board.post(1, Snapshot(1, 0, Sums(errors={f"data {n:020}": big for n in range(100_000)}), {}))
    assert board.read(1) == read


def test_a_reader_never_sees_half_a_snapshot() -> None:
    """While another process writes as fast as it can, all that is read is whole, and never older than before."""
    board = Board(1)
    pid = os.fork()
    if pid == 0:
        number = 0
        while True:
            number += 1
            board.post(0, Snapshot(0, number, Sums(errors={f"data {n}": number for n in range(number % 500)}), {}))
    try:
        last, read = 0, 0
        while read < 2000:
            snapshot = board.read(0)
            if snapshot is None:
                continue  # nothing yet, or it was overtaken a hundred times
            read += 1
            assert snapshot.at_ns >= last
            last = snapshot.at_ns
            assert snapshot.sums.errors == {f"data {n}": last for n in range(last % 500)}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    # Killed at whatever point, it leaves a whole one.
    assert board.read(0) is not None
