"""A control group (cgroup v2) for each server: bounds on the resources of all its processes together.

The service divides a group that was delegated to it, as systemd does with `Delegate=yes`, or a container's own. The
service moves into a leaf of that group first, since the kernel gives no controllers to a group with processes in it.

Contract: `open_groups` is called once, before any other process is started, by a process with one thread. A group is
made before its server and removed after the server has ended, which kills any processes left in it.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tuplegate.engine.bundled.sandbox.kernel_files import write_text

CONTROLLERS: Final = ("memory", "cpu", "pids")
PROCESSES: Final = "cgroup.procs"
_LEAF: Final = "tuplegate"
_WEIGHT: Final = "1000"
"""The service's share of the processors, where a database's is 100."""
_MARKS: Final = ("user.delegate", "trusted.delegate")
_ROUNDS_MAX: Final = 3
"""How often to list and move processes again: others may have started some meanwhile."""


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Bounds on all processes of a group together. The memory includes the pages of files that they read and write."""

    memory_bytes_max: int
    processes_max: int


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The control groups of servers, in the directory that was delegated to the service."""

    root: Path
    controllers: tuple[str, ...] = CONTROLLERS

    def make(self, name: str, bounds: GroupBounds) -> Path:
        """Make the group of a server, or give an existing one these bounds. Raises OSError."""
        group = self._locate(name)
        group.mkdir(exist_ok=True)
        if "memory" in self.controllers:
            write_text(group / "memory.max", str(bounds.memory_bytes_max))
            with suppress(FileNotFoundError):  # the kernel may not count what is swapped
                write_text(group / "memory.swap.max", str(bounds.memory_bytes_max))
        if "pids" in self.controllers:
            write_text(group / "pids.max", str(bounds.processes_max))
        return group

    def remove(self, name: str) -> None:
        """Remove the group of a server that has ended. This kills processes that are left in it; until they are gone
        the group cannot be removed, and stays until the next time."""
        group = self._locate(name)
        with suppress(OSError):
            write_text(group / "cgroup.kill", "1")
        with suppress(OSError):
            group.rmdir()

    def _locate(self, name: str) -> Path:
        return self.root / f"cell-{name}"


def open_groups(root: Path | None = None, controllers: tuple[str, ...] = CONTROLLERS) -> ControlGroups | None:
    """Take over the group that was delegated to this process. Return None if there is none or the system forbids it."""
    root = root or find_delegated()
    if root is None:
        return None
    groups = ControlGroups(root, controllers)
    try:
        _occupy(groups)
    except OSError:
        _leave(root)
        return None
    for stale in root.glob("cell-*"):
        with suppress(OSError):
            stale.rmdir()
    return groups


def find_delegated(process: int | None = None) -> Path | None:
    """Return the group that a process may divide: its own, or the parent if it is already in the leaf. None if there is
    none.

    The default is this process.
    """
    try:
        found = _find_group(process)
        uid = _locate_process(process).stat().st_uid
    except (OSError, ValueError):
        return None
    if found is None:
        return None
    group, top = found
    for candidate in (group.parent, group) if group.name == _LEAF else (group, group.parent):
        if candidate.is_relative_to(top) and _is_delegated(candidate, top, uid):
            return candidate
    return None


def find_gaps(process: int | None = None) -> list[str]:
    """List the bounds that the servers of a running service lack, in words for an operator.

    The service is `process`, or this one by default.
    """
    if _has_divided(process):
        return []
    has_users = _locate_process(process).stat().st_uid == 0
    shared = "memory and processors" if has_users else "memory, processors and the processes of its user"
    return [f"no control groups (cgroup v2, delegated to the service): one database can take {shared} from all"]


def _has_divided(process: int | None) -> bool:
    """Return whether a service has given the controllers to groups of its servers."""
    try:
        found = _find_group(process)
        if found is None:
            return False
        group, top = found
        root = group.parent if group.name == _LEAF else group
        given = (root / "cgroup.subtree_control").read_text().split()
    except (OSError, ValueError):
        return False
    return group in (root / _LEAF, top) and set(CONTROLLERS) <= set(given)


def _locate_process(process: int | None) -> Path:
    return Path("/proc", "self" if process is None else str(process))


def _find_group(process: int | None) -> tuple[Path, Path] | None:
    """Return the group of a process and the topmost visible group; None without cgroup v2."""
    for mount in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = mount.partition(" - ")
        if kind.startswith("cgroup2 "):
            root, top = fields.split()[3:5]
            break
    else:
        return None
    [name] = [
        line[3:] for line in (_locate_process(process) / "cgroup").read_text().splitlines() if line.startswith("0::")
    ]
    return Path(top, Path(name).relative_to(root).as_posix()), Path(top)


def _is_delegated(group: Path, top: Path, uid: int) -> bool:
    """Return whether a user may divide a group. Root may write to any, so for root it must be marked or topmost."""
    try:
        available = (group / "cgroup.controllers").read_text().split()
    except OSError:
        return False
    if not set(CONTROLLERS) <= set(available) or not os.access(group / PROCESSES, os.W_OK):
        return False
    return group == top or _is_marked(group) or (uid != 0 and group.stat().st_uid == uid)


def _is_marked(group: Path) -> bool:
    for mark in _MARKS:
        with suppress(OSError):
            if os.getxattr(group, mark) == b"1":
                return True
    return False


def _occupy(groups: ControlGroups) -> None:
    """Move processes into the leaf, and give controllers to the groups beside it."""
    root, leaf = groups.root, groups.root / _LEAF
    # The root of all groups has no type, and may have processes.
    if (root / "cgroup.type").exists():
        leaf.mkdir(exist_ok=True)
        write_text(leaf / PROCESSES, str(os.getpid()))
        # Only a group that was given to the service has no processes of others.
        for _ in range(_ROUNDS_MAX if _is_marked(root) else 0):
            for pid in _list_processes(root):
                with suppress(ProcessLookupError):
                    write_text(leaf / PROCESSES, str(pid))
    write_text(root / "cgroup.subtree_control", " ".join(f"+{name}" for name in groups.controllers))
    with suppress(OSError):
        write_text(leaf / "cpu.weight", _WEIGHT)


def _leave(root: Path) -> None:
    """Undo `_occupy`: move the processes back, and remove the leaf."""
    leaf = root / _LEAF
    with suppress(OSError):
        for pid in _list_processes(leaf):
            write_text(root / PROCESSES, str(pid))
        leaf.rmdir()


def _list_processes(group: Path) -> Iterator[int]:
    yield from map(int, (group / PROCESSES).read_text().split())
