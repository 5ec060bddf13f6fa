"""A request may change how its own values are written. Its answer stays valid JSON, and no other request notices."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.test_values_model import Wire, open_wire, parse, quote
from tests.needs import needs
from tests.service import Service, since

pytestmark = needs("postgresql")
"""The settings and types are its own; what they leave elsewhere is in `test_clean_anywhere.py`."""

SETTINGS = {
    "TimeZone": ["Asia/Tokyo", "America/St_Johns", "Asia/Kathmandu", "<-03:30>+03:30", "PST8PDT"],
    "DateStyle": ["German", "SQL, DMY", "SQL, MDY", "Postgres, DMY", "Postgres, MDY", "ISO, YMD"],
    "IntervalStyle": ["sql_standard", "postgres_verbose", "iso_8601"],
    "bytea_output": ["escape"],
    "extra_float_digits": ["-15", "0", "3"],
}
CHANGES = [(name, value) for name, values in SETTINGS.items() for value in values]

SENSITIVE = [
    *("date '2026-11-14'", "date '0044-03-15 BC'", "time '23:57:08.5'", "timetz '23:57:08+05:30'"),
    *("timestamp '2026-11-14 23:57:08.741335'", "timestamp '0044-03-15 12:00:00 BC'", "timestamp 'infinity'"),
    *("timestamptz '2026-11-14 23:57:08.741335+00'", "timestamptz '0044-03-15 12:00:00+00 BC'"),
    *("timestamptz 'infinity'", "timestamptz '1850-01-01 00:00:00+00'", "timestamptz '2026-07-01 00:00:00+00'"),
    *("interval '1 year -2 months 3 days -04:05:06.789'", "interval '0'", "interval '-1 day'"),
    *(r"bytea '\x00ff5c27'", r"bytea '\x'", r"bytea '\x6869'", "float4 '0.1'", "float8 '0.30000000000000004'"),
    *("float8 '1e-310'", "float8 'NaN'", "point '(0.1,0.30000000000000004)'", "box '(0.7,0.3),(0.1,0.2)'"),
    *("path '[(0.1,0.2)]'", "circle '<(0.1,0.2),0.3>'", "line '{0.1,0.2,0.3}'"),
]
RANGES = [
    *("tstzrange '[2026-11-14 00:00:00+00,2026-11-15 00:00:00+00)'", "daterange '[2026-11-14,2026-11-16)'"),
    *("tsrange '[2026-11-14 00:00:00,)'", "tstzmultirange '{[2026-11-14 00:00:00+00,)}'"),
    "datemultirange '{[2026-11-14,2026-11-16)}'",
    r"row(timestamptz '2026-11-14 00:00:00+00', interval '1 day -1 s', float8 '0.1', bytea '\x00ff')",
]
COLUMNS = [*SENSITIVE, *RANGES, *(f"array[{value}, null]" for value in (*SENSITIVE, *RANGES[:5]))]
NAMED = ", ".join(f"{value} c{i}" for i, value in enumerate(COLUMNS))


@pytest.fixture(scope="module")
def wire(service: Service) -> Iterator[Wire]:
    statements = [
        "drop schema if exists values_settings cascade",
        "create schema values_settings",
        """create table values_settings.kept
             (id int4, changed text, at timestamptz, data bytea, took interval, day date, x float8)""",
        r"""insert into values_settings.kept values
             (1, null, '2026-11-14 00:00:00+00', '\x00ff', '1 day -1 s', '2026-11-14', 0.30000000000000004)""",
    ]
    with open_wire(service, *statements) as opened:
        yield opened


@pytest.fixture(scope="module")
def plain(wire: Wire) -> list[Any]:
    """The row as it is without any change."""
    [row] = wire.rows(f"select {NAMED}")
    assert isinstance(row, list)
    return row


def set_config(name: str, value: str, *, local: bool = False) -> str:
    return f"set_config({quote(name)}, {quote(value)}, {str(local).lower()})"


KEPT = "at, data, took, day, x, array[at], tstzrange(at, null)"
RETURNING = f"update values_settings.kept set id = id where id = 1 returning {KEPT}, {{}}"


def test_a_query_that_changes_a_setting(wire: Wire, plain: list[Any]) -> None:
    """All its rows come, whether the change would outlive the transaction or not, and the next request is untouched."""
    for name, value in CHANGES:
        for local in (False, True):
            rows = wire.rows(f"select {set_config(name, value, local=local)}, {NAMED} from generate_series(1, 3)")
            assert [len(row) for row in rows] == [len(plain) + 1] * 3, (name, value)
        assert wire.rows(f"select {NAMED}") == [plain], (name, value)


@pytest.mark.parametrize(
    "statement",
    [
        RETURNING,
        f"""with x as (update values_settings.kept set id = id where id = 1 returning *) select {KEPT}, {{}} from x""",
        f"select {KEPT}, {{}} from values_settings.kept where id = 1 for update",
        pytest.param(
            f"""merge into values_settings.kept k using (select 1 as id) s on k.id = s.id
                 when matched then update set id = k.id returning {KEPT}, {{}}""",
            marks=since(17),
        ),
    ],
    ids=["update", "cte", "for update", "merge"],
)
def test_a_write_that_changes_a_setting(wire: Wire, statement: str) -> None:
    """Its rows come, and the next request is untouched."""
    expected = wire.rows(f"select {KEPT} from values_settings.kept where id = 1")
    for name, value in CHANGES:
        [row] = wire.rows(statement.format(set_config(name, value)))
        assert len(row) == len(expected[0]) + 1, (name, value)
        assert wire.rows(f"select {KEPT} from values_settings.kept where id = 1") == expected, (name, value)


@pytest.mark.parametrize("statement", ["select {}, * from generate_series(1, 3), values_settings.kept", RETURNING])
def test_a_stream_whose_statement_changes_a_setting(wire: Wire, plain: list[Any], statement: str) -> None:
    """It comes to its end, and the next request is untouched."""
    for name, value in CHANGES:
        request = {"sql": statement.format(set_config(name, value)), "row_mode": "arrays"}
        answer = wire.client.post("/v1/query", json=request, headers={"Accept": "application/x-ndjson"})
        events = [dict(parse(line).pairs)["event"] for line in answer.text.splitlines() if line]
        assert events == ["columns", *["row"] * (1 if statement is RETURNING else 3), "done"], (name, value)
        assert wire.rows(f"select {NAMED}") == [plain], (name, value)


@pytest.mark.parametrize("kind", ["set", "set local", "do", "alter role"])
def test_a_statement_that_only_changes_a_setting(wire: Wire, plain: list[Any], kind: str) -> None:
    """SET, SET LOCAL, DO and ALTER ROLE change nothing for the next request."""
    for name, value in CHANGES:
        statement = {
            "set": f"set {name} = {quote(value)}",
            "set local": f"set local {name} = {quote(value)}",
            "do": f"do $$ begin perform {set_config(name, value)}; end $$",
            "alter role": f"alter role current_user set {name} = {quote(value)}",
        }[kind]
        wire.body(statement)
        assert wire.rows(f"select {NAMED}") == [plain], (name, value)
        if kind == "alter role":
            wire.body(f"alter role current_user reset {name}")


@pytest.mark.parametrize(
    ("name", "value", "column", "expected"),
    [
        ("TimeZone", "Asia/Tokyo", "timestamptz '2026-11-14 23:57:08.741335+00'", "2026-11-14T23:57:08.741335Z"),
        ("TimeZone", "America/St_Johns", "array[timestamptz '2026-01-01 00:00:00+00']", ["2026-01-01T00:00:00Z"]),
        ("bytea_output", "escape", r"bytea '\x00ff5c276869'", r"\x00ff5c276869"),
        ("bytea_output", "escape", r"array[bytea '\x00ff5c']", [r"\x00ff5c"]),
    ],
)
def test_a_function_that_changes_a_setting(wire: Wire, name: str, value: str, column: str, expected: Any) -> None:
    """A function of the tenant's own, which the statement's text does not betray, changes nothing either."""
    wire.body("drop function if exists values_settings.change")
    wire.body(
        f"""create function values_settings.change() returns text language plpgsql volatile
            as $$ begin perform {set_config(name, value)}; return 'changed'; end $$"""
    )
    assert wire.rows(f"select values_settings.change(), {column}") == [["changed", expected]]
    wire.body("drop function values_settings.change")
