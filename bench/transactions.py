"""Transactions over HTTP against pgbench that runs the same statements in two phases, on the same engine."""

import json
import statistics

from tests.service import Service, Sql

from bench.load import Load, run_load
from bench.measure import Line, pgbench

ROUNDS = 5
SECONDS = 3.0
ROWS = 10_000
HOT_ROWS = 10

ACCOUNT = "update bench_accounts set n = n + 1 where id = %"
ENTRY = "insert into bench_entries values (%, 1)"
LOOK = "select n from bench_hot where id = %"
HOT = "update bench_hot set n = n + 1 where id = %"

TWO_PHASE = """\\set id random(1, {rows})
\\set r random(1, 1000000000000)
begin;
{first};
{second};
prepare transaction 'bench.:client_id.:r';
commit prepared 'bench.:client_id.:r';
"""
"""A gid is no parameter, so pgbench sends everything by the simple protocol. No variable name may end in the gid."""


def measure(service: Service) -> list[Line]:
    with service.client() as client:
        sql = Sql(client)
        for table, rows in (("bench_accounts", ROWS), ("bench_hot", HOT_ROWS)):
            sql(f"create table {table} (id int primary key, n bigint not null) with (fillfactor = 50)")
            sql(f"insert into {table} select g, 0 from generate_series(1, {rows}) g")
        sql("create table bench_entries (account int, amount int)")
        sql("vacuum analyze bench_accounts, bench_hot")
        two = _ratio(service, sql, "bench_accounts", (ACCOUNT, ENTRY), ROWS, 8)
        hot = _ratio(service, sql, "bench_hot", (LOOK, HOT), HOT_ROWS, 16)
        sql("drop table bench_accounts, bench_hot, bench_entries")
    return [
        Line("two writes, 16 connections / engine", two[0], 0.6, False, two[1]),
        Line("10 hot rows, 16 connections / engine", hot[0], 0.5, False, hot[1]),
    ]


def _ratio(
    service: Service, sql: Sql, table: str, statements: tuple[str, str], rows: int, clients: int
) -> tuple[float, str]:
    """Committed transactions, counted in the table, against those of pgbench; rounds of both, one after the other."""
    body = json.dumps({"statements": list(statements)})
    first, second = (statement.replace("%", ":id") for statement in statements)
    script = TWO_PHASE.format(rows=rows, first=first, second=second)
    ours, engine = [], []
    for _ in range(ROUNDS):
        before = sql.value(f"select sum(n) from {table}")
        load = Load(service.url, service.key, body, rows, 16, SECONDS, path="/v1/transaction")
        run_load(load)
        ours.append((sql.value(f"select sum(n) from {table}") - before) / SECONDS)
        engine.append(pgbench(service, script, SECONDS, "-c", str(clients), "--max-tries=1000"))
    ratios = [a / b for a, b in zip(ours, engine, strict=True)]
    note = (
        f"{statistics.median(ours):,.0f}/s against {statistics.median(engine):,.0f}/s of pgbench;"
        f" rounds {min(ratios):.2f} to {max(ratios):.2f}"
    )
    return statistics.median(ratios), note
