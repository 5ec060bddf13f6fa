"""The parts of the adapter for CockroachDB that need no cluster: its words, its kinds of statements, its records."""

import asyncio
import json
from typing import Any, cast

import msgspec
import pytest

from tuplegate.engine.cockroach.cluster.connector import ServiceSession
from tuplegate.engine.cockroach.cluster.probes import find_problems, is_here
from tuplegate.engine.cockroach.dialect.cluster_errors import find_position, is_node_failure, refine
from tuplegate.engine.cockroach.dialect.narrow_numbers import check_numbers, may_be_cut
from tuplegate.engine.cockroach.dialect.untold_types import UntoldTypes
from tuplegate.engine.cockroach.preparation import installing
from tuplegate.engine.cockroach.query.committing import explain_commit
from tuplegate.engine.cockroach.query.rules import Kind, find_kind, undoes_cancelled
from tuplegate.engine.cockroach.query.run import NodeRun
from tuplegate.engine.cockroach.transaction.deciding import decide
from tuplegate.engine.cockroach.transaction.ledger import Ledger
from tuplegate.engine.cockroach.transaction.records import Records, new_number, number_of
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.connections.logins import database_secret
from tuplegate.engine.port import (
    Access,
    Bounds,
    Commit,
    Conflict,
    CopyRefused,
    MultipleStatements,
    NotInTime,
    Outcome,
    OutcomeUnknown,
    ParameterMismatch,
    ParseFailed,
    Statement,
    StatementFailed,
    Target,
    TimedOut,
    TransactionResult,
)
from tuplegate.engine.run.stages import Stage
from tuplegate.engine.sql.facts import refuse_copy
from tuplegate.protocol.statements import first_keyword


def _statement(sql: str) -> Statement:
    return Statement(sql, first_keyword(sql)[0])


@pytest.mark.parametrize(
    ("detail", "position"),
    [
        ("source SQL:\nselec 1\n^", 1),
        ("source SQL:\nselect 'é€😀', 1 frm x y\n                          ^", 21),
        ("source SQL:\nselect 1\n  frm x y\n      ^", 16),
        ("source SQL:\nselect 1 from\n             ^", 14),
        ("source SQL:\nselect", None),
    ],
)
def test_the_position_is_read_off_the_drawing(detail: str, position: int | None) -> None:
    """In characters, though the engine draws it in bytes."""
    assert find_position(detail) == position


def test_the_position_counts_what_the_drawing_leaves_out() -> None:
    """Comments and blanks before the first word; the engine's drawing begins with that."""
    text = "-- é select )\n /* é */ select )"
    assert find_position("source SQL:\nselect )\n       ^", text) == text.rindex(")") + 1
    assert find_position("source SQL:\nselect )\n       ^", "something else") == 8


def test_refusals_are_those_of_the_port() -> None:
    syntax = refine(
        StatementFailed("at or near", sqlstate="42601", detail="source SQL:\nselec 1\n^", hint="try \\h SELECT")
    )
    assert (type(syntax), syntax.position, syntax.detail, syntax.hint) == (ParseFailed, 1, None, None)
    unknown = refine(
        StatementFailed("unimplemented", sqlstate="0A000", detail="source SQL:\ncreate domain d\n       ^")
    )
    assert (type(unknown), unknown.position, unknown.detail) == (StatementFailed, 8, None)
    two = refine(StatementFailed("prepared statement had 2 statements, expected 1", sqlstate="42P14"))
    assert (type(two), two.sqlstate) == (MultipleStatements, "42601")
    count = refine(StatementFailed("expected 1 arguments, got 2", sqlstate="08P01"))
    assert (type(count), count.message) == (
        ParameterMismatch,
        "2 parameters were sent, the statement has 1 placeholders",
    )


@pytest.mark.parametrize("kind", [StatementFailed, *StatementFailed.__subclasses__()])
def test_every_refusal_can_be_refined(kind: type[StatementFailed]) -> None:
    """Those of the service too: they pass the same place as the engine's."""
    bounds = Bounds(5, None, 1)
    failure = TimedOut(bounds) if kind is TimedOut else kind("refused", sqlstate="57014")
    refined = refine(failure, "select 1")
    assert (type(refined), refined.message, refined.sqlstate) == (kind, failure.message, "57014")


