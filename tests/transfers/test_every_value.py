"""Values of every type go through every format and every way in and out, and are the same to the letter.

Compared is the engine's text before and after. What a format cannot carry is refused by the name of its column.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.cli.command import Command
from tests.control import Control, Organization, new_organization
from tests.http.test_values_model import quote
from tests.http.test_values_types import DOMAINS, KINDS, OWN_KINDS, SCHEMA, Kind
from tests.needs import needs
from tests.service import Service
from tuplegate.cli.remote import Failed, run_with
from tuplegate.cli.transfer.command import export, import_
from tuplegate.client import Client

pytestmark = needs("postgresql")

ALL = [*KINDS, *OWN_KINDS, *(kind for kind, _ in DOMAINS)]
GROUPS = [ALL[start : start + 8] for start in range(0, len(ALL), 8)]
ROWS = 12
TRAPS = [
    "create function values_test.wrong_mood(text) returns values_test.mood language sql"
    " as $$ select 'NULL'::values_test.mood $$",
    "create cast (text as values_test.mood) with function values_test.wrong_mood(text)",
    "create function values_test.wrong_text(values_test.mood) returns text language sql as $$ select 'wrong' $$",
    "create cast (values_test.mood as text) with function values_test.wrong_text(values_test.mood)",
    "create function values_test.wrong_list(values_test.mood[]) returns text language sql as $$ select '[wrong' $$",
    "create cast (values_test.mood[] as text) with function values_test.wrong_list(values_test.mood[])",
]
"""Casts that a tenant makes for a type of its own, which must not be asked for its values."""

many = settings(
    max_examples=4,
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.generate],  # a failure names its column, and to shrink it would take minutes
    suppress_health_check=list(HealthCheck),
)
_numbers = count(1)


@dataclass(frozen=True)
class Column:
    """A column, its type, and the SQL of its values, one for each row."""

    name: str
    type: str
    values: list[str]

    @property
    def text(self) -> str:
        return f"case when {self.name} is distinct from null then format('%s', {self.name}) end"


def draw_columns(data: st.DataObject, kinds: list[Kind]) -> list[Column]:
    """For each kind a column of values and one of arrays, of every shape."""
    columns = [Column("place", "int", [str(place) for place in range(ROWS)])]
    for number, kind in enumerate(kinds):
        texts = data.draw(st.lists(st.one_of(kind.texts, kind.texts, st.none()), min_size=ROWS, max_size=ROWS))
        values = [f"null::{kind.sql}" if text is None else f"{quote(text)}::{kind.sql}" for text in texts]
        columns.append(Column(f"v{number}", kind.sql, values))
        columns.append(Column(f"a{number}", f"{kind.sql}[]", [_array(kind, values, row) for row in range(ROWS)]))
    return columns


def _array(kind: Kind, values: list[str], row: int) -> str:
    type_ = f"{kind.sql}[]"
    plain = f"array[{', '.join(values[row:])}]::{type_}"
    low = f"format('[-1:%s]=%s', {ROWS - row - 2}, {plain})::{type_}"
    return [plain, f"array[{plain}, {plain}]::{type_}", low, f"'{{}}'::{type_}", f"null::{type_}", plain][row % 6]


def make_table(database: Client, columns: list[Column]) -> str:
    table = f"every_{next(_numbers)}"
    database.query(f"create table {table} ({', '.join(f'{one.name} {one.type}' for one in columns)})")
    rows = zip(*(one.values for one in columns), strict=True)
    database.query(f"insert into {table} values {', '.join('(' + ', '.join(row) + ')' for row in rows)}")
    return table


def texts_of(database: Client, table: str, columns: list[Column]) -> dict[str, list[str | None]]:
    """The engine's text of all values, by column."""
    found = database.query(f"select {', '.join(one.text for one in columns)} from {table} order by place")
    return {f"{one.name} {one.type}": found.column(index) for index, one in enumerate(columns)}


@pytest.fixture(scope="module")
def source(service: Service) -> Organization:
    return new_organization(service)


@pytest.fixture(scope="module")
def database(service: Service, source: Organization) -> Iterator[Client]:
    with Client(service.url, source.key, timeout_s=120) as opened:
        for statement in [*SCHEMA, *TRAPS]:
            opened.query(statement)
        yield opened


def export_all(database: Client, table: str, columns: list[Column], file: Path) -> None:
    """Export the table; cast what is refused to text, as the refusal says."""
    shown = {one.name: one.name for one in columns}
    while refusal := try_export(database, f"select {', '.join(shown.values())} from {table}", file):
        found = re.search(r"column (\w+) of type .+: Parquet cannot carry .*; CSV and NDJSON can", refusal)
        assert found, refusal
        assert file.suffix == ".parquet", refusal
        refused = next(one for one in columns if one.name == found[1])
        assert shown[refused.name] == refused.name, refusal
        shown[refused.name] = f"{refused.text} as {refused.name}"


def try_export(database: Client, sql: str, file: Path) -> str:
    """Return why the export is refused, or nothing."""
    try:
        run_with(database, export, [sql, str(file)])
    except Failed as refusal:
        return refusal.message
    return ""


@pytest.mark.parametrize("format", ["csv", "ndjson", "parquet"])
@pytest.mark.parametrize("kinds", GROUPS, ids=lambda kinds: kinds[0].sql)
@many
@given(data=st.data())
def test_a_table_comes_back_through_a_file(
    database: Client, tmp_path: Path, kinds: list[Kind], format: str, data: st.DataObject
) -> None:
    """Every value is the engine's text that it was, NULL and the text of NULL told apart."""
    columns = draw_columns(data, kinds)
    table = make_table(database, columns)
    before = texts_of(database, table, columns)
    file = tmp_path / f"{table}.{format}"
    export_all(database, table, columns, file)
    database.query(f"truncate {table}")
    run_with(database, import_, [str(file), "--table", table])
    assert_same(texts_of(database, table, columns), before)
    database.query(f"drop table {table}")


@pytest.mark.parametrize("kinds", GROUPS, ids=lambda kinds: kinds[0].sql)
@settings(many, max_examples=2)
@given(data=st.data())
def test_a_database_is_sent_and_dumped_as_it_is(
    service: Service, tmp_path: Path, database: Client, source: Organization, kinds: list[Kind], data: st.DataObject
) -> None:
    """Into another organization's database by `database send`, and into a new one by `dump` and `restore`."""
    columns = draw_columns(data, kinds)
    table = make_table(database, columns)
    before = texts_of(database, table, columns)
    target = new_organization(service)
    command = Command(service, tmp_path, TUPLEGATE_API_KEY=source.key, TUPLEGATE_TO_API_KEY=target.key)
    sent = command("database", "send", "--to-url", service.url)
    with Client(service.url, target.key, timeout_s=120) as there:
        assert_same(texts_of(there, table, columns), before)
    assert sent.code == 0, sent.err + sent.out
    file = tmp_path / f"{table}.dump"
    dumped = command("dump", str(file))
    assert dumped.code == 0, dumped.err
    restored = command("restore", str(file), "again")
    assert restored.code == 0, restored.err
    with Client(service.url, source.key, database="again", timeout_s=120) as again:
        assert_same(texts_of(again, table, columns), before)
    source.control.delete("/v1/databases/again")
    Control(service, service.key).delete(f"/v1/organizations/{target.id}")
    database.query(f"drop table {table}")


def assert_same(after: dict[str, list[str | None]], before: dict[str, list[str | None]]) -> None:
    for name, texts in before.items():
        assert after[name] == texts, name
