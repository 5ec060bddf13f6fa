"""Starts and stops a cell's server for a caller who waits until that is done."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tuplegate.engine.cells.layout import CellError
from tuplegate.engine.cells.server import CellServer, ServerReport, ServerState

_POLL_S = 0.005


@contextmanager
def running(server: CellServer) -> Iterator[None]:
    """Run a server until the block is left. Raises CellError if it does not start, or ends with an error."""
    try:
        start_server(server)
        yield
        report = stop_server(server)
    finally:
        while server.pid:
            server.kill()
            server.look(time.monotonic())
            time.sleep(_POLL_S)
    if report.status != 0:
        raise CellError(f"the server ended with status {report.status}: {report.log_tail}")


def start_server(server: CellServer) -> None:
    """Start a server, and return when it takes connections. Raises CellError."""
    while server.start(time.monotonic()) is ServerState.HELD:
        time.sleep(_POLL_S)
    while (report := server.look(time.monotonic())).state is not ServerState.READY:
        if report.state is ServerState.ENDED:
            raise CellError(f"{server.cell}: its server ended with status {report.status}: {report.log_tail}")
        time.sleep(_POLL_S)


def stop_server(server: CellServer) -> ServerReport:
    """Stop a server, and return its last report. It is killed if it does not end in time."""
    server.stop(time.monotonic())
    while (report := server.look(time.monotonic())).state is ServerState.STOPPING:
        time.sleep(_POLL_S)
    return report
