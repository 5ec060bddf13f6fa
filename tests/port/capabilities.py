"""What an engine may lack and still be one. Each is found by asking the opened engine, through the port alone.

A test that needs one says so: `@needs("two_phase")`. Everything without a mark is what every adapter must do.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from tests.port.tenant import Tenant, new_name
from tuplegate.engine.port import Bounds, Commit, EngineDatabases, EngineFailure, NotSupported, StatementFailed


@dataclass(frozen=True)
class Capability:
    meaning: str
    find: Callable[[Tenant, EngineDatabases], Awaitable[bool]]


async def _two_phase(tenant: Tenant, _: EngineDatabases) -> bool:
    table = await tenant.table("two_phase")
    return (await tenant.transaction(f"insert into {table} values (1)")).commit is Commit.TWO_PHASE


async def _dumps(tenant: Tenant, _: EngineDatabases) -> bool:
    try:
        async with tenant.engine.dump(tenant.database, 30.0):
            return True
    except NotSupported:
        return False


async def _wire(tenant: Tenant, _: EngineDatabases) -> bool:
    try:
        async with tenant.engine.wire(tenant.writer, {}, "tests", Bounds(10_000, None, 0)):
            return True
    except NotSupported:
        return False


async def _copies(_: Tenant, databases: EngineDatabases) -> bool:
    """A source that is not there is refused otherwise."""
    name = new_name()
    try:
        await databases.copy(new_name(), name)
    except NotSupported:
        return False
    except EngineFailure:
        return True
    finally:
        await databases.drop(name)
    raise AssertionError("what is not there was copied")


async def _neighbours(tenant: Tenant, databases: EngineDatabases) -> bool:
    name = new_name()
    await databases.create(name)
    try:
        return bool(await tenant.rows("select from pg_catalog.pg_roles where rolname like $1", f"{name}%"))
    finally:
        await databases.drop(name)


async def _named_objects(tenant: Tenant, _: EngineDatabases) -> bool:
    table = await tenant.table("named")
    try:
        await tenant.query(f"insert into {table} values (null)")
    except StatementFailed as failure:
        return failure.fields is not None and failure.fields.table is not None
    raise AssertionError("a primary key took NULL")


def _accepts(sql: str) -> Callable[[Tenant, EngineDatabases], Awaitable[bool]]:
    async def accepts(tenant: Tenant, _: EngineDatabases) -> bool:
        try:
            await tenant.query(sql.format(schema=tenant.schema))
        except StatementFailed:
            return False
        return True

    return accepts


CAPABILITIES = {
    "neighbours": Capability("databases are on one server, where tenants see the roles of others", _neighbours),
    "two_phase": Capability("a transaction can be prepared, and committed later from anywhere", _two_phase),
    "code": Capability("a statement can be a block of code", _accepts("do $$ begin null; end $$")),
    "late_checks": Capability(
        "a constraint can be checked when the transaction commits",
        _accepts("create table {schema}.late (a int unique deferrable initially deferred)"),
    ),
    "wire": Capability("a client can speak to the engine in the engine's own protocol", _wire),
    "copies": Capability("a database can be copied by the engine", _copies),
    "temporary_tables": Capability(
        "a table can live as long as its connection", _accepts("create temp table of_connection (a int)")
    ),
    "named_objects": Capability("a refusal names the table and the column that it is about", _named_objects),
    "dumps": Capability("a database can be written into a file", _dumps),
}


async def find_capabilities(tenant: Tenant, databases: EngineDatabases) -> frozenset[str]:
    return frozenset([name for name, capability in CAPABILITIES.items() if await capability.find(tenant, databases)])


def needs(name: str) -> pytest.MarkDecorator:
    assert name in CAPABILITIES, name
    return pytest.mark.needs(name)
