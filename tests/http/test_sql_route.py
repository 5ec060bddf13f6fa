"""`POST /sql`: Neon's protocol, by its words on the wire. Its clients themselves are in tests/extended."""

import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from tests.cases import each_of
from tests.control import Control, new_organization
from tests.metrics import scrape
from tests.needs import Abilities, by_words, needs
from tests.service import Service, Sql

RAW = {"Neon-Raw-Text-Output": "true", "Neon-Array-Mode": "true"}
FIELDS = {
    *("message", "code", "severity", "detail", "hint", "position", "internalPosition", "internalQuery", "where"),
    *("schema", "table", "column", "dataType", "constraint", "file", "line", "routine"),
}
OWN = {"success", "error", "request_id"}
"""What every route says of an error."""

Row = dict[str, Any]


class Neon:
    """A client that sends a connection string, as the driver does."""

    def __init__(self, service: Service, key: str | None, database: str = "main") -> None:
        login = "any" if key is None else f"any:{key}"
        self.headers = {"Neon-Connection-String": f"postgresql://{login}@db.example.com/{database}?sslmode=require"}
        self.client = httpx.Client(base_url=service.url, timeout=60, trust_env=False, verify=service.trust)

    def post(self, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
        sent = {**self.headers, "Content-Type": "text/plain;charset=UTF-8", **(headers or {})}
        return self.client.post("/sql", content=body if isinstance(body, bytes) else json.dumps(body), headers=sent)

    def result(self, query: str, params: list[Any] | None = None, headers: dict[str, str] | None = None) -> Row:
        answer = self.post({"query": query, "params": params or []}, RAW if headers is None else headers)
        assert answer.status_code == 200, answer.text
        result: Row = answer.json()
        return result

    def rows(self, query: str, params: list[Any] | None = None, headers: dict[str, str] | None = None) -> list[Any]:
        rows: list[Any] = self.result(query, params, headers)["rows"]
        return rows

    def batch(self, *queries: str | Row, headers: dict[str, str] | None = None) -> list[Row]:
        answer = self.post({"queries": as_queries(queries)}, {**RAW, **(headers or {})})
        assert answer.status_code == 200, answer.text
        results: list[Row] = answer.json()["results"]
        return results

    def fails(self, body: Any, headers: dict[str, str] | None = None, status: int = 400) -> Row:
        """The error of a request that is refused."""
        answer = self.post({"query": body} if isinstance(body, str) else body, headers)
        error: Row = answer.json()
        assert answer.status_code == status, error
        assert set(error) == FIELDS | OWN
        assert (error["success"], error["error"]["message"]) == (False, error["message"])
        return error


def as_queries(queries: tuple[str | Row, ...]) -> list[Row]:
    return [{"query": query} if isinstance(query, str) else query for query in queries]


@pytest.fixture
def neon(service: Service) -> Iterator[Neon]:
    opened = Neon(service, service.key)
    yield opened
    opened.client.close()


@pytest.fixture
def t(sql: Sql) -> Iterator[str]:
    """A table `(a int primary key, b varchar(20))`."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    sql(f"create table {name} (a int primary key, b varchar(20))")
    yield name
    sql(f"drop table {name}")


# -- answers ------------------------------------------------------------------------------------------------------


def test_a_result_describes_its_columns(neon: Neon, sql: Sql, t: str) -> None:
    """By the engine's numbers: table, column, type, its size and its modifier."""
    sql(f"insert into {t} values (1, 'x'), (2, null)")
    table = sql.value("select $1::regclass::oid", [t])
    result = neon.result(f"select b, a, a::int8 + 1 as c from {t} order by a")
    assert result == {
        "fields": [
            {
                "name": name,
                "dataTypeID": type,
                "tableID": of,
                "columnID": column,
                "dataTypeSize": size,
                "dataTypeModifier": modifier,
                "format": "text",
            }
            for name, type, of, column, size, modifier in [
                ("b", 1043, table, 2, -1, 24),
                ("a", 23, table, 1, 4, -1),
                ("c", 20, 0, 0, 8, -1),
            ]
        ],
        "rows": [["x", "1", "2"], [None, "2", "3"]],
        "command": "SELECT",
        "rowCount": 2,
        "rowAsArray": True,
    }
    assert neon.result(f"select a, a from {t} where a = 9", headers={})["rows"] == []


@each_of(
    ("statement", "command", "count"),
    by_words(
        [
            ("create table {t}_x (a int)", "CREATE", None),
            ("insert into {t} values (1, 'x'), (2, 'y')", "INSERT", 2),
            ("update {t} set b = 'z' where a = 1 returning a", "UPDATE", 1),
            ("select a from {t}", "SELECT", 2),
            ("create table {t}_y as select a from {t}", "SELECT", 2),
            ("merge into {t} using (values (1)) v (a) on {t}.a = v.a when matched then delete", "MERGE", 1),
            ("delete from {t} where a = 2", "DELETE", 1),
            ("select from generate_series(1, 250)", "SELECT", 250),
            ("do $$ begin end $$", "DO", None),
            ("vacuum {t}", "VACUUM", None),
            ("drop table if exists {t}_x, {t}_y", "DROP", None),
        ]
    ),
)
def test_the_count_is_that_of_the_command_tag(neon: Neon, t: str, statement: str, command: str, count: int) -> None:
    result = neon.result(statement.format(t=t))
    assert (result["command"], result["rowCount"]) == (command, count)


VALUES = [
    ("int2", "-5", -5),
    ("int4", "2147483647", 2147483647),
    ("int8", "9007199254740993", "9007199254740993"),
    ("oid", "23", "23"),
    ("numeric", "1.50", "1.50"),
    ("float4", "0.5", 0.5),
    ("float8", "NaN", "NaN"),
    ("bool", "t", True),
    ("text", 'a "b" \\ \n é', 'a "b" \\ \n é'),
    ("bytea", "\\x00ff", "\\x00ff"),
    ("date", "2026-11-14", "2026-11-14"),
    ("timestamp", "2026-11-14 23:57:08.741335", "2026-11-14 23:57:08.741335"),
    ("timestamptz", "2026-11-14 23:57:08+00", "2026-11-14 23:57:08+00"),
    ("interval", "1 day 02:00:00", "1 day 02:00:00"),
    ("json", '{"a":\n1}', {"a": 1}),
    ("jsonb", '[1, null, "x"]', [1, None, "x"]),
    ("uuid", "6f9619ff-8b86-d011-b42d-00cf4fc964ff", "6f9619ff-8b86-d011-b42d-00cf4fc964ff"),
    ("int4[]", "{{1,2},{3,NULL}}", [[1, 2], [3, None]]),
    ("int8[]", "{1,2}", ["1", "2"]),
    ("text[]", '{a,"b c",NULL,""}', ["a", "b c", None, ""]),
    ("timestamptz[]", '{"2026-11-14 23:57:08+00"}', ["2026-11-14 23:57:08+00"]),
    ("int4range", "[1,3)", "[1,3)"),
]
"""A type, the engine's text of a value, and what that is without raw text."""


@needs("range", "arrays")
def test_values_are_the_engine_s_text_or_json_where_json_has_the_type(neon: Neon) -> None:
    """The text goes both ways as it is."""
    listed = ", ".join(f"${i}::{type} as c{i}" for i, (type, _, _) in enumerate(VALUES, start=1))
    texts = [text for _, text, _ in VALUES]
    assert neon.rows(f"select {listed}", texts) == [texts]
    json_values = [value for _, _, value in VALUES]
    assert neon.rows(f"select {listed}", texts, {"Neon-Array-Mode": "true"}) == [json_values]
    by_name = {f"c{i}": value for i, value in enumerate(json_values, start=1)}
    assert neon.rows(f"select {listed}", texts, {"Neon-Raw-Text-Output": "false"}) == [by_name]
    nulls = ", ".join(f"null::{type}" for type, _, _ in VALUES)
    assert neon.rows(f"select {nulls}") == neon.rows(f"select {nulls}", headers={"Neon-Array-Mode": "true"})


@needs("domain")
def test_large_values_and_types_of_the_tenant_s_own_are_the_same(neon: Neon, sql: Sql) -> None:
    """Values that are written in pieces; and a type that nobody has asked about."""
    sql("create type sql_mood as enum ('sad', 'happy')")
    sql("create domain sql_day as timestamptz")
    try:
        query = (
            "select 'sad'::sql_mood as m, '{happy}'::sql_mood[] as ms, '2026-01-01 00:00:00+00'::sql_day as d,"
            " repeat('é', 100000) as long, array_agg(g::int8) as many, decode(repeat('00', 70000), 'hex') as bytes"
            " from generate_series(1, 20000) g"
        )
        numbers = [str(n) for n in range(1, 20001)]
        [[mood, moods, day, long, many, data]] = neon.rows(query)
        assert (mood, moods, day, long) == ("sad", "{happy}", "2026-01-01 00:00:00+00", "é" * 100000)
        assert (many, data) == ("{" + ",".join(numbers) + "}", "\\x" + "00" * 70000)
        [[mood, moods, day, long, many, data]] = neon.rows(query, headers={"Neon-Array-Mode": "true"})
        assert (mood, moods, day, many) == ("sad", ["happy"], "2026-01-01 00:00:00+00", numbers)
    finally:
        sql("drop type sql_mood")
        sql("drop domain sql_day")


def test_a_table_that_others_have_made_anew_is_described_as_it_is(
    service: Service, neon: Neon, sql: Sql, t: str
) -> None:
    """Also where the statement comes often and was prepared for the old one."""

    def described() -> int:
        table: int = neon.result(f"select a, b from {t} where a = $1", ["1"])["fields"][0]["tableID"]
        return table

    before = {described() for _ in range(12)}
    database, owner = sql.rows("select current_database()::text, current_user::text", row_mode="arrays")[0]
    with psycopg.connect(service.conninfo(database), autocommit=True) as other:
        other.execute(f"set role {owner}".encode())
        other.execute(f"drop table {t}".encode())
        other.execute(f"create table {t} (a int primary key, b varchar(20))".encode())
    assert described() == sql.value("select $1::regclass::oid", [t])
    assert described() not in before


# -- parameters ---------------------------------------------------------------------------------------------------


@each_of(
    ("type", "param", "text"),
    [
        ("int", 42, "42"),
        ("numeric", 1.5, "1.5"),
        ("bool", True, "t"),
        ("bool", "f", "f"),
        ("text", "{1,2}", "{1,2}"),
        ("text", "null", "null"),
        ("text", None, None),
        ("jsonb", "[1, 2]", "[1, 2]"),
        ("jsonb", '"x"', '"x"'),
        ("jsonb", {"a": [1, "é"]}, '{"a": [1, "é"]}'),
        ("json", {"a": None}, '{"a": null}'),
        ("int[]", "{1,NULL}", "{1,NULL}"),
        ("int[]", [1, None, "3"], "{1,NULL,3}"),
        ("bool[]", [True, False], "{t,f}"),
        ("text[]", ["a", None, "NULL", "", 'q"\\', "{,}"], '{a,NULL,"NULL","","q\\"\\\\","{,}"}'),
        pytest.param("text[]", [["a"], ["b c"]], '{{a},{"b c"}}', marks=needs("arrays")),
        ("text[]", [], "{}"),
        pytest.param("jsonb[]", [{"a": 1}, {"b": 2}], '{"{\\"a\\": 1}","{\\"b\\": 2}"}', marks=needs("column jsonb[]")),
        ("bytea", "\\x6869", "\\x6869"),
        ("timestamptz", "2026-11-14T23:57:08.500+00:00", "2026-11-14 23:57:08.5+00"),
    ],
)
def test_a_parameter_is_written_by_its_own_kind(neon: Neon, type: str, param: Any, text: str) -> None:
    """A string as it is, an array as one of the engine's, all else as its JSON; what it means is for the engine."""
    assert neon.rows(f"select $1::{type}", [param]) == [[text]]


def test_parameters_in_any_number_and_size(neon: Neon) -> None:
    """Those of a long body are read and written in pieces, of one query and of several."""
    long = [str(n) * 3 for n in range(30_000)]
    [[count, last]] = neon.rows("select cardinality($1::text[]), ($1::text[])[30000]", [long])
    assert (count, last) == ("30000", long[-1])
    places = " + ".join(f"${n}::int" for n in range(1, 2001))
    assert neon.rows(f"select {places}", [1] * 2000) == [["2000"]]
    query = {"query": "select cardinality($1::text[]), length($2)", "params": [long, "é" * 100_000]}
    results = neon.batch(query, "select 1", query)
    assert [result["rows"] for result in results] == [[["30000", "100000"]], [["1"]], [["30000", "100000"]]]
    error = neon.fails({"queries": [{"query": "select 1", "params": ["x" * 100_000]}, {"query": 5}]})
    assert "queries[1].query" in error["message"]


@each_of(
    ("body", "code"),
    [
        ({"query": "select $1::int", "params": []}, "08P01"),
        ({"query": "select 1", "params": ["1"]}, "08P01"),
        ({"query": "select $1::int", "params": ["x"]}, "22P02"),
        ({"query": "select $1::text", "params": ["a\0b"]}, "22021"),
        ({"query": "select $1::json", "params": ["x"]}, "22P02"),
        ({"query": "select 1; select 2"}, "42601"),
        ({"query": " -- nothing"}, "42601"),
        ({"query": "begin"}, "0A000"),
        ({"queries": [{"query": "select 1"}, {"query": "commit"}]}, "0A000"),
        ({"query": "copy pg_class to stdout"}, "0A000"),
        ({}, "08P01"),
        ({"query": "select 1", "queries": []}, "08P01"),
        ({"queries": [], "arrayMode": True}, "08P01"),
        ({"query": "select 1", "parameters": []}, "08P01"),
        ({"queries": ["select 1"]}, "08P01"),
        ({"queries": [{"query": "select 1"}] * 1001}, "08P01"),
        (b"select 1", "08P01"),
        (b'{"query": "\xff"}', "08P01"),
    ],
)
def test_what_cannot_be_run_is_400_with_a_code(neon: Neon, body: Any, code: str) -> None:
    error = neon.fails(body)
    assert error["code"] == code
    assert error["severity"] == "ERROR"


# -- several statements -------------------------------------------------------------------------------------------


def test_several_statements_are_one_transaction(neon: Neon, t: str) -> None:
    """Each has its result, in the form that it asks for."""
    results = neon.batch(
        {"query": f"insert into {t} values ($1, $2)", "params": [1, "x"]},
        {"query": f"select * from {t}", "arrayMode": False},
        f"select * from {t}",
        f"select count(*) = 1 from {t}",
    )
    assert [result["rows"] for result in results] == [[], [{"a": "1", "b": "x"}], [["1", "x"]], [["t"]]]
    assert [result["rowAsArray"] for result in results] == [True, False, True, True]
    assert [result["rowCount"] for result in results] == [1, 1, 1, 1]
    assert neon.batch() == []


@needs("positions")
def test_of_several_statements_with_an_error_none_is_applied(neon: Neon, t: str) -> None:
    """The error is that of the statement, with its place in that one's text; also one that comes with the commit."""
    error = neon.fails({"queries": as_queries((f"insert into {t} values (1, 'x')", "select 1 as one, nothing"))})
    assert (error["code"], error["position"], error["error"]["statement"]) == ("42703", "18", 1)
    error = neon.fails(
        {"queries": as_queries((f"insert into {t} values (1, 'x')", f"insert into {t} values (1, 'y')"))}
    )
    assert (error["code"], error["table"], error["constraint"]) == ("23505", t, f"{t}_pkey")
    assert neon.rows(f"select count(*) from {t}") == [["0"]]


@each_of("level", ["ReadUncommitted", "ReadCommitted", "RepeatableRead", "Serializable"])
def test_every_level_is_raised_to_the_strongest_which_the_answer_says(neon: Neon, level: str) -> None:
    headers = {"Neon-Batch-Isolation-Level": level, "Neon-Batch-Deferrable": "true", **RAW}
    answer = neon.post({"queries": [{"query": "select current_setting('transaction_isolation')"}]}, headers)
    assert answer.json()["results"][0]["rows"] == [["serializable"]]
    assert answer.headers["neon-batch-isolation-level"] == "Serializable"
    assert answer.headers["neon-batch-deferrable"] == "true"
    assert "neon-batch-read-only" not in answer.headers


def test_a_batch_can_be_read_only(neon: Neon, t: str) -> None:
    headers = {"Neon-Batch-Read-Only": "true"}
    answer = neon.post({"queries": [{"query": f"select * from {t}"}]}, headers)
    assert (answer.status_code, answer.headers["neon-batch-read-only"]) == (200, "true")
    assert neon.fails({"queries": [{"query": f"insert into {t} values (1)"}]}, headers)["code"] == "25006"


@each_of(
    "header",
    [f"Neon-{name}" for name in ("Raw-Text-Output", "Array-Mode")]
    + [f"Neon-Batch-{name}" for name in ("Read-Only", "Deferrable", "Isolation-Level")],
)
def test_a_header_with_a_value_that_it_does_not_take_is_refused(neon: Neon, header: str) -> None:
    """Also where it is for a batch, and the request is none: it was meant for something."""
    assert f"{header} cannot be 'Yes'" in neon.fails("select 1", {header: "Yes"})["message"]


def test_what_meets_a_conflict_is_run_again(service: Service, neon: Neon, t: str) -> None:
    """One statement, and several: none of the clients hears of it, and no increment is lost."""
    neon.rows(f"insert into {t} values (1, '0')")
    increment = f"update {t} set b = (b::int + 1)::text where a = 1"
    failed: list[str] = []

    def work() -> None:
        own = Neon(service, service.key)
        with own.client:
            for number in range(6):
                body = (
                    {"query": increment} if number % 2 else {"queries": as_queries((f"select b from {t}", increment))}
                )
                answer = own.post(body)
                if answer.status_code != 200:
                    failed.append(answer.text)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert neon.rows(f"select b from {t}") == [["36"]]


# -- errors -------------------------------------------------------------------------------------------------------


@needs("do_block", "domain")
def test_an_error_has_all_that_the_engine_says(neon: Neon, t: str) -> None:
    """Of each kind the fields that it has; those that it has not are null."""
    error = neon.fails(f"select 'é', nothing from {t}")
    assert (error["code"], error["position"], error["severity"]) == ("42703", "13", "ERROR")
    assert (error["routine"], error["file"], error["line"].isdigit()) == (
        "errorMissingColumn",
        "parse_relation.c",
        True,
    )
    assert error["error"]["code"] == "sql_error"
    error = neon.fails(f"insert into {t} values (null)")
    assert (error["schema"], error["table"], error["column"], error["code"]) == ("public", t, "a", "23502")
    assert error["detail"] == "Failing row contains (null, null)."
    error = neon.fails("do $$ begin execute 'select 1 + nothing'; end $$")
    assert (error["internalQuery"], error["internalPosition"]) == ("select 1 + nothing", "12")
    assert error["where"].startswith("PL/pgSQL function inline_code_block line 1")
    assert error["position"] is None
    error = neon.fails("select nosuch(1)")
    assert error["hint"]
    neon.rows("create domain sql_positive as int check (value > 0)")
    try:
        error = neon.fails("select (-1)::sql_positive")
    finally:
        neon.rows("drop domain sql_positive")
    assert (error["dataType"], error["constraint"], error["code"]) == ("sql_positive", "sql_positive_check", "23514")


def test_an_answer_that_is_too_large_is_no_part_of_one(neon: Neon) -> None:
    """The driver would take what was cut for all."""
    error = neon.fails("select repeat('x', 100000) from generate_series(1, 700)")
    assert (error["code"], error["error"]["code"]) == ("54000", "sql_error")
    assert "67,108,864 bytes" in error["message"]


def test_a_form_of_answers_that_there_is_none_of_is_refused(neon: Neon) -> None:
    error = neon.fails("select 1", {"Accept": "application/vnd.neon.sql.v1+json"})
    assert (error["code"], error["error"]["code"]) == ("0A000", "not_acceptable")


# -- keys ---------------------------------------------------------------------------------------------------------


def test_the_key_is_the_password_or_the_token(service: Service, neon: Neon, read_key: str) -> None:
    """A key, or a session's token. A token goes before the password."""
    session = Control(service, service.key).post("/v1/session", {"scopes": ["read"]})["token"]
    for opened in (Neon(service, read_key), Neon(service, session), Neon(service, service.key, "")):
        with opened.client:
            assert opened.rows("select 1") == [["1"]]
    reader = Neon(service, read_key)
    with reader.client:
        assert reader.fails("create table no (a int)")["code"] in ("25006", "42501")
        assert reader.post({"query": "drop table if exists no"}, {"Authorization": f"Bearer {service.key}"}).is_success
    nobody = neon.client.post("/sql", content='{"query": "select 1"}')
    assert (nobody.status_code, nobody.json()["code"]) == (400, "28P01")
    bare = {"Authorization": f"Bearer {service.key}"}
    assert neon.client.post("/sql", content='{"query": "select 1::int4 as n"}', headers=bare).json()["rows"] == [
        {"n": 1}
    ]


@each_of(
    ("text", "code", "said"),
    [
        ("postgresql://any:svc_k_wrong@db.example.com/main", "28P01", "well-formed"),
        ("postgresql://any@db.example.com/main", "28P01", "no password"),
        ("postgresql://any:@db.example.com/main", "28P01", "no password"),
        ("postgresql://any:{key}@db.example.com/nowhere", "3D000", "no database 'nowhere'"),
        ("postgresql://any:{key}@db.example.com/a%00b", "08P01", "control character"),
        ("postgresql://any:{key}@db.example.com/" + "x" * 600, "3D000", "no database"),
        ("postgresql://any:{key}@a/main, postgresql://any:{key}@b/main", "08P01", "not a URL"),
        ("postgresql://any:{key}@a/main,any:{key}@b", "08P01", "not a URL"),
        ("postgresql://any:{key}@a/{key}", "3D000", "no database"),
        ("mysql://any:{key}@db.example.com/main", "08P01", "not a URL"),
        ("{key}", "08P01", "not a URL"),
    ],
)
def test_a_wrong_connection_string_says_so_and_not_what_it_is(
    service: Service, neon: Neon, text: str, code: str, said: str
) -> None:
    """With the code that PostgreSQL has for it, which a client can tell apart."""
    error = neon.fails("select 1", {"Neon-Connection-String": text.replace("{key}", service.key)})
    assert error["code"] == code
    assert said in error["message"]
    assert service.key[:20] not in json.dumps(error)
    assert service.key not in service.log


def test_the_name_in_the_string_is_the_database(service: Service) -> None:
    """Of the key's organization, percent-encoded or not."""
    made = new_organization(service)
    made.control.post("/v1/databases", {"name": "second-one"})
    for name in ("second-one", "second%2Done"):
        second, first = Neon(service, made.key, name), Neon(service, made.key)
        with second.client, first.client:
            second.rows("create table if not exists here (a int)")
            assert second.rows("select to_regclass('here')") == [["here"]]
            assert first.rows("select to_regclass('here')") == [[None]]


def test_requests_count_and_beyond_the_limit_they_are_429(service: Service) -> None:
    """In the quota, in the usage and in the metrics, like those of every route."""
    limited = new_organization(service, "tiny")
    neon = Neon(service, limited.key)
    before = scrape(service).total("requests_total", route="/sql", plane="data")
    with neon.client:
        while (answer := neon.post({"query": "select 1"})).status_code == 200:
            assert "ratelimit" in answer.headers
        error = answer.json()
    assert (answer.status_code, error["code"], error["error"]["code"]) == (429, "53400", "rate_limited")
    assert int(answer.headers["retry-after"]) > 0
    assert set(error) == FIELDS | OWN
    assert scrape(service).total("requests_total", route="/sql", plane="data") >= before + 11


def test_the_alias_forwards_it(service: Service) -> None:
    neon = Neon(service.alias, service.key)
    with neon.client:
        assert neon.rows("select $1::int + 1", ["41"]) == [["42"]]
        assert neon.fails("selec")["code"] == "42601"


def test_a_body_that_is_too_large_is_refused(neon: Neon) -> None:
    error = neon.fails({"query": "select $1", "params": ["x" * (11 * 2**20)]}, status=413)
    assert error["error"]["code"] == "body_too_large"


def test_a_key_for_idempotency_works_here_too(neon: Neon, t: str, abilities: Abilities) -> None:
    """One statement, and several; what cannot be kept whole is not run."""
    once = {"Idempotency-Key": uuid.uuid4().hex, **RAW}
    body = {"query": f"insert into {t} values (1, 'x') returning a"}
    first, second = neon.post(body, once), neon.post(body, once)
    assert first.content == second.content
    assert (first.json()["rows"], second.headers["idempotency-replayed"]) == ([["1"]], "true")
    several = {"queries": as_queries((f"insert into {t} values (2, 'x')", f"select count(*) from {t}"))}
    once = {"Idempotency-Key": uuid.uuid4().hex, "Neon-Batch-Isolation-Level": "ReadCommitted", **RAW}
    first, second = neon.post(several, once), neon.post(several, once)
    assert first.content == second.content
    assert second.headers["neon-batch-isolation-level"] == "Serializable"
    once = {"Idempotency-Key": uuid.uuid4().hex}
    large = f"insert into {t} select g, 'x' from generate_series(10, 15) g returning repeat('x', 200000)"
    assert neon.fails(large, once, 503)["error"]["code"] == "answers_full"
    if abilities.can("vacuum"):
        assert neon.fails(f"vacuum {t}", once)["code"] == "25001"
    assert neon.rows(f"select count(*) from {t}") == [["2"]]
