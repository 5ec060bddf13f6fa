"""Counts the attempts of each kind of work, how long they took and how they failed."""

from tuplegate.metrics.cells import Cell, new_cell, observe


class Measures:
    __slots__ = ("attempts", "conflicts", "kind", "retries", "seconds")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.seconds: Cell = new_cell()
        self.attempts = 0
        self.conflicts = 0
        self.retries = 0

    def conflict(self, exec_us: int) -> None:
        self.conflicts += 1
        observe(self.seconds, exec_us * 1000)

    @property
    def events(self) -> dict[str, int]:
        return {
            f"attempts_total {self.kind}": self.attempts,
            f"conflicts_total {self.kind}": self.conflicts,
            f"retries_total {self.kind}": self.retries,
        }
