"""A database goes from PostgreSQL to CockroachDB: what that has is made, the rest is told, and all rows are there.

Needs the program, by `TUPLEGATE_TEST_COCKROACH`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.cockroach_cluster import PROGRAM, CockroachCluster
from tests.service import Service, new_data_dir, remove, start_service
from tuplegate.client import Client

pytestmark = [
    pytest.mark.skipif(not PROGRAM, reason="TUPLEGATE_TEST_COCKROACH names no program of CockroachDB"),
    pytest.mark.timeout(900),
]

CONTENT = (
    "create schema sent",
    "create type sent.pair as (a int, b text)",
    "create domain sent.positive as int check (value > 0)",
    "create table sent.a (id serial primary key, price sent.positive, docs json[], r int4range, name text, note jsonb,"
    " code char(6), at timestamptz default now())",
    "create table sent.b (a int references sent.a deferrable initially deferred)",
    "create table sent.parts (at timestamptz, what text) partition by range (at)",
    "create table sent.parts1 partition of sent.parts for values from ('2020-01-01') to ('2030-01-01')",
    "create index a_note on sent.a using gin (note jsonb_path_ops)",
    "create function sent.f() returns trigger language plpgsql as $$ begin return new; end $$",
    "create trigger changes before insert on sent.a for each row execute function sent.f()",
    "insert into sent.a (price, docs, r, name, note, code) select g, array['{\"a\": 1}'::json], int4range(g, g + 5),"
    " 'n' || g, '{\"b\": 1.50}', 'c' || g % 10 from generate_series(1, 700) g",
    "insert into sent.b select g from generate_series(1, 700) g",
    "insert into sent.parts select timestamptz '2025-01-01 00:00+00' + g * interval '1 h', 'x' from"
    " generate_series(1, 50) g",
)


@pytest.fixture(scope="module")
def receiving() -> Iterator[Service]:
    with CockroachCluster(nodes=1) as cluster:
        data_dir = new_data_dir()
        running = start_service(data_dir, env={"TUPLEGATE_ENGINE": cluster.url()})
        yield running
        running.kill()
        remove(data_dir)


def test_what_the_other_engine_lacks_is_told(service: Service, receiving: Service, tmp_path: Path) -> None:
    with Client(service.url, service.key) as here:
        for statement in CONTENT:
            here.query(statement)
        try:
            command = Command(service, tmp_path, TUPLEGATE_TO_API_KEY=receiving.key)
            done = command("database", "send", "--to-url", receiving.url)
        finally:
            here.query("drop schema sent cascade")
    assert done.code == 0, done.err
    told = {(line["kind"], line["name"]): (line["result"], line["note"]) for line in done.lines}
    assert told["rows", '"sent"."a"'] == ("same", "700 rows")
    assert told["rows", '"sent"."b"'] == ("same", "700 rows")
    assert told["rows", '"sent"."parts"'] == ("same", "50 rows")
    assert told["column", '"sent"."a".price'] == ("changed", "sent.positive became integer")
    assert told["column", '"sent"."a".docs'] == ("changed", "json[] became text")
    assert told["foreign key", '"sent"."b".b_a_fkey'] == ("changed", "checked at once, not at the commit")
    assert told["table", '"sent"."parts"'][0] == "changed"
    assert told["trigger", '"sent"."a.changes"'][0] == "missing"
    assert told["function", '"sent"."f"'][0] == "missing"
    assert told["domain", '"sent"."positive"'][0] == "missing"
    with Client(receiving.url, receiving.key) as there:
        assert there.query("insert into sent.a (name) values ('next') returning id")[0] == {"id": 701}
