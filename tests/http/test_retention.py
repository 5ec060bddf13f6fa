"""Audit and usage that are too old, or too many, are removed in portions; those of others stay."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from tests.control import new_organization
from tests.service import ENGINE, Service
from tuplegate.catalog.retention import AUDIT, PORTION, USAGE, OldRecords
from tuplegate.engine.opening import find_owner, read_address
from tuplegate.settings import Settings
from tuplegate.tenancy.retention import Retention, RetentionRule

OLD, NEW = PORTION * 2 + 500, 20
HOURS = 90 * 24
MANY = 10**9
RULES = (RetentionRule(AUDIT, 400, MANY, MANY), RetentionRule(USAGE, 90, MANY, MANY))


class Free:
    """An engine of which nobody else holds a name."""

    @asynccontextmanager
    async def hold(self, _name: str) -> AsyncIterator[bool]:
        yield True


@pytest.fixture
def metadata(service: Service) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(service.conninfo("tuplegate"), autocommit=True) as connection:
        yield connection


def remove(service: Service, *rules: RetentionRule) -> None:
    async def run() -> None:
        conninfo = service.conninfo("tuplegate")
        owner = await find_owner(read_address(conninfo) if ENGINE else conninfo, Settings())
        async with owner.metadata() as session:
            await Retention(OldRecords(session), Free(), rules).remove_all()  # type: ignore[arg-type]  # all it needs

    asyncio.run(run())


def fill(metadata: psycopg.Connection[Any], organization: str) -> None:
    """Many old records, and a few new ones."""
    metadata.execute(
        "insert into audit (organization, at, action, subject, request_id)"
        " select %s, now() - case when g <= %s then interval '401 days' else interval '399 days' end, 'x', g::text, ''"
        " from generate_series(1, %s) g",
        [organization, OLD, OLD + NEW],
    )
    metadata.execute(
        "insert into usage select %s, 'x', date_trunc('hour', now()) - g * interval '1 hour', 1, 1, 1, 0"
        " from generate_series(1, %s) g",
        [organization, HOURS + OLD],
    )


def count(metadata: psycopg.Connection[Any], table: str, organization: str) -> int:
    row = metadata.execute(f"select count(*) from {table} where organization = %s", [organization]).fetchone()
    assert row is not None
    return int(row[0])


def test_what_is_too_old_goes(service: Service, metadata: psycopg.Connection[Any]) -> None:
    """All of it, over several portions, and nothing that is younger."""
    id = new_organization(service).id
    fill(metadata, id)
    remove(service, *RULES)
    assert count(metadata, "audit", id) == NEW
    assert count(metadata, "usage", id) in (HOURS - 1, HOURS)  # an hour may have passed meanwhile


def test_who_has_too_many_loses_its_own_oldest(service: Service, metadata: psycopg.Connection[Any]) -> None:
    """Whoever has few keeps all of them."""
    many, few = new_organization(service), new_organization(service)
    few.control.post("/v1/keys", {"name": "k", "scopes": ["read"]})
    metadata.execute(
        "insert into audit (organization, action, subject, request_id)"
        " select %s, 'x', g::text, '' from generate_series(1, %s) g",
        [many.id, PORTION * 3],
    )
    before = count(metadata, "audit", few.id)
    remove(service, RetentionRule(AUDIT, 400, PORTION, MANY))
    assert count(metadata, "audit", many.id) == PORTION
    assert [entry["subject"] for entry in many.control.get("/v1/audit", limit=2)["items"]] == ["3000", "2999"]
    assert count(metadata, "audit", few.id) == before >= 1
    metadata.execute("delete from audit where organization = %s", [many.id])
