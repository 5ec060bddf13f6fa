"""`GET /v2`: PostgreSQL's own protocol in a WebSocket, by psycopg through a tunnel and byte by byte."""

import struct
import threading
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import TupleRow
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.control import Organization, engine, engine_name, new_organization
from tests.metrics import scrape
from tests.needs import needs
from tests.service import Service, Sql, newer_than, since
from tests.tunnel import Tunnel, open_websocket
from tests.waiting import eventually
from tuplegate.data_plane.wire.sessions import WRONG_MAX

pytestmark = needs("postgresql")
"""Only that protocol is passed on."""

Connection = psycopg.Connection[TupleRow]


@pytest.fixture(scope="module")
def tunnel(service: Service, organization: Organization) -> Iterator[Tunnel]:
    with Tunnel(service, organization.key) as opened:
        yield opened


@pytest.fixture
def wire(tunnel: Tunnel) -> Iterator[Connection]:
    with tunnel.connect() as connection:
        yield connection


@pytest.fixture
def org_sql(organization: Organization) -> Sql:
    return organization.control.sql()


def value(connection: Connection, sql: str, *params: Any) -> Any:
    row = connection.execute(sql.encode(), params or None).fetchone()
    assert row is not None
    return row[0]


def run_aside(connection: Connection, sql: LiteralString) -> tuple[threading.Thread, list[psycopg.Error]]:
    """Run a statement in a thread; return that, and where its failure will be."""
    failure: list[psycopg.Error] = []

    def run() -> None:
        try:
            connection.execute(sql)
        except psycopg.Error as exc:
            failure.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, failure


def database_of(organization: Organization) -> str:
    """The engine's name of the organization's database."""
    database = organization.control.get("/v1/databases/main")
    return engine_name(organization.control.service, database["id"])


def backends(organization: Organization) -> list[tuple[Any, ...]]:
    """Server processes of clients of their own, in the organization's database."""
    database = database_of(organization)
    with psycopg.connect(organization.control.service.server_of(database)) as outside:
        return outside.execute(
            "select pid, state, wait_event from pg_stat_activity where datname = %s and application_name = 'by hand'",
            [database],
        ).fetchall()


# -- a client of PostgreSQL -------------------------------------------------------------------------------------------


def test_types_errors_and_parameters(wire: Connection) -> None:
    """Everything is the engine's own: values in both forms, errors with their fields, notices."""
    row = wire.execute(
        "select %s::int, %s::text, %s::timestamptz, array[1,2]::int[], '{\"a\":1}'::jsonb, null, 1.50::numeric",
        (7, "ä€", "2026-11-17T00:00:00Z"),
    ).fetchone()
    assert row is not None
    assert (row[0], row[1], row[3], row[4], row[5], str(row[6])) == (7, "ä€", [1, 2], {"a": 1}, None, "1.50")
    assert wire.execute("select %s::bytea", (b"\0\xff",), binary=True).fetchone() == (b"\0\xff",)
    with pytest.raises(errors.SyntaxError) as wrong:
        wire.execute("selec 1")
    assert wrong.value.diag.statement_position == "1"
    with pytest.raises(errors.DivisionByZero):
        wire.execute("select 1/%s", (0,))
    notices: list[str] = []
    wire.add_notice_handler(lambda told: notices.append(str(told.message_primary)))
    wire.execute("do $$ begin raise notice 'hello'; end $$")
    assert notices == ["hello"]
    assert value(wire, "select 1") == 1


def test_it_is_the_keys_role_and_serializable(wire: Connection, organization: Organization) -> None:
    name = database_of(organization)
    assert value(wire, "select current_user || ' ' || session_user") == f"{name}_w {name}_w"
    assert value(wire, "show default_transaction_isolation") == "serializable"
    assert wire.info.parameter_status("server_encoding") == "UTF8"
    assert wire.info.parameter_status("is_superuser") == "off"
    wire.execute("set default_transaction_isolation = 'read committed'")
    assert value(wire, "show transaction_isolation") == "read committed"


def test_transactions_and_savepoints(tunnel: Tunnel, org_sql: Sql) -> None:
    org_sql("create table wire_tx (n int primary key)")
    with tunnel.connect(autocommit=False) as connection:
        connection.execute("insert into wire_tx values (1)")
        with pytest.raises(errors.UniqueViolation), connection.transaction():
            connection.execute("insert into wire_tx values (1)")
        assert org_sql.value("select count(*) from wire_tx") == 0
        connection.commit()
        connection.execute("insert into wire_tx values (2)")
        connection.rollback()
    assert org_sql.rows("select n from wire_tx", row_mode="arrays") == [[1]]


def test_write_skew_is_refused(tunnel: Tunnel, org_sql: Sql) -> None:
    org_sql("create table wire_skew (n int primary key, v int)")
    org_sql("insert into wire_skew values (1, 0), (2, 0)")
    with tunnel.connect(autocommit=False) as one, tunnel.connect(autocommit=False) as two:
        for connection in (one, two):
            connection.execute("select sum(v) from wire_skew")
        one.execute("update wire_skew set v = 1 where n = 1")
        two.execute("update wire_skew set v = 1 where n = 2")
        one.commit()
        with pytest.raises(errors.SerializationFailure):
            two.commit()


def copy_in(connection: Connection, *pieces: bytes) -> None:
    with connection.cursor().copy("copy wire_copy from stdin") as copy:
        for piece in pieces:
            copy.write(piece)


def test_copy_both_ways(wire: Connection, org_sql: Sql) -> None:
    """By both protocols, with rows in large and small pieces, and with an error in the middle."""
    rows = 20_000
    wire.execute("create table wire_copy (n int, t text)")
    with wire.cursor().copy("copy wire_copy from stdin") as copy:
        for number in range(rows):
            copy.write_row((number, "x" * 50))
    assert org_sql.value("select count(*) from wire_copy") == rows
    with wire.cursor().copy("copy wire_copy to stdout") as copy:
        assert sum(1 for _ in copy.rows()) == rows
    with pytest.raises(errors.InvalidTextRepresentation):
        copy_in(wire, b"no number\tx\n", b"1\tx\n" * 50_000)
    with wire.cursor().copy("copy (select n from wire_copy where n < %s) to stdout", (3,)) as copy:
        assert b"".join(bytes(piece) for piece in copy) == b"0\n1\n2\n"
    assert value(wire, "select 1") == 1


def test_a_large_result_comes_whole_to_a_slow_reader(wire: Connection) -> None:
    with wire.cursor() as cursor:
        total = 0
        for row in cursor.stream("select repeat('x', 1000) from generate_series(1, 30000)"):
            total += len(row[0])
    assert total == 30_000_000


