"""Tells which bounds around the servers of databases are missing that no wall depends on."""

import os
import sys
from pathlib import Path

from tuplegate.engine.bundled.sandbox import control_groups, namespaces


def find_missing_bounds(process: int | None = None) -> list[str]:
    """Return in words for an operator what the system does not give to the service `process`, or to this one.

    A second organization needs none of it: without it, too, no database reads, changes or ends another one. Namespaces
    are tried out if the service is of our own user. For a process with one thread.
    """
    if sys.platform != "linux":
        return []
    is_ours = process is None or Path("/proc", str(process)).stat().st_uid == os.geteuid()
    return [*(namespaces.find_gaps() if is_ours else ()), *control_groups.find_gaps(process)]
