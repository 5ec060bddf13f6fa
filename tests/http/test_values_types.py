"""Every built-in type that a table can have, with a strategy for its values as the engine reads them.

xml is missing because the bundled engine is built without it. There are no tests in this file.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.http.test_values_model import (
    Number,
    Object,
    as_bool,
    as_json,
    as_number,
    as_text,
    as_timestamp,
    as_timestamptz,
    dump,
    quote,
)
from tests.service import newer_than

Texts = SearchStrategy[str]


@dataclass(frozen=True)
class Kind:
    """A type in SQL, its name in `types`, values of it and the rule for them."""

    sql: str
    shown: str
    texts: Texts
    rule: Callable[[str], Any] = as_text

    @property
    def is_json(self) -> bool:
        return self.rule is as_json


def some(*texts: str) -> Texts:
    return st.sampled_from(texts)


def _often(share: int, texts: Texts, edges: Texts) -> Texts:
    """`edges` once in `share` values."""
    return st.integers(1, share).flatmap(lambda n: edges if n == 1 else texts)


# -- numbers and text ----------------------------------------------------------------------------------------------


def _integers(bits: int) -> Texts:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0, -1])).map(str)


def _unsigned(bits: int) -> Texts:
    return st.one_of(st.integers(0, 2**bits - 1), st.sampled_from([0, 2**bits - 1])).map(str)


characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
strings: Texts = st.one_of(
    st.text(characters, max_size=20),
    st.text("\"'\\{},;()[]= \t\r\nNULnul\x01\x1b\x7f\u2028é😀", max_size=12),
    some("", " ", "NULL", "null", "{}", "[]", "[1:2]={a,b}", '"', "\\", "\\x", "\\N", "it's", "x" * 5000, "😀" * 300),
)

_floats4 = st.one_of(
    st.floats(width=32).map(repr), some("-0", "3.4028235e38", "1e-45", "-1e-45", "16777217", "1e20", "0.1", "NaN")
)
_floats8 = st.one_of(
    st.floats().map(repr), some("-0", "1e308", "-1.7976931348623157e308", "5e-324", "1e15", "1e16", "0.1", "1e-5")
)


@st.composite
def _digits(draw: st.DrawFn) -> str:
    whole = draw(st.text("0123456789", min_size=1, max_size=60))
    fraction = draw(st.text("0123456789", max_size=60))
    return draw(some("", "-")) + whole + ("." + fraction if fraction else "")


numerics: Texts = st.one_of(
    _digits(),
    some("NaN", "Infinity", "-Infinity", "0", "-0.000", "1e-300", "1e400", "0.10", "9" * 400 + "." + "1" * 400),
)

_binaries = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"\\", b"\\x", b"\0\xff", b"'"]))
_one_byte = st.one_of(st.characters(codec="ascii", exclude_characters="\0"), some("", "\\377", "\\200", "\\"))

# -- time ----------------------------------------------------------------------------------------------------------

_dates = st.one_of(
    st.dates().map(str),
    some("infinity", "-infinity", "0001-01-01", "4713-01-01 BC", "0044-03-15 BC", "5874897-12-31", "2026-11-14"),
)
_times = st.one_of(st.times().map(str), some("24:00:00", "23:59:60", "00:00:00", "23:59:59.999999", "12:30:00.5"))
_offsets = some("+00", "+15:59", "-15:59:59", "+05:30", "-03", "-00:00:01")
_timestamps = st.one_of(
    st.datetimes().map(str),
    some("infinity", "-infinity", "0001-01-01 00:00:00", "4713-01-01 00:00:00 BC", "0044-03-15 12:00:00.25 BC"),
    some("294276-12-31 23:59:59.999999", "10000-01-01 00:00:00", "2016-12-31 23:59:60", "2026-11-14 24:00:00"),
    some("2026-11-14 23:57:08.741335", "2000-01-01 00:00:00", "1999-12-31 23:59:59.999999"),
)
_timestamptzs = st.one_of(
    # The ends of the range are left in UTC: an offset could lead beyond them.
    _timestamps.map(lambda t: t if "infinity" in t else re.sub(r"( BC)?$", r"+00\1", t, count=1)),
    st.tuples(st.datetimes().filter(lambda t: 1 < t.year < 9999).map(str), _offsets).map("".join),
)


@st.composite
def _intervals(draw: st.DrawFn) -> str:
    months, days = draw(st.integers(-1_000_000, 1_000_000)), draw(st.integers(-1_000_000, 1_000_000))
    return f"{months} mons {days} days {draw(st.integers(-(10**15), 10**15))} microseconds"


_infinite = ("infinity", "-infinity") if newer_than(16) else ()
_interval_edges = some(*_infinite, "0", "178000000 years", "-1 mon +1 day -00:00:01", "-0.5 seconds")

# -- ranges: bounds are drawn as something that sorts as the type does ---------------------------------------------


@st.composite
def _ranges(draw: st.DrawFn, bounds: SearchStrategy[Any]) -> str:
    low, high = sorted((draw(bounds), draw(bounds)))
    shown_low, shown_high = draw(some(f'"{low}"', f'"{low}"', "")), draw(some(f'"{high}"', f'"{high}"', ""))
    return draw(some("[", "(")) + shown_low + "," + shown_high + draw(some("]", ")"))


_moments = st.datetimes().map(lambda t: t.isoformat(" ", "microseconds"))
_RANGES: dict[str, Texts] = {
    # The largest number is left out: as an inclusive bound it has no next one.
    "int4": _ranges(st.integers(-(2**31), 2**31 - 2)),
    "int8": _ranges(st.integers(-(2**63), 2**63 - 2)),
    "num": _ranges(st.decimals(-(10**30), 10**30, allow_nan=False, places=5)),
    "date": _ranges(st.dates()),
    "ts": _ranges(_moments),
    "tstz": _ranges(_moments.map(lambda t: t + "+00")),
}


def _multi(ranges: Texts) -> Texts:
    return st.lists(ranges, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}")


# -- geometry ------------------------------------------------------------------------------------------------------

_numbers = st.one_of(st.floats(-1e100, 1e100).map(repr), some("0.1", "-0", "1e-300", "0.30000000000000004"))
_point = st.tuples(_numbers, _numbers).map(lambda p: f"({p[0]},{p[1]})")


def _points(low: int, high: int) -> Texts:
    return st.lists(_point, min_size=low, max_size=high).map(",".join)


_odd_point = some("(NaN,Infinity)", "(-Infinity,5e-324)")
_lines = st.tuples(st.integers(1, 9).map(str), _numbers, _numbers).map(lambda p: "{" + ",".join(p) + "}")
_circles = st.tuples(_point, st.floats(0, 1e100).map(repr)).map(lambda p: f"<{p[0]},{p[1]}>")

# -- addresses and bits --------------------------------------------------------------------------------------------


def _hex(count: int) -> Texts:
    return st.binary(min_size=count, max_size=count).map(lambda data: data.hex(":"))


@st.composite
def _networks(draw: st.DrawFn, *, strict: bool) -> str:
    address = draw(st.ip_addresses())
    prefix = draw(st.integers(0, address.max_prefixlen))
    interface = ipaddress.ip_interface(f"{address}/{prefix}")
    return str(interface.network) if strict else str(interface)


# -- documents -----------------------------------------------------------------------------------------------------

json_numbers = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    some("0", "-0", "1.0", "1.10", "1e5", "1E+5", "-2.5e-3", "9007199254740993", "1e300"),
).map(Number)
documents: SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), json_numbers, st.text(characters, max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(st.tuples(st.text(characters, max_size=6), inner), max_size=4).map(lambda p: Object(tuple(p))),
    ),
    max_leaves=10,
)


@st.composite
def _json_texts(draw: st.DrawFn) -> str:
    """A document with white space of every kind between its tokens."""
    blank = draw(some("", " ", "\n", "\r\n", "\t", "\r", " \n\t "))
    parts = re.split(r'("(?:[^"\\]|\\.)*")', dump(draw(documents)))
    return "".join(p if p.startswith('"') else re.sub(r"([,:{}\[\]])", rf"{blank}\1{blank}", p) for p in parts)


_json_edges = some(
    *("{}", "[]", "null", '""', '"\\n\\u00e9"', " [ ] ", '{"a":\n1,\r\n"b":\t{}}', '{"a":1,"a":2}', '"NULL"', '"{}"'),
    *("12345678901234567890123", '"\\"\\\\"', '\n"x"\r'),
)
_jsons = _often(4, _json_texts(), _json_edges)

_words = st.text(st.characters(categories=["L"]), min_size=1, max_size=6)
_lexemes = _often(4, _words, some("it''s", "a b", "a\\\\b", ":", ",", '"')).map(lambda word: f"'{word}'")


_weighed = st.tuples(_lexemes, some("", ":1", ":1A,2", ":16383C")).map("".join)
_tsvectors = st.lists(_weighed, max_size=4).map(" ".join)
_terms = st.tuples(some("", "!"), _lexemes, some("", ":*", ":AB")).map("".join)
_tsqueries = st.tuples(some(" & ", " | ", " <-> ", " <3> "), st.lists(_terms, max_size=4)).map(
    lambda p: p[0].join(p[1])
)
_jsonpaths = some(
    *("$", "strict $.a", 'lax $."a b"[*] ? (@ > 1 && @.x == "y\\"z")', "$[last]", '$.a like_regex "^a" flag "i"'),
    *("$.**{2 to 5}", "-$.a.size() + 1.5", '$."é😀"', "exists($.a)"),
)

# -- the table -----------------------------------------------------------------------------------------------------


def _same(name: str, texts: Texts, rule: Callable[[str], Any] = as_text) -> Kind:
    return Kind(name, name, texts, rule)


KINDS: list[Kind] = [
    _same("bool", some("t", "f"), as_bool),
    _same("int2", _integers(16), as_number),
    _same("int4", _integers(32), as_number),
    _same("int8", _integers(64), as_number),
    _same("oid", _unsigned(32), as_number),
    _same("float4", _floats4, as_number),
    _same("float8", _floats8, as_number),
    _same("numeric", numerics, as_number),
    Kind("numeric(20,5)", "numeric", st.decimals(-(10**14), 10**14, places=5).map(str), as_number),
    _same("text", strings),
    _same("varchar", strings),
    _same("bpchar", strings),
    Kind("char(5)", "bpchar", st.text(characters, max_size=5)),
    _same("name", strings),
    Kind('"char"', "char", _one_byte),
    _same(
        "bytea", st.one_of(st.binary(max_size=40), some("", "\\", "\\x").map(str.encode)).map(lambda b: "\\x" + b.hex())
    ),
    _same("date", _dates),
    _same("time", _times),
    Kind("time(3)", "time", _times),
    _same("timetz", st.tuples(_times, _offsets).map("".join)),
    _same("timestamp", _timestamps, as_timestamp),
    _same("timestamptz", _timestamptzs, as_timestamptz),
    Kind("timestamptz(2)", "timestamptz", st.datetimes().map(lambda t: f"{t}+00"), as_timestamptz),
    _same("interval", _often(4, _intervals(), _interval_edges)),
    _same("uuid", st.uuids().map(str)),
    _same("inet", st.one_of(_networks(strict=False), st.ip_addresses().map(str))),
    _same("cidr", _networks(strict=True)),
    _same("macaddr", _hex(6)),
    _same("macaddr8", _hex(8)),
    Kind("bit(7)", "bit", st.text("01", min_size=7, max_size=7)),
    _same("varbit", st.text("01", max_size=70)),
    _same("json", _jsons, as_json),
    _same("jsonb", _jsons, as_json),
    _same("jsonpath", _jsonpaths),
    _same("money", st.decimals(-(10**15), 10**15, places=2).map(str)),
    _same("point", _often(4, _point, _odd_point)),
    _same("line", _lines),
    _same("lseg", _points(2, 2).map(lambda p: f"[{p}]")),
    _same("box", _points(2, 2)),
    _same("path", st.tuples(some("()", "[]"), _points(1, 4)).map(lambda p: p[0][0] + p[1] + p[0][1])),
    _same("polygon", _points(1, 4).map(lambda p: f"({p})")),
    _same("circle", _circles),
    *(_same(f"{name}range", _often(8, ranges, some("empty"))) for name, ranges in _RANGES.items()),
    *(_same(f"{name}multirange", _multi(ranges)) for name, ranges in _RANGES.items()),
    _same("tsvector", _tsvectors),
    _same("tsquery", _tsqueries),
    _same("pg_lsn", st.tuples(*[st.integers(0, 2**32 - 1)] * 2).map(lambda p: f"{p[0]:X}/{p[1]:X}")),
    _same("xid", _unsigned(32)),
    _same("xid8", _unsigned(64)),
    _same("cid", _unsigned(32)),
    _same("tid", st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 65535)).map(lambda p: f"({p[0]},{p[1]})")),
    _same("pg_snapshot", some("10:20:10,14,15", "10:10:", "9223372036854775806:9223372036854775807:")),
    _same("regclass", some("pg_class", "values_test.kept", 'values_test."Odd ""name"""', "0", "99")),
    _same("regtype", some("integer", "timestamp with time zone", "int4[]", "values_test.mood", "0")),
    _same("regproc", some("now", "pg_sleep", "0")),
    _same("regnamespace", some("pg_catalog", "values_test")),
    _same("int2vector", st.lists(_integers(16), max_size=4).map(" ".join)),
    _same("oidvector", st.lists(_unsigned(32), max_size=4).map(" ".join)),
    _same("refcursor", strings),
]

