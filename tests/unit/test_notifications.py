"""Which sessions are ended when the queue of notifications fills up."""

from dataclasses import dataclass

from tuplegate.engine.postgres.safety.notifications import END_SHARE, choose_ended


@dataclass(eq=False)
class Session:
    is_listening: bool
    busy_since: float | None

    def end_for(self, reason: str) -> None:
        """Nobody calls it here."""


IDLE, OLD, NEWER, LATE = Session(True, None), Session(True, 1.0), Session(True, 2.0), Session(True, 9.0)
OLDEST, QUIET = Session(False, 0.5), Session(False, None)
ALL = [QUIET, LATE, NEWER, OLDEST, IDLE, OLD]


def test_who_waits_for_longest_is_ended_first() -> None:
    """Who is known to listen, and was told to read while it was busy already."""
    assert choose_ended(ALL, END_SHARE, 5.0, 0.0) == [OLD]
    assert choose_ended(ALL, 0.9 * END_SHARE, 5.0, 0.0) == []
    assert choose_ended([IDLE, QUIET, LATE, OLDEST], END_SHARE, 5.0, 0.0) == []


def test_who_does_not_listen_is_never_ended() -> None:
    assert choose_ended([IDLE, QUIET, LATE, OLDEST], 0.5, 5.0, 0.0) == []
    assert choose_ended(ALL, 1.0, 5.0, 60.0) == [OLD]


def test_who_is_idle_is_ended_when_the_queue_stays_full() -> None:
    assert choose_ended([IDLE, QUIET, LATE], 1.0, 5.0, 0.5) == []
    assert choose_ended([IDLE, QUIET, LATE], 1.0, 5.0, 1.5) == [IDLE, LATE]
    assert choose_ended([QUIET, OLDEST], 1.0, 5.0, 1.5) == []
