"""What became of a transaction: asked by its id, decided by an abort, and out of a tenant's reach."""

import http.client
import json
import string
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.activity import Activity
from tests.cases import each_of
from tests.needs import Abilities, needs
from tests.service import Service, Sql
from tests.waiting import eventually

ID = "Tuplegate-Transaction-Id"
RACE_ROUNDS = 100

Row = dict[str, Any]


def new_id() -> str:
    return f"txn_{uuid.uuid4().hex}"


def post(client: httpx.Client, *statements: Any, id: str | None = None, **more: Any) -> httpx.Response:
    headers = {} if id is None else {ID: id}
    return client.post("/v1/transaction", json={"statements": list(statements), **more}, headers=headers)


def run(client: httpx.Client, *statements: Any, id: str | None = None, **more: Any) -> Row:
    """The body of an answer that must be a success."""
    answer = post(client, *statements, id=id, **more)
    body: Row = answer.json()
    assert answer.status_code == 200, body
    assert body["success"] is True, body
    return body


def state(client: httpx.Client, id: str) -> str:
    """The outcome, or the status where there is none."""
    answer = client.get(f"/v1/transaction/{id}")
    body = answer.json()
    if answer.status_code != 200:
        assert body["success"] is False
        return str(answer.status_code)
    assert body == {"success": True, "transaction_id": id, "state": body["state"]}
    return str(body["state"])


def abort(client: httpx.Client, id: str) -> str:
    answer = client.post(f"/v1/transaction/{id}/abort")
    body = answer.json()
    assert answer.status_code == 200, body
    assert body == {"success": True, "transaction_id": id, "state": body["state"]}
    return str(body["state"])


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def as_superuser(service: Service, sql: str) -> list[Any]:
    with psycopg.connect(service.server_of()) as connection:
        return connection.execute(sql.encode()).fetchall()