# -- types of the tenant's own; SCHEMA makes them ------------------------------------------------------------------

LABELS = (
    "happy",
    "it's",
    "a,b",
    "{x}",
    '"q"',
    "back\\slash",
    " ",
    "ünï😀",
    "NULL",
    "null",
    "a;b",
    "line\nbreak",
    "(1,2)",
)


def _composite_text(fields: tuple[str | None, ...]) -> str:
    parts = ["" if f is None else '"' + f.replace("\\", "\\\\").replace('"', '""') + '"' for f in fields]
    return "(" + ",".join(parts) + ")"


OWN_KINDS: list[Kind] = [
    Kind("values_test.mood", "values_test.mood", some(*LABELS)),
    Kind('values_test."Odd ""type"""', 'values_test.Odd "type"', some("a", "b")),
    Kind(
        "values_test.pair",
        "values_test.pair",
        st.tuples(st.one_of(st.none(), _integers(32)), st.one_of(st.none(), strings)).map(_composite_text),
    ),
    Kind("values_test.floatrange", "values_test.floatrange", _ranges(st.floats(-1e100, 1e100))),
]

DOMAINS: list[tuple[Kind, str]] = [
    # The engine reports a domain's column as the type under it, an array of domains as itself.
    (Kind("values_test.d_int", "int4", _integers(32), as_number), "values_test.d_int[]"),
    (Kind("values_test.d_text", "text", strings), "values_test.d_text[]"),
    (Kind("values_test.d_numeric", "numeric", numerics, as_number), "values_test.d_numeric[]"),
    (Kind("values_test.d_time", "timestamptz", _timestamptzs, as_timestamptz), "values_test.d_time[]"),
    (Kind("values_test.d_jsonb", "jsonb", _jsons, as_json), "values_test.d_jsonb[]"),
    (Kind("values_test.d_mood", "values_test.mood", some(*LABELS)), "values_test.d_mood[]"),
    (Kind("values_test.d_box", "box", _points(2, 2)), "values_test.d_box[]"),
    (Kind("values_test.d_d_int", "int4", _integers(32), as_number), "values_test.d_d_int[]"),
]

SCHEMA: list[str] = [
    "drop schema if exists values_test cascade",
    "create schema values_test",
    f"create type values_test.mood as enum ({', '.join(map(quote, LABELS))})",
    'create type values_test."Odd ""type""" as enum (\'a\', \'b\')',
    "create type values_test.pair as (a int4, b text)",
    "create type values_test.floatrange as range (subtype = float8)",
    'create table values_test."Odd ""name""" (a int4)',
    "create table values_test.kept (a int4)",
    "create domain values_test.d_int as int4 check (value is not null or true)",
    "create domain values_test.d_text as text",
    "create domain values_test.d_numeric as numeric",
    "create domain values_test.d_time as timestamptz",
    "create domain values_test.d_jsonb as jsonb",
    "create domain values_test.d_mood as values_test.mood",
    "create domain values_test.d_box as box",
    "create domain values_test.d_d_int as values_test.d_int",
    "create domain values_test.d_ints as int4[]",
    "create domain values_test.d_numerics as numeric[]",
    "create domain values_test.d_times as timestamptz[]",
    "create domain values_test.d_texts as text[]",
]
"""A schema for the tests of one file."""
