"""A tenant's code that autovacuum evaluates, and that never ends, is ended all the same."""

import asyncio
from functools import partial

from tests.service import needs_bundled
from tests.tenants import Tenant, make_tenant_fixture, server_of
from tests.waiting import eventually
from tuplegate.engine.postgres.safety.stubborn import Stubborn
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession, terminate
from tuplegate.engine.postgres.upkeep.held_vacuum import end_held

pytestmark = needs_bundled

holder = make_tenant_fixture("service", "holder-of-vacuum")

FUNCTION = "create or replace function held(int) returns int immutable language plpgsql as $$ begin {} return 1; end $$"
HELD = "select pid from pg_stat_progress_analyze where phase like 'computing%' and relid = {}"
"""Autovacuum looks at other tables as well, and is soon done with them."""


def test_autovacuum_that_evaluates_a_tenants_code_without_end(holder: Tenant) -> None:
    """It takes no notice of a cancel, either. The service's own role ends it."""
    holder.write(FUNCTION.format(""))
    holder.write("create table many (a int)")
    holder.write("create index on many (held(a))")
    holder.write("insert into many select generate_series(1, 1000)")
    deaf = "loop begin perform pg_sleep(1); exception when query_canceled then null; end; end loop;"
    holder.write(FUNCTION.format(deaf))
    held = HELD.format(holder.write.value("select 'many'::regclass::oid::int8"))
    with server_of(holder) as engine:
        engine.execute("alter system set autovacuum_naptime = '1s'")
        engine.execute("select pg_reload_conf()")
        eventually(lambda: engine.execute(held).fetchone() is not None)
        engine.execute("alter system set autovacuum_naptime = '10d'")
        engine.execute("select pg_reload_conf()")
        [(process,)] = engine.execute(held).fetchall()
        asyncio.run(end(holder, held_s=600))
        assert engine.execute(held).fetchall() == [(process,)], "what has not taken long goes on"
        asyncio.run(end(holder, held_s=0))
        eventually(lambda: (process,) not in engine.execute(held).fetchall())
        engine.execute("alter system reset autovacuum_naptime")


async def end(tenant: Tenant, held_s: float) -> None:
    connector = AdminConnector(tenant.service.cells.login(tenant.database))
    async with AdminSession(connector, METADATA_DATABASE) as session:
        stubborn = Stubborn(session.fetch, partial(terminate, session))
        await end_held(session, stubborn, held_s)
        await stubborn.close()