def test_a_pipeline(wire: Connection) -> None:
    with wire.pipeline():
        cursors = [wire.execute("select %s::int", (number,)) for number in range(50)]
    assert [cursor.fetchone() for cursor in cursors] == [(number,) for number in range(50)]


def test_notifications(tunnel: Tunnel, wire: Connection) -> None:
    wire.execute("listen news")
    with tunnel.connect() as other:
        other.execute("notify news, 'arrived'")
    (told,) = wire.notifies(timeout=20, stop_after=1)
    assert (told.channel, told.payload) == ("news", "arrived")


def test_settings_of_the_start(tunnel: Tunnel) -> None:
    options = r"-c search_path=pg_catalog -c IntervalStyle=iso_8601"
    with tunnel.connect(application_name="it's me \\", options=options) as connection:
        assert value(connection, "show application_name") == "it's me \\"
        assert value(connection, "show search_path") == "pg_catalog"
        assert value(connection, "select '1 day'::interval::text") == "P1D"
        connection.execute("reset all")
        assert value(connection, "show search_path") == "pg_catalog"
    with tunnel.connect(client_encoding="LATIN1") as connection:
        assert connection.execute("select 'ä' || length('ä')").fetchone() == ("ä1",)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"options": "-c TimeZone=Mars"}, "Mars"),
        ({"options": "-c DateStyle=garbage"}, 'invalid value for parameter "DateStyle"'),
        ({"client_encoding": "garbage"}, 'invalid value for parameter "client_encoding"'),
        ({"client_encoding": "LATIN1", "options": "-c search_path=ä"}, "cannot be read in the encoding"),
        ({"options": "-c work_mem=1GB"}, "not taken"),
        ({"options": "-c TimeZone=UTC\\\t-c\\\tdefault_transaction_read_only=off"}, "parameter"),
        ({"replication": "database"}, "replication"),
        ({"dbname": "nowhere"}, "there is no database 'nowhere'"),
        ({"password": "svc_k_wrong"}, "well-formed"),
        ({"password": "x" * 2000}, "5 to 1000"),
    ],
)
def test_a_start_that_is_refused(tunnel: Tunnel, more: dict[str, Any], says: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=says):
        tunnel.connect(**more)


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_that_may_only_read(service: Service, organization: Organization) -> None:
    """Whatever it sets."""
    key = organization.control.post("/v1/keys", {"name": "reader", "scopes": ["read"]})["key"]
    with Tunnel(service, key) as tunnel, tunnel.connect() as connection:
        assert value(connection, "select 1") == 1
        with pytest.raises(errors.ReadOnlySqlTransaction):
            connection.execute("create table wire_no (n int)")
        connection.execute("set default_transaction_read_only = off")
        with pytest.raises(errors.ReadOnlySqlTransaction):
            connection.execute("create table wire_no (n int)")
        for function in ("lo_from_bytea(0, 'x')", "lo_create(0)", "lo_unlink(1)"):
            with pytest.raises((errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction)):
                connection.execute(f"select {function}")


def test_a_key_of_one_database(service: Service, organization: Organization) -> None:
    organization.control.post("/v1/databases", {"name": "wire-other"})
    key = organization.control.post("/v1/keys", {"name": "bound", "scopes": ["write"], "database": "wire-other"})["key"]
    with Tunnel(service, key) as tunnel:
        with tunnel.connect("wire-other") as connection:
            assert value(connection, "select 1") == 1
        with pytest.raises(psycopg.OperationalError, match="there is no database 'main'"):
            tunnel.connect("main")


def test_a_revoked_key_ends_its_connections(service: Service, organization: Organization) -> None:
    """While a statement runs, too; and it opens no other."""
    made = organization.control.post("/v1/keys", {"name": "soon gone", "scopes": ["write"]})
    with Tunnel(service, made["key"]) as tunnel, tunnel.connect(application_name="by hand") as connection:
        sleeping, failure = run_aside(connection, "select pg_sleep(20)")
        eventually(lambda: [row[2] for row in backends(organization)] == ["PgSleep"])
        organization.control.delete(f"/v1/keys/{made['id']}")
        sleeping.join(20)
        assert failure[0].sqlstate == "57P01"
        assert "revoked" in str(failure[0])
        eventually(lambda: not backends(organization))
        with pytest.raises(psycopg.OperationalError, match="revoked"):
            tunnel.connect()


# -- limits -----------------------------------------------------------------------------------------------------------


def status(connection: Connection) -> str:
    return connection.info.transaction_status.name


def select_often(connection: Connection) -> None:
    for _ in range(30):
        connection.execute("select 1")


def test_over_the_quota_statements_fail_and_the_connection_stays(service: Service) -> None:
    """In both protocols; an open transaction fails with it, and can be ended."""
    tiny = new_organization(service, "tiny")
    with Tunnel(service, tiny.key) as tunnel, tunnel.connect(prepare_threshold=None) as connection:
        connection.execute("begin")
        with pytest.raises(errors.ConfigurationLimitExceeded, match="requests of this minute"):
            select_often(connection)
        assert status(connection) == "INERROR"
        connection.execute("rollback")
        with pytest.raises(errors.ConfigurationLimitExceeded):
            connection.execute("select %s", ("extended",))
        with pytest.raises(errors.ConfigurationLimitExceeded):
            connection.execute("select 'simple'")
        assert status(connection) == "IDLE"


def test_a_statement_that_takes_too_long(service: Service, organization: Organization) -> None:
    """The limit of the service holds whatever the client sets; here its own is lower."""
    with Tunnel(service, organization.key) as tunnel, tunnel.connect(options="-c statement_timeout=1000") as connection:
        with pytest.raises(errors.QueryCanceled):
            connection.execute("select pg_sleep(20)")
        assert value(connection, "select 1") == 1


def test_connections_of_an_organization(service: Service) -> None:
    other = new_organization(service)
    with Tunnel(service, other.key) as tunnel:
        opened = [tunnel.connect() for _ in range(8)]
        with pytest.raises(psycopg.OperationalError, match="8 connections of the organization are open"):
            tunnel.connect()
        opened[0].close()
        eventually(lambda: _connects(tunnel))
        for connection in opened:
            connection.close()