@pytest.fixture
def t(sql: Sql, service: Service) -> Iterator[str]:
    """An empty table `(a text)`; at the end nothing may be left prepared."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    sql(f"create table {name} (a text)")
    yield name
    eventually(lambda: as_superuser(service, "select count(*) from pg_prepared_xacts") == [(0,)])
    sql(f"drop table {name} cascade")
    sql(f"drop table if exists {name}_gate")
    sql(f"drop sequence if exists {name}_gate_passed")


@pytest.fixture
def read_client(service: Service, read_key: str) -> Iterator[httpx.Client]:
    with service.client(read_key) as opened:
        yield opened


class Held:
    """A transaction that inserts into a table and then waits, in a thread of its own, until its answer is wanted."""

    def __init__(self, service: Service, table: str, id: str, *statements: str, passes: int = 0, **more: Any) -> None:
        """`passes` is how often it gets through without waiting, where it is run again."""
        self.answers: list[httpx.Response] = []
        gate = f"{table}_gate"
        # Who writes waits for another who has written the row; who reads waits only for a lock of the table.
        marker, closes = f"update {gate} set a = 2", f"update public.{gate} set a = 1"
        if more.get("read_only"):
            marker, closes = f"select count(*) from {gate}", f"lock table public.{gate}"
        if passes:
            locks = f"if nextval('{gate}_passed') > {passes} then lock table {gate}; end if"
            marker, closes = f"do $$ begin {locks}; end $$", f"lock table public.{gate}"
        write = "select 1" if more.get("read_only") else f"insert into {table} values ('{id}')"
        with service.client() as client:
            database = Sql(client).value("select current_database()")
            Sql(client)(f"create table if not exists {gate} as select 0 as a")
            Sql(client)(f"create sequence if not exists {gate}_passed owned by none")
        self._gate = psycopg.connect(service.conninfo(database))
        self._gate.execute(closes.encode())

        def work() -> None:
            with service.client() as client:
                self.answers.append(post(client, write, *statements, marker, id=id, **more))

        self.thread = threading.Thread(target=work)
        self.thread.start()
        activity = Activity(service)
        eventually(lambda: activity.count_running(gate) == 1)
        activity.connection.close()

    def answer(self) -> httpx.Response:
        self._gate.close()
        self.thread.join(60)
        return self.answers[0]


# -- ids of the service's making ------------------------------------------------------------------------------------


def test_own_ids(client: httpx.Client, read_client: httpx.Client, t: str, abilities: Abilities) -> None:
    """The id in every answer tells the outcome: of a write, a read, a failure, one that could not be prepared."""
    wrote = run(client, f"insert into {t} values ('x')")["transaction_id"]
    read = run(client, f"select * from {t}", read_only=True)["transaction_id"]
    temporary = "create temp table x (a int)" if abilities.can("temporary_table") else f"insert into {t} values ('z')"
    one_phase = run(client, temporary)["transaction_id"]
    failed = post(client, f"insert into {t} values ('y')", "select 1 / 0").json()["transaction_id"]
    for id, expected in ((wrote, "committed"), (read, "committed"), (one_phase, "committed"), (failed, "aborted")):
        assert state(client, id) == expected
        assert abort(client, id) == expected
        assert state(client, id) == expected
    assert state(read_client, wrote) == "committed"


def test_own_ids_differ(client: httpx.Client) -> None:
    """No two transactions have the same id, those that did nothing included."""
    ids = [run(client, "select 1")["transaction_id"] for _ in range(20)]
    ids += [post(client, "select 1 / 0").json()["transaction_id"] for _ in range(20)]
    assert len(set(ids)) == 40


def test_altered_ids(client: httpx.Client, t: str) -> None:
    """An id of the service's making with any letter changed is no id."""
    id = run(client, f"insert into {t} values ('x')")["transaction_id"]
    letters = string.ascii_letters + string.digits
    for place in range(4, len(id)):
        other = letters[(letters.index(id[place]) + 1) % len(letters)]
        assert state(client, id[:place] + other + id[place + 1 :]) == "404"
    for other in (id[:-1], id + "0", id.swapcase(), id[4:], id.replace("txn_", "txm_"), id.replace("txn_n", "txn_a")):
        assert state(client, other) == "404"


def test_own_id_as_chosen(client: httpx.Client, sql: Sql, t: str) -> None:
    """An id of the service's making cannot be chosen for another transaction."""
    id = run(client, f"insert into {t} values ('x')")["transaction_id"]
    assert code(post(client, f"insert into {t} values ('y')", id=id)) == (409, "transaction_id_used")
    assert sql.value(f"select count(*) from {t}") == 1


@each_of(
    "id",
    ["txn_", "txn_x", "x", "txn_short77", "%20", "txn_%00aaaaaaaaaaaa", "txn_" + "a" * 5000, "txn_ä" + "a" * 20,
     "txn_aaaa'; drop table x --", "..%2f..%2fhealth", "txn_n" + "0" * 43, "null", "TXN_aaaaaaaaaaaaaaa"],
)  # fmt: skip
def test_malformed_ids(client: httpx.Client, id: str) -> None:
    """What cannot be an id is not found, whatever it is made of."""
    for answer in (client.get(f"/v1/transaction/{id}"), client.post(f"/v1/transaction/{id}/abort")):
        if id in ("txn_short77", "txn_n" + "0" * 43) and answer.request.method == "POST":
            continue  # it could be chosen, and so can be aborted
        assert answer.status_code in (400, 404), answer.text
        assert answer.json()["success"] is False


def test_outcome_needs_a_key(service: Service, client: httpx.Client, t: str) -> None:
    """Outcomes are for keys of the database only."""
    id = run(client, f"insert into {t} values ('x')")["transaction_id"]
    with httpx.Client(base_url=service.url, trust_env=False, verify=False) as stranger:
        assert stranger.get(f"/v1/transaction/{id}").status_code == 401
        assert stranger.post(f"/v1/transaction/{id}/abort").status_code == 401


# -- ids of the client's choice -------------------------------------------------------------------------------------


