"""The primary is lost while it commits: what the service says of a transaction is so, wherever it goes on."""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.external import ExternalServer, Standby, free_port
from tests.servers import needs_linux
from tests.service import Service, Sql, running_service
from tests.waiting import eventually
from tests.wire_proxy import At, Fault, PortProxy

pytestmark = needs_linux
_CODE = ("create function one() returns int language plpgsql as $$ begin return 1; end $$",)
_LAZY = (
    "create table log (a int)",
    "create function at_last() returns trigger language plpgsql as"
    " $$ begin perform set_config('synchronous_commit', 'local', true); return null; end $$",
    "create function again() returns trigger language plpgsql as"
    " $$ begin set constraints all deferred; insert into log values (1); return null; end $$",
    "create constraint trigger last after insert on log deferrable initially deferred"
    " for each row execute function at_last()",
    "create constraint trigger first after insert on t deferrable initially deferred"
    " for each row execute function again()",
)
"""Makes each PREPARE that follows an insert wait for no standby."""
_WAITS = "select count(*)::int from pg_stat_activity where wait_event = 'SyncRep'"


class Pair:
    """A primary and its standby, which commits wait for or not. The service reaches the standby when it is told to."""

    def __init__(self, *, waits: bool) -> None:
        self.primary = ExternalServer()
        self.standby = Standby(self.primary)
        self.way = PortProxy(self.primary.url("pair"))
        self.other_way = PortProxy(self.primary.url("pair").replace(str(self.primary.port), str(free_port())))
        self.way.install()
        self.other_way.install()
        if waits:
            self.wait_for("*")

    @property
    def url(self) -> str:
        first, second = (urlsplit(way.url).netloc.rpartition("@")[2] for way in (self.way, self.other_way))
        return self.way.url.replace(first, f"{first},{second}")

    def part(self) -> None:
        """From now on the standby gets nothing more; what was written before it has."""
        self.standby.catch_up()
        self.standby.execute("alter system set primary_conninfo = ''")
        self.standby.execute("select pg_reload_conf()")
        eventually(lambda: self.primary.execute("select from pg_stat_replication") == [])

    def wait_for(self, names: str) -> None:
        """From now on commits do."""
        self.primary.execute(f"alter system set synchronous_standby_names = '{names}'")
        self.primary.execute("select pg_reload_conf()")
        eventually(lambda: self.primary.execute("show synchronous_standby_names") == [(names,)])

    def promote(self) -> None:
        """It gives out the numbers again that were given out since they parted; then the service reaches it."""
        self.standby.execute("select pg_promote()")
        with psycopg.connect(self.standby.url("postgres"), autocommit=True) as connection:
            for _ in range(100):
                connection.execute("select pg_current_xact_id()")
        self.let_through()

    def take_over(self) -> None:
        """The standby does so, and gives out no number before the service reaches it."""
        self.standby.execute("select pg_promote()")
        self.let_through()

    def let_through(self) -> None:
        self.other_way._engine = urlsplit(self.standby.url("pair"))

    def remove(self) -> None:
        self.way.remove()
        self.other_way.remove()
        self.standby.remove()
        self.primary.remove()


@contextmanager
def serving(*, waits: bool, **settings: str) -> Iterator[tuple[Pair, Service]]:
    """A service with an empty table `t`, and its engine."""
    pair = Pair(waits=waits)
    try:
        env = {f"TUPLEGATE_{name.upper()}": value for name, value in settings.items()}
        with running_service(env={"TUPLEGATE_ENGINE": pair.url, **env}) as service:
            define(service, ["create table t (a int primary key)"])
            yield pair, service
    finally:
        pair.remove()


def insert(
    service: Service, value: int, timeout_ms: int = 30_000, headers: Mapping[str, str] | None = None, more: str = ""
) -> httpx.Response:
    body = {"statements": [f"insert into t values ({value})", *([more] if more else [])], "timeout_ms": timeout_ms}
    with service.client() as client:
        return client.post("/v1/transaction", json=body, headers=headers, timeout=60)


def values(service: Service) -> list[Any]:
    with service.client() as client:
        return [row["a"] for row in Sql(client).rows("select a from t order by a")]


def outcome(service: Service, answer: httpx.Response) -> dict[str, Any]:
    with service.client() as client:
        found: dict[str, Any] = client.get(f"/v1/transaction/{answer.json()['transaction_id']}", timeout=60).json()
    return found


