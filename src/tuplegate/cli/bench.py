"""`bench`: measure the service and its engine, one workload after the other."""

import sys
from typing import TYPE_CHECKING

import click

from tuplegate.cli.output import write_records
from tuplegate.cli.remote import with_client

if TYPE_CHECKING:
    from tuplegate.client import Client

_COLUMNS = ("workload", "operations", "per_second", "p50_us", "p95_us", "p99_us", "retries", "errors")


@click.command()
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]…")
@click.option("--seconds", type=click.IntRange(1, 10), default=2, show_default=True, help="How long each is run.")
@click.option("--concurrency", type=click.IntRange(1, 32), default=8, show_default=True, help="Operations at once.")
@with_client
def bench(client: "Client", format: str | None, workloads: tuple[str, ...], seconds: int, concurrency: int) -> None:
    """Measure the database: point_read, insert, transaction, scan and stream, or the workloads named.

    It runs in a scratch schema, which goes again, and shows what service and engine do without HTTP. It needs a key
    with the scope admin.
    """
    from tuplegate.data_plane.workloads import WORKLOADS

    unknown = [name for name in workloads if name not in WORKLOADS]
    if unknown:
        raise click.UsageError(f"there is no workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
    names = workloads or tuple(WORKLOADS)
    rows = []
    for number, name in enumerate(names):
        _say(f"{number + 1} of {len(names)}: {name}, {(len(names) - number) * seconds} s left")
        try:
            done = client.bench(name, seconds=seconds, concurrency=concurrency)
        finally:
            _say("")
        latency = {f"{share}_us": value for share, value in done.pop("latency_us").items()}
        done.pop("success")
        rows.append({**done, **latency})
    write_records(format, rows, _COLUMNS)


def _say(text: str) -> None:
    """Show the text on one line of a terminal; show nothing elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
