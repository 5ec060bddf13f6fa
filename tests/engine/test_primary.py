"""What casts doubt on the primary, so that it is looked for again, and what does not."""

import asyncio

import pytest

from tests.inside import conninfo
from tests.service import Service
from tuplegate.engine.libpq.connections.commands import ConnectionLost
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.logins import add_settings
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.engine.postgres.replication.verified import Expected

SETTINGS = {"default_transaction_isolation": "serializable", "search_path": "public"}
EXPECTED = Expected("serializable", "off", "public")
ENOUGH_S = 20.0


def test_a_login_with_settings_of_a_clients_own_casts_none(service: Service) -> None:
    """One without does."""

    async def work() -> None:
        primary = Primary(conninfo(service), ["postgres"], follows=True)
        good, bad = (
            add_settings(conninfo(service), "postgres", {**SETTINGS, **more}) for more in ({}, {"DateStyle": "garbage"})
        )
        (await primary.open(Connection, good, ENOUGH_S, EXPECTED)).close()
        found = primary.server
        assert found
        with pytest.raises(ConnectionLost, match="garbage"):
            await primary.open(Connection, bad, ENOUGH_S, EXPECTED, doubts=False)
        assert primary.server == found
        with pytest.raises(ConnectionLost, match="garbage"):
            await primary.open(Connection, bad, ENOUGH_S, EXPECTED)
        assert primary.server == ""

    asyncio.run(work())
