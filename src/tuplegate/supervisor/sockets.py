"""Binds the sockets of the planes, which all workers listen on."""

import contextlib
import ipaddress
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator

from tuplegate.data_plane.interactive.handover import NODE_BITS, Doors
from tuplegate.settings import Settings
from tuplegate.supervisor.serve_error import ServeError

PLANES = ("data", "alias", "control")

_UNSENT_MAX = 2**17
"""Bytes for a client that the kernel holds beyond what is under way."""


def bind_planes(settings: Settings) -> dict[str, socket.socket]:
    """Bind a listening socket for every plane that is to be served."""
    planes = [plane.strip() for plane in settings.planes.split(",")]
    unknown = [plane for plane in planes if plane not in PLANES]
    if unknown or len(set(planes)) != len(planes):
        raise ServeError(f"--planes {settings.planes!r} must name some of {', '.join(PLANES)}, each once")
    ports = {"data": settings.data_port, "alias": settings.alias_port, "control": settings.control_port}
    return {plane: _bind(settings.host, ports[plane], f"--{plane}-port") for plane in PLANES if plane in planes}


def bind_metrics(settings: Settings) -> socket.socket:
    """Bind plain HTTP without a token: for this machine, or for a proxy that authorizes readers."""
    host, _, port = settings.metrics_address.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
        if not 0 <= number <= 65535:
            raise ValueError(port)
    except ValueError:
        raise ServeError(
            f"--metrics-address {settings.metrics_address!r} is not of the form 127.0.0.1:9090 or [::1]:9090"
        ) from None
    if not address.is_loopback and not settings.behind_proxy:
        raise ServeError(
            f"--metrics-address {settings.metrics_address} would show the metrics to other machines without asking"
            " who they are. Bind it to 127.0.0.1, or let Prometheus ask the control plane with an operator's token; or"
            " put a proxy that judges in front and say --behind-proxy."
        )
    return _bind(str(address), number, "--metrics-address")


@contextlib.contextmanager
def bind_workers(count: int) -> Iterator[Doors]:
    """Bind a socket for every worker, over which the others hand requests over to it."""
    with contextlib.ExitStack() as stack:
        if sys.platform == "linux":  # names without files: nothing is left behind
            start = f"\0tuplegate-{secrets.token_hex(8)}-"
        else:
            start = stack.enter_context(tempfile.TemporaryDirectory(prefix="tuplegate-")) + "/"
        bound = {}
        for number in range(count):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.bind(f"{start}{number}")
            sock.listen(1024)
            sock.setblocking(False)
            bound[f"{start}{number}"] = sock
        yield Doors(secrets.randbits(NODE_BITS), bound)


def _bind(host: str, port: int, flag: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):  # what a client does not take waits in the worker, where it is counted
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_MAX)
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        raise ServeError(f"cannot bind {host}:{port}: {exc.strerror}. Choose another with {flag}.") from exc
    sock.listen(1024)
    sock.setblocking(False)
    return sock


def find_address(sock: socket.socket, *, with_tls: bool) -> str:
    host, port = sock.getsockname()[:2]
    scheme = "https" if with_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
