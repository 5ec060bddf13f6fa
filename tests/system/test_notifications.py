"""The engine's queue of notifications, which all databases share, does not stay full, on an engine with a small one.

It has room for 1,024 pages, and every notification here takes one.
"""

from collections.abc import Iterator

import psycopg
import pytest

from tests.control import Organization, new_organization, wait_until
from tests.external import ExternalServer
from tests.http.test_wire import Hand, query
from tests.service import Service, needs_bundled, new_data_dir, remove, remove_installation, since, start_service
from tests.tunnel import Tunnel

PAGES = 1024
NOTIFY = "do $$ begin for i in 1..{} loop perform pg_notify('c', repeat('x', 7900) || i); end loop; end $$"
HEAR = "create or replace function hear() returns void language plpgsql as $$ begin execute 'lis' || 'ten c'; end $$"

pytestmark = [needs_bundled, since(17)]


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    running = ExternalServer(max_notify_queue_pages=str(PAGES))
    yield running
    running.remove()


@pytest.fixture(scope="module")
def small(server: ExternalServer) -> Iterator[Service]:
    running = start_service(new_data_dir(), env={"TUPLEGATE_ENGINE": server.url("small")})
    yield running
    assert running.stop() == 0
    remove(running.data_dir)
    remove_installation(server.url("small"))


@pytest.fixture(scope="module")
def one(small: Service) -> Organization:
    return new_organization(small)


@pytest.fixture
def idle(small: Service) -> Iterator[Hand]:
    """Somebody of another database, who listens and waits."""
    client = Hand(small)
    client.start(new_organization(small).key)
    client.send(query("listen c"))
    client.until("Z")
    yield client
    client.websocket.close()


@pytest.fixture
def busy(small: Service, one: Organization) -> Iterator[Hand]:
    """Somebody who listens and stays in a transaction."""
    client = Hand(small)
    client.start(one.key)
    yield client
    client.websocket.close()


def measure_usage(server: ExternalServer) -> float:
    [(usage,)] = server.execute("select pg_notification_queue_usage()")
    return float(str(usage))


def can_notify(organization: Organization) -> bool:
    return bool(organization.control.sql().answer("notify c").json()["success"])


def is_served(client: Hand) -> bool:
    client.send(query("select 1"))
    return [kind for kind, _ in client.until("Z") if kind != "A"] == ["T", "D", "C", "Z"]


@pytest.fixture
def older(small: Service) -> Iterator[Hand]:
    """Somebody who is in a transaction for longer than all others, and does not listen."""
    client = Hand(small)
    client.start(new_organization(small).key)
    client.send(query("begin; select 1"))
    client.until("Z")
    yield client
    client.websocket.close()


@pytest.mark.parametrize(
    "statements",
    [["listen c", "begin; select 1"], [HEAR, "select hear(); commit; begin; select 1"]],
    ids=["seen", "unseen"],
)
def test_who_listens_and_does_not_read_is_ended(
    server: ExternalServer, one: Organization, idle: Hand, older: Hand, busy: Hand, statements: list[str]
) -> None:
    """Before the queue is full, also where code listens in the middle of a text. Who listens and reads goes on, and so
    does who does not listen."""
    for statement in statements:
        busy.send(query(statement))
        busy.until("Z")
    sql = one.control.sql()
    for _ in range(6):
        sql(NOTIFY.format(PAGES // 10))
    said = busy.last_words()
    assert b"57P01" in said, said
    assert b"queue of notifications" in said, said
    wait_until(lambda: measure_usage(server) < 0.1)
    assert can_notify(one)
    assert is_served(idle)
    assert is_served(older)


def test_who_is_idle_reads_what_a_failed_transaction_has_left(
    server: ExternalServer, small: Service, one: Organization, idle: Hand
) -> None:
    """The engine tells nobody of it."""
    one.control.sql()("create table doctor (id int primary key, is_on_call bool)")
    one.control.sql()("insert into doctor values (1, true), (2, true)")
    with Tunnel(small, one.key) as tunnel, tunnel.connect() as first, tunnel.connect() as second:
        for number, connection in enumerate((first, second), 1):
            connection.execute("begin")
            connection.execute("select count(*) from doctor where is_on_call")
            connection.execute("update doctor set is_on_call = false where id = %s", (number,))
        second.execute(NOTIFY.format(PAGES // 5).encode())
        first.execute("commit")
        with pytest.raises(psycopg.errors.SerializationFailure):
            second.execute("commit")
    wait_until(lambda: measure_usage(server) < 0.1)
    assert is_served(idle)


def test_a_queue_that_one_transaction_has_filled_does_not_stay_full(
    server: ExternalServer, one: Organization, idle: Hand
) -> None:
    """Whoever is idle cannot be told to read then, and is ended."""
    assert one.control.sql().fails(NOTIFY.format(PAGES + 1))["sqlstate"] == "54000"
    said = idle.last_words()
    assert b"57P01" in said, said
    wait_until(lambda: can_notify(one))
    assert measure_usage(server) < 0.1