def test_chosen_id_is_used_once(client: httpx.Client, sql: Sql, t: str) -> None:
    """The id comes back in the answer, tells the outcome, and a second use is 409 and applies nothing."""
    id = new_id()
    assert run(client, f"insert into {t} values ('x')", id=id)["transaction_id"] == id
    assert state(client, id) == "committed"
    for statement in (f"insert into {t} values ('x')", f"insert into {t} values ('y')", "select 1"):
        assert code(post(client, statement, id=id)) == (409, "transaction_id_used")
    assert sql.value(f"select count(*) from {t}") == 1


@each_of(
    ("statement", "more"),
    [
        ("select 1 / 0", {}),
        ("selec", {}),
        ("copy (select 1) to stdout", {}),
        ("select pg_sleep(9)", {"timeout_ms": 100}),
    ],
)
def test_chosen_id_of_a_failure(client: httpx.Client, sql: Sql, t: str, statement: str, more: Row) -> None:
    """A transaction that failed is aborted, at once, and its id stays used."""
    id = new_id()
    assert post(client, f"insert into {t} values ('x')", statement, id=id, **more).json()["success"] is False
    assert state(client, id) == "aborted"
    assert abort(client, id) == "aborted"
    assert code(post(client, f"insert into {t} values ('x')", id=id)) == (409, "transaction_id_used")
    assert sql.value(f"select count(*) from {t}") == 0


def test_refused_before_it_began(client: httpx.Client) -> None:
    """A request that was refused before anything ran has not used its id."""
    id = new_id()
    assert post(client, id=id).status_code == 400
    assert post(client, "commit", id=id).status_code == 400
    assert state(client, id) == "404"
    assert run(client, "select 1", id=id)["transaction_id"] == id


@needs("temporary_table", "two_phase_commit")
def test_one_phase_with_chosen_id(client: httpx.Client, sql: Sql, t: str) -> None:
    """A transaction that cannot be prepared keeps its promise too."""
    id = new_id()
    body = run(client, f"insert into {t} values ('x')", "create temp table x (a int)", id=id)
    assert body["commit"] == "one_phase"
    assert state(client, id) == "committed"
    assert sql.value(f"select count(*) from {t}") == 1


@each_of(
    "id", ["", "x", "txn_", "txn_short", "abc_12345678901", "txn_" + "a" * 121, "txn_aaaaaaaa aaaa", "txn_aaaaaaaa.b"]
)
def test_malformed_chosen_id(client: httpx.Client, sql: Sql, t: str, id: str) -> None:
    """An id that is not of the documented form is 400 and nothing runs."""
    assert code(post(client, f"insert into {t} values ('x')", id=id)) == (400, "malformed_request")
    assert sql.value(f"select count(*) from {t}") == 0


def test_never_seen(client: httpx.Client) -> None:
    """An id that was never seen is 404."""
    assert state(client, new_id()) == "404"


def test_in_progress(service: Service, client: httpx.Client, sql: Sql, t: str) -> None:
    """While it runs it is in progress and used, for as long as that takes; then it is committed."""
    id = new_id()
    database = sql.value("select current_database()")
    sql(f"create table {t}_held (a int)")
    sql(f"insert into {t}_held values (1)")
    activity = Activity(service)
    with (
        service.client() as writer,
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(service.conninfo(database)) as holder,
        activity.connection,
    ):
        holder.execute(f"update public.{t}_held set a = 2".encode())
        waiting = f"update {t}_held set a = 3"
        running = pool.submit(post, writer, f"insert into {t} values ('x')", waiting, id=id)
        eventually(lambda: activity.count_running(f"{t}_held") == 1)
        started = time.monotonic()
        assert state(client, id) == "in_progress"
        assert code(post(client, f"insert into {t} values ('y')", id=id)) == (409, "transaction_id_used")
        while time.monotonic() - started < 5.5:  # beyond what a young record is given for granted
            assert state(client, id) == "in_progress"
            time.sleep(0.25)
        holder.rollback()
    assert running.result().json()["success"] is True
    assert state(client, id) == "committed"
    assert sql.value(f"select count(*) from {t}") == 1
    sql(f"drop table {t}_held")


