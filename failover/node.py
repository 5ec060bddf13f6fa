"""`tuplegate serve` as a service node of a run: with a trap between its two phases, and weakened where it is told to.

FAILOVER_TRAP names a file. The worker that has prepared a transaction next, while the file is there, removes it and is
killed before it commits. FAILOVER_MUTATION names one of `failover.mutations`.
"""

import os
import signal
from typing import Any

from failover.mutations import MUTATIONS, replace
from tuplegate.cli.entry import main
from tuplegate.engine.postgres.transaction.two_phase import TransactionRun


def set_trap(path: str) -> None:
    async def commit_prepared(self: TransactionRun, gid: str, number: int) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            await commit(self, gid, number)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    commit: Any = replace(TransactionRun, "_commit_prepared", commit_prepared)


if __name__ == "__main__":
    if trap := os.environ.get("FAILOVER_TRAP"):
        set_trap(trap)
    if mutation := os.environ.get("FAILOVER_MUTATION"):
        MUTATIONS[mutation].apply()
    main()
