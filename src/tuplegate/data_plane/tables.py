"""`GET /tables`: lists the tables and views of the caller's database that the caller may see."""

from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.consistency import tell_newest
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query


class TableRoutes:
    def __init__(self, queries: port.Queries, identities: IdentityCache) -> None:
        self._queries = queries
        self._identities = identities

    async def list(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        target = await self._identities.find_target(identity, exchange)
        try:
            tables = await self._queries.tables(target, identity.allowance.statement)
        except port.EngineFailure as failure:
            raise to_service_error(failure) from failure
        await tell_newest(exchange, self._queries)
        truncated = b',"truncated":true' if tables.truncated else b""
        exchange.respond(200, b'{"success":true,"tables":%b%b}' % (tables.items, truncated))