def _connects(tunnel: Tunnel) -> bool:
    try:
        tunnel.connect().close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_cancel(wire: Connection, organization: Organization) -> None:
    """By a connection of its own, as psql does it; a wrong secret does nothing."""
    done = threading.Event()

    def cancel() -> None:
        while not done.wait(0.05):
            wire.cancel_safe()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        with pytest.raises(errors.QueryCanceled):
            wire.execute("select pg_sleep(20)")
    finally:
        done.set()
        canceller.join()
    assert value(wire, "select 1") == 1


def test_what_could_begin_any_number_of_transactions_runs_in_one(wire: Connection) -> None:
    """And what it answers is what the engine would."""
    wire.execute("do $$ begin perform 1; end $$")
    assert wire.execute("do $$ begin perform 1; end $$ -- with a comment").statusmessage == "DO"
    with pytest.raises(errors.InvalidTransactionTermination):
        wire.execute("do $$ begin for i in 1..5 loop perform 1; commit; end loop; end $$")
    wire.execute("create procedure wire_many(n int) language plpgsql as $$ begin commit; end $$")
    with pytest.raises(errors.InvalidTransactionTermination):
        wire.execute("call wire_many(1)")
    with pytest.raises((errors.InvalidTransactionTermination, errors.FeatureNotSupported)):
        wire.execute("call wire_many(%s)", (1,))
    with pytest.raises(errors.InvalidTransactionTermination), wire.transaction():
        wire.execute("call wire_many(%s)", (1,))
    with pytest.raises(errors.FeatureNotSupported, match="the service's own"):
        wire.execute("begin; create table wire_prep (n int); prepare transaction 'x'")
    assert value(wire, "select 1") == 1


@since(18)
def test_code_with_the_extended_protocol(tunnel: Tunnel, org_sql: Sql) -> None:
    """As drivers send it that prepare everything, or what comes often. It runs in one transaction, too."""
    org_sql("create table wire_code (n int)")
    org_sql("create procedure wire_next(inout n int) language plpgsql as $$ begin n := n + 1; end $$")
    org_sql(
        "create procedure wire_twice() language plpgsql as"
        " $$ begin insert into wire_code values (-1); commit; insert into wire_code values (-2); end $$"
    )
    with tunnel.connect() as often, tunnel.connect(prepare_threshold=0) as always:
        for connection in (often, always):
            for number in range(8):
                connection.execute("do $$ begin insert into wire_code values (1); end $$")
                for steps in ("vacuum wire_code", "analyze", "reindex table wire_code"):
                    connection.execute(steps)
                    assert value(connection, "show transaction_isolation") == "serializable"
                assert value(connection, "call wire_next(%s)", number) == number + 1
                with pytest.raises(errors.InvalidTransactionTermination):
                    connection.execute("call wire_twice()")
            connection.execute("deallocate all")
            assert value(connection, "call wire_next(%s)", 1) == 2
            with connection.transaction():
                assert value(connection, "call wire_next(%s)", 1) == 2
        with always.pipeline():
            rows = [always.execute("call wire_next(%s)", (number,)) for number in range(3)]
            always.execute("insert into wire_code values (2)")
        assert [row.fetchone() for row in rows] == [(1,), (2,), (3,)]
    assert org_sql.rows("select n, count(*) from wire_code group by n order by n", row_mode="arrays") == [
        [1, 16],
        [2, 1],
    ]


def levels(notices: set[str]) -> set[str]:
    """What the function has told; the engine warns of tables that are not the client's."""
    return {notice for notice in notices if not notice.startswith("WARNING")}


def test_what_works_in_steps_takes_no_room_among_serializable_transactions(wire: Connection) -> None:
    """So it may have any number of them. Only the answers to the client's own statements come to it."""
    wire.execute("create table wire_steps (n int)")
    wire.execute("insert into wire_steps values (1), (2)")
    wire.execute(
        "create function wire_told(n int) returns int immutable language plpgsql as"
        " $$ begin raise notice '%', current_setting('transaction_isolation'); return n; end $$"
    )
    wire.execute("create index wire_steps_told on wire_steps (wire_told(n))")
    notices: set[str] = set()
    wire.add_notice_handler(lambda told: notices.add(f"{told.severity} {told.message_primary}"))
    for sql in ("vacuum", "VACUUM (ANALYZE) wire_steps;", "analyze", "reindex table wire_steps", "cluster"):
        assert wire.execute(sql.encode()).statusmessage == sql.split()[0].upper()
        assert value(wire, "show transaction_isolation") == "serializable"
    assert levels(notices) == {"NOTICE repeatable read"}
    notices.clear()
    both = wire.execute("analyze wire_steps; show transaction_isolation")
    assert both.nextset()
    assert both.fetchone() == ("serializable",)
    assert levels(notices) == {"NOTICE serializable"}
    with pytest.raises(errors.UndefinedTable):
        wire.execute("vacuum wire_nowhere")
    wire.execute("set default_transaction_isolation = 'read committed'")
    wire.execute("vacuum wire_steps")
    assert value(wire, "show transaction_isolation") == "read committed"
    with pytest.raises(errors.ActiveSqlTransaction), wire.transaction():
        wire.execute("vacuum")
    assert value(wire, "select count(*) from wire_steps") == 2


def test_a_vacuum_that_is_cancelled(tunnel: Tunnel, wire: Connection, organization: Organization) -> None:
    """The session has the level that it had."""
    wire.execute("create table wire_held (n int)")
    with tunnel.connect(application_name="by hand") as connection, wire.transaction():
        wire.execute("lock table wire_held")
        vacuuming, failure = run_aside(connection, "vacuum wire_held")
        eventually(lambda: any(row[1] == "active" and row[2] == "relation" for row in backends(organization)))
        connection.cancel_safe()
        vacuuming.join(20)
        assert isinstance(failure[0], errors.QueryCanceled)
        assert value(connection, "show transaction_isolation") == "serializable"


def test_a_transaction_that_the_engine_cannot_check_any_more_fails(tunnel: Tunnel, org_sql: Sql) -> None:
    """After more others have begun than the engine remembers. At a weaker level nothing is checked, and it goes on."""
    org_sql("create table wire_age (n int)")
    with tunnel.connect(autocommit=False) as old, tunnel.connect() as weak, tunnel.connect() as many:
        weak.execute("begin isolation level repeatable read")
        for connection in (old, weak):
            connection.execute("select * from wire_age")
        for _ in range(13):
            many.execute(b"select 1;" + 950 * b"commit;")
        eventually(lambda: _conflicts(old))
        old.rollback()
        assert value(old, "select count(*) from wire_age") == 0
        assert value(weak, "select count(*) from wire_age") == 0


