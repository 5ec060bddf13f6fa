"""Probes of definitions: constraints, indexes, triggers, procedures, partitions, views, rights."""

from tuplegate.data_plane.capabilities.probes import Probe, does, fails, gives, probe

DEFINITIONS = (
    # -- constraints
    probe("primary_key", "constraints", "PRIMARY KEY", does("create table t (id int primary key)"),
          does("insert into t values (1)"), fails("insert into t values (1)", "23505"),
          fails("insert into t values (null)", "23502")),
    probe("unique_nulls", "constraints", "UNIQUE NULLS NOT DISTINCT",
          does("create table t (a int unique nulls not distinct)"), does("insert into t values (null)"),
          fails("insert into t values (null)", "23505")),
    probe("foreign_key", "constraints", "FOREIGN KEY with ON DELETE CASCADE",
          does("create table p (id int primary key)"),
          does("create table c (p int references p on delete cascade)"), does("insert into p values (1)"),
          does("insert into c values (1)"), fails("insert into c values (2)", "23503"), does("delete from p"),
          gives("select count(*) from c", (0,))),
    probe("check", "constraints", "CHECK", does("create table t (a int check (a > 0))"),
          fails("insert into t values (0)", "23514")),
    probe("exclusion", "constraints", "EXCLUDE",
          does("create table t (during int4range, exclude using gist (during with &&))"),
          does("insert into t values ('[1,5)')"), fails("insert into t values ('[4,6)')", "23P01")),
    probe("deferred", "constraints", "DEFERRABLE INITIALLY DEFERRED",
          does("create table t (a int unique deferrable initially deferred)"), does("insert into t values (1), (1)"),
          fails("set constraints all immediate", "23505")),
    probe("not_valid", "constraints", "NOT VALID and VALIDATE", does("create table t (a int)"),
          does("insert into t values (-1)"), does("alter table t add constraint positive check (a > 0) not valid"),
          fails("alter table t validate constraint positive", "23514")),
    probe("identity", "constraints", "GENERATED AS IDENTITY",
          does("create table t (id int generated always as identity, a int)"),
          does("insert into t (a) values (5), (6)"), gives("select id from t order by id", (1,), (2,)),
          fails("insert into t (id) values (9)", "428C9")),
    probe("generated_stored", "generated", "Generated columns, stored",
          does("create table t (a int, b int generated always as (a * 2) stored)"), does("insert into t values (4)"),
          gives("select b from t", (8,))),
    probe("generated_virtual", "generated", "Generated columns, virtual",
          does("create table t (a int, b int generated always as (a * 2) virtual)"), does("insert into t values (4)"),
          gives("select b from t", (8,))),
    probe("defaults", "generated", "DEFAULT with an expression", does("create table t (a int, b int default 40 + 2)"),
          does("insert into t (a) values (1)"), gives("select b from t", (42,))),
    probe("sequence", "generated", "CREATE SEQUENCE", does("create sequence s start 10 increment 5"),
          gives("select nextval('s'), nextval('s'), currval('s')", (10, 15, 15))),
    # -- indexes
    probe("index_expression", "indexes", "Index on an expression", does("create table t (a text)"),
          does("create unique index on t (lower(a))"), does("insert into t values ('X')"),
          fails("insert into t values ('x')", "23505")),
    probe("index_partial", "indexes", "Partial index", does("create table t (a int, gone boolean)"),
          does("create unique index on t (a) where not gone"), does("insert into t values (1, true), (1, false)"),
          fails("insert into t values (1, false)", "23505")),
    probe("index_covering", "indexes", "Index with INCLUDE", does("create table t (a int, b int)"),
          does("create unique index on t (a) include (b)"), does("insert into t values (1, 1)"),
          fails("insert into t values (1, 2)", "23505")),
    probe("index_brin", "indexes", "BRIN and hash indexes", does("create table t (a int)"),
          does("create index on t using brin (a)"), does("create index on t using hash (a)"),
          does("insert into t values (1)"), gives("select count(*) from t where a = 1", (1,))),
    Probe("index_concurrently", "indexes", "CREATE INDEX CONCURRENTLY", (
        does("create table t (a int)"), does("insert into t values (1)"), does("create index concurrently i on t (a)"),
        gives("select indisvalid from pg_index where indexrelid = 'i'::regclass", (True,))), rolled_back=False),
    # -- triggers and procedures
    probe("trigger_row", "triggers", "BEFORE trigger that changes a row", does("create table t (a int)"),
          does("create function f() returns trigger language plpgsql as"
               " $$ begin new.a := new.a + 1; return new; end $$"),
          does("create trigger f before insert on t for each row execute function f()"),
          gives("insert into t values (1) returning a", (2,))),
    probe("trigger_statement", "triggers", "AFTER trigger with a transition table", does("create table t (a int)"),
          does("create table log (n int)"), does(
              "create function f() returns trigger language plpgsql as"
              " $$ begin insert into log select count(*) from new_rows; return null; end $$"),
          does("create trigger f after insert on t referencing new table as new_rows for each statement"
               " execute function f()"),
          does("insert into t values (1), (2), (3)"), gives("select n from log", (3,))),
    probe("trigger_instead", "triggers", "INSTEAD OF trigger on a view", does("create table t (a int)"),
          does("create view v as select a from t"), does(
              "create function f() returns trigger language plpgsql as"
              " $$ begin insert into t values (new.a * 10); return new; end $$"),
          does("create trigger f instead of insert on v for each row execute function f()"),
          does("insert into v values (4)"), gives("select a from t", (40,))),
    probe("constraint_trigger", "triggers", "Constraint triggers, deferred", does("create table t (a int)"),
          does("create function f() returns trigger language plpgsql as"
               " $$ begin raise exception 'no' using errcode = 'P0001'; end $$"),
          does("create constraint trigger f after insert on t deferrable initially deferred for each row"
               " execute function f()"),
          does("insert into t values (1)"), fails("set constraints all immediate", "P0001")),
    probe("function_sql", "procedures", "Functions in SQL",
          does("create function twice(a int) returns int language sql immutable return a * 2"),
          gives("select twice(21)", (42,))),
    probe("function_plpgsql", "procedures", "Functions in PL/pgSQL", does(
              "create function f(n int) returns int language plpgsql as"
              " $$ declare s int := 0; begin for i in 1..n loop s := s + i; end loop; return s; end $$"),
          gives("select f(4)", (10,))),
    probe("function_exception", "procedures", "EXCEPTION in PL/pgSQL", does(
              "create function f() returns text language plpgsql as"
              " $$ begin perform 1 / 0; exception when division_by_zero then return 'caught'; end $$"),
          gives("select f()", ("caught",))),
    probe("function_table", "procedures", "Functions that return tables", does(
              "create function f() returns table (a int, b text) language sql as $$ values (1, 'x'), (2, 'y') $$"),
          gives("select b from f() where a = 2", ("y",))),
    probe("procedure", "procedures", "CALL with an OUT parameter", does(
              "create procedure p(a int, out b int) language plpgsql as $$ begin b := a + 1; end $$"),
          gives("call p(1, null)", (2,))),
    probe("do_block", "procedures", "DO", does("create table t (a int)"),
          does("do $$ begin for i in 1..3 loop insert into t values (i); end loop; end $$"),
          gives("select sum(a) from t", (6,))),
    probe("dynamic_sql", "procedures", "EXECUTE in PL/pgSQL", does(
              "create function f(x text) returns int language plpgsql as"
              " $$ declare n int; begin execute format('select %L::int + 1', x) into n; return n; end $$"),
          gives("select f('4')", (5,))),
    # -- partitions
    probe("partition_range", "partitions", "PARTITION BY RANGE", does("create table t (a int) partition by range (a)"),
          does("create table t1 partition of t for values from (0) to (10)"), does("insert into t values (5)"),
          gives("select tableoid::regclass from t", ("t1",)), fails("insert into t values (10)", "23514")),
    probe("partition_list_hash", "partitions", "PARTITION BY LIST and HASH",
          does("create table l (a text) partition by list (a)"),
          does("create table l1 partition of l for values in ('x')"),
          does("create table h (a int) partition by hash (a)"),
          does("create table h0 partition of h for values with (modulus 1, remainder 0)"),
          does("insert into l values ('x')"), does("insert into h values (1)"),
          gives("select (select count(*) from l1), (select count(*) from h0)", (1, 1))),
    probe("partition_default", "partitions", "Default partitions, ATTACH and DETACH",
          does("create table t (a int) partition by list (a)"), does("create table d partition of t default"),
          does("insert into t values (7)"), does("alter table t detach partition d"),
          gives("select count(*) from t", (0,)),
          does("alter table t attach partition d default"), gives("select count(*) from t", (1,))),
    # -- views
    probe("view", "views", "Views that can be written to", does("create table t (a int)"),
          does("create view v as select a from t where a > 0 with check option"), does("insert into v values (1)"),
          fails("insert into v values (-1)", "44000"), gives("select a from v", (1,))),
    probe("materialized_view", "views", "Materialized views", does("create table t (a int)"),
          does("create materialized view m as select count(*) as n from t"), does("insert into t values (1)"),
          gives("select n from m", (0,)), does("refresh materialized view m"), gives("select n from m", (1,))),
    probe("recursive_view", "views", "Recursive views",
          does("create recursive view v (n) as values (1) union all select n + 1 from v where n < 3"),
          gives("select max(n) from v", (3,))),
    # -- definitions in transactions
    probe("ddl_rolled_back", "ddl", "A rolled back CREATE TABLE leaves nothing", does("savepoint before"),
          does("create table t (a int)"), does("rollback to before"), gives("select to_regclass('t')", (None,))),
    probe("alter_table", "ddl", "ALTER TABLE with data", does("create table t (a text)"),
          does("insert into t values ('5')"),
          does("alter table t alter a type int using a::int, add b int default 3"),
          gives("select a + b from t", (8,))),
    probe("create_table_as", "ddl", "CREATE TABLE AS", does("create table t as select 1 as a"), gives("table t", (1,))),
    probe("temporary_table", "ddl", "Temporary tables", does("create temporary table tt (a int) on commit drop"),
          does("insert into tt values (1)"), gives("select a from pg_temp.tt", (1,))),
    probe("unlogged_table", "ddl", "Unlogged tables", does("create unlogged table t (a int)"),
          gives("select relpersistence from pg_class where oid = 't'::regclass", ("u",))),
    probe("comment", "ddl", "COMMENT", does("create table t (a int)"), does("comment on table t is 'x'"),
          gives("select obj_description('t'::regclass)", ("x",))),
    Probe("vacuum", "ddl", "VACUUM and ANALYZE", (
        does("create table t as select generate_series(1, 100) as a"), does("vacuum (analyze) t"),
        gives("select reltuples from pg_class where oid = 't'::regclass", (100,))), rolled_back=False),
    # -- rights
    probe("row_security", "rights", "Row level security", does("create table t (a int)"),
          does("insert into t values (1), (2)"), does("alter table t enable row level security"),
          does("alter table t force row level security"), does("create policy p on t using (a = 2)"),
          gives("select a from t", (2,))),
    probe("column_rights", "rights", "GRANT and REVOKE on columns", does("create table t (a int, b int)"),
          does("revoke all on t from current_user"), does("grant select (a) on t to current_user"),
          does("select a from t"), fails("select b from t", "42501")),
)  # fmt: skip
