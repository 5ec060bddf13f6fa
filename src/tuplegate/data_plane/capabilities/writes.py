"""Probes of statements that write, and of transactions by themselves."""

from tuplegate.data_plane.capabilities.probes import does, fails, gives, probe

WRITES = (
    probe("insert_select", "writes", "INSERT … SELECT", does("create table t (a int)"),
          does("insert into t select g from generate_series(1, 5) g"), gives("select sum(a) from t", (15,))),
    probe("update_from", "writes", "UPDATE … FROM", does("create table t (a int, b int)"),
          does("insert into t values (1, 0)"),
          does("update t set b = v.y from (values (1, 9)) as v (x, y) where t.a = v.x"),
          gives("select b from t", (9,))),
    probe("delete_using", "writes", "DELETE … USING", does("create table t (a int)"),
          does("insert into t values (1), (2)"),
          does("delete from t using (values (1)) as v (x) where a = x"), gives("table t", (2,))),
    probe("truncate", "writes", "TRUNCATE", does("create table t (a int)"), does("insert into t values (1)"),
          does("truncate t"), gives("select count(*) from t", (0,))),
    probe("upsert", "writes", "INSERT … ON CONFLICT DO UPDATE", does("create table t (id int primary key, n int)"),
          does("insert into t values (1, 1)"),
          does("insert into t values (1, 5), (2, 2) on conflict (id) do update set n = t.n + excluded.n"),
          gives("select id, n from t order by id", (1, 6), (2, 2))),
    probe("upsert_nothing", "writes", "ON CONFLICT DO NOTHING", does("create table t (id int primary key)"),
          does("insert into t values (1)"),
          gives("insert into t values (1), (2) on conflict do nothing returning id", (2,))),
    probe("merge", "writes", "MERGE", does("create table t (id int primary key, n int)"),
          does("insert into t values (1, 1), (2, 2)"),
          does("merge into t using (values (1, 10), (3, 30)) as v (id, n) on t.id = v.id"
               " when matched then update set n = v.n when not matched then insert values (v.id, v.n)"),
          gives("select id, n from t order by id", (1, 10), (2, 2), (3, 30))),
    probe("merge_returning", "writes", "MERGE … RETURNING", does("create table t (id int)"), gives(
        "merge into t using (values (1)) as v (id) on t.id = v.id when not matched then insert values (v.id)"
        " returning merge_action(), t.id", ("INSERT", 1))),
    probe("returning", "writes", "RETURNING", does("create table t (a int)"),
          gives("insert into t values (1), (2) returning a * 10", (10,), (20,)),
          gives("delete from t where a = 1 returning a", (1,))),
    probe("returning_old_new", "writes", "RETURNING old and new values", does("create table t (a int)"),
          does("insert into t values (1)"), gives("update t set a = 2 returning old.a, new.a", (1, 2))),
    probe("savepoints", "transactions", "SAVEPOINT", does("create table t (a int)"), does("insert into t values (1)"),
          does("savepoint s"), does("insert into t values (2)"), does("rollback to s"), gives("table t", (1,))),
    probe("read_only", "transactions", "A read only transaction cannot write", does("create table t (a int)"),
          does("set transaction read only"), fails("insert into t values (1)", "25006")),
    probe("row_locks", "transactions", "SELECT … FOR UPDATE SKIP LOCKED", does("create table t (a int)"),
          does("insert into t values (1)"), gives("select a from t for update skip locked", (1,))),
    probe("cursors", "transactions", "Cursors", does("declare c cursor for select generate_series(1, 5)"),
          does("move 2 in c"), gives("fetch 2 from c", (3,), (4,))),
    probe("prepared_statements", "transactions", "PREPARE and EXECUTE", does("prepare p (int) as select $1 + 1"),
          gives("execute p (4)", (5,)), does("deallocate p")),
)  # fmt: skip