def test_many_at_once_with_one_id(service: Service, sql: Sql, t: str) -> None:
    """Of many requests with the same id exactly one runs."""
    for _ in range(5):
        id = new_id()

        def work(_: int, id: str = id) -> int:
            with service.client() as client:
                return post(client, f"insert into {t} values ('{id}')", id=id).status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = sorted(pool.map(work, range(8)))
        assert statuses == [200] + [409] * 7
        assert sql.value(f"select count(*) from {t} where a = $1", [id]) == 1


def test_client_gone(service: Service, client: httpx.Client, sql: Sql, t: str) -> None:
    """A client that left in the middle learns soon that nothing was applied."""
    id = new_id()
    address = urlsplit(service.url)
    gone = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {service.key}", ID: id}
    body = json.dumps({"statements": [f"insert into {t} values ('x')", f"select pg_sleep(30) /* {id} */"]})
    gone.request("POST", "/v1/transaction", body, headers)
    activity = Activity(service)
    eventually(lambda: activity.count_running("pg_sleep(30") == 1)
    activity.connection.close()
    gone.close()
    eventually(lambda: state(client, id) == "aborted")
    assert sql.value(f"select count(*) from {t}") == 0


# -- aborting -------------------------------------------------------------------------------------------------------


def test_abort_of_never_seen(client: httpx.Client, sql: Sql, t: str) -> None:
    """After the abort of an id that was never seen, a delayed original is refused and applies nothing."""
    id = new_id()
    assert abort(client, id) == "aborted"
    assert abort(client, id) == "aborted"
    assert state(client, id) == "aborted"
    assert code(post(client, f"insert into {t} values ('x')", id=id))[0] == 409
    assert state(client, id) == "aborted"
    assert sql.value(f"select count(*) from {t}") == 0


def test_abort_of_committed(client: httpx.Client, sql: Sql, t: str) -> None:
    """What is committed stays so, and the abort says it."""
    id = new_id()
    run(client, f"insert into {t} values ('x')", id=id)
    assert abort(client, id) == "committed"
    assert state(client, id) == "committed"
    assert sql.value(f"select count(*) from {t}") == 1


def test_abort_of_running(service: Service, client: httpx.Client, sql: Sql, t: str) -> None:
    """The abort of a running transaction is final, its own answer says so, and nothing is applied."""
    id = new_id()
    held = Held(service, t, id)
    assert abort(client, id) == "aborted"
    assert state(client, id) == "aborted"
    assert code(held.answer()) == (409, "transaction_aborted")
    assert state(client, id) == "aborted"
    assert sql.value(f"select count(*) from {t}") == 0


@pytest.mark.parametrize(
    "more", ["select 1", pytest.param("create temp table scratch (a int)", marks=needs("temporary_table", "do_block"))]
)
def test_aborted_is_not_run_again(service: Service, client: httpx.Client, sql: Sql, t: str, more: str) -> None:
    """A transaction that was aborted while it ran is not run once more only to find that out."""
    id = new_id()
    sql(f"create sequence {t}_runs")
    sql(f"alter table {t} add run bigint default nextval('{t}_runs')")
    # One for nothing: only PREPARE says that it cannot be prepared.
    passes = 0 if more == "select 1" else 1
    held = Held(service, t, id, more, passes=passes)
    runs = 1 + passes
    assert abort(client, id) == "aborted"
    assert code(held.answer()) == (409, "transaction_aborted")
    assert sql.value(f"select last_value from {t}_runs") == runs
    sql(f"drop sequence {t}_runs cascade")


