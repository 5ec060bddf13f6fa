"""What tests of dumps share: a database with something of everything in it, and what there is to compare of two."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.control import Control, engine_name
from tests.processes import children, program
from tests.service import Service, Sql
from tests.workers import workers
from tuplegate.engine.bundled.binaries import find_wheel_programs, find_wheel_site

PROGRAMS = find_wheel_programs(find_wheel_site())

EVERYTHING = [
    text.strip().removesuffix(";")
    for text in re.split(r";\n\n", (Path(__file__).parent / "everything.sql").read_text("utf-8"))
]
"""Statements of a tenant, one by one: something of everything that can be in a database. The cast at the end is a trap:
rows must be read back by their types, not by what a tenant says of a text."""

_OF_VECTORS = {"create extension vector", "create index on app.values using hnsw (e vector_l2_ops)"}
assert set(EVERYTHING) >= _OF_VECTORS

_TABLES = """
select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'm') and c.relispopulated and n.nspname !~ '^pg_'
   and n.nspname not in ('information_schema', 'tuplegate') order by 1
"""
_OTHERS = (
    "select l.oid, encode(lo_get(l.oid), 'hex') from pg_largeobject_metadata l order by 1",
    "select schemaname, sequencename, last_value from pg_sequences order by 1, 2",
    "select nspname from pg_namespace where nspname !~ '^pg_' order by 1",
    "select extname from pg_extension order by 1",
)
Contents = dict[str, list[Any]]


def contents(connection: "psycopg.Connection[Any]", *, without: str = "") -> Contents:
    """Every row of every table, large objects, where sequences stand, schemas and extensions; but none of `without`."""
    connection.execute("set extra_float_digits = 3")
    tables = [row[0] for row in connection.execute(_TABLES)]
    found: Contents = {
        table: [row[0] for row in connection.execute(f"select t::text from only {table} t order by 1".encode())]
        for table in tables
    }
    for sql in _OTHERS:
        found[sql] = [row for row in connection.execute(sql.encode()).fetchall() if row[0] != without]
    return found


def fill(sql: Sql) -> None:
    """With vectors, where tenants may have them: that is up to the operator, or to the processor."""
    if sql.value("select bool_or(trusted) from pg_available_extension_versions where name = 'vector'"):
        statements = EVERYTHING
    else:
        statements = [each.replace("e vector(3)", "e text") for each in EVERYTHING if each not in _OF_VECTORS]
    for statement in statements:
        sql(statement)


def schema_of(file: Path) -> str:
    """What would be made by the dump, without its comments, keys for psql and names of roles."""
    script = subprocess.run(
        [PROGRAMS / "pg_restore", "--schema-only", "--no-owner", "--file=-", file], capture_output=True, check=True
    )
    lines = [line for line in script.stdout.decode().splitlines() if not re.match(r"--|\\(un)?restrict", line)]
    return re.sub(r"tg_\w+_([wr])", r"\1", "\n".join(lines))


def dump_of(control: Control, name: str, file: Path) -> Path:
    with control.client.stream("GET", f"/v1/databases/{name}/dump") as answer:
        assert answer.status_code == 200, answer.read()
        file.write_bytes(b"".join(answer.iter_bytes()))
    return file


LARGE = (
    "do $$ begin create table large (g int, noise text); alter table large alter noise set storage external;"
    " insert into large with once as materialized"
    " (select string_agg(md5(random()::text || h), '') as noise from generate_series(1, 5000) h)"
    " select g, substr(noise, g * 500) || substr(noise, 1, g * 500) as noise from once, generate_series(1, 300) g;"
    " end $$"
)
"""More than all buffers between the engine and a client take. The engine does not try to compress it, which takes a
second or two; compression of a dump does not see that it repeats itself."""


def dumping(service: Service) -> list[int]:
    """Programs that dump for the service just now."""
    return [pid for worker in workers(service) for pid in children(worker) if program(pid) == "pg_dump"]


@contextmanager
def begun(control: Control, name: str) -> Iterator[Iterator[bytes]]:
    """A dump of which something has arrived; the rest is there for whoever goes on reading."""
    with control.client.stream("GET", f"/v1/databases/{name}/dump") as answer:
        assert answer.status_code == 200, answer.read()
        rest = answer.iter_raw(1024)
        next(rest)
        yield rest


def backends(service: Service, database_id: str) -> list[str]:
    """Roles that are logged in to the database, other than the owner."""
    name = engine_name(service, database_id)
    with psycopg.connect(service.server_of(name)) as connection:
        rows = connection.execute(
            "select usename from pg_stat_activity where datname = %s and usename like 'tg%%d'", [name]
        )
        return [str(row[0]) for row in rows]
