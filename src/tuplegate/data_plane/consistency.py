"""Reads from the request how recent its data must be, and tells the engine's position in the answer.

`Tuplegate-Consistency: snapshot`, or a key made for it, lets a replica answer. A client that sends back the
`Tuplegate-Position` of an answer never reads an older state than that answer showed.
"""

from typing import Final

from tuplegate.admission.identity import Identity
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError

_SERVED_BY: Final = {
    False: b"tuplegate-served-by: primary\r\n",
    True: b"tuplegate-served-by: replica\r\n",
}


def wants_snapshot(exchange: Exchange, identity: Identity, engine: port.Answers) -> bool:
    """Return whether reads need not be serializable: the request decides, or else its key.

    Raises malformed_request, also for an invalid position.
    """
    position = read_position(exchange)
    if position is not None:
        try:
            engine.snapshots.check(position)
        except port.BadPosition as failure:
            raise to_service_error(failure) from failure
    said = exchange.headers.get(b"tuplegate-consistency")
    if said is None:
        return identity.reads_snapshots
    if said not in (b"serializable", b"snapshot"):
        raise ServiceError(
            "malformed_request",
            f"Tuplegate-Consistency cannot be {said[:50].decode('latin-1')!r}; it is serializable or snapshot",
        )
    return said == b"snapshot"


def read_position(exchange: Exchange) -> bytes | None:
    """Return the position that the client has sent back. Only the engine knows its meaning."""
    return exchange.headers.get(b"tuplegate-position")


def tell_position(exchange: Exchange, position: bytes) -> None:
    """Add the position to the headers of the answer."""
    exchange.extra_headers += b"tuplegate-position: %b\r\n" % position


def tell_server(exchange: Exchange, *, on_replica: bool) -> None:
    exchange.extra_headers += _SERVED_BY[on_replica]


async def tell_newest(exchange: Exchange, engine: port.Answers) -> None:
    """Tell the present position of the engine, which includes everything that was done and seen."""
    if engine.tells_positions:
        tell_position(exchange, await engine.position())
