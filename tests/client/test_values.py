"""Python values both ways: what is sent comes back as the same value of the same type."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service import Service
from tuplegate.client import Client, InvalidTextRepresentation
from tuplegate.client.values import write

NOON = datetime(2026, 11, 14, 12, 30, 45, 123456, tzinfo=UTC)
ID = UUID("8a6e0804-2bd0-4672-b79d-d97027f9071a")

ROUND_TRIPS: list[tuple[str, Any]] = [
    ("bool", True),
    ("int2", -32768),
    ("int4", 2147483647),
    ("int8", 9223372036854775807),
    ("float4", 0.5),
    ("float8", 0.1),
    ("float8", float("inf")),
    ("numeric", Decimal("12345678901234567890.1234567890")),
    ("numeric", Decimal("1.50")),
    ("numeric", Decimal("-Infinity")),
    ("text", 'Grüße "\\ \n 漢字 \U0001f600'),
    ("text", ""),
    ("bytea", b"\x00\xff hi"),
    ("bytea", b""),
    ("uuid", ID),
    ("date", date(2026, 2, 28)),
    ("date", date(1, 1, 1)),
    ("date", date(9999, 12, 31)),
    ("time", time(23, 59, 59, 999999)),
    ("timetz", time(12, 0, tzinfo=timezone(timedelta(hours=2)))),
    ("timestamp", datetime(2026, 11, 14, 12, 0)),
    ("timestamp", datetime(99, 1, 2, 3, 4, 5, 600000)),
    ("timestamptz", NOON),
    ("interval", timedelta(days=3, hours=4, microseconds=5)),
    ("interval", timedelta(microseconds=-1)),
    ("interval", timedelta(0)),
    ("jsonb", {"a": [1, None, True, "x", 1.5], "b": {}}),
    ("jsonb", [1, [2]]),
    ("jsonb", "text"),
    ("jsonb", 7),
    ("json", {"z": 1, "a": 2}),
    ("int4[]", [1, None, 3]),
    ("int4[]", []),
    ("int8[]", [[1, 2], [3, 9223372036854775807]]),
    ("numeric[]", [Decimal("1.10"), None]),
    ("text[]", ["a,b", '"', "\\", "NULL", None, ""]),
    ("bytea[]", [b"\x00", b"\\"]),
    ("uuid[]", [ID]),
    ("date[]", [date(2026, 1, 1), None]),
    ("timestamptz[]", [NOON]),
    ("interval[]", [timedelta(days=1)]),
    ("jsonb[]", [{"a": 1}, [1], "s"]),
]


@pytest.mark.parametrize(("type_name", "value"), ROUND_TRIPS, ids=lambda part: str(part)[:30])
def test_a_value_comes_back_as_it_was_sent(database: Client, type_name: str, value: Any) -> None:
    """Value and type, by the buffered answer and by the stream."""
    sql = f"select $1::{type_name} as v"
    found = database.query(sql, [value]).value()
    assert found == value
    assert type(found) is type(value)
    assert [row["v"] for row in database.stream(sql, [value])] == [found]


def test_none_is_null(database: Client) -> None:
    """For every type."""
    assert database.query("select $1::int, $2::jsonb, $3::timestamptz", [None, None, None]).tuples() == [(None,) * 3]


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("'infinity'::timestamptz", "infinity"),
        ("'-infinity'::date", "-infinity"),
        ("'0044-03-15 BC'::date", "0044-03-15 BC"),
        ("'0044-03-15 10:00 BC'::timestamp", "0044-03-15T10:00:00 BC"),
        ("'10000-01-01'::date", "10000-01-01"),
        ("'12026-01-01 00:00'::timestamptz", "12026-01-01T00:00:00Z"),
        ("'24:00'::time", "24:00:00"),
        ("'1 month 2 days'::interval", "1 mon 2 days"),
        ("'178000000 years'::interval", "178000000 years"),
        ("int4range(1, 3)", "[1,3)"),
        ("'10.0.0.1'::inet", "10.0.0.1"),
    ],
)
def test_what_python_cannot_hold_stays_text(database: Client, sql: str, text: str) -> None:
    """As the service writes it; and it can be sent back."""
    rows = database.query(f"select {sql} as v")
    assert rows.value() == text
    assert database.query(f"select $1::{rows.types[0]}", [text]).value() == text


def test_nan_is_nan(database: Client) -> None:
    """In both types that have it."""
    [(single, exact)] = database.query("select $1::float8, $2::numeric", [float("nan"), Decimal("NaN")]).tuples()
    assert isinstance(single, float)
    assert single != single
    assert exact.is_nan()


@pytest.mark.parametrize("type_name", ["float4", "float8", "float8[]", "json"])
def test_minus_zero_keeps_its_sign(database: Client, type_name: str) -> None:
    """By the buffered answer and by the stream, and with `convert=False` too."""
    sql = f"select $1::text::{type_name} as v"
    given = "{-0}" if type_name.endswith("[]") else "-0"
    streamed = database.stream(sql, [given])
    for value in (database.query(sql, [given]).value(), next(iter(streamed))["v"]):
        [found] = value if isinstance(value, list) else [value]
        assert (repr(found), type(found)) == ("-0.0", float)
    kept = database.query(sql, [given], convert=False).value()
    assert write(kept) in ("-0", "[-0]")


def test_a_number_may_have_any_number_of_digits(database: Client) -> None:
    """An integer in a document that Python does not convert, too."""
    digits = "7" * 5000
    sql = "select $1::text::json, $1::text::numeric"
    assert database.query(sql, [digits]).tuples() == [(Decimal(digits), Decimal(digits))]
    [kept] = database.query(sql, [digits], convert=False).tuples()
    assert [write(value) for value in kept] == [digits, digits]


def test_a_repeated_name_is_kept_where_nothing_is_converted(database: Client) -> None:
    """As the engine has the document; converted, it is a dict, which has the last value."""
    text = '{"a":1,"b":{"c":1.10,"c":-0},"a":2}'
    kept = database.query("select $1::text::json", [text], convert=False).value()
    assert write(kept) == text
    assert database.query("select $1::text::json", [text]).value() == {"a": 2, "b": {"c": 0}}


def test_a_decimal_in_a_document_is_a_number(database: Client) -> None:
    """With all its digits, not a string."""
    text = database.query("select $1::jsonb ->> 'n'", [{"n": Decimal("1.00000000000000000001")}]).value()
    assert text == "1.00000000000000000001"
    assert database.query("select jsonb_typeof($1::jsonb)", [Decimal(1)]).value() == "number"


def test_other_types_are_sent_as_what_they_stand_for(database: Client) -> None:
    """Enums by value, addresses as text, tuples as arrays, times with a zone as the moment."""

    class Mood(Enum):
        FINE = "fine"

    class Level(IntEnum):
        HIGH = 3

    zone = timezone(timedelta(hours=-5))
    rows = database.query(
        "select $1::text, $2::int, $3::inet, $4::int[], $5::timestamptz, $6::bytea",
        [Mood.FINE, Level.HIGH, IPv4Address("10.0.0.1"), (1, 2), NOON.astimezone(zone), bytearray(b"x")],
    )
    assert rows.tuples() == [("fine", 3, "10.0.0.1", [1, 2], NOON, b"x")]


def test_what_cannot_be_sent_is_said_with_its_number(database: Client) -> None:
    """Before anything leaves."""
    with pytest.raises(TypeError, match=r"parameter \$2: a complex cannot be sent"):
        database.query("select $1, $2", [1, 2j])
    with pytest.raises(TypeError, match=r"parameter \$1: the names of a JSON object are strings"):
        database.query("select $1::jsonb", [{1: 2}])
    with pytest.raises(TypeError, match="list of values"):
        database.query("select $1", "abc")
    with pytest.raises(InvalidTextRepresentation):
        database.query("select $1::int", ["abc"])


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
)
_DOCUMENTS = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), inner, max_size=4),
    ),
)


def test_any_values_make_the_round_trip(service: Service) -> None:
    """Whatever a generator comes up with."""
    with Client(service.url, service.key) as database:

        @settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
        @given(
            _DOCUMENTS.filter(lambda document: document is not None),
            st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20),
            st.datetimes(min_value=datetime(1, 1, 1), timezones=st.just(UTC)),
            st.timedeltas(timedelta(days=-(10**6)), timedelta(days=10**6)),
            st.binary(),
            st.floats(allow_nan=False),
        )
        def check(document: Any, exact: Decimal, at: datetime, length: timedelta, data: bytes, single: float) -> None:
            sent = [document, exact, at, length, data, single]
            sql = "select $1::jsonb, $2::numeric, $3::timestamptz, $4::interval, $5::bytea, $6::float8"
            assert database.query(sql, sent).tuples() == [tuple(sent)]

        check()
