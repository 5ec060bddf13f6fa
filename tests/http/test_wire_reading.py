"""A key that may only read writes nothing on `GET /v2`, whatever its session asks for."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.cases import each_of
from tests.control import Organization
from tests.http.test_wire import SYNC, Hand, message, query, value
from tests.http.test_wire_listening import prepared, ready_wanted
from tests.needs import needs
from tests.service import Service, Sql
from tests.tunnel import Tunnel

pytestmark = needs("postgresql")
"""Only that protocol is passed on."""

WRITES = (
    "select wire_forged()",
    "alter default privileges grant all on types to public",
    "drop owned by current_user",
    "alter role current_user set application_name = 'changed'",
    "comment on role current_user is 'changed'",
    "create temp table wire_temp (n int)",
    "select lo_create(0)",
    "select nextval('wire_numbers')",
)
WAYS = {
    "by its default": [query("set default_transaction_read_only = off")],
    "by its default, prepared": [prepared(b"set default_transaction_read_only = off") + SYNC],
    "by a function": [query("select set_config('default_transaction_read_only', 'off', false)")],
    "by a function, prepared": [prepared(b"select set_config('default_transaction_read_only', 'off', false)") + SYNC],
    "by code": [query("do $$ begin perform set_config('default_transaction_read_' || 'only', 'off', false); end $$")],
    "by characteristics": [query("set session characteristics as transaction read write")],
    "by a block": [query("begin read write")],
    "by a block, in other words": [query("start transaction /* */ Isolation Level serializable, READ  WRITE")],
    "in a block": [query("begin"), query("set transaction read write")],
    "in a block, prepared": [prepared(b"begin") + SYNC, prepared(b"set transaction read write") + SYNC],
    "in a block, as a setting": [query("begin"), query("set local transaction_read_only = off")],
    "in a block, as a quoted setting": [query("begin"), query('set "transaction_read_only" to default')],
    "in a block, as an escaped setting": [query("begin"), query('set u&"transaction\\005fread_only" = off')],
    "in one text": [query("begin; set transaction read write; select 1")],
    "behind another transaction": [
        query("select set_config('default_transaction_read_only', 'off', false); commit; select 1"),
    ],
    "after reset": [query("begin; select set_config('default_transaction_read_only', 'off', false)"), query("commit")],
    "while listening": [query("listen x"), query("set default_transaction_read_only = off")],
}
TOGETHER = {
    "in one text": "set transaction read write; {}",
    "in one text, behind a commit": "select set_config('default_transaction_read_only', 'off', false); commit; {}",
    "in one text, in a block": "begin; set transaction read write; {}; commit",
}
PIPELINES = {
    "behind a commit": (b"select set_config('default_transaction_read_only', 'off', false)", b"commit"),
    "behind a block": (b"begin", b"set default_transaction_read_only = off", b"commit"),
    "read write": (b"begin", b"set transaction read write"),
}


@pytest.fixture(scope="module")
def forged(organization: Organization) -> Sql:
    """A function of the writing role's, which inserts with its rights, as anybody may call it."""
    sql = organization.control.sql()
    sql("create table wire_written (n int)")
    sql("create sequence wire_numbers")
    sql("grant usage on sequence wire_numbers to public")
    sql(
        "create function wire_forged() returns void security definer language sql as"
        " $$ insert into wire_written values (1) $$"
    )
    return sql


@pytest.fixture(scope="module")
def read_key(organization: Organization) -> str:
    key: str = organization.control.post("/v1/keys", {"name": "reads the wire", "scopes": ["read"]})["key"]
    return key


def find_written(sql: Sql) -> object:
    return sql.rows(
        "select (select count(*) from wire_written), (select count(*) from pg_default_acl),"
        " (select last_value || ' ' || is_called from wire_numbers),"
        " (select count(*) from pg_largeobject_metadata),"
        " has_table_privilege(regexp_replace(current_user, '_w$', '_r'), 'wire_written', 'select'),"
        " (select count(*) from pg_shdescription where description = 'changed')",
        row_mode="arrays",
    )


@pytest.fixture
def hand(service: Service, read_key: str) -> Iterator[Hand]:
    client = Hand(service)
    client.start(read_key)
    yield client
    client.websocket.close()


def send_all(hand: Hand, sent: bytes) -> None:
    hand.send(sent)
    for _ in range(ready_wanted(sent)):
        hand.until("Z")


@each_of("way", WAYS)
def test_who_may_only_read_writes_nothing(forged: Sql, service: Service, read_key: str, way: str) -> None:
    before = find_written(forged)
    for write in WRITES:
        client = Hand(service)
        client.start(read_key)
        for sent in WAYS[way]:
            send_all(client, sent)
        send_all(client, query(write))
        send_all(client, query("commit"))
        client.websocket.close()
    assert find_written(forged) == before


@each_of("way", TOGETHER)
def test_nor_in_one_text(forged: Sql, hand: Hand, way: str) -> None:
    before = find_written(forged)
    for write in WRITES:
        send_all(hand, query(TOGETHER[way].format(write)))
        send_all(hand, query("rollback"))
    assert find_written(forged) == before


@each_of(("way", "listens"), [(way, listens) for way in PIPELINES for listens in (False, True)])
def test_nor_in_one_pipeline(forged: Sql, hand: Hand, way: str, listens: bool) -> None:
    before = find_written(forged)
    if listens:
        send_all(hand, query("listen x"))
    for write in WRITES:
        send_all(hand, prepared(*PIPELINES[way], write.encode(), b"commit") + SYNC)
        send_all(hand, query("rollback"))
    assert find_written(forged) == before


def test_who_may_only_read_chooses_what_it_may(service: Service, read_key: str, forged: Sql) -> None:
    """Isolation levels, and what drivers and dumps send."""
    with Tunnel(service, read_key) as tunnel, tunnel.connect() as connection:
        connection.execute("set session characteristics as transaction read write")
        assert value(connection, "show transaction_read_only") == "on"
        with connection.transaction():
            connection.execute("set transaction isolation level repeatable read, read only")
            assert value(connection, "show transaction_isolation") == "repeatable read"
        connection.execute("begin isolation level read committed read only")
        assert value(connection, "select 'set write'") == "set write"
        connection.execute("commit")
        for _ in range(7):
            assert value(connection, "select %s::int", 1) == 1
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("begin read write")
        with connection.pipeline():
            connection.execute("begin")
            rows = connection.execute("select 1")
            connection.execute("commit")
        assert rows.fetchone() == (1,)
        assert connection.execute("set datestyle = 'ISO'; select 1").statusmessage == "SET"
        assert connection.execute(b"set search_path = public").statusmessage == "SET"


def test_the_answers_to_who_may_only_read_are_the_engines(hand: Hand) -> None:
    for sent, kinds in (
        (query("set datestyle = 'ISO'; select 1"), "CTDCZ"),
        (query("select 1"), "TDCZ"),
        (prepared(b"select 1") + SYNC, "12DCZ"),
        (message(b"P", b"x\0set datestyle = 'ISO'\0\0\0") + SYNC, "1Z"),
        (prepared(b"set datestyle = 'ISO'", b"select 1") + SYNC, "12C12DCZ"),
        (query("begin") + query("select 1") + query("commit"), "CZTDCZCZ"),
    ):
        hand.send(sent)
        got = hand.until("Z")
        while len([kind for kind, _ in got if kind not in "SN"]) < len(kinds):
            got += hand.until("Z")
        assert "".join(kind for kind, _ in got if kind not in "SN") == kinds, sent