def _conflicts(connection: Connection) -> bool:
    try:
        connection.execute("select 1")
    except errors.SerializationFailure:
        return True
    return False


LAZILY = "set synchronous_commit = off"
SHOWN = "select current_setting('synchronous_commit') as level"


def test_what_was_answered_is_on_disk(wire: Connection, tunnel: Tunnel, org_sql: Sql) -> None:
    """Whatever a client sets: it is on again when the transaction commits, which a trigger that is deferred sees."""
    org_sql("create table wire_lazy (n int)")
    org_sql(
        "create function wire_commits() returns trigger language plpgsql as"
        " $$ begin raise notice 'commits %', current_setting('synchronous_commit'); return new; end $$"
    )
    org_sql(
        "create constraint trigger wire_commits after insert on wire_lazy deferrable initially deferred"
        " for each row execute function wire_commits()"
    )
    insert = "insert into wire_lazy values (1)"
    with tunnel.connect(prepare_threshold=0) as always:
        check_commits(wire, insert)
        check_commits(always, insert)


def check_commits(connection: Connection, insert: str) -> None:
    notices: list[str] = []
    connection.add_notice_handler(lambda told: notices.append(str(told.message_primary)))
    connection.execute(LAZILY.encode())
    connection.execute(insert.encode())
    connection.execute("begin")
    connection.execute(LAZILY.replace("set", "set local").encode())
    connection.execute(insert.encode())
    connection.execute("commit")
    connection.execute(f"with a as (select set_config('synchronous_commit', 'off', false)) {insert}".encode())
    with connection.transaction():
        connection.execute(insert.encode())
        connection.execute(LAZILY.encode())
    connection.execute(f"{LAZILY}; {insert}".encode(), prepare=False)
    with connection.pipeline():
        for sql in ("begin", LAZILY, insert, "commit", insert):
            connection.execute(sql.encode())
    assert notices == 7 * ["commits on"]
    assert value(connection, SHOWN) == "on"
    with pytest.raises(errors.FeatureNotSupported):
        connection.execute(f"begin; {LAZILY}; {insert}; commit; select 1".encode(), prepare=False)


# -- ends -------------------------------------------------------------------------------------------------------------


def test_a_client_that_leaves_in_the_middle(service: Service, organization: Organization) -> None:
    """Of a statement, of a transaction and of rows that it sends: nothing is left in the engine."""
    for sql in ("select pg_sleep(60)", "begin; select 1", "copy (select 1 from generate_series(1, 1e9)) to stdout"):
        client = Hand(service)
        client.start(organization.key)
        client.send(query(sql))
        eventually(lambda: any(row[1] in ("active", "idle in transaction") for row in backends(organization)))
        client.websocket.socket.close()
        eventually(lambda: not backends(organization))


def test_a_database_that_is_reset_lets_go_of_its_clients(tunnel: Tunnel, organization: Organization) -> None:
    organization.control.post("/v1/databases", {"name": "wire-reset"})
    with tunnel.connect("wire-reset") as connection:
        connection.execute("create table gone (n int)")
        answer = organization.control.sql(database="wire-reset").client.post("/admin/reset")
        assert answer.status_code == 200, answer.text
        with pytest.raises(psycopg.OperationalError) as ended:
            connection.execute("select 1")
        assert ended.value.sqlstate in (None, "57P01")
    with tunnel.connect("wire-reset") as connection, pytest.raises(errors.UndefinedTable):
        connection.execute("select * from gone")


def test_the_engine_is_killed_under_it(tunnel: Tunnel, organization: Organization) -> None:
    with tunnel.connect(application_name="by hand") as connection:
        value(connection, "select 1")
        with psycopg.connect(organization.control.service.server_of(database_of(organization))) as outside:
            outside.execute("select pg_terminate_backend(%s)", [backends(organization)[0][0]])
        with pytest.raises(psycopg.OperationalError) as ended:
            connection.execute("select 1")
        assert ended.value.sqlstate in (None, "57P01")


def test_it_is_counted_and_audited(service: Service, organization: Organization, tunnel: Tunnel) -> None:
    before = scrape(service)
    with tunnel.connect() as connection:
        value(connection, "select repeat('x', 10000)")
        assert scrape(service).value("wire_connections_open") >= 1
    after = scrape(service)
    for name, least in (("wire_connections_total", 1), ("wire_statements_total", 1)):
        assert after.value(name) - before.value(name) >= least
    out = "wire_bytes_total", {"direction": "out"}
    assert after.value(out[0], **out[1]) - before.value(out[0], **out[1]) > 10_000
    eventually(
        lambda: (
            {"wire.open", "wire.close"}
            <= {entry["action"] for entry in organization.control.get("/v1/audit", limit=50)["items"]}
        )
    )


# -- by hand ----------------------------------------------------------------------------------------------------------


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


def query(sql: str) -> bytes:
    return message(b"Q", sql.encode() + b"\0")


def start_packet(*names_and_values: str, version: int = 3 << 16) -> bytes:
    body = b"".join(f"{part}\0".encode() for part in names_and_values) + b"\0"
    return struct.pack(">ii", len(body) + 8, version) + body


class Hand:
    """A client that speaks the protocol by hand."""

    def __init__(self, service: Service) -> None:
        self.websocket: ClientConnection = open_websocket(service)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.websocket.send(data)

    def start(self, key: str, *more: str, version: int = 3 << 16) -> list[tuple[str, bytes]]:
        """Everything in one message, as Neon's driver does it."""
        self.send(start_packet("user", "x", "application_name", "by hand", *more, version=version) + password(key))
        return self.until("Z")

    def next(self) -> tuple[str, bytes]:
        while len(self._buffer) < 5 or len(self._buffer) < 1 + struct.unpack_from(">i", self._buffer, 1)[0]:
            data = self.websocket.recv(20)
            assert isinstance(data, bytes)
            self._buffer += data
        length = struct.unpack_from(">i", self._buffer, 1)[0]
        got, self._buffer = self._buffer[: length + 1], self._buffer[length + 1 :]
        return chr(got[0]), got[5:]

    def skip(self, answer: bytes) -> None:
        """Skip such bytes at the start, which are no messages."""
        while not self._buffer.strip(answer):
            data = self.websocket.recv(20)
            assert isinstance(data, bytes)
            self._buffer += data
        self._buffer = self._buffer.lstrip(answer)

    def until(self, kind: str) -> list[tuple[str, bytes]]:
        got = [self.next()]
        while got[-1][0] != kind:
            got.append(self.next())
        return got

    def last_words(self) -> bytes:
        """The error with which the service ends the connection."""
        got: list[tuple[str, bytes]] = []
        try:
            while True:
                got.append(self.next())
        except ConnectionClosed:
            pass
        assert got, "it was closed without a word"
        assert got[-1][0] == "E", got[-1]
        assert b"FATAL" in got[-1][1]
        return got[-1][1]


