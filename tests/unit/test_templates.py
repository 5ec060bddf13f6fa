"""Which statements are run as a template with values, and that nothing else is."""

import re

import pytest

from tuplegate.engine.sql.templates import Template, find_template

INT4, INT8, NUMERIC, INFERRED = 23, 20, 1700, 0


def found(sql: str) -> Template | None:
    return find_template(sql, sql.split()[0].lower())


@pytest.mark.parametrize(
    ("sql", "text", "types", "values"),
    [
        ("select a, b.c from t where id = 7", "select a, b.c from t where id = $1", (INT4,), [b"7"]),
        ("SELECT * FROM s.t WHERE id=7;", "SELECT * FROM s.t WHERE id=$1;", (INT4,), [b"7"]),
        ('select "a = 1" from "t" where "b, 2" = 3', 'select "a = 1" from "t" where "b, 2" = $1', (INT4,), [b"3"]),
        (
            "select a from t where b = 'x = 1, (2' and c = 2147483648 order by d desc, e limit 10",
            "select a from t where b = $1 and c = $2 order by d desc, e limit 10",
            (INFERRED, INT8),
            [b"x = 1, (2", b"2147483648"],
        ),
        ("select a from t where b = -2147483648", "select a from t where b = $1", (INT4,), [b"-2147483648"]),
        ("select a from t where b = 9223372036854775808", "select a from t where b = $1", (NUMERIC,), None),
        (
            "insert into t (a, b) values (1, 'ä\n') returning id",
            "insert into t (a, b) values ($1, $2) returning id",
            (INT4, INFERRED),
            [b"1", "ä\n".encode()],
        ),
        (
            "insert into t values(-1,1.50,null,true,default,'')",
            "insert into t values($1,$2,null,true,default,$3)",
            (INT4, NUMERIC, INFERRED),
            [b"-1", b"1.50", b""],
        ),
        (
            "update t set a = 1, b = null where c = '2' returning *",
            "update t set a = $1, b = null where c = $2 returning *",
            (INT4, INFERRED),
            [b"1", b"2"],
        ),
        ("update t set n = n + 1 where id = 7", "update t set n = n + 1 where id = $1", (INT4,), [b"7"]),
        (
            "update t set a = 2, n = t.n-10, b = '' where id = 7 returning n",
            "update t set a = $1, n = t.n-10, b = $2 where id = $3 returning n",
            (INT4, INFERRED, INT4),
            [b"2", b"", b"7"],
        ),
        ("delete from t where a = 007", "delete from t where a = $1", (INT4,), [b"007"]),
    ],
)
def test_a_simple_statement_is_a_template_with_values(
    sql: str, text: str, types: tuple[int, ...], values: list[bytes | None] | None
) -> None:
    template = found(sql)
    assert template is not None
    assert (template.text, template.types) == (text, types)
    assert values is None or template.values == values


@pytest.mark.parametrize(
    "sql",
    [
        "select a from t",
        "select 1",
        "select a from t where b = c",
        "select a from t where b = 1 or c = 2",
        "select a from t where b > 1",
        "select a from t where b =-1",
        "select a from t where b = - 1",
        "select a from t where b = +1",
        "select a from t where b = 1e3",
        "select a from t where b = 0x10",
        "select a from t where b = 1_000",
        "select a from t where b = 1.",
        "select a from t where b = .5",
        "select a from t where b = 1 -- c = 2",
        "select a from t where b = 1 /* c */",
        "select a /* = 1 */ from t where b = 1",
        "select a from t where b = 'x''y'",
        "select a from t where b = 'x' 'y'",
        "select a from t where b = 'x'\n'y'",
        "select a from t where b = E'x'",
        "select a from t where b = U&'x'",
        "select a from t where b = 'x\\y'",
        "select a from t where b = $1",
        "select a from t where b = $$x$$",
        "select a from t where b = '$'",
        "select a from t where b = 1::text",
        "select a from t where b = 1 + 1",
        "select a from t where b = '1'::int",
        "select a from t where b = (1)",
        "select a from t where b = 1 group by c",
        "select a from t where b = 1 order by 1",
        "select a from t where b = 1 for update",
        "select a from t where b = 1; select 2",
        "select a from t where b = 1 union select 2",
        "select f(a) from t where b = 1",
        "select a b from t where b = 1",
        "select a into x from t where b = 1",
        "select a from t, u where b = 1",
        "select a from f(1) where b = 1",
        "select ä from t where b = 1",
        'select "" from t where b = 1',
        "insert into t values (1), (2)",
        "insert into t values (1 + 1)",
        "insert into t values (now(), 1)",
        "insert into t values (1) on conflict do nothing",
        "insert into t select 1",
        "insert into t values (array[1, 2])",
        "update t set a = a * 2 where b = 1",
        "update t set a = 1 + a where b = 1",
        "update t set a = a + c where b = 1",
        "update t set a = a + 1.5 where b = 1",
        "update t set a = a + 1e2 where b = 1",
        "update t set a = a + -1 where b = 1",
        "update t set a = a + 1 + 1 where b = 1",
        "update t set a = a + '1' where b = 1",
        "update t set a = 1",
        "update t set (a, b) = (1, 2) where c = 3",
        "delete from t using u where a = 1",
        "merge into t using u on a = 1 when matched then delete",
        "with x as (select 1) select a from t where b = 1",
        "explain select a from t where b = 1",
        "select a from t where b = " + "1" * 2000,
    ],
)
def test_anything_else_is_left_alone(sql: str) -> None:
    assert found(sql) is None


def test_the_values_put_back_give_the_text() -> None:
    """Also where a text of the same template came before."""
    for number in range(50):
        sql = f"update t set a = 'x{number} = 1', b = {number * 10**8} where c = {number}.5 and d = '{number}'"
        template = found(sql)
        assert template is not None
        quoted = {INFERRED: "'{}'", INT4: "{}", INT8: "{}", NUMERIC: "{}"}

        def put_back(place: "re.Match[str]", template: Template = template, quoted: dict[int, str] = quoted) -> str:
            index = int(place[1]) - 1
            value = template.values[index]
            assert value is not None
            return quoted[template.types[index]].format(value.decode())

        assert re.sub(r"\$(\d+)", put_back, template.text) == sql


def test_many_texts_are_not_all_remembered() -> None:
    for number in range(3000):
        assert found(f"select a from t{number} where b = 1") is not None
