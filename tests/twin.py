"""A tenant's database beside a plain one on the same engine: the same statements, and what is told of each.

The plain one is asked over a connection of its own, where each statement is parsed anew, as any driver does that is not
told to prepare it.
"""

import http.client
import json
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from tests.service import Service, Sql

_SETTINGS = "-c default_transaction_isolation=serializable -c TimeZone=UTC -c lc_messages=C -c synchronous_commit=off"
"""What the plain one has written need not be on disk: nobody asks for it after a crash."""

TYPES = (
    "smallint", "integer", "bigint", "numeric", "numeric(6, 2)", "real", "double precision", "oid", "money",
    "text", "varchar", "varchar(4)", "char(4)", "char", '"char"', "name", "bytea", "bit(3)", "varbit(3)", "boolean",
    "date", "time", "time(0)", "timestamp", "timestamp(0)", "timestamptz", "interval", "interval hour",
    "interval year to month", "interval day to second", "interval minute", "interval(0)", "uuid", "json", "jsonb",
    "xml", "inet", "cidr", "macaddr", "point", "int4range", "integer[]", "varchar(2)[]", "tsvector", "regtype", "mood",
    "positive", "short", "hours", "pair",
)  # fmt: skip

NUMBERS = (
    "0", "1", "-1", "007", "7", "32767", "32768", "40000", "-32769", "2147483647", "2147483648", "-2147483648",
    "4294967296", "9223372036854775807", "9223372036854775808", "1.5", "1.50", "123456.789", "-0.001", "1" + "0" * 40,
)  # fmt: skip
TEXTS = (
    "", " ", "0", "1", "8", "-8", " 1 ", "1.5", "40000", "1e40", "abcde", "ab", "t", "yes", "2026-01-02", "2026-13-02",
    "12:34:56.789", "2026-01-02 03:04:05.6", "1 day 2 hours", "8:30", "P1Y2M", "{1,2}", "{abc}", "[1,2)", "(1,x)", "ok",
    "ä", "\t", "101", "10101", "00000000-0000-0000-0000-000000000001", "{00000000000000000000000000000001}",
    "127.0.0.1/8", '{"a": 1}', "int4", "x" * 70,
)  # fmt: skip

_JSON = ("json", "jsonb")
"""A string that is a parameter for these means the JSON string: that is ours, and not the engine's."""
_OFTEN = 10
"""So often that a statement is prepared, and that the engine has made one plan for all values."""

_MAKE_TYPES = (
    "create type mood as enum ('ok', '1')",
    "create domain positive as integer check (value > 0)",
    "create domain short as varchar(3) check (value <> 'ok')",
    "create domain hours as interval hour",
    "create type pair as (a int, b varchar(3))",
)


@dataclass(frozen=True)
class Told:
    """What an engine says of a statement: rows as text, in an order of ours, and the words of its error with their
    place."""

    sqlstate: str | None
    message: str | None = None
    position: int | None = None
    rows: Any = None
    affected: int = 0
    notices: tuple[str, ...] = ()


@dataclass
class Twins:
    """`wrong` are the statements of which the two told something different."""

    service: http.client.HTTPConnection
    """By the standard library: there are many requests, and other clients take longer for one than the service."""
    headers: dict[str, str]
    plain: PGconn
    notices: list[str] = field(default_factory=list)
    asked: int = 0
    wrong: list[str] = field(default_factory=list)

    def both(self, text: str, params: list[str | None] | None = None) -> None:
        """Run it in both, and compare."""
        self.asked += 1
        ours, theirs = self._ours(text, params), self._theirs(text, params)
        if ours != theirs:
            self.wrong.append(f"{text} {params or ''}\n  service {ours}\n  engine  {theirs}")

    def _ours(self, text: str, params: list[str | None] | None) -> Told:
        request = {"sql": text, "row_mode": "arrays", **({} if params is None else {"params": params})}
        self.service.request("POST", "/v1/query", json.dumps(request), self.headers)
        body = json.loads(self.service.getresponse().read())
        notices = tuple(notice["message"] for notice in body.get("notices") or ())
        if not body["success"]:
            error = body["error"]
            return Told(error["sqlstate"], error["message"], error["position"], notices=notices)
        rows = [[value if value is None else str(value) for value in row] for row in body["rows"]]
        return Told(None, rows=sorted(rows, key=repr), affected=body["affected_rows"], notices=notices)

    def _theirs(self, text: str, params: list[str | None] | None) -> Told:
        self.notices.clear()
        values = [None if value is None else value.encode() for value in params or ()]
        result = self.plain.exec_params(text.encode(), values)
        notices = tuple(self.notices)
        if result.status == pq.ExecStatus.FATAL_ERROR:
            position = _field(result, pq.DiagnosticField.STATEMENT_POSITION)
            return Told(
                _field(result, pq.DiagnosticField.SQLSTATE),
                _field(result, pq.DiagnosticField.MESSAGE_PRIMARY),
                int(position) if position else None,
                notices=notices,
            )
        rows = [
            [
                None if (value := result.get_value(row, column)) is None else value.decode()
                for column in range(result.nfields)
            ]
            for row in range(result.ntuples)
        ]
        command = (result.command_status or b"").split()[0]
        affected = 0 if command == b"SELECT" else result.command_tuples or 0
        return Told(None, rows=sorted(rows, key=repr), affected=affected, notices=notices)


