"""Databases full of hostile objects, from a seed: which objects, how they are called, what they do, and what is run.

A plan is repeated by its seed as long as the service's sources are the same. Many of its statements are refused by the
engine, which is no finding; what the rest does is judged by the check of the whole.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from attack import names, routes, witness
from attack.arena import Arena

_OBJECTS = 40
_ROUTES_S = 8.0
"""No route is begun after so long: hostile code can make each slow."""

_ROUTES = 6
_ARGUMENTS_MAX = 3
_SETTINGS = (
    "search_path = public, pg_catalog", "default_transaction_isolation = 'read committed'", "statement_timeout = 50",
    "default_transaction_read_only = on", "row_security = off", "work_mem = '64kB'", "jit = on", "lock_timeout = 10",
    "check_function_bodies = off", "DateStyle = 'German'", "TimeZone = 'Asia/Tokyo'", "synchronous_commit = off",
    "plan_cache_mode = force_generic_plan", "enable_seqscan = off", "app.left = 'something'", "array_nulls = off",
    "standard_conforming_strings = off", "backslash_quote = on", "quote_all_identifiers = on", "bytea_output = escape",
)  # fmt: skip


@dataclass
class Plan:
    """`statements` make the objects, `order` names the routes that are run over them."""

    seed: int
    statements: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def run(self, arena: Arena) -> None:
        dice = random.Random(self.seed)
        deadline = time.monotonic() + _ROUTES_S
        attacker = arena.attacker
        witness.install(attacker)
        database = attacker.database
        attacker.must(f"create schema {database}_w")
        attacker.must("grant usage on schema public to public")
        maker = _Maker(dice, database, arena.victim.database)
        for _ in range(_OBJECTS):
            self.statements.append(dice.choice(_KINDS)(maker))
            attacker.query(self.statements[-1], timeout_ms=2000)
        for route in dice.choices((*routes.QUICK, _shadowed(maker), _shadowed(maker)), k=_ROUTES):
            if time.monotonic() > deadline:
                break
            self.order.append(route.__name__)
            route(arena)


def plan(seed: int) -> Plan:
    return Plan(seed)


def _shadowed(maker: "_Maker") -> routes.Route:
    """A transaction with records of its own, in which a hostile object is in pg_temp and the path is hostile."""
    statements = [maker.temporary(), maker.temporary()]
    path = f"set search_path = {maker.dice.choice(('public, pg_catalog', 'pg_temp, pg_catalog', 'pg_catalog, public'))}"

    def shadowed(arena: Arena) -> None:
        headers = {"Tuplegate-Transaction-Id": routes.chosen_id(), "Idempotency-Key": routes.chosen_id()}
        arena.attacker.transaction(*statements, path, "insert into public.loot values (1)", headers=headers)
        arena.attacker.transaction(*statements, "insert into public.loot values (1)", headers=headers)

    return shadowed


@dataclass
class _Maker:
    """Makes one hostile statement after the other."""

    dice: random.Random
    database: str
    other: str
    made: int = 0

    def name(self) -> str:
        return f'"{self.dice.choice(names.of_service())}"'

    def number(self) -> int:
        self.made += 1
        return self.made

    def schema(self) -> str:
        return self.dice.choice(("public", f"{self.database}_w"))

    def type(self) -> str:
        return f"pg_catalog.{self.dice.choice(names.TYPES)}"

    def arguments(self) -> str:
        return ", ".join(self.type() for _ in range(self.dice.randint(0, _ARGUMENTS_MAX)))

    def role(self) -> str:
        return self.dice.choice(
            ("public", f"{self.database}_r", f"{self.other}_w", f"{self.other}_r", "tuplegate", "pg_monitor")
        )

    def body(self, place: str, returns: str = "return null;") -> str:
        """A PL/pgSQL body that notes who runs it and then does harm."""
        harm = self.dice.choice(
            (
                "", "", "perform public.leave_traces();", "perform public.escalate();",
                "raise exception 'hostile';", "raise exception using errcode = '40001';",
                "perform pg_catalog.pg_sleep(0.002);", f"execute 'set {self.setting()}';",
                "begin execute 'set role tuplegate'; exception when others then null; end;",
                "begin insert into public.loot values (10); exception when others then null; end;",
                "begin copy (select 1) to program 'true'; exception when others then null; end;",
                "perform pg_catalog.pg_notify('a', 'b');", "raise warning 'hostile';",
                "begin create temp table hostile (a int); exception when others then null; end;",
            )
        )  # fmt: skip
        quoted = place.replace("'", "''")
        return f"$hostile$ begin perform public.note('{quoted}'); {harm} {returns} end $hostile$"

    def setting(self) -> str:
        return self.dice.choice(_SETTINGS).replace("'", "''")

    def options(self) -> str:
        return self.dice.choice(("", "immutable", "stable", "security definer", "strict", "parallel safe", "cost 1"))

    def temporary(self) -> str:
        name = self.name()
        base = self.dice.choice(("text", "bytea", "bool", "oid", "int8", "timestamptz"))
        return self.dice.choice(
            (
                f"create domain pg_temp.{name} as pg_catalog.{base}"
                " check (public.note(value::pg_catalog.text) is null)",
                f"create temp table {name} (id text, state text, value bytea, a int)",
                f"create temp view {name} as select public.note('temporary view') as a",
                f"create type pg_temp.{name} as (a int)",
                f"create function pg_temp.{name}({self.arguments()}) returns {self.type()} language plpgsql"
                f" as {self.body('temporary function')}",
            )
        )


def _function(maker: _Maker) -> str:
    name = maker.name()
    return (
        f"create or replace function {maker.schema()}.{name}({maker.arguments()}) returns {maker.type()}"
        f" language plpgsql {maker.options()} as {maker.body(f'function {name}')}"
    )


def _operator(maker: _Maker) -> str:
    """With its function, in one statement."""
    schema, left, right, sign = maker.schema(), maker.type(), maker.type(), maker.dice.choice(names.SIGNS)
    function = f"operates_{maker.number()}"
    result = "pg_catalog.text" if sign in ("||", "->", "->>") else "pg_catalog.bool"
    return (
        f"do $do$ begin create function {schema}.{function}({left}, {right}) returns {result} language plpgsql"
        f" {maker.options()} as {maker.body(f'operator {sign}', 'return true;')};"
        f" create operator {schema}.{sign} (leftarg = {left}, rightarg = {right}, function = {schema}.{function});"
        f" grant execute on function {schema}.{function}({left}, {right}) to public; end $do$"
    )


def _type(maker: _Maker) -> str:
    name = f"{maker.schema()}.{maker.name()}"
    return maker.dice.choice(
        (
            f"create domain {name} as {maker.type()} check (public.note(value::pg_catalog.text) is null)",
            f"create domain {name} as pg_catalog.text default public.note('default')::pg_catalog.text",
            f"create type {name} as (a int, b text)",
            f"create type {name} as enum ('t', 'f', 'on', 'off')",
            f"create type {name} as range (subtype = int4)",
        )
    )


def _cast(maker: _Maker) -> str:
    number, other = maker.number(), maker.type()
    way = maker.dice.choice(("", "as assignment", "as implicit"))
    first, second = maker.dice.choice(((f"public.cast_{number}", other), (other, f"public.cast_{number}")))
    return (
        f"do $do$ begin create type public.cast_{number} as (a int);"
        f" create function public.casts_{number}({first}) returns {second} language plpgsql as {maker.body('cast')};"
        f" create cast ({first} as {second}) with function public.casts_{number}({first}) {way}; end $do$"
    )


def _aggregate(maker: _Maker) -> str:
    number, type = maker.number(), maker.type()
    return (
        f"do $do$ begin create function public.adds_{number}({type}, {type}) returns {type} language plpgsql"
        f" as {maker.body('aggregate')}; create aggregate {maker.schema()}.{maker.name()}({type})"
        f" (sfunc = public.adds_{number}, stype = {type}); end $do$"
    )


def _trigger(maker: _Maker) -> str:
    number = maker.number()
    when = maker.dice.choice(("before insert or update", "after insert or delete", "before truncate"))
    each = "statement" if "truncate" in when else "row"
    constraint = maker.dice.random() < 0.4
    kind = "constraint trigger" if constraint else "trigger"
    when = "after insert" if constraint else when
    each = "row" if constraint else each
    deferred = "deferrable initially deferred" if constraint else ""
    table = maker.dice.choice(("public.loot", "public.noted"))
    return (
        f"do $do$ begin create function public.fires_{number}() returns trigger language plpgsql"
        f" as {maker.body('trigger', 'return new;')}; create {kind} fires_{number} {when} on {table} {deferred}"
        f" for each {each} execute function public.fires_{number}(); end $do$"
    )


def _relation(maker: _Maker) -> str:
    name = f"{maker.schema()}.{maker.name()}"
    return maker.dice.choice(
        (
            f"create view {name} as select public.note('view') as a, 1 as oid, 'x'::text as nspname",
            f"create table {name} (a int default public.note('default')::text::int, b text)",
            f"create materialized view {name} as select public.note('materialized view') as a",
            f"create sequence {name}",
            f"create rule {maker.name()} as on insert to public.loot do also select public.note('rule')",
            f"create rule {maker.name()} as on update to public.loot do instead select public.note('rule')",
            f"create statistics {name} on a, (a + 1) from public.loot",
            f"create collation {name} (provider = builtin, locale = 'C.UTF-8')",
        )
    )


def _guard(maker: _Maker) -> str:
    number = maker.number()
    return maker.dice.choice(
        (
            f"create policy p_{number} on public.loot using (public.note('policy') is null)",
            "alter table public.loot enable row level security",
            f"alter table public.loot add check (public.note('check {number}') is null)",
            f"alter table public.loot add column c_{number} text default public.note('default')::text",
            f"do $do$ begin create function public.indexes_{number}(int) returns int language plpgsql immutable as"
            f" {maker.body('index', 'return $1;')}; create index on public.loot (public.indexes_{number}(a)); end $do$",
            f"alter table public.loot add column g_{number} text generated always as (a::text) virtual",
        )
    )


def _right(maker: _Maker) -> str:
    role = maker.role()
    return maker.dice.choice(
        (
            f"alter role current_user set {maker.dice.choice(_SETTINGS)}",
            f"alter role current_user in database {maker.database} set {maker.dice.choice(_SETTINGS)}",
            f"alter default privileges grant all on tables to {role}",
            f"alter default privileges revoke all on functions from {role}",
            f"grant all on all tables in schema public to {role}",
            f"grant execute on all functions in schema public to {role}",
            f"grant all on schema public to {role}",
            f"revoke all on schema public from {role}",
            f"revoke all on all tables in schema public from {role}",
            f"comment on schema public is 'granted to {role}'",
            "alter role current_user password 'hostile'",
        )
    )


_KINDS: tuple[Callable[[_Maker], str], ...] = (
    _function, _function, _operator, _operator, _operator, _type, _cast, _aggregate, _trigger, _relation, _guard,
    _right,
)  # fmt: skip
