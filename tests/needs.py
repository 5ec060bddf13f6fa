"""Marks tests with what they need of the engine that not every engine can do: `@needs("do_block")`.

Most names are those of the service's feature matrix (`GET /capabilities`). The others are here, each with a statement
that an engine either takes or not. A test is skipped, with the reason, where the engine that the tests were given says
that it cannot do it. The bundled engine is not asked: there nothing is skipped.
"""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.service import ENGINE, Service, Sql
from tuplegate.data_plane.capabilities.matrix import PROBES


@dataclass(frozen=True)
class Asked:
    """`find` tells whether the engine can do it."""

    meaning: str
    find: Callable[[Sql], bool]


def takes(statement: str) -> Callable[[Sql], bool]:
    """Ask whether the engine takes a statement."""
    return lambda sql: bool(sql.answer(statement).json()["success"])


def _stays_read_only(sql: Sql) -> bool:
    weakened = ["select set_config('transaction_read_only', 'off', true)", "show transaction_read_only"]
    answer = sql.client.post("/v1/transaction", json={"statements": weakened, "read_only": True}).json()
    return not answer["success"] or answer["results"][1]["rows"] == [{"transaction_read_only": "on"}]


def _sends_rows_at_once(sql: Sql) -> bool:
    """Ask whether a row leaves the engine while the next one takes seconds."""
    slow = "select g, pg_sleep(case when g = 1 then 0 else 4 end) from generate_series(1, 2) g"
    started, came = time.monotonic(), []
    with sql.client.stream(
        "POST", "/v1/query", json={"sql": slow}, headers={"Accept": "application/x-ndjson"}
    ) as answer:
        for line in answer.iter_lines():
            if '"row"' in line:
                came.append(time.monotonic() - started)
    return came[-1] - came[0] > 2


def _alters_types(sql: Sql) -> bool:
    sql("create table altered (a int4)")
    alters = takes("alter table altered alter a type numeric(10, 2)")(sql)
    sql("drop table altered")
    return alters


def _counts_new_rows(sql: Sql) -> bool:
    counted: int = sql("create table counted as select 1 as a")["affected_rows"]
    sql("drop table counted")
    return counted == 1


def _reads_beside_writes(sql: Sql) -> bool:
    sql("create table if not exists read_beside (a int)")
    begun = sql.client.post("/v1/transaction/begin", json={"statement": "insert into read_beside values (1)"}).json()
    reads = sql.answer("select count(*) from read_beside", timeout_ms=2000).json()["success"]
    sql.client.post(f"/v1/transaction/{begun['transaction_id']}/rollback")
    sql("drop table read_beside")
    return bool(reads)


def _tells_positions(sql: Sql) -> bool:
    return sql.answer("select unknown_column").json()["error"]["position"] is not None


QUESTIONS = {
    "activity": Asked(
        "pg_stat_activity lists the connections", takes("select 1 / (count(*) > 0)::int from pg_stat_activity")
    ),
    "alter_type": Asked("a column's type can be changed", _alters_types),
    "client_encodings": Asked(
        "a client may have another encoding", takes("select set_config('client_encoding', 'latin1', false)")
    ),
    "copy_query": Asked("COPY of a query", lambda sql: sql.answer("copy (select 1) to nothing").status_code != 400),
    "counts_of_new_tables": Asked(
        "CREATE TABLE AS tells how many rows it stored",
        _counts_new_rows,
    ),
    "date_styles": Asked("dates in several styles", takes("set datestyle = 'SQL'")),
    "empty_select": Asked("SELECT without columns", takes("select from generate_series(1, 3)")),
    "explain_options": Asked("EXPLAIN with options", takes("explain (costs off) select 1")),
    "extensions_listed": Asked(
        "extensions are listed, with their schemas", takes("select 1 / (count(*) > 0)::int from pg_extension")
    ),
    "files": Asked("functions that read files", takes("select 'pg_read_file(text)'::regprocedure")),
    "format": Asked("format writes a value as an answer has it", takes("select 1 / (format('%s', true) = 't')::int")),
    "int_literals": Asked(
        "a small number in a text is an int4", takes("select 1 / (pg_typeof(1) = 'integer'::regtype)::int")
    ),
    "listen": Asked("LISTEN and NOTIFY", takes("listen anything")),
    "lock_table": Asked("LOCK TABLE", lambda sql: sql.answer("lock table nothing").status_code != 400),
    "own_settings": Asked("settings of any name, for one transaction", takes("select set_config('app.x', 'y', true)")),
    "postgresql": Asked(
        "what PostgreSQL alone has: its releases, its levels of isolation, the functions of the service's records",
        lambda sql: sql.client.get("/health").json()["engine"]["kind"] == "postgresql",
    ),
    "predicate_locks": Asked(
        "a bound on how much serializable transactions can note",
        lambda sql: sql.client.get("/capabilities").json()["limits"]["serializable"]["slots"] > 0,
    ),
    "notices_of_drops": Asked(
        "a notice tells that nothing was dropped",
        lambda sql: "notices" in sql("drop table if exists never_there"),
    ),
    "reads_beside_writes": Asked("a reader does not wait for whoever changes a row", _reads_beside_writes),
    "positions": Asked("an error has the place of a name that is unknown", _tells_positions),
    "read_only_stays": Asked("a read-only transaction cannot be made one that writes", _stays_read_only),
    "rows_at_once": Asked("a row is sent when it is made", _sends_rows_at_once),
    "role_codes": Asked(
        "an unknown role is an invalid value (22023)",
        lambda sql: sql.fails("select set_config('role', 'unknown_role', true)")["sqlstate"] == "22023",
    ),
    "setting_names": Asked(
        "SHOW tells a setting's name as it is written", lambda sql: sql("show timezone")["columns"] == ["TimeZone"]
    ),
    "session_authorization": Asked("SET SESSION AUTHORIZATION", takes("set session authorization default")),
    "setseed": Asked("setseed", takes("select setseed(0.5)")),
}
"""Questions that the matrix does not answer."""

