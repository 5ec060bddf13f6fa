"""Who listens on `GET /v2` takes no place among the engine's serializable transactions by that, and nobody listens
unseen."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from tests.cases import each_of
from tests.control import Organization, new_organization
from tests.http.test_serializable_pool import skew, slots
from tests.http.test_wire import (
    SYNC,
    Connection,
    Hand,
    copy_in,
    function_call,
    message,
    parse,
    query,
    run_prepared,
    value,
)
from tests.needs import needs
from tests.service import Service, Sql
from tests.tunnel import Tunnel
from tests.waiting import eventually

pytestmark = needs("postgresql")
"""Only that protocol is passed on."""

__all__ = ["slots"]

LISTENERS = 7


@pytest.fixture
def told(organization: Organization) -> Sql:
    """A database with code that notifies, and code that listens."""
    sql = organization.control.sql()
    sql(
        "create or replace function tell() returns void language sql as"
        " $$ select pg_notify('told', clock_timestamp()::text) $$"
    )
    sql(
        "create or replace function hear() returns text language plpgsql as"
        " $$ begin execute 'lis' || 'ten told'; return 'heard'; end $$"
    )
    sql("create table if not exists wire_heard (n int)")
    sql("create table if not exists wire_copy (n int)")
    sql(
        "create or replace function hear_row() returns trigger language plpgsql as"
        " $$ begin perform hear(); return new; end $$"
    )
    sql("create or replace trigger hears after insert on wire_heard for each row execute function hear_row()")
    sql("create table if not exists wire_late (n int)")
    sql("drop trigger if exists late on wire_late")
    sql(
        "create constraint trigger late after insert on wire_late deferrable initially deferred"
        " for each row execute function hear_row()"
    )
    return sql


@pytest.fixture
def tunnel(service: Service, organization: Organization) -> Iterator[Tunnel]:
    with Tunnel(service, organization.key) as opened:
        yield opened


def read_all(connection: Connection, done: threading.Event, got: list[int]) -> None:
    while not done.is_set():
        got.extend(1 for _ in connection.notifies(timeout=0.2))


def test_to_read_notifications_takes_no_place_in_the_pool(
    service: Service, sql: Sql, slots: int, told: Sql, tunnel: Tunnel
) -> None:
    """They come from code, so that no text names them; the write skew would be another tenant's."""
    done = threading.Event()
    got: list[int] = []
    with ExitStack() as closing:
        listeners = [closing.enter_context(tunnel.connect()) for _ in range(LISTENERS)]
        for listener in listeners:
            listener.execute("listen told")
        threads = [threading.Thread(target=read_all, args=(listener, done, got)) for listener in listeners]
        for thread in threads:
            thread.start()

        def notify() -> None:
            with tunnel.connect() as notifier:
                for _ in range(slots // LISTENERS + 100):
                    notifier.execute("select tell()")

        try:
            answer = skew(service, sql, notify)
        finally:
            eventually(lambda: len(got) >= slots)
            done.set()
            for thread in threads:
                thread.join()
    assert answer["success"], answer
    assert answer["results"][0]["rows"] == [{"seen": 1}]


def test_who_listens_is_serializable_where_it_runs_something(tunnel: Tunnel, told: Sql) -> None:
    """Or what else it has chosen. It reads notifications at a level that takes no place."""
    with tunnel.connect() as connection, tunnel.connect(prepare_threshold=0) as prepared:
        for listener in (connection, prepared):
            listener.execute("listen told")
            for _ in range(3):
                assert value(listener, "show default_transaction_isolation") == "serializable"
                assert value(listener, "select current_setting('transaction_isolation')") == "serializable"
            with listener.transaction():
                assert value(listener, "show transaction_isolation") == "serializable"
            with pytest.raises(psycopg.errors.DivisionByZero), listener.transaction():
                listener.execute("select 1/0")
            both = listener.execute("begin; rollback; show transaction_isolation", prepare=False)
            while both.nextset():
                pass
            assert both.fetchone() == ("serializable",)
            listener.execute("vacuum wire_heard")
            assert value(listener, "show transaction_isolation") == "serializable"
            listener.execute("set default_transaction_isolation = 'read committed'")
            assert value(listener, "show transaction_isolation") == "read committed"
            listener.execute("select tell()")
            assert next(listener.notifies(timeout=20)).channel == "told"
            assert value(listener, "select count(*) from pg_listening_channels()") == 1
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="listens"):
                copy_in(listener, b"1\n")


