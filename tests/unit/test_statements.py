"""What the service reads of a statement before the engine does."""

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplegate.engine.sql.facts import read_facts
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.statements import (
    COMMENTS_MAX,
    first_keyword,
    is_streamed,
    keyword_of_one,
    skip_blank,
)

BLANKS = [
    "",
    " ",
    "\t",
    "\n",
    "\r",
    "\f",
    "\v",
    "-- c\n",
    "-- c\r",
    "--\n",
    "/**/",
    "/* /* */ */",
    "/* -- */",
    "/* ' \" $$ */",
]
CONTROL = ["begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release"]

PARTS_MAX = 6


def _joined(*parts: str) -> st.SearchStrategy[str]:
    """Up to six of the parts in a row. One number stands for all of them: a list takes twice as long to draw."""

    def write(number: int) -> str:
        found = []
        while number:
            number, index = divmod(number, len(parts))
            found.append(parts[index])
        return "".join(found)

    return st.integers(0, len(parts) ** PARTS_MAX - 1).map(write)


blank = _joined(*BLANKS)
blank_or_semicolon = _joined(*BLANKS, ";")


def code_of(sql: str) -> str | None:
    try:
        keyword_of_one(sql)
    except ServiceError as exc:
        return exc.body.code
    return None


# -- the first keyword -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "keyword"),
    [
        ("select 1", "select"),
        ("SELECT 1", "select"),
        ("select", "select"),
        ("select*from t", "select"),
        ("select-1", "select"),
        ("select/**/1", "select"),
        ("values(1)", "values"),
        ("_x1$ y", "_x1$"),
        ("(select 1)", ""),
        ("1", ""),
        ('"select" 1', ""),
        ("'select'", ""),
        ("/ * x */ select", ""),
        ("- - x\nselect", ""),
        ("*/ select", ""),
        ("\u00a0select", ""),
        ("\ufeffselect", ""),
        ("-- open", ""),
        ("/* open select", ""),
        ("/* /* */ select", ""),
        ("/*/ select */ delete", "delete"),
        ("/***/ select", "select"),
        ("/*/**/*/ select", "select"),
        ("/* /*/ select */ */ commit", "commit"),
        ("--/*\nselect", "select"),
        ("/*--*/select", "select"),
        ("--\r\nselect", "select"),
        ("----\nselect", "select"),
        ("/*\n-- */ select", "select"),
        (";;;select", "select"),
    ],
)
def test_the_first_keyword_is_what_the_engine_reads_first(sql: str, keyword: str) -> None:
    """Behind white space of every kind the engine knows, comments that nest, and semicolons."""
    assert first_keyword(sql)[0] == keyword


@given(blank_or_semicolon, st.sampled_from(["select", "Insert", "COMMIT", "call"]), blank)
def test_nothing_hides_the_first_keyword(before: str, word: str, after: str) -> None:
    """Any mix of what the engine skips, before and behind it."""
    sql = before + word + after
    assert first_keyword(sql) == (word.lower(), len(before) + len(word))


@given(blank)
def test_blank_text_is_skipped_to_its_end(text: str) -> None:
    """What is only white space and comments has nothing else in it."""
    assert skip_blank(text) == len(text)
    assert skip_blank(text + "x") == len(text)
    assert skip_blank("x" + text + "y", 1) == len(text) + 1


@given(st.text(alphabet="/*-;' \n\rab"))
def test_any_text_is_read_without_a_fault(sql: str) -> None:
    """Whatever it is, it has a keyword, or it is refused with a code."""
    keyword, end = first_keyword(sql)
    assert 0 <= end <= len(sql)
    assert keyword == keyword.lower()
    assert code_of(sql) in (None, "empty_statement")


# -- refusals ----------------------------------------------------------------------------------------------------


@given(blank_or_semicolon)
def test_text_without_a_statement_is_empty(text: str) -> None:
    """White space, comments and semicolons."""
    assert code_of(text) == "empty_statement"


@given(blank_or_semicolon, st.sampled_from(["/*", "/* /* */", "/*/", "/* ; --"]))
def test_a_text_that_ends_inside_of_a_comment_is_left_to_the_engine(before: str, opened: str) -> None:
    """The engine has a parse error for it."""
    assert code_of(before + opened) is None


