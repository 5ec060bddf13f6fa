"""`tuplegate serve` as a service node of a run: with a trap between its two phases, and weakened where it is told to.

FAILOVER_TRAP names a file. The worker that has prepared a transaction next, while the file is there, removes it, and
before it commits it is killed, or loses its connection, as the file says. FAILOVER_MUTATION names one of
`failover.mutations`.
"""

import os
import signal
from pathlib import Path
from typing import Any

from failover.mutations import MUTATIONS, replace
from failover.traps import Trap, spring
from tuplegate.cli.entry import main
from tuplegate.engine.postgres.transaction.deciding import Decision


def set_trap(path: Path) -> None:
    async def commit_prepared(self: Decision, gid: str, number: int) -> None:
        match spring(path):
            case Trap.WORKER:
                os.kill(os.getpid(), signal.SIGKILL)
            case Trap.CONNECTION:
                self._block.member.close("it has met a trap")
        await commit(self, gid, number)

    commit: Any = replace(Decision, "commit_prepared", commit_prepared)


if __name__ == "__main__":
    if mutation := os.environ.get("FAILOVER_MUTATION"):
        MUTATIONS[mutation].apply()
    if trap := os.environ.get("FAILOVER_TRAP"):
        set_trap(Path(trap))
    main()