@pytest.mark.parametrize(
    "sql",
    [
        "create table t as select 1",
        "/* */ Create temp table if not exists t (a int)",
        "create unique index on t (a)",
        "create materialized view v as select 1",
        "alter table t add column b int",
        "drop table t",
    ],
)
def test_a_cancelled_definition_is_undone(sql: str) -> None:
    """Its commit comes behind its answer, where no cancel reaches it."""
    assert undoes_cancelled(_statement(sql))


@pytest.mark.parametrize(
    "sql",
    [
        "execute p",
        "call p()",
        "create statistics table from t",
        "analyze table t",
        "create role index",
        "set cluster setting a.b = 1",
        "create",
        "truncate t",
    ],
)
def test_what_may_commit_on_its_own_is_not_known_to_be_undone(sql: str) -> None:
    """It may have been applied although the engine says that it was cancelled."""
    assert not undoes_cancelled(_statement(sql))


def test_form_letters_and_raw_keys_are_cut() -> None:
    letter = "You have attempted to use a feature that is not yet implemented.\nSee: https://go.crdb.dev/issue-v/1/dev"
    assert refine(StatementFailed("unimplemented", sqlstate="0A000", hint=letter)).hint is None
    kept = refine(StatementFailed("x", sqlstate="0A000", hint=f"Use another type.\n{letter}"))
    assert kept.hint == "Use another type."
    raw = "restart transaction: TransactionRetryWithProtoRefreshError: WriteTooOldError: write for key /Table/106/1/1/0"
    conflict = refine(Conflict(raw, sqlstate="40001", hint="See: https://www.cockroachlabs.com/docs"))
    assert type(conflict) is Conflict
    assert "/Table" not in conflict.message
    assert conflict.hint is None


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("select 1", Kind.READS),
        ("(select 1)", Kind.READS),
        ("show tables", Kind.READS),
        ("with x as (select 1) select * from x", Kind.READS),
        ("with x as (insert into t values (1) returning a) select * from x", Kind.WRITES),
        ("select nextval('s')", Kind.WRITES),
        ("explain analyze insert into t values (1)", Kind.WRITES),
        ("insert into t values (1)", Kind.WRITES),
        ("upsert into t values (1)", Kind.WRITES),
        ("create table t (a int)", Kind.DEFINES),
        ("truncate t", Kind.DEFINES),
        ("set time zone 'UTC'", Kind.DEFINES),
    ],
)
def test_what_may_write_runs_in_a_block(sql: str, kind: Kind) -> None:
    assert find_kind(_statement(sql)) is kind


def test_copy_from_and_to_the_client_is_refused() -> None:
    for sql in ("copy t from stdin", "COPY (select 1) TO STDOUT"):
        with pytest.raises(CopyRefused):
            refuse_copy(_statement(sql))
    refuse_copy(_statement("copy t from 'file'"))


def test_types_are_told_where_the_engine_cannot_tell_them() -> None:
    """One after the other, and none twice."""
    types = UntoldTypes()
    untold = StatementFailed("could not determine data type of placeholder $2", sqlstate="42P18")
    assert types.of_each("select $1, $2", [b"a", b"b"]) == []
    assert types.learn("select $1, $2", untold) is True
    assert types.of("select $1, $2") == [0, 25]
    assert types.of_each("select $1, $2", [b"a", b"b", b"c"]) == [0, 25, 0]
    assert types.learn("select $1, $2", untold) is False
    assert types.learn("select 1", StatementFailed("division by zero", sqlstate="22012")) is False


def test_records_are_those_of_one_database() -> None:
    """A state counts only in the row, and in the database, that it was made for."""
    one, other = (Records(database_secret(b"s" * 32, name)) for name in ("tg_1", "tg_2"))
    number = new_number()
    assert 0 <= number < 2**62
    committed = one.state(number, Outcome.COMMITTED)
    assert one.read_state(number, committed) is Outcome.COMMITTED
    assert one.read_state(number, one.state(number, Outcome.ABORTED)) is Outcome.ABORTED
    assert one.read_state(number + 1, committed) is None
    assert other.read_state(number, committed) is None
    assert one.read_state(number, None) is None
    assert one.key(number) != other.key(number)
    assert number_of("txn_a") == number_of("txn_a") != number_of("txn_b")
    assert number_of("txn_a") < 2**62


