"""What the engine side knows of a statement by its text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplegate.engine.port import CopyRefused, Statement
from tuplegate.engine.sql.facts import Facts, Leftovers, read_facts, refuse_copy
from tuplegate.protocol.statements import first_keyword

WORDS = ("select", "insert", "update", "delete", "merge", "with", "values", "table", "explain", "show", "create",
         "call", "do", "set", "vacuum", "savepoint", "")  # fmt: skip
NAMES = ("set_config", "u&", "setseed", "nextval", "into", "lo_put", "concurrently", "notify", "returning",
         "advisory", "synchronous_commit", "analyze", "delete", "set_limit", "prepared_statements")  # fmt: skip


def facts_of(sql: str) -> Facts:
    return read_facts(sql, first_keyword(sql)[0])


@pytest.mark.parametrize("sql", ["select 1", "insert into t values (1)", "with x as (select 1) select 1", "table t"])
def test_ordinary_statements_are_plain(sql: str) -> None:
    """They are the hot path."""
    assert facts_of(sql).plain


@pytest.mark.parametrize(
    "sql",
    [
        "select set_config('a', 'b', false)",
        "select SET_CONFIG('a', 'b', false)",
        "select pg_catalog.setseed(1)",
        'select "setseed"(1)',
        'select U&"set\\005fseed"(1)',
        'select u&"\\0073etseed"(1)',
        "select query_to_xml('x', true, true, '')",
        "select * from ts_stat('x')",
        "set a = b",
        "do $$ $$",
        "call p()",
        "explain analyze select 1",
        "create table t as select 1",
        "execute x",
    ],
)
def test_what_can_touch_the_session_is_not_plain(sql: str) -> None:
    """It names a function that does, or one that runs SQL text, or it is not a query."""
    assert not facts_of(sql).plain


@pytest.mark.parametrize(
    ("sql", "left"),
    [
        ("select 1", Leftovers.NOTHING),
        ("(select 1)", Leftovers.NOTHING),
        ("select nextval('s')", Leftovers.SEQUENCES),
        ("insert into t values (1)", Leftovers.SEQUENCES),
        ("update t set a = 1", Leftovers.SEQUENCES),
        ("select 1 into t", Leftovers.ANYTHING),
        ("select pg_advisory_lock(1)", Leftovers.ANYTHING),
        ("select set_limit(0.5)", Leftovers.ANYTHING),
        ("with x as (select 1) table x", Leftovers.ANYTHING),
        ("create table t ()", Leftovers.ANYTHING),
    ],
)
def test_what_is_left_depends_on_the_names_in_a_text(sql: str, left: Leftovers) -> None:
    assert facts_of(sql).leftovers is left


@pytest.mark.parametrize(
    ("sql", "writes"),
    [
        ("select 1", False),
        ("show all", False),
        ("explain insert into t values (1)", False),
        ("explain analyze insert into t values (1)", True),
        ("explain (analyse) select 1", True),
        ("select 1 into t", True),
        ("select lo_creat(-1)", True),
        ("select lowrite(1, 'a')", True),
        ("with x as (delete from t returning a) select * from x", True),
        ("with x as (select 1) select * from x", False),
        ("merge into t using s on false when not matched then do nothing", True),
        ("create table t ()", True),
        ("vacuum", True),
    ],
)
def test_what_writes_shows_in_its_text(sql: str, writes: bool) -> None:
    """Where nobody has made code that a query could call."""
    assert facts_of(sql).may_write is writes


@pytest.mark.parametrize(
    ("sql", "gives_none"),
    [
        ("insert into t values (1)", True),
        ("delete from t RETURNING a", False),
        ("select 1", False),
        ("call p()", False),
    ],
)
def test_only_a_change_that_returns_nothing_is_known_to_give_no_rows(sql: str, gives_none: bool) -> None:
    assert facts_of(sql).gives_no_rows is gives_none


def test_what_begins_transactions_of_its_own_is_known_by_its_words() -> None:
    assert facts_of("vacuum t").works_in_steps
    assert facts_of("REINDEX table t").works_in_steps
    assert facts_of("create index CONCURRENTLY on t (a)").is_concurrent
    assert not facts_of("create index on t (a)").is_concurrent


@given(word=st.sampled_from(WORDS), names=st.lists(st.sampled_from(NAMES)), more=st.sampled_from(NAMES))
def test_another_name_in_a_text_makes_nothing_safer(word: str, names: list[str], more: str) -> None:
    """What the reader cannot tell is taken for the worse, so more names never give more trust."""
    fewer = read_facts(" ".join([word, *names]), word)
    further = read_facts(" ".join([word, *names, more]), word)
    assert fewer.plain or not further.plain
    assert fewer.leftovers.value <= further.leftovers.value
    assert further.may_write or not fewer.may_write
    assert further.names_settings or not fewer.names_settings
    assert fewer.gives_no_rows or not further.gives_no_rows


@given(
    st.sampled_from(["", " ", "\n", "a"]), st.sampled_from(["set_config", "PG_SETTINGS", "U&", "synchronous_commit"])
)
def test_letters_beyond_ascii_neither_hide_a_name_nor_make_one(before: str, name: str) -> None:
    assert read_facts(f"select {before}é{name}ß", "select").names_settings
    assert not read_facts("select s\u212aip_it('\u017fet_config')", "select").names_settings


@pytest.mark.parametrize("sql", ["copy t from stdin", "COPY t TO STDOUT"])
def test_a_copy_that_needs_the_client_is_refused(sql: str) -> None:
    with pytest.raises(CopyRefused):
        refuse_copy(Statement(sql, first_keyword(sql)[0]))
    refuse_copy(Statement("copy t from 'file'", "copy"))