def is_commit(sql: str) -> bool:
    return sql.startswith("COMMIT PREPARED")


def is_prepare(sql: str) -> bool:
    return sql.startswith("PREPARE TRANSACTION")


def is_question_for_standbys(sql: str) -> bool:
    return sql == "SHOW synchronous_standby_names"


def is_wait(sql: str) -> bool:
    """Return whether it comes right before a COMMIT that ends a transaction in one phase."""
    return sql == "SET LOCAL synchronous_commit = on"


def is_look_at_commits(sql: str) -> bool:
    """Return whether a database that is to be silent is asked for what is being committed there."""
    return "pg_prepared_xacts WHERE database" in sql


def is_made_to_wait(sql: str) -> bool:
    return "pg_logical_emit_message" in sql and "synchronous_standby_names" in sql


def define(service: Service, definitions: Sequence[str]) -> None:
    with service.client() as client:
        for definition in definitions:
            Sql(client)(definition)


def insert_while_it_dies(
    pair: Pair, service: Service, at: At, go_on: Callable[[], None], step: Callable[[str], bool] = is_commit
) -> httpx.Response:
    """The answer to a transaction that is prepared; the primary dies with its COMMIT, or another step, and another way
    is gone on."""
    dies = pair.way.arm(Fault(step, at, pair.primary.crash))
    answers: list[httpx.Response] = []
    deciding = threading.Thread(target=lambda: answers.append(insert(service, 3)))
    deciding.start()
    assert dies.happened.wait(30)
    go_on()
    deciding.join()
    wait_until_served(service)
    return answers[0]


def wait_until_served(service: Service) -> None:
    with service.client() as client:
        eventually(lambda: client.post("/v1/query", json={"sql": "select 1"}).status_code == 200)


def test_what_only_the_former_primary_had() -> None:
    """One transaction is acknowledged there, of another PREPARE is answered. The numbers of both are used again."""
    with serving(waits=False) as (pair, service):
        assert insert(service, 1).status_code == 200
        pair.part()
        acknowledged = insert(service, 2)
        assert outcome(service, acknowledged)["state"] == "committed"
        answer = insert_while_it_dies(pair, service, At.REQUEST, pair.promote)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "outcome_unknown")
        assert values(service) == [1]
        for lost in (acknowledged, answer):
            assert outcome(service, lost)["error"]["code"] == "outcome_unknown"
        again = insert(service, 4)
        assert outcome(service, again)["state"] == "committed"


@pytest.mark.parametrize("code", [(), _CODE], ids=["plain", "code"])
@pytest.mark.parametrize("at", At)
def test_what_a_standby_had_to_have(at: At, code: Sequence[str]) -> None:
    """PREPARE is answered, so the standby has it; whether it has COMMIT PREPARED, too, makes no difference."""
    with serving(waits=True) as (pair, service):
        define(service, code)
        assert insert(service, 1).status_code == 200
        answer = insert_while_it_dies(pair, service, at, pair.promote)
        eventually(lambda: outcome(service, answer)["state"] == "committed")
        assert values(service) == [1, 3]


def test_code_that_lets_prepare_wait_for_nobody() -> None:
    """A deferred trigger that runs inside of PREPARE has said so. What no standby has is not committed, so it is run
    again where it never came."""
    with serving(waits=True) as (pair, service):
        define(service, _LAZY)
        assert insert(service, 1).status_code == 200
        pair.part()
        answer = insert_while_it_dies(pair, service, At.REQUEST, pair.promote, is_made_to_wait)
        assert answer.status_code == 200, answer.text
        assert values(service) == [1, 3]


def test_what_cannot_be_looked_for_has_not_failed() -> None:
    """COMMIT PREPARED is lost, and for some time every question about it fails."""
    with serving(waits=False) as (pair, service), psycopg.connect(pair.primary.url("postgres")) as operator:
        assert insert(service, 1).status_code == 200

        def lock() -> None:
            operator.execute("lock pg_catalog.pg_database in access exclusive mode")

        locks = pair.way.arm(Fault(is_commit, At.REQUEST, lock))
        answer = insert(service, 3, timeout_ms=5000)
        assert locks.happened.is_set()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "outcome_unknown")
        operator.rollback()
        eventually(lambda: outcome(service, answer)["state"] == "committed")
        assert values(service) == [1, 3]


