"""What an engine may lack and still be one. Each is found by asking the opened engine, through the port alone.

A test that needs one says so: `@needs("two_phase")`. Everything without a mark is what every adapter must do.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from tests.port.tenant import Tenant
from tuplegate.engine.port import Commit, NotSupported, StatementFailed


@dataclass(frozen=True)
class Capability:
    meaning: str
    find: Callable[[Tenant], Awaitable[bool]]


async def _two_phase(tenant: Tenant) -> bool:
    table = await tenant.table("two_phase")
    return (await tenant.transaction(f"insert into {table} values (1)")).commit is Commit.TWO_PHASE


async def _dumps(tenant: Tenant) -> bool:
    try:
        async with tenant.engine.dump(tenant.database, 30.0):
            return True
    except NotSupported:
        return False


def _accepts(sql: str) -> Callable[[Tenant], Awaitable[bool]]:
    async def accepts(tenant: Tenant) -> bool:
        try:
            await tenant.query(sql.format(schema=tenant.schema))
        except StatementFailed:
            return False
        return True

    return accepts


CAPABILITIES = {
    "two_phase": Capability("a transaction can be prepared, and committed later from anywhere", _two_phase),
    "code": Capability("a statement can be a block of code", _accepts("do $$ begin null; end $$")),
    "late_checks": Capability(
        "a constraint can be checked when the transaction commits",
        _accepts("create table {schema}.late (a int unique deferrable initially deferred)"),
    ),
    "dumps": Capability("a database can be written into a file", _dumps),
}


async def find_capabilities(tenant: Tenant) -> frozenset[str]:
    return frozenset([name for name, capability in CAPABILITIES.items() if await capability.find(tenant)])


def needs(name: str) -> pytest.MarkDecorator:
    assert name in CAPABILITIES, name
    return pytest.mark.needs(name)