def _field(result: PGresult, name: pq.DiagnosticField) -> str | None:
    value = result.error_field(name)
    return None if value is None else value.decode()


@contextmanager
def twins_of(service: Service, key: str) -> Iterator[Twins]:
    """Beside the tenant's database that the key is for, which must have no code."""
    name = f"twin_{uuid.uuid4().hex[:12]}"
    with service.client(key) as client:
        beside = service.server_of(Sql(client).value("select current_database()"))
    with psycopg.connect(beside, autocommit=True) as server:
        server.execute(f"create database {name} template template0 encoding 'UTF8' locale 'C'".encode())
        try:
            info = psycopg.conninfo.make_conninfo(beside, dbname=name, options=_SETTINGS, client_encoding="UTF8")
            plain = pq.PGconn.connect(info.encode())
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            twins = Twins(http.client.HTTPConnection(service.url.removeprefix("http://")), headers, plain)
            plain.notice_handler = lambda notice: twins.notices.append(
                _field(notice, pq.DiagnosticField.MESSAGE_PRIMARY) or ""
            )
            try:
                for statement in _MAKE_TYPES:
                    twins.both(statement)
                yield twins
            finally:
                twins.service.close()
                plain.finish()
        finally:
            server.execute(f"drop database {name} with (force)".encode())


def literal_of(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def try_type(twins: Twins, type: str, rng: random.Random, literals: int, likes: tuple[str, ...] = NUMBERS) -> None:
    """Values stored in a column of the type and compared with it, as literals and as parameters, in rows that are there
    and in rows that are not; each statement once the service has seen its `likes` so often that it is prepared."""
    twins.both(f"create table one (id serial primary key, v {type}, w int default 5)")
    twins.both("insert into one (id, v) values (0, null)")
    for literal in (*likes, "'1'"):
        for _ in range(_OFTEN):
            for text in _with(literal):
                twins.both(text)
    texts = rng.sample(TEXTS, min(literals, len(TEXTS)))
    for literal in (*rng.sample(NUMBERS, min(literals, len(NUMBERS))), *map(literal_of, texts)):
        for text in _with(literal):
            twins.both(text)
    if type not in _JSON:
        for value in (*["1"] * _OFTEN, None, *texts):
            for text in _with("$1"):
                twins.both(text, [value])
    twins.both("select id, v::text, w from one order by id")
    twins.both("select last_value from one_id_seq where is_called = true")
    twins.both("drop table one")


def try_others(twins: Twins) -> None:
    """Texts of no simple form: expressions that fail for some values, at once or in the middle, and those that give
    notices."""
    twins.both("create table one (id serial primary key, n smallint, v varchar(3) default 'x', w int)")
    twins.both("insert into one (n) values (1), (0)")
    for value in (*["1"] * _OFTEN, "0", "40000", "70000", "x", None, "1"):
        for text in (
            "update one set n = $1::int where id = -1",
            "update one set n = $1::int + 1 where id = 1 returning n",
            "insert into one (w) values (10 / $1::int) returning id",
            "insert into one (v) values ($1 || '') returning id",
            "update one set v = $1 || $1 || '..' where id = -1",
            "select id from one where n = 10 / $1::int",
            "select 1 from one where id = -1 and $1::smallint = 1",
            "insert into one (n, w) values ($1, 7) returning id",
            f"select $1::text as {'a' * 70}",
        ):
            twins.both(text, [value])
    for _ in range(_OFTEN):
        for text in (
            f"select n as {'b' * 70} from one where id = 1",
            f"select n from one where id = 1 order by {'n' * 70}",
            f"update one set n = 1 where id = 1 returning n as {'c' * 70}",
            "insert into one (w) values (10 / (select min(n) from one)) returning id",
            "select nextval('nothing')",
        ):
            twins.both(text)
    twins.both("select last_value from one_id_seq where is_called = true")
    twins.both("drop table one")


def _with(value: str) -> list[str]:
    return [
        f"insert into one (v) values ({value})",
        f"insert into one (w, v) values (default, {value}) returning id",
        f"select id from one where v = {value}",
        f"update one set v = {value} where id = 0",
        f"update one set v = {value} where id = -1",
        f"update one set w = 6 where v = {value} returning id",
        f"delete from one where v = {value} returning id",
    ]
