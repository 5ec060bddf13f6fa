"""Probes of the features of queries."""

from tuplegate.data_plane.capabilities.probes import does, gives, probe

_PAIRS = "(values (1, 'a'), (2, 'b')) as l (id, x)"
_OTHERS = "(values (2, 'c'), (3, 'd')) as r (id, y)"
_SALES = "(values ('n', 1), ('n', 3), ('s', 5)) as sale (region, amount)"

QUERIES = (
    # -- statements
    probe("select", "statements", "SELECT with expressions", gives("select 1 + 1, 'a' || 'b'", (2, "ab"))),
    probe("values", "statements", "VALUES on its own", gives("values (1), (2)", (1,), (2,))),
    probe(
        "order_by_nulls",
        "statements",
        "ORDER BY with NULLS LAST",
        gives("select x from (values (null), (2), (1)) as v (x) order by x desc nulls last", (2,), (1,), (None,)),
    ),
    probe(
        "limit_offset",
        "statements",
        "LIMIT and OFFSET",
        gives("select g from generate_series(1, 9) g order by g limit 2 offset 3", (4,), (5,)),
    ),
    probe(
        "fetch_with_ties",
        "statements",
        "FETCH FIRST WITH TIES",
        gives("select x from (values (1), (1), (2)) as v (x) order by x fetch first 1 row with ties", (1,), (1,)),
    ),
    probe("distinct_on", "statements", "DISTINCT ON", gives(
        f"select distinct on (region) region, amount from {_SALES} order by region, amount desc", ("n", 3), ("s", 5)
    )),
    probe("set_operations", "statements", "UNION, INTERSECT and EXCEPT", gives(
        "(select 1 union select 2) intersect select 2 union all (select 3 except select 4) order by 1", (2,), (3,)
    )),
    probe("case_expression", "statements", "CASE", gives(
        "select case when g > 1 then 'many' else 'one' end from generate_series(1, 2) g order by g", ("one",), ("many",)
    )),
    probe("table_sample", "statements", "TABLESAMPLE", does("create table t as select generate_series(1, 10) as g"),
          gives("select count(*) from t tablesample bernoulli (100)", (10,))),
    probe("explain", "statements", "EXPLAIN as JSON", does("explain (format json) select 1")),
    # -- joins
    probe("inner_join", "joins", "INNER JOIN", gives(
        f"select id, x, y from {_PAIRS} join {_OTHERS} using (id)", (2, "b", "c"))),
    probe("left_join", "joins", "LEFT JOIN", gives(
        f"select id, y from {_PAIRS} left join {_OTHERS} using (id) order by id", (1, None), (2, "c"))),
    probe("full_join", "joins", "FULL JOIN", gives(
        f"select id, x, y from {_PAIRS} full join {_OTHERS} using (id) order by id",
        (1, "a", None), (2, "b", "c"), (3, None, "d"))),
    probe("cross_join", "joins", "CROSS JOIN", gives(f"select count(*) from {_PAIRS} cross join {_OTHERS}", (4,))),
    probe("lateral_join", "joins", "LATERAL", gives(
        "select a, b from generate_series(1, 2) a, lateral (select a * 10 as b) as l order by a", (1, 10), (2, 20))),
    probe("semi_join", "joins", "EXISTS and IN with a subquery", gives(
        f"select id from {_PAIRS} where exists (select from {_OTHERS} where r.id = l.id) and id in (select 2)", (2,))),
    # -- common table expressions
    probe("cte", "ctes", "WITH", gives("with a as (select 1 as x), b as (select x + 1 as y from a) table b", (2,))),
    probe("recursive_cte", "ctes", "WITH RECURSIVE", gives(
        "with recursive f (n, product) as (select 1, 1 union all select n + 1, product * (n + 1) from f where n < 5)"
        " select product from f where n = 5", (120,))),
    probe("cte_search_cycle", "ctes", "WITH RECURSIVE with CYCLE", gives(
        "with recursive walk (node) as (select 1 union all select node % 3 + 1 from walk)"
        " cycle node set again using path select count(*) from walk where not again", (3,))),
    probe("modifying_cte", "ctes", "INSERT inside WITH", does("create table t (a int)"), gives(
        "with new as (insert into t values (1), (2) returning a) select sum(a) from new", (3,))),
    probe("materialized_cte", "ctes", "WITH … AS MATERIALIZED", gives(
        "with a as materialized (select 1 as x) select x from a", (1,))),
    # -- aggregates
    probe("group_by", "aggregates", "GROUP BY and HAVING", gives(
        f"select region, sum(amount) from {_SALES} group by region having count(*) > 1", ("n", 4))),
    probe("grouping_sets", "aggregates", "GROUPING SETS and ROLLUP", gives(
        f"select region, sum(amount) from {_SALES} group by rollup (region) order by region",
        ("n", 4), ("s", 5), (None, 9))),
    probe("aggregate_filter", "aggregates", "FILTER", gives(
        f"select count(*) filter (where amount > 2) from {_SALES}", (2,))),
    probe("ordered_aggregate", "aggregates", "string_agg and array_agg in order", gives(
        "select string_agg(x, ',' order by x desc), array_agg(x order by x) from (values ('a'), ('b')) as v (x)",
        ("b,a", "{a,b}"))),
    probe("percentile", "aggregates", "Percentiles", gives(
        "select percentile_cont(0.5) within group (order by g), mode() within group (order by g % 2)"
        " from generate_series(1, 5) g", (3, 1))),
    probe("custom_aggregate", "aggregates", "CREATE AGGREGATE", does(
        "create aggregate product (int) (sfunc = int4mul, stype = int, initcond = '1')"), gives(
        "select product(g) from generate_series(1, 4) g", (24,))),
    # -- windows
    probe("window_rank", "windows", "row_number, rank and dense_rank", gives(
        "select row_number() over w, rank() over w, dense_rank() over w from (values (1), (1), (2)) as v (x)"
        " window w as (order by x) order by 1", (1, 1, 1), (2, 1, 1), (3, 3, 2))),
    probe("window_lag", "windows", "lag and lead", gives(
        "select g, lag(g) over (order by g), lead(g) over (order by g) from generate_series(1, 2) g order by g",
        (1, None, 2), (2, 1, None))),
    probe("window_frame", "windows", "Frames with ROWS", gives(
        "select sum(g) over (order by g rows between 1 preceding and current row)"
        " from generate_series(1, 3) g order by g", (1,), (3,), (5,))),
    probe("window_frame_exclude", "windows", "Frames with GROUPS and EXCLUDE", gives(
        "select sum(g) over (order by g groups between unbounded preceding and unbounded following exclude current row)"
        " from generate_series(1, 3) g order by g", (5,), (4,), (3,))),
    probe("window_partition", "windows", "PARTITION BY", gives(
        f"select region, sum(amount) over (partition by region) from {_SALES} order by 1, 2",
        ("n", 4), ("n", 4), ("s", 5))),
)  # fmt: skip
