"""The weaknesses of the bundled engine, on systems that lack a part of the sandbox for its servers."""

from typing import Final

from tuplegate.engine.bundled.sandbox.walls import find_gaps
from tuplegate.engine.port import Weakness

WITHOUT_SANDBOX: Final = (
    Weakness(
        "sandbox_incomplete",
        True,
        "The operating system does not keep the servers of databases apart, or not in full. A tenant can make every"
        " extension of the bundle, so it can have its server read files, run programs, or signal processes as far as"
        " the missing part of the sandbox lets it: those of other databases, too.",
        "`tuplegate doctor` says what is missing: as a rule a newer Linux.",
    ),
)


def find_weaknesses() -> tuple[Weakness, ...]:
    """Return the weaknesses that this system leaves between the servers of databases."""
    return WITHOUT_SANDBOX if find_gaps() else ()
