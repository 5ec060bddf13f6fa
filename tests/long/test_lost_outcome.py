"""A transaction whose engine was away for too long, while it was being decided, can be asked for afterwards."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from tests.faults import child, children, send_signal
from tests.inside import engine_of, tenant_of
from tests.service import Service, Sql, needs_bundled
from tuplegate.access.transaction_ids import IdKind, TransactionId, read_id, write_id
from tuplegate.engine import port
from tuplegate.engine.postgres.engine import PostgresEngine
from tuplegate.engine.postgres.transaction import recovery, two_phase

BOUNDS = port.Bounds(30_000, None, 1_000_000)
WAIT_S = 60.0


@pytest.fixture
def t(sql: Sql) -> str:
    sql("drop table if exists lost")
    sql("create table lost (a int)")
    return "lost"


@contextmanager
def standing_still(service: Service) -> Iterator[None]:
    """All processes of the engine: nobody can reach it, and nothing of it ends."""
    postmaster = child(service, engine=True)
    pids = [postmaster, *children(postmaster)]
    for pid in pids:
        send_signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            send_signal(pid, signal.SIGCONT)


async def definite(engine: PostgresEngine, target: port.Target, ticket: port.Ticket) -> port.Outcome:
    async with asyncio.timeout(WAIT_S):
        while (outcome := await engine.outcome_of_lost(target, ticket)) is port.Outcome.IN_PROGRESS:
            await asyncio.sleep(0.05)
    return outcome


async def none_prepared(service: Service) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            with psycopg.connect(service.conninfo("postgres")) as looking:
                found = looking.execute(
                    "select 1 from pg_prepared_xacts where gid like 'tuplegate\\_test\\_%'"
                ).fetchone()
            if found is None:
                return
            await asyncio.sleep(0.05)


@needs_bundled
def test_an_engine_that_stands_still(service: Service, sql: Sql, t: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client hears that it is not known, with what to ask by; and what it hears later is what is there."""
    monkeypatch.setattr(recovery, "_SETTLE_S", 0.5)
    monkeypatch.setattr(two_phase, "_DECIDE_S", 0.5)

    async def run() -> port.Outcome:
        target = port.Target(tenant_of(service), port.Access.WRITE)
        statement = port.Statement(f"insert into {t} values (1)", "insert")
        async with engine_of(service) as engine:
            stopped = standing_still(service)

            def stop_first() -> str:
                stopped.__enter__()
                return new_gid()

            new_gid = engine._recovery.new_gid
            monkeypatch.setattr(engine._recovery, "new_gid", stop_first)
            try:
                with pytest.raises(port.OutcomeUnknown) as unknown:
                    await engine.transaction(target, [statement], port.Shape(), BOUNDS, read_only=False, promise=None)
            finally:
                stopped.__exit__(None, None, None)
            assert unknown.value.ticket is not None
            outcome = await definite(engine, target, unknown.value.ticket)
            await none_prepared(service)
            assert await engine.outcome_of_lost(target, unknown.value.ticket) is outcome
        return outcome

    outcome = asyncio.run(run())
    assert sql.value(f"select count(*) from {t}") == (1 if outcome is port.Outcome.COMMITTED else 0)


@pytest.mark.parametrize("prepared", [True, False])
def test_what_was_prepared_is_found_to_be_committed(service: Service, sql: Sql, t: str, prepared: bool) -> None:
    """By whoever finds it first; what never was prepared is found to be aborted."""

    async def run() -> port.Outcome:
        target = port.Target(tenant_of(service), port.Access.WRITE)
        async with engine_of(service) as engine:
            gid = engine._recovery.new_gid()
            with closing(psycopg.connect(service.conninfo(target.database))) as lost:
                ticket = engine._recovery.ticket(gid, lost.info.backend_pid)
                lost.execute(f"set session authorization {target.database}_w".encode())
                lost.execute(f"insert into {t} values (1)".encode())
                if prepared:
                    lost.execute(f"prepare transaction '{gid}'".encode())
                    lost.close()
                return await definite(engine, target, ticket)

    assert asyncio.run(run()) is (port.Outcome.COMMITTED if prepared else port.Outcome.ABORTED)
    assert sql.value(f"select count(*) from {t}") == prepared


def test_its_id_tells_what_to_ask_by() -> None:
    id = TransactionId(IdKind.LOST, (4_194_304 << 32) + 4_194_303, "0aZ9bY8cX7")
    text = write_id(id, "db_1", b"secret", b"nonce")
    assert read_id(text, "db_1", b"secret") == id
    assert read_id(text, "db_2", b"secret") is None