@pytest.mark.parametrize("sql", ["\0", "select \0", "select 1\0; commit", "-- \0"])
def test_a_nul_is_refused_with_its_position(sql: str) -> None:
    """Before anything else is looked at."""
    with pytest.raises(ServiceError) as caught:
        keyword_of_one(sql)
    assert caught.value.body.code == "malformed_request"
    assert f"position {sql.index(chr(0)) + 1}" in caught.value.body.message


@given(blank_or_semicolon, st.sampled_from(CONTROL), st.sampled_from(["", " ", ";", "\n", "/**/", "--", " x", "\v"]))
def test_control_is_refused_behind_everything(before: str, word: str, after: str) -> None:
    """Upper and lower case alike."""
    assert code_of(before + word + after) == "transaction_control"
    assert code_of(before + word.upper() + after) == "transaction_control"


@given(
    blank_or_semicolon,
    st.sampled_from(["set", "SET", "reset"]),
    st.sampled_from(["", "local", "SESSION"]),
    st.sampled_from(["transaction_isolation", "Transaction_Read_Only", "transaction_deferrable", "client_encoding"]),
    st.booleans(),
    st.sampled_from(["", " ", "/**/", "\v", "-- c\n"]),
    st.sampled_from(["=x", "to x", "TO'x'", "= default", ""]),
)
def test_settings_of_the_transaction_and_the_wire_are_refused(
    before: str, word: str, scope: str, name: str, quoted: bool, gap: str, value: str
) -> None:
    """Plain or quoted, with or without anything between the words that the engine does not need there."""
    words = [word, *([scope] if scope else []), f'"{name}"' if quoted else name]
    sql = before
    for left, right in pairwise(words):
        sql += left + (gap if gap or right.startswith('"') else " ")
    sql += words[-1] + (gap if gap or quoted or value[:1] in ("=", "") else " ") + value
    assert code_of(sql) == "transaction_control", sql


@pytest.mark.parametrize(
    "sql",
    [
        "prepare transaction 'x'",
        "PREPARE/**/TRANSACTION'x'",
        "set transaction read write",
        "set local transaction read write",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "set session -- c\n characteristics as transaction read only",
        "set names 'latin1'",
        "set names",
        "SET NAMES'latin1'",
    ],
)
def test_other_forms_of_control_are_refused(sql: str) -> None:
    """Two-phase statements and the long forms of SET."""
    assert code_of(sql) == "transaction_control"


@pytest.mark.parametrize(
    "sql",
    [
        "prepare x as select 1",
        "prepare transactional as select 1",
        "set timezone = 'UTC'",
        "set default_transaction_isolation = 'serializable'",
        "set a.transaction_isolation = 'x'",
        "set session authorization default",
        "set local search_path = x",
        "set role none",
        "set constraints all deferred",
        "reset all",
        "reset role",
        "committed",
        "begins",
        "select 1 as commit",
        "select 'commit'",
        "(commit)",
        "\u00a0commit",
    ],
)
def test_harmless_neighbours_pass(sql: str) -> None:
    """The engine judges them."""
    assert code_of(sql) is None


def test_the_refusal_shows_the_way() -> None:
    """A newcomer learns where several statements go."""
    with pytest.raises(ServiceError) as caught:
        keyword_of_one("begin")
    assert caught.value.status == 400
    assert "POST /v1/transaction" in (caught.value.body.hint or "")


# -- the streaming hint ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "streamed"),
    [
        ("/*+ STREAM */ select 1", True),
        ("/*+ STREAM */select 1", True),
        (" \t\r\n\f\v/*+ STREAM */ select 1", True),
        ("/*+ STREAM */", True),
        ("/* STREAM */ select 1", False),
        ("/*+STREAM*/ select 1", False),
        ("/*+ stream */ select 1", False),
        ("select /*+ STREAM */ 1", False),
        ("-- c\n/*+ STREAM */ select 1", False),
        ("select '/*+ STREAM */'", False),
        ("", False),
    ],
)
def test_the_hint_counts_only_at_the_start(sql: str, streamed: bool) -> None:
    """White space may stand before it, nothing else."""
    assert is_streamed(sql) is streamed


