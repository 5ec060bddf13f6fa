"""Seats: the workers of a machine count them together."""

import pytest

from tuplegate.admission.fair_use.seats import Seats, WorkerSeats
from tuplegate.protocol.errors import ServiceError


def test_the_workers_count_together() -> None:
    seats = Seats(2, 3, "things")
    one, two = WorkerSeats(seats, 0), WorkerSeats(seats, 1)
    back = [one.take("org_a"), one.take("org_a"), two.take("org_a")]
    for worker in (one, two):
        with pytest.raises(ServiceError, match="3 things of the organization are open"):
            worker.take("org_a")
        worker.take("org_b")
    back.pop()()
    one.take("org_a")
    with pytest.raises(ServiceError):
        two.take("org_a")


def test_a_refused_one_takes_no_seat() -> None:
    worker = WorkerSeats(Seats(1, 1, "things"), 0)
    back = worker.take("org_a")
    for _ in range(5000):
        with pytest.raises(ServiceError, match="of the organization"):
            worker.take("org_a")
    back()
    worker.take("org_a")


def test_a_successor_wipes_off_what_was_left() -> None:
    seats = Seats(2, 2, "things")
    WorkerSeats(seats, 0).take("org_a")
    other = WorkerSeats(seats, 1)
    other.take("org_a")
    WorkerSeats(seats, 0).take("org_a")
    with pytest.raises(ServiceError):
        other.take("org_a")


def test_a_worker_has_no_more_than_it_has_room_for() -> None:
    worker = WorkerSeats(Seats(1, 5000, "things"), 0)
    taken = [worker.take(f"org_{number}") for number in range(1024)]
    with pytest.raises(ServiceError, match="in this worker"):
        worker.take("org_x")
    for back in taken:
        back()
    worker.take("org_x")
