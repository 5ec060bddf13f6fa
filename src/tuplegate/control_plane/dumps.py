"""The route that streams a dump of a database as the engine makes it."""

import asyncio
from dataclasses import dataclass

import structlog

from tuplegate.access.states import DATABASE
from tuplegate.admission.actor import actor_of
from tuplegate.admission.identity import Identity
from tuplegate.admission.long_answers import LongAnswers
from tuplegate.catalog.catalog import Catalog
from tuplegate.control_plane.common import check_transition, find_database
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.protocol.errors import ServiceError

_log = structlog.get_logger()

DUMP_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class DumpBounds:
    """The bounds of a dump: its time, and how far its reader may fall behind the pace of `bytes_s_min`."""

    timeout_s: float
    behind_s_max: float
    bytes_s_min: int


class DumpRoute:
    def __init__(self, catalog: Catalog, dumps: port.Dumps, bounds: DumpBounds, long_answers: LongAnswers) -> None:
        self._catalog = catalog
        self._dumps = dumps
        self._bounds = bounds
        self._long_answers = long_answers

    async def answer(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        name = exchange.path_values["name"]
        record = await find_database(self._catalog, identity, name)
        database = await self._catalog.databases.find_in_engine(record.id)
        if database is None:
            raise ServiceError("not_found", f"there is no database {name!r}")
        check_transition(DATABASE, record.state, "be dumped", f"the database {name!r}")
        if not exchange.chunked:
            # HTTP/1.0 marks the end by closing the connection, so a dump that was cut off would look complete.
            raise ServiceError("malformed_request", "a dump is sent to HTTP/1.1 clients only")
        headers = (("content-disposition", f'attachment; filename="{record.name}.dump"'),)
        if exchange.method == "HEAD":
            exchange.start(200, DUMP_TYPE.encode(), headers)
            return
        organization = identity.principal.organization
        dump = self._dumps.dump(database.engine_name, self._bounds.timeout_s, organization)
        try:
            with self._long_answers.running(exchange):
                async with dump as blocks:
                    await self._catalog.databases.note_dump(actor_of(identity, exchange), record.id)
                    exchange.start(200, DUMP_TYPE.encode(), headers)
                    pace = _Pace(exchange, record.id, self._bounds)
                    async for block in blocks:
                        await pace.write(block)
        except (port.EngineFailure, ServiceError) as failure:
            error = failure if isinstance(failure, ServiceError) else explain_dump_failure(failure)
            if error is None:
                raise
            exchange.failed, exchange.error_code = True, error.body.code
            if not exchange.answered:
                raise error from failure
            _log.warning("a dump was cut off", database=record.id, reason=str(failure))
            # The status has been sent. The client notices the failure because the answer has no proper end.
            exchange.keep_alive = False
        else:
            exchange.finish()


class _Pace:
    """Writes a dump, and cuts off a reader that is too slow: others wait for its database.

    Only time that the dump spends waiting for the reader counts, and a fast reader saves up only a limited lead.
    """

    def __init__(self, exchange: Exchange, database: str, bounds: DumpBounds) -> None:
        self._exchange = exchange
        self._database = database
        self._bounds = bounds
        self._left_s = bounds.behind_s_max
        self._loop = asyncio.get_running_loop()

    async def write(self, block: bytes) -> None:
        before = self._loop.time()
        self._left_s += len(block) / self._bounds.bytes_s_min
        timer = self._loop.call_later(self._left_s, self._cut_off)
        try:
            await self._exchange.write(block)
        finally:
            timer.cancel()
        self._left_s = min(self._left_s - (self._loop.time() - before), self._bounds.behind_s_max)

    def _cut_off(self) -> None:
        _log.warning("a dump was cut off", database=self._database, reason="its reader took it too slowly")
        self._exchange.failed = True
        self._exchange.cut_off()


def explain_dump_failure(failure: port.EngineFailure) -> ServiceError | None:
    """Return the error of a failure that only dumps have; None for any other."""
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
