"""A transaction with an id of the client's is in progress for exactly as long as somebody holds its lock."""

import asyncio
import secrets

from tests.inside import engine_of, tenant_of
from tests.service import Service
from tuplegate.engine import port
from tuplegate.engine.routing.engines import SeveralEngines


async def _states(engine: port.Engine, database: str) -> tuple[port.Outcome | None, port.Outcome | None]:
    """The states of a new id while its lock is held and afterwards."""
    id = f"txn_{secrets.token_hex(8)}"
    async with engine.hold_in(database, port.Lock.TRANSACTION, id) as free:
        assert free
        assert await engine.begin_id(database, id)
        held = await engine.find_id(database, id)
    return held, await engine.find_id(database, id)


def test_a_lock_taken_by_a_former_name_is_that_of_the_database(service: Service) -> None:
    """A request that began before its database moved holds the lock under the name that others ask by."""

    async def run() -> None:
        database = tenant_of(service)

        async def locate(names: object) -> dict[str, str]:
            return {database: port.FIRST_ENGINE}

        async with engine_of(service) as first, SeveralEngines(first, {}, locate) as engine:
            engine.follow({"tg_former": (database, port.FIRST_ENGINE)})
            held, free = await _states(engine, "tg_former")
        assert (held, free) == (port.Outcome.IN_PROGRESS, port.Outcome.ABORTED)

    asyncio.run(run())
