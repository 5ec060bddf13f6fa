"""A transaction whose engine was away for too long, while it was being decided, can be asked for afterwards."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from tests.control import Organization
from tests.faults import child, send_signal
from tests.inside import conninfo, empty_database, postgres_of, tenant_of
from tests.processes import children
from tests.service import ENGINE, Service, Sql, needs_bundled
from tuplegate.access.transaction_ids import IdKind, TransactionId, TransactionIds
from tuplegate.engine import port
from tuplegate.engine.postgres.engine import PostgresEngine
from tuplegate.engine.postgres.service.admin import make_primary
from tuplegate.engine.postgres.transaction import certainty, deciding, recovery

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
    send_signal(postmaster, signal.SIGSTOP)  # it starts no more of them
    pids = [*children(postmaster), postmaster]
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
            with psycopg.connect(empty_database(service)) as looking:
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
    monkeypatch.setattr(deciding, "_DECIDE_S", 0.5)

    async def run() -> port.Outcome:
        target = port.Target(tenant_of(service), port.Access.WRITE)
        statement = port.Statement(f"insert into {t} values (1)", "insert")
        async with postgres_of(service) as engine:
            stopped = standing_still(service)

            def stop_first() -> str:
                stopped.__enter__()
                return new_gid()

            new_gid = engine._recovery.new_gid
            monkeypatch.setattr(engine._recovery, "new_gid", stop_first)
            try:
                with pytest.raises(port.OutcomeUnknown) as unknown:
                    await engine.transaction(target, [statement], BOUNDS, read_only=False, promise=None)
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
        async with postgres_of(service) as engine:
            gid = engine._recovery.new_gid()
            word = gid.rpartition("_")[2]
            with closing(psycopg.connect(service.conninfo(target.database))) as lost:
                ticket = port.Ticket((_clock(lost) << 32) + lost.info.backend_pid, word)
                lost.execute(f"set session authorization {target.database}_w".encode())
                lost.execute(f"insert into {t} values (1)".encode())
                if prepared:
                    lost.execute(f"prepare transaction '{gid}'".encode())
                    lost.close()
                return await definite(engine, target, ticket)

    assert asyncio.run(run()) is (port.Outcome.COMMITTED if prepared else port.Outcome.ABORTED)
    assert sql.value(f"select count(*) from {t}") == prepared


def _clock(connection: psycopg.Connection[Any]) -> int:
    """The server's, a moment from now."""
    row = connection.execute("select ceil(extract(epoch from clock_timestamp()))").fetchone()
    assert row is not None
    return int(row[0])


def test_another_process_with_the_number_of_the_lost_one(service: Service, t: str) -> None:
    """It was started later, as after a restart of the engine: what runs there is somebody else's."""

    async def run() -> port.Outcome:
        target = port.Target(tenant_of(service), port.Access.WRITE)
        async with postgres_of(service) as engine:
            word = engine._recovery.new_gid().rpartition("_")[2]
            with closing(psycopg.connect(service.conninfo(target.database))) as stranger:
                stranger.execute(f"insert into {t} values (1)".encode())
                number = ((_clock(stranger) - 3600) << 32) + stranger.info.backend_pid
                outcome = await engine.outcome_of_lost(target, port.Ticket(number, word))
                stranger.commit()
        return outcome

    assert asyncio.run(run()) is port.Outcome.ABORTED


@pytest.mark.skipif(not ENGINE, reason="each database of the bundled engine has a server of its own")
def test_a_database_that_cannot_be_entered_holds_up_no_other(
    service: Service, sql: Sql, t: str, organization: Organization
) -> None:
    """What is prepared in it stays so until it can be; what was prepared later, elsewhere, is committed."""
    with psycopg.connect(service.conninfo("tuplegate")) as catalog:
        found = catalog.execute(
            "select engine_name from database where organization = %s", (organization.id,)
        ).fetchone()
    assert found is not None
    closed, open_one = str(found[0]), str(sql.value("select current_database()"))

    async def run() -> list[str]:
        with psycopg.connect(empty_database(service), autocommit=True) as owner:
            owner.execute(f"alter database {closed} allow_connections false".encode())
            try:
                async with postgres_of(service):
                    return left(service)
            finally:
                owner.execute(f"alter database {closed} allow_connections true".encode())

    prepare(service, closed, "tuplegate_test_1_closed", "select pg_current_xact_id()")
    prepare(service, open_one, "tuplegate_test_1_open", f"insert into {t} values (1)")
    assert asyncio.run(run()) == ["tuplegate_test_1_closed"]
    assert sql.value(f"select count(*) from {t}") == 1

    async def resolve() -> None:
        async with postgres_of(service):
            pass

    asyncio.run(resolve())
    assert left(service) == []


def prepare(service: Service, database: str, gid: str, statement: str) -> None:
    with closing(psycopg.connect(service.conninfo(database))) as connection:
        connection.execute(f"set session authorization {database}_w".encode())
        connection.execute(statement.encode())
        connection.execute(f"prepare transaction '{gid}'".encode())


def left(service: Service) -> list[str]:
    with psycopg.connect(empty_database(service)) as looking:
        rows = looking.execute("select gid from pg_prepared_xacts where gid like 'tuplegate\\_test\\_%'")
        return [str(gid) for (gid,) in rows]


@needs_bundled
def test_one_that_no_standby_confirms_can_be_asked_for(
    service: Service, t: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed, and has a number, when nobody knows whether a standby has it."""
    monkeypatch.setattr(certainty, "_CERTAIN_S", 0.1)
    demanding = make_primary(conninfo(service), follows=False, demands_standby=True)

    async def run() -> port.Outcome | None:
        target = port.Target(tenant_of(service), port.Access.WRITE)
        statement = port.Statement(f"insert into {t} values (1)", "insert")
        async with postgres_of(service, demanding) as engine:
            with pytest.raises(port.OutcomeUnknown) as unknown:
                await engine.transaction(target, [statement], BOUNDS, read_only=False, promise=None)
            ticket = unknown.value.ticket
            assert ticket is not None
            assert not ticket.word
            return await engine.outcome(target, ticket.number, history=ticket.history)

    assert asyncio.run(run()) is port.Outcome.COMMITTED


@pytest.mark.parametrize("mark", ["", "aB3dE6"])
@pytest.mark.parametrize("history", [0, 1, 2**34 - 1])
def test_its_id_tells_what_to_ask_by(mark: str, history: int) -> None:
    id = TransactionId(IdKind.LOST, (4_194_304 << 32) + 4_194_303, "0aZ9bY8cX7", mark, history)
    ids = TransactionIds(b"secret", os.urandom)
    text = ids.write(id, "db_1")
    assert ids.read(text, "db_1") == id
    assert ids.read(text, "db_2") is None
    assert TransactionIds(b"another", os.urandom).read(text, "db_1") is None
    for place in range(4, len(text)):
        other = "x" if text[place] != "x" else "y"
        assert ids.read(text[:place] + other + text[place + 1 :], "db_1") is None