def password(key: str) -> bytes:
    return message(b"p", key.encode() + b"\0")


@pytest.fixture
def hand(service: Service) -> Iterator[Hand]:
    client = Hand(service)
    yield client
    client.websocket.close()


PARSE_ONLY = b"\0select 1\0\0\0"
"""The body of a Parse: no name, a text, no types."""


def test_a_text_behind_what_was_only_prepared(service: Service, hand: Hand) -> None:
    """asyncpg prepares without a Sync, and sends a text then. It gets what the engine itself would answer."""
    hand.start(service.key)
    describe, flush = message(b"D", b"Ss\0"), message(b"H", b"")
    hand.send(parse(b"s", b"select 1 as a") + describe + flush)
    assert [kind for kind, _ in hand.until("T")] == ["1", "t", "T"]
    hand.send(query("select 2 as b"))
    assert [kind for kind, _ in hand.until("Z")] == ["T", "D", "C", "Z"]
    hand.send(run_prepared(b"s"))
    assert [kind for kind, _ in hand.until("Z")] == ["2", "D", "C", "Z"]
    hand.send(parse(b"t", b"select 1 as c") + message(b"D", b"St\0") + query("begin"))
    assert [kind for kind, _ in hand.until("Z")] == ["1", "t", "T", "C", "Z"]
    hand.send(parse(b"u", b"select nothing") + query("select 1") + query("select 2") + SYNC + query("rollback"))
    assert [kind for kind, _ in hand.until("Z")] == ["E", "Z"]
    assert [kind for kind, _ in hand.until("Z")] == ["C", "Z"]
    hand.send(run_prepared(b"s")[: -len(SYNC)] + query("select 2"))
    assert b"08P01" in hand.last_words()


def test_to_parse_is_counted_and_refused_as_a_statement_is(service: Service, hand: Hand) -> None:
    """So is a Sync alone: each begins or ends a transaction. What follows a refusal up to the Sync is skipped."""
    tiny = new_organization(service, "tiny")
    hand.start(tiny.key)
    refused = 0
    for _ in range(3):
        hand.send((message(b"P", PARSE_ONLY) + message(b"S", b"")) * 20)
        for _ in range(20):
            refused += any(kind == "E" and b"53400" in body for kind, body in hand.until("Z"))
    assert refused
    hand.send(message(b"P", PARSE_ONLY) * 3 + message(b"B", b"\0" * 8) + message(b"S", b"") * 2)
    assert [[kind for kind, _ in hand.until("Z")] for _ in range(2)] == [["E", "Z"], ["E", "Z"]]


def test_a_failed_transaction_is_no_way_around_the_quota(service: Service, hand: Hand) -> None:
    """Only its end, and nothing behind it, is taken without payment."""
    tiny = new_organization(service, "tiny")
    database = database_of(tiny)
    hand.start(tiny.key)
    hand.send(query("create table paid (n int)") + query("begin") + query("select 1/0"))
    for _ in range(3):
        hand.until("Z")
    around = "rollback; insert into paid values (1); commit; begin; select 1/0"
    for _ in range(60):
        hand.send(query(around))
        hand.until("Z")
    hand.send(query("rollback"))
    assert hand.until("Z")[-1] == ("Z", b"I")
    with engine(service, database) as outside:
        row = outside.execute("select count(*) from paid").fetchone()
    assert row is not None
    assert row[0] < 10, "the tier allows no more requests in a minute"


def parse(name: bytes, sql: bytes) -> bytes:
    return message(b"P", name + b"\0" + sql + b"\0\0\0")


def run_prepared(name: bytes) -> bytes:
    """Bind and Execute, without parameters."""
    return message(b"B", b"\0" + name + b"\0" + b"\0" * 6) + message(b"E", b"\0" * 5) + SYNC


SYNC = message(b"S", b"")
COMMITS = b"do $$ begin for i in 1..3 loop insert into wire_many values (1); commit; end loop; end $$"


@pytest.mark.parametrize("name", [b"", b"s"])
def test_a_statement_stays_what_it_is_until_the_engine_has_another(
    hand: Hand, organization: Organization, org_sql: Sql, name: bytes
) -> None:
    """A Parse that the engine refuses, or skips behind an error, changes nothing."""
    org_sql("create table if not exists wire_many (n int)")
    hand.start(organization.key)
    for sent in (
        parse(name, COMMITS) + SYNC,
        run_prepared(b"unknown")[: -len(SYNC)] + parse(name, b"select 1") + SYNC,
        parse(b"s", b"select 1") + SYNC if name else SYNC,
        run_prepared(name),
    ):
        hand.send(sent)
        got = hand.until("Z")
    assert b"0A000" in got[-2][1] or b"2D000" in got[-2][1]
    assert org_sql.value("select count(*) from wire_many") == 0
    if name:
        hand.send(message(b"C", b"S" + name + b"\0") + SYNC)
        hand.until("Z")
    hand.send(parse(name, b"select 1") + SYNC)
    hand.until("Z")
    hand.send(run_prepared(name))
    assert [kind for kind, _ in hand.until("Z")] == ["2", "D", "C", "Z"]


@pytest.mark.parametrize(
    ("name", "refused", "bound"),
    [
        (b"s", message(b"C", b"SsX"), b"s"),
        (b"", message(b"P", b"\0select 1\0\0\0junk"), b""),
        (b"", message(b"P", b"\0select '\xff'\0\0\0"), b""),
        (b"a" * 63 + b"X", b"", b"a" * 63 + b"Y"),
        (b"\xe9", query("set client_encoding = utf8"), b"\xc3\xa9"),
    ],
)
def test_a_name_of_code_cannot_be_hidden(
    hand: Hand, organization: Organization, org_sql: Sql, name: bytes, refused: bytes, bound: bytes
) -> None:
    """By what the engine refuses, or by other bytes that the engine takes for the same name."""
    org_sql("create table if not exists wire_many (n int)")
    hand.start(organization.key)
    hand.send(query("set client_encoding = latin1" if name == b"\xe9" else "select 1"))
    hand.until("Z")
    hand.send(parse(name, COMMITS) + SYNC)
    hand.until("Z")
    hand.send(refused if refused[:1] == b"Q" else refused + SYNC)
    hand.until("Z")
    hand.send(run_prepared(bound))
    got = hand.until("Z")
    assert any(code in got[-2][1] for code in (b"0A000", b"2D000", b"26000"))
    assert org_sql.value("select count(*) from wire_many") == 0


