"""Makes definitions in the receiving database: tries each as it was, then in forms that more engines accept.

The engine decides, not a list of engines: if it refuses a definition in every form, the report has its words.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuplegate.cli.sending.definitions import Definitions, Record, Relation, full_name
from tuplegate.cli.sending.report import Report, Result
from tuplegate.client.statements import quote, quote_text

if TYPE_CHECKING:
    from tuplegate.client import Client

Way = tuple[str, str]
"""A statement, and a description of its change; empty if it changes nothing."""

_KINDS = {"p": "primary key", "u": "unique", "c": "check", "f": "foreign key", "x": "exclusion"}
_OPERATOR_CLASS = re.compile(r" (?:\w+\.)?\w+_ops\b")
_METHOD = re.compile(r" USING \w+")
_DEFERRED = re.compile(r" (?:NOT )?DEFERRABLE(?: INITIALLY \w+)?")
_NOT_SENT = "its code is written for the engine that it was on: write it anew, or move the work to the application"


class Target:
    """The receiving database. `report` gets the result of each definition."""

    def __init__(self, client: "Client", report: Report) -> None:
        self._client = client
        self._report = report
        self._types: dict[str, bool] = {}

    def _try(self, sql: str) -> str | None:
        """Run a statement; return the reason if it was refused."""
        from tuplegate.client import BadRequest, SqlError

        try:
            self._client.query(sql)
        except (SqlError, BadRequest) as error:
            return error.message
        return None

    def _define(self, kind: str, name: str, *ways: Way) -> bool:
        """Make one thing in the first way that the engine takes. The note of a failure is about the first way."""
        refusals = []
        for sql, note in ways:
            refusal = self._try(sql)
            if refusal is None:
                self._report.add(kind, name, Result.CHANGED if note else Result.TAKEN, note)
                return True
            refusals.append(refusal)
        self._report.add(kind, name, Result.MISSING, refusals[0])
        return False

    # -- before the rows ------------------------------------------------------------------------------------------

    def make_types(self, found: Definitions) -> None:
        for one in found.foreign:
            if one["kind"] == "extension":
                self._define("extension", one["name"], (f"create extension if not exists {quote(one['name'])}", ""))
        for schema in found.schemas:
            self._define("schema", schema, (f"create schema if not exists {quote(schema)}", ""))
        for one in found.enums:
            name = full_name(one["schema"], one["name"])
            labels = ", ".join(map(quote_text, one["labels"]))
            self._define("type", name, (f"create type {name} as enum ({labels})", ""))
        for one in found.composites:
            name = full_name(one["schema"], one["name"])
            self._define("type", name, (f"create type {name} as ({', '.join(one['fields'])})", ""))
        for one in found.domains:
            self._define("domain", full_name(one["schema"], one["name"]), (_write_domain(one), ""))

    def make_sequences(self, found: Definitions) -> None:
        own = {name for table in found.relations for name in table.identities.values()}
        for one in found.sequences:
            name = full_name(one["schema"], one["name"])
            if name not in own:
                rest = f"increment by {one['increment_by']} minvalue {one['min_value']} maxvalue {one['max_value']}"
                rest += f" start with {one['start_value']}{' cycle' if one['cycle'] else ''}"
                self._define(
                    "sequence",
                    name,
                    (f"create sequence {name} as {one['type']} {rest}", ""),
                    (f"create sequence {name} {rest}", f"it is not of the type {one['type']}"),
                    (f"create sequence {name} {rest.removesuffix(' cycle')}", "it does not begin again at its end"),
                )

    def make_table(self, table: Relation) -> list[Record] | None:
        """Make a table; return the columns that take rows, or None where it could not be made."""
        note = "its partitions became one table" if table.kind == "p" else ""
        if self._try(_write_table(table, {}, numbers=True)) is None:
            self._report.add("table", table.full_name, Result.CHANGED if note else Result.TAKEN, note)
            return [column for column in table.columns if not column["generated"]]
        types: dict[str, str] = {}
        for column in table.columns:
            choices = (column["type"], *([column["base"]] if column["base"] else []), "text")
            chosen = next(filter(self._has_column_of, choices), None)
            if chosen is not None and chosen != column["type"]:
                types[column["name"]] = chosen
                self._report.add(
                    "column",
                    f"{table.full_name}.{column['name']}",
                    Result.CHANGED,
                    f"{column['type']} became {chosen}",
                )
        refusal: str | None = None
        for numbers in (True, False):
            refusal = self._try(_write_table(table, types, numbers=numbers))
            if refusal is None:
                lost = [one["name"] for one in table.columns if (one["generated"] or one["identity"]) and not numbers]
                notes = [note] if note else []
                notes += [f"{', '.join(lost)} neither numbered nor generated"] if lost else []
                self._report.add("table", table.full_name, Result.CHANGED, "; ".join(notes) or "types of columns")
                return [one for one in table.columns if not (numbers and one["generated"])]
        self._report.add("table", table.full_name, Result.MISSING, refusal or "")
        return None

    def _has_column_of(self, type: str) -> bool:
        if type not in self._types:
            self._types[type] = self._try(f"create table tuplegate_sent_type (c {type})") is None
            if self._types[type]:
                self._try("drop table tuplegate_sent_type")
        return self._types[type]

    # -- after the rows -------------------------------------------------------------------------------------------

    def finish_table(self, table: Relation) -> None:
        for column in table.columns:
            if column["expression"] and not column["generated"]:
                self._define(
                    "default",
                    f"{table.full_name}.{column['name']}",
                    (_alter(table, f"alter column {quote(column['name'])} set default {column['expression']}"), ""),
                )
            if column["identity"] == "a":
                self._define(
                    "identity",
                    f"{table.full_name}.{column['name']}",
                    (_alter(table, f"alter column {quote(column['name'])} set generated always"), ""),
                )
        for one in table.constraints:
            if one["kind"] in ("u", "c", "x"):
                self._add_constraint(table, one)
        for one in table.indexes:
            text = one["definition"].replace(" ON ONLY ", " ON ")
            plain = _OPERATOR_CLASS.sub("", text)
            ways = {_METHOD.sub("", plain): "as a plain index", plain: "without its operator class", text: ""}
            self._define("index", one["name"], *reversed(ways.items()))
        self._comment("table", table.full_name, table.comment)
        for column in table.columns:
            self._comment("column", f"{table.full_name}.{quote(column['name'])}", column["comment"])

    def link_table(self, table: Relation) -> None:
        for one in table.constraints:
            if one["kind"] == "f":
                self._add_constraint(table, one)

    def _add_constraint(self, table: Relation, one: Record) -> None:
        text = f"add constraint {quote(one['name'])} {one['definition']}"
        now = _DEFERRED.sub("", text)
        ways = [(_alter(table, text), "")]
        if now != text:
            ways.append((_alter(table, now), "checked at once, not at the commit"))
        self._define(_KINDS[one["kind"]], f"{table.full_name}.{one['name']}", *ways)

    def _comment(self, kind: str, name: str, text: str | None) -> None:
        if text is not None:
            self._define("comment", name, (f"comment on {kind} {name} is {quote_text(text)}", ""))

    def make_views(self, views: Sequence[Relation]) -> None:
        """Make views. One that needs another is tried again when that is there."""
        left = list(views)
        while left:
            refused = [view for view in left if self._try(_write_view(view)) is not None]
            for view in left:
                if view not in refused:
                    self._report.add("view", view.full_name, Result.TAKEN)
            if len(refused) == len(left):
                for view in refused:
                    self._report.add("view", view.full_name, Result.MISSING, self._try(_write_view(view)) or "")
                return
            left = refused

    def set_sequences(self, found: Definitions) -> None:
        """Let sequences continue where they were."""
        columns = {
            name: (table.full_name, column) for table in found.tables for column, name in table.identities.items()
        }
        for one in found.sequences:
            name = full_name(one["schema"], one["name"])
            if one["last_value"] is None:
                continue
            place = quote_text(name)
            if name in columns:
                table, column = columns[name]
                place = f"pg_get_serial_sequence({quote_text(table)}, {quote_text(column)})"
            refusal = self._try(f"select setval({place}::regclass, {one['last_value']})")
            if refusal is not None:
                self._report.add("sequence", name, Result.MISSING, f"it begins anew: {refusal}")

    def report_foreign(self, found: Definitions) -> None:
        for one in found.foreign:
            if one["kind"] != "extension":
                self._report.add(one["kind"], full_name(one["schema"], one["name"]), Result.MISSING, _NOT_SENT)
        for relation in found.relations:
            if relation.kind == "f":
                self._report.add("foreign table", relation.full_name, Result.MISSING, "its rows are elsewhere")


def _write_domain(one: Record) -> str:
    text = f"create domain {full_name(one['schema'], one['name'])} as {one['base']}"
    if one["default_text"]:
        text += f" default {one['default_text']}"
    return " ".join([text, *(["not null"] if one["not_null"] else []), *one["checks"]])


def _write_table(table: Relation, types: dict[str, str], *, numbers: bool) -> str:
    """Return CREATE TABLE with its columns and its key. Without `numbers` no column numbers or computes itself."""
    lines = []
    for column in table.columns:
        line = f"{quote(column['name'])} {types.get(column['name'], column['type'])}"
        if numbers and column["generated"]:
            kind = "virtual" if column["generated"] == "v" else "stored"
            line += f" generated always as ({column['expression']}) {kind}"
        elif numbers and column["identity"]:
            line += " generated by default as identity"
        lines.append(line + (" not null" if column["not_null"] else ""))
    lines += [f"constraint {quote(one['name'])} {one['definition']}" for one in table.constraints if one["kind"] == "p"]
    return f"create table {table.full_name} ({', '.join(lines)})"


def _write_view(view: Relation) -> str:
    kind = "materialized view" if view.kind == "m" else "view"
    return f"create {kind} {view.full_name} as {(view.definition or '').rstrip(';')}"


def _alter(table: Relation, change: str) -> str:
    return f"alter table {table.full_name} {change}"