HEAR = b"select hear()"
FLUSH = message(b"H", b"")
COPY_ROW = message(b"d", b"1\n") + message(b"c", b"")


def prepared(*texts: bytes) -> bytes:
    """Each parsed and run, without a Sync."""
    return b"".join(parse(b"", text) + run_prepared(b"")[: -len(SYNC)] for text in texts)


UNSEEN = {
    "a simple query": query(HEAR.decode()),
    "several statements": query("select 1; select hear(); select 2"),
    "a text that commits and fails": query("select hear(); commit; select 1/0"),
    "a transaction": query("begin") + query(HEAR.decode()) + query("commit"),
    "one that is chained": query("begin; select hear(); commit and chain; select 1") + query("rollback"),
    "code": query("do $$ begin perform hear(); end $$"),
    "DDL": query("create table wire_none as select hear()") + query("drop table wire_none"),
    "in parentheses": query("(select hear())"),
    "with copied rows": query("copy wire_heard from stdin") + COPY_ROW,
    "copied and committed": query("begin; copy wire_heard from stdin; commit") + COPY_ROW,
    "with rows that are refused": query("copy wire_nowhere from stdin") + COPY_ROW,
    "as it commits": query("insert into wire_late values (1)"),
    "as it commits, prepared": prepared(b"insert into wire_late values (1)") + SYNC,
    "as it commits copied rows": query("copy wire_late from stdin") + COPY_ROW,
    "as a cursor is kept": query("declare c cursor with hold for select hear()"),
    "as a cursor is kept, prepared": prepared(b"declare c cursor with hold for select hear()") + SYNC,
    "prepared": prepared(HEAR) + SYNC,
    "prepared, twice": prepared(HEAR, HEAR) + SYNC + prepared(HEAR) + SYNC,
    "prepared, and committed": prepared(b"begin", HEAR, b"commit") + SYNC,
    "prepared, committed and failed": prepared(b"begin", HEAR, b"commit", b"select 1/0") + SYNC,
    "committed in the block of another": query("begin") + prepared(HEAR, b"commit", b"select 1/0") + SYNC,
    "prepared with a name": parse(b"heard", HEAR) + run_prepared(b"heard"),
    "prepared with a name, again": parse(b"heard", HEAR) + SYNC + run_prepared(b"heard") + run_prepared(b"heard"),
    "as it commits, prepared with a name": parse(b"late", b"insert into wire_late values (1)") + run_prepared(b"late"),
    "planned alone": parse(b"", HEAR) + run_prepared(b"")[: -len(SYNC)] + SYNC,
    "copied, prepared": prepared(b"copy wire_heard from stdin") + COPY_ROW + SYNC,
}


@each_of("how", UNSEEN)
def test_nobody_listens_unseen(service: Service, organization: Organization, told: Sql, how: str) -> None:
    """Code can listen without any text that says so. That ends with its transaction."""
    hand = Hand(service)
    hand.start(organization.key)
    hand.send(UNSEEN[how])
    for _ in range(ready_wanted(UNSEEN[how])):
        last = hand.until("Z")[-1]
    if last == ("Z", b"E"):
        hand.send(query("rollback"))
        hand.until("Z")
    hand.send(query("select 'channels: ' || count(*) from pg_listening_channels()"))
    answer = b"".join(body for _, body in hand.until("Z"))
    assert b"channels: 0" in answer, answer
    hand.websocket.close()


def ready_wanted(sent: bytes) -> int:
    """How often the engine says that it is ready."""
    kinds, at = "", 0
    while at < len(sent):
        kinds += chr(sent[at])
        at += 1 + int.from_bytes(sent[at + 1 : at + 5])
    return kinds.count("Q") + kinds.count("S") + kinds.count("F")


