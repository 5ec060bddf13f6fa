"""`doctor`: check everything between here and the engine, and say how to fix what is wrong."""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from tuplegate.cli import profiles
from tuplegate.cli.doctor.certificates import Finding, check_certificate, is_usable
from tuplegate.cli.doctor.machine import check_machine
from tuplegate.cli.exits import Exit
from tuplegate.cli.output import choose_format, escape_controls, has_color, write_records
from tuplegate.cli.remote import choose_ca_file, connect, options
from tuplegate.cli.serving import load_settings

if TYPE_CHECKING:
    from tuplegate.client import Client

_CLOCK_OFF_S = 5.0
_TIMEOUT_S = 5
_NO_KEY = "no-key"


@click.command()
@click.option("--config", metavar="FILE", help="Settings file of the service.", envvar="TUPLEGATE_CONFIG")
@click.option("--data-dir", metavar="DIR", help="Data directory of the service, on its own machine.")
@options
def doctor(format: str | None, config: str | None, data_dir: str | None, **where: Any) -> None:
    """Check ports, TLS, engine, key, clock and control plane, and on the machine of the service its disk."""
    findings = [*_check_service(where), *check_machine(load_settings({"config": config, "data_dir": data_dir}))]
    if (format or choose_format()) == "table":
        _write_lines(findings)
    else:
        write_records(format, [asdict(finding) for finding in findings], ("check", "result", "found", "advice"))
    if _has_failure(findings):
        raise click.exceptions.Exit(Exit.UNHEALTHY)


def _write_lines(findings: Iterable[Finding]) -> None:
    """Write findings for people: nothing is cut, and advice stands below the problem."""
    color = {"ok": "32", "warning": "33", "failed": "31"} if has_color() else {}
    for finding in findings:
        result = f"{finding.result:8}"
        if finding.result in color:
            result = f"\x1b[{color[finding.result]}m{result}\x1b[0m"
        click.echo(f"{result} {finding.check:16} {escape_controls(finding.found)}", color=True)
        if finding.advice:
            click.echo(f"{'':25} → {escape_controls(finding.advice)}")


def _check_service(where: dict[str, Any]) -> Iterator[Finding]:
    """Check what lies between here and the engine, in the order in which a request meets it."""
    found = None if where["url"] is not None else profiles.find(where["profile"])
    ca_file = choose_ca_file(where["ca_file"], found)
    # An unusable file is reported below. Without it, the rest can still be checked.
    usable = ca_file if ca_file is not None and is_usable(ca_file) else None
    with connect(**{**where, "ca_file": usable or ""}, key_if_none=_NO_KEY) as client:
        way = list(_check_plane("address", "tls", client.url, ca_file))
        control_url = _find_control_url(client, reachable=not _has_failure(way))
        control_way = []
        if control_url not in (None, client.url):
            control_way = list(_check_plane("control address", "control tls", control_url or "", ca_file))
        yield from (*way, *control_way)
        has_key = bool(found.api_key if found else os.environ.get("TUPLEGATE_API_KEY"))
        if not has_key:
            advice = (
                "Set TUPLEGATE_API_KEY, or keep a key with `tuplegate profile set NAME`. The first start of a service"
                " prints one; on its machine `tuplegate key create --local` makes another."
            )
            yield Finding("key", "failed", "there is no key", advice)
        if not _has_failure(way):
            yield _try("engine", lambda: _check_engine(client))
            if has_key:
                yield _try("key", lambda: _check_key(client))
                yield _try("clock", lambda: _check_clock(client))
        if has_key and not _has_failure(way) and not _has_failure(control_way):
            yield _try("control plane", lambda: _check_control(client))


def _find_control_url(client: "Client", *, reachable: bool) -> str | None:
    """Return the address of the control plane; None if it is not known."""
    from tuplegate.client import TuplegateError

    if client.control_url is not None or not reachable:
        return client.control_url
    try:
        return client.find_control_url()
    except TuplegateError:
        return None


def _has_failure(findings: Iterable[Finding]) -> bool:
    return any(finding.result == "failed" for finding in findings)


def _check_plane(address: str, tls: str, url: str, ca_file: str | None) -> Iterator[Finding]:
    reached = _check_address(address, url)
    yield reached
    if reached.result == "ok" and url.startswith("https:"):
        yield check_certificate(tls, url, ca_file)


def _try(name: str, check: Callable[[], Finding]) -> Finding:
    from tuplegate.client import TuplegateError

    try:
        return check()
    except TuplegateError as error:
        return Finding(name, "failed", error.message, error.hint or _advise_log(error.request_id))


def _advise_log(request_id: str | None = None) -> str:
    if request_id is None:
        return "Look into the log of the service, which it writes to stderr."
    return f"Look for {request_id} in the log of the service, which it writes to stderr."


def _check_address(check: str, url: str) -> Finding:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=_TIMEOUT_S):
            return Finding(check, "ok", f"{parts.hostname}:{port} accepts connections")
    except OSError as exc:
        flag = "--control-url" if check.startswith("control") else "--url"
        return Finding(check, "failed", f"{url}: {exc}", f"Start the service (`tuplegate serve`), or correct {flag}.")


def _check_engine(client: "Client") -> Finding:
    health = client.health()
    engine = health.get("engine", {})
    said = f"tuplegate {health.get('version')}, {engine.get('kind')} {engine.get('version')}"
    if health.get("status") == "ok":
        return Finding("engine", "ok", said)
    failing = ", ".join(name for name, state in health.get("checks", {}).items() if state != "ok")
    return Finding("engine", "failed", f"{said}: {failing}", _advise_log())


def _check_key(client: "Client") -> Finding:
    started = time.monotonic()
    client.query("select 1")
    return Finding("key", "ok", f"accepted; a query takes {(time.monotonic() - started) * 1000:.0f} ms")


def _check_clock(client: "Client") -> Finding:
    """Compare the engine's clock with ours at the middle of the query."""
    before = datetime.now(UTC)
    there = client.query("select clock_timestamp()").value()
    took = datetime.now(UTC) - before
    off_s = abs((there - before - took / 2) / timedelta(seconds=1))
    if off_s > _CLOCK_OFF_S:
        return Finding("clock", "warning", f"{off_s:.0f} s apart from the engine's", "Synchronise the clocks (NTP).")
    return Finding("clock", "ok", f"within {_CLOCK_OFF_S:.0f} s of the engine's")


def _check_control(client: "Client") -> Finding:
    from tuplegate.client import TuplegateError

    try:
        found = client.organization()
    except TuplegateError as error:
        advice = error.hint if error.status in (401, 403) else None
        advice = advice or "Give its address with --control-url, TUPLEGATE_CONTROL_URL or in the profile."
        where = client.control_url or client.url
        return Finding("control plane", "warning", f"{where}: {error.message}", advice)
    return Finding("control plane", "ok", f"organization {found.name}, tier {found.tier}")