@needs("trigger_row", "temporary_table")
def test_abort_of_running_one_phase(service: Service, client: httpx.Client, sql: Sql, t: str) -> None:
    """An abort stops a transaction that cannot be prepared as well."""
    id = new_id()
    sql(
        f"create function {t}_temp() returns trigger language plpgsql"
        " as $$ begin create temp table y (); return new; end $$"
    )
    sql(f"create trigger temp before insert on {t} for each row execute function {t}_temp()")
    held = Held(service, t, id)
    assert abort(client, id) == "aborted"
    assert code(held.answer()) == (409, "transaction_aborted")
    assert sql.value(f"select count(*) from {t}") == 0
    sql(f"drop function {t}_temp cascade")


@needs("lock_table")
def test_abort_of_running_read(service: Service, client: httpx.Client, t: str) -> None:
    """A read-only transaction that was aborted while it ran does not call itself done."""
    id = new_id()
    held = Held(service, t, id, read_only=True)
    aborted = abort(client, id)
    succeeded = held.answer().json()["success"]
    assert succeeded == (aborted == "committed")
    assert state(client, id) == aborted


def test_abort_races_the_commit(service: Service, sql: Sql, t: str, abilities: Abilities) -> None:
    """However an abort and a commit meet, both answers, the outcome and the data agree."""
    seen = set()
    delay_s = 0.0
    with service.client() as first, service.client() as second, ThreadPoolExecutor(1) as pool:
        for round in range(RACE_ROUNDS):
            id = new_id()
            statements = [f"insert into {t} values ('{id}')"]
            if round % 5 == 4 and abilities.can("temporary_table"):
                statements.append("create temp table x (a int)")
            answer = pool.submit(post, first, *statements, id=id)
            time.sleep(delay_s)  # every round meets the transaction at another point
            verdict = abort(second, id)
            # Later after an abort and earlier after a commit: so both win on a machine of any speed, and closely.
            delay_s = delay_s * 1.2 + 0.0002 if verdict == "aborted" else delay_s * 0.8
            body = answer.result()
            committed = body.status_code == 200 and body.json()["success"]
            assert committed or body.status_code == 409, body.text
            applied = sql.value(f"select count(*) from {t} where a = $1", [id])
            assert (verdict, state(second, id), applied) == (
                ("committed", "committed", 1) if committed else ("aborted", "aborted", 0)
            )
            seen.add(verdict)
    assert seen == {"committed", "aborted"}, "the race was always won by the same side"


def test_many_aborts(service: Service, client: httpx.Client, sql: Sql, t: str) -> None:
    """Many aborts of one id at once agree with each other and with the transaction."""
    for _ in range(10):
        id = new_id()

        def stop(_: int, id: str = id) -> str:
            with service.client() as other:
                return abort(other, id)

        with ThreadPoolExecutor(5) as pool:
            answer = pool.submit(post, client, f"insert into {t} values ('{id}')", id=id)
            verdicts = set(pool.map(stop, range(4)))
            committed = answer.result().status_code == 200
        assert verdicts == {"committed" if committed else "aborted"}
        assert sql.value(f"select count(*) from {t} where a = $1", [id]) == int(committed)


# -- read keys ------------------------------------------------------------------------------------------------------


def test_read_key_with_chosen_id(read_client: httpx.Client, client: httpx.Client) -> None:
    """A read key may choose ids as well, and they tell the outcome to every key of the database."""
    id = new_id()
    assert run(read_client, "select 1", id=id)["commit"] == "read_only"
    assert state(read_client, id) == state(client, id) == "committed"
    assert code(post(read_client, "select 1", id=id)) == (409, "transaction_id_used")
    failed = new_id()
    assert post(read_client, "create table no (a int)", id=failed).json()["success"] is False
    assert state(read_client, failed) == "aborted"


def test_read_key_cannot_abort(service: Service, read_client: httpx.Client, t: str) -> None:
    """A key that may only read cannot stop another's write."""
    id = new_id()
    held = Held(service, t, id)
    answer = read_client.post(f"/v1/transaction/{id}/abort")
    assert held.answer().json()["success"] is True, "a read key has aborted a write"
    assert answer.status_code == 403


