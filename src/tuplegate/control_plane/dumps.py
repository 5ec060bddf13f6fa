"""A database as a file: streamed as the engine makes it, to whoever manages the database."""

import structlog

from tuplegate.access.states import DATABASE
from tuplegate.admission.actor import actor_of
from tuplegate.admission.identity import Identity
from tuplegate.catalog.catalog import Catalog
from tuplegate.control_plane.common import find_database, state_after
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.protocol.errors import ServiceError

_log = structlog.get_logger()

DUMP_TYPE = "application/octet-stream"


class DumpRoute:
    def __init__(self, catalog: Catalog, engine: port.Engine, timeout_s: float) -> None:
        self._catalog = catalog
        self._engine = engine
        self._timeout_s = timeout_s

    async def answer(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        name = exchange.path_values["name"]
        record = await find_database(self._catalog, identity, name)
        place = await self._catalog.databases.find_place(record.id)
        if place is None:
            raise ServiceError("not_found", f"there is no database {name!r}")
        state_after(DATABASE, record.state, "be dumped", f"the database {name!r}")
        if not exchange.chunked:
            # Its end would be that of the connection, and one that was cut off could not be told from a whole one.
            raise ServiceError("malformed_request", "a dump is sent to HTTP/1.1 clients only")
        headers = (("content-disposition", f'attachment; filename="{record.name}.dump"'),)
        if exchange.method == "HEAD":
            exchange.start(200, DUMP_TYPE.encode(), headers)
            return
        try:
            async with self._engine.dump(place.engine_name, self._timeout_s) as blocks:
                await self._catalog.databases.note_dump(actor_of(identity, exchange), record.id)
                exchange.start(200, DUMP_TYPE.encode(), headers)
                async for block in blocks:
                    await exchange.write(block)
        except port.EngineFailure as failure:
            error = to_service_error(failure)
            if error is None:
                raise
            exchange.failed, exchange.error_code = True, error.body.code
            if not exchange.answered:
                raise error from failure
            _log.warning("a dump was cut off", database=record.id, reason=str(failure))
            # A status has left; what tells the client is the end of the answer that does not come.
            exchange.keep_alive = False
        else:
            exchange.finish()


def to_service_error(failure: port.EngineFailure) -> ServiceError | None:
    """None where any route would answer the same."""
    match failure:
        case port.NotSupported():
            return ServiceError("not_supported", str(failure))
        case port.AlreadyRunning():
            return ServiceError("already_running", str(failure))
        case port.DumpStopped():
            return ServiceError("shutting_down", str(failure))
        case port.DumpFailed():
            return ServiceError("dump_failed", str(failure), detail=failure.detail, hint=failure.hint)
        case _:
            return None
