"""Texts as CockroachDB reads them: what is refused, what may write, and what a connection is cleaned of."""

import pytest

from tuplegate.engine.cockroach.dialect.texts import (
    check_text,
    find_action,
    find_called,
    list_heads,
    list_options,
    list_words,
    scan,
)
from tuplegate.engine.cockroach.pools.pool import DatabaseState
from tuplegate.engine.cockroach.query.refusals import check_statement
from tuplegate.engine.cockroach.query.rules import Kind, find_kind, find_leftovers
from tuplegate.engine.libpq.pools.definitions import Definitions, Versions
from tuplegate.engine.libpq.values.row_encoder import EncoderCache
from tuplegate.engine.libpq.values.types import TypeRegistry
from tuplegate.engine.port import Access, ParseFailed, Statement, StatementFailed, Target
from tuplegate.engine.sql.facts import Leftovers
from tuplegate.protocol.statements import first_keyword

CHANGING = frozenset({"set_config", "crdb_internal", "deserialize_session"})
WRITER = Target("tg_1", Access.WRITE)


def _statement(sql: str) -> Statement:
    return Statement(sql, first_keyword(sql)[0])


def _state(full_at: int | None = None) -> DatabaseState:
    definitions = Definitions(Versions(1, is_alone=True), 0, "tg_1")
    state = DatabaseState(EncoderCache(TypeRegistry({}, "")), CHANGING, definitions, functions_write=False)
    state.full_at = full_at
    return state


def _check(sql: str, full_at: int | None = None) -> None:
    check_statement(_state(full_at), WRITER, _statement(sql))


@pytest.mark.parametrize(
    ("sql", "position"),
    [
        ("commıt", 5),
        ("İNSERT into t values (1)", 1),
        ("select set_confıg('timezone', 'UTC', false)", 16),
        ("bac\u212aup into 'x'", 4),
        ("select größe from t", 10),
        ("select $ı$ a $ı$", 9),
        ("select 'ı', ı", 13),
        ("select e'\\'', ı, 'x'", 15),
        ("select b'\\'', ı, 'x'", 15),
        ("select e'a'\n'\\'', ı, 'x'", 19),
        ("select 1 #-- ı", 14),
        ("select 8 //* ı */ 1", 14),
        ("select /* /* */ 'x' */ ı", 24),
    ],
)
def test_a_letter_beyond_ascii_outside_of_quotes_is_refused(sql: str, position: int) -> None:
    with pytest.raises(ParseFailed) as caught:
        check_text(sql)
    assert (caught.value.sqlstate, caught.value.position) == ("42601", position)
    assert "double quotes" in str(caught.value.hint)
    assert caught.value.never_ran


@pytest.mark.parametrize(
    ("sql", "position"),
    [
        ("-- a\rcommit", 5),
        ("select 1 -- a\r, 2\n", 14),
        ("-- a\r\r commit", 5),
        ("-- one\r\n-- a\rcommit", 13),
    ],
)
def test_a_carriage_return_inside_of_a_line_comment_is_refused(sql: str, position: int) -> None:
    with pytest.raises(ParseFailed) as caught:
        check_text(sql)
    assert (caught.value.sqlstate, caught.value.position) == ("42601", position)
    assert "line feed" in str(caught.value.hint)


@pytest.mark.parametrize(
    "sql",
    [
        "select 'ı', \"größe\", $$ı$$, $a$ ı $a$, e'ı\\'ı'",
        "select 1 -- größe\n/* İ /* ı */ */",
        "-- with Windows' line ends\r\nselect 1\r\n-- the last\r\n",
        "select 1 -- the last\r",
        "-- a\r\r\nselect 1",
        "select '-- a\rb'",
        "select a$b$c, 'ı'",
        "select 'it''s', 'ı'",
        "select 'ı",
        "select $$ı",
    ],
)
def test_what_both_read_alike_passes(sql: str) -> None:
    """Also what nothing closes: the engine refuses that as a whole."""
    check_text(sql)


def test_every_character_belongs_to_a_piece() -> None:
    sql = "with x as (select $1::int8 #-- 1) /* a */ select e'\\'' || \"q\" -- end"
    pieces = [sql[start:end] for _, start, end in scan(sql)]
    assert "".join(pieces) == sql
    assert "#-" in pieces
    assert list_words("select 'a' b /* c */ \"d\" E") == ["select", "b", "e"]
    assert find_called('select "Set_Config" /* a */ (f(x), g [1])') == {"set_config", "f"}


def test_words_that_can_begin_a_statement() -> None:
    def heads(sql: str) -> list[str]:
        return [" ".join(head[:2]) for head in list_heads(sql)]

    assert heads("; with x as (export into csv 'a') select count(*) from [show tables]") == [
        "with x",
        "export into",
        "* )",
        "show tables",
    ]
    assert "backup into" in heads("explain (verbose) backup into 'a'")
    assert "backup into" in heads("prepare p as backup into 'a'")


