"""Schemas for the service's own work in a tenant's database: made for it, and dropped with everything in them."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.cluster.connector import Connector, ServiceSession
from tuplegate.engine.libpq.connections.logins import name_role
from tuplegate.engine.libpq.values.quoting import quote

PREFIX: Final = "tuplegate_scratch_"


@asynccontextmanager
async def make_scratch(connector: Connector, database: str) -> AsyncIterator[str]:
    name = PREFIX + secrets.token_hex(8)
    writer = quote(name_role(database, port.Access.WRITE))
    async with ServiceSession(connector, database) as session:
        await session.fetch(f"CREATE SCHEMA {name} AUTHORIZATION {writer}")
        reader = quote(name_role(database, port.Access.READ))
        await session.fetch(f"GRANT USAGE ON SCHEMA {name} TO {reader}")
        try:
            yield name
        finally:
            await asyncio.shield(session.fetch(f"DROP SCHEMA IF EXISTS {name} CASCADE"))