def test_prepared_where_commits_have_just_ceased_to_wait() -> None:
    """Nothing says that the standby has it. Where the new primary has not given out its number yet, it is run again."""
    with serving(waits=True) as (pair, service):
        assert insert(service, 1).status_code == 200

        def cease() -> None:
            pair.part()
            pair.wait_for("")

        pair.way.arm(Fault(is_prepare, At.REQUEST, cease, cut=False))
        answer = insert_while_it_dies(pair, service, At.REQUEST, pair.take_over)
        assert values(service) == ([1, 3] if answer.status_code == 200 else [1])
        assert answer.status_code == 200 or outcome(service, answer).get("state") != "committed"


def test_commits_begin_to_wait_behind_prepare() -> None:
    """The server says that they wait, and PREPARE has waited for nobody. The new primary never got it, and has given
    out its number again."""
    with serving(waits=False) as (pair, service):
        assert insert(service, 1).status_code == 200
        pair.part()
        pair.way.arm(Fault(is_question_for_standbys, At.REQUEST, lambda: pair.wait_for("*"), cut=False))
        answer = insert_while_it_dies(pair, service, At.REQUEST, pair.promote)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "outcome_unknown")
        assert outcome(service, answer)["error"]["code"] == "outcome_unknown"
        assert values(service) == [1]


@pytest.mark.parametrize(
    ("headers", "more", "told"),
    [
        ({}, "", "outcome_unknown"),
        ({"Idempotency-Key": "key"}, "", "not_found"),
        ({}, "create temporary table temporary ()", "not_found"),
    ],
    ids=["two phases", "kept answer", "one phase"],
)
def test_acknowledged_where_commits_have_just_ceased_to_wait(headers: dict[str, str], more: str, told: str) -> None:
    """It is lost with the primary, and its number is used again: no id says that it is committed. Where it had a
    record, that is gone, too."""
    with serving(waits=True) as (pair, service):
        assert insert(service, 1).status_code == 200
        pair.way.arm(Fault(lambda sql: sql == "insert into t values (2)", At.REQUEST, pair.part, cut=False))
        last = is_wait if more else is_prepare
        ceases = pair.way.arm(Fault(last, At.REQUEST, lambda: pair.wait_for(""), cut=False))
        acknowledged = insert(service, 2, headers=headers, more=more)
        assert acknowledged.status_code == 200, acknowledged.text
        assert ceases.happened.is_set()
        assert outcome(service, acknowledged)["state"] == "committed"
        pair.primary.crash()
        pair.promote()
        wait_until_served(service)
        assert values(service) == [1]
        assert outcome(service, acknowledged)["error"]["code"] == told


@pytest.mark.parametrize("durability", ["engine", "replicated"])
def test_the_same_server_starts_again(durability: str) -> None:
    """What it has committed is told at once, though its start is another."""
    with serving(waits=durability == "replicated", durability=durability) as (pair, service):
        assert insert(service, 1).status_code == 200
        answer = insert_while_it_dies(pair, service, At.ANSWER, pair.primary.start)
        assert answer.status_code == 200, answer.text
        assert outcome(service, answer)["state"] == "committed"
        assert values(service) == [1, 3]


def test_its_owner_commits_what_it_has_found_prepared() -> None:
    """The answer to PREPARE is lost; the owner finds it prepared, and its COMMIT waits for a standby that is away."""
    with serving(waits=True) as (pair, service):
        assert insert(service, 1).status_code == 200
        waits = pair.way.arm(Fault(is_commit, At.REQUEST, pair.standby.freeze, cut=False))
        pair.way.arm(Fault(is_prepare, At.ANSWER))
        answer = insert(service, 3, timeout_ms=5000)
        assert waits.happened.is_set()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "outcome_unknown")
        assert outcome(service, answer)["state"] == "in_progress"
        pair.standby.thaw()
        eventually(lambda: outcome(service, answer)["state"] != "in_progress")
        assert outcome(service, answer)["state"] == "committed"
        assert values(service) == [1, 3]


def test_nothing_is_committed_before_a_standby_has_it() -> None:
    """With `durability` set to replicated, also where the engine has just ceased to wait for one."""
    with serving(waits=True, durability="replicated") as (pair, service):
        assert insert(service, 1).status_code == 200

        def cease() -> None:
            pair.wait_for("")
            pair.standby.freeze()

        pair.way.arm(Fault(is_prepare, At.REQUEST, cease, cut=False))
        answer = insert(service, 3, timeout_ms=3000)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "outcome_unknown")
        assert outcome(service, answer)["state"] == "in_progress"
        pair.standby.thaw()
        pair.wait_for("*")
        eventually(lambda: outcome(service, answer)["state"] == "committed")


