"""Lists the missing bounds on database servers: bounds that no wall between databases depends on."""

import os
import sys
from pathlib import Path

from tuplegate.engine.bundled.sandbox import control_groups, namespaces


def find_missing_bounds(process: int | None = None) -> list[str]:
    """List the bounds that the system does not give to the service `process`, or to this one, in words for an operator.

    A second organization is allowed without them: no database can read, change or end another one. Namespaces are tried
    only if the service runs as our own user. The calling process must have one thread.
    """
    if sys.platform != "linux":
        return []
    is_ours = process is None or Path("/proc", str(process)).stat().st_uid == os.geteuid()
    return [*(namespaces.find_gaps() if is_ours else ()), *control_groups.find_gaps(process)]
