"""`doctor`: looks at everything between here and the engine, and says what to do about what is wrong."""

import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from querygate.cli.exits import Exit
from querygate.cli.output import write_records
from querygate.cli.remote import with_client
from querygate.settings import default_data_dir

if TYPE_CHECKING:
    from querygate.client import Client

_CLOCK_OFF_S = 5.0
_DISK_FREE_MIN = 2**30
_CERTIFICATE_DAYS_MIN = 14


@dataclass(frozen=True)
class Finding:
    """`result` is ok, warning or failed; `advice` says what to do."""

    check: str
    result: str
    found: str
    advice: str = ""


@click.command()
@with_client
def doctor(client: "Client", format: str | None) -> None:
    """Check address, TLS, service, engine, key, clock, control plane and disk."""
    findings = list(_findings(client))
    rows = [{"check": f.check, "result": f.result, "found": f.found, "advice": f.advice} for f in findings]
    write_records(format, rows, ("check", "result", "found", "advice"))
    if any(finding.result == "failed" for finding in findings):
        raise click.exceptions.Exit(Exit.UNHEALTHY)


def _findings(client: "Client") -> Iterator[Finding]:
    reached = _address(client.url)
    yield reached
    if reached.result != "failed":
        if client.url.startswith("https:"):
            yield _certificate(client.url)
        for name, check in (("engine", _engine), ("key", _key), ("clock", _clock), ("control plane", _control)):
            yield _tried(name, lambda check=check: check(client))  # type: ignore[misc]  # bound at once
    yield from _disk()


def _tried(name: str, check: Callable[[], Finding]) -> Finding:
    from querygate.client import QuerygateError

    try:
        return check()
    except QuerygateError as error:
        advice = error.hint or ("Give a valid key." if error.status == 401 else "")
        return Finding(name, "failed", error.message, advice)


def _address(url: str) -> Finding:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=5):
            return Finding("address", "ok", f"{parts.hostname}:{port} accepts connections")
    except OSError as exc:
        return Finding("address", "failed", f"{url}: {exc}", "Start the service (`querygate serve`), or correct --url.")


def _certificate(url: str) -> Finding:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    try:
        with (
            socket.create_connection((host, port), timeout=5) as plain,
            ssl.create_default_context().wrap_socket(plain, server_hostname=host) as secure,
        ):
            certificate = secure.getpeercert() or {}
    except (OSError, ssl.SSLError) as exc:
        return Finding("tls", "warning", str(exc), "Give the certificate of its authority with ca_file in the profile.")
    days = (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / 86400
    if days < _CERTIFICATE_DAYS_MIN:
        return Finding("tls", "warning", f"the certificate ends in {days:.0f} days", "Renew it.")
    return Finding("tls", "ok", f"the certificate is valid for {days:.0f} days")


def _engine(client: "Client") -> Finding:
    health = client.health()
    engine = health.get("engine", {})
    said = f"querygate {health.get('version')}, {engine.get('kind')} {engine.get('version')}"
    if health.get("status") == "ok":
        return Finding("engine", "ok", said)
    failing = ", ".join(name for name, state in health.get("checks", {}).items() if state != "ok")
    return Finding("engine", "failed", f"{said}: {failing}", "The log of the service has the cause.")


def _key(client: "Client") -> Finding:
    started = time.monotonic()
    client.query("select 1")
    return Finding("key", "ok", f"accepted; a query takes {(time.monotonic() - started) * 1000:.0f} ms")


def _clock(client: "Client") -> Finding:
    off = abs((client.query("select clock_timestamp()").value() - datetime.now(UTC)).total_seconds())
    if off > _CLOCK_OFF_S:
        return Finding("clock", "warning", f"{off:.0f} s apart from the engine's", "Synchronise the clocks (NTP).")
    return Finding("clock", "ok", f"within {_CLOCK_OFF_S:.0f} s of the engine's")


def _control(client: "Client") -> Finding:
    from querygate.client import QuerygateError

    try:
        found = client.organization()
    except QuerygateError as error:
        advice = "Give its address with --control-url or QUERYGATE_CONTROL_URL."
        return Finding("control plane", "warning", f"{client.control_url}: {error.message}", advice)
    return Finding("control plane", "ok", f"organization {found.name}, tier {found.tier}")


def _disk() -> Iterator[Finding]:
    """Of the data directory, where this machine has one."""
    directory = default_data_dir()
    if not directory.exists():
        return
    free = shutil.disk_usage(directory).free
    said = f"{free / 2**30:.1f} GiB free at {directory}"
    if free < _DISK_FREE_MIN:
        yield Finding("disk", "failed", said, "Make room: the engine stops when the disk is full.")
    else:
        yield Finding("disk", "ok", said)