def test_what_is_left_over_is_noted_where_it_is() -> None:
    """Two are left over. The primary stands still with the first, another takes its place, which never got the
    second."""
    with serving(waits=False) as (pair, service):
        assert insert(service, 1).status_code == 200
        gid = next(sql for sql in pair.way.seen if is_prepare(sql)).split("'")[1].rsplit("_", 1)[0]
        [(database,)] = pair.primary.execute("select datname from pg_database where datname ~ '^tg_' limit 1")
        pair.part()

        def go_on_elsewhere() -> None:
            pair.primary.freeze()
            pair.take_over()

        stands = pair.way.arm(
            Fault(lambda sql: is_commit(sql) and "_left" in sql, At.REQUEST, go_on_elsewhere, cut=False)
        )
        with psycopg.connect(pair.primary.url(str(database)), autocommit=True) as left:
            left.execute(f"set session authorization {database}_w".encode())
            for value in (10, 11):
                left.execute("begin")
                left.execute(f"insert into t values ({value})".encode())
                left.execute(f"prepare transaction '{gid}_1_left{value}'".encode())
        assert stands.happened.wait(30)
        try:
            wait_until_served(service)
            looked = len(pair.other_way.seen)
            eventually(lambda: any("pg_prepared_xacts" in sql for sql in list(pair.other_way.seen)[looked:]))
            assert pair.standby.execute("select gid from engine.recovered where gid ~ '_left'", "pair") == []
            assert values(service) == [1]
        finally:
            pair.primary.thaw()


def test_an_abort_that_no_standby_has_is_not_told() -> None:
    """An operator cuts its wait short. A failover could take the record back, and then let the original commit."""
    with serving(waits=True) as (pair, service):
        path = f"/v1/transaction/txn_{uuid.uuid4().hex}"
        told: list[Any] = []

        def abort() -> None:
            with service.client() as client:
                client.post(f"{path}/abort", timeout=60)

        def ask() -> None:
            with service.client() as client:
                told.append(client.get(path, timeout=60).json()["state"])

        decides = pair.way.arm(Fault(lambda sql: "tuplegate.decide" in sql, At.REQUEST, pair.standby.freeze, cut=False))
        aborting, asking = threading.Thread(target=abort), threading.Thread(target=ask)
        aborting.start()
        assert decides.happened.wait(30)
        try:
            eventually(lambda: pair.primary.execute(f"{_WAITS} and query = 'COMMIT'") == [(1,)])
            pair.primary.execute("select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
            aborting.join()
            asking.start()
            eventually(lambda: bool(told) or pair.primary.execute(f"{_WAITS} and query ~ 'logical_emit'") == [(1,)])
            assert told == []
        finally:
            pair.standby.thaw()
        asking.join()
        assert told == ["aborted"]


def test_a_reset_waits_for_a_commit_that_waits_for_a_standby() -> None:
    """To cancel it would show what a failover takes back; to pass it over would leave it behind."""
    with serving(waits=True) as (pair, service), service.client() as client:
        [(database,)] = pair.primary.execute("select datname from pg_database where datname ~ '^tg_' limit 1")
        pair.primary.execute(f"create role visitor login password 'visitor' in role {database}_w")
        pair.standby.execute("select pg_wal_replay_pause()")
        answers: list[httpx.Response] = []
        said: list[str] = []
        resetting = threading.Thread(target=lambda: answers.append(client.post("/admin/reset", timeout=60)))
        looks = len([sql for sql in pair.way.seen if is_look_at_commits(sql)])
        with psycopg.connect(
            pair.primary.url(str(database), user="visitor", password="visitor"), autocommit=True
        ) as tenant:
            tenant.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
            tenant.execute("set synchronous_commit = remote_apply")
            committing = threading.Thread(target=tenant.execute, args=("insert into t values (1)",))
            committing.start()
            try:
                eventually(lambda: pair.primary.execute(_WAITS) == [(1,)])
                resetting.start()
                # The last look but one came behind what is done to sessions.
                eventually(
                    lambda: (
                        bool(said) or len([sql for sql in list(pair.way.seen) if is_look_at_commits(sql)]) > looks + 1
                    )
                )
                assert (said, answers) == ([], [])
            finally:
                pair.standby.execute("select pg_wal_replay_resume()")
            committing.join()
        resetting.join()
        assert said == []
        assert answers[0].status_code == 200, answers[0].text
