"""The hole in PostgreSQL's SERIALIZABLE, on the bare engine: what the service's guard is for."""

import psycopg

from tests.http.test_serializable_pool import fill, slots
from tests.inside import empty_database
from tests.service import Service

__all__ = ["slots"]  # a fixture


def test_the_bare_engine_lets_write_skew_commit_when_its_pool_is_used_up(service: Service, slots: int) -> None:
    """What the guard is for: without it the same three steps end in a state that no order of them could give."""
    conninfo = empty_database(service)
    with (
        psycopg.connect(conninfo, autocommit=True) as one,
        psycopg.connect(conninfo, autocommit=True) as two,
    ):
        one.execute("drop table if exists skew; create table skew (id int primary key, v int)")
        one.execute("insert into skew values (1, 1), (2, 1)")
        for connection in (one, two):
            connection.execute("begin isolation level serializable")
            connection.execute("select sum(v) from skew").fetchall()
        one.execute("update skew set v = v - 1 where id = 1")
        one.execute("commit")
        fill(service, slots + 100)
        two.execute("update skew set v = v - 1 where id = 2")
        two.execute("commit")
        assert one.execute("select sum(v) from skew").fetchone() == (0,)
        one.execute("drop table skew")
