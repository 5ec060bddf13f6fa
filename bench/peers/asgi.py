"""Servers that others maintain, with a bare application: what this service's own HTTP server is compared with."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.install import install
from bench.peers.processes import Child, accepts, free_port
from tuplegate.http.tls.certificates import TlsFiles

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = Path(__file__).parent / "programs"
ASGI_SERVERS = ("uvicorn", "granian")
KEY = "a-key"


@contextmanager
def running_asgi(name: str, home: Path, tls: TlsFiles | None = None) -> Iterator[tuple[Child, str]]:
    """The server as one process, with the application that answers `KEY`; and its address."""
    installed = install(name, ROOT / ".peers")
    port = free_port()
    command = [str(installed / "bin" / name), "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    if name == "uvicorn":
        command += ["--no-access-log", "--loop", "uvloop", "--http", "httptools", "--app-dir", str(PROGRAMS)]
        certificate = "--ssl-certfile"
    else:
        command += ["--interface", "asgi", "--loop", "uvloop", "--working-dir", str(PROGRAMS)]
        certificate = "--ssl-certificate"
    if tls is not None:
        command += [certificate, str(tls.certificate), "--ssl-keyfile", str(tls.key)]
    child = Child([*command, "asgi_app:app"], home, {"PEER_KEY": KEY})
    child.start()
    try:
        child.wait_for(lambda: accepts(port))
        yield child, f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    finally:
        child.stop()