# -- the records ----------------------------------------------------------------------------------------------------


@pytest.fixture
def known(client: httpx.Client, t: str) -> str:
    """The id of a committed transaction that has a record."""
    id = new_id()
    run(client, f"insert into {t} values ('x')", id=id)
    return id


@each_of("table", ["begun", "verdict", "answer", "secret"])
@each_of(
    "attack",
    [
        "select * from tuplegate.{table}", "delete from tuplegate.{table}",
        "truncate tuplegate.{table}", "lock table tuplegate.{table}",
        "lock table tuplegate.{table} in access share mode", "drop table tuplegate.{table}",
        "alter table tuplegate.{table} add column x int", "create index on tuplegate.{table} (at)",
        "create trigger x before insert on tuplegate.{table} for each row"
        " execute function suppress_redundant_updates_trigger()",
        "create rule x as on insert to tuplegate.{table} do instead nothing", "analyze tuplegate.{table}",
        "create table public.child () inherits (tuplegate.{table})",
        "create table public.twin (like tuplegate.{table})",
        "grant select on tuplegate.{table} to public", "comment on table tuplegate.{table} is 'x'",
        "create policy p on tuplegate.{table} using (false)", "alter table tuplegate.{table} enable row level security",
        "select pg_relation_size('tuplegate.{table}'::regclass),"
        " query_to_xml('table tuplegate.{table}', true, false, '')",
    ],
)  # fmt: skip
@needs("postgresql")
def test_records_are_out_of_reach(client: httpx.Client, sql: Sql, table: str, attack: str) -> None:
    """A tenant can neither read, change, lock nor watch the records, alone or in a transaction."""
    statement = attack.format(table=table)
    for answer in (sql.answer(statement), post(client, statement), post(client, f"do $x$ begin {statement}; end $x$")):
        body = answer.json()
        assert answer.status_code == 200, body
        if attack.startswith("analyze"):  # the engine skips it with a warning
            continue
        assert body["success"] is False, body
        lock_alone = attack.startswith("lock") and "results" not in body
        assert body["error"]["sqlstate"] == ("25P01" if lock_alone else "42501"), body


@needs("postgresql")
def test_views_of_records(client: httpx.Client, sql: Sql, known: str) -> None:
    """A view of the records shows them to nobody, nor does one that others are let into."""
    sql("create view public.records as select * from tuplegate.verdict")
    try:
        assert sql.fails("select * from public.records")["sqlstate"] == "42501"
        assert sql.fails("insert into public.records values ('txn_forged_000001', 'committed')")["sqlstate"] == "42501"
        assert state(client, "txn_forged_000001") == "404"
        assert state(client, known) == "committed"
    finally:
        sql("drop view public.records")