@since(18)
def test_code_has_any_number_of_names(hand: Hand, organization: Organization, org_sql: Sql) -> None:
    """And any form of them; it commits under none."""
    org_sql("create table if not exists wire_many (n int)")
    before = org_sql.value("select count(*) from wire_many")
    hand.start(organization.key)
    names = [b"n%d" % number for number in range(150)] + ["é".encode(), b"a b", b"x" * 63]
    for name in names:
        hand.send(parse(name, b"do $$ begin perform 1; end $$") + run_prepared(name))
        assert [kind for kind, _ in hand.until("Z")] == ["1", "2", "C", "Z"], name
    for name in (b"last", "ü".encode()):
        hand.send(parse(name, COMMITS) + parse(b"plain", b"select 1") + SYNC)
        hand.until("Z")
        hand.send(run_prepared(name))
        assert b"2D000" in hand.until("Z")[-2][1]
        hand.send(run_prepared(b"plain") + message(b"C", b"Splain\0") + SYNC)
        assert [kind for kind, _ in hand.until("Z")] == ["2", "D", "C", "Z"]
        hand.until("Z")
    assert org_sql.value("select count(*) from wire_many") == before


def close(name: bytes) -> bytes:
    return message(b"C", b"S" + name + b"\0")


QUIET = b"do $$ begin perform 1; end $$"


def test_names_of_code_that_were_closed_are_forgotten(hand: Hand, organization: Organization, org_sql: Sql) -> None:
    """However many there were. Where too many are remembered a VACUUM runs only behind its own Parse."""
    org_sql("create table if not exists wire_many (n int)")
    hand.start(organization.key)
    for number in range(300):
        name = b"call_%d" % number
        for sent, kinds in (
            (parse(name, QUIET) + message(b"D", b"S" + name + b"\0") + SYNC, "1tnZ"),
            (run_prepared(name), "2CZ" if newer_than(17) else "EZ"),
            (close(name) + SYNC, "3Z"),
        ):
            hand.send(sent)
            assert "".join(kind for kind, _ in hand.until("Z")) == kinds
    hand.send(parse(b"v", b"vacuum wire_many") + SYNC)
    hand.until("Z")
    hand.send(run_prepared(b"v"))
    assert [kind for kind, _ in hand.until("Z")] == ["2", "C", "Z"]


@since(18)
def test_a_driver_that_names_every_call_anew(tunnel: Tunnel, org_sql: Sql) -> None:
    """It keeps a few of them, and closes the others; beside them it prepares a VACUUM."""
    org_sql("create table if not exists wire_many (n int)")
    with tunnel.connect() as connection:
        connection.prepare_threshold, connection.prepared_max = 0, 5
        connection.execute("create or replace procedure wire_noted(n int) language sql begin atomic select n; end")
        for number in range(300):
            connection.execute(f"call wire_noted(%s) /* {number} */", (number,))
        for _ in range(3):
            connection.execute("vacuum wire_many")
        with connection.pipeline():
            answers = [connection.execute("select %s::int", (number,)) for number in range(50)]
        assert [answer.fetchone() for answer in answers] == [(number,) for number in range(50)]
        connection.execute("drop procedure wire_noted")


FLUSH = message(b"H", b"")


@pytest.mark.parametrize(
    "sent",
    [
        [parse(b"s", COMMITS) + SYNC, close(b"s") + parse(b"s", COMMITS) + SYNC],
        [
            parse(b"s", COMMITS) + SYNC,
            close(b"s") + parse(b"s", b"select 1") + close(b"s") + parse(b"s", COMMITS) + SYNC,
        ],
        [parse(b"s", COMMITS) + SYNC, close(b"s") + parse(b"t", b"select 1") + FLUSH + parse(b"s", COMMITS) + SYNC],
        [parse(b"s", COMMITS) + SYNC, close(b"s") + SYNC + parse(b"s", COMMITS) + SYNC],
        [parse(b"s", COMMITS) + SYNC, SYNC + close(b"s") + parse(b"s", COMMITS) + SYNC],
        [parse(b"s", COMMITS) + SYNC, run_prepared(b"no")[: -len(SYNC)] + close(b"s") + SYNC + close(b"t") + SYNC],
        [parse(b"s", COMMITS) + SYNC, parse(b"x", b"nothing") + close(b"s") + SYNC],
        [parse(b"s", COMMITS) + SYNC, message(b"C", b"Ps\0") + SYNC],
        [parse(b"s", COMMITS) + SYNC, message(b"C", b"Ss\0\0") + SYNC],
        [parse(b"s", COMMITS) + SYNC, message(b"C", b"Ss\0junk") + close(b"t") + SYNC + close(b"t") + SYNC],
        [parse(b"s", COMMITS) + SYNC, message(b"C", b"SS\0") + close(b'"s"') + close(b" s") + SYNC],
        [parse(b"s", COMMITS) + SYNC, parse(b"v", b"vacuum") + close(b"s") + run_prepared(b"no"), SYNC],
        [
            parse(b"s", COMMITS) + SYNC,
            parse(b"x", b"nothing") + close(b"s") + parse(b"v", b"vacuum") + run_prepared(b"v"),
        ],
        [query("begin"), parse(b"s", COMMITS) + SYNC, close(b"s") + parse(b"s", COMMITS) + SYNC, query("rollback")],
        [query("begin; select 1/0"), close(b"s") + SYNC, query("rollback"), parse(b"s", COMMITS) + SYNC],
        [parse(b"s", b"select 1") + SYNC, close(b"s") + parse(b"s", COMMITS) + SYNC, parse(b"s", b"select 1") + SYNC],
        [parse(b"s", COMMITS) + SYNC, close(b"s") + SYNC, parse(b"s", COMMITS) + SYNC, parse(b"s", b"select 1") + SYNC],
        [parse(b"s", COMMITS) + SYNC, 4 * (close(b"t") + SYNC) + parse(b"s", b"select 1") + close(b"t") + SYNC],
        [query("prepare s as select 1"), close(b"s") + parse(b"s", COMMITS) + SYNC, query("prepare s as select 1")],
    ],
)
def test_no_close_hides_a_name_of_code(hand: Hand, organization: Organization, org_sql: Sql, sent: list[bytes]) -> None:
    """What is prepared behind a Close stays known, and so does what a Close did not reach."""
    org_sql("create table if not exists wire_many (n int)")
    org_sql("truncate wire_many")
    hand.start(organization.key)
    for each in sent:
        hand.send(each)
        for _ in range(max(each.count(SYNC), 1)):
            hand.until("Z")
    hand.send(run_prepared(b"s"))
    got = hand.until("Z")
    assert any(code in got[-2][1] for code in (b"0A000", b"2D000", b"26000")), got
    assert org_sql.value("select count(*) from wire_many") == 0


