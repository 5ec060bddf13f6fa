"""The stages of a run, and the rules that decide whether it may still be ended. Pure."""

from enum import Enum, auto
from typing import Final

from tuplegate.engine.run.ends import Why


class Stage(Enum):
    """The stage that one attempt has reached."""

    RUNNING = auto()
    RECORDING = auto()
    """It writes records that are committed together with it."""
    DECIDING = auto()
    """It is being committed. A deferred trigger may still run."""
    DECIDED = auto()
    """It is committed, or will be in any case."""


TRANSITIONS: Final = {
    Stage.RUNNING: {Stage.RUNNING, Stage.RECORDING, Stage.DECIDING, Stage.DECIDED},
    Stage.RECORDING: {Stage.RUNNING, Stage.DECIDING},
    Stage.DECIDING: {Stage.RUNNING, Stage.DECIDED},
    Stage.DECIDED: {Stage.RUNNING},
}
"""Each further attempt begins anew."""

UNDECIDED: Final = frozenset({Stage.RUNNING, Stage.RECORDING})


def may_end(stage: Stage, why: Why) -> bool:
    """Return whether the service may still cancel the run. A commit is never cancelled, unless its code fills the
    database: then the engine's answer tells whether the cancel came in time."""
    return stage in UNDECIDED or (why is Why.ROOM and stage is Stage.DECIDING)