# -- comments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "/**/" * 2_500_000 + "select 1",
        "select 1" + "/**/" * 75_000,
        "/*" * 100_000 + "*/" * 100_000 + "select 1",
        "select '" + "/*" * 100_000 + "'",
        "/* c */ " * (COMMENTS_MAX + 1) + "select 1",
        "/*" * 1000 + "+" * 1_000_000 + " */" * 1000 + "select 1",
        "select 1" + "/*" * 100 + "=<>~@#" * 500_000,
        "--\n" * (COMMENTS_MAX + 1) + "select 1",
        "-- c\r" * 1_000_000,
        "set /**/" + "/**/" * 100 + " timezone = 'UTC'",
        "set -- c\n" + "-- c\n" * 100 + " timezone = 'UTC'",
        "prepare" + "/**/" * 101 + " transaction 'a'",
    ],
    ids=lambda sql: f"{sql[:12]!r} {len(sql)}",
)
def test_comments_that_take_the_engine_long_are_refused(sql: str) -> None:
    assert code_of(sql) == "too_many_comments"


@pytest.mark.parametrize(
    "sql",
    [
        "select 1" + "/**/" * 2_490,
        "/* c */ " * COMMENTS_MAX + "select 1",
        "-- c\n" * COMMENTS_MAX + "select 1",
        "/*" + "*" * 9_000_000 + "*/select 1",
        "/* " + "c " * 4_000_000 + "*/select 1",
        "select 1 /* c */ -- " + "-" * 9_000_000,
        "insert into t values " + "(1, '--'), " * 800_000 + "(1, '/*')",
        "set" + " /**/" * 100 + " timezone = 'UTC'",
    ],
    ids=lambda sql: f"{sql[:12]!r} {len(sql)}",
)
def test_comments_that_the_engine_skips_in_a_moment_pass(sql: str) -> None:
    assert code_of(sql) is None


def test_the_refusal_of_comments_says_what_to_do() -> None:
    with pytest.raises(ServiceError) as refused:
        keyword_of_one("/**/" * 100_000 + "select 1")
    assert refused.value.status == 400
    assert "100,000 comments" in refused.value.body.message
    assert "parameters" in str(refused.value.body.hint)


# -- time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "middle", "end"),
    [
        ("", "--\n", "select 1"),
        ("", "--\r", "select 1"),
        ("", "/**/", "select 1"),
        ("", "/*", ""),
        ("", " ", "select 1"),
        ("", ";", "select 1"),
        ("set x = '", "a", "'"),
        ("set x = '", "/", "'"),
        ("set ", "/**/", "x = 1"),
        ("prepare ", "-- \n", "x as select 1"),
    ],
)
def test_reading_a_text_grows_no_faster_than_the_text(start: str, middle: str, end: str) -> None:
    """The whole service waits while a text is looked at: eight times the text takes about eight times as long."""

    def cost(length: int) -> float:
        sql = start + middle * length + end
        times = []
        for _ in range(5):
            started = time.process_time()
            code_of(sql)
            is_streamed(sql)
            times.append(time.process_time() - started)
        return min(times)

    # Quadratic would be 64 times.
    assert cost(160_000) < 24 * cost(20_000) + 0.005


@pytest.mark.parametrize(
    "sql",
    [
        "/**/" * 1_000_000 + "select 1",
        "/* " + "* /" * 1_000_000 + "*/select 1",
        "--\n" * 1_000_000 + "select 1",
        "select " + "_" * 4_000_000,
        "select " + "m_context" * 400_000,
        "select '" + "é" * 4_000_000 + "'",
    ],
    ids=lambda sql: repr(sql[:12]),
)
def test_a_great_text_is_looked_at_as_quickly_as_it_is_searched(sql: str) -> None:
    """Nothing that takes time for each comment, or for each character that could begin a name."""

    def cost(look: Callable[[], object]) -> float:
        started = time.process_time()
        look()
        return time.process_time() - started

    def look() -> None:
        is_streamed(sql)
        if code_of(sql) is None:
            read_facts(sql, "select")

    search = min(cost(lambda: "not there" in sql) for _ in range(5))
    assert min(cost(look) for _ in range(3)) < 60 * search + 0.005