_WORDS = {
    r"\bdo \$\$": "do_block",
    r"plpgsql": "function_plpgsql",
    r"create procedure|\bcall [\w{]": "procedure",
    r"create domain": "domain",
    r"as range": "range",
    r"create type \S+ as \(": "composite",
    r"merge_action": "merge_returning",
    r"merge into": "merge",
    r"^(?:un)?(?:listen|notify)\b": "listen",
    r"^vacuum": "vacuum",
    r"temp(?:orary)? table": "temporary_table",
    r"select from|^select$|\w \(\)$": "empty_select",
    r"explain \(costs": "explain_options",
    r"pg_read_file": "files",
    r"copy \(select": "copy_query",
    r"to_tsquery": "full_text",
    r"text search configuration|create collation|create schema authorization|\breturn '": "postgresql",
    r"alter table \S+ alter \S+ type": "alter_type",
    r"jsonpath": "json_path",
    r"\('transaction_read_only'": "read_only_stays",
    r"^reset all": "read_only_stays",
    r"datestyle": "date_styles",
    r"setseed": "setseed",
    r"create table \S+ as|\bselect .* into": "counts_of_new_tables",
    r"set_config\('app\.x', 'y', true": "own_settings",
    r"show timezone": "setting_names",
    r"client_encoding": "client_encodings",
    r"create index concurrently": "index_concurrently",
    r"\blo_\w+\(": "large_object",
    r"^(?:checkpoint|reindex|alter system)|pg_cancel_backend": "postgresql",
    r"set session authorization": "session_authorization",
    r"create extension hstore": "extensions_listed",
}
"""Words of a text, by which it needs something."""


def needs(*names: str) -> pytest.MarkDecorator:
    """Mark a test that needs these. `type money` is the type of that name, `column money` a column of it, `value
    '1'::money` a value; `setting a = b` can be set."""
    unknown = [
        name
        for name in names
        if name not in PROBES
        and name not in QUESTIONS
        and not name.startswith(("type ", "column ", "value ", "setting "))
    ]
    assert not unknown, unknown
    return pytest.mark.needs(*names)


def needs_of(text: str) -> list[str]:
    """Return what a statement needs, by the words in it."""
    return [name for words, name in _WORDS.items() if re.search(words, text, re.I)]


def by_words(rows: Iterable[Any]) -> list[Any]:
    """Mark each of a test's cases with what the texts in it need."""
    return [_mark(row) for row in rows]


def _mark(row: Any) -> Any:
    values = row if isinstance(row, tuple) else (row,)
    names = [name for value in values if isinstance(value, str) for name in needs_of(value)]
    return pytest.param(*values, marks=needs(*names)) if names else row


class Abilities:
    """The abilities of a service's engine. Each is asked for once."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._found: dict[str, bool] = {}

    def find_missing(self, name: str) -> str | None:
        """Return the reason to skip a test that needs it, if there is one."""
        if name not in self._found:
            self._found[name] = self._ask(name)
        if self._found[name]:
            return None
        meaning = QUESTIONS[name].meaning if name in QUESTIONS else PROBES[name].title if name in PROBES else ""
        return f"this engine lacks {name}" + (f": {meaning}" if meaning else "")

    def can(self, name: str) -> bool:
        return not ENGINE or self.find_missing(name) is None

    def can_run(self, text: str) -> bool:
        """Return whether the engine can do what a statement needs. The bundled one can do everything."""
        return all(map(self.can, needs_of(text)))

    def _ask(self, name: str) -> bool:
        with self._service.client() as client:
            if name.startswith("type "):
                return takes(f"select null::{name[5:]}")(Sql(client))
            if name.startswith("value "):
                return takes(f"select {name[6:]}")(Sql(client))
            if name.startswith("setting "):
                return takes(f"set {name[8:]}")(Sql(client))
            if name.startswith("column "):
                made = takes(f"create table needed_column (c {name[7:]})")(Sql(client))
                return made and takes("drop table needed_column")(Sql(client))
            if name in QUESTIONS:
                return QUESTIONS[name].find(Sql(client))
            answer = client.get(f"/capabilities/{name}").json()
            assert answer["success"], answer
            return bool(answer["supported"])