def test_no_client_can_make_what_stands_for_a_refusal(service: Service, hand: Hand) -> None:
    """Its name is new each time; what code can read of the service's own statements is not it."""
    hand.start(new_organization(service, tier="free").key)
    hand.send(query("do $$ begin raise notice '%', current_query(); end $$"))
    [notice] = [body for kind, body in hand.until("Z") if kind == "N"]
    assert b"refused" not in notice
    names = ["tuplegate_refused", *(f"tuplegate_refused_{number}" for number in range(1, 400))]
    hand.send(query(";".join(f"prepare \"{each}\" as select 'mine'" for each in names)))
    hand.until("Z")
    refused = 0
    for _ in range(500):  # 200 in a minute are allowed, and a minute may end in between
        hand.send(query("select 1"))
        answer = b"".join(body for _, body in hand.until("Z"))
        assert b"mine" not in answer
        refused += b"53400" in answer
        if refused > 20:
            break
    assert refused


def test_a_bind_without_names_is_the_engines_to_refuse(hand: Hand, organization: Organization) -> None:
    hand.start(organization.key)
    hand.send(parse(b"s", b"vacuum") + SYNC)
    hand.until("Z")
    for body in (b"", b"x"):
        hand.send(message(b"B", body) + SYNC)
        assert b"08P01" in hand.until("Z")[-2][1]


@since(18)
def test_the_answers_to_code_are_the_engines(hand: Hand, organization: Organization, org_sql: Sql) -> None:
    """Whatever comes before it in the same pipeline, and where it fails."""
    org_sql("create table if not exists wire_many (n int)")
    hand.start(organization.key)
    close, describe = message(b"C", b"Sc\0"), message(b"D", b"Sc\0")
    quiet = parse(b"c", b"do $$ begin perform 1; end $$")
    for sent, kinds, tag in (
        (quiet + describe + run_prepared(b"c"), "1tn2CZ", b"DO"),
        (close + parse(b"d", b"select 1") + quiet + describe + run_prepared(b"c"), "311tn2CZ", b"DO"),
        (message(b"C", b"Sx\0") + run_prepared(b"c"), "32CZ", b"DO"),
        (close + parse(b"c", COMMITS) + run_prepared(b"c"), "312EZ", b"2D000"),
        (parse(b"", b"select nothing") + run_prepared(b"c"), "EZ", b"42703"),
        (run_prepared(b"c") + close + quiet + SYNC, "2EZ31Z", b""),
        (run_prepared(b"c") + run_prepared(b"c"), "2CZEZ", b"0A000"),
        (2 * run_prepared(b"c")[: -len(SYNC)] + SYNC, "2C2CZ", b"DO"),
        (run_prepared(b"d")[: -len(SYNC)] + run_prepared(b"c"), "2DC2CZ", b"DO"),
    ):
        hand.send(sent)
        got = hand.until("Z")
        while len(got) < len(kinds):
            got += hand.until("Z")
        assert "".join(kind for kind, _ in got if kind not in "N") == kinds
        assert tag in got[-2][1]
    assert org_sql.value("select count(*) from wire_many") == 0


def test_the_answers_to_what_works_in_steps_are_the_engines(
    hand: Hand, organization: Organization, org_sql: Sql
) -> None:
    """In the extended protocol, too; and nothing runs at its weaker level beside it."""
    org_sql("create table if not exists wire_many (n int)")
    org_sql(
        "create or replace function wire_level(n int) returns int immutable language plpgsql as"
        " $$ begin raise notice '%', current_setting('transaction_isolation'); return n; end $$"
    )
    org_sql("drop index if exists wire_level_index")
    org_sql("create index wire_level_index on wire_many (wire_level(n))")
    org_sql("insert into wire_many values (1)")
    hand.start(organization.key)
    describe, level = message(b"D", b"Sv\0"), parse(b"l", b"select 'at ' || current_setting('transaction_isolation')")
    for sent, kinds, tag in (
        (level + parse(b"", b"select 1") + SYNC, "11Z", b""),
        (parse(b"v", b"vacuum wire_many") + describe + run_prepared(b"v"), "1tn2CZ", b"VACUUM"),
        (run_prepared(b""), "2DCZ", b"SELECT"),
        (parse(b"", b"reindex table wire_many") + run_prepared(b""), "12CZ", b"REINDEX"),
        (run_prepared(b"v")[: -len(SYNC)] + run_prepared(b"l"), "2CEZ", b"0A000"),
        (run_prepared(b"l")[: -len(SYNC)] + run_prepared(b"v"), "2DCEZ", b"0A000"),
        (parse(b"", b"vacuum wire_nowhere") + run_prepared(b""), "12EZ", b"42P01"),
        (parse(b"", b"vacuum wire_many where") + run_prepared(b""), "EZ", b"42601"),
        (run_prepared(b"v") + run_prepared(b"l"), "2CZ2DCZ", b"SELECT"),
        (run_prepared(b"l"), "2DCZ", b"SELECT"),
    ):
        hand.send(sent)
        got = hand.until("Z")
        while len([kind for kind, _ in got if kind != "N"]) < len(kinds):
            got += hand.until("Z")
        assert "".join(kind for kind, _ in got if kind != "N") == kinds
        assert tag in got[-2][1]
        assert {body for kind, body in got if kind == "D" and b"at " in body} <= {got_level(b"at serializable")}
        told = b"".join(body for kind, body in got if kind == "N")
        assert b"Mserializable" not in told
        assert (b"Mrepeatable read" in told) == (b"reindex" in sent)


def got_level(level: bytes) -> bytes:
    return struct.pack(">hi", 1, len(level)) + level


def test_a_client_that_leaves_with_its_last_statement(hand: Hand, organization: Organization, org_sql: Sql) -> None:
    """What it sent before is run, and answered."""
    org_sql("create table wire_last (n int)")
    hand.start(organization.key)
    hand.send(query("insert into wire_last values (1)") + query("select 7") + message(b"X", b""))
    assert [[kind for kind, _ in hand.until("Z")] for _ in range(2)] == [["C", "Z"], ["T", "D", "C", "Z"]]
    with pytest.raises(ConnectionClosed):
        hand.next()
    assert org_sql.value("select count(*) from wire_last") == 1