@pytest.mark.parametrize(
    ("sql", "action"),
    [
        ("alter table t scatter", "scatter"),
        ("alter table if exists a.b.t@i /* */ SPLIT at values (1)", "split"),
        ('alter index "t"@"split" rename to x', "rename"),
        ("alter table scatter drop column split", "drop"),
        ("alter database d configure zone discard", "configure"),
        ("alter table t", ""),
    ],
)
def test_what_an_alter_does(sql: str, action: str) -> None:
    assert find_action(list_heads(sql)[0]) == action


@pytest.mark.parametrize(
    ("sql", "options"),
    [
        ("explain analyze (debug) select 1", {"debug"}),
        ('explain (verbose, analyze , "DEBUG") select (debug)', {"verbose", "analyze", "debug"}),
        ("select * from [explain analyse (types, debug) select 1]", {"types", "debug"}),
        ("explain analyze (select debug from t)", {"select"}),
        ("select analyze(debug), explain from t", set()),
    ],
)
def test_options_of_explain(sql: str, options: set[str]) -> None:
    assert list_options(sql) == options


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("(select 1)", Kind.READS),
        ("/* a */ ; (values (1))", Kind.READS),
        ("[insert into t values (1)]", Kind.DEFINES),
        ('"select" 1', Kind.DEFINES),
        ("1", Kind.DEFINES),
        ("ı 1", Kind.DEFINES),
        ("unheard of", Kind.DEFINES),
        ("select * from [insert into t values (1) returning a]", Kind.WRITES),
    ],
)
def test_an_unknown_first_word_is_no_read(sql: str, kind: Kind) -> None:
    assert find_kind(_statement(sql)) is kind


@pytest.mark.parametrize(
    ("sql", "left"),
    [
        ("select a from t where b = 'x' order by a", Leftovers.NOTHING),
        ("(select 1)", Leftovers.NOTHING),
        ("select now(), random(), clock_timestamp()", Leftovers.NOTHING),
        ("select nextval('s')", Leftovers.SEQUENCES),
        ("insert into t values (1)", Leftovers.SEQUENCES),
        ("upsert into t values (1)", Leftovers.SEQUENCES),
        ("select * from [delete from t returning a]", Leftovers.SEQUENCES),
        ("select set_config('timezone', 'UTC', false)", Leftovers.ANYTHING),
        ("select \"SET_CONFIG\"('timezone', 'UTC', false)", Leftovers.ANYTHING),
        ("insert into t select set_config('timezone', 'UTC', false)", Leftovers.ANYTHING),
        ("select crdb_internal.anything()", Leftovers.ANYTHING),
        ("select deserialize_session('x')", Leftovers.ANYTHING),
        ("with x as (select 1) select * from x", Leftovers.ANYTHING),
        ("set timezone = 'UTC'", Leftovers.ANYTHING),
        ("unheard of", Leftovers.ANYTHING),
        ("ı 1", Leftovers.ANYTHING),
        (f"select '{'x' * 10_000}'", Leftovers.ANYTHING),
    ],
)
def test_a_connection_is_reset_unless_every_name_is_known(sql: str, left: Leftovers) -> None:
    assert find_leftovers(_statement(sql), CHANGING) is left


@pytest.mark.parametrize(
    "sql",
    [
        "create table t (a text default set_config('timezone', 'UTC', false))",
        "create table t (a text default \"Set_Config\" /* a */ ('timezone', 'UTC', false))",
        "alter table t alter a set default deserialize_session('x')",
        "alter table t alter a set default crdb_internal.unheard_of('x')",
        "create view v as select set_config('timezone', 'UTC', false)",
        "create function f() returns text language sql as $$ select set_confıg('timezone', 'UTC', false) $$",
        "create function f() returns text language sql as e'select set_conf\\x69g(1)'",
        "create function f() returns text language sql as 'select set_con'\n'fig(1)'",
        "prepare p as create view v as select set_config('a', 'b', false)",
        "explain create view v as select set_config('a', 'b', false)",
        "create /* /* */ */ view v as select nextval('s')",
        "create or replace function f() returns int8 language sql as $$ select nextval('s') $$",
    ],
)
def test_nothing_is_stored_that_changes_a_session_where_it_does_not_show(sql: str) -> None:
    with pytest.raises(StatementFailed) as caught:
        _check(sql)
    assert caught.value.sqlstate == "0A000"


