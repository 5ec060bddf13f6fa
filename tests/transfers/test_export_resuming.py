"""An export that is cut off goes on where it stopped, where that is sound; half a file is never taken for whole."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.client.faults import CUT_LATE, PASS, relay
from tests.control import Organization, new_organization
from tests.service import Service
from tuplegate.client import Client

COUNT = 30_000
TABLES = {
    "by_id": ("id int primary key, label text", "select g, 'row ' || g from generate_series(1, {0}) g"),
    "by_two": (
        "label text, part text, number int, primary key (part, number)",
        "select null, 'part ' || g % 3, g from generate_series(1, {0}) g",
    ),
}


@pytest.fixture
def tables(database: Client) -> Iterator[Client]:
    for name, (columns, rows) in TABLES.items():
        database.query(f"drop table if exists {name}")
        database.query(f"create table {name} ({columns})")
        database.query(f"insert into {name} {rows.format(COUNT)}")
        database.query(f"analyze {name}")
    yield database
    for name in TABLES:
        database.query(f"drop table if exists {name}")


def cutting(number: int) -> Callable[[bytes], str]:
    """A plan that cuts off so many streams, and lets everything else pass."""
    seen = [0]

    def plan(request: bytes) -> str:
        seen[0] += (streams := b'"export":true' in request)
        return CUT_LATE if streams and seen[0] <= number else PASS

    return plan


@pytest.mark.parametrize("kind", ["csv", "ndjson"])
@pytest.mark.parametrize("table", TABLES)
def test_an_export_goes_on_where_it_was_cut_off(
    service: Service, tables: Client, tmp_path: Path, table: str, kind: str
) -> None:
    """By the primary key: no row twice, none left out, and the file is as one that was never cut. It is told."""
    file, whole = tmp_path / f"rows.{kind}", tmp_path / f"whole.{kind}"
    with relay(service.url, cutting(2)) as cut:
        command = Command(service, tmp_path, TUPLEGATE_URL=cut.url)
        for _ in range(2):
            done = command("export", table, str(file))
            assert done.code == 8, done.err
            assert "rows are kept: started again, it goes on behind them" in done.err
            assert not file.exists()
        done = command("export", table, str(file))
    assert (done.code, "of two moments" in done.err) == (0, True), done.err
    assert f"{COUNT} rows exported" in done.err
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".rows")] == []
    assert command("export", table, str(whole), "--url", service.url).code == 0
    assert file.read_bytes() == whole.read_bytes()
    sent = [json.loads(one.partition(b"\r\n\r\n")[2]) for one in cut.requests if b'"export":true' in one]
    assert ["where" in body["sql"] for body in sent] == [False, True, True]


def test_rows_of_another_export_are_not_gone_on_with(service: Service, tables: Client, tmp_path: Path) -> None:
    """Neither of another form, nor of a table that was made anew under the same name."""
    file = tmp_path / "rows.csv"
    with relay(service.url, cutting(1)) as cut:
        assert Command(service, tmp_path, TUPLEGATE_URL=cut.url)("export", "by_id", str(file)).code == 8
    tables.query("drop table by_id")
    tables.query("create table by_id (id int primary key, label text)")
    tables.query("insert into by_id values (7, 'seven')")
    done = Command(service, tmp_path)("export", "by_id", str(file))
    assert (done.code, "earlier start" in done.err) == (0, False), done.err
    assert file.read_text() == "id,label\n7,seven\n"


def test_a_table_with_other_columns_ends_it(service: Service, tables: Client, tmp_path: Path) -> None:
    """Nothing is left of it, so the next start begins anew."""
    file = tmp_path / "rows.csv"
    with relay(service.url, cutting(1)) as cut:
        assert Command(service, tmp_path, TUPLEGATE_URL=cut.url)("export", "by_id", str(file)).code == 8
    tables.query("alter table by_id add column more int")
    command = Command(service, tmp_path)
    done = command("export", "by_id", str(file))
    assert (done.code, "other columns" in done.err) == (11, True), done.err
    assert not file.exists()
    assert command("export", "by_id", str(file)).code == 0
    assert file.read_text().startswith("id,label,more\n")


@pytest.mark.parametrize("sql", ["select * from by_id", "table by_id"])
def test_a_query_has_no_key_to_go_on_by(service: Service, tables: Client, tmp_path: Path, sql: str) -> None:
    """Nothing is kept of it; a Parquet file cannot be added to either."""
    with relay(service.url, cutting(2)) as cut:
        command = Command(service, tmp_path, TUPLEGATE_URL=cut.url)
        for given, name in ((sql, "rows.csv"), ("by_id", "rows.parquet")):
            done = command("export", given, str(tmp_path / name))
            assert (done.code, "kept" in done.err) == (8, False), done.err
    assert [entry.name for entry in tmp_path.iterdir() if "rows" in entry.name] == []


@pytest.fixture
def limited(service: Service) -> Organization:
    """An export has next to no time."""
    made = new_organization(service)
    operator = made.control.with_token(service.key)
    operator.patch(f"/v1/organizations/{made.id}", {"limits": {"export_timeout_ms": 1}})
    return made


def test_an_export_that_takes_too_long_says_what_to_do(service: Service, limited: Organization, tmp_path: Path) -> None:
    """With the limit of exports by its name; --timeout asks for more."""
    command = Command(service, tmp_path, TUPLEGATE_API_KEY=limited.key)
    sql = "select g, repeat('x', 500) from generate_series(1, 20000) g"
    done = command("export", sql, str(tmp_path / "rows.csv"))
    assert done.code == 5, done.err
    assert "(export_timeout_ms)" in done.err
    assert "--timeout" in done.err
    done = command("export", sql, str(tmp_path / "rows.csv"), "--timeout", "60")
    assert (done.code, "20000 rows exported" in done.err) == (0, True), done.err
