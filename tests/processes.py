"""Processes of this machine as /proc shows them. One that ends while it is looked at is not there any more, which is no
fault of the look."""

import os
import sys
from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the processes that a process has started itself; none if it has ended."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children and so on."""
    return [found for child in children(pid) for found in (child, *descendants(child))]


def program(pid: int) -> str:
    """Return the name of the program that a process runs; none if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    return ""


def alive(pid: int) -> bool:
    """Return whether a process runs; on Linux one that has ended and was not reaped does not."""
    try:
        os.kill(pid, 0)
        return sys.platform != "linux" or state(pid) not in "ZX"
    except PermissionError:
        return True
    except (FileNotFoundError, ProcessLookupError):
        return False


def status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def numbers(pid: int) -> list[int]:
    """Return the numbers of a process in each of its namespaces; the last is what it takes for its own."""
    return [int(number) for number in status(pid).split("\nNSpid:")[1].split("\n")[0].split()]


def is_worker(pid: int) -> bool:
    """Return whether a child of the service is a worker, and no server of the engine's, not even one just started."""
    try:
        return program(pid) != "postgres" and len(numbers(pid)) == 1 and alive(pid)
    except OSError:  # it has just ended
        return False