def test_what_has_no_name_stays(service: Service, organization: Organization, told: Sql) -> None:
    """What the service sends behind a statement drops neither a statement nor a cursor of the client's."""
    hand = Hand(service)
    hand.start(organization.key)
    hand.send(parse(b"named", b"select 'named'") + run_prepared(b"named"))
    hand.until("Z")
    hand.send(parse(b"", b"select 'nameless'") + SYNC)
    hand.until("Z")
    for name in (b"named", b"", b"named", b""):
        hand.send(run_prepared(name))
        assert (name or b"nameless") in b"".join(body for _, body in hand.until("Z"))
    hand.websocket.close()


@each_of("begin", ("begin", "start transaction", "begin /* ; */"))
def test_a_cursor_without_a_name_stays(service: Service, organization: Organization, told: Sql, begin: str) -> None:
    hand = Hand(service)
    hand.start(organization.key)
    hand.send(parse(b"begins", begin.encode()) + parse(b"counts", b"select 'row ' || g from generate_series(1, 3) g"))
    bound = message(b"B", b"\0counts\0" + bytes(6))
    next_row = message(b"E", b"\0" + (1).to_bytes(4))
    hand.send(run_prepared(b"begins")[: -len(SYNC)] + bound + next_row + SYNC)
    assert b"row 1" in b"".join(body for _, body in hand.until("Z"))
    hand.send(next_row + SYNC)
    assert b"row 2" in b"".join(body for _, body in hand.until("Z"))
    hand.websocket.close()


def test_nobody_listens_unseen_by_a_function_call(service: Service, organization: Organization, told: Sql) -> None:
    oid = told.value("select 'hear'::regproc::oid::int")
    hand = Hand(service)
    hand.start(organization.key)
    hand.send(function_call(oid))
    assert [kind for kind, _ in hand.until("Z")] == ["V", "Z"]
    hand.send(query("select 'channels: ' || count(*) from pg_listening_channels()"))
    assert b"channels: 0" in b"".join(body for _, body in hand.until("Z"))
    hand.websocket.close()


def test_nobody_listens_behind_a_commit_without_a_sync(service: Service, organization: Organization, told: Sql) -> None:
    """The engine would read notifications there, in a transaction of its own, while it waits for the Sync."""
    hand = Hand(service)
    hand.start(organization.key)
    hand.send(prepared(b"begin", HEAR, b"commit") + FLUSH)
    for _ in range(3):
        hand.until("C")
    with new_tunnel(service, organization) as tunnel, tunnel.connect() as other:
        other.execute("select tell()")
    hand.send(SYNC)
    assert [kind for kind, _ in hand.until("Z")] == ["Z"]
    hand.websocket.close()


def test_nobody_listens_behind_a_failure_without_a_sync(
    service: Service, organization: Organization, told: Sql
) -> None:
    """Code listens as the transaction commits, and what follows fails: nothing can be run up to the Sync."""
    hand = Hand(service)
    hand.start(organization.key)
    hand.send(prepared(b"begin", b"insert into wire_late values (1)", b"commit", b"select 1/0") + FLUSH)
    assert b"57P01" in hand.last_words()
    hand = Hand(service)
    hand.start(organization.key)
    hand.send(prepared(b"begin", b"insert into wire_late values (1)", b"commit", b"select 1/0") + SYNC)
    hand.until("Z")
    hand.send(query("select 'channels: ' || count(*) from pg_listening_channels()"))
    assert b"channels: 0" in b"".join(body for _, body in hand.until("Z"))
    hand.websocket.close()


WAITING = {
    "behind a commit": prepared(b"begin", b"select 1", b"commit") + FLUSH,
    "behind a failure": parse(b"", b"selec 1") + FLUSH,
    "behind a Close": message(b"C", b"Sx\0") + FLUSH,
}


