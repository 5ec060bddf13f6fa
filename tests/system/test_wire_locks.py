"""A client's open transaction does not keep the predicate locks of everybody, on an engine with room for few."""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.control import Organization, new_organization, wait_until
from tests.external import ExternalServer
from tests.http.test_wire import Hand, query
from tests.service import Service, Sql, needs_bundled, new_data_dir, remove, remove_installation, start_service
from tests.tunnel import Tunnel

TABLES, READS = 100, (9, 7)
"""Two tenants that read all their tables so often leave more than three quarters of the 2,000 locks that there are. The
first holds most, so that the second is not held back."""
READ = f"do $$ begin for i in 1..{TABLES} loop execute format('select 1 from kept%s', i); end loop; end $$"
MAKE = READ.replace("select 1 from kept%s", "create table kept%s (i int)")

pytestmark = needs_bundled


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    running = ExternalServer(max_prepared_transactions="100", max_pred_locks_per_transaction="10")
    yield running
    running.remove()


@pytest.fixture(scope="module")
def crowded(server: ExternalServer) -> Iterator[Service]:
    running = start_service(new_data_dir(), env={"TUPLEGATE_ENGINE": server.url("crowded")})
    yield running
    assert running.stop() == 0
    remove(running.data_dir)
    remove_installation(server.url("crowded"))


@pytest.fixture(scope="module")
def readers(crowded: Service) -> list[Organization]:
    made = [new_organization(crowded) for _ in range(2)]
    for reader in made:
        reader.control.sql()(MAKE)
    return made


@pytest.fixture
def keeper(crowded: Service) -> Hand:
    """A client in a transaction that has read nothing but a catalog."""
    client = Hand(crowded)
    client.start(new_organization(crowded).key)
    client.send(query("begin; select count(*) from pg_class"))
    client.until("Z")
    return client


def is_served(sql: Sql) -> bool:
    return sql.answer("select 1").status_code == 200


def leave_locks(readers: list[Organization]) -> None:
    for reader, reads in zip(readers, READS, strict=True):
        wait_until(partial(is_served, reader.control.sql()))
        with Tunnel(reader.control.service, reader.key) as tunnel, tunnel.connect(prepare_threshold=None) as connection:
            for _ in range(reads):
                connection.execute(READ.encode())


def test_who_keeps_the_locks_of_all_others_and_waits_is_ended(readers: list[Organization], keeper: Hand) -> None:
    leave_locks(readers)
    said = keeper.last_words()
    assert b"57P01" in said, said
    assert b"kept the locks" in said, said


def test_who_keeps_them_while_a_statement_runs_gets_a_conflict(readers: list[Organization], keeper: Hand) -> None:
    keeper.send(query("select pg_sleep(25)"))
    leave_locks(readers)
    said = dict(keeper.until("Z"))
    assert b"40001" in said["E"], said
    assert said["Z"] == b"E", said
