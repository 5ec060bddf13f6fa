"""Engine connections of one organization: all its databases share them, and the others have the rest."""

import asyncio
from collections.abc import Iterator

import httpx
import psycopg
import pytest

from tests.control import engine, new_organization
from tests.needs import needs
from tests.service import Service, running_service

MOST = 3
DATABASES = 6
CONNECTIONS = "select count(*) from pg_stat_activity where datname = any(%s) and backend_type = 'client backend'"


@pytest.fixture(scope="module")
def narrow() -> Iterator[Service]:
    with running_service("--workers", "1", "--connections-per-organization", str(MOST)) as running:
        yield running


def count(service: Service, organization: str) -> int:
    """Connections to databases that an organization has used, on all their servers."""
    asked = "select engine_name from database where organization = %s and not is_default"
    with engine(service) as look:
        names = [str(name) for (name,) in look.execute(asked, [organization]).fetchall()]
    assert len(names) == DATABASES
    found = 0
    for server in {service.server_of(name) for name in names}:
        with psycopg.connect(server) as look:
            [[number]] = look.execute(CONNECTIONS, [names]).fetchall()
            found += number
    return found


@needs("postgresql")
def test_all_databases_of_an_organization_share_its_connections(narrow: Service) -> None:
    """Statements in more databases than it may have connections wait for each other, and are all answered."""
    owner = new_organization(narrow)
    names = [f"d{n}" for n in range(DATABASES)]
    for name in names:
        owner.control.post("/v1/databases", {"name": name})

    async def ask_all() -> list[int]:
        headers = {"Authorization": f"Bearer {owner.control.token}"}
        async with httpx.AsyncClient(base_url=narrow.url, headers=headers, timeout=60, trust_env=False) as client:
            asked = [
                client.post(
                    "/v1/query",
                    json={"sql": "select count(*) from pg_stat_activity, pg_sleep(0.2)"},
                    headers={"Tuplegate-Database": name},
                )
                for name in names * 2
            ]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask_all()) == [200] * 2 * DATABASES
    assert 0 < count(narrow, owner.id) <= MOST