def test_an_address_of_this_machine() -> None:
    assert all(map(is_here, ("", "localhost", "127.0.0.1", "::1", "/tmp")))
    assert not any(map(is_here, ("10.0.0.1", "db.example.com", "0.0.0.0")))


@pytest.mark.parametrize(
    ("sqlstate", "message"),
    [
        ("58C01", "inbox communication error: rpc error: code = Canceled desc = context canceled"),
        ("58C00", "replica unavailable: (n1,s1):1 unable to serve request to r113"),
        ("XXUUU", "rpc error: code = Unavailable desc = error reading from server: connection reset by peer"),
        ("XXUUU", "breaker open"),
        ("XXUUU", "failed to send RPC: sending to all replicas failed; last error: failed to connect to n3: stopped"),
        ("57014", "query execution canceled"),
    ],
)
def test_a_node_that_did_not_reach_another_says_nothing_of_a_statement(sqlstate: str, message: str) -> None:
    """In a commit nobody knows what became of it, elsewhere nothing was applied."""
    failure = StatementFailed(message, sqlstate=sqlstate)
    assert is_node_failure(failure)
    assert isinstance(explain_commit(failure), OutcomeUnknown)


def test_other_failures_are_of_the_statement() -> None:
    for sqlstate, message in (("XXUUU", "unknown function: breaker()"), ("23505", "duplicate: rpc error"), (None, "")):
        failure = StatementFailed(message, sqlstate=sqlstate)
        assert not is_node_failure(failure)
        assert explain_commit(failure) is failure
    limited = StatementFailed("query execution canceled due to statement timeout", sqlstate="57014")
    assert not is_node_failure(limited), "the tenant has set that limit"


class _Lost:
    """A run whose connection is lost in its commit, with a ledger that cannot find out what became of that."""

    target = Target("tg_a", Access.WRITE)
    left_s = deadline = 0.0
    stage = Stage.DECIDING

    def __init__(self) -> None:
        self.member = self

    async def run(self, *commands: Command) -> list[object]:
        raise ConnectionLost("gone")

    def close(self, reason: str) -> None:
        pass

    def records(self, database: str) -> Records:
        return Records(b"secret")

    async def settle(self, database: str, number: int, seconds: float) -> None:
        return None


def test_a_commit_that_cannot_be_settled_comes_with_a_ticket_that_is_settled_later() -> None:
    """One without a word would be a number that the engine knows, and this engine knows it only once it is settled."""
    lost = _Lost()
    done = TransactionResult([], Commit.ENGINE, 7, 1, 0, [])
    with pytest.raises(OutcomeUnknown) as caught:
        asyncio.run(decide(cast(NodeRun, lost), cast(Ledger, lost), 7, None, done))
    ticket = caught.value.ticket
    assert ticket is not None
    assert ticket.number == 7
    assert len(ticket.word) == 10
    assert ticket.word.isalnum()


class _Names:
    """Answers as the table of held names does. `is_free`: nobody else holds the name."""

    def __init__(self, *, is_free: bool) -> None:
        self._is_free = is_free

    async def fetch(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        return [("1",)] if self._is_free else []


def _prepare(monkeypatch: pytest.MonkeyPatch, *, is_free: bool, lasts_s: float) -> None:
    monkeypatch.setattr(installing, "_WAIT_S", 0.05)

    async def prepare() -> None:
        async with installing.hold_installation(cast(ServiceSession, _Names(is_free=is_free))):
            await asyncio.sleep(lasts_s)

    asyncio.run(prepare())


def test_a_preparation_may_take_longer_than_others_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _prepare(monkeypatch, is_free=True, lasts_s=0.2)


def test_who_waits_too_long_for_a_preparation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotInTime, match="another service process prepares"):
        _prepare(monkeypatch, is_free=False, lasts_s=0)


