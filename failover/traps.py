"""Traps between PREPARE and COMMIT PREPARED: a file for each service node, which the first that comes by removes."""

from enum import Enum
from pathlib import Path


class Trap(Enum):
    """What befalls who has prepared a transaction."""

    WORKER = "worker"
    """It is killed."""
    CONNECTION = "connection"
    """It loses its connection to the engine."""


def lay(path: Path, trap: Trap) -> None:
    """Lay a trap, whole at once."""
    new = path.with_suffix(".new")
    new.write_text(trap.value)
    new.rename(path)


def spring(path: Path) -> Trap | None:
    """Return the trap that is laid, which is gone then; None where there is none."""
    try:
        trap = Trap(path.read_text())
        path.unlink()
    except FileNotFoundError:
        return None
    return trap
