"""Computes from the settings how others reach the planes."""

import ipaddress
import socket
from dataclasses import dataclass, replace

from tuplegate import worker
from tuplegate.http.origins import Origin, parse_origin
from tuplegate.settings import Settings
from tuplegate.supervisor.certificates import with_tls
from tuplegate.supervisor.serve_error import ServeError
from tuplegate.supervisor.sockets import find_address


@dataclass(frozen=True, slots=True)
class Edge:
    """The planes as others see them: their addresses, the alias's upstream, and the origins whose pages may call them.
    `own_origins` are all of their addresses: bound ones, and those of the settings."""

    addresses: dict[str, Origin]
    upstream: worker.Upstream | None
    cors_origins: frozenset[str]
    own_origins: frozenset[Origin]

    @property
    def hosts(self) -> list[str]:
        """Return the hosts that a certificate is for."""
        return [address.host for address in self.addresses.values()]


def read_edge(settings: Settings, sockets: dict[str, socket.socket]) -> Edge:
    given = {"data": settings.data_url, "alias": settings.alias_url, "control": settings.control_url}
    addresses = {plane: _parse(url, f"--{plane}-url") for plane, url in given.items() if url}
    bound = {plane: parse_origin(find_address(sock, with_tls=with_tls(settings))) for plane, sock in sockets.items()}
    upstream = None
    if "alias" in sockets:
        if "data" not in addresses | bound or "control" not in addresses | bound:
            raise ServeError("an alias without the other planes needs --data-url and --control-url")
        own = "data" not in addresses
        upstream = worker.Upstream(_find_reachable(bound["data"]) if own else addresses["data"], own)
        if upstream.origin in (bound["alias"], addresses.get("alias")):
            raise ServeError(f"--data-url {upstream.origin} is the alias itself, which would forward to itself")
    planes = {plane: origin for plane, origin in bound.items() if plane != "metrics"}
    own_origins = frozenset([*planes.values(), *addresses.values()])
    addresses = bound | addresses
    origins = {str(_parse(part, "--cors-origins")) if part != "*" else part for part in _split(settings.cors_origins)}
    if "control" in addresses:
        console = addresses["control"]
        origins |= {str(origin) for origin in (console, console.local_alias) if origin is not None}
    return Edge(addresses, upstream, frozenset(origins), own_origins)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse(url: str, flag: str) -> Origin:
    try:
        return parse_origin(url)
    except ValueError:
        raise ServeError(f"{flag} {url!r} is not an address of the form https://host or https://host:port") from None


def _find_reachable(bound: Origin) -> Origin:
    """Return an address to connect to; the bound one may stand for all of the machine's."""
    if ipaddress.ip_address(bound.host).is_unspecified:
        return replace(bound, host="::1" if ":" in bound.host else "127.0.0.1")
    return bound


def check_address(settings: Settings) -> None:
    try:
        loopback = settings.host == "localhost" or ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        raise ServeError(f"--host {settings.host!r} is not an IP address") from None
    if not loopback and not settings.behind_proxy and not with_tls(settings):
        raise ServeError(
            f"--host {settings.host} would serve plain HTTP to other machines. Serve HTTPS with --tls-cert and"
            " --tls-key, or with --tls self-signed; or put a proxy that terminates TLS in front and say"
            " --behind-proxy; or bind 127.0.0.1."
        )