@each_of("how", WAITING)
def test_who_listens_does_not_wait_for_a_sync_serializably(
    service: Service, organization: Organization, told: Sql, how: str
) -> None:
    """Outside of a transaction the engine reads notifications there, too. In one it does not."""
    hand = Hand(service)
    hand.start(organization.key)
    hand.send(query("create temp table if not exists t (n int); listen told"))
    hand.until("Z")
    hand.send(WAITING[how])
    if how == "behind a failure":
        assert b"57P01" in hand.last_words()
        return
    hand.until("3" if how == "behind a Close" else "C")
    with new_tunnel(service, organization) as tunnel, tunnel.connect() as other:
        other.execute("select tell()")
    if how == "behind a Close":
        assert hand.next()[0] == "A"
    hand.send(parse(b"", b"select 'at ' || current_setting('transaction_isolation')") + run_prepared(b""))
    got = hand.until("Z")
    assert any(b"at serializable" in body for _, body in got), got
    assert how == "behind a Close" or [kind for kind, _ in got][-2:] == ["A", "Z"], got
    hand.websocket.close()


def test_rows_are_copied_behind_a_pipeline(tunnel: Tunnel, told: Sql) -> None:
    """In the extended protocol, in a session that has prepared a COMMIT."""
    with tunnel.connect() as connection:
        with connection.pipeline():
            for sql in ("begin", "select 1", "commit"):
                connection.execute(sql.encode())
        for _ in range(2):
            with connection.cursor().copy("copy wire_copy from stdin") as copy:
                copy.write(b"1\n")
            with connection.cursor().copy("copy wire_copy (n) from stdin where n < %s", (5,)) as copy:
                copy.write(b"1\n")
        assert value(connection, "select count(*) from wire_copy") >= 4
        assert value(connection, "select count(*) from pg_listening_channels()") == 0


def test_a_query_behind_an_execute_ends_the_connection(service: Service, organization: Organization) -> None:
    """Behind a failure the engine skips it, and nobody could tell whose answer comes."""
    hand = Hand(service)
    hand.start(organization.key)
    hand.send(prepared(b"select 1 / 0") + query("select 1") + SYNC)
    assert b"08P01" in hand.last_words()


def new_tunnel(service: Service, organization: Organization) -> Tunnel:
    return Tunnel(service, organization.key)


def test_the_answers_are_the_engines(service: Service) -> None:
    """Nothing of the service's own statements is seen in them."""
    hand = Hand(service)
    hand.start(new_organization(service).key)
    for sent, kinds in (
        (query(""), "IZ"),
        (query(" ;"), "IZ"),
        (query("select 1"), "TDCZ"),
        (query("unlisten *"), "CZ"),
        (query("unlisten x; select 1"), "CTDCZ"),
        (query("lock table pg_class"), "EZ"),
        (query("begin"), "CZ"),
        (query("select 1"), "TDCZ"),
        (query("unlisten *"), "CZ"),
        (query("commit"), "CZ"),
        (query("create temp table t (n int)"), "CZ"),
        (query("create index concurrently on t (n); -- a comment"), "CZ"),
        (query("discard all"), "CZ"),
        (prepared(b"select 1") + SYNC, "12DCZ"),
        (prepared(b"unlisten *", b"select 1") + SYNC, "12C12DCZ"),
        (3 * (prepared(b"select 1") + SYNC), "12DCZ12DCZ12DCZ"),
        (parse(b"", b"select 1") + message(b"D", b"S\0") + SYNC, "1tTZ"),
        (message(b"C", b"Sx\0") + SYNC + SYNC, "3ZZ"),
        (prepared(b"begin", b"select 1", b"commit", b"select 2") + SYNC, "12C12DC12C12DCZ"),
        (query("begin") + query("select 1/0") + parse(b"", b"rollback") + SYNC, "CZEZ1Z"),
        (run_prepared(b""), "2CZ"),
        (query("create temp table t (n int)"), "CZ"),
        (prepared(b"copy t from stdin") + COPY_ROW + SYNC, "12GCZ"),
        (prepared(b"copy t from stdin") + SYNC, "12G"),
        (COPY_ROW + SYNC, "CZ"),
    ):
        hand.send(sent)
        got = hand.until(kinds[-1])
        while len(got) < len(kinds):
            got += hand.until(kinds[-1])
        assert "".join(kind for kind, _ in got if kind not in "SN") == kinds, sent
    hand.websocket.close()