def test_a_long_error_in_the_middle_of_rows(hand: Hand, organization: Organization) -> None:
    """Answers are counted on as before."""
    hand.start(organization.key)
    hand.send(query("create temp table t (n int check (n > 0)); copy t from stdin"))
    hand.until("G")
    hand.send(message(b"d", b"x" * 20_000 + b"\n") + message(b"c", b"") + query("select 7"))
    assert hand.until("Z")[-2][0] == "E"
    assert [kind for kind, _ in hand.until("Z")] == ["T", "D", "C", "Z"]


def test_a_start_byte_by_byte(hand: Hand, organization: Organization) -> None:
    """With a question for TLS and one for GSS before it, each answered by one byte."""
    for code in (80877103, 80877104):
        hand.send(struct.pack(">ii", 8, code))
        assert hand.websocket.recv(20) == b"N"
    whole = start_packet("user", "x", "database", "main") + password(organization.key) + query("select 42")
    for byte in whole:
        hand.send(bytes([byte]))
    assert [kind for kind, _ in hand.until("Z")][:2] == ["R", "R"]
    assert [kind for kind, _ in hand.until("Z")] == ["T", "D", "C", "Z"]


def test_a_later_version_is_negotiated(hand: Hand, organization: Organization) -> None:
    got = hand.start(organization.key, "_pq_.novelty", "1", version=3 << 16 | 9)
    assert got[0] == ("v", struct.pack(">ii", 3 << 16 | 2, 1) + b"_pq_.novelty\0")
    (key_data,) = [body for kind, body in got if kind == "K"]
    assert len(key_data) == 4 + 32


def function_call(oid: int, *arguments: int) -> bytes:
    """A call with arguments of type int4, and everything in the binary form."""
    values = b"".join(struct.pack(">ii", 4, argument) for argument in arguments)
    return message(b"F", struct.pack(">ihhh", oid, 1, 1, len(arguments)) + values + struct.pack(">h", 1))


def test_a_function_call(hand: Hand, organization: Organization) -> None:
    """As programs call those of large objects. One that fails is answered like a statement, and the rest goes on."""
    hand.start(organization.key)
    add, divide = 177, 154
    hand.send(function_call(add, 40, 2) + function_call(divide, 1, 0) + query("select 1"))
    assert hand.until("Z") == [("V", struct.pack(">ii", 4, 42)), ("Z", b"I")]
    (kind, body), ready = hand.until("Z")
    assert (kind, ready) == ("E", ("Z", b"I"))
    assert b"C22012\0" in body
    assert [kind for kind, _ in hand.until("Z")] == ["T", "D", "C", "Z"]


def test_a_wrong_secret_cancels_nothing(service: Service, hand: Hand, organization: Organization) -> None:
    (key_data,) = [body for kind, body in hand.start(organization.key) if kind == "K"]
    (number,) = struct.unpack_from(">i", key_data)
    hand.send(query("select pg_sleep(0.5)"))
    other = Hand(service)
    other.send(struct.pack(">iii", 16, 80877102, number) + b"\0\0\0\0")
    with pytest.raises(ConnectionClosed):
        other.websocket.recv(20)
    assert [kind for kind, _ in hand.until("Z")] == ["T", "D", "C", "Z"]


@pytest.mark.parametrize(("wrong", "is_cancelled"), [(WRONG_MAX - 1, True), (WRONG_MAX, False)])
def test_a_secret_cannot_be_found_by_trying(
    service: Service, hand: Hand, organization: Organization, wrong: int, is_cancelled: bool
) -> None:
    """After some wrong ones the right one does nothing either; it has only four bytes in version 3.0."""
    (key_data,) = [body for kind, body in hand.start(organization.key) if kind == "K"]
    secrets = [struct.pack(">i", number) for number in range(wrong)] + [key_data[4:]]
    hand.send(query("select pg_sleep(15)" if is_cancelled else "select pg_sleep(3)"))
    eventually(lambda: any(row[2] == "PgSleep" for row in backends(organization)))
    for secret in secrets:
        other = Hand(service)
        other.send(struct.pack(">ii", 16, 80877102) + key_data[:4] + secret)
        with pytest.raises(ConnectionClosed):
            other.websocket.recv(20)
    assert [kind for kind, _ in hand.until("Z")] == (["T", "E", "Z"] if is_cancelled else ["T", "D", "C", "Z"])


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (struct.pack(">ii", 2**30, 3 << 16), b"8 to 10000"),
        (struct.pack(">ii", -8, 3 << 16), b"8 to 10000"),
        (start_packet(*(3000 * ["a", "b"])), b"8 to 10000"),
        (start_packet("user", "x", *[f"{part}{n}" for n in range(900) for part in ("n", "v")]), b"not taken"),
        (start_packet("user", "x", "replication", "true"), b"replication"),
        (start_packet("user", "x", version=2 << 16), b"0A000"),
        (3 * struct.pack(">ii", 8, 80877103), b"again and again"),
        (start_packet("user", "x") + query("select 1"), b"password"),
        (start_packet("user", "x") + b"p" + struct.pack(">i", 2**30), b"5 to 1000"),
        (start_packet("user", "x") + password("guess"), b"28P01"),
        (b"GET / HTTP/1.1\r\n\r\n", b"8 to 10000"),
    ],
)
def test_garbage_at_the_start(hand: Hand, sent: bytes, says: bytes) -> None:
    hand.send(sent)
    hand.skip(b"N")
    assert says in hand.last_words()


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"Q" + struct.pack(">i", 2**31 - 1), b"54000"),
        (b"Q" + struct.pack(">i", -1), b"08P01"),
        (b"?????", b"08P01"),
        (password("again"), b"08P01"),
    ],
)
def test_garbage_after_the_start(hand: Hand, organization: Organization, sent: bytes, says: bytes) -> None:
    hand.start(organization.key)
    hand.send(sent)
    assert says in hand.last_words()
    eventually(lambda: not backends(organization))


def test_bystanders_are_not_kept_waiting(hand: Hand, organization: Organization, org_sql: Sql) -> None:
    """While a client sends a thousand statements in one frame."""
    hand.start(organization.key)
    hand.send(1000 * query("select 1"))
    assert org_sql.value("select 1") == 1
    for _ in range(1000):
        assert [kind for kind, _ in hand.until("Z")] == ["T", "D", "C", "Z"]
