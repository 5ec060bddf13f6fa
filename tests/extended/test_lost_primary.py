"""The primary dies with what no standby has: the service says of no transaction that it was committed, if it is not."""

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.external import ExternalServer, Standby, free_port
from tests.servers import needs_linux, wait_until
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.wire_proxy import At, Fault, PortProxy

pytestmark = needs_linux


class Pair:
    """A primary with a standby that commits do not wait for. The service reaches the standby when it is told to."""

    def __init__(self) -> None:
        self.primary = ExternalServer()
        self.standby = Standby(self.primary)
        self.way = PortProxy(self.primary.url("pair"))
        self.other_way = PortProxy(self.primary.url("pair").replace(str(self.primary.port), str(free_port())))
        self.way.install()
        self.other_way.install()

    @property
    def url(self) -> str:
        first, second = (urlsplit(way.url).netloc.rpartition("@")[2] for way in (self.way, self.other_way))
        return self.way.url.replace(first, f"{first},{second}")

    def part(self) -> None:
        """From now on the standby gets nothing more; what was written before it has."""
        [(lsn,)] = self.primary.execute("select pg_current_wal_lsn()")
        wait_until(lambda: self.standby.execute(f"select pg_last_wal_replay_lsn() >= '{lsn}'") == [(True,)])
        self.standby.execute("alter system set primary_conninfo = ''")
        self.standby.execute("select pg_reload_conf()")
        wait_until(lambda: self.primary.execute("select from pg_stat_replication") == [])

    def promote(self) -> None:
        """It gives out the numbers again that were given out since they parted; then the service reaches it."""
        self.standby.execute("select pg_promote()")
        with psycopg.connect(self.standby.url("postgres"), autocommit=True) as connection:
            for _ in range(100):
                connection.execute("select pg_current_xact_id()")
        self.other_way._engine = urlsplit(self.standby.url("pair"))

    def remove(self) -> None:
        self.way.remove()
        self.other_way.remove()
        self.standby.remove()
        self.primary.remove()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def service(pair: Pair) -> Iterator[Service]:
    started = start_service(new_data_dir(), env={"TUPLEGATE_ENGINE": pair.url})
    with started.client() as client:
        Sql(client)("create table t (a int primary key)")
    yield started
    assert started.stop() == 0
    remove(started.data_dir)


def insert(service: Service, value: int) -> httpx.Response:
    with service.client() as client:
        return client.post("/v1/transaction", json={"statements": [f"insert into t values ({value})"]}, timeout=60)


def outcome(service: Service, answer: httpx.Response) -> dict[str, Any]:
    with service.client() as client:
        found: dict[str, Any] = client.get(f"/v1/transaction/{answer.json()['transaction_id']}", timeout=60).json()
    return found


def test_what_only_the_former_primary_had(pair: Pair, service: Service) -> None:
    """One transaction is acknowledged there, of another PREPARE is answered. The numbers of both are used again."""
    assert insert(service, 1).status_code == 200
    pair.part()
    acknowledged = insert(service, 2)
    assert outcome(service, acknowledged)["state"] == "committed"
    dies = pair.way.arm(Fault(lambda sql: sql.startswith("COMMIT PREPARED"), At.REQUEST, pair.primary.crash))
    answers: list[httpx.Response] = []
    deciding = threading.Thread(target=lambda: answers.append(insert(service, 3)))
    deciding.start()
    assert dies.happened.wait(30)
    pair.promote()
    deciding.join()
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "outcome_unknown")
    with service.client() as client:
        wait_until(lambda: client.post("/v1/query", json={"sql": "select 1"}).status_code == 200)
        assert Sql(client).rows("select a from t order by a") == [{"a": 1}]
    for lost in (acknowledged, answers[0]):
        assert outcome(service, lost)["error"]["code"] == "outcome_unknown"
    again = insert(service, 4)
    assert outcome(service, again)["state"] == "committed"
