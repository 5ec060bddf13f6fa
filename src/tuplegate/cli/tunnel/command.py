"""The commands `tunnel` and `psql`."""

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuplegate.cli import remote
from tuplegate.cli.exits import Exit
from tuplegate.cli.remote import Failed

if TYPE_CHECKING:
    from tuplegate.cli.tunnel.carrier import Counts, Service, Tunnel

_PORT = 5432
_PORTS = 20
"""So many ports are tried from the usual one on, unless one is asked for."""
_STATUS_S = 0.5
_REFUSED = {"28000": Exit.REFUSED, "28P01": Exit.REFUSED, "3D000": Exit.NOT_THERE, "53300": Exit.TRY_LATER}


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help="Port on this machine. [5432, or the next that is free]")
@click.option("--all-users", is_flag=True, help="Let programs of other users of this machine in, too.")
@remote.service_options
def tunnel(port: int | None, all_users: bool, **where: Any) -> None:
    """Carry any PostgreSQL program to the service, over HTTPS.

    Programs connect to a port of this machine, without a password: the tunnel adds the key. With --database every
    connection uses that one; otherwise each names its own. Ctrl-C ends it.
    """
    from tuplegate.cli.tunnel.carrier import Tunnel

    with _new_runner() as runner:
        runner.run(_serve(Tunnel(_find_service(**where), all_users=all_users), port))


def _new_runner() -> asyncio.Runner:
    """Return one with uvloop where there is one: it takes less processor time."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _serve(tunnel: "Tunnel", port: int | None) -> None:
    await _check(tunnel.service)
    ports = [port] if port is not None else [*range(_PORT, _PORT + _PORTS), 0]
    try:
        server, port = await tunnel.listen(ports)
    except OSError as exc:
        raise Failed(f"port {port} of this machine cannot be used: {exc.strerror}", Exit.USAGE) from exc
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    click.echo(f"psql postgresql://127.0.0.1:{port}/{tunnel.service.database or 'main'}")
    sys.stdout.flush()
    try:
        await _show(tunnel.counts, stop)
    finally:
        server.close()
        tunnel.close()


async def _show(counts: "Counts", stop: asyncio.Event) -> None:
    """Show the counts on one line of a terminal, until it is told to stop."""
    is_terminal = sys.stderr.isatty()
    while not stop.is_set():
        if is_terminal:
            sys.stderr.write(
                f"\r\x1b[K{counts.open} open, {counts.all} in all;"
                f" {counts.sent / 2**20:,.1f} MiB sent, {counts.received / 2**20:,.1f} MiB received  (Ctrl-C ends)"
            )
            sys.stderr.flush()
        try:
            async with asyncio.timeout(_STATUS_S if is_terminal else None):
                await stop.wait()
        except TimeoutError:
            pass
    if is_terminal:
        sys.stderr.write("\r\x1b[K")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@remote.service_options
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(arguments: tuple[str, ...], **where: Any) -> None:
    """Start psql through a tunnel of its own. What follows the options is for psql.

    It is the psql on the path, or else the one that comes with the bundled engine.
    """
    program, service = _find_psql(), _find_service(**where)
    with tempfile.TemporaryDirectory(prefix="tuplegate-") as folder, _tunnel_at(service, Path(folder)):
        environment = {
            **os.environ,
            "PGHOST": folder,
            "PGPORT": str(_PORT),
            "PGDATABASE": service.database or "main",
            "PGSSLMODE": "disable",
            "PGGSSENCMODE": "disable",
        }
        child = subprocess.Popen([program, *arguments], env=environment)  # noqa: S603 - the user's own arguments
        # An interrupt is for psql, which cancels what it runs.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = child.wait()
        finally:
            signal.signal(signal.SIGINT, before)
    raise click.exceptions.Exit(code if code >= 0 else 128 - code)


def _find_psql() -> str:
    from tuplegate.engine.bundled.binaries import find_wheel_programs, find_wheel_site
    from tuplegate.engine.bundled.data_directory import BundledEngineError

    found = shutil.which("psql")
    if found is None:
        try:
            program = find_wheel_programs(find_wheel_site()) / "psql"
        except BundledEngineError:
            program = None
        if program is not None and os.access(program, os.X_OK):
            return str(program)
        raise Failed("there is no psql on the path: install PostgreSQL's client programs", Exit.USAGE)
    return found


@contextmanager
def _tunnel_at(service: "Service", folder: Path) -> Iterator[None]:
    """Run a tunnel in a thread, at a socket that only this user can open."""
    from tuplegate.cli.tunnel.carrier import Tunnel

    ready = threading.Event()
    failures: list[BaseException] = []
    stopping: list[Any] = []

    async def serve() -> None:
        await _check(service)
        tunnel = Tunnel(service)
        server = await tunnel.listen_at(folder / f".s.PGSQL.{_PORT}")
        stop = asyncio.Event()
        stopping.extend([asyncio.get_running_loop(), stop])
        ready.set()
        await stop.wait()
        server.close()
        tunnel.close()

    def run() -> None:
        try:
            with _new_runner() as runner:
                runner.run(serve())
        except BaseException as exc:  # noqa: BLE001 - raised where the command runs
            failures.append(exc)
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    if failures:
        raise failures[0]
    try:
        yield
    finally:
        loop, stop = stopping
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def _find_service(**where: Any) -> "Service":
    from tuplegate.cli.tunnel.carrier import Service
    from tuplegate.client.addresses import DEFAULT_URL, check_url

    chosen = remote.choose_service(**where)
    assert chosen.api_key is not None
    try:
        url = check_url(chosen.url or os.environ.get("TUPLEGATE_URL") or DEFAULT_URL)
        trust = ssl.create_default_context(cafile=chosen.ca_file) if url.startswith("https:") else None
    except OSError as exc:
        raise click.UsageError(f"the certificates to trust cannot be read: {exc}") from exc
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    return Service(url, chosen.api_key, chosen.database, trust)


async def _check(service: "Service") -> None:
    """Connect once, so that a wrong address, key or database is told at once."""
    from tuplegate.cli.tunnel.carrier import Unreachable, open_websocket
    from tuplegate.cli.tunnel.packets import make_startup, read_error, write_message, write_startup

    arrived, ended = bytearray(), asyncio.Event()
    told = asyncio.Event()

    def take(data: bytes) -> None:
        arrived.extend(data)
        told.set()

    def end(_reason: str) -> None:
        ended.set()
        told.set()

    try:
        socket = await open_websocket(service, take, end)
    except Unreachable as exc:
        raise Failed(f"the service at {service.url} cannot be reached: {exc}", Exit.UNREACHABLE) from exc
    packet = make_startup({b"user": b"tunnel", b"application_name": b"tuplegate tunnel"})
    socket.send(write_startup(packet, service.key, service.database))
    while True:
        await told.wait()
        told.clear()
        while len(arrived) >= 5 and len(arrived) > (length := int.from_bytes(arrived[1:5])):
            message = bytes(arrived[: length + 1])
            del arrived[: length + 1]
            if message[:1] == b"E":
                sqlstate, text = read_error(message)
                socket.close()
                raise Failed(f"{text} ({sqlstate})", _REFUSED.get(sqlstate, Exit.FAILED))
            if message[:1] == b"Z":
                socket.send(write_message(b"X", b""))
                socket.close()
                return
        if ended.is_set():
            raise Failed(f"the service at {service.url} has closed the connection", Exit.UNREACHABLE)