class _Cluster:
    """Answers what is asked before a cluster is used; some of it in another way than a cluster that will do."""

    def __init__(self, *, is_admin: bool = True, isolation: str = "serializable", lacks: str = "nothing") -> None:
        self._is_admin = is_admin
        self._isolation = isolation
        self._lacks = lacks

    async def fetch(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        if self._lacks in sql:
            raise StatementFailed("unrecognized", sqlstate="42704")
        if "is_admin" in sql:
            return [("t" if self._is_admin else "f",)]
        return [(self._isolation if "isolation" in sql else "1",)]


def _find_problems(conninfo: str = "host=127.0.0.1", *, is_secure: bool = False, **cluster: Any) -> list[str]:
    session = cast(ServiceSession, _Cluster(**cluster))
    return asyncio.run(find_problems(session, conninfo, is_secure=is_secure))


def test_a_cluster_that_will_do() -> None:
    assert _find_problems() == []
    assert _find_problems("host=a,b,c", is_secure=True) == []
    assert _find_problems("host=db.example hostaddr=127.0.0.1") == [], "its address counts"


@pytest.mark.parametrize("conninfo", ["host=db.example", "host=127.0.0.1,10.0.0.2", "host=localhost hostaddr=10.0.0.2"])
def test_an_insecure_cluster_over_a_network(conninfo: str) -> None:
    [problem] = _find_problems(conninfo)
    assert "--insecure" in problem
    assert "sslmode=verify-full" in problem, "how to mend it"


def test_a_role_with_too_few_rights() -> None:
    """What it is not shown for lack of rights is not told of the version."""
    [problem] = _find_problems(is_admin=False, lacks="crdb_internal.cluster_sessions")
    assert "GRANT admin TO" in problem


@pytest.mark.parametrize("lacks", ["default_int_size", "serial_normalization", "cluster_sessions", "unique_rowid"])
def test_a_version_that_lacks_something(lacks: str) -> None:
    [problem] = _find_problems(lacks=lacks)
    assert lacks in problem
    assert "use a newer one" in problem


def test_a_cluster_whose_transactions_are_not_serializable() -> None:
    [problem] = _find_problems(isolation="read committed")
    assert "read committed" in problem
    assert "use a newer one" in problem


@pytest.mark.parametrize(
    ("oid", "value", "fits"),
    [
        (21, "99999", False),
        (21, '"\\u00399999"', False),
        (21, '" 99999 "', False),
        (21, "32767", True),
        (23, "2147483648", False),
        (23, '"0x80000000"', False),
        (23, "9223372036854775808", True),
        (20, "2147483648", True),
        (1005, '"{1,99999}"', False),
        (1005, '"{1,\\u00399999}"', False),
        (1007, '"{{1},{2147483648}}"', False),
        (1007, '"{1,2147483647,NULL}"', True),
        (700, "1e300", False),
        (700, "1e39", False),
        (700, "-1.5e300", False),
        (700, "1e-300", False),
        (700, "1e-46", False),
        (700, '"0x1p300"', False),
        (700, "3.4028235e38", True),
        (700, "1e-45", True),
        (700, "0.000", True),
        (700, "0e5", True),
        (700, '"Infinity"', True),
        (701, "1e300", True),
        (1021, '"{1e300}"', False),
        (25, "99999", True),
    ],
)
def test_numbers_that_do_not_fit_are_refused(oid: int, value: str, *, fits: bool) -> None:
    """Written as JSON in any way, also inside of an array."""
    text = str(json.loads(value)) if value[0] == '"' else value
    if fits:
        check_numbers([oid], [text.encode()])
        return
    assert may_be_cut([msgspec.Raw(value.encode())]), "the type is asked for"
    with pytest.raises(StatementFailed) as caught:
        check_numbers([oid], [text.encode()])
    assert caught.value.sqlstate == "22003"
    assert "$1" in caught.value.message


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ("1", False),
        ("9999", False),
        ('"a text of 99999 words"', False),
        ('"12345678-1234-1234-1234-123456789abc"', False),
        ('"2026-11-18"', False),
        ("[1, 2]", False),
        ("[1, 99999]", True),
        ('[1, "\\u0039"]', True),
    ],
)
def test_types_are_asked_for_only_where_a_number_is_wide(value: str, *, asked: bool) -> None:
    assert may_be_cut([msgspec.Raw(value.encode())]) is asked
