"""Asks for the rows of an export in forms from which the same values can be read back.

The statement is first described, without being run. Where the service's JSON cannot tell a value from another (the
bounds of an array, JSON null from NULL, the digits and blanks of a document), the statement is put into a subquery
that asks for the engine's text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuplegate.cli.splitting import Splitter
from tuplegate.cli.transfer.files import BadFile, check_columns
from tuplegate.cli.transfer.value_forms import FORMS, Form, find_kind, is_own, text_sql, write_document
from tuplegate.client.statements import seems_to_read
from tuplegate.protocol.statements import skip_blank

if TYPE_CHECKING:
    from tuplegate.client import Client

_DOMAINS = (
    "select n.nspname || '.' || t.typname from pg_type t join pg_namespace n on n.oid = t.typnamespace "
    "where t.typtype = 'd' and n.nspname || '.' || t.typname = any ($1::text[])"
)


@dataclass(frozen=True)
class ExportPlan:
    """The columns of the file: their names, the engine's types of them, and their forms."""

    columns: Sequence[str]
    engine_types: Sequence[str]
    forms: Sequence[Form]

    @property
    def types(self) -> list[str]:
        """Return the types of the columns in the file, where the engine's text is of type text."""
        pairs = zip(self.engine_types, self.forms, strict=True)
        return ["text" if form is Form.TEXT else type_ for type_, form in pairs]

    def write_query(self, statement: str, key: Sequence[str]) -> str:
        """Return the statement that asks for the columns in their forms. Where rows come in the order of a `key`, they
        do so still."""
        if set(self.forms) <= {Form.NATIVE}:
            return statement
        names = [f"c{number}" for number in range(len(self.forms))]
        parts = [_select(*column) for column in zip(names, self.engine_types, self.forms, strict=True)]
        # OFFSET keeps the subquery apart, so that none of its expressions is computed twice.
        inner = f"select * from (\n{_drop_semicolon(statement)}\n) as s offset 0"
        order = ", ".join(names[list(self.columns).index(name)] for name in key)
        ordered = f" order by {order}" if order else ""
        return f"select {', '.join(parts)} from ({inner}) as q ({', '.join(names)}){ordered}"

    def read(self, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return rows of the answer as rows of the file."""
        if Form.LIST in self.forms or Form.DOCUMENT in self.forms:
            return [self._read_row(row) for row in rows]
        return rows

    def _read_row(self, row: Sequence[Any]) -> list[Any]:
        values = iter(row)
        return [_read_value(form, next(values), values) for form in self.forms]


def _read_value(form: Form, value: Any, rest: Any) -> Any:
    if form is Form.LIST:
        text = next(rest)
        return value if text is None else text
    return value if form is not Form.DOCUMENT or value is None else write_document(value)


def plan_export(client: "Client", sql: str, format: str) -> ExportPlan | None:
    """Return the plan for the rows; None for a statement that cannot be put into a subquery, such as EXPLAIN.

    A statement with a mistake is one of these, too: running it unchanged shows the place of the mistake.
    """
    from tuplegate.client import BadRequest, SqlError

    if not seems_to_read(sql):
        raise BadFile("export takes a statement that reads; a failed one must not leave a change behind")
    statement = _drop_semicolon(sql)
    try:
        described = client.query(f"select * from (\n{statement}\n) as q limit 0", convert=False)
    except (SqlError, BadRequest):
        return None
    forms = _find_forms(client, described.columns, described.types, format)
    return ExportPlan(described.columns, described.types, forms)


def accept_answer(columns: Sequence[str], types: Sequence[str], format: str) -> ExportPlan:
    """Return the plan for an answer as it is. Refuse a column that would need the engine's text."""
    for column, type_ in zip(columns, types, strict=True):
        if FORMS[find_kind(type_, ())][format] is not Form.NATIVE:
            raise BadFile(
                f"column {column} of type {type_} of this statement cannot be carried exactly: only a SELECT can be"
                " asked for the engine's text"
            )
    return ExportPlan(columns, types, [Form.NATIVE] * len(columns))


def _find_forms(client: "Client", columns: Sequence[str], types: Sequence[str], format: str) -> list[Form]:
    if format != "csv" and columns:
        check_columns(Path("the answer"), columns, "; name them with AS, or export to CSV")
    own = [type_.removesuffix("[]") for type_ in types if type_.endswith("[]") and is_own(type_)]
    domains = client.query(_DOMAINS, [own]).column() if own else []
    return [FORMS[find_kind(type_, domains)][format] for type_ in types]


def _select(name: str, type_: str, form: Form) -> str:
    """Return SQL for a column: of an array it adds the engine's text if that shows bounds, of others in its place."""
    if form is Form.NATIVE:
        return name
    text = text_sql(name, type_)
    return f"{name}, case when {text} like '[%' then {text} end" if form is Form.LIST else text


def _drop_semicolon(sql: str) -> str:
    """Return the statement without its final semicolon."""
    splitter = Splitter()
    found = [one for one in splitter.feed(f"{sql}\n;") if skip_blank(one) < len(one)]
    return found[0] if len(found) == 1 else sql