@each_of(
    "attack",
    [
        "drop schema tuplegate cascade", "alter schema tuplegate rename to mine", "create table tuplegate.mine (a int)",
        "create function tuplegate.mine() returns int language sql as 'select 1'",
        "create view tuplegate.mine as select 1",
        "create or replace function tuplegate.authenticate(message text, mac text) returns void"
        " language sql as 'select'",
        "create or replace function tuplegate.decide(id text, state text, mac text) returns boolean"
        " language sql as 'select true'",
        "drop function tuplegate.decide(text, text, text)",
        "alter function tuplegate.begin(text, text) security invoker",
        "alter function tuplegate.keep(text, text, text, text, text) set search_path = public",
        "alter function tuplegate.look(text, text) owner to current_user",
        "grant all on schema tuplegate to public", "revoke usage on schema tuplegate from current_user cascade",
        "alter default privileges for role {owner} grant all on tables to public",
        "reassign owned by {owner} to current_user",
        "set role {owner}", "set session authorization {owner}", "drop owned by {owner}",
        "create event trigger e on ddl_command_start execute function suppress_redundant_updates_trigger()",
        "select tuplegate.is_genuine('decide/committed/txn_aaaaaaaaaaaa', 'x')",
        "select tuplegate.begin('txn_forged_000001', '')", "select tuplegate.begin('txn_forged_000001', null)",
        "select tuplegate.decide('txn_forged_000001', 'committed', repeat('0', 64))",
        "select tuplegate.decide('txn_forged_000001', 'committed', null)",
        "select * from tuplegate.look('txn_forged_000001', null)",
        "select tuplegate.keep('/v1/query', 'k', 'r', '7b7d', null)",
        "select * from tuplegate.kept('/v1/query', 'k', '')",
        "do $$ begin perform tuplegate.decide('txn_forged_000001', 'aborted', md5('x')); end $$",
    ],
)  # fmt: skip
@needs("postgresql")
def test_records_cannot_be_forged(service: Service, client: httpx.Client, known: str, attack: str) -> None:
    """A tenant can change nothing in the schema of the records; without the service's word a call does nothing."""
    [(owner,)] = as_superuser(service, "select current_user")
    body = post(client, attack.replace("{owner}", owner), "select 1").json()
    if body["success"]:
        # The engine answers some of these with a warning that nothing was granted or revoked.
        calls = attack.startswith(("select tuplegate", "select * from tuplegate", "do"))
        assert calls or attack.startswith(("grant", "revoke")), body
        if calls:
            values = [value for row in body["results"][0]["rows"] for value in row.values()]
            assert set(values) <= {None}, body
    else:
        assert body["error"]["sqlstate"] == "42501", body
    assert state(client, "txn_forged_000001") == "404"
    assert state(client, known) == "committed"
    fresh = new_id()
    run(client, "select 1", id=fresh)
    assert state(client, fresh) == "committed"


@needs("postgresql")
def test_functions_of_ones_own(client: httpx.Client, sql: Sql, t: str) -> None:
    """What a tenant puts in the path of the record's functions is not used by them."""
    sql("create function public.sha256(bytea) returns bytea language sql as $$ select '\\x00'::bytea $$")
    sql("create function public.encode(bytea, text) returns text language sql as $$ select 'x' $$")
    try:
        id = new_id()
        run(
            client, "set search_path = public, pg_catalog", f"insert into {t} values ('x')",
            "set role none", "set row_security = off", id=id,
        )  # fmt: skip
        assert state(client, id) == "committed"
    finally:
        sql("drop function public.sha256(bytea)")
        sql("drop function public.encode(bytea, text)")


SETTINGS = (
    "search_path = ''", "search_path = pg_temp, public", "statement_timeout = '5s'", "bytea_output = 'escape'",
    "standard_conforming_strings = off", "plpgsql.extra_errors = 'all'", "check_function_bodies = off",
    "enable_indexscan = off", "quote_all_identifiers = on", "xmloption = document", "timezone = 'Asia/Tokyo'",
    "default_transaction_read_only = on", "lock_timeout = '1s'", "jit = off", "plan_cache_mode = force_generic_plan",
)  # fmt: skip


@pytest.mark.parametrize("setting", [pytest.param(one, marks=needs(f"setting {one}")) for one in SETTINGS])
def test_settings_do_not_break_promises(client: httpx.Client, sql: Sql, t: str, setting: str) -> None:
    """Whatever the transaction sets, its record commits with it."""
    id = new_id()
    body = post(client, f"insert into {t} values ('x')", f"set {setting}", id=id).json()
    assert body["success"] is True, body
    assert state(client, id) == "committed"
    assert sql.value(f"select count(*) from {t}") == 1


def test_the_word_is_not_seen(service: Service, client: httpx.Client, t: str) -> None:
    """The text that the engine keeps of what runs holds no proof that a tenant could use."""
    run(client, f"insert into {t} values ('x')", id=new_id())
    texts = " ".join(row[0] or "" for row in as_superuser(service, "select query from pg_stat_activity"))
    words = texts.replace("'", " ").split()
    assert not any(len(word) >= 40 and set(word) <= set(string.hexdigits) for word in words)