@pytest.mark.parametrize(
    ("type", "named"),
    [
        ("varchar(3)[]", "varchar(3)[]"),
        ("character varying ( 3 ) /* a */ []", "varying(3)[]"),
        ("char[]", "char[]"),
        ("BIT(3) ARRAY", "bit(3)[]"),
        ("text[]", None),
        ("varchar[]", None),
        ("varchar(3)", None),
        ("numeric(3)[]", None),
        ("varchar(3) default 'a[]'", None),
    ],
)
def test_no_column_cuts_its_values(type: str, named: str | None) -> None:
    sql = f"create table t (a int primary key, b {type}, c text)"
    if named is None:
        _check(sql)
        return
    with pytest.raises(StatementFailed) as caught:
        _check(sql)
    assert caught.value.sqlstate == "0A000"
    assert named in caught.value.message


@pytest.mark.parametrize(
    "sql",
    [
        "create table t (a int8 default nextval('s'), view text, set_config text)",
        "create view v as select a, 'set_config' as b from t",
        "create function f() returns int8 language sql as $$ select 1 $$",
        "select set_config('timezone', 'UTC', false)",
    ],
)
def test_what_may_be_stored_is(sql: str) -> None:
    _check(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "export into csv 'http://127.0.0.1/x' from table t",
        "EXPORT /* a */ INTO PARQUET 'userfile:///x' FROM SELECT 1",
        "with x as (export into csv 's3://a' from table t) select * from x",
        "explain analyze export into csv 'nodelocal://1/x' from table t",
        "explain (verbose) export into csv 'nodelocal://1/x' from table t",
        "import into t (a) csv data ('http://127.0.0.1/x')",
        "backup into 'nodelocal://1/x'",
        "prepare p as backup database d into 'nodelocal://1/x'",
        "restore from latest in 'nodelocal://1/x'",
        "show backups in 'http://127.0.0.1/'",
        "select * from [show backup 'http://127.0.0.1/']",
        "create changefeed for t into 'http://127.0.0.1/'",
        "experimental changefeed for t",
        "create schedule for backup into 'x' recurring '@daily'",
        "create external connection x as 'nodelocal://1/x'",
        "cancel query 'x'",
        "cancel queries (select query_id from [show queries])",
        "cancel session if exists 'x'",
    ],
)
def test_what_reaches_out_of_the_database_is_refused(sql: str) -> None:
    with pytest.raises(StatementFailed) as caught:
        _check(sql)
    assert caught.value.sqlstate == "42501"
    assert caught.value.hint


@pytest.mark.parametrize(
    "sql",
    [
        "select export, import, backup, restore, cancel from schedule",
        "select count(backup), max(export) from t",
        "select a as backup from t",
        "insert into export (import) values ('backup into')",
        "cancel job 1",
    ],
)
def test_those_words_may_be_names(sql: str) -> None:
    _check(sql)


def test_a_full_database_takes_what_frees_room() -> None:
    for sql in (
        "delete from t where kind = 'update'",
        "drop table t",
        "truncate t",
        "select 1",
        "select a from t for update",
        "with x as (select 1) select * from x",
        "(select 1)",
    ):
        _check(sql, full_at=10)
    _check("insert into t values (1)")
    check_statement(_state(10), Target("tg_1", Access.READ), _statement("insert into t values (1)"))
    check_statement(_state(10), WRITER, _statement("insert into t values (1)"), full=False)


@pytest.mark.parametrize(
    "sql",
    [
        "insert into t values (1)",
        "select * from [insert into t values (1) returning a]",
        "select * from [/* for */ update t set a = 'long' returning a]",
        "table [upsert into t values (1) returning a]",
        "delete from t using [insert into t values (1) returning a] as x",
        "with x as (insert into t values (1) returning a) select * from x",
        "explain analyze insert into t values (1)",
        "create table t (a int)",
    ],
)
def test_a_full_database_takes_nothing_that_grows_it(sql: str) -> None:
    with pytest.raises(StatementFailed) as caught:
        _check(sql, full_at=10)
    assert caught.value.sqlstate == "53100"


@pytest.mark.parametrize(
    "sql",
    [
        "alter table t configure zone using num_replicas = 1",
        "ALTER TABLE t /* */ SPLIT AT VALUES (1)",
        "alter partition p of table t configure zone discard",
        "alter database d alter locality global configure zone discard",
        "alter range relocate lease to 1 for select 1",
        'explain (analyze, "DEBUG") select 1',
    ],
)
def test_what_the_nodes_keep_for_all_is_the_owner_s(sql: str) -> None:
    with pytest.raises(StatementFailed) as refused:
        _check(sql)
    assert refused.value.sqlstate == "42501"


@pytest.mark.parametrize(
    "sql",
    [
        "alter table t drop column scatter",
        "alter table split add relocate int",
        "select split, configure, debug from scatter",
        "explain analyze select debug from t",
        "alter table t rename to unsplit",
        "create table configure (zone text)",
    ],
)
def test_names_like_those_words_are_taken(sql: str) -> None:
    _check(sql)
