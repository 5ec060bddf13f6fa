"""Positions as texts, on both sides; how far behind a standby is; and what is tried there at all."""

import math
from dataclasses import replace

import pytest
from psycopg.conninfo import conninfo_to_dict

from tuplegate.client.positions import Positions, check_consistency
from tuplegate.engine import port
from tuplegate.engine.libpq.connections.logins import copy_login, strip_login
from tuplegate.engine.postgres.replication.positions import NOWHERE, Position, read_lsn, read_position
from tuplegate.engine.postgres.service.admin import AdminConnector
from tuplegate.engine.postgres.standbys.progress import LAG_MAX_S, Progress
from tuplegate.engine.postgres.standbys.snapshots import may_run_on_standby
from tuplegate.protocol.statements import keyword_of_one
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import read_replica_addresses
from tuplegate.supervisor.serve_error import ServeError

EARLIER, LATER = "00000001-00000009ffffffff", "00000001-0000000a00000000"


def test_a_position_is_read_as_it_was_written() -> None:
    """And a later one is the greater text, across timelines too."""
    positions = [Position(1, read_lsn("0/0")), Position(1, read_lsn("9/FFFFFFFF")), Position(1, read_lsn("A/0"))]
    positions += [Position(2, 0), Position(10, 5)]
    texts = [position.written() for position in positions]
    assert [read_position(text) for text in texts] == positions
    assert texts == sorted(texts)
    assert (read_position(None), read_position(b"unknown")) == (None, NOWHERE)


def test_a_lag_from_before_the_first_look_is_unknown() -> None:
    """A standby that lacks what was there already may be behind by any time, until that is more than it may be."""
    progress = Progress(AdminConnector("host=nowhere"), flushes=False)
    for at in range(10):
        progress.sampled(90.0 + at, 10)
        assert progress.lag_s(9, 90.0 + at) == (math.inf if at <= LAG_MAX_S else at)
        assert progress.lag_s(10, 90.0 + at) == 0


def test_the_lag_is_the_age_of_what_is_missing() -> None:
    """By the times at which the primary was seen to be there, whatever any clock of the engine's says."""
    progress = Progress(AdminConnector("host=nowhere"), flushes=False)
    assert progress.lag_s(0, 100.0) == math.inf, "nothing is known of the primary"
    for at, inserted in ((97.0, 10), (98.0, 10), (99.0, 20), (100.0, 30)):
        progress.sampled(at, inserted)
    assert [progress.lag_s(replayed, 100.5) for replayed in (30, 29, 20, 19, 10)] == [0, 0.5, 0.5, 1.5, 1.5]
    assert progress.lag_s(30, 100.0 + LAG_MAX_S + 1) == math.inf, "that was long ago"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select updated_at, deleted, shared from t", True),
        ("table t", True),
        ("(select 1) union (select 2)", True),
        ("with q as (select 1) select * from q", True),
        ("WITH q AS (DELETE FROM t RETURNING a) SELECT * FROM q", False),
        ("select * from t for update skip locked", False),
        ("select * from t for key share", False),
        ("select a into b from t", False),
        ("select NextVal('s')", False),
        ("select lo_import('x')", False),
        ("select pg_advisory_lock(1)", False),
        ("insert into t values (1)", False),
        ("explain analyze select 1", False),
        ("show all", False),
        ("do $$ begin end $$", False),
    ],
)
def test_what_is_tried_on_a_standby(sql: str, expected: bool) -> None:
    """Words of what writes count, parts of names do not."""
    assert may_run_on_standby(port.Statement(sql, keyword_of_one(sql))) is expected


def test_a_client_keeps_the_latest_position() -> None:
    """Answers may come in any order."""
    positions = Positions()
    assert positions.headers("snapshot") == {"Tuplegate-Consistency": "snapshot"}
    for position in (LATER, EARLIER, None):
        positions.note(position)
    assert positions.headers("snapshot") == {"Tuplegate-Consistency": "snapshot", "Tuplegate-Position": LATER}
    assert positions.headers(None) == {"Tuplegate-Position": LATER}
    assert positions.headers("serializable") == {"Tuplegate-Consistency": "serializable"}


def test_a_position_that_is_unknown_is_kept_until_it_was_sent() -> None:
    """An answer that was asked for before may not stand behind it."""
    positions = Positions()
    before = positions.count_settled(positions.headers("snapshot"))
    positions.note("unknown")
    positions.note(LATER, before)
    assert positions.latest == "unknown"
    positions.note(EARLIER, positions.count_settled(positions.headers("snapshot")))
    assert positions.latest == LATER, "the latest of all that are known"


def test_a_position_that_becomes_unknown_meanwhile_is_kept() -> None:
    """Two threads: one writes while a read of the other, which has sent `unknown`, is under way. A stream that ends
    then says nothing of the write either."""
    positions = Positions()
    positions.note("unknown")
    read = positions.count_settled(positions.headers("snapshot"))
    positions.note("unknown")
    positions.note(EARLIER, read)
    positions.note(LATER)
    assert positions.latest == "unknown"
    positions.note(LATER, positions.count_settled(positions.headers(None)))
    assert positions.latest == LATER


def test_another_consistency_is_refused_by_the_client() -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match="serializable or snapshot"):
        check_consistency("eventual")


def test_a_replica_is_logged_in_at_as_the_engine_is() -> None:
    """What its URL says of a user, a password and a database is nothing to the service."""
    settings = replace(Settings(), replicas="postgresql://me:secret@a:1/mine?sslmode=require , host=b port=2,")
    places = read_replica_addresses(settings)
    assert ["secret" in place or "user" in place for place in places] == [False, False]
    made = [copy_login(place, "host=c user=owner password='p w' dbname=meta") for place in places]
    login = {"user": "owner", "password": "p w", "dbname": "meta"}
    assert [conninfo_to_dict(each) for each in made] == [
        {"host": "a", "port": "1", "sslmode": "require", **login},
        {"host": "b", "port": "2", **login},
    ]
    assert strip_login("host=b port=2 user=x passfile=y") == "host='b' port='2'"


def test_a_replica_that_is_no_url_is_refused() -> None:
    """At the start, without the URL in the message."""
    with pytest.raises(ServeError, match="--replicas cannot be used: it is not of the form") as caught:
        read_replica_addresses(replace(Settings(), replicas="postgresql://a:1,secret password"))
    assert "secret" not in str(caught.value)
