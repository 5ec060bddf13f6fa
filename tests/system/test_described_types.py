"""Parameters are written for the types that the engine was asked for, so nothing may change these before they are used.

The engine is asked, and then the tables are exchanged before it gets the statement that is to run.
"""

from collections.abc import Iterator

import psycopg
import pytest

from tests.control import engine
from tests.faults import engine_socket_directory, kill_worker, once_back, serves
from tests.needs import needs
from tests.service import Service, Sql, running_service
from tests.wire_proxy import At, Fault, WireProxy

SWAP = ("alter table here rename to aside", "alter table there rename to here", "alter table aside rename to there")
INSERT = "insert into here values ($1) returning 1 as done"


@pytest.fixture(scope="module")
def alone() -> Iterator[Service]:
    with running_service("--workers", "1") as running:
        yield running


@needs("postgresql")
@pytest.mark.parametrize(
    ("way", "before"),
    # The last of them is run. What is streamed is described twice before it is begun.
    [("query", 1), ("stream", 3)],
)
def test_tables_are_not_exchanged_between_question_and_use(alone: Service, way: str, before: int) -> None:
    """Either the value is what the first table makes of it, or what the second does."""
    with alone.client() as client, WireProxy(engine_socket_directory(alone)) as proxy:
        sql = Sql(client)
        kill_worker(alone)  # the next one connects by way of the proxy
        once_back(lambda: serves(alone))
        sql("drop table if exists here, there")
        sql("create table here (v jsonb)")
        sql("create table there (v text)")
        database = sql.value("select current_database()")

        def swap() -> None:
            with engine(alone, database) as other:
                other.execute("set lock_timeout = '300ms'")
                try:
                    with other.transaction():
                        for statement in SWAP:
                            other.execute(statement)
                except psycopg.errors.LockNotAvailable:
                    pass  # the statement holds its table

        fault = proxy.arm(Fault(lambda text: text == INSERT, At.REQUEST, swap, cut=False, skip=before))
        accept = "application/x-ndjson" if way == "stream" else "application/json"
        answer = client.post("/v1/query", json={"sql": INSERT, "params": ["5"]}, headers={"Accept": accept})
        assert answer.status_code == 200
        assert fault.happened.wait(30), "it was not asked, or not sent"
        found = sql.rows("select v::text as v, pg_typeof(v)::text as type from here")
        found += sql.rows("select v::text as v, pg_typeof(v)::text as type from there")
        assert [list(row.values()) for row in found] in ([['"5"', "jsonb"]], [["5", "text"]])
